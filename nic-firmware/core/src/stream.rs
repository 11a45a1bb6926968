//! A port's command queue as a stream: commands are copied, get their resources, are staged ahead,
//! and leave in the order in which they were posted.
//!
//! The order of resources is the same for all: a window slot of the destination (a credit), a read
//! slot for round trips, a staging buffer. An entry that lacks one holds the stream behind it, and
//! nothing of other ports. No page lock is held here: only while a DMA runs ([`crate::dma`]).

use crate::nic::Nic;
use crate::peer::Link;
use crate::platform::{Payload, Platform};
use crate::port::{Count, PIPELINE, PortState};
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::command_queue::Doorbell;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, MessageFlags};
use netvm_abi::words::Part;
use netvm_abi::{
    Generation, Incarnation, Nanos, NodeId, NotificationId, PortId, ReadSlot, StagingId, VirtAddr,
};

/// What the payload of a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// There is none.
    Nothing,
    /// The descriptor; copied when the message leaves.
    Descriptor,
    /// This page of the port, through a staging buffer.
    Page(VirtAddr),
}

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It lacks resources.
    Wanting,
    /// Its payload is on the way into the staging buffer.
    Filling,
    /// It may leave.
    Ready,
    /// It will not leave.
    Failed(Status),
}

/// A command on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) stage: Stage,
    pub(crate) source: Source,
    /// The message as it will leave, but for sequence number and incarnations.
    pub(crate) header: Header,
    /// Where a read's answer goes.
    pub(crate) local: VirtAddr,
    /// Life of the link in which its credit was reserved; 0: it has none.
    pub(crate) session: Incarnation,
    pub(crate) read: Option<ReadSlot>,
    pub(crate) staging: Option<StagingId>,
    /// Whether it counts as a write.
    pub(crate) is_write: bool,
    /// Whether a missing resource has been counted.
    pub(crate) stalled: bool,
}

impl Entry {
    /// An unused entry.
    pub(crate) const EMPTY: Self = Self {
        stage: Stage::Wanting,
        source: Source::Nothing,
        header: Header::new(Kind::Write, NodeId(0), NodeId(0)),
        local: VirtAddr(0),
        session: Incarnation(0),
        read: None,
        staging: None,
        is_write: true,
        stalled: false,
    };
}

/// A port's sending side towards one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender {
    /// Window slots that it holds: reserved or not acknowledged.
    pub(crate) share: u16,
    /// Epoch in which one of its operations was lost before the receiver could know of it.
    pub(crate) failed_epoch: Option<u16>,
}

/// A message that has left and is not acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    pub(crate) port: PortId,
    pub(crate) epoch: netvm_abi::Epoch,
    pub(crate) op: netvm_abi::OpId,
    pub(crate) generation: Generation,
}

impl<S: Storage> Nic<S> {
    /// Gives a port its turn. Returns whether anything moved.
    pub(crate) fn pump<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        self.read_fences(p, id);
        let mut moved = self.send_ready(p, now, id);
        for _ in 0..PIPELINE {
            let Some(port) = self.ports.get_mut(id.index()) else {
                return moved;
            };
            if port.state != PortState::Open {
                return moved;
            }
            let last = port.index(port.len.wrapping_sub(1) % PIPELINE as u8);
            let wanting = port.len > 0
                && port
                    .entry(last)
                    .is_some_and(|entry| entry.stage == Stage::Wanting);
            if wanting {
                if !self.equip(p, now, id, last) {
                    return moved;
                }
            } else if usize::from(port.len) == PIPELINE || !self.fetch(p, now, id) {
                return moved;
            }
            moved = true;
            self.send_ready(p, now, id);
        }
        moved
    }

    /// Copies the next command into the pipeline, checked. Returns whether there was one.
    fn fetch<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        let base = self.bar.port(id);
        let Some(port) = self.ports.get_mut(id.index()) else {
            return false;
        };
        let block = Part::new(p.bar(), base, BLOCK_WORDS);
        match port.fetch.poll(&block) {
            Doorbell::Pending(_) => {}
            Doorbell::Empty => return false,
            Doorbell::Broken => {
                self.broken_doorbell(p, id);
                return false;
            }
        }
        let head = port.fetch.copy_head(&block);
        port.fetch.take();
        self.counters.commands += 1;
        let entry = self.dispatch(id, &head);
        if let Some(port) = self.ports.get_mut(id.index()) {
            let index = port.index(port.len);
            port.len += 1;
            let wanting = entry.stage == Stage::Wanting;
            if let Some(place) = port.entry(index) {
                *place = entry;
            }
            if wanting {
                self.equip(p, now, id, index);
            }
        }
        true
    }

    /// Whether a port has posted a command that could be taken now.
    pub(crate) fn command_waits<P: Platform>(&self, p: &P, id: PortId) -> bool {
        let Some(port) = self.ports.get(id.index()) else {
            return false;
        };
        let last = usize::from(port.index(port.len.wrapping_sub(1) % PIPELINE as u8));
        let blocked = usize::from(port.len) == PIPELINE
            || (port.len > 0
                && port
                    .pipeline
                    .get(last)
                    .is_some_and(|entry| entry.stage == Stage::Wanting));
        let block = Part::new(p.bar(), self.bar.port(id), BLOCK_WORDS);
        !blocked && matches!(port.fetch.poll(&block), Doorbell::Pending(_))
    }

    /// A doorbell word that no honest queue shows: said once for each such word; the queue is left
    /// alone until the word makes sense again.
    fn broken_doorbell<P: Platform>(&mut self, p: &mut P, id: PortId) {
        let base = self.bar.port(id);
        let word =
            netvm_abi::words::SharedWords::load_acquire(p.bar(), base.plus(netvm_abi::bar::port::DOORBELL.0));
        let Some(port) = self.ports.get_mut(id.index()) else {
            return;
        };
        if port.broken == Some(word) {
            return;
        }
        port.broken = Some(word);
        self.counters.broken_doorbells += 1;
        let record = ErrorRecord {
            status: Status::Malformed,
            ..ErrorRecord::default()
        };
        self.record_error(p, id, &record);
    }

    /// Gets an entry what it lacks. Returns whether it lacks nothing any more.
    fn equip<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, index: u8) -> bool {
        let Some(entry) = self.ports.get_mut(id.index()).and_then(|port| port.entry(index)) else {
            return false;
        };
        let (node, kind, source) = (entry.header.destination, entry.header.kind, entry.source);
        let (session, has_read, stalled) = (entry.session, entry.read.is_some(), entry.stalled);
        let stall = |nic: &mut Self, what: fn(&mut crate::Counters) -> &mut u64| {
            if !stalled {
                *what(&mut nic.counters) += 1;
                if let Some(entry) = nic.entry(id, index) {
                    entry.stalled = true;
                }
            }
            false
        };
        let Some(peer) = self.peers.get_mut(node.index()) else {
            return false;
        };
        if session.0 != 0 && session != peer.local {
            return self.settle(id, index, Stage::Failed(Status::LinkLost));
        }
        match peer.link {
            Link::Up => {}
            _ if peer.will_come_up() => return stall(self, |c| &mut c.credit_stalls),
            _ => return self.settle(id, index, Stage::Failed(Status::LinkLost)),
        }
        if session.0 == 0 {
            let too_long = u32::from(entry_len(kind, entry.header.len, entry.header.compare)) > peer.payload;
            if too_long {
                self.counters.commands_refused += 1;
                return self.settle(id, index, Stage::Failed(Status::Malformed));
            }
            if !self.reserve_credit(node, id) {
                return stall(self, |c| &mut c.credit_stalls);
            }
            let session = self.peers.get(node.index()).map(|peer| peer.local);
            if let Some(entry) = self.entry(id, index) {
                entry.session = session.unwrap_or_default();
            }
        }
        if matches!(kind, Kind::ReadRequest | Kind::Flush) && !has_read {
            let Some(read) = self.take_read_slot(id) else {
                return stall(self, |c| &mut c.read_stalls);
            };
            if let Some(entry) = self.entry(id, index) {
                entry.read = Some(read);
            }
        }
        if let Source::Page(local) = source {
            let Some(staging) = self.stage_for_port(id, index, local) else {
                return stall(self, |c| &mut c.staging_stalls);
            };
            if let Some(entry) = self.entry(id, index) {
                entry.staging = Some(staging);
            }
            self.settle(id, index, Stage::Filling);
            self.fill_again(p, now, staging);
            return true;
        }
        self.settle(id, index, Stage::Ready)
    }

    fn entry(&mut self, id: PortId, index: u8) -> Option<&mut Entry> {
        self.ports.get_mut(id.index())?.entry(index)
    }

    /// Sets an entry's stage; true, for the caller's convenience.
    fn settle(&mut self, id: PortId, index: u8, stage: Stage) -> bool {
        if let Some(entry) = self.entry(id, index) {
            entry.stage = stage;
        }
        true
    }

    /// What became of an entry's staging.
    pub(crate) fn staged<P: Platform>(
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
        self.turns.stir();
    }

    /// Takes a window slot of `node` for a port, which gets at most half of them (promise P5).
    pub(crate) fn reserve_credit(&mut self, node: NodeId, port: PortId) -> bool {
        let half = self.config.geometry.window / 2;
        let at = self.stream_index(node, port);
        let (Some(peer), Some(sender)) = (self.peers.get_mut(node.index()), self.senders.get_mut(at)) else {
            return false;
        };
        if sender.share >= half || !peer.credits.reserve() {
            return false;
        }
        sender.share += 1;
        true
    }

    /// Gives back a window slot that was not used.
    pub(crate) fn return_credit(&mut self, node: NodeId, port: PortId, session: Incarnation) {
        let at = self.stream_index(node, port);
        if let Some(sender) = self.senders.get_mut(at) {
            sender.share = sender.share.saturating_sub(1);
        }
        if let Some(peer) = self.peers.get_mut(node.index()) {
            // A later life of the link has forgotten the reservation.
            if peer.local == session && peer.link == Link::Up {
                peer.credits.unreserve();
            }
        }
        self.turns.stir();
    }

    /// Turns a reserved window slot into a sequence number, and writes down whose it is.
    pub(crate) fn number(&mut self, header: &mut Header, generation: Generation) {
        let node = header.destination;
        let quarter = self.config.geometry.window / 4;
        let Some(peer) = self.peers.get_mut(node.index()) else {
            return;
        };
        header.seq = peer.credits.assign();
        header.source_incarnation = peer.local;
        header.destination_incarnation = peer.remote;
        // One request in every quarter of a window: whoever holds a half (a port) or the whole of it
        // has asked, and nobody asks with every message when the window is full.
        peer.unasked += 1;
        if peer.unasked >= quarter {
            peer.unasked = 0;
            header.flags |= MessageFlags::ACK_REQUEST;
        }
        let slot = self.slot_id(
            node,
            (header.seq.0 % u32::from(self.config.geometry.window)) as u16,
        );
        if let Some(out) = self.outgoing.get_mut(slot.index()) {
            *out = Outgoing {
                port: header.source_port,
                epoch: header.epoch,
                op: header.op,
                generation,
            };
        }
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += u64::from(header.len);
    }

    /// Sends (or gives up) the entries at the head of a port's pipeline that wait for nothing.
    pub(crate) fn send_ready<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) -> bool {
        let mut moved = false;
        for _ in 0..PIPELINE {
            let Some(port) = self.ports.get_mut(id.index()) else {
                break;
            };
            if port.len == 0 || port.state != PortState::Open {
                break;
            }
            let head = port.head;
            let Some(entry) = port.entry(head).map(|entry| *entry) else {
                break;
            };
            match entry.stage {
                Stage::Ready => self.send(p, now, id, entry),
                Stage::Failed(status) => self.give_up(p, id, entry, status),
                Stage::Wanting | Stage::Filling => break,
            }
            moved = true;
        }
        if moved {
            self.publish(p, id, Count::Taken);
        }
        moved
    }

    /// Sends the entry at the head of the pipeline.
    fn send<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId, entry: Entry) {
        let node = entry.header.destination;
        let live = self
            .peers
            .get(node.index())
            .is_some_and(|peer| peer.link == Link::Up && peer.local == entry.session);
        if !live {
            self.give_up(p, id, entry, Status::LinkLost);
            return;
        }
        let mut header = entry.header;
        let at = self.stream_index(node, id);
        if let Some(sender) = self.senders.get_mut(at) {
            // An earlier operation never reached the receiver, so only this side can keep the
            // promise that a notification follows all earlier data (promise P4).
            if sender.failed_epoch != Some(header.epoch.0) {
                sender.failed_epoch = None;
            } else if header.notification.is_some() {
                header.notification = NotificationId::NONE;
                self.counters.notifications_suppressed += 1;
            }
        }
        let generation = self
            .ports
            .get(id.index())
            .map_or(Generation(0), |port| port.generation);
        self.number(&mut header, generation);
        if let Some(read) = entry.read {
            self.issue_round_trip(&mut header, read, entry.local);
        }
        match (entry.source, entry.staging) {
            (Source::Descriptor, _) => {
                let mut words = [0; INLINE_BYTES / 4];
                if let Some(port) = self.ports.get(id.index()) {
                    let block = Part::new(p.bar(), self.bar.port(id), BLOCK_WORDS);
                    let used = usize::from(header.len).div_ceil(4);
                    if let Some(words) = words.get_mut(..used) {
                        port.retire.copy_inline(&block, words);
                    }
                }
                self.counters.inline_sent += 1;
                p.transmit(&header, Payload::Inline(&words));
            }
            (Source::Page(_), Some(staging)) => {
                self.counters.staged_sent += 1;
                self.staging_leaves(staging);
                p.transmit(&header, Payload::Staging(staging));
            }
            _ => p.transmit(&header, Payload::Empty),
        }
        self.arm_probe(node, now);
        self.drop_head(id);
        if entry.is_write {
            self.complete(p, id, Count::Writes);
        }
    }

    /// Ends the entry at the head of the pipeline with an error.
    fn give_up<P: Platform>(&mut self, p: &mut P, id: PortId, entry: Entry, status: Status) {
        self.counters.commands_failed += 1;
        let header = entry.header;
        let at = self.stream_index(header.destination, id);
        if entry.is_write
            && let Some(sender) = self.senders.get_mut(at)
        {
            sender.failed_epoch = Some(header.epoch.0);
        }
        self.release_entry(id, entry);
        self.drop_head(id);
        if entry.is_write || !self.store_reply(p, id, header.reply, header.op, status, 0) {
            let record = ErrorRecord {
                op: header.op,
                status,
                node: header.destination,
                port: header.destination_port,
                epoch: header.epoch,
                address: header.address,
            };
            self.record_error(p, id, &record);
        }
        let count = if entry.is_write {
            Count::Writes
        } else {
            Count::Reads
        };
        self.complete(p, id, count);
    }

    /// Gives back what an entry holds.
    pub(crate) fn release_entry(&mut self, id: PortId, entry: Entry) {
        if entry.session.0 != 0 {
            self.return_credit(entry.header.destination, id, entry.session);
        }
        if let Some(read) = entry.read {
            self.free_read_slot(read);
        }
        if let Some(staging) = entry.staging {
            self.abandon_staging(staging);
        }
    }

    fn drop_head(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(id.index()) {
            port.head = port.index(1);
            port.len = port.len.saturating_sub(1);
            port.retire.take();
            if let Some(count) = port.counts.get_mut(Count::Taken as usize) {
                count.done = port.retire.taken();
            }
        }
    }
}

/// Bytes that a message makes the other side (or its reply makes this side) move at once.
const fn entry_len(kind: Kind, len: u16, wanted: u64) -> u16 {
    match kind {
        Kind::ReadRequest => wanted as u16,
        _ => len,
    }
}
