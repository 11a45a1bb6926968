//! The thread that serves an endpoint while the program does not look (`FI_PROGRESS_AUTO`, wait objects).
//!
//! While the program looks, the thread naps: two that fight for one processor are slower than one. Once the program rests, it waits
//! for the port's notifications, and sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Endpoint;

/// How long the program may not look before the thread takes over.
const NAP: Duration = Duration::from_millis(1);
/// Pause while something is under way whose end no signal tells.
const SHORT: Duration = Duration::from_micros(50);
/// How long it waits for a signal before it looks whether links are up.
const LONG: Duration = Duration::from_millis(200);

/// The thread.
pub(super) struct Background {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Inner {
    stop: AtomicBool,
    /// The program has said that it is going to wait.
    called: Mutex<bool>,
    calls: Condvar,
}

impl Background {
    /// Starts it. Without a thread the program's own looks have to do.
    pub(super) fn start(endpoint: &Arc<Endpoint>) -> Self {
        let inner = Arc::new(Inner::default());
        let (weak, shared) = (Arc::downgrade(endpoint), Arc::clone(&inner));
        let thread = std::thread::Builder::new()
            .name("netvm-fi-serve".into())
            .spawn(move || serve(&weak, &shared));
        if let Err(error) = &thread {
            crate::log::warn(&format!("a thread for progress: {error}"));
        }
        Self {
            inner,
            thread: Mutex::new(thread.ok()),
        }
    }

    /// The program is going to wait.
    pub(super) fn take_over(&self) {
        *self.inner.called.lock() = true;
        self.inner.calls.notify_one();
    }

    /// Ends it.
    pub(super) fn stop(&self, endpoint: &Endpoint) {
        self.inner.stop.store(true, Ordering::Release);
        self.take_over();
        endpoint.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

fn serve(endpoint: &Weak<Endpoint>, inner: &Inner) {
    let mut seen = 0;
    while !inner.stop.load(Ordering::Acquire) {
        let Some(endpoint) = endpoint.upgrade() else {
            return;
        };
        let looks = endpoint.looks.load(Ordering::Relaxed);
        let mut called = inner.called.lock();
        let looked = looks != seen && !*called;
        *called = false;
        seen = looks;
        if looked || !endpoint.is_enabled() {
            drop(endpoint);
            inner.calls.wait_for(&mut called, NAP);
            continue;
        }
        drop(called);
        endpoint.work();
        let busy = endpoint.state().is_busy() || endpoint.domain().rma.is_busy();
        if busy {
            std::thread::sleep(SHORT);
            continue;
        }
        if endpoint.state().rest() {
            endpoint.wait_for_signal(LONG);
        }
    }
}

impl Endpoint {
    /// Waits for a signal of its port.
    fn wait_for_signal(self: &Arc<Self>, limit: Duration) {
        if let Ok(id) = self.port.notifications().wait(limit) {
            self.state().hear(self, id);
        } else {
            let mut state = self.state();
            state.check_links(self);
        }
    }

    /// Lets a thread that waits for a signal look up.
    fn wake(&self) {
        // Its own ring's signals are its own; the knock is one that finds nothing.
        let _ = self;
    }
}
