//! Large transfers: by a write into memory that the receiver offers, or by a read of the receiver's.
//!
//! *By a write.* The sender says how much it is about to send. The receiver offers pieces of its memory to the connection. The
//! sender writes into one and says so by a message, which acts after the write has landed.
//!
//! *By a read.* The sender puts the bytes into a piece of its own memory and lends it. The receiver reads it when it has memory
//! for that, and gives the piece back. What comes behind on the connection waits at the receiver until the bytes are there.
//!
//! Which of the two, and whether at all, the sender decides for each piece. What finds no memory goes in messages. All bytes count
//! in the connection's window, so a slow reader holds no more than that. Where memory is scarce, what has arrived is copied out
//! of its piece at once, so a slow reader keeps no piece from other connections.

use super::Core;
use super::slots::Flags;
use crate::config::Way;
use crate::conn::{Conn, Piece};
use crate::engine::Engine;
use crate::large::{Area, Landed};
use crate::wire::{self, Id, Kind};
use netvm::{Access, Export, Modes, Nanos, Pending, PendingImport, RemoteSegment, Timeout};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// From so many bytes on a way that a program forces is taken.
const FORCED: usize = 4 << 10;
/// By how much one end must be busier than the other, of 255, before the way changes.
const HYSTERESIS: i32 = 64;
/// How long an import may take. The other end has exported before it says so.
const IMPORT: Duration = Duration::from_secs(5);
/// After so long a read for which there was no room is tried again.
const PAUSE: Nanos = Nanos::from_micros(100);
/// What a read of a piece is cut into: fewer than 64 messages of 1 KiB each.
const PART: u32 = 32 << 10;

/// What an end has of large transfers under way.
#[derive(Default)]
pub(crate) struct Large {
    /// Pieces of the peer's memory that it may write to.
    offers: VecDeque<u32>,
    /// It has asked for some.
    asked: bool,
    /// Pieces of our memory that were offered to the other end.
    given: u32,
    held: Held,
}

/// What has come behind a read that is under way.
#[derive(Default)]
pub(crate) struct Held {
    pieces: VecDeque<HeldPiece>,
    ended: bool,
}

enum HeldPiece {
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
    lending: Option<(Arc<Area>, Export)>,
    /// Theirs, that we may write to.
    their_landing: Theirs,
    /// Theirs, that we may read.
    their_lending: Theirs,
    /// How large their pieces are.
    their_piece: u32,
    /// Pieces that wait to be read.
    lent: VecDeque<Lent>,
    reads: Vec<Reading>,
    /// The way of the last large piece.
    by_read: bool,
}

#[derive(Default)]
enum Theirs {
    #[default]
    Unknown,
    Importing(PendingImport),
    Here(RemoteSegment),
    /// There is none to be had: everything goes in messages.
    Refused,
}

impl Theirs {
    fn look(&mut self, context: &mut Context<'_>) {
        let Self::Importing(importing) = self else {
            return;
        };
        match Pin::new(importing).poll(context) {
            Poll::Ready(Ok(segment)) => *self = Self::Here(segment),
            Poll::Ready(Err(_)) => *self = Self::Refused,
            Poll::Pending => {}
        }
    }

    const fn here(&self) -> Option<&RemoteSegment> {
        match self {
            Self::Here(segment) => Some(segment),
            _ => None,
        }
    }
}

/// A piece of the peer's memory that is to be read.
struct Lent {
    to: Id,
    number: u64,
    piece: u32,
    /// How large the pieces of that memory are.
    piece_bytes: u32,
    len: u32,
}

/// A read of one.
struct Reading {
    lent: Lent,
    landed: Landed,
    /// Up to where parts were posted.
    posted: u32,
    parts: VecDeque<Pending>,
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

fn name(what: &str, session: u32) -> String {
    format!("netvm-net-{what}-{session:08x}")
}

impl Core {
    /// What has come for an end behind a read, if there is one.
    pub(super) fn held(&mut self, id: Id) -> Option<&mut Held> {
        let held = &mut self.slots.get(id)?.large.as_deref_mut()?.held;
        (!held.pieces.is_empty()).then_some(held)
    }

    fn large(&mut self, id: Id) -> Option<&mut Large> {
        let slot = self.slots.get(id)?;
        Some(slot.large.get_or_insert_default())
    }

    /// Sends one piece by a write or a read, and tells how many bytes that were.
    pub(super) fn send_large(
        &mut self,
        engine: &Engine,
        index: usize,
        conn: &Arc<Conn>,
        bytes: &[u8],
        way: Way,
    ) -> usize {
        if self.chooses_read(index, way) {
            let sent = self.lend(engine, index, conn, bytes);
            if sent > 0 || way == Way::Read {
                return sent;
            }
        }
        let sent = self.write(index, conn, bytes);
        self.ask(index, conn, bytes.len() - sent);
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
            Way::Auto if peer.short_of_memory => true,
            Way::Auto if before => busier > -HYSTERESIS,
            Way::Auto => busier > HYSTERESIS,
        };
        peer.memories.by_read = by_read;
        self.stats.switches += u64::from(before != by_read);
        by_read
    }

    // ---- by a write ----

    /// Writes into memory that was offered.
    fn write(&mut self, index: usize, conn: &Arc<Conn>, bytes: &[u8]) -> usize {
        let Some(Some(peer)) = self.peers.get_mut(index) else {
            return 0;
        };
        let Some(segment) = peer.memories.their_landing.here().cloned() else {
            return 0;
        };
        let piece_bytes = peer.memories.their_piece;
        let node = peer.address.0;
        let Some(piece) = self.large(conn.id).and_then(|large| large.offers.pop_front()) else {
            return 0;
        };
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
            self.push_to(index, Kind::Unused, Id::default(), piece, &[]);
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

    /// Asks for memory for what is left, if there is not enough of it.
    fn ask(&mut self, index: usize, conn: &Arc<Conn>, left: usize) {
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
        let left = left.saturating_sub(large.offers.len() * piece);
        if large.asked || left < FORCED {
            return;
        }
        large.asked = true;
        self.tell(conn.id, Kind::Want, u32::try_from(left).unwrap_or(u32::MAX), &[]);
    }

    /// Whether the other end will say soon whether it has memory for what is to be sent.
    pub(super) fn awaits_offer(&mut self, id: Id) -> bool {
        let large = self.slots.get(id).and_then(|slot| slot.large.as_deref());
        large.is_some_and(|large| large.asked)
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
        large.asked = false;
        if offer.len.get() > 0 {
            large.offers.push_back(piece);
        }
        if let Some(conn) = self.slots.get(id).and_then(|slot| slot.conn.as_ref()) {
            // It may have waited for the answer.
            conn.writer.wake();
        }
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
        let index = slot.peer as usize;
        let Some(large) = slot.large.as_deref_mut() else {
            return;
        };
        for piece in std::mem::take(&mut large.offers) {
            self.push_to(index, Kind::Unused, Id::default(), piece, &[]);
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

    fn landing_of(&mut self, index: usize) -> Option<Arc<Area>> {
        let (area, _) = self.peer(index)?.memories.landing.as_ref()?;
        Some(Arc::clone(area))
    }

    /// Bytes have been written into a piece.
    pub(super) fn placed(&mut self, index: usize, conn: &Arc<Conn>, payload: &[u8]) {
        let Some(landed) = self.landed(index, payload) else {
            return;
        };
        if let Some(large) = self.large(conn.id) {
            large.given = large.given.saturating_sub(1);
        }
        if landed.len() > 0 && self.counts(index, conn, landed.len()) {
            let piece = self.lay(index, landed);
            match piece {
                Some(piece) => self.deliver(conn, piece),
                None => self.abort(conn),
            }
        }
    }

    pub(super) fn placed_for_none(&mut self, index: usize, payload: &[u8]) {
        drop(self.landed(index, payload));
    }

    fn landed(&mut self, index: usize, payload: &[u8]) -> Option<Landed> {
        let placed = wire::Piece::read_from_bytes(payload).ok()?;
        let area = self.landing_of(index)?;
        let (piece, len) = (placed.piece.get(), placed.len.get());
        (piece < area.pieces() && len <= area.piece_bytes()).then(|| Landed::new(area, piece, len))
    }

    /// Where bytes that have landed stay: in their piece, or, where those are scarce, in a copy.
    fn lay(&mut self, index: usize, landed: Landed) -> Option<Piece> {
        let scarce = self.landing_of(index).is_some_and(|area| area.is_scarce());
        if !scarce {
            return Some(Piece::Landed(landed));
        }
        let mut copy = vec![0; landed.len()];
        landed.read_into(0, &mut copy).ok()?;
        Some(Piece::Bytes(copy))
    }

    // ---- by a read ----

    /// Puts bytes into our memory and lends it.
    fn lend(&mut self, engine: &Engine, index: usize, conn: &Arc<Conn>, bytes: &[u8]) -> usize {
        let Some(area) = self.lending(engine, index) else {
            return 0;
        };
        let Some(piece) = area.take() else {
            return 0;
        };
        let theirs = self.peer(index).map_or(0, |peer| peer.piece_bytes);
        let now = &bytes[..bytes.len().min(area.piece_bytes().min(theirs) as usize)];
        if area.region().write_from(area.offset(piece), now).is_err() {
            area.give(piece);
            return 0;
        }
        let lent = wire::Piece {
            piece: piece.into(),
            len: (now.len() as u32).into(),
        };
        self.tell(conn.id, Kind::Lend, area.piece_bytes(), lent.as_bytes());
        self.stats.by_read += 1;
        self.stats.read_bytes += now.len() as u64;
        now.len()
    }

    /// The peer has read a piece.
    pub(super) fn returned(&mut self, index: usize, piece: u32) {
        let lending = self.peer(index).and_then(|peer| peer.memories.lending.as_ref());
        if let Some((area, _)) = lending
            && piece < area.pieces()
        {
            area.give(piece);
        }
    }

    /// The other end lends a piece of its memory.
    pub(super) fn lent(
        &mut self,
        engine: &Engine,
        index: usize,
        conn: &Arc<Conn>,
        piece_bytes: u32,
        payload: &[u8],
    ) {
        let Ok(piece) = wire::Piece::read_from_bytes(payload) else {
            return;
        };
        let number = self.next_read;
        self.next_read += 1;
        if piece.len.get() > engine.config.piece_bytes {
            // It was told how large a piece is here.
            return self.abort(conn);
        }
        if piece.len.get() == 0 || !self.counts(index, conn, piece.len.get() as usize) {
            return self.lent_for_none(index, payload);
        }
        if let Some(large) = self.large(conn.id) {
            large.held.pieces.push_back(HeldPiece::Read(number));
        }
        // Made now, so that reads have where to go.
        let _ = self.landing(engine, index);
        let Some(peer) = self.peer(index) else {
            return;
        };
        let (address, session) = (peer.address, peer.theirs.unwrap_or(0));
        import(
            &mut peer.memories.their_lending,
            engine,
            address,
            &name("lend", session),
            Modes::READ,
        );
        peer.memories.lent.push_back(Lent {
            to: conn.id,
            number,
            piece: piece.piece.get(),
            piece_bytes,
            len: piece.len.get(),
        });
    }

    pub(super) fn lent_for_none(&mut self, index: usize, payload: &[u8]) {
        if let Ok(piece) = wire::Piece::read_from_bytes(payload) {
            self.push_to(index, Kind::Return, Id::default(), piece.piece.get(), &[]);
            self.pump(index);
        }
    }

    /// Looks at reads, and begins those that there is memory for.
    pub(super) fn look_at_memories(&mut self, engine: &Engine, index: usize, context: &mut Context<'_>) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let memories = &mut peer.memories;
        memories.their_landing.look(context);
        if memories.lent.is_empty() && memories.reads.is_empty() {
            return;
        }
        memories.their_lending.look(context);
        if matches!(memories.their_lending, Theirs::Refused) {
            // The bytes cannot be had.
            return self.lose_for_memory(engine, index);
        }
        let Some(segment) = memories.their_lending.here().cloned() else {
            return;
        };
        self.begin_reads(index);
        let Some(peer) = self.peer(index) else {
            return;
        };
        let mut ended = Vec::new();
        let (mut failed, mut again) = (None, false);
        for (at, read) in peer.memories.reads.iter_mut().enumerate() {
            match read.go_on(&segment, context) {
                Err(error) => failed = Some(error),
                Ok(lacks) => again |= lacks,
            }
            if failed.is_none() && read.posted == read.lent.len && read.parts.is_empty() {
                ended.push(at);
            }
        }
        let node = peer.address.0;
        let ended: Vec<Reading> = ended
            .into_iter()
            .rev()
            .map(|at| peer.memories.reads.swap_remove(at))
            .collect();
        if again {
            self.next_tick = self.next_tick.min(engine.port.now().after(PAUSE));
        }
        for read in ended {
            self.has_read(index, read);
        }
        if let Some(error) = failed {
            self.trouble(node, Some(index), error);
            self.lose_for_memory(engine, index);
        }
    }

    fn lose_for_memory(&mut self, engine: &Engine, index: usize) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let (address, theirs) = (peer.address, peer.theirs.unwrap_or(0));
        self.lose(index, wire::Reason::PeerLost);
        self.farewell(engine, address, theirs, wire::Reason::PeerLost);
    }

    /// Begins to read what was lent, as far as there is memory for it.
    fn begin_reads(&mut self, index: usize) {
        let Some(area) = self.landing_of(index) else {
            return;
        };
        let Some(peer) = self.peer(index) else {
            return;
        };
        let Memories { lent, reads, .. } = &mut peer.memories;
        while let Some(next) = lent.pop_front() {
            let Some(piece) = area.take() else {
                area.want();
                lent.push_front(next);
                break;
            };
            let landed = Landed::new(Arc::clone(&area), piece, next.len);
            reads.push(Reading {
                lent: next,
                landed,
                posted: 0,
                parts: VecDeque::new(),
            });
        }
    }

    /// The bytes of a read are there.
    fn has_read(&mut self, index: usize, read: Reading) {
        let Reading { lent, landed, .. } = read;
        self.push_to(index, Kind::Return, Id::default(), lent.piece, &[]);
        let piece = self.lay(index, landed);
        let Some(slot) = self.slots.get(lent.to) else {
            return;
        };
        let (Some(conn), Some(large)) = (slot.conn.clone(), slot.large.as_deref_mut()) else {
            return;
        };
        let Some(piece) = piece else {
            return self.abort(&conn);
        };
        let held = &mut large.held;
        for place in &mut held.pieces {
            if matches!(place, HeldPiece::Read(number) if *number == lent.number) {
                *place = HeldPiece::Here(piece);
                break;
            }
        }
        while let Some(HeldPiece::Here(_)) = held.pieces.front() {
            if let Some(HeldPiece::Here(piece)) = held.pieces.pop_front() {
                conn.deliver(piece);
            }
        }
        if held.pieces.is_empty() && std::mem::take(&mut held.ended) {
            conn.end();
        }
    }

    // ---- memory ----

    /// Our memory that this peer may write to.
    fn landing(&mut self, engine: &Engine, index: usize) -> Option<Arc<Area>> {
        let peer = self.peer(index)?;
        if peer.memories.landing.is_none() {
            let name = name("land", peer.ours);
            peer.memories.landing = memory(engine, peer.address, &name, Modes::WRITE);
        }
        self.landing_of(index)
    }

    /// Our memory that this peer may read.
    fn lending(&mut self, engine: &Engine, index: usize) -> Option<Arc<Area>> {
        let peer = self.peer(index)?;
        if peer.memories.lending.is_none() {
            let name = name("lend", peer.ours);
            peer.memories.lending = memory(engine, peer.address, &name, Modes::READ);
        }
        let (area, _) = peer.memories.lending.as_ref()?;
        Some(Arc::clone(area))
    }
}

impl Reading {
    /// Posts what is not posted, and looks at what is. Tells whether it is to be called again for want of room, though nothing of
    /// it is under way.
    fn go_on(&mut self, segment: &RemoteSegment, context: &mut Context<'_>) -> netvm::Result<bool> {
        let mut lacks = false;
        while self.posted < self.lent.len {
            let len = PART.min(self.lent.len - self.posted);
            let from = u64::from(self.lent.piece) * u64::from(self.lent.piece_bytes) + u64::from(self.posted);
            let into = self.landed.part(self.posted, len)?;
            match segment.read(from, &into).begin() {
                Ok(part) => self.parts.push_back(part),
                Err(netvm::Error::NoRoom { .. }) => {
                    lacks = self.parts.is_empty();
                    break;
                }
                Err(error) => return Err(error),
            }
            self.posted += len;
        }
        while let Some(part) = self.parts.front_mut() {
            match Pin::new(part).poll(context) {
                Poll::Ready(end) => {
                    self.parts.pop_front();
                    end?;
                }
                Poll::Pending => break,
            }
        }
        Ok(lacks)
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
fn import(theirs: &mut Theirs, engine: &Engine, (node, port): wire::PeerAddress, name: &str, modes: Modes) {
    if matches!(theirs, Theirs::Unknown) {
        let importing = engine
            .port
            .begin_import(node, port, name, modes, Timeout::After(IMPORT));
        *theirs = importing.map_or(Theirs::Refused, Theirs::Importing);
    }
}
