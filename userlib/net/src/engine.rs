//! The state of a network, and how threads come to it: it is passed on, and no thread waits for it.
//!
//! All streams of a process share one queue and one port, so one thread at a time works on them: the one that has taken the
//! [`Core`] out of its place. A thread that finds the place empty does not wait. It leaves what it wants done in a queue of
//! calls, and a mark. The thread that has the core looks at both after it has put the core back, and takes it again if there is
//! something. Readers need no core: what has come for them lies at their connection.
//!
//! **No call is left behind.** A thread leaves its call, sets the mark and looks at the place once more. The holder puts the core
//! back and then looks at the mark. With a full barrier between the two steps of each, one of them sees what the other has done.

use crate::config::{NetConfig, Way};
use crate::conn::Conn;
use crate::core::Core;
use crate::error;
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use netvm::{Notification, Port, Timeout};
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Something to be done with the core.
pub(crate) type Task = Box<dyn FnOnce(&mut Core, &Engine) + Send>;

/// What a thread wants done that does not have the core.
pub(crate) enum Call {
    /// These bytes go to the other end.
    Send(Arc<Conn>, Vec<u8>, Way),
    /// The writer is to be woken: there was no room for more calls with bytes.
    Room(Arc<Conn>),
    /// The other end is to know what was read.
    Window(Arc<Conn>),
    /// No more bytes come from the program.
    End(Arc<Conn>),
    /// The program reads no more.
    ReaderGone(Arc<Conn>),
    /// The program has let go of the writing half. `true`: of unsent bytes, too.
    WriterGone(Arc<Conn>),
    /// The program has let go of a half with bytes unread.
    Abort(Arc<Conn>),
    /// This listener is gone.
    Unlisten(u16),
    /// Something else, for which the caller waits.
    Do(Task),
}

/// Bytes of programs that may lie in the queue of calls.
const HANDED_OVER: usize = 1 << 20;

/// How long a spinning caller looks at the notification between two looks at its own stream.
const SLICE: Duration = Duration::from_nanos(500);

/// A piece of a large transfer takes some times as long as a message: so many times as long a call spins for it.
const BULK: u32 = 4;

/// So many looks of a spinning caller may find another thread at work before it lets others run.
const BUSY: u32 = 64;

/// What all handles of a network share.
pub(crate) struct Engine {
    /// Before the port: its queue says farewell through it.
    core: CachePadded<AtomicCell<Option<Box<Core>>>>,
    knocked: CachePadded<AtomicBool>,
    calls: SegQueue<Call>,
    /// Bytes in the queue of calls.
    handed_over: AtomicUsize,
    /// Threads that look for messages themselves: no other is to be woken for them.
    spinning: AtomicUsize,
    /// Threads that sleep until something comes.
    sleeping: AtomicUsize,
    /// The dispatcher has called, so it has to be asked again.
    called: AtomicBool,
    /// The program waits, or looks for what has come.
    turn_over: AtomicBool,
    pub(crate) arrived: Notification,
    pub(crate) config: NetConfig,
    waker: Waker,
    weak: Weak<Self>,
    pub(crate) port: Port,
}

const _: () = assert!(AtomicCell::<Option<Box<Core>>>::is_lock_free());

/// Drives a network from the port's dispatcher.
struct Dispatched(Weak<Engine>);

impl Wake for Dispatched {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(engine) = self.0.upgrade() {
            engine.called.store(true, Ordering::Release);
            engine.drive();
        }
    }
}

/// The core in the hands of a thread. It goes back also when that unwinds.
struct Held<'a> {
    place: &'a AtomicCell<Option<Box<Core>>>,
    core: Option<Box<Core>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.place.store(self.core.take());
    }
}

/// Counts a thread while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Engine {
    pub(crate) fn new(port: Port, core: Core, config: NetConfig) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            arrived: core.notification(),
            core: CachePadded::new(AtomicCell::new(Some(Box::new(core)))),
            knocked: CachePadded::new(AtomicBool::new(false)),
            calls: SegQueue::new(),
            handed_over: AtomicUsize::new(0),
            spinning: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            called: AtomicBool::new(false),
            turn_over: AtomicBool::new(false),
            config,
            waker: Waker::from(Arc::new(Dispatched(weak.clone()))),
            weak: weak.clone(),
            port,
        })
    }

    /// What is called when something comes for the network.
    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.weak.clone()
    }

    /// Whether the dispatcher is to call when something comes and no thread spins for it.
    pub(crate) fn wants_calls(&self) -> bool {
        self.config.background || self.is_slept_in()
    }

    /// Whether a thread sleeps until something comes.
    pub(crate) fn is_slept_in(&self) -> bool {
        self.sleeping.load(Ordering::Acquire) > 0
    }

    /// Whether a thread looks for messages itself, so that no other is to be woken for them.
    pub(crate) fn is_spinning(&self) -> bool {
        self.spinning.load(Ordering::Acquire) > 0
    }

    /// Whether the program has begun to wait since this was asked.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.turn_over.load(Ordering::Relaxed) && self.turn_over.swap(false, Ordering::AcqRel)
    }

    /// The program waits: what it has written leaves with the next look.
    fn end_turn(&self) {
        if self.config.gather {
            self.turn_over.store(true, Ordering::Release);
        }
    }

    /// Whether the dispatcher has called since this was asked.
    pub(crate) fn was_called(&self) -> bool {
        self.called.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn next_call(&self) -> Option<Call> {
        let call = self.calls.pop()?;
        if let Call::Send(_, bytes, _) = &call {
            self.handed_over.fetch_sub(bytes.len(), Ordering::AcqRel);
        }
        Some(call)
    }

    /// Takes the core, if no other thread has it; then none will be told of this look.
    fn take(&self) -> Option<Held<'_>> {
        let core = self.core.take()?;
        Some(Held {
            place: &self.core,
            core: Some(core),
        })
    }

    /// Lets the network do what there is to do, on this thread or on the one that does it already. Tells whether it was this one.
    pub(crate) fn drive(&self) -> bool {
        while let Some(mut held) = self.take_or_knock() {
            self.work(&mut held);
            if !self.put_back(held) {
                return true;
            }
        }
        false
    }

    /// Lets others run: the thread that has the core may wait for a page.
    fn pause(&self) {
        let _ = self.port.block_on_for(poll_fn(|_| Poll::<()>::Pending), SLICE);
    }

    /// Takes the core; else its holder will look again.
    fn take_or_knock(&self) -> Option<Held<'_>> {
        self.take().or_else(|| {
            self.knocked.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            // The holder may have looked at the mark before it was set.
            self.take()
        })
    }

    fn work(&self, held: &mut Held<'_>) {
        self.knocked.store(false, Ordering::Release);
        if let Some(core) = held.core.as_deref_mut() {
            core.run(self);
        }
    }

    /// Puts the core back, and tells whether another thread has left something meanwhile.
    fn put_back(&self, mut held: Held<'_>) -> bool {
        let trash = held.core.as_deref_mut().map(Core::take_trash);
        drop(held);
        // What is let go of may wait for what is under way.
        drop(trash);
        fence(Ordering::SeqCst);
        self.knocked.load(Ordering::Acquire)
    }

    /// Does something with the core, if no other thread has it, and after everything that was called for before.
    pub(crate) fn with<T>(&self, what: impl FnOnce(&mut Core, &Self) -> T) -> Option<T> {
        let mut held = self.take()?;
        let core = held.core.as_deref_mut()?;
        core.take_calls(self);
        let done = what(core, self);
        let gone = core.has_gone();
        if self.put_back(held) || gone {
            self.drive();
        }
        Some(done)
    }

    /// Has something done.
    pub(crate) fn call(&self, call: Call) {
        self.calls.push(call);
        self.drive();
    }

    /// Hands bytes over to the thread that has the core. Nothing: there are too many already, and the writer is woken when these are
    /// sent.
    pub(crate) fn hand_over(&self, conn: &Arc<Conn>, bytes: &[u8], way: Way) -> Option<()> {
        let before = self.handed_over.fetch_add(bytes.len(), Ordering::AcqRel);
        if before > HANDED_OVER {
            self.handed_over.fetch_sub(bytes.len(), Ordering::AcqRel);
            if conn.starve() {
                self.call(Call::Room(Arc::clone(conn)));
            }
            return None;
        }
        self.call(Call::Send(Arc::clone(conn), bytes.to_vec(), way));
        Some(())
    }

    /// Does something with the core, and waits for it. Not for what is done for a message.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Core, &Self) -> T + Send + 'static,
    ) -> io::Result<T> {
        let answer = Arc::new(AtomicCell::new(None::<Box<T>>));
        let theirs = Arc::clone(&answer);
        let call = move |core: &mut Core, engine: &Self| {
            theirs.store(Some(Box::new(what(core, engine))));
            engine.arrived_elsewhere();
        };
        self.calls.push(Call::Do(Box::new(call)));
        self.wait(None, |_| {
            self.drive();
            match answer.take() {
                Some(answer) => Poll::Ready(Ok(*answer)),
                None => Poll::Pending,
            }
        })
    }

    /// A caller that sleeps looks again.
    fn arrived_elsewhere(&self) {
        if self.is_slept_in() {
            // Wakes each that is blocked at the port.
            self.port.block_on(poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Ready(())
            }));
        }
    }

    /// Waits until an attempt succeeds, as [`wait_for_piece`](Self::wait_for_piece), for no large transfer.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        attempt: impl FnMut(Option<&Context<'_>>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        self.wait_for_piece(false, timeout, attempt)
    }

    /// Waits until an attempt succeeds: spins a little, then sleeps. The attempt leaves the waker, if it is given one, where it
    /// is woken, and looks after that.
    pub(crate) fn wait_for_piece<T>(
        &self,
        bulk: bool,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(Option<&Context<'_>>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        if let Poll::Ready(done) = attempt(None) {
            return done;
        }
        self.end_turn();
        let spin = self.config.spin * if bulk { BULK } else { 1 };
        let spin = spin.min(timeout.unwrap_or(Duration::MAX));
        if !spin.is_zero()
            && let Some(done) = self.spin(spin, &mut attempt)
        {
            return done;
        }
        let _sleeping = Counted::new(&self.sleeping);
        let timeout = timeout.map_or(Timeout::Never, |span| Timeout::After(span.saturating_sub(spin)));
        // From here on the dispatcher is to call. This thread is woken with it when messages come, and has no need to wait for it; what
        // the passing of time asks for is the dispatcher's.
        self.drive();
        let future = poll_fn(|context| {
            if self.arrived.pending() > 0 {
                self.drive();
            }
            attempt(Some(context))
        });
        match self.port.block_on_for(future, timeout) {
            Ok(done) => done,
            Err(netvm::Error::TimedOut) => Err(error::timed_out()),
            Err(error) => Err(error::library("the network cannot wait", error)),
        }
    }

    /// Runs something while this thread counts as one that sleeps.
    pub(crate) fn asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let _sleeping = Counted::new(&self.sleeping);
        self.end_turn();
        // From here on the dispatcher is to call.
        self.drive();
        sleep()
    }

    /// Looks again and again for so long.
    pub(crate) fn spin<T>(
        &self,
        span: Duration,
        attempt: &mut impl FnMut(Option<&Context<'_>>) -> Poll<io::Result<T>>,
    ) -> Option<io::Result<T>> {
        let spinning = Counted::new(&self.spinning);
        self.end_turn();
        let end = self.port.now().0 + span.as_nanos() as u64;
        let mut busy = 0_u32;
        let found = loop {
            let had = self.drive();
            if let Poll::Ready(done) = attempt(None) {
                break Some(done);
            }
            if self.port.now().0 >= end {
                break None;
            }
            if had {
                match self.arrived.spin(SLICE) {
                    Ok(_) => {}
                    Err(netvm::Error::TimedOut) => std::thread::yield_now(),
                    Err(_) => break None,
                }
                continue;
            }
            // What has come is the other thread's to take.
            busy += 1;
            if busy.is_multiple_of(BUSY) {
                self.pause();
            } else {
                std::hint::spin_loop();
            }
        };
        drop(spinning);
        if self.is_slept_in() {
            // What comes from now on is for those that sleep.
            self.drive();
        }
        found
    }

    /// A look by a caller that does not wait: the card may have work that no thread does for it.
    pub(crate) fn look(&self) {
        self.end_turn();
        self.port.progress();
        self.drive();
    }
}

/// The program's part in a network. When the last one goes the network ends.
pub(crate) struct Handle(Arc<Engine>);

impl Handle {
    pub(crate) const fn new(engine: Arc<Engine>) -> Self {
        Self(engine)
    }
}

impl Handle {
    /// Ends the network: what was written leaves, and peers are told. Nothing: another thread has the state for long.
    fn leave(&self) -> Option<Box<Core>> {
        let engine = &self.0;
        let end = engine.port.now().0 + OTHERS;
        let mut core = loop {
            if let Some(core) = engine.core.take() {
                break core;
            }
            if engine.port.now().0 >= end {
                return None;
            }
            engine.pause();
        };
        core.take_calls(engine);
        core.leave(engine);
        core.close();
        Some(core)
    }

    /// The same, before the program ends without having let go of it.
    pub(crate) fn leave_early(&self) {
        if let Some(core) = self.leave() {
            self.0.core.store(Some(core));
        }
    }
}

impl Deref for Handle {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.0
    }
}

/// How long the last handle waits for the dispatcher's look at the network. Should it be the dispatcher itself, the port closes
/// when it returns.
const OTHERS: u64 = 100_000_000;

impl Drop for Handle {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let engine = &self.0;
        let end = engine.port.now().0 + OTHERS;
        let Some(core) = self.leave() else {
            return;
        };
        // Its queue and its imports go before the port.
        drop(core);
        while Arc::strong_count(engine) > 1 && engine.port.now().0 < end {
            engine.pause();
        }
    }
}
