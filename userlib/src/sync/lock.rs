//! The lock (thesis 8.2): first come first served, and a waiter looks at its own memory alone.

use super::home::{self, Home, Kind, RECOVERIES};
use super::peers::look_at;
use super::protocol::{Acquire, Acquired, Release, SeatId, TryAcquire};
use super::seats::{Patience, Progress, Seat};
use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::export::Access;
use crate::fence::Landed;
use crate::import::RemoteSegment;
use crate::port::{Port, PortInner};
use crate::timeout::Timeout;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::{Nanos, NodeId, PortId, Status};
use std::fmt;
use std::sync::Arc;

/// A participant of a lock that any process on any node may take part in.
///
/// Getting it costs one round trip to its home, and one message more if another participant has it. A waiter spins a
/// little on its own memory and then blocks. Letting go costs one round trip, or one message if a participant waits.
///
/// What a holder wrote, to whatever node, the next holder sees: see [`Guard::release`].
///
/// # Waiting has no time-out
/// A waiter stands in a chain that others rely on, and cannot leave it without their help. So
/// [`acquire`](Self::acquire) waits as long as it takes; [`try_acquire`](Self::try_acquire) and
/// [`try_acquire_for`](Self::try_acquire_for) never stand in it.
///
/// # Processes that die
/// If a process dies that holds the lock or waits for it, the waiters find out and agree on one of them, and that one
/// gets the lock with [`Guard::owner_died`] set. No participant waits for ever.
///
/// # Panics under the lock
/// A guard that is dropped by a panic leaves the lock as a process that dies: the next to [wait](Self::acquire) for it is
/// told by [`Guard::owner_died`], and what this port wrote under the lock may not have landed. Unlike
/// [`std::sync::Mutex`], which stays poisoned, the lock is whole again after that. A guard that is forgotten counts the
/// same once its `Lock` is dropped.
pub struct Lock {
    pub(super) seat: Seat,
    centre: RemoteSegment,
    /// How often it has been recovered, as far as is known.
    recoveries: u64,
    /// While an [`OwnedGuard`] has it.
    hold: Option<Hold>,
}

impl Lock {
    /// Makes a lock that has its home at this port, under this name. `access` names the participants: they need to read
    /// and do atomics.
    ///
    /// # Errors
    /// As [`Port::alloc`] and [`Port::export`].
    pub fn create(port: &Port, name: &str, access: Access) -> Result<Home> {
        Home::new(port, name, Kind::Lock, 0, access)
    }

    /// Takes part in a lock: one participant, which holds or waits once at a time. A process may have
    /// several; a port has room for 56.
    ///
    /// # Errors
    /// As [`Port::import`]; [`Error::Import`] when something else has that name; [`Error::Refused`] when
    /// the port has no seat left, or the lock no place; [`Error::TimedOut`] when the home does not answer in time. What is
    /// under way then ends by itself: the place that it may take is given back.
    pub fn join(
        port: &Port,
        node: NodeId,
        exporter: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        let timeout = timeout.into();
        let deadline = timeout.deadline_of_trips(port.now());
        let (centre, rights) = home::join(port, node, exporter, name, Kind::Lock, timeout)?;
        let seat = Seat::take(&port.inner, &rights)?;
        let recoveries = seat.enter(&centre, deadline)?;
        Ok(Self {
            seat,
            centre,
            recoveries,
            hold: None,
        })
    }

    /// Waits for the lock. Spins, then blocks.
    ///
    /// # Errors
    /// When the home has gone, or this port: what its operations failed with. Then the lock is not held. A waiter looks at
    /// the home 5 ms after it has asked, then ever more seldom, at least twice a second.
    pub fn acquire(&mut self) -> Result<Guard<'_>> {
        let hold = self.lock()?;
        Ok(Guard { lock: self, hold })
    }

    /// Begins what [`acquire`](Self::acquire) does, and does not wait for it. It stands in the chain as `acquire` does, and what it ends with
    /// owns the lock: [`OwnedGuard::release`] gives it back. After an error this participant is gone.
    ///
    /// Dropped before its end, it keeps its place, and hands the lock on when its turn has come: no participant is taken for dead.
    ///
    /// ```no_run
    /// use netvm::sync::Lock;
    ///
    /// async fn count(lock: Lock, counter: &netvm::RemoteBox<u64>) -> netvm::Result<Lock> {
    ///     let guard = lock.begin_acquire().await?;
    ///     counter.write(&(counter.read()? + 1)).post()?;
    ///     let (lock, landed) = guard.release();
    ///     landed.map(|()| lock)
    /// }
    /// ```
    pub fn begin_acquire(self) -> PendingCall<OwnedGuard> {
        let port = Arc::clone(&self.seat.port);
        PendingCall::begin_or_fail(&port, "netvm-lock", move || self.acquire_owned(), drop)
    }

    /// Waits until it is held, and goes into its guard.
    pub(super) fn acquire_owned(mut self) -> Result<OwnedGuard> {
        self.hold = Some(self.lock()?);
        Ok(OwnedGuard { lock: self })
    }

    /// Goes into its guard, once `take` has given one of its own. For the library for C, whose handles cannot borrow.
    ///
    /// # Errors
    /// That of `take`, with the participant; none if `take` has not got the lock.
    #[doc(hidden)]
    #[expect(clippy::result_large_err, reason = "what it gives otherwise is as large")]
    pub fn own(
        mut self,
        take: impl FnOnce(&mut Self) -> Result<Option<Guard<'_>>>,
    ) -> std::result::Result<OwnedGuard, (Self, Option<Error>)> {
        let taken = take(&mut self).map(|guard| guard.map(Guard::into_hold));
        match taken {
            Ok(Some(hold)) => {
                self.hold = Some(hold);
                Ok(OwnedGuard { lock: self })
            }
            Ok(None) => Err((self, None)),
            Err(error) => Err((self, Some(error))),
        }
    }

    /// Waits until it is held.
    fn lock(&mut self) -> Result<Hold> {
        loop {
            self.seat.leftovers();
            let mut machine = Acquire::new(self.seat.turn(), self.recoveries);
            let ended = self.wait(&mut machine);
            self.recoveries = machine.recoveries();
            match ended {
                Ok(Some((broken, died))) => return Ok(Hold::new(self.seat.port.write_mark(), broken, died)),
                Ok(None) => {}
                Err(error) => {
                    // The participant behind this one finds that the turn is over.
                    self.seat.step_out();
                    return Err(error);
                }
            }
        }
    }

    /// Nothing: it has to ask anew.
    fn wait(&self, machine: &mut Acquire) -> Result<Option<(bool, bool)>> {
        let mut patience = Patience::new();
        loop {
            let until = patience.until(self.seat.port.backend.now());
            match self.seat.drive(machine, &self.centre, false, until)? {
                Progress::Ended(Acquired::Held { broken, recovered }) => {
                    return Ok(Some((broken, recovered)));
                }
                Progress::Ended(Acquired::Astray) => return Ok(None),
                // Only `TryAcquire` ends so.
                Progress::Ended(Acquired::Taken) => return Err(Error::TimedOut),
                Progress::Waits if machine.pauses() => {
                    self.seat.pause(until)?;
                    machine.again();
                }
                Progress::Waits => {
                    self.look_home()?;
                    machine.look();
                }
            }
        }
    }

    /// Looks whether the home is still there, as a waiter does before it looks at the one before it.
    ///
    /// The chain alone does not tell. A holder that lives keeps all others waiting, and where the chain is broken each
    /// waiter would ask the home only after the waiter before it has ended, a second or more for each of them. Giving
    /// up a place is safe at any time (see [`Acquire`]).
    fn look_home(&self) -> Result<()> {
        let mut recoveries = [0; 8];
        match look_at(&self.centre, RECOVERIES, &mut recoveries) {
            // A home out of reach may come back. The next look tells: a link that was lost takes its imports with it.
            Err(Error::Failed(failure)) if matches!(failure.status, Status::LinkLost | Status::TimedOut) => {
                Ok(())
            }
            looked => looked,
        }
    }

    /// The lock if it is free now, at one round trip.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&mut self) -> Result<Option<Guard<'_>>> {
        let start = self.attempt()?;
        Ok(start.map(|start| Guard {
            lock: self,
            hold: Hold::new(start, false, false),
        }))
    }

    /// Asks once. If it is held then: since which write of the port.
    fn attempt(&mut self) -> Result<Option<u64>> {
        let mut machine = TryAcquire::new(self.seat.turn());
        let ended = self
            .seat
            .drive(&mut machine, &self.centre, false, Nanos::MAX)
            // A participant that still asks may have the lock without knowing, and every participant that recovers it
            // would wait for its answer. If it does have the lock (the answer was lost), it is recovered from one that
            // has stepped out.
            .inspect_err(|_| self.seat.step_out())?;
        let held = matches!(ended, Progress::Ended(Acquired::Held { .. }));
        Ok(held.then(|| self.seat.port.write_mark()))
    }

    /// Tries again and again, with growing pauses. Not first come first served: participants that [wait](Self::acquire)
    /// come first. Each try is a round trip.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`acquire`](Self::acquire).
    pub fn try_acquire_for(&mut self, timeout: impl Into<Timeout>) -> Result<Guard<'_>> {
        let deadline = timeout.into().deadline(self.seat.port.backend.now());
        let mut pause = Nanos::from_micros(10);
        loop {
            if let Some(start) = self.attempt()? {
                let hold = Hold::new(start, false, false);
                return Ok(Guard { lock: self, hold });
            }
            let now = self.seat.port.backend.now();
            if now >= deadline {
                return Err(Error::TimedOut);
            }
            self.seat.pause(deadline.min(now.after(pause)))?;
            pause = Nanos(pause.0 * 2).min(Nanos::from_millis(1));
        }
    }

    /// Lets go of the lock. The nodes are those that were written to while it was held. Reports nothing of the program's
    /// own operations: gives what is to be told of them.
    fn unlock(&self, broken: bool, written: &[NodeId]) -> Result<Vec<Landed>> {
        // Decides where the release goes to, and so what has to land before: not what goes to that node, which lands
        // before it by itself (ordered operation; promise P4 for a notification).
        let next = self.seat.look_next().inspect_err(|_| self.abandon())?;
        let to = if next.is_nobody() {
            self.centre.node()
        } else {
            next.node()
        };
        let (mut landed, mut failed) = (Vec::new(), None);
        for &node in written {
            // Where the chain is broken, a signal that comes late from a dead holder may wake the next one
            // before this one's does.
            if (node != to || broken) && !mutant::is(Mutant::LockLeavesData) {
                match self.seat.port.land(node) {
                    Ok(flush) => landed.push(flush),
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
        }
        let mut machine = Release::new(self.seat.me, broken, next);
        // A successor that has asked, and has not sent its name for long, may have died.
        let mut patience = Patience::new();
        let mut until = patience.until(self.seat.port.backend.now());
        while let Progress::Waits = self
            .seat
            .drive(&mut machine, &self.centre, true, until)
            .inspect_err(|_| self.abandon())?
        {
            machine.look();
            until = patience.until(self.seat.port.backend.now());
        }
        failed.map_or(Ok(landed), Err)
    }

    /// The lock could not be let go of: the home's page cannot be had, say. States in its own memory that it no longer
    /// holds the lock and has handed it to no participant. A waiter finds that by looking, and recovers the lock;
    /// otherwise all would wait for a participant that lives and has gone on.
    fn abandon(&self) {
        self.seat.step_out();
    }
}

impl PortInner {
    /// Commands posted so far; writes that are posted from now on have higher numbers.
    pub(super) fn write_mark(&self) -> u64 {
        self.poster().queue.commands()
    }

    /// Nodes that were written to since.
    pub(super) fn written_after(&self, mark: u64) -> Vec<NodeId> {
        self.poster().failures.written_after(mark)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(mut hold) = self.hold.take() {
            hold.drop_with(self);
        }
        // A guard that was forgotten no longer holds the lock: waiters find that by looking, and recover it.
        self.seat.leave_turn();
        self.seat.leave(&self.centre);
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock({:?}, {:?})", self.centre, self.seat.me)
    }
}

/// What is known of a lock that is held.
#[derive(Debug)]
struct Hold {
    /// Commands that the port had posted before it was held.
    start: u64,
    broken: bool,
    died: bool,
    held: bool,
}

impl Hold {
    const fn new(start: u64, broken: bool, died: bool) -> Self {
        Self {
            start,
            broken,
            died,
            held: true,
        }
    }

    /// Lets go of the lock.
    fn end(&mut self, lock: &Lock) -> Result<Vec<Landed>> {
        if !std::mem::take(&mut self.held) {
            return Ok(Vec::new());
        }
        let written = lock.seat.port.written_after(self.start);
        lock.unlock(self.broken, &written)
    }

    /// Lets go of the lock, and tells what failed.
    fn release(&mut self, lock: &Lock) -> Result<()> {
        let landed = self.end(lock)?;
        lock.seat.port.tell_all(landed)
    }

    /// Lets go of the lock for as long as `wait` takes, which begins with the lock still held: thesis
    /// table 21, `cvwait`.
    fn without<R, Q>(
        &mut self,
        lock: &mut Lock,
        queue: impl FnOnce() -> Result<Q>,
        wait: impl FnOnce(Q) -> Result<R>,
    ) -> Result<R> {
        // Noted before the queue is told, because the queue's messages are no data that the lock protects.
        let written = lock.seat.port.written_after(self.start);
        let queued = queue()?;
        let released = if std::mem::take(&mut self.held) {
            lock.unlock(self.broken, &written)
        } else {
            Ok(Vec::new())
        };
        let waited = wait(queued);
        *self = lock.lock()?;
        lock.seat.port.tell_all(released?)?;
        waited
    }

    /// Its guard is dropped.
    fn drop_with(&mut self, lock: &Lock) {
        if std::thread::panicking() {
            // What the lock protects may be half changed: the next holder is told, as if this process had died. And
            // unwinding waits for no other node.
            if std::mem::take(&mut self.held) {
                lock.abandon();
            }
            return;
        }
        // A release that fails is told by `release` only. A write that has failed is told by the next call to its node.
        let _ = self.end(lock);
    }
}

/// The lock is held while this lives.
#[must_use = "dropping a guard lets go of the lock"]
pub struct Guard<'a> {
    lock: &'a mut Lock,
    hold: Hold,
}

impl Guard<'_> {
    /// Whether a process has died that may have held the lock, or has panicked while it held it: what it protects may be
    /// half changed.
    #[must_use]
    pub const fn owner_died(&self) -> bool {
        self.hold.died
    }

    /// Whether a participant waits for the lock, and its message has come. Looks at own memory only.
    ///
    /// # Errors
    /// [`Error::Memory`] where the page cannot be had.
    pub fn is_asked_for(&self) -> Result<bool> {
        Ok(!self.lock.seat.look_next()?.is_nobody())
    }

    /// Lets go of the lock, as dropping the guard does, and tells what failed.
    ///
    /// Everything that this port has written while the lock was held has landed when the next holder gets it.
    /// What lies on the node that the release goes to (the lock's home if no participant waits, else the next holder's)
    /// costs nothing; every other node written to meanwhile costs a round trip. Atomics count when they have been
    /// waited for.
    ///
    /// # Errors
    /// [`Error::Failed`] for a write that did not land (the lock is free all the same). What goes to the node that the
    /// release goes to is not waited for: [`flush_remote`](Port::flush_remote) tells of a failure there. When the home has
    /// gone or could not be reached, what its operation failed with: the next to wait for the lock gets it then as if
    /// this process had died, and a participant that only [tries](Lock::try_acquire) gets it after that one.
    pub fn release(mut self) -> Result<()> {
        self.hold.release(self.lock)
    }

    /// As [`Hold::without`].
    pub(super) fn without<R, Q>(
        &mut self,
        queue: impl FnOnce() -> Result<Q>,
        wait: impl FnOnce(Q) -> Result<R>,
    ) -> Result<R> {
        self.hold.without(self.lock, queue, wait)
    }

    /// Ends without letting go of the lock.
    fn into_hold(mut self) -> Hold {
        let none = Hold {
            held: false,
            ..Hold::new(self.hold.start, false, false)
        };
        std::mem::replace(&mut self.hold, none)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.hold.drop_with(self.lock);
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.lock.seat.me)
    }
}

/// The lock is held while this lives, which has its participant, too. From [`Lock::begin_acquire`].
#[must_use = "dropping a guard lets go of the lock"]
pub struct OwnedGuard {
    /// Holds it, and lets go of it when it is dropped.
    lock: Lock,
}

impl OwnedGuard {
    /// As [`Guard::owner_died`].
    #[must_use]
    pub fn owner_died(&self) -> bool {
        self.lock.hold.as_ref().is_some_and(|hold| hold.died)
    }

    /// As [`Guard::is_asked_for`].
    ///
    /// # Errors
    /// As [`Guard::is_asked_for`].
    pub fn is_asked_for(&self) -> Result<bool> {
        Ok(!self.lock.seat.look_next()?.is_nobody())
    }

    /// Lets go of the lock. Gives the participant, and what [`Guard::release`] tells: that waits for round trips, and says what did not
    /// land.
    pub fn release(mut self) -> (Lock, Result<()>) {
        let released = match self.lock.hold.take() {
            Some(mut hold) => hold.release(&self.lock),
            None => Ok(()),
        };
        (self.lock, released)
    }

    /// As [`Hold::without`].
    pub(super) fn without<R, Q>(
        &mut self,
        queue: impl FnOnce() -> Result<Q>,
        wait: impl FnOnce(Q) -> Result<R>,
    ) -> Result<R> {
        let Some(mut hold) = self.lock.hold.take() else {
            return Err(Error::Released);
        };
        let waited = hold.without(&mut self.lock, queue, wait);
        self.lock.hold = Some(hold);
        waited
    }
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedGuard({:?})", self.lock.seat.me)
    }
}

/// Its identity, for messages.
impl Lock {
    /// Its name among the participants.
    #[must_use]
    pub const fn id(&self) -> SeatId {
        self.seat.me
    }
}
