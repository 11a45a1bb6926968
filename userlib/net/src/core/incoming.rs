//! What comes from peers.

use super::slots::Slot;
use super::{Core, Stage};
use crate::conn::{Conn, Piece};
use crate::engine::Engine;
use crate::wire::{HEADER, Header, Id, Kind, Opening, Part, PeerAddress, Reason, VERSION};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Messages that are taken before anything else has its turn.
const BATCH: u32 = 256;
/// Messages that may wait for a peer to take those before them, beside four for each connection.
const OWED: usize = 1 << 16;

impl Core {
    /// Takes what is in the queue. Tells whether there was something.
    pub(super) fn receive(&mut self, engine: &Engine) -> bool {
        if self.ended {
            return false;
        }
        if engine.arrived.pending() == 0 {
            return false;
        }
        let mut taken = 0;
        loop {
            let message = match self.queue.try_recv() {
                Ok(Some(message)) => message,
                Ok(None) => return true,
                Err(_) => break,
            };
            let from = message.sender();
            let read = || {
                let head: [u8; HEADER] = message.array(0)?;
                let head = Header::read_from_bytes(&head).unwrap_or_default();
                let mut payload = vec![0; message.len() - HEADER];
                if !payload.is_empty() {
                    message.read_into(HEADER as u64, &mut payload)?;
                }
                Ok::<_, netvm::Error>((head, payload))
            };
            let read = if message.len() < HEADER {
                None
            } else {
                Some(read())
            };
            drop(message);
            self.stats.received += 1;
            match read {
                Some(Ok((header, payload))) => self.handle(engine, from, &header, payload),
                Some(Err(_)) => {
                    // What it said cannot be had any more, and will not be said again.
                    if let Some(&index) = self.by_address.get(&from) {
                        let theirs = self.peer(index).and_then(|peer| peer.theirs);
                        self.lose(index, Reason::PeerLost);
                        self.farewell(engine, from, theirs.unwrap_or(0), Reason::PeerLost);
                    }
                }
                None => self.stats.ignored += 1,
            }
            taken += 1;
            if taken == BATCH {
                return true;
            }
        }
        self.close();
        true
    }

    fn handle(&mut self, engine: &Engine, from: PeerAddress, header: &Header, payload: Vec<u8>) {
        let known = self.by_address.get(&from).copied();
        let kind = Kind::of(header.kind);
        let (Some(kind), VERSION) = (kind, header.version) else {
            self.stats.ignored += 1;
            return self.foreign(engine, known, from, header);
        };
        let session = header.session.get();
        let Some(index) = known else {
            return match kind {
                Kind::Hello => self.meet(engine, from, header),
                Kind::Bye => {}
                _ => self.farewell(engine, from, session, Reason::PeerLost),
            };
        };
        let now = engine.port.now();
        let Some(peer) = self.peer(index) else {
            return;
        };
        let of_session = peer.theirs == Some(session);
        if kind == Kind::Bye {
            let reason = Reason::of(header.consumed.get() as u8);
            if of_session || header.value.get() == peer.ours {
                self.lose(
                    index,
                    match reason {
                        Reason::Full | Reason::Left => reason,
                        _ => Reason::PeerLost,
                    },
                );
            }
            return;
        }
        if !of_session {
            if kind == Kind::Hello && peer.theirs.is_none() {
                peer.last_heard = now;
                return self.greeted_by(index, header);
            }
            if kind == Kind::Hello {
                // It has begun anew.
                self.lose(index, Reason::PeerLost);
                return self.meet(engine, from, header);
            }
            if peer.theirs.is_some() {
                return self.farewell(engine, from, session, Reason::PeerLost);
            }
            // It is the last word of a session before.
            self.stats.ignored += 1;
            return;
        }
        peer.last_heard = now;
        peer.unanswered = 0;
        peer.load = header.load;
        if kind.is_numbered() {
            if header.number.get() != peer.heard {
                // It has come before, or what is before it comes again.
                self.stats.ignored += 1;
                return;
            }
            peer.heard = peer.heard.wrapping_add(1);
            if peer.owes() > OWED + 4 * peer.connections as usize {
                // It asks and takes no answers.
                self.lose(index, Reason::PeerLost);
                return self.farewell(engine, from, session, Reason::PeerLost);
            }
        }
        self.took(index, header.taken.get());
        self.act(engine, index, kind, header, payload);
    }

    /// A message that is none of this version.
    fn foreign(&mut self, engine: &Engine, known: Option<usize>, from: PeerAddress, header: &Header) {
        let Some(index) = known else {
            return self.farewell(engine, from, header.session.get(), Reason::NotOurs);
        };
        let stage = self.peer(index).map(|peer| peer.stage);
        if stage != Some(Stage::Known) {
            self.lose(index, Reason::NotOurs);
        }
    }

    /// The peer has taken so many of our messages.
    fn took(&mut self, index: usize, taken: u32) {
        let Self { peers, spare, .. } = self;
        let Some(Some(peer)) = peers.get_mut(index) else {
            return;
        };
        if peer.took(taken, spare) {
            let waits = !peer.starved.is_empty();
            if peer.has_unposted() {
                self.pump(index);
            }
            if waits {
                self.wake_starved(index);
            }
        }
    }

    fn act(&mut self, engine: &Engine, index: usize, kind: Kind, header: &Header, payload: Vec<u8>) {
        match kind {
            Kind::Hello | Kind::Bye | Kind::Credit | Kind::Answer => return,
            Kind::Probe => return self.say(index, Kind::Answer, 0),
            Kind::Open => return self.asked_to_open(engine, index, header, &payload),
            Kind::Return => return self.returned(index, header.value.get()),
            Kind::Data if header.value.get() != 0 => return self.parts(index, header, &payload),
            _ => {}
        }
        let id = header.to;
        let of_peer = |slot: &&mut Slot| slot.peer as usize == index;
        let Some(slot) = self.slots.get(id).filter(of_peer) else {
            return self.for_none(index, kind, header, &payload);
        };
        let Some(conn) = slot.conn.clone() else {
            return;
        };
        if !slot.flags.opening {
            conn.allow(header.consumed.get().wrapping_add(slot.window));
        }
        match kind {
            Kind::Accept => self.accepted(index, &conn, &payload),
            Kind::Refuse => {
                self.free(index, id);
                conn.reset(Reason::of(header.value.get() as u8));
            }
            Kind::Data if !payload.is_empty() && self.counts(index, &conn, payload.len()) => {
                self.deliver(&conn, Piece::Bytes(payload));
            }
            Kind::End => {
                if let Some(slot) = self.slots.get(id) {
                    slot.flags.end_heard = true;
                }
                self.ended(&conn);
                self.free_if_over(id);
            }
            Kind::Reset => {
                self.free(index, id);
                conn.reset(Reason::Reset);
                self.stats.resets += 1;
            }
            Kind::Want => self.wanted(engine, index, id, header.value.get()),
            Kind::Offer => self.offered(engine, index, id, header.value.get(), &payload),
            Kind::Placed => self.placed(index, &conn, &payload),
            Kind::Unused => {
                self.unused(index, header.value.get());
                self.given_back(id);
            }
            Kind::Lend => self.lent(engine, index, &conn, header.value.get(), &payload),
            _ => {}
        }
    }

    /// Bytes of several connections in one message.
    fn parts(&mut self, index: usize, header: &Header, payload: &[u8]) {
        let (mut to, mut consumed, mut len) = (header.to, header.consumed, header.value);
        let mut rest = payload;
        while let Some((bytes, behind)) = rest.split_at_checked(len.get() as usize) {
            self.part(index, to, consumed.get(), bytes);
            let Ok((part, behind)) = Part::read_from_prefix(behind) else {
                self.stats.ignored += u64::from(!behind.is_empty());
                return;
            };
            (to, consumed, len, rest) = (part.to, part.consumed, part.len, behind);
        }
        self.stats.ignored += 1;
    }

    fn part(&mut self, index: usize, to: Id, consumed: u32, bytes: &[u8]) {
        let of_peer = |slot: &&mut Slot| slot.peer as usize == index && !slot.flags.opening;
        let Some(slot) = self.slots.get(to).filter(of_peer) else {
            self.stats.ignored += 1;
            return;
        };
        let Some(conn) = slot.conn.clone() else {
            return;
        };
        conn.allow(consumed.wrapping_add(slot.window));
        if !bytes.is_empty() && self.counts(index, &conn, bytes.len()) {
            self.deliver(&conn, Piece::Bytes(bytes.to_vec()));
        }
    }

    /// A message to an end that is not there any more.
    fn for_none(&mut self, index: usize, kind: Kind, header: &Header, payload: &[u8]) {
        match kind {
            Kind::Accept => {
                // The program has given the connection up.
                if let Ok(opening) = Opening::read_from_bytes(payload) {
                    self.push_to(index, Kind::Reset, opening.from, 0, &[]);
                    self.pump(index);
                }
            }
            Kind::Offer => self.refuse_offer(index, header.value.get(), payload),
            Kind::Placed => self.placed_for_none(index, payload),
            Kind::Unused => self.unused(index, header.value.get()),
            Kind::Lend => self.lent_for_none(index, payload),
            _ => self.stats.ignored += 1,
        }
    }

    fn asked_to_open(&mut self, engine: &Engine, index: usize, header: &Header, payload: &[u8]) {
        let Ok(opening) = Opening::read_from_bytes(payload) else {
            self.stats.ignored += 1;
            return;
        };
        let service = u16::try_from(header.value.get()).unwrap_or(0);
        let refusal = match self.listeners.get(&service) {
            None => Some(Reason::NoListener),
            Some(waiting) if waiting.is_full() => Some(Reason::Backlog),
            Some(_) => None,
        };
        if let Some(reason) = refusal {
            self.push_to(index, Kind::Refuse, opening.from, reason as u32, &[]);
            return self.pump(index);
        }
        let conn = self.make(index, service, true);
        if let Some(slot) = self.slots.get(conn.id) {
            slot.to = opening.from;
            slot.window = opening.window.get();
        }
        conn.connect(opening.window.get());
        self.stats.opened += 1;
        let answer = Opening {
            from: conn.id,
            window: engine.config.window.into(),
        };
        self.push_to(index, Kind::Accept, opening.from, 0, answer.as_bytes());
        self.pump(index);
        if let Some(waiting) = self.listeners.get(&service) {
            waiting.push(conn);
        }
    }

    fn accepted(&mut self, index: usize, conn: &Arc<Conn>, payload: &[u8]) {
        let (Ok(opening), Some(slot)) = (Opening::read_from_bytes(payload), self.slots.get(conn.id)) else {
            return;
        };
        if !std::mem::take(&mut slot.flags.opening) {
            return;
        }
        slot.to = opening.from;
        slot.window = opening.window.get();
        self.stats.opened += 1;
        conn.connect(opening.window.get());
        self.pump(index);
    }

    /// Counts bytes that have come. False: nothing is to be done with them.
    pub(super) fn counts(&mut self, index: usize, conn: &Arc<Conn>, len: usize) -> bool {
        let window = self.window;
        let Some(slot) = self.slots.get(conn.id) else {
            return false;
        };
        slot.received = slot.received.wrapping_add(len as u32);
        let unread = slot.received.wrapping_sub(conn.consumed());
        if unread > window {
            // It keeps to no window: a peer that is none of ours, or is broken.
            self.abort(conn);
            return false;
        }
        if !slot.flags.reader_gone {
            return true;
        }
        if slot.flags.writer_gone {
            self.abort(conn);
        } else if conn.consume(len) >= window / 2 {
            self.tell(conn.id, Kind::Window, 0, &[]);
            self.pump(index);
        }
        false
    }

    /// Hands a piece to the reader, behind those that are still being read.
    pub(super) fn deliver(&mut self, conn: &Arc<Conn>, piece: Piece) {
        if let Some(held) = self.held(conn.id) {
            held.push(piece);
        } else {
            conn.deliver(piece);
        }
    }

    /// The other end sends no more.
    fn ended(&mut self, conn: &Arc<Conn>) {
        if let Some(held) = self.held(conn.id) {
            held.end();
        } else {
            conn.end();
        }
    }
}
