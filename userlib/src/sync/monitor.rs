//! Monitors with Mesa semantics (thesis 8.3.1, table 21): a lock, and queues for conditions.

use super::home::Home;
use super::lock::{Guard, Lock, OwnedGuard};
use super::queue::{WaitQueue, Woken};
use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::export::Access;
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::{NodeId, PortId};
use std::sync::Arc;

/// A participant of a monitor: one process at a time is inside.
///
/// Neither entering nor waiting for a condition has a time-out, for the reason that [`Lock`] gives. What was written
/// inside, to whatever node, the next process inside sees. When a process dies inside, the next is told
/// ([`Inside::owner_died`]); when one dies that waits for a condition, the others come in again ([`Woken::Reset`]).
#[derive(Debug)]
pub struct Monitor {
    lock: Lock,
}

/// A participant of a condition of a monitor. Which monitor it belongs to is the program's affair.
#[derive(Debug)]
pub struct Condition {
    queue: WaitQueue,
}

impl Monitor {
    /// Makes a monitor that has its home at this port: as [`Lock::create`].
    ///
    /// # Errors
    /// As [`Lock::create`].
    pub fn create(port: &Port, name: &str, access: Access) -> Result<Home> {
        Lock::create(port, name, access)
    }

    /// Takes part in it: as [`Lock::join`].
    ///
    /// # Errors
    /// As [`Lock::join`].
    pub fn join(
        port: &Port,
        node: NodeId,
        exporter: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        Ok(Self {
            lock: Lock::join(port, node, exporter, name, timeout)?,
        })
    }

    /// Enters (thesis: `mbegin`); waits while another is inside.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub fn enter(&mut self) -> Result<Inside<'_>> {
        Ok(Inside {
            guard: self.lock.acquire()?,
        })
    }
}

impl Monitor {
    /// Begins what [`enter`](Self::enter) does, and does not wait for it: as [`Lock::begin_acquire`].
    pub fn begin_enter(self) -> PendingCall<OwnedInside> {
        let port = Arc::clone(&self.lock.seat.port);
        let enter = move || {
            let guard = self.lock.acquire_owned()?;
            Ok(OwnedInside { guard })
        };
        PendingCall::begin_or_fail(&port, "netvm-monitor", enter, drop)
    }

    /// Enters, and goes into what says so: as [`Lock::own`].
    ///
    /// # Errors
    /// As [`enter`](Self::enter), with the participant.
    #[doc(hidden)]
    #[expect(clippy::result_large_err, reason = "what it gives otherwise is as large")]
    pub fn own(self) -> std::result::Result<OwnedInside, (Self, Option<Error>)> {
        match self.lock.own(|lock| lock.acquire().map(Some)) {
            Ok(guard) => Ok(OwnedInside { guard }),
            Err((lock, error)) => Err((Self { lock }, error)),
        }
    }
}

impl Condition {
    /// Makes a condition that has its home at this port: as [`WaitQueue::create`].
    ///
    /// # Errors
    /// As [`WaitQueue::create`].
    pub fn create(port: &Port, name: &str, access: Access) -> Result<Home> {
        WaitQueue::create(port, name, access)
    }

    /// Takes part in it: as [`WaitQueue::join`].
    ///
    /// # Errors
    /// As [`WaitQueue::join`].
    pub fn join(
        port: &Port,
        node: NodeId,
        exporter: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        Ok(Self {
            queue: WaitQueue::join(port, node, exporter, name, timeout)?,
        })
    }

    /// Lets the first waiter come in when it can (thesis: `cvsignal`). Returns whether a process waited. The caller is
    /// inside of the monitor, and should leave it soon. To let in all waiters, repeat it until it returns false.
    ///
    /// # Errors
    /// As [`WaitQueue::signal`].
    pub fn signal(&self) -> Result<bool> {
        self.queue.signal()
    }
}

/// The process is inside of the monitor while this lives.
#[derive(Debug)]
#[must_use = "dropping it leaves the monitor"]
pub struct Inside<'a> {
    guard: Guard<'a>,
}

impl Inside<'_> {
    /// Whether a process has died that may have been inside, or has panicked there: what the monitor protects may be half
    /// changed.
    #[must_use]
    pub const fn owner_died(&self) -> bool {
        self.guard.owner_died()
    }

    /// Leaves the monitor until the condition is signalled, and comes in again (thesis: `cvwait`).
    /// Others may have been inside meanwhile, and the wait may end for no reason at all: look at what you wait
    /// for in a loop.
    ///
    /// # Errors
    /// As [`Lock::acquire`] and [`WaitQueue::insert`]. After an error of the lock the process is not inside.
    pub fn wait(&mut self, condition: &mut Condition) -> Result<Woken> {
        self.guard.without(
            || condition.queue.insert(),
            |mut waiting| waiting.wait(Timeout::Never),
        )
    }

    /// Leaves the monitor (thesis: `mend`), as dropping this does, and tells what failed.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn leave(self) -> Result<()> {
        self.guard.release()
    }
}

/// The process is inside of the monitor while this lives, which has its participant, too. From [`Monitor::begin_enter`].
#[derive(Debug)]
#[must_use = "dropping it leaves the monitor"]
pub struct OwnedInside {
    guard: OwnedGuard,
}

impl OwnedInside {
    /// As [`Inside::owner_died`].
    #[must_use]
    pub fn owner_died(&self) -> bool {
        self.guard.owner_died()
    }

    /// As [`Inside::wait`].
    ///
    /// # Errors
    /// As [`Inside::wait`].
    pub fn wait(&mut self, condition: &mut Condition) -> Result<Woken> {
        self.guard.without(
            || condition.queue.insert(),
            |mut waiting| waiting.wait(Timeout::Never),
        )
    }

    /// Begins what [`Inside::wait`] does, and does not wait for it. It ends inside of the monitor again. After an error the process is not
    /// inside, and both participants are gone.
    ///
    /// Dropped before its end, it waits for the condition all the same, gives the signal to the next that waits, and leaves.
    pub fn begin_wait(mut self, mut condition: Condition) -> PendingCall<(Self, Condition, Woken)> {
        let port = Arc::clone(&condition.queue.seat.port);
        let wait = move || {
            let woken = self.wait(&mut condition)?;
            Ok((self, condition, woken))
        };
        let give_back = |(inside, condition, woken): (Self, Condition, Woken)| {
            if woken == Woken::Signal {
                // Where the home has gone, no participant waits for it.
                let _ = condition.signal();
            }
            drop(inside);
        };
        PendingCall::begin_or_fail(&port, "netvm-condition", wait, give_back)
    }

    /// Leaves the monitor. Gives the participant, and what [`Inside::leave`] tells.
    pub fn leave(self) -> (Monitor, Result<()>) {
        let (lock, left) = self.guard.release();
        (Monitor { lock }, left)
    }
}
