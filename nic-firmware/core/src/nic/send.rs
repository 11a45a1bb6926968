//! A port's command queue as a stream: commands are copied, get their resources, are staged ahead, and leave
//! ([`super::leave`]) in the order in which they were posted.
//!
//! The order of resources is the same for all: a window slot of the destination (a credit), a read
//! slot for round trips, a staging buffer. An entry that lacks one holds the stream behind it, and
//! nothing of other ports. No page lock is held here: only while a DMA runs ([`crate::dmas`]).

use super::Nic;
use crate::counters::Counters;
use crate::pipeline::{Entry, PIPELINE, Source, Stage};
use crate::platform::Platform;
use crate::ports::{Looked, News, Port};
use crate::windows::Wanted;
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::command_queue::Doorbell;
use netvm_abi::descriptor::HEAD_WORDS;
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::words::Part;
use netvm_abi::{Nanos, PortId};

/// What a port's turn brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Turn {
    /// Something moved.
    moved: bool,
    /// A command got all that it needs.
    served: bool,
    /// Commands are left that could be taken at once.
    more: bool,
}

impl<S: Storage> Nic<S> {
    /// Gives an open port, in which a look has found this, its turn. Returns whether something moved.
    #[inline(always)]
    pub(super) fn serve<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, news: News) -> bool {
        let waiting = match news.commands() {
            Some(waiting) => waiting,
            None => self.take_note(p, id),
        };
        let sent = waiting != 0 && self.send_straight(p, now, id);
        // Nearly always it is one command, and it has left.
        if sent && waiting == 1 {
            self.ports.end_turn(id, true, false);
            return true;
        }
        self.pump(p, now, id, waiting - u32::from(sent), sent)
    }

    /// The rest of a turn: of the `waiting` commands, before which one may have been `sent`.
    #[inline(never)]
    fn pump<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, waiting: u32, sent: bool) -> bool {
        let turn = self.take_turn(p, now, id, waiting, sent);
        self.ports.end_turn(id, turn.served, turn.more);
        turn.moved
    }

    /// Takes up to [`PIPELINE`] of the `waiting` commands of a port (one less, if one has been `sent`), and lets go what
    /// can leave.
    #[inline(always)]
    fn take_turn<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: PortId,
        mut waiting: u32,
        sent: bool,
    ) -> Turn {
        let mut turn = Turn {
            moved: sent,
            served: sent,
            more: false,
        };
        // The first command has just been found to be none that goes straight.
        let mut straight = sent;
        if self.ports.get(id).is_some_and(|port| !port.pipeline.is_empty()) {
            turn.moved |= self.send_ready(p, now, id);
        }
        for _ in usize::from(sent)..PIPELINE {
            let Some(port) = self.ports.get_mut(id) else {
                return turn;
            };
            let index = match port.pipeline.wanting() {
                Some(index) => index,
                None if waiting != 0 && port.pipeline.has_room() => {
                    waiting -= 1;
                    turn.moved = true;
                    if straight && self.send_another(p, now, id) {
                        turn.served = true;
                        continue;
                    }
                    straight = true;
                    self.accept(p, id)
                }
                None => return turn,
            };
            if !self.equip(p, now, id, index) {
                return turn;
            }
            (turn.moved, turn.served) = (true, true);
            if self
                .ports
                .get(id)
                .is_some_and(|port| port.pipeline.head_may_leave())
            {
                self.send_ready(p, now, id);
            }
        }
        turn.more = waiting != 0;
        turn
    }

    /// Takes note of an open port's words: remembers its fences, and gives the number of commands that wait.
    #[inline(never)]
    fn take_note<P: Platform>(&mut self, p: &mut P, id: PortId) -> u32 {
        let words = Looked::at(p.bar(), self.env.bar.port(id));
        let Some(port) = self.ports.get_mut(id) else {
            return 0;
        };
        let doorbell = port.pipeline.compare(words.doorbell);
        port.fences_moved(p, &mut self.env, &words);
        match doorbell {
            Doorbell::Pending(waiting) => waiting,
            Doorbell::Empty => 0,
            Doorbell::Broken => {
                self.broken_doorbell(p, id, words.doorbell);
                0
            }
        }
    }

    /// Takes the next command into the pipeline: copied once, and checked. Gives its place there.
    #[inline(never)]
    fn accept<P: Platform>(&mut self, p: &P, id: PortId) -> u8 {
        let Some(port) = self.ports.get_mut(id) else {
            return 0;
        };
        let block = Part::new(p.bar(), self.env.bar.port(id), BLOCK_WORDS);
        let head = &mut [0; HEAD_WORDS];
        port.pipeline.copy_head(&block, head);
        let generation = port.generation();
        let index = port.pipeline.admit();
        self.env.counters.commands += 1;
        if let Some(place) = port.pipeline.entry(index)
            && !place.dispatch(&self.env.config, id, generation, head)
        {
            self.env.counters.commands_refused += 1;
        }
        index
    }

    /// Whether a port has posted a command that could be taken now.
    pub(super) fn command_waits<P: Platform>(&self, p: &P, port: &Port) -> bool {
        let blocked = !port.pipeline.has_room() || port.pipeline.wanting().is_some();
        let block = Part::new(p.bar(), self.env.bar.port(port.id()), BLOCK_WORDS);
        !blocked && matches!(port.pipeline.poll(&block), Doorbell::Pending(_))
    }

    /// A doorbell word that no honest queue shows: said once for each such word; the queue is left
    /// alone until the word makes sense again.
    #[cold]
    fn broken_doorbell<P: Platform>(&mut self, p: &mut P, id: PortId, word: u32) {
        let Some(port) = self.ports.get_mut(id) else {
            return;
        };
        if !port.pipeline.complain(word) {
            return;
        }
        self.env.counters.broken_doorbells += 1;
        let record = ErrorRecord {
            status: Status::Malformed,
            ..ErrorRecord::default()
        };
        port.record_error(p, &mut self.env, &record);
    }

    /// Gets an entry what it lacks. Returns whether it lacks nothing any more.
    fn equip<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, index: u8) -> bool {
        let Some(port) = self.ports.get_mut(id) else {
            return false;
        };
        let awaits_host = port.missing() != 0;
        let Some(entry) = port.pipeline.entry(index) else {
            return false;
        };
        if entry.stage != Stage::Wanting {
            return true;
        }
        let node = entry.header.destination();
        let Some(peer) = self.links.get(node) else {
            return false;
        };
        let earlier_life = entry.session.0 != 0 && entry.session != peer.life();
        if earlier_life || (!peer.is_up() && !peer.will_come_up()) {
            entry.stage = Stage::Failed(Status::LinkLost);
            return true;
        }
        if !peer.is_up() {
            return self.stall(id, index, |c| &mut c.credit_stalls);
        }
        if entry.session.0 == 0 {
            let (life, window) = (peer.life(), peer.window());
            if u32::from(entry.moves()) > peer.payload() {
                self.env.counters.commands_refused += 1;
                entry.stage = Stage::Failed(Status::Malformed);
                return true;
            }
            // Behind a source that its host has to bring, a port holds credits that it cannot use yet. Such ports
            // together get few of them, and one each.
            let patient = !awaits_host || peer.reserved() < window / 4;
            // What sends no message takes no slot: it has not to wait for what has landed.
            if entry.source != Source::NoMessage {
                if !self.links.has_window_to(&mut self.env, now, Wanted::Data(node)) {
                    return self.stall(id, index, |c| &mut c.window_stalls);
                }
                let way = self.links.way(&self.env.config, node, id);
                if !patient || !way.is_some_and(|mut way| way.reserve()) {
                    return self.stall(id, index, |c| &mut c.credit_stalls);
                }
            }
            entry.session = life;
        }
        if entry.source == Source::Page || entry.is_round_trip() {
            return self.equip_further(p, id, index);
        }
        entry.stage = Stage::Ready;
        true
    }

    /// What only some entries need: a read slot, a staging buffer.
    fn equip_further<P: Platform>(&mut self, p: &mut P, id: PortId, index: u8) -> bool {
        let Some(entry) = self.entry(id, index) else {
            return false;
        };
        let (source, local, len) = (entry.source, entry.local, entry.header.payload_len());
        let node = entry.header.destination();
        if entry.is_round_trip() && entry.read.is_none() {
            let (Some(port), Some(peer)) = (self.ports.get_mut(id), self.links.get_mut(node)) else {
                return false;
            };
            let Some(read) = self.round_trips.reserve(&self.env, port, peer, node) else {
                return self.stall(id, index, |c| &mut c.read_stalls);
            };
            if let Some(entry) = self.entry(id, index) {
                entry.read = Some(read);
            }
        }
        let Some(port) = self.ports.get_mut(id) else {
            return false;
        };
        if source != Source::Page {
            if let Some(entry) = port.pipeline.entry(index) {
                entry.stage = match source {
                    Source::NoMessage => Stage::Asking,
                    _ => Stage::Ready,
                };
            }
            return true;
        }
        let Some(staging) = self.staging.take_for_port(port, index, local, len) else {
            return self.stall(id, index, |c| &mut c.staging_stalls);
        };
        if let Some(entry) = port.pipeline.entry(index) {
            entry.staging = Some(staging);
            entry.stage = Stage::Filling;
        }
        self.staging
            .fill(p, &mut self.env, &mut self.dmas, port, (staging, None));
        true
    }

    /// An entry lacks something, which is counted once. False, for the caller's convenience.
    #[cold]
    fn stall(&mut self, id: PortId, index: u8, what: fn(&mut Counters) -> &mut u64) -> bool {
        if let Some(entry) = self.ports.get_mut(id).and_then(|port| port.pipeline.entry(index))
            && !entry.stalled
        {
            entry.stalled = true;
            *what(&mut self.env.counters) += 1;
        }
        false
    }

    pub(super) fn entry(&mut self, id: PortId, index: u8) -> Option<&mut Entry> {
        self.ports.get_mut(id)?.pipeline.entry(index)
    }
}
