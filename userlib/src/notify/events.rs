//! A port in an event loop of the program: a descriptor to poll, and a turn to take when it is readable.
//!
//! **No event is lost.** A turn empties the descriptor first and looks afterwards. What happens before the look is seen by it;
//! what happens later makes the descriptor readable again, because the back end stores first and then signals. Counts of
//! operations are signalled only where the card was asked to tell: by [`Events::turn`] for futures, by [`Events::arm`] for the
//! program. The card tells also where the count has passed the mark when the question arrives (`fence.rs`). A future that looks
//! again at some time has a timer behind the same descriptor, set by the turn; one that comes between two turns and is the
//! first asks for another turn.

use super::inbox::{Interest, Want};
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::fence::{Count, Mark};
use crate::port::{Port, PortInner};
use netvm_abi::Nanos;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Handlers called in one turn, before the loop's other descriptors have theirs.
const CALLS_PER_TURN: u32 = 64;

/// A port as a part of an event loop. From [`Port::events`].
///
/// The [descriptor](AsFd) becomes readable when something has happened at the port. The loop then takes a
/// [turn](Self::turn), which calls handlers and wakes futures; the library has no thread for it any more. So all that the port
/// does for the program happens on the loop's thread, inside of `turn`.
///
/// A program without handlers and futures [arms](Self::arm) the descriptor, looks at what it waits for
/// ([`Pending::is_done`](crate::Pending::is_done), [`NotificationQueue::pop`](crate::NotificationQueue::pop),
/// [`Receiver::try_recv`](crate::Receiver::try_recv)), and polls if it found nothing.
///
/// Calls that wait ([`Port::flush_remote`], [`Notification::wait`](crate::Notification::wait)) may be used beside it, and block the loop. One made on another thread may
/// make the descriptor readable for nothing.
///
/// ```no_run
/// use netvm::{Port, RemoteSegment};
/// use std::os::fd::AsFd;
///
/// # fn poll(_: std::os::fd::BorrowedFd<'_>) {}
/// /// Writes, and returns when the write has landed; `poll` is the loop's, and watches other descriptors, too.
/// fn write(port: &Port, remote: &RemoteSegment) -> netvm::Result<()> {
///     let mut events = port.events()?;
///     remote.write(0, b"hello").try_post()?;
///     let mut landed = port.begin_flush_remote(remote.node())?;
///     loop {
///         events.turn()?;
///         events.arm()?;
///         if let Some(end) = landed.end() {
///             return end;
///         }
///         poll(events.as_fd());
///     }
/// }
/// ```
///
/// Dropping it gives handlers and futures back to a thread of the library.
pub struct Events {
    port: Arc<PortInner>,
    /// Readable when one of the others is.
    both: OwnedFd,
    /// The back end's, readable after a change of the port's event count.
    count: Arc<OwnedFd>,
    /// Readable when a future wants to look again.
    timer: OwnedFd,
    /// Every new notification and failure interrupts.
    _entries: Interest,
}

impl Port {
    /// Makes the port a part of an event loop of the program: see [`Events`].
    ///
    /// # Errors
    /// [`Error::Refused`] if the port is in a loop already, or where the back end has no descriptors;
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn events(&self) -> Result<Events> {
        Events::new(&self.inner)
    }
}

impl Events {
    fn new(port: &Arc<PortInner>) -> Result<Self> {
        let refused = |reason| Error::Refused {
            what: "put a port into an event loop",
            reason,
        };
        port.alive()?;
        let count = port.backend.descriptor().map_err(refused)?;
        let (both, timer) = descriptors(&count).map_err(|errno| {
            refused(Refusal::System {
                what: "a timer and an epoll descriptor (`ulimit -n` limits descriptors)",
                errno: errno.raw_os_error(),
            })
        })?;
        {
            let mut state = port.inbox.state.lock();
            if std::mem::replace(&mut state.looped, true) {
                return Err(refused(Refusal::Unsupported(
                    "it is in one already: a port has one `Events` at a time",
                )));
            }
            state.next_look = Nanos(0);
        }
        let events = Self {
            _entries: Interest::new(port, Want::Entry),
            port: Arc::clone(port),
            both,
            count,
            timer,
        };
        // The first turn looks at what is there already. A thread of the library ends, and says so.
        port.backend.wake();
        Ok(events)
    }

    /// Does what is due: calls handlers and wakes futures. Never waits, except as far as the handlers do.
    ///
    /// # Errors
    /// [`Error::PortClosed`], [`Error::PortEnded`]: handlers are gone, and futures learn of it when they are polled again.
    pub fn turn(&mut self) -> Result<()> {
        let port = &self.port;
        if let Err(ended) = port.alive() {
            port.close_inbox();
            return Err(ended);
        }
        self.empty();
        if port.inbox.state.lock().dispatcher_runs {
            // The library's thread is in its last call. It wakes the port when it ends.
            return Ok(());
        }
        let mut calls = 0;
        while port.turn() {
            calls += 1;
            if calls == CALLS_PER_TURN {
                port.backend.wake();
                break;
            }
        }
        let next_look = port.ask_for_waiters();
        self.set_timer(next_look);
        Ok(())
    }

    /// From now on the next operation that ends makes the descriptor readable, too. Notifications and failures always do. What
    /// ended before does not: so arm first, then look, then poll.
    ///
    /// # Errors
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn arm(&mut self) -> Result<()> {
        self.port.alive()?;
        let (write, read) = {
            let mut dropped = Vec::new();
            let mut poster = self.port.poster();
            poster.harvest(&self.port, &mut dropped);
            let done = poster.writes_done(&self.port.area);
            let write = (done < poster.writes()).then_some(done as u32).map(|done| Mark {
                count: Count::Writes,
                at: done.wrapping_add(1),
            });
            let read = poster.replies.any_outstanding().then(|| Mark {
                count: Count::Reads,
                at: poster.replies.fence_for(1),
            });
            drop(poster);
            // Regions may park when they are dropped: after the lock.
            drop(dropped);
            (write, read)
        };
        for mark in [write, read].into_iter().flatten() {
            self.port.ask(mark);
        }
        Ok(())
    }

    /// Empties the descriptor.
    fn empty(&self) {
        let mut count = [0; 8];
        for each in [&*self.count, &self.timer] {
            // Where it is empty already, that is an error of its own.
            while rustix::io::read(each, &mut count) == Err(Errno::INTR) {}
        }
    }

    /// Makes the descriptor readable at this time of the port's clock.
    fn set_timer(&self, at: Nanos) {
        const SECOND: u64 = 1_000_000_000;
        let left = match at {
            // Zero stops a timer.
            Nanos::MAX => 0,
            at => at.0.saturating_sub(self.port.backend.now().0).max(1),
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (left / SECOND).cast_signed(),
                tv_nsec: (left % SECOND).cast_signed(),
            },
        };
        // It fails for times and flags alone that are none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// A descriptor that is readable when the count's is, or a timer's; and the timer.
fn descriptors(count: &OwnedFd) -> std::result::Result<(OwnedFd, OwnedFd), Errno> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let both = epoll::create(CreateFlags::CLOEXEC)?;
    for each in [count, &timer] {
        epoll::add(&both, each, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok((both, timer))
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.both.as_raw_fd()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let waits = {
            let mut state = self.port.inbox.state.lock();
            state.looped = false;
            !state.handlers.is_empty() || !state.waiters.is_empty()
        };
        if !waits {
            return;
        }
        match self.port.ensure_dispatcher() {
            // For what came since the last turn.
            Ok(()) => self.port.backend.wake(),
            // Each future says so when it is polled.
            Err(_) => self.port.wake_all(),
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events(port {})", self.port.port())
    }
}
