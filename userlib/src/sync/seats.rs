//! Seats: the words that a participant has in its own port's memory, and how it reaches others'.
//!
//! A port has one page of seats, in eight blocks. A block is exported, under a well-known name, to the ports that may
//! take part in what its participants take part in: made when the first of them joins something, and there until the
//! port is closed. A participant that has to write to a seat imports its block then, once. A seat's block and its
//! notification number follow from its index, so a name says all there is to know.

use super::home::{RECOVERIES, RECOVERY};
use super::members::Returns;
use super::peers::{Peers, TRIES, is_gone, look_by};
use super::protocol::{Answer, Centre, GRANTS, Machine, Place, SeatId, View, Want};
use super::rights::Rights;
use crate::atomic::PendingAtomic;
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::import::RemoteSegment;
use crate::notify::OwnNotification;
use crate::port::PortInner;
use crate::region::{Region, Word64};
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::{Nanos, NodeId, NotificationId, OpId, PAGE_SIZE, Status};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a seat.
const SEAT: u64 = 64;
/// Seats of a block. The first is the block's head.
const BLOCK: u16 = 8;
const BLOCKS: u16 = SeatId::SEATS / BLOCK;
const BLOCK_BYTES: u64 = BLOCK as u64 * SEAT;
const NEXT: u64 = 0;
const PLACE: u64 = 8;
const BEHIND: u64 = 16;
const GIVEN: u64 = 24;
const GRANT: u64 = 32;
// The words of a seat follow each other and fit into it, so that no grant reaches the next seat.
const _: () = assert!(NEXT < PLACE && PLACE < BEHIND && BEHIND < GIVEN && GIVEN < GRANT);
const _: () = assert!(GRANT + 8 * GRANTS as u64 <= SEAT);
// Seats fill whole blocks, and a block lies in one page.
const _: () = assert!(SeatId::SEATS.is_multiple_of(BLOCK) && BLOCK_BYTES <= PAGE_SIZE as u64);
/// Notification number of seat 0, which is never given out.
const NUMBERS: u32 = 896;

// Each seat has an event count of its own.
const _: () = assert!(NUMBERS + SeatId::SEATS as u32 <= EVENT_COUNTS);

/// The notification that wakes the participant in this seat.
const fn number(seat: u16) -> NotificationId {
    NotificationId(NUMBERS + seat as u32)
}

/// The block that a seat is in.
pub(super) const fn block_of(seat: u16) -> u16 {
    seat / BLOCK
}

/// The name under which a port exports a block of its seats.
pub(super) fn name_of(block: u16) -> String {
    format!("netvm.seats.{block}")
}

/// Where a seat lies in its block.
const fn within(seat: u16) -> u64 {
    (seat % BLOCK) as u64 * SEAT
}

/// A block of a port's seats. Its access list never changes: a change would void imports that participants still have,
/// and lose messages sent by them.
enum Block {
    Unused,
    /// A thread exports it just now.
    Begins(Rights),
    Exported {
        rights: Rights,
        _export: Export,
    },
}

/// Which seats are taken, and for which access lists.
struct Taken {
    blocks: [Block; BLOCKS as usize],
    /// By index: whether it is taken, and the last turn that it has had.
    seats: [(bool, u16); SeatId::SEATS as usize],
}

/// What to do to get a seat.
enum Found {
    Seat(u16, u16, OwnNotification),
    /// Export this block, and look again.
    Unused(u16),
    /// A thread exports a block for this list: look again.
    Begins,
    /// All are taken.
    None,
    /// The program uses the numbers of all that are not.
    Numbers,
}

/// The seats of a port.
pub(crate) struct Seats {
    memory: Region,
    generation: u32,
    taken: Mutex<Taken>,
    peers: Peers,
    returns: Returns,
}

impl Seats {
    /// Those of this port.
    fn of(port: &Arc<PortInner>) -> Result<Arc<Self>> {
        if let Some(seats) = port.seats.lock().as_ref() {
            return Ok(Arc::clone(seats));
        }
        // Made without the lock, because that may park. Two may do so; the first one's will do.
        let memory = port.alloc(u64::from(PAGE_SIZE))?;
        let generation = port.backend.generation().0;
        for block in 0..u64::from(BLOCKS) {
            memory
                .word64(block * BLOCK_BYTES)?
                .store(u64::from(generation) | 1 << 32)?;
        }
        let seats = Arc::new(Self {
            memory,
            generation,
            taken: Mutex::new(Taken {
                blocks: [const { Block::Unused }; BLOCKS as usize],
                seats: [(false, 0); SeatId::SEATS as usize],
            }),
            peers: Peers::default(),
            returns: Returns::default(),
        });
        let mut place = port.seats.lock();
        // Under the lock: the thread that closes the port looks here after it has set `closed`.
        port.alive()?;
        Ok(Arc::clone(place.get_or_insert(seats)))
    }

    /// Takes a seat that those with these rights can reach: its index, its last turn, its notification.
    fn sit(&self, port: &Arc<PortInner>, rights: &Rights) -> Result<(u16, u16, OwnNotification)> {
        self.returns.sweep();
        let mut spins = 0;
        loop {
            let found = self.taken.lock().find(port, rights);
            match found {
                Found::Seat(index, turn, notification) => return Ok((index, turn, notification)),
                Found::Unused(block) => {
                    // Without the lock, because it may park.
                    let (state, ended) = match self.export(port, block, rights) {
                        Ok(segment) => (
                            Block::Exported {
                                rights: *rights,
                                _export: segment,
                            },
                            Ok(()),
                        ),
                        Err(error) => (Block::Unused, Err(error)),
                    };
                    if let Some(place) = self.taken.lock().blocks.get_mut(usize::from(block)) {
                        *place = state;
                    }
                    ended?;
                }
                Found::Begins => {
                    port.alive()?;
                    port.backend.relax(spins);
                    spins = spins.saturating_add(1);
                }
                Found::Numbers => {
                    return Err(Error::Refused {
                        what: "take a seat for synchronization: the program uses notifications 897 to 959, or has an \
                               export whose `Access::notify` gives them away",
                        reason: Refusal::Status(Status::NotAllowed),
                    });
                }
                Found::None => {
                    return Err(Error::Refused {
                        what: "take a seat for synchronization: a port has 56, for up to eight different access \
                               lists",
                        reason: Refusal::Status(Status::TableFull),
                    });
                }
            }
        }
    }

    fn export(&self, port: &Arc<PortInner>, block: u16, rights: &Rights) -> Result<Export> {
        let first = u32::from(block * BLOCK) + NUMBERS;
        let access = rights
            .members(Modes::READ | Modes::WRITE, Modes::READ)
            .notify_own(first + 1..=first + u32::from(BLOCK) - 1);
        let start = u64::from(block) * BLOCK_BYTES;
        let range = start..start + BLOCK_BYTES;
        crate::export::export(port, &name_of(block), &self.memory, &range, &access)
    }
}

impl Taken {
    /// Takes a seat that is free and whose number the program does not use, in a block with these rights.
    fn find(&mut self, port: &Arc<PortInner>, rights: &Rights) -> Found {
        let (mut unused, mut begins, mut used) = (None, false, false);
        for (block, (state, seats)) in self
            .blocks
            .iter_mut()
            .zip(self.seats.chunks_exact_mut(usize::from(BLOCK)))
            .enumerate()
        {
            match state {
                Block::Exported { rights: theirs, .. } if theirs == rights => {
                    for (at, seat) in seats.iter_mut().enumerate().skip(1).filter(|(_, seat)| !seat.0) {
                        let index = block as u16 * BLOCK + at as u16;
                        if let Ok(notification) = OwnNotification::take(port, Some(number(index))) {
                            seat.0 = true;
                            return Found::Seat(index, seat.1, notification);
                        }
                        used = true;
                    }
                }
                Block::Begins(theirs) if theirs == rights => begins = true,
                Block::Unused => {
                    unused = unused.or(Some((block as u16, state)));
                }
                Block::Begins(_) | Block::Exported { .. } => {}
            }
        }
        match unused {
            _ if begins => Found::Begins,
            Some((block, state)) => {
                *state = Block::Begins(*rights);
                Found::Unused(block)
            }
            None if used => Found::Numbers,
            None => Found::None,
        }
    }
}

/// How far a machine has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress<R> {
    /// To its end.
    Ended(R),
    /// It still waits, at the time until which it was to.
    Waits,
}

/// Round trips of a machine.
pub(super) struct Trips {
    /// Until when they are waited for.
    deadline: Nanos,
    /// One that was under way then.
    pending: Option<PendingAtomic>,
}

impl Trips {
    pub(super) const fn by(deadline: Nanos) -> Self {
        Self {
            deadline,
            pending: None,
        }
    }

    /// The same, with another deadline.
    pub(super) fn go_on(&mut self, deadline: Nanos) -> Self {
        Self {
            deadline,
            pending: self.pending.take(),
        }
    }
}

impl Drop for Trips {
    /// No caller waits for its answer, nor for its failure.
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            pending.disregard();
        }
    }
}

/// A participant.
pub(super) struct Seat {
    pub(super) port: Arc<PortInner>,
    seats: Arc<Seats>,
    /// Its name in its present turn.
    pub(super) me: SeatId,
    notification: OwnNotification,
    next: Word64,
    place: Word64,
    behind: Word64,
    given: Word64,
    grants: Vec<Word64>,
    /// Nodes that messages to others' seats have gone to.
    sent: Mutex<Vec<NodeId>>,
}

const ASKING: u64 = 1;
const WAITING: u64 = 2;
const ADRIFT: u64 = 3;
const HOLDING: u64 = 4;
const OVER: u64 = 5;

impl Seat {
    /// Takes a seat that those with these rights can reach.
    pub(super) fn take(port: &Arc<PortInner>, rights: &Rights) -> Result<Self> {
        let seats = Seats::of(port)?;
        let (index, turn, notification) = seats.sit(port, rights)?;
        let word = |at: u64| seats.memory.word64(u64::from(index) * SEAT + at);
        let me = SeatId::new(port.node_id(), port.port(), index, seats.generation).in_turn(turn);
        let seat = Self {
            port: Arc::clone(port),
            me,
            notification,
            next: word(NEXT)?,
            place: word(PLACE)?,
            behind: word(BEHIND)?,
            given: word(GIVEN)?,
            grants: (0..u64::from(GRANTS))
                .map(|slot| word(GRANT + 8 * slot))
                .collect::<Result<_>>()?,
            sent: Mutex::default(),
            seats: Arc::clone(&seats),
        };
        // The seat's last participant may have left it asking for something else.
        seat.stand(Place::Over(SeatId::NOBODY))?;
        Ok(seat)
    }

    /// Begins another turn. Signals that came too late for an earlier one count for nothing.
    pub(super) fn turn(&mut self) -> SeatId {
        self.me = self.me.next_turn();
        self.me
    }

    /// How many signals are left over from earlier turns; they are acknowledged.
    pub(super) fn leftovers(&self) -> u32 {
        self.notification.clear()
    }

    pub(super) fn returns(&self) -> &Returns {
        &self.seats.returns
    }

    fn peer(&self, id: SeatId, deadline: Nanos) -> Result<RemoteSegment> {
        self.seats.peers.get(&self.port, id, deadline)
    }

    /// The successor in this turn, now.
    pub(super) fn look_next(&self) -> Result<SeatId> {
        self.next.load().map(|next| self.me.follower(SeatId(next)))
    }

    fn stand(&self, place: Place) -> Result<()> {
        let state = match place {
            Place::Asking => ASKING,
            Place::Behind(who) => {
                self.behind.store(who.0)?;
                WAITING
            }
            Place::Adrift => ADRIFT,
            Place::Holding => HOLDING,
            Place::Over(who) => {
                // A turn that hands the lock to none, a try say, leaves the name of the one that it was handed to
                // before: that may be on its way yet (`View::given`).
                if !who.is_nobody() {
                    self.given.store(who.0)?;
                }
                OVER
            }
        };
        self.place.store(state | u64::from(self.me.turn()) << 8)
    }

    /// Reads another's seat. Nothing: it is gone, or has been out of reach for long.
    pub(super) fn view(&self, of: SeatId) -> Result<Option<View>> {
        self.view_by(of, Nanos::MAX)
    }

    /// The same until a deadline: [`Error::TimedOut`] if it could not be reached by then.
    pub(super) fn view_by(&self, of: SeatId, deadline: Nanos) -> Result<Option<View>> {
        let mut bytes = [0; GRANT as usize];
        let mut tries = 0;
        loop {
            let remote = match self.peer(of, deadline) {
                Ok(remote) => remote,
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            tries += 1;
            match look_by(&remote, within(of.seat()), &mut bytes, deadline) {
                Ok(()) => break,
                // A new import shows whether it is gone.
                Err(Error::Failed(_)) if tries < TRIES => self.seats.peers.forget(of),
                Err(error) => return Err(error),
            }
        }
        let word = |at: u64| {
            let at = at as usize;
            let eight = bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok());
            u64::from_le_bytes(eight.unwrap_or_default())
        };
        let place = match word(PLACE) & 0xFF {
            ASKING => Place::Asking,
            WAITING => Place::Behind(SeatId(word(BEHIND))),
            ADRIFT => Place::Adrift,
            HOLDING => Place::Holding,
            _ => Place::Over(SeatId(word(GIVEN))),
        };
        Ok(Some(View {
            place,
            turn: (word(PLACE) >> 8) as u16,
            given: SeatId(word(GIVEN)),
        }))
    }

    /// Posts a message to another's seat. If that participant is gone, so is the message: no participant is there to
    /// miss it, and a waiter for an answer looks in time.
    /// [`Error::TimedOut`]: that one could not be reached before the deadline, and nothing was posted.
    fn send(
        &self,
        to: SeatId,
        (at, word): (u64, u64),
        notification: Option<NotificationId>,
        deadline: Nanos,
    ) -> Result<()> {
        let remote = match self.peer(to, deadline) {
            Ok(remote) => remote,
            Err(error) if is_gone(&error) => return self.port.alive(),
            Err(error) => return Err(error),
        };
        let mut sent = self.sent.lock();
        if !sent.contains(&to.node()) {
            sent.push(to.node());
        }
        drop(sent);
        let bytes = word.to_le_bytes();
        let offset = within(to.seat()) + at;
        loop {
            let mut write = remote.write(offset, &bytes).regardless().aside();
            if let Some(id) = notification {
                write = write.notify(id);
            }
            match write.post() {
                Ok(OpId(_)) => return Ok(()),
                // Another thread has been told of a failure just now, and nothing was posted. This message has to go out.
                Err(Error::StreamFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a machine until it ends, or still waits for others at this time. `ordered`: its operations on
    /// the centre act after everything that the port has posted there.
    pub(super) fn drive<R>(
        &self,
        machine: &mut impl Machine<Want = Want<R>, Answer = Answer>,
        centre: &RemoteSegment,
        ordered: bool,
        until: Nanos,
    ) -> Result<Progress<R>> {
        self.drive_by(machine, centre, ordered, until, &mut Trips::by(Nanos::MAX))
    }

    /// The same; at the deadline of its round trips it stops where it is, and may be driven on from there.
    pub(super) fn drive_by<R>(
        &self,
        machine: &mut impl Machine<Want = Want<R>, Answer = Answer>,
        centre: &RemoteSegment,
        ordered: bool,
        until: Nanos,
        trips: &mut Trips,
    ) -> Result<Progress<R>> {
        let mut members = Vec::new();
        loop {
            let answer = match machine.want() {
                Want::Begin(place) => {
                    self.next.store(SeatId::NOBODY.0)?;
                    self.stand(place)?;
                    Answer::Done
                }
                Want::Stand(place) => {
                    self.stand(place)?;
                    Answer::Done
                }
                Want::Atomic(which, atomic) => {
                    let offset = match which {
                        Centre::Main => 0,
                        Centre::Recovery => RECOVERY,
                        Centre::Recoveries => RECOVERIES,
                    };
                    let operation = centre.atomic(offset, atomic);
                    let operation = if ordered && !mutant::is(Mutant::ReleaseOvertakes) {
                        // A hand-over: it must not be held back because the holder's data was lost. The holder
                        // hears of that from the call.
                        operation.ordered().regardless()
                    } else {
                        operation
                    };
                    let mut pending = match trips.pending.take() {
                        Some(pending) => pending,
                        None => operation.post()?,
                    };
                    match pending.wait_by(trips.deadline)? {
                        Some(result) => Answer::Atomic(result),
                        None => {
                            trips.pending = Some(pending);
                            return Ok(Progress::Waits);
                        }
                    }
                }
                Want::Link(to) => {
                    let link = (NEXT, self.me.linked_to(to).0);
                    self.send(to, link, None, Nanos::MAX)?;
                    Answer::Done
                }
                Want::Grant { to, slot, word } => {
                    let at = GRANT + 8 * u64::from(slot % GRANTS);
                    match self.send(to, (at, word), Some(number(to.seat())), trips.deadline) {
                        Err(Error::TimedOut) => return Ok(Progress::Waits),
                        sent => sent?,
                    }
                    Answer::Done
                }
                Want::LookNext => Answer::Next(self.look_next()?),
                Want::AwaitNext => match self.await_next(until)? {
                    Some(next) => Answer::Next(next),
                    None => return Ok(Progress::Waits),
                },
                Want::AwaitGrant { slot } => match self.await_grant(slot, until)? {
                    Some(word) => Answer::Granted(word),
                    None => return Ok(Progress::Waits),
                },
                Want::View(of) => Answer::View(self.view(of)?),
                Want::Member(at) => Answer::Next(self.member(&mut members, centre, at)?),
                Want::Pause => return Ok(Progress::Waits),
                Want::Ended(outcome) => return Ok(Progress::Ended(outcome)),
            };
            machine.answer(answer);
        }
    }

    /// Wants nothing any more, and hands nothing to another participant.
    pub(super) fn step_out(&self) {
        // Where the memory has gone with the port, no participant looks.
        let _ = self.stand(Place::Over(SeatId::NOBODY));
    }

    /// As [`step_out`](Self::step_out), unless its turn is over already: the participant that it has handed the lock to
    /// looks for its own name there.
    pub(super) fn leave_turn(&self) {
        if self.place.load().is_ok_and(|word| word & 0xFF != OVER) {
            self.step_out();
        }
    }

    /// Lets time pass.
    pub(super) fn pause(&self, until: Nanos) -> Result<()> {
        self.port.pause(until)
    }

    /// Spins: the successor has asked already, and its name is on the way.
    fn await_next(&self, until: Nanos) -> Result<Option<SeatId>> {
        let mut spins = 0;
        loop {
            let next = self.look_next()?;
            if !next.is_nobody() {
                return Ok(Some(next));
            }
            self.port.alive()?;
            if self.port.backend.now() >= until {
                return Ok(None);
            }
            self.port.backend.relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    /// Spins, then blocks.
    fn await_grant(&self, slot: u8, until: Nanos) -> Result<Option<u64>> {
        let timeout = match until {
            Nanos::MAX => Timeout::Never,
            until => {
                let left = until.0.saturating_sub(self.port.backend.now().0);
                Timeout::After(Duration::from_nanos(left))
            }
        };
        match self.notification.wait(timeout) {
            Ok(_) => {}
            Err(Error::TimedOut) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.notification.ack()?;
        let Some(word) = self.grants.get(usize::from(slot % GRANTS)) else {
            return Ok(Some(0));
        };
        // After the signal: the word has landed before it (promise P4).
        word.load().map(Some)
    }
}

impl Drop for Seat {
    /// The port may be closed next, and what has not arrived then never does: a participant would wait for it.
    fn drop(&mut self) {
        for node in std::mem::take(&mut *self.sent.lock()) {
            if !std::thread::panicking() {
                // A node that is gone misses nothing. What the program's own operations have failed with is left for it.
                let _ = self.port.settle(node);
            }
        }
        let mut taken = self.seats.taken.lock();
        if let Some(seat) = taken.seats.get_mut(usize::from(self.me.seat())) {
            *seat = (false, self.me.turn());
        }
    }
}

/// When to look whether the participants that it waits for are alive: soon at first, then ever more seldom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    span: Nanos,
}

impl Patience {
    const FIRST: Nanos = Nanos::from_millis(5);
    const LONGEST: Nanos = Nanos::from_millis(500);

    pub(super) const fn new() -> Self {
        Self { span: Self::FIRST }
    }

    /// Until when to wait next.
    pub(super) fn until(&mut self, now: Nanos) -> Nanos {
        let until = now.after(self.span);
        self.span = Nanos(self.span.0 * 2).min(Self::LONGEST);
        until
    }
}
