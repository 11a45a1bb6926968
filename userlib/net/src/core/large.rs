//! Large transfers: by a write into memory that the receiver offers, or by a read of the receiver's.
//!
//! *By a write.* The sender says how much it is about to send. The receiver offers pieces of its memory to the connection. The
//! sender writes into one and says so by a message, which acts after the write has landed. It asks again before the last piece is
//! used, and waits a little for an answer that is out: it mostly comes within a round trip, with memory or without.
//!
//! *By a read.* The sender puts the bytes into a piece of its own memory and lends it. The receiver reads it when it has memory
//! for that, and gives the piece back. What comes behind on the connection waits at the receiver until the bytes are there.
//!
//! Which of the two, and whether at all, the sender decides for each piece. What finds no memory goes in messages. All bytes count
//! in the connection's window, so a slow reader holds no more than that. Where memory is scarce, what has arrived is copied out
//! of its piece at once, so a slow reader keeps no piece from other connections.

use super::Core;
use super::reads::{Lent, Reading};
use super::slots::Flags;
use crate::config::Way;
use crate::conn::{Conn, Piece};
use crate::engine::Engine;
use crate::large::{Area, Landed};
use crate::wire::{self, Id, Kind};
use netvm::{Access, Export, Modes, Nanos, PendingImport, RemoteSegment, Timeout};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// From so many bytes on a way that a program forces is taken.
const FORCED: usize = 4 << 10;
/// By how much the sender must be busier than the receiver, of 255, before the receiver reads. It goes on until the sender is the less
/// busy one. A read takes the sender no less work where the card is software, and a round trip more.
const BUSIER: i32 = 160;
/// How long a writer waits for the answer to its question for memory.
const ANSWER: Nanos = Nanos::from_millis(1);
/// Pieces that a connection has ready for its next write, if this one was large and that before it was.
const AHEAD: usize = 4;
/// An offer that is not used for so long goes back.
const UNUSED: Nanos = Nanos::from_millis(10);
/// How long an import may take. The other end has exported before it says so.
const IMPORT: Duration = Duration::from_secs(5);

/// What an end has of large transfers under way.
#[derive(Default)]
pub(crate) struct Large {
    /// Pieces of the peer's memory that it may write to.
    offers: VecDeque<u32>,
    /// When there was one last, or one was written to.
    used: Nanos,
    asked: Asked,
    /// Pieces of our memory that were offered to the other end.
    given: u32,
    pub(super) held: Held,
}

/// Whether an end has asked for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    /// Or it was answered.
    #[default]
    No,
    Out,
    /// A writer waits for the answer.
    Awaited,
    /// The answer is late. The writer waits no more.
    Late,
}

/// What has come behind a read that is under way.
#[derive(Default)]
pub(crate) struct Held {
    pub(super) pieces: VecDeque<HeldPiece>,
    pub(super) ended: bool,
}

pub(super) enum HeldPiece {
    Here(Piece),
    /// The bytes of this read.
    Read(u64),
}

impl Held {
    pub(super) fn push(&mut self, piece: Piece) {
        self.pieces.push_back(HeldPiece::Here(piece));
    }

    pub(super) const fn end(&mut self) {
        self.ended = true;
    }
}

/// The memory that two peers have for each other.
#[derive(Default)]
pub(crate) struct Memories {
    /// Ours, that the peer may write to, and that reads go to.
    landing: Option<(Arc<Area>, Export)>,
    /// Ours, that the peer may read.
    pub(super) lending: Option<(Arc<Area>, Export)>,
    /// Theirs, that we may write to.
    pub(super) their_landing: Theirs,
    /// Theirs, that we may read.
    pub(super) their_lending: Theirs,
    /// How large their pieces are.
    their_piece: u32,
    /// Pieces that wait to be read.
    pub(super) lent: VecDeque<Lent>,
    pub(super) reads: Vec<Reading>,
    /// The way of the last large piece.
    by_read: bool,
}

impl Memories {
    /// Whether bytes that were written are still to be read by the peer.
    pub(super) fn has_lent(&self) -> bool {
        let lending = self.lending.as_ref();
        lending.is_some_and(|(area, _)| area.free() < area.pieces())
    }
}

#[derive(Default)]
pub(super) enum Theirs {
    #[default]
    Unknown,
    Importing(PendingImport),
    Here(RemoteSegment),
    /// There is none to be had: everything goes in messages.
    Refused,
}

impl Theirs {
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        let Self::Importing(importing) = self else {
            return;
        };
        match Pin::new(importing).poll(context) {
            Poll::Ready(Ok(segment)) => *self = Self::Here(segment),
            Poll::Ready(Err(_)) => *self = Self::Refused,
            Poll::Pending => {}
        }
    }

    pub(super) const fn here(&self) -> Option<&RemoteSegment> {
        match self {
            Self::Here(segment) => Some(segment),
            _ => None,
        }
    }
}

/// Whether bytes go as large ones.
pub(super) const fn is_large(flags: &mut Flags, way: Way, len: usize, large: u32) -> bool {
    let large = large as usize;
    flags.bulk = match way {
        Way::Message => false,
        Way::Write | Way::Read => len >= FORCED,
        Way::Auto if flags.bulk => len >= large / 2,
        Way::Auto => len >= large,
    };
    flags.bulk
}

pub(super) fn name(what: &str, session: u32) -> String {
    format!("netvm-net-{what}-{session:08x}")
}

impl Core {
    /// What has come for an end behind a read, if there is one.
    pub(super) fn held(&mut self, id: Id) -> Option<&mut Held> {
        let held = &mut self.slots.get(id)?.large.as_deref_mut()?.held;
        (!held.pieces.is_empty()).then_some(held)
    }

    pub(super) fn large(&mut self, id: Id) -> Option<&mut Large> {
        let slot = self.slots.get(id)?;
        Some(slot.large.get_or_insert_default())
    }

    /// Sends one piece by a write or a read, and tells how many bytes that were. `goes_on`: the write before this one was large, too.
    pub(super) fn send_large(
        &mut self,
        engine: &Engine,
        index: usize,
        conn: &Arc<Conn>,
        bytes: &[u8],
        way: Way,
        goes_on: bool,
    ) -> usize {
        if self.chooses_read(index, way) {
            let sent = self.lend(engine, index, conn, bytes);
            if sent > 0 || way == Way::Read {
                return sent;
            }
        }
        let sent = self.write(engine, index, conn, bytes);
        self.ask(index, conn, bytes.len() - sent, goes_on);
        sent
    }

    /// Whether the receiver is to read.
    fn chooses_read(&mut self, index: usize, way: Way) -> bool {
        let load = i32::from(self.load());
        let Some(peer) = self.peer(index) else {
            return false;
        };
        let busier = load - i32::from(peer.load);
        let before = peer.memories.by_read;
        let by_read = match way {
            Way::Read => return true,
            Way::Write | Way::Message => return false,
            Way::Auto if before => busier > 0,
            Way::Auto => busier > BUSIER,
        };
        peer.memories.by_read = by_read;
        self.stats.switches += u64::from(before != by_read);
        by_read
    }

    // ---- by a write ----

    /// Writes into memory that was offered.
    fn write(&mut self, engine: &Engine, index: usize, conn: &Arc<Conn>, bytes: &[u8]) -> usize {
        let Some(Some(peer)) = self.peers.get_mut(index) else {
            return 0;
        };
        let Some(segment) = peer.memories.their_landing.here().cloned() else {
            return 0;
        };
        let piece_bytes = peer.memories.their_piece;
        let node = peer.address.0;
        let Some(large) = self.large(conn.id) else {
            return 0;
        };
        let Some(piece) = large.offers.pop_front() else {
            return 0;
        };
        large.used = engine.port.now();
        let now = &bytes[..bytes.len().min(piece_bytes as usize)];
        let at = u64::from(piece) * u64::from(piece_bytes);
        let mut posted = segment.write(at, now).post();
        for _ in 0..super::TRIES {
            let Err(error) = posted else {
                break;
            };
            self.trouble(node, Some(index), error);
            if self.slots.get(conn.id).is_none() {
                return 0;
            }
            self.pump(index);
            posted = segment.write(at, now).post();
        }
        if posted.is_err() {
            self.tell(conn.id, Kind::Unused, piece, &[]);
            return 0;
        }
        let placed = wire::Piece {
            piece: piece.into(),
            len: (now.len() as u32).into(),
        };
        self.tell(conn.id, Kind::Placed, 0, placed.as_bytes());
        self.stats.by_write += 1;
        self.stats.write_bytes += now.len() as u64;
        now.len()
    }

    /// Asks for memory for what is left, if there is not enough of it, and in the midst of large writes for the next one.
    fn ask(&mut self, index: usize, conn: &Arc<Conn>, left: usize, goes_on: bool) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let piece = peer.memories.their_piece as usize;
        if matches!(peer.memories.their_landing, Theirs::Refused) {
            return;
        }
        let Some(large) = self.large(conn.id) else {
            return;
        };
        let (ready, few) = (large.offers.len() * piece, large.offers.len() < AHEAD / 2);
        let wanted = if goes_on && few {
            left.max(AHEAD * piece)
        } else {
            left
        };
        let lacks = wanted.saturating_sub(ready);
        if large.asked != Asked::No || lacks < FORCED {
            return;
        }
        large.asked = Asked::Out;
        self.tell(conn.id, Kind::Want, u32::try_from(lacks).unwrap_or(u32::MAX), &[]);
    }

    /// Whether the writer waits for the other end's answer: it says soon whether it has memory for what is to be sent. No writer waits for
    /// long: a peer whose threads are all busy elsewhere takes messages as well as ever.
    pub(super) fn awaits_offer(&mut self, engine: &Engine, id: Id) -> bool {
        let Some(large) = self.slots.get(id).and_then(|slot| slot.large.as_deref_mut()) else {
            return false;
        };
        if large.asked == Asked::Out {
            large.asked = Asked::Awaited;
            let at = engine.port.now().after(ANSWER);
            self.awaited.set(id, at);
            self.next_tick = self.next_tick.min(at);
            return true;
        }
        large.asked == Asked::Awaited
    }

    /// Lets writers go on whose answers are late.
    pub(super) fn look_at_awaited(&mut self, now: Nanos) {
        let late = self.awaited.take(now);
        self.next_tick = self.next_tick.min(self.awaited.next());
        for id in late {
            if let Some(slot) = self.slots.get(id)
                && let Some(large) = slot.large.as_deref_mut()
                && large.asked == Asked::Awaited
            {
                large.asked = Asked::Late;
                self.feed(id);
            }
        }
    }

    /// Gives back offers that were not used for long: others may need them.
    pub(super) fn look_at_offered(&mut self, now: Nanos) {
        for id in self.offered.take(now) {
            let Some(slot) = self.slots.get(id) else {
                continue;
            };
            let index = slot.peer as usize;
            let Some(large) = slot.large.as_deref().filter(|large| !large.offers.is_empty()) else {
                continue;
            };
            let until = large.used.after(UNUSED);
            if until > now {
                self.offered.set(id, until);
            } else {
                self.give_up_offers(id);
                self.pump(index);
            }
        }
        self.next_tick = self.next_tick.min(self.offered.next());
    }

    /// The other end is about to send so many bytes.
    pub(super) fn wanted(&mut self, engine: &Engine, index: usize, id: Id, bytes: u32) {
        let area = self.landing(engine, index);
        let Some(large) = self.large(id) else {
            return;
        };
        let none = wire::Piece {
            piece: 0.into(),
            len: 0.into(),
        };
        let Some(area) = area else {
            return self.tell(id, Kind::Offer, 0, none.as_bytes());
        };
        // One connection alone has half of them; there is always something left for another.
        let most = (area.pieces() / 2).max(1).saturating_sub(large.given);
        let most = most.min(area.free().div_ceil(2));
        let count = bytes.div_ceil(area.piece_bytes()).min(most);
        let pieces: Vec<u32> = (0..count).map_while(|_| area.take()).collect();
        large.given += pieces.len() as u32;
        for piece in &pieces {
            let offer = wire::Piece {
                piece: (*piece).into(),
                len: area.piece_bytes().into(),
            };
            self.tell(id, Kind::Offer, *piece, offer.as_bytes());
        }
        if pieces.is_empty() {
            self.tell(id, Kind::Offer, 0, none.as_bytes());
        }
        self.pump(index);
    }

    /// The other end offers a piece, or says that it has none.
    pub(super) fn offered(&mut self, engine: &Engine, index: usize, id: Id, piece: u32, payload: &[u8]) {
        let Ok(offer) = wire::Piece::read_from_bytes(payload) else {
            return;
        };
        let Some(large) = self.large(id) else {
            return;
        };
        large.asked = Asked::No;
        let mut first = false;
        let now = engine.port.now();
        if offer.len.get() > 0 {
            first = large.offers.is_empty();
            large.used = now;
            large.offers.push_back(piece);
        }
        if first {
            self.offered.set(id, now.after(UNUSED));
            self.next_tick = self.next_tick.min(now.after(UNUSED));
        }
        self.awaited.clear(id);
        // The writer may have waited for the answer.
        self.feed(id);
        if offer.len.get() == 0 {
            return;
        }
        let Some(peer) = self.peer(index) else {
            return;
        };
        peer.memories.their_piece = offer.len.get();
        let (address, session) = (peer.address, peer.theirs.unwrap_or(0));
        import(
            &mut peer.memories.their_landing,
            engine,
            address,
            &name("land", session),
            Modes::WRITE,
        );
    }

    pub(super) fn refuse_offer(&mut self, index: usize, piece: u32, payload: &[u8]) {
        if wire::Piece::read_from_bytes(payload).is_ok_and(|offer| offer.len.get() > 0) {
            self.push_to(index, Kind::Unused, Id::default(), piece, &[]);
            self.pump(index);
        }
    }

    /// Gives back what an end was offered and does not need.
    pub(super) fn give_up_offers(&mut self, id: Id) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        let Some(large) = slot.large.as_deref_mut() else {
            return;
        };
        for piece in std::mem::take(&mut large.offers) {
            self.tell(id, Kind::Unused, piece, &[]);
        }
    }

    /// The peer does not need this piece of our memory.
    pub(super) fn unused(&mut self, index: usize, piece: u32) {
        if let Some(area) = self.landing_of(index)
            && piece < area.pieces()
        {
            area.give(piece);
        }
    }

    pub(super) fn landing_of(&mut self, index: usize) -> Option<Arc<Area>> {
        let (area, _) = self.peer(index)?.memories.landing.as_ref()?;
        Some(Arc::clone(area))
    }

    /// Bytes have been written into a piece.
    pub(super) fn placed(&mut self, index: usize, conn: &Arc<Conn>, payload: &[u8]) {
        let Some(landed) = self.landed(index, payload) else {
            return;
        };
        self.given_back(conn.id);
        if landed.len() > 0 && self.counts(index, conn, landed.len()) {
            let piece = self.lay(index, landed);
            match piece {
                Some(piece) => self.deliver(conn, piece),
                None => self.abort(conn),
            }
        }
    }

    /// One piece less is in the hands of this connection's other end.
    pub(super) fn given_back(&mut self, id: Id) {
        if let Some(large) = self.slots.get(id).and_then(|slot| slot.large.as_deref_mut()) {
            large.given = large.given.saturating_sub(1);
        }
    }

    pub(super) fn placed_for_none(&mut self, index: usize, payload: &[u8]) {
        drop(self.landed(index, payload));
    }

    pub(super) fn landed(&mut self, index: usize, payload: &[u8]) -> Option<Landed> {
        let placed = wire::Piece::read_from_bytes(payload).ok()?;
        let area = self.landing_of(index)?;
        let (piece, len) = (placed.piece.get(), placed.len.get());
        (piece < area.pieces() && len <= area.piece_bytes()).then(|| Landed::new(area, piece, len))
    }

    /// Where bytes that have landed stay: in their piece, or, where those are scarce, in a copy.
    pub(super) fn lay(&mut self, index: usize, landed: Landed) -> Option<Piece> {
        let scarce = self.landing_of(index).is_some_and(|area| area.is_scarce());
        if !scarce {
            return Some(Piece::Landed(landed));
        }
        let mut copy = vec![0; landed.len()];
        landed.read_into(0, &mut copy).ok()?;
        Some(Piece::Bytes(copy))
    }

    // ---- memory ----

    /// Our memory that this peer may write to.
    pub(super) fn landing(&mut self, engine: &Engine, index: usize) -> Option<Arc<Area>> {
        let peer = self.peer(index)?;
        if peer.memories.landing.is_none() {
            let name = name("land", peer.ours);
            peer.memories.landing = memory(engine, peer.address, &name, Modes::WRITE);
        }
        self.landing_of(index)
    }

    /// Our memory that this peer may read.
    pub(super) fn lending(&mut self, engine: &Engine, index: usize) -> Option<Arc<Area>> {
        let peer = self.peer(index)?;
        if peer.memories.lending.is_none() {
            let name = name("lend", peer.ours);
            peer.memories.lending = memory(engine, peer.address, &name, Modes::READ);
        }
        let (area, _) = peer.memories.lending.as_ref()?;
        Some(Arc::clone(area))
    }
}

/// Makes memory for one peer.
fn memory(
    engine: &Engine,
    (node, port): wire::PeerAddress,
    name: &str,
    modes: Modes,
) -> Option<(Arc<Area>, Export)> {
    let (pieces, bytes) = (u32::from(engine.config.pieces), engine.config.piece_bytes);
    let region = engine.port.alloc(u64::from(pieces) * u64::from(bytes)).ok()?;
    let access = Access::nobody().and_port(node, port, modes);
    let export = engine.port.export(name, &region, .., access).ok()?;
    Some((Area::new(region, pieces, bytes, engine.weak()), export))
}

/// Begins an import, if that was not done.
pub(super) fn import(
    theirs: &mut Theirs,
    engine: &Engine,
    (node, port): wire::PeerAddress,
    name: &str,
    modes: Modes,
) {
    if matches!(theirs, Theirs::Unknown) {
        let importing = engine
            .port
            .begin_import(node, port, name, modes, Timeout::After(IMPORT));
        *theirs = importing.map_or(Theirs::Refused, Theirs::Importing);
    }
}
