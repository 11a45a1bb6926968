//! Entries leave a port's pipeline, in the order in which they were posted: on the wire, or with an error.

use super::Nic;
use crate::behind::is_held_back;
use crate::links::{Lost, Outgoing};
use crate::pipeline::{Entry, Source, Stage};
use crate::platform::{Payload, Platform};
use crate::ports::{Count, Port};
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::{ErrorRecord, Reply};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::MessageFlags;
use netvm_abi::words::Part;
use netvm_abi::{Nanos, NotificationId, PortId, StagingId};

/// What became of the entry at the head of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It stays there.
    Nothing,
    /// It was the last one, and the count of commands taken has been told where it is due.
    Last,
    /// There may be more to send, or to tell.
    MoreToCome,
}

impl<S: Storage> Nic<S> {
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
            Some(Stage::Ready) => match self.send(p, now, id) {
                Sent::Nothing => false,
                Sent::Last => true,
                Sent::MoreToCome => {
                    self.send_all(p, now, id);
                    true
                }
            },
            Some(Stage::Asking | Stage::Failed(_)) => {
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
                    if self.send(p, now, id) == Sent::Nothing {
                        break;
                    }
                }
                Stage::Asking => self.await_receipt(p, now, id),
                Stage::Failed(status) => self.give_up(p, id, status),
                Stage::Wanting | Stage::Filling => break,
            }
        }
        if let Some(port) = self.ports.get_mut(id) {
            port.publish(p, &mut self.env, Count::Taken);
        }
    }

    /// Sends the entry at the head of the pipeline, from its place there, if the wire has room for it.
    #[inline(always)]
    fn send<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> Sent {
        let Some(port) = self.ports.get_mut(id) else {
            return Sent::Nothing;
        };
        let (owner, queue) = (port.generation(), port.pipeline.leaving());
        let Some(entry) = port.pipeline.head() else {
            return Sent::Nothing;
        };
        let node = entry.header.destination();
        let Some(mut way) = self.links.way(&self.env.config, node, id) else {
            return Sent::Nothing;
        };
        if !way.peer().is_up_in(entry.session) {
            self.give_up(p, id, Status::LinkLost);
            return Sent::MoreToCome;
        }
        // An acknowledgement gives all ports another turn.
        if !way.finds_room() {
            return Sent::Nothing;
        }
        let header = &mut entry.header;
        // An earlier operation never reached the receiver, so only this side can keep the promise that what asks
        // for order follows all earlier data (promise P4).
        let epoch = header.epoch();
        if way.follows(Lost { owner, epoch }) {
            if is_held_back(header.kind(), header.flags()) {
                self.hold_back(p, id);
                return Sent::MoreToCome;
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
            settled: false,
        };
        let seq = way.assign();
        let watched = way.number(&self.env.config, now, header, out, seq);
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
                let payload = Payload::Inline(&words);
                self.links
                    .keep_request(&self.env.config, now, node, header, payload);
                p.transmit(header, payload);
            }
            (Source::Page, Some(staging)) => {
                self.env.counters.staged_sent += 1;
                self.staging.leaves(staging);
                let staging = if mutant::is(Mutant::OtherBufferLeaves) {
                    StagingId(staging.0 ^ 1)
                } else {
                    staging
                };
                let payload = Payload::Staging(staging);
                let kept = self
                    .links
                    .keep_request(&self.env.config, now, node, header, payload);
                if kept {
                    self.staging.keep(staging);
                }
                p.transmit(header, payload.kept(kept));
            }
            _ => {
                self.links
                    .keep_request(&self.env.config, now, node, header, Payload::Empty);
                p.transmit(header, Payload::Empty);
            }
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
        if more { Sent::MoreToCome } else { Sent::Last }
    }

    /// Ends the entry at the head of the pipeline with an error.
    #[cold]
    pub(super) fn give_up<P: Platform>(&mut self, p: &mut P, id: PortId, status: Status) {
        let Some(entry) = self.take_head(id) else {
            return;
        };
        self.env.counters.commands_failed += 1;
        if entry.is_write() {
            let owner = self.ports.get(id).map(Port::generation);
            if let Some(owner) = owner {
                let epoch = entry.header.epoch();
                let loss = Lost { owner, epoch };
                // Each entry that gives up has a record of its own.
                let _ = self
                    .links
                    .note_loss(&mut self.env, entry.header.destination(), id, loss);
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
        if entry.has_credit() {
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
