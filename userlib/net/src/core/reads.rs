//! Large transfers by a read of the receiver's.

use super::Core;
use super::large::{HeldPiece, Memories, Theirs, import, name};
use crate::conn::Conn;
use crate::engine::Engine;
use crate::large::Landed;
use crate::wire::{self, Id, Kind};
use netvm::{Modes, Nanos, Pending, RemoteSegment};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use zerocopy::{FromBytes, IntoBytes};

/// After so long a read for which there was no room is tried again.
const PAUSE: Nanos = Nanos::from_micros(100);
/// What a read of a piece is cut into: fewer than 64 messages of 1 KiB each.
const PART: u32 = 32 << 10;

/// A piece of the peer's memory that is to be read.
pub(super) struct Lent {
    to: Id,
    number: u64,
    piece: u32,
    /// How large the pieces of that memory are.
    piece_bytes: u32,
    len: u32,
}

/// A read of one.
pub(super) struct Reading {
    lent: Lent,
    landed: Landed,
    /// Up to where parts were posted.
    posted: u32,
    parts: VecDeque<Pending>,
}

impl Core {
    /// Puts bytes into our memory and lends it.
    pub(super) fn lend(&mut self, engine: &Engine, index: usize, conn: &Arc<Conn>, bytes: &[u8]) -> usize {
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
