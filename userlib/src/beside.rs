//! A call under way beside the program.
//!
//! Some calls are conversations: an import asks the exporter's driver, and asks again where the name is not there yet; a lock's waiter looks
//! after the one before it. Such a call runs on a thread of the back end that ends with it (a coroutine in the simulator).
//!
//! What it takes it takes for its caller. Where none is left, because the future was dropped, it gives that back: on the call's own
//! thread, or on one made for that. So dropping such a future waits for nothing.

use crate::backend::PortBackend;
use crate::error::{Error, Result};
use crate::port::PortInner;
use crate::timeout::Timeout;
use netvm_abi::Nanos;
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A call under way beside the program: an import, or one that takes a lock, a semaphore's token, or a monitor.
///
/// It can be looked at ([`is_done`](Self::is_done)), waited for ([`wait_for`](Self::wait_for)) and awaited: it is a future that
/// runs under any executor. Its end makes the descriptor of the port's [`Events`](crate::Events) readable. It owns what it needs, and
/// may be dropped at any time, without waiting: what the call takes after that, or has taken, is given back as soon as it has it. It costs
/// a thread while it is under way.
///
/// ```no_run
/// use netvm::{Modes, Port, RemoteSegment, Timeout};
///
/// async fn bind(port: &Port, name: &str) -> netvm::Result<RemoteSegment> {
///     port.begin_import(1.into(), 7.into(), name, Modes::READ, Timeout::Never)?.await
/// }
/// ```
#[must_use = "dropping it gives the call up"]
pub struct PendingCall<T: Send + 'static> {
    backend: Arc<dyn PortBackend>,
    state: Arc<Mutex<State<T>>>,
    /// Gives back what no caller takes.
    undo: fn(T),
}

struct State<T> {
    /// How it has ended, until that is taken.
    end: Option<Result<T>>,
    has_ended: bool,
    given_up: bool,
    waker: Option<Waker>,
}

impl<T: Send + 'static> PendingCall<T> {
    /// Begins a call. `body` is given a look whether its result is wanted still; `undo` gives back what it has taken.
    ///
    /// # Errors
    /// [`Error::Refused`] where no thread can be made.
    pub(crate) fn begin(
        port: &Arc<PortInner>,
        name: &str,
        body: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static,
        undo: fn(T),
    ) -> Result<Self> {
        let state = Arc::new(Mutex::new(State {
            end: None,
            has_ended: false,
            given_up: false,
            waker: None,
        }));
        let (backend, shared) = (Arc::clone(&port.backend), Arc::clone(&state));
        let body = move || {
            let end = body(&|| !shared.lock().given_up);
            let (unwanted, waker) = {
                let mut state = shared.lock();
                state.has_ended = true;
                let unwanted = if state.given_up {
                    Some(end)
                } else {
                    state.end = Some(end);
                    None
                };
                (unwanted, state.waker.take())
            };
            // May take its time: after the lock.
            if let Some(Ok(unwanted)) = unwanted {
                undo(unwanted);
            }
            if let Some(waker) = waker {
                waker.wake();
            }
            backend.wake();
        };
        let spawned = port.backend.spawn(name, Box::new(body));
        spawned.map_err(|reason| Error::Refused {
            what: "start a thread for a call that waits",
            reason,
        })?;
        Ok(Self {
            backend: Arc::clone(&port.backend),
            state,
            undo,
        })
    }

    /// As [`begin`](Self::begin); where no thread can be made, the call has failed.
    pub(crate) fn begin_or_fail(
        port: &Arc<PortInner>,
        name: &str,
        body: impl FnOnce() -> Result<T> + Send + 'static,
        undo: fn(T),
    ) -> Self {
        Self::begin(port, name, move |_| body(), undo).unwrap_or_else(|error| Self {
            backend: Arc::clone(&port.backend),
            state: Arc::new(Mutex::new(State {
                end: Some(Err(error)),
                has_ended: true,
                given_up: false,
                waker: None,
            })),
            undo,
        })
    }

    /// Whether it has ended, well or not. Never waits.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.lock().has_ended
    }

    /// How it has ended, if it has: once. Never waits.
    pub fn end(&mut self) -> Option<Result<T>> {
        self.state.lock().end.take()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As the call that waits; [`Error::Refused`] where no thread could be made.
    pub fn wait(mut self) -> Result<T> {
        self.wait_for(Timeout::Never)
    }

    /// Waits for its end, so long. After [`Error::TimedOut`] it is still under way, and may be waited for again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::TimedOut`]; [`Error::Released`] after its end was taken.
    pub fn wait_for(&mut self, timeout: impl Into<Timeout>) -> Result<T> {
        let backend = Arc::clone(&self.backend);
        let deadline = timeout.into().deadline(backend.now());
        loop {
            // Before the look: an end that this does not find changes the token.
            let token = backend.wait_token();
            if let Some(end) = self.taken() {
                return end;
            }
            if deadline != Nanos::MAX && backend.now() >= deadline {
                return Err(Error::TimedOut);
            }
            backend.block(token, deadline);
        }
    }

    /// Its end, or that it was taken before.
    fn taken(&self) -> Option<Result<T>> {
        let mut state = self.state.lock();
        let end = state.end.take();
        end.or_else(|| state.has_ended.then_some(Err(Error::Released)))
    }
}

impl<T: Send + 'static> Future for PendingCall<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker is the program's: neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        let before = if state.has_ended {
            None
        } else {
            state.waker.replace(waker)
        };
        let end = state.end.take();
        let ended = state.has_ended;
        drop(state);
        drop(before);
        match (end, ended) {
            (Some(end), _) => Poll::Ready(end),
            (None, true) => Poll::Ready(Err(Error::Released)),
            (None, false) => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for PendingCall<T> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.given_up = true;
        let (end, waker) = (state.end.take(), state.waker.take());
        drop(state);
        // Either may run code that takes its time, or other locks.
        drop(waker);
        if let Some(Ok(unwanted)) = end {
            self.give_back(unwanted);
        }
    }
}

impl<T: Send + 'static> PendingCall<T> {
    /// Gives back what no caller takes, on another thread: that may be a conversation, too.
    fn give_back(&self, unwanted: T) {
        let undo = self.undo;
        if std::thread::panicking() {
            return undo(unwanted);
        }
        let left = Arc::new(Mutex::new(Some(unwanted)));
        let theirs = Arc::clone(&left);
        let body = move || {
            let unwanted = theirs.lock().take();
            if let Some(unwanted) = unwanted {
                undo(unwanted);
            }
        };
        if self.backend.spawn("netvm-gives-back", Box::new(body)).is_err() {
            let unwanted = left.lock().take();
            if let Some(unwanted) = unwanted {
                undo(unwanted);
            }
        }
    }
}

impl<T: Send + 'static> fmt::Debug for PendingCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall")
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
