//! The wait queue (thesis 8.3).

use super::home::{self, Home, Kind};
use super::protocol::{Await, Insert, Inserted, Remove, Removed, SeatId};
use super::seats::{Patience, Progress, Seat, Trips};
use super::succession::Succession;
use super::suspicion::{Suspicion, reset};
use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::export::Access;
use crate::import::RemoteSegment;
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::{Nanos, NodeId, PortId};
use std::fmt;
use std::sync::Arc;

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
    /// A [`Succession`] may have it, too.
    pub(super) seat: Arc<Seat>,
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
            seat: Arc::new(Seat::take(&port.inner, &rights)?),
            centre,
        })
    }

    /// Stands in the queue, at its end (thesis: `insertQ`). A signal from now on is not lost.
    ///
    /// # Errors
    /// When the home has gone, or this port: what its operations failed with.
    pub fn insert(&mut self) -> Result<Waiting<'_>> {
        let turn = self.turn()?;
        let mut machine = Insert::new(turn);
        match self.seat.drive(&mut machine, &self.centre, false, Nanos::MAX)? {
            Progress::Ended(stands) => Ok(Waiting {
                machine: Await::new(turn, stands.epoch),
                trips: Trips::by(Nanos::MAX),
                stands,
                patience: Patience::new(),
                look_at: None,
                suspicion: Suspicion::default(),
                queue: self,
                ended: false,
            }),
            Progress::Waits => Err(Error::TimedOut),
        }
    }

    /// Begins to stand in the queue and to wait in it, and does not wait for either. It ends with the participant, and why. A signal is not
    /// lost once this stands in the queue, of which nothing tells: a program that has to say first that it will wait
    /// [stands in it](Self::insert) itself, or takes a [`Condition`](crate::sync::Condition). After an error this participant is gone.
    ///
    /// Dropped before its end, it keeps its place, and gives its signal to the next.
    pub fn begin_wait(mut self) -> PendingCall<(Self, Woken)> {
        let port = Arc::clone(&self.seat.port);
        let wait = move || {
            let woken = self.insert()?.wait(Timeout::Never)?;
            Ok((self, woken))
        };
        let give_back = |(queue, woken): (Self, Woken)| {
            if woken == Woken::Signal {
                // Where the home has gone, no participant waits for it.
                let _ = queue.signal();
            }
        };
        PendingCall::begin_or_fail(&port, "netvm-queue", wait, give_back)
    }

    /// Another turn, once the last one is over also for those behind it.
    fn turn(&mut self) -> Result<SeatId> {
        loop {
            let token = self.seat.port.backend.wait_token();
            if let Some(seat) = Arc::get_mut(&mut self.seat) {
                seat.leftovers();
                return Ok(seat.turn());
            }
            let port = &self.seat.port;
            port.alive()?;
            port.backend.block(token, Nanos::MAX);
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

impl Drop for WaitQueue {
    /// The port may be closed next, and those behind the last turn would miss it.
    fn drop(&mut self) {
        while !std::thread::panicking() {
            let port = &self.seat.port;
            let token = port.backend.wait_token();
            if Arc::strong_count(&self.seat) == 1 || port.alive().is_err() {
                return;
            }
            port.backend.block(token, Nanos::MAX);
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
    trips: Trips,
    stands: Inserted,
    patience: Patience,
    /// When to look next whether the queue still holds together, however short each wait is.
    look_at: Option<Nanos>,
    suspicion: Suspicion,
    ended: bool,
}

impl Waiting<'_> {
    /// Waits to be woken (thesis: `waitQ`). Spins, then blocks. After [`Error::TimedOut`] the place in the
    /// queue is still there: wait again, or do something else first.
    ///
    /// A signal that has come in time is told in time. If this participant has no time left to bring in the one behind it,
    /// a thread of the library does that; [`WaitQueue::insert`] and the end of the [`WaitQueue`] wait for it. Only where no
    /// thread can be made, this call does it, and may end late.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`WaitQueue::insert`].
    pub fn wait(&mut self, timeout: impl Into<Timeout>) -> Result<Woken> {
        let WaitQueue { seat, centre } = &*self.queue;
        let deadline = timeout.into().deadline(seat.port.backend.now());
        self.trips = self.trips.go_on(deadline);
        while !self.ended {
            let now = seat.port.backend.now();
            let look_at = *self.look_at.get_or_insert_with(|| self.patience.until(now));
            let until = look_at.min(deadline);
            match seat.drive_by(&mut self.machine, centre, false, until, &mut self.trips)? {
                Progress::Ended(true) => {
                    self.ended = true;
                    return Ok(Woken::Signal);
                }
                // For an epoch that is over: another participant has found this one's to be over too, or will.
                Progress::Ended(false) => self.machine = Await::new(seat.me, self.stands.epoch),
                Progress::Waits if seat.port.backend.now() >= deadline => {
                    if self.machine.waits() {
                        return Err(Error::TimedOut);
                    }
                    // It has its signal. What it owes to those behind it is not to be kept waiting either.
                    self.ended = true;
                    let succession = Succession {
                        seat: Arc::clone(seat),
                        centre: centre.clone(),
                        machine: self.machine,
                        trips: self.trips.go_on(Nanos::MAX),
                    };
                    succession.leave_to_a_thread();
                    return Ok(Woken::Signal);
                }
                Progress::Waits if self.machine.lingers() => {
                    self.look_at = None;
                    if self.suspicion.linger(centre, self.stands.epoch, deadline)? {
                        self.machine.give_up();
                    }
                }
                Progress::Waits => {
                    self.look_at = None;
                    if self.suspicion.look(seat, centre, self.stands, deadline)? {
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
