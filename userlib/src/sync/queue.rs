//! The wait queue (thesis 8.3).

use super::home::{self, Home, Kind};
use super::protocol::{Await, Insert, Inserted, Remove, Removed};
use super::seats::{Patience, Progress, Seat};
use super::suspicion::{Suspicion, reset};
use crate::error::{Error, Result};
use crate::export::Access;
use crate::import::RemoteSegment;
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::{Nanos, NodeId, PortId};
use std::fmt;

/// A participant of a queue in which processes on any nodes wait for an event.
///
/// Standing in the queue costs one round trip, and one message if others do already; so does waking the first waiter. A
/// signal that finds no waiter is lost. Standing in the queue and waiting are two things, so that a process can say
/// that it will wait before it lets go of a lock.
///
/// # Processes that die
/// If a process dies that stands in the queue, those behind it find out, and all waiters are let out with
/// [`Woken::Reset`]. A signal that was on its way to the dead one is lost with it.
pub struct WaitQueue {
    seat: Seat,
    centre: RemoteSegment,
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A signal.
    Signal,
    /// The queue has lost a process that stood in it, and all the others have been let out. Look at what
    /// you wait for, and stand in it again.
    Reset,
}

impl WaitQueue {
    /// Makes a wait queue that has its home at this port, under this name. `access` names the participants: they need
    /// to read and do atomics.
    ///
    /// # Errors
    /// As [`Port::alloc`] and [`Port::export`].
    pub fn create(port: &Port, name: &str, access: Access) -> Result<Home> {
        Home::new(port, name, Kind::Queue, 0, access)
    }

    /// Takes part in a wait queue: one participant, which waits once at a time. A process may have several;
    /// a port has room for 56.
    ///
    /// # Errors
    /// As [`Port::import`]; [`Error::Import`] when something else has that name; [`Error::Refused`] when
    /// the port has no seat left.
    pub fn join(
        port: &Port,
        node: NodeId,
        exporter: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        let (centre, rights) = home::join(port, node, exporter, name, Kind::Queue, timeout.into())?;
        Ok(Self {
            seat: Seat::take(&port.inner, &rights)?,
            centre,
        })
    }

    /// Stands in the queue, at its end (thesis: `insertQ`). A signal from now on is not lost.
    ///
    /// # Errors
    /// When the home has gone, or this port: what its operations failed with.
    pub fn insert(&mut self) -> Result<Waiting<'_>> {
        self.seat.leftovers();
        let mut machine = Insert::new(self.seat.turn());
        match self.seat.drive(&mut machine, &self.centre, false, Nanos::MAX)? {
            Progress::Ended(stands) => Ok(Waiting {
                machine: Await::new(stands.epoch),
                stands,
                queue: self,
                ended: false,
            }),
            Progress::Waits => Err(Error::TimedOut),
        }
    }

    /// Wakes the first waiter (thesis: `removeQ`). Returns whether there was one.
    ///
    /// It acts after everything that this port has posted to the queue's home has landed there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn signal(&self) -> Result<bool> {
        let removed = self
            .seat
            .drive(&mut Remove::new(), &self.centre, true, Nanos::MAX)?;
        match removed {
            Progress::Ended(woken) => Ok(woken != Removed::Nobody),
            Progress::Waits => Ok(false),
        }
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitQueue({:?}, {:?})", self.centre, self.seat.me)
    }
}

/// A place in a wait queue.
///
/// Dropping it before its wait has ended lets all others out of the queue as well, as if this process had died: no
/// participant can leave a queue without the help of the others in it.
#[must_use = "a participant in a queue has to wait"]
pub struct Waiting<'a> {
    queue: &'a mut WaitQueue,
    machine: Await,
    stands: Inserted,
    ended: bool,
}

impl Waiting<'_> {
    /// Waits to be woken (thesis: `waitQ`). Spins, then blocks. After [`Error::TimedOut`] the place in the
    /// queue is still there: wait again, or do something else first.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`WaitQueue::insert`].
    pub fn wait(&mut self, timeout: impl Into<Timeout>) -> Result<Woken> {
        let seat = &self.queue.seat;
        let deadline = timeout.into().deadline(seat.port.backend.now());
        let (mut patience, mut suspicion) = (Patience::new(), Suspicion::default());
        while !self.ended {
            let until = patience.until(seat.port.backend.now());
            // Once it is woken, it is not to be kept from bringing in the next.
            let until = if self.machine.waits() {
                until.min(deadline)
            } else {
                until
            };
            match seat.drive(&mut self.machine, &self.queue.centre, false, until)? {
                Progress::Ended(true) => {
                    self.ended = true;
                    return Ok(Woken::Signal);
                }
                // For an epoch that is over: another participant has found this one's to be over too, or will.
                Progress::Ended(false) => self.machine = Await::new(self.stands.epoch),
                Progress::Waits if self.machine.lingers() => {
                    if suspicion.linger(&self.queue.centre, self.stands.epoch)? {
                        self.machine.give_up();
                    }
                }
                Progress::Waits if seat.port.backend.now() >= deadline => return Err(Error::TimedOut),
                Progress::Waits => {
                    if suspicion.look(seat, &self.queue.centre, self.stands, deadline)? {
                        break;
                    }
                }
            }
        }
        self.ended = true;
        Ok(Woken::Reset)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // If the home has gone, no participant waits there any more.
            let _ = reset(&self.queue.centre, self.stands.epoch);
        }
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting({:?})", self.stands)
    }
}
