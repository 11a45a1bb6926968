//! What programs ask of connections: to be made, to carry bytes, to end.

use super::peer::Stage;
use super::slots::Slot;
use super::{Address, Core};
use crate::config::Way;
use crate::conn::Conn;
use crate::engine::Engine;
use crate::error;
use crate::listener::Waiting;
use crate::wire::{HEADER, Header, Id, Kind, Opening, Reason};
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The most bytes of a program that a message carries.
const CARRIES: usize = 4096 - HEADER;

impl Core {
    /// Gives a listener this number, or any for 0.
    pub(crate) fn listen(
        &mut self,
        service: u16,
        backlog: usize,
        engine: &Engine,
    ) -> io::Result<Arc<Waiting>> {
        if self.ended {
            return Err(Reason::Closed.error());
        }
        let number = if service == 0 {
            self.free_service()?
        } else {
            service
        };
        match self.listeners.entry(number) {
            Entry::Occupied(_) => Err(error::error(
                ErrorKind::AddrInUse,
                "another listener of this network has the number: choose another one, or 0 for any",
            )),
            Entry::Vacant(entry) => {
                let waiting = Arc::new(Waiting::new(number, backlog, engine.weak()));
                Ok(Arc::clone(entry.insert(waiting)))
            }
        }
    }

    fn free_service(&mut self) -> io::Result<u16> {
        for _ in super::FIRST_FREE..=u16::MAX {
            let number = self.next_service;
            self.next_service = number.checked_add(1).unwrap_or(super::FIRST_FREE);
            if !self.listeners.contains_key(&number) {
                return Ok(number);
            }
        }
        Err(error::error(
            ErrorKind::AddrInUse,
            "all numbers that a listener gets by itself are in use",
        ))
    }

    /// Begins a connection.
    pub(crate) fn connect(&mut self, engine: &Engine, address: Address) -> io::Result<Arc<Conn>> {
        if self.ended {
            return Err(Reason::Closed.error());
        }
        let peer = self.acquaint(engine, (address.node, address.port))?;
        self.doubt_if_idle(peer);
        let conn = self.make(peer, address.service, false);
        if let Some(slot) = self.slots.get(conn.id) {
            slot.flags.opening = true;
        }
        if self.peer(peer).is_some_and(|peer| peer.stage == Stage::Known) {
            self.open(peer, conn.id);
            self.pump(peer);
        } else if let Some(peer) = self.peer(peer) {
            peer.opening.push(conn.id);
        }
        self.next_tick = self.next_tick.min(engine.port.now());
        Ok(conn)
    }

    /// A peer without connections is not watched: another process may have its node and port by now. So it is asked, and after the
    /// question whether that has landed, which fails then.
    fn doubt_if_idle(&mut self, index: usize) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        if peer.connections == 0 && peer.sender.is_some() {
            peer.unsure = true;
            self.say(index, Kind::Probe, 0);
        }
    }

    /// A new end.
    pub(super) fn make(&mut self, index: usize, service: u16, accepted: bool) -> Arc<Conn> {
        let address = match self.peer(index) {
            Some(peer) => {
                peer.connections += 1;
                peer.address
            }
            None => Default::default(),
        };
        self.slots
            .insert(index, |id| Conn::new(id, address, service, accepted))
    }

    /// Asks the peer for the other end.
    pub(super) fn open(&mut self, index: usize, id: Id) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        let Some(conn) = &slot.conn else {
            return;
        };
        let service = u32::from(conn.service);
        let opening = Opening {
            from: id,
            window: self.window.into(),
        };
        self.push_to(index, Kind::Open, Id::default(), service, opening.as_bytes());
    }

    /// Says something of a connection to its other end.
    pub(super) fn tell(&mut self, id: Id, kind: Kind, value: u32, payload: &[u8]) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        let (Some(conn), index, to) = (&slot.conn, slot.peer as usize, slot.to) else {
            return;
        };
        let consumed = conn.tell_consumed();
        let Some(peer) = self.peer(index) else {
            return;
        };
        let header = Header {
            consumed: consumed.into(),
            value: value.into(),
            ..peer.header(kind, to)
        };
        self.push(index, &header, payload);
    }

    fn peer_of(&mut self, conn: &Conn) -> Option<(usize, &mut Slot)> {
        let slot = self.slots.get(conn.id)?;
        Some((slot.peer as usize, slot))
    }

    /// Sends as many of a program's bytes as there is room for at the peer, and tells how many. If none, the writer is woken when
    /// there is room.
    pub(crate) fn send(&mut self, engine: &Engine, conn: &Arc<Conn>, bytes: &[u8], way: Way) -> usize {
        let Some((index, slot)) = self.peer_of(conn) else {
            return 0;
        };
        let promised = std::mem::take(&mut slot.flags.promised);
        let before = slot.flags.bulk;
        let large = super::large::is_large(&mut slot.flags, way, bytes.len(), engine.config.large);
        let Some(peer) = self.peer(index) else {
            return 0;
        };
        if promised {
            peer.promised = peer.promised.saturating_sub(1);
        }
        let waiting = super::gather::room(&engine.config, peer);
        let mut room = peer.room().saturating_sub(peer.promised).max(waiting);
        let mut sent = 0;
        if room > 0 && large {
            sent = self.send_large(engine, index, conn, bytes, way, before);
            let left = self
                .peer(index)
                .map_or(0, |peer| peer.room().saturating_sub(peer.promised));
            room = room.min(left);
        }
        if sent == 0 && large && self.awaits_offer(engine, conn.id) {
            // It is soon known which way the bytes go; the writer is woken then, and has no room until then.
            conn.starve();
            self.pump(index);
            return 0;
        }
        let mut gathers = false;
        if sent == 0 {
            let carries = self.carries(index);
            if self.add_to_last(index, conn, bytes, carries) {
                sent = bytes.len();
            } else {
                // What is gathered and full leaves.
                self.pump(index);
                for part in bytes.chunks(carries).take(room as usize) {
                    self.tell(conn.id, Kind::Data, 0, part);
                    sent += part.len();
                }
            }
            self.stats.by_message += u64::from(sent > 0);
            self.stats.message_bytes += sent as u64;
            gathers = sent > 0 && self.gathers(engine, index, bytes.len());
        }
        if !gathers {
            self.pump(index);
        }
        if sent == 0 && conn.over().is_none() {
            self.starve(index, conn.id);
        }
        sent
    }

    /// How many bytes of a program a message to this peer carries.
    fn carries(&mut self, index: usize) -> usize {
        let sender = self.peer(index).and_then(|peer| peer.sender.as_ref());
        let most = sender.map_or(CARRIES, |sender| sender.message_bytes() as usize);
        most.saturating_sub(HEADER).clamp(1, CARRIES)
    }

    /// Sends what another thread has handed over: for these bytes there was room in the connection's window.
    pub(super) fn send_all(&mut self, engine: &Engine, conn: &Arc<Conn>, bytes: &[u8], way: Way) {
        let Some((index, slot)) = self.peer_of(conn) else {
            return;
        };
        let before = slot.flags.bulk;
        let large = super::large::is_large(&mut slot.flags, way, bytes.len(), engine.config.large);
        self.stats.handed_over += 1;
        let mut rest = bytes;
        while large && !rest.is_empty() {
            match self.send_large(engine, index, conn, rest, way, before) {
                0 => break,
                sent => rest = &rest[sent..],
            }
        }
        if !rest.is_empty() {
            let carries = self.carries(index);
            for part in rest.chunks(carries) {
                self.tell(conn.id, Kind::Data, 0, part);
            }
            self.stats.by_message += 1;
            self.stats.message_bytes += rest.len() as u64;
        }
        self.pump(index);
    }

    /// The writer is to be woken when there is room at its peer.
    fn starve(&mut self, index: usize, id: Id) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        if let Some(conn) = &slot.conn {
            conn.starve();
        }
        if std::mem::replace(&mut slot.flags.starved, true) {
            return;
        }
        if let Some(peer) = self.peer(index) {
            peer.starved.push_back(id.slot.get());
        }
        // There may be room that was promised to others.
        self.unsure = true;
    }

    /// Wakes as many of those that wait for room as there is room for, those first that have waited longest.
    pub(super) fn wake_starved(&mut self, index: usize) {
        loop {
            let Some(peer) = self.peer(index) else {
                return;
            };
            if peer.room() <= peer.promised {
                return;
            }
            let Some(row) = peer.starved.pop_front() else {
                return;
            };
            let Some(slot) = self.slots.at(row) else {
                continue;
            };
            // The row may be another connection's by now: that looks once for nothing.
            if slot.peer as usize != index || !std::mem::take(&mut slot.flags.starved) {
                continue;
            }
            let Some(conn) = slot.conn.clone() else {
                continue;
            };
            slot.flags.promised = true;
            if let Some(peer) = self.peer(index) {
                peer.promised += 1;
            }
            conn.feed();
        }
    }

    /// What its writer waited for is there, or comes too late: it looks again, unless it waits for places at its peer.
    pub(super) fn feed(&mut self, id: Id) {
        if let Some(slot) = self.slots.get(id)
            && !slot.flags.starved
            && let Some(conn) = &slot.conn
        {
            conn.feed();
        }
    }

    /// The other end is to know what the program has read.
    pub(super) fn tell_window(&mut self, conn: &Conn) {
        let Some((index, slot)) = self.peer_of(conn) else {
            return;
        };
        if slot.flags.end_heard {
            return;
        }
        self.tell(conn.id, Kind::Window, 0, &[]);
        self.pump(index);
    }

    /// No more bytes come from the program.
    pub(super) fn end(&mut self, conn: &Conn) {
        let Some((index, slot)) = self.peer_of(conn) else {
            return;
        };
        if slot.flags.opening || std::mem::replace(&mut slot.flags.end_sent, true) {
            return;
        }
        self.give_up_offers(conn.id);
        self.tell(conn.id, Kind::End, 0, &[]);
        self.pump(index);
        self.free_if_over(conn.id);
    }

    /// The program reads no more.
    pub(super) fn reader_gone(&mut self, conn: &Conn) {
        if let Some((_, slot)) = self.peer_of(conn) {
            slot.flags.reader_gone = true;
            self.free_if_over(conn.id);
        }
    }

    /// The program writes no more.
    pub(super) fn writer_gone(&mut self, conn: &Conn) {
        let Some((index, slot)) = self.peer_of(conn) else {
            return;
        };
        slot.flags.writer_gone = true;
        if slot.flags.opening {
            // The peer's answer finds no end, and is answered by a reset.
            self.free(index, conn.id);
        } else {
            self.end(conn);
            self.free_if_over(conn.id);
        }
    }

    /// The connection ends at once, with a word to the other end.
    pub(super) fn abort(&mut self, conn: &Conn) {
        let Some((index, slot)) = self.peer_of(conn) else {
            return;
        };
        conn.reset(Reason::Reset);
        let opening = slot.flags.opening;
        self.give_up_offers(conn.id);
        if !opening {
            self.tell(conn.id, Kind::Reset, 0, &[]);
        }
        self.free(index, conn.id);
        self.stats.resets += 1;
        self.pump(index);
    }

    /// Takes an end out of the table when both sides have said all.
    pub(super) fn free_if_over(&mut self, id: Id) {
        let Some(slot) = self.slots.get(id) else {
            return;
        };
        let flags = slot.flags;
        let index = slot.peer as usize;
        if flags.end_sent && flags.end_heard && flags.writer_gone && flags.reader_gone {
            self.free(index, id);
        }
    }

    /// Takes an end out of the table.
    pub(super) fn free(&mut self, index: usize, id: Id) {
        self.give_up_offers(id);
        let Some(slot) = self.slots.remove(id) else {
            return;
        };
        if let Some(peer) = self.peer(index) {
            peer.connections = peer.connections.saturating_sub(1);
            if slot.flags.promised {
                peer.promised = peer.promised.saturating_sub(1);
            }
            if slot.flags.opening {
                peer.opening.retain(|other| *other != id);
            }
        }
        self.wake_starved(index);
    }
}
