//! A port's command queue as a stream: commands are copied, get their resources, are staged ahead,
//! and leave in the order in which they were posted.
//!
//! The order of resources is the same for all: a window slot of the destination (a credit), a read
//! slot for round trips, a staging buffer. An entry that lacks one holds the stream behind it, and
//! nothing of other ports. No page lock is held here: only while a DMA runs ([`crate::dmas`]).

use super::Nic;
use crate::behind::is_held_back;
use crate::counters::Counters;
use crate::links::{Lost, Outgoing};
use crate::pipeline::{Entry, PIPELINE, Source, Stage};
use crate::platform::{Payload, Platform};
use crate::ports::{Count, Looked, News, Port};
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::command_queue::Doorbell;
use netvm_abi::descriptor::{HEAD_WORDS, INLINE_BYTES};
use netvm_abi::port_area::{ErrorRecord, Reply};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::MessageFlags;
use netvm_abi::words::Part;
use netvm_abi::{Nanos, NotificationId, PortId};

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
        let Some(mut way) = self.links.way(&self.env.config, node, id) else {
            return false;
        };
        let peer = way.peer();
        let earlier_life = entry.session.0 != 0 && entry.session != peer.life();
        if earlier_life || (!peer.is_up() && !peer.will_come_up()) {
            entry.stage = Stage::Failed(Status::LinkLost);
            return true;
        }
        if !peer.is_up() {
            return self.stall(id, index, |c| &mut c.credit_stalls);
        }
        if entry.session.0 == 0 {
            if u32::from(entry.moves()) > peer.payload() {
                self.env.counters.commands_refused += 1;
                entry.stage = Stage::Failed(Status::Malformed);
                return true;
            }
            // Behind a source that its host has to bring, a port holds credits that it cannot use yet. Such ports
            // together get few of them, and one each.
            let patient = !awaits_host || peer.reserved() < u32::from(self.env.config.geometry.window / 4);
            let life = peer.life();
            if !patient || !way.reserve(self.env.config.geometry.window) {
                return self.stall(id, index, |c| &mut c.credit_stalls);
            }
            entry.session = life;
        }
        if entry.source == Source::Page || entry.is_round_trip() {
            return self.equip_further(p, now, id, index);
        }
        entry.stage = Stage::Ready;
        true
    }

    /// What only some entries need: a read slot, a staging buffer.
    fn equip_further<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, index: u8) -> bool {
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
        let staging = if source == Source::Page {
            let Some(port) = self.ports.get_mut(id) else {
                return false;
            };
            let Some(staging) = self.staging.take_for_port(port, index, local, len) else {
                return self.stall(id, index, |c| &mut c.staging_stalls);
            };
            Some(staging)
        } else {
            None
        };
        if let Some(entry) = self.entry(id, index) {
            entry.staging = staging;
            entry.stage = if staging.is_some() {
                Stage::Filling
            } else {
                Stage::Ready
            };
        }
        if let Some(staging) = staging {
            self.fill_again(p, now, staging);
        }
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

    fn entry(&mut self, id: PortId, index: u8) -> Option<&mut Entry> {
        self.ports.get_mut(id)?.pipeline.entry(index)
    }

    /// What became of an entry's staging.
    pub(super) fn staged<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: PortId,
        index: u8,
        result: Result<(), Status>,
    ) {
        let Some(entry) = self.entry(id, index) else {
            return;
        };
        entry.stage = match result {
            Ok(()) => Stage::Ready,
            Err(status) => {
                entry.staging = None;
                Stage::Failed(status)
            }
        };
        self.send_ready(p, now, id);
        self.ports.stir();
    }

    /// Sends (or gives up) the entries at the head of a port's pipeline that wait for nothing.
    #[inline(never)]
    pub(super) fn send_ready<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        match self.ports.get(id).and_then(Port::head_stage) {
            // Nearly always it is one.
            Some(Stage::Ready) => {
                if self.send(p, now, id) {
                    self.send_all(p, now, id);
                }
                true
            }
            Some(Stage::Failed(_)) => {
                self.send_all(p, now, id);
                true
            }
            _ => false,
        }
    }

    /// The same where there is more than one, or one that gives up.
    #[inline(never)]
    fn send_all<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) {
        while let Some(stage) = self.ports.get(id).and_then(Port::head_stage) {
            match stage {
                Stage::Ready => {
                    self.send(p, now, id);
                }
                Stage::Failed(status) => self.give_up(p, id, status),
                Stage::Wanting | Stage::Filling => break,
            }
        }
        if let Some(port) = self.ports.get_mut(id) {
            port.publish(p, &mut self.env, Count::Taken);
        }
    }

    /// Sends the entry at the head of the pipeline, from its place there. Returns whether there may be more to send, or
    /// to tell; else the count of commands taken has been told where it is due.
    #[inline(always)]
    fn send<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        let Some(port) = self.ports.get_mut(id) else {
            return false;
        };
        let (owner, queue) = (port.generation(), port.pipeline.leaving());
        let Some(entry) = port.pipeline.head() else {
            return false;
        };
        let node = entry.header.destination();
        let Some(mut way) = self.links.way(&self.env.config, node, id) else {
            return false;
        };
        if !way.peer().is_up_in(entry.session) {
            self.give_up(p, id, Status::LinkLost);
            return true;
        }
        let header = &mut entry.header;
        // An earlier operation never reached the receiver, so only this side can keep the promise that what asks
        // for order follows all earlier data (promise P4).
        let epoch = header.epoch();
        if way.follows(Lost { owner, epoch }) {
            if is_held_back(header.kind(), header.flags()) {
                self.hold_back(p, id);
                return true;
            }
            if header.notification().is_some() && !header.flags().contains(MessageFlags::REGARDLESS) {
                header.set_notification(NotificationId::NONE);
                self.env.counters.notifications_suppressed += 1;
            }
        }
        let out = Outgoing {
            port: id,
            epoch,
            op: header.op(),
            generation: owner,
        };
        let seq = way.assign();
        let watched = way.number(&self.env.config, header, out, seq);
        self.env.counters.messages_sent += 1;
        self.env.counters.bytes_sent += u64::from(header.payload_len());
        if let Some(slot) = entry.read {
            self.round_trips
                .issue(&mut self.env.counters, header, slot, entry.local);
        }
        match (entry.source, entry.staging) {
            (Source::Descriptor, _) => {
                let mut words = [0; INLINE_BYTES / 4];
                let block = Part::new(p.bar(), self.env.bar.port(id), BLOCK_WORDS);
                if let Some(used) = words.get_mut(..usize::from(header.payload_len()).div_ceil(4)) {
                    queue.copy_inline(&block, used);
                }
                self.env.counters.inline_sent += 1;
                p.transmit(header, Payload::Inline(&words));
            }
            (Source::Page, Some(staging)) => {
                self.env.counters.staged_sent += 1;
                self.staging.leaves(staging);
                p.transmit(header, Payload::Staging(staging));
            }
            _ => p.transmit(header, Payload::Empty),
        }
        let is_write = entry.is_write();
        port.drop_head();
        if is_write {
            port.complete(p, &mut self.env, Count::Writes);
        }
        let more = !port.pipeline.is_empty();
        if !more {
            port.publish(p, &mut self.env, Count::Taken);
        }
        if !watched {
            self.links.arm_probe(&self.env, node, now);
        }
        more
    }

    /// Ends the entry at the head of the pipeline with an error.
    #[cold]
    fn give_up<P: Platform>(&mut self, p: &mut P, id: PortId, status: Status) {
        let Some(entry) = self.take_head(id) else {
            return;
        };
        self.env.counters.commands_failed += 1;
        if entry.is_write() {
            let owner = self.ports.get(id).map(Port::generation);
            if let Some(owner) = owner {
                let epoch = entry.header.epoch();
                let loss = Lost { owner, epoch };
                self.links
                    .note_loss(&self.env.config, entry.header.destination(), id, loss);
            }
        }
        self.end_entry(p, id, &entry, Some(status));
    }

    /// Ends the entry at the head of the pipeline without effect: it asks for order, behind one that was lost.
    /// A write ends without a word, as one does that the receiver holds back: the program is told of the
    /// operation that was lost. A round trip has an answer.
    #[cold]
    fn hold_back<P: Platform>(&mut self, p: &mut P, id: PortId) {
        let Some(entry) = self.take_head(id) else {
            return;
        };
        self.env.counters.commands_held += 1;
        let told = (!entry.is_write()).then_some(Status::HeldBack);
        self.end_entry(p, id, &entry, told);
    }

    /// Takes the entry at the head out of the pipeline, with what it holds.
    fn take_head(&mut self, id: PortId) -> Option<Entry> {
        let port = self.ports.get_mut(id)?;
        let entry = port.pipeline.head().copied()?;
        port.drop_head();
        self.release_entry(id, entry);
        Some(entry)
    }

    /// Counts an operation that has not left as done, and tells its port what it failed with, if anything.
    fn end_entry<P: Platform>(&mut self, p: &mut P, id: PortId, entry: &Entry, told: Option<Status>) {
        let Some(port) = self.ports.get_mut(id) else {
            return;
        };
        let header = &entry.header;
        if let Some(status) = told {
            let (op, slot) = (header.op(), header.reply());
            let reply = Reply {
                op,
                status,
                value: 0,
                second: 0,
            };
            if entry.is_write() || !port.store_reply(p, &self.env, slot, reply) {
                let record = ErrorRecord {
                    op,
                    status,
                    node: header.destination(),
                    port: header.destination_port(),
                    epoch: header.epoch(),
                    address: header.address(),
                };
                port.record_error(p, &mut self.env, &record);
            }
        }
        let count = if entry.is_write() {
            Count::Writes
        } else {
            Count::Reads
        };
        port.complete(p, &mut self.env, count);
    }

    /// Gives back what an entry holds.
    pub(super) fn release_entry(&mut self, id: PortId, entry: Entry) {
        if entry.session.0 != 0 {
            self.links
                .return_credit(&self.env.config, entry.header.destination(), id, entry.session);
            self.ports.stir();
        }
        if let Some(read) = entry.read {
            self.free_read_slot(read);
        }
        if let Some(staging) = entry.staging {
            self.staging.abandon(&mut self.ports, staging);
        }
    }
}
