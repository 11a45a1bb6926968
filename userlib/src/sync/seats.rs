//! Seats: the words that a participant has in its own port's memory, and how it reaches others'.
//!
//! A port exports one page of seats under a well-known name, made when its first participant joins
//! something, and there until the port is closed. Whoever has to write to a seat imports that page
//! then, once. A seat's notification number follows from its index, so a name says all there is to know.

use super::home::{MEMBERS, PLACES, RECOVERY};
use super::protocol::{Answer, Centre, GRANTS, Machine, Place, SeatId, View, Want};
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::{Access, Segment};
use crate::import::{RemoteSegment, import};
use crate::notify::OwnNotification;
use crate::port::PortInner;
use crate::region::{Region, Word64};
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::{Nanos, NodeId, NotificationId, OpId, PAGE_SIZE, PortId, Status};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The name of a port's seats.
const NAME: &str = "netvm.seats";
/// Bytes of a seat. The first is the page's head.
const SEAT: u64 = 64;
const NEXT: u64 = 0;
const PLACE: u64 = 8;
const BEHIND: u64 = 16;
const GIVEN: u64 = 24;
const GRANT: u64 = 32;
/// Notification number of seat 0, which nobody has.
const NUMBERS: u32 = 896;

/// The notification that wakes who has this seat.
const fn number(seat: u16) -> NotificationId {
    NotificationId(NUMBERS + seat as u32)
}

/// The seats of a port.
pub(crate) struct Seats {
    memory: Region,
    _segment: Segment,
    generation: u32,
    /// By index: whether it is taken, and the last turn that it has had.
    taken: Mutex<Vec<(bool, u16)>>,
    /// Others' seats: by port and lower half of its generation.
    peers: Mutex<HashMap<(NodeId, PortId, u16), RemoteSegment>>,
}

impl Seats {
    /// Those of this port.
    fn of(port: &Arc<PortInner>) -> Result<Arc<Self>> {
        if let Some(seats) = port.seats.lock().as_ref() {
            return Ok(Arc::clone(seats));
        }
        // Made without the lock, because that may park; who comes second finds the name taken, and the
        // first one's seats in a moment.
        let memory = port.alloc(u64::from(PAGE_SIZE))?;
        let generation = port.backend.generation().0;
        memory.word64(0)?.store(u64::from(generation) | 1 << 32)?;
        let access = Access::everyone().notify(NUMBERS + 1..=NUMBERS + u32::from(SeatId::SEATS) - 1);
        let mut spins = 0;
        let segment = loop {
            match crate::export::export(port, NAME, &memory, &(..), &access) {
                Ok(segment) => break segment,
                Err(error) => {
                    if let Some(seats) = port.seats.lock().as_ref() {
                        return Ok(Arc::clone(seats));
                    }
                    if error.status() != Some(Status::NotAllowed) || spins > 1000 {
                        return Err(error);
                    }
                }
            }
            port.backend.relax(spins);
            spins += 1;
        };
        let seats = Arc::new(Self {
            memory,
            _segment: segment,
            generation,
            taken: Mutex::new(vec![(false, 0); usize::from(SeatId::SEATS)]),
            peers: Mutex::default(),
        });
        let mut place = port.seats.lock();
        // Under the lock: whoever closes the port looks here after it has said so.
        port.alive()?;
        *place = Some(Arc::clone(&seats));
        Ok(seats)
    }

    /// Takes this seat, if it is free and the program does not use its number: its last turn.
    fn sit(&self, port: &Arc<PortInner>, index: u16) -> Option<(u16, u16, OwnNotification)> {
        let mut taken = self.taken.lock();
        let seat = taken.get_mut(usize::from(index)).filter(|(taken, _)| !*taken)?;
        let notification = OwnNotification::take(port, Some(number(index))).ok()?;
        seat.0 = true;
        Some((index, seat.1, notification))
    }

    /// Another's seats.
    fn peer(&self, port: &Arc<PortInner>, id: SeatId) -> Result<RemoteSegment> {
        let key = (id.node(), id.port(), id.generation());
        if let Some(remote) = self.peers.lock().get(&key) {
            return Ok(remote.clone());
        }
        let modes = Modes::READ | Modes::WRITE | Modes::NOTIFY;
        let remote = import(port, id.node(), id.port(), NAME, modes, Timeout::Now)?;
        let mut head = [0; 8];
        remote.read(0, &mut head).post()?;
        let generation = u64::from_le_bytes(head) as u16;
        if generation != id.generation() {
            return Err(Error::Import {
                node: id.node(),
                port: id.port(),
                name: NAME.into(),
                reason: Refusal::Status(Status::NoSuchPort),
            });
        }
        Ok(self.peers.lock().entry(key).or_insert(remote).clone())
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
    /// A failure of one of the port's earlier operations, heard of where it could not be told.
    heard: Mutex<Option<Error>>,
    /// Nodes that messages to others' seats have gone to.
    sent: Mutex<Vec<NodeId>>,
}

const ASKING: u64 = 1;
const WAITING: u64 = 2;
const ADRIFT: u64 = 3;
const HOLDING: u64 = 4;
const OVER: u64 = 5;

impl Seat {
    /// Takes a seat.
    pub(super) fn take(port: &Arc<PortInner>) -> Result<Self> {
        let seats = Seats::of(port)?;
        let full = Error::Refused {
            what: "take a seat for synchronization: a port has 63",
            reason: Refusal::Status(Status::TableFull),
        };
        let (index, turn, notification) = (1..SeatId::SEATS)
            .find_map(|index| seats.sit(port, index))
            .ok_or(full)?;
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
            heard: Mutex::default(),
            sent: Mutex::default(),
            seats: Arc::clone(&seats),
        };
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

    /// A failure of an earlier operation that has not been told yet.
    pub(super) fn heard(&self) -> Option<Error> {
        self.heard.lock().take()
    }

    /// Who is next, now.
    pub(super) fn look_next(&self) -> Result<SeatId> {
        self.next.load().map(SeatId)
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
                self.given.store(who.0)?;
                OVER
            }
        };
        self.place.store(state | u64::from(self.me.turn()) << 8)
    }

    /// Reads another's seat. An error: it, or the way to it, is gone.
    pub(super) fn view(&self, of: SeatId) -> Result<View> {
        let remote = self.seats.peer(&self.port, of)?;
        let mut bytes = [0; GRANT as usize];
        remote.read(u64::from(of.seat()) * SEAT, &mut bytes).post()?;
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
        Ok(View {
            place,
            turn: (word(PLACE) >> 8) as u16,
            given: SeatId(word(GIVEN)),
        })
    }

    /// Posts a message to another's seat. If that is gone, so is the message: nobody is there to miss
    /// it, and who waits for an answer looks in time.
    fn send(&self, to: SeatId, at: u64, word: u64, notification: Option<NotificationId>) -> Result<()> {
        let Ok(remote) = self.seats.peer(&self.port, to) else {
            return self.port.alive();
        };
        let mut sent = self.sent.lock();
        if !sent.contains(&to.node()) {
            sent.push(to.node());
        }
        drop(sent);
        let bytes = word.to_le_bytes();
        let offset = u64::from(to.seat()) * SEAT + at;
        loop {
            let mut write = remote.write(offset, &bytes).regardless();
            if let Some(id) = notification {
                write = write.notify(id);
            }
            match write.post() {
                Ok(OpId(_)) => return Ok(()),
                // Told instead of posting; this message has to go out, so it is told later.
                Err(error @ (Error::Failed(_) | Error::FailuresLost { .. } | Error::StreamFailed { .. })) => {
                    self.heard.lock().get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a machine until it ends, or still waits for others at this time. `ordered`: its operations on
    /// the centre act after everything that the port has posted there.
    pub(super) fn drive<M: Machine>(
        &self,
        machine: &mut M,
        centre: &RemoteSegment,
        ordered: bool,
        until: Nanos,
    ) -> Result<Progress<M::Outcome>> {
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
                    };
                    let operation = centre.atomic(offset, atomic);
                    let operation = if ordered { operation.ordered() } else { operation };
                    Answer::Atomic(operation.call()?)
                }
                Want::Link(to) => {
                    self.send(to, NEXT, self.me.0, None)?;
                    Answer::Done
                }
                Want::Grant { to, slot, word } => {
                    let at = GRANT + 8 * u64::from(slot % GRANTS);
                    self.send(to, at, word, Some(number(to.seat())))?;
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
                Want::View(of) => Answer::View(self.view(of).ok()),
                Want::Member(at) => Answer::Next(self.member(&mut members, centre, at)?),
                Want::Pause => return Ok(Progress::Waits),
                Want::Ended(outcome) => return Ok(Progress::Ended(outcome)),
            };
            machine.answer(answer);
        }
    }

    /// Who has a place among a lock's members. The first place is asked for first: then they are read.
    fn member(&self, members: &mut Vec<SeatId>, centre: &RemoteSegment, at: u16) -> Result<SeatId> {
        if at == 0 {
            *members = places(centre)?;
            members.retain(|id| !id.is_nobody());
        }
        Ok(members.get(usize::from(at)).copied().unwrap_or(SeatId::NOBODY))
    }

    /// Becomes a member of a lock. The place of one who is dead will do.
    pub(super) fn enter(&self, centre: &RemoteSegment) -> Result<()> {
        let me = self.me.in_turn(0);
        for of_the_dead in [false, true] {
            for (at, &id) in places(centre)?.iter().enumerate() {
                let free = if of_the_dead {
                    !id.is_nobody() && self.view(id).is_err()
                } else {
                    id.is_nobody()
                };
                if free && centre.word64(MEMBERS + 8 * at as u64)?.compare_swap(id.0, me.0)? == id.0 {
                    return Ok(());
                }
            }
        }
        Err(Error::Refused {
            what: "take part in this lock: it has no place left",
            reason: Refusal::Status(Status::TableFull),
        })
    }

    /// Wants nothing any more, and hands nothing to anybody.
    pub(super) fn step_out(&self) {
        // Where the memory has gone with the port, nobody looks.
        let _ = self.stand(Place::Over(SeatId::NOBODY));
    }

    /// Is a member of a lock no more.
    pub(super) fn leave(&self, centre: &RemoteSegment) {
        let me = self.me.in_turn(0);
        // Where the home has gone, so has the table.
        let Ok(places) = places(centre) else { return };
        if let Some(at) = places.iter().position(|&id| id == me)
            && let Ok(word) = centre.word64(MEMBERS + 8 * at as u64)
        {
            let _ = word.compare_swap(me.0, SeatId::NOBODY.0);
        }
    }

    /// Lets time pass.
    pub(super) fn pause(&self, until: Nanos) -> Result<()> {
        self.port.pause(until)
    }

    /// Spins: who will be next has asked already, and its name is on the way.
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
    /// The port may be closed next, and what has not arrived then never does: somebody would wait for it.
    fn drop(&mut self) {
        for node in std::mem::take(&mut *self.sent.lock()) {
            if !std::thread::panicking() {
                // A node that is gone misses nothing.
                let _ = self.port.flush_remote(node);
            }
        }
        let mut taken = self.seats.taken.lock();
        if let Some(seat) = taken.get_mut(usize::from(self.me.seat())) {
            *seat = (false, self.me.turn());
        }
    }
}

/// When to look whether those are alive whom one waits for: soon at first, then ever more seldom.
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

/// A lock's table of members.
fn places(centre: &RemoteSegment) -> Result<Vec<SeatId>> {
    let mut bytes = [0; PLACES * 8];
    centre.read(MEMBERS, &mut bytes).post()?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words
        .iter()
        .map(|word| SeatId(u64::from_le_bytes(*word)))
        .collect())
}
