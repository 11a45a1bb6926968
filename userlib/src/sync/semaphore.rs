//! The semaphore (thesis 8.4).

use super::home::{self, Home, Kind};
use super::protocol::{Answer, Machine, Signal, TryWait, Wait, Want};
use super::seats::{Patience, Progress, Seat};
use super::suspicion::Suspicion;
use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::export::Access;
use crate::import::RemoteSegment;
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::{Nanos, NodeId, PortId};
use std::fmt;
use std::sync::Arc;

/// A participant of a counting semaphore that any process on any node may take part in.
///
/// Taking a token costs one round trip to its home, and one message more if others wait already. Giving one
/// costs one round trip, and one message more if a participant waits for it. Waiters get their tokens in the order in
/// which they came.
///
/// # Waiting has no time-out
/// A waiter stands in a queue that it cannot leave without the others' help. [`try_wait`](Self::try_wait) and
/// [`try_wait_for`](Self::try_wait_for) never stand in it.
///
/// # Processes that die
/// If a process dies that waits, the waiters behind it find out and queue anew, in whatever order that comes to. A
/// token that was on its way to a process that died before it came back from [`wait`](Self::wait) is gone with it, and so
/// is one whose message was lost with a link. One that comes to a participant that has meanwhile had its token otherwise
/// is given back when that waits again, or leaves.
pub struct Semaphore {
    seat: Seat,
    centre: RemoteSegment,
}

impl Semaphore {
    /// Makes a semaphore of this value that has its home at this port, under this name. `access` names the
    /// participants: they need to read and do atomics. Tokens are counted in 32 bits, without a check: a count beyond
    /// 2^32 - 1, the initial value included, loses them all.
    ///
    /// # Errors
    /// As [`Port::alloc`] and [`Port::export`].
    pub fn create(port: &Port, name: &str, value: u32, access: Access) -> Result<Home> {
        Home::new(port, name, Kind::Semaphore, value, access)
    }

    /// Takes part in a semaphore: one participant, which waits once at a time. A process may have several;
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
        let (centre, rights) = home::join(port, node, exporter, name, Kind::Semaphore, timeout.into())?;
        Ok(Self {
            seat: Seat::take(&port.inner, &rights)?,
            centre,
        })
    }

    /// Takes a token; waits for one if there is none. Spins, then blocks. Gives the value that it found:
    /// 0 if it had to wait.
    ///
    /// # Errors
    /// When the home has gone, or this port: what its operations failed with. Then no token was taken.
    pub fn wait(&mut self) -> Result<u32> {
        // Tokens that came for an earlier turn, too late.
        for _ in 0..self.seat.leftovers() {
            self.signal()?;
        }
        let mut machine = Wait::new(self.seat.turn());
        let (mut patience, mut suspicion) = (Patience::new(), Suspicion::default());
        loop {
            let until = patience.until(self.seat.port.backend.now());
            match self.seat.drive(&mut machine, &self.centre, false, until)? {
                Progress::Ended(found) => return Ok(found),
                Progress::Waits => {
                    if let Some(stands) = machine.stands() {
                        if suspicion.look(&self.seat, &self.centre, stands, Nanos::MAX)? {
                            machine.again();
                        }
                    } else if let Some(epoch) = machine.epoch()
                        && suspicion.linger(&self.centre, epoch, Nanos::MAX)?
                    {
                        machine.give_up();
                    }
                }
            }
        }
    }

    /// Begins what [`wait`](Self::wait) does, and does not wait for it. It ends with the participant and the value that it found. After an
    /// error this participant is gone.
    ///
    /// Dropped before its end, it keeps its place, and gives its token to the next when it has got it.
    pub fn begin_wait(mut self) -> PendingCall<(Self, u32)> {
        let port = Arc::clone(&self.seat.port);
        let wait = move || {
            let found = self.wait()?;
            Ok((self, found))
        };
        let give_back = |(semaphore, _): (Self, u32)| {
            // Where the home has gone, no participant waits for it.
            let _ = semaphore.signal();
        };
        PendingCall::begin_or_fail(&port, "netvm-semaphore", wait, give_back)
    }

    /// Takes a token if there is one. Gives the value that it found: 0 if there was none.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn try_wait(&self) -> Result<u32> {
        if mutant::is(Mutant::TokenLost) {
            self.run(TryWait::new(), false)?;
        }
        self.run(TryWait::new(), false)
    }

    /// Tries again and again, with growing pauses; participants that [wait](Self::wait) come first. Each try is a round
    /// trip.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`wait`](Self::wait).
    pub fn try_wait_for(&self, timeout: impl Into<Timeout>) -> Result<u32> {
        let backend = &self.seat.port.backend;
        let deadline = timeout.into().deadline(backend.now());
        let mut pause = Nanos::from_micros(10);
        loop {
            let found = self.try_wait()?;
            if found > 0 {
                return Ok(found);
            }
            let now = backend.now();
            if now >= deadline {
                return Err(Error::TimedOut);
            }
            self.seat.pause(deadline.min(now.after(pause)))?;
            pause = Nanos(pause.0 * 2).min(Nanos::from_millis(1));
        }
    }

    /// Gives a token: to the first waiter, or to the count. Returns the value after: 0 if a participant waited.
    ///
    /// It acts after everything that this port has posted to the semaphore's home has landed there; call
    /// [`flush_remote`](Port::flush_remote) first for what was written elsewhere for the participant that gets the
    /// token.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn signal(&self) -> Result<u32> {
        if mutant::is(Mutant::TokenMade) {
            self.run(Signal::new(), true)?;
        }
        self.run(Signal::new(), true)
    }

    /// Runs a machine that never waits for another participant.
    fn run<M>(&self, mut machine: M, ordered: bool) -> Result<u32>
    where
        M: Machine<Want = Want<u32>, Answer = Answer>,
    {
        match self.seat.drive(&mut machine, &self.centre, ordered, Nanos::MAX)? {
            Progress::Ended(value) => Ok(value),
            Progress::Waits => Err(Error::TimedOut),
        }
    }
}

impl Drop for Semaphore {
    /// Tokens that came too late for the last turn are others'.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for _ in 0..self.seat.leftovers() {
            // Where the home has gone, no participant waits for them.
            let _ = self.signal();
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Semaphore({:?}, {:?})", self.centre, self.seat.me)
    }
}
