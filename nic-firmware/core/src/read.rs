//! Reads and other round trips (thesis 5.5).
//!
//! At the requester a read holds a read slot, which owns a bounce page for the reply; so the reply
//! needs no credit, and two nodes full of reads cannot wait for each other. At the responder the
//! request holds its window slot until the reply has left.

use crate::authorise::Authority;
use crate::counters::Counters;
use crate::dma::{Access, Holder, PageWanted};
use crate::nic::Nic;
use crate::platform::{Dma, Payload, Platform};
use crate::ports::Count;
use crate::receive::Step;
use crate::slot::SlotState;
use crate::staging::{Fill, StagingFor};
use netvm_abi::atomic::AtomicResult;
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::Modes;
use netvm_abi::port_area::{ErrorRecord, Reply};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, OwnHeader, ReadTicket};
use netvm_abi::{
    BounceId, ByteLen, Epoch, Generation, Nanos, NodeId, OpId, PortId, ReadSlot, ReceiveId, ReplySlot, Seq,
    StagingId, VirtAddr, Vpn,
};

/// What a round trip asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundTripKind {
    /// Data.
    Read,
    /// That everything earlier has landed.
    Flush,
    /// An atomic operation.
    Atomic,
}

/// How far a round trip is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundTripState {
    /// The slot is free.
    Free,
    /// Its command has not left.
    Reserved,
    /// The answer is awaited.
    Asked,
    /// The reply waits for a DMA slot.
    Queued,
    /// The reply moves into its page.
    Moving,
    /// The reply moves into its bounce page.
    Bouncing,
    /// The host has the reply.
    Bounced,
}

/// A round trip of this node: what stands in a read slot.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub(crate) state: RoundTripState,
    kind: RoundTripKind,
    pub(crate) port: PortId,
    port_generation: Generation,
    generation: Generation,
    pub(crate) node: NodeId,
    /// Whether its answer is the node's to give, and counts there.
    owed: bool,
    remote_port: PortId,
    local: VirtAddr,
    remote: VirtAddr,
    len: u16,
    receive: ReceiveId,
    op: OpId,
    reply: ReplySlot,
    epoch: Epoch,
    seq: Seq,
    /// When the request was first seen acknowledged, and so answered, without the answer being here.
    answered: Option<Nanos>,
}

impl RoundTrip {
    /// A free slot.
    pub(crate) const FREE: Self = Self {
        state: RoundTripState::Free,
        kind: RoundTripKind::Read,
        port: PortId(0),
        port_generation: Generation(0),
        generation: Generation(0),
        node: NodeId(0),
        owed: false,
        remote_port: PortId(0),
        local: VirtAddr(0),
        remote: VirtAddr(0),
        len: 0,
        receive: ReceiveId(0),
        op: OpId(0),
        reply: ReplySlot::NONE,
        epoch: Epoch(0),
        seq: Seq(0),
        answered: None,
    };
}

impl RoundTrip {
    /// The request leaves: from now on its answer is awaited. Gives the counter of such requests.
    pub(crate) fn issue<'a>(
        &mut self,
        header: &mut OwnHeader,
        slot: ReadSlot,
        local: VirtAddr,
        counters: &'a mut Counters,
    ) -> &'a mut u64 {
        self.state = RoundTripState::Asked;
        self.node = header.destination();
        self.remote_port = header.destination_port();
        self.remote = header.address();
        self.local = local;
        self.op = header.op();
        self.reply = header.reply();
        self.epoch = header.epoch();
        self.seq = header.seq();
        header.set_ticket(ReadTicket {
            slot,
            generation: self.generation,
        });
        match header.body() {
            Body::AtomicRequest { .. } => {
                self.kind = RoundTripKind::Atomic;
                &mut counters.atomics_sent
            }
            Body::Flush { .. } => {
                self.kind = RoundTripKind::Flush;
                &mut counters.flushes_sent
            }
            body => {
                self.kind = RoundTripKind::Read;
                if let Body::ReadRequest { len, .. } = body {
                    self.len = len as u16;
                }
                &mut counters.reads_sent
            }
        }
    }
}

/// The requester's side.
impl<S: Storage> Nic<S> {
    /// Reserves a read slot for a port's round trip to a node. A port gets at most half of the slots, and what one
    /// node has not answered at most three quarters: a node that does not answer leaves some for the others, and a
    /// port that asks for what does not come leaves some for other ports that ask the same node (promise P5).
    pub(crate) fn take_read_slot(&mut self, id: PortId, node: NodeId) -> Option<ReadSlot> {
        let reads = self.env.config.geometry.reads;
        let port = self.ports.get_mut(id)?;
        let peer = self.peers.get_mut(node.index())?;
        if port.held.reads >= (reads / 2).max(1) || peer.reads >= reads - reads / 4 {
            return None;
        }
        let link = self.free_reads.pop(&self.env.lines)?;
        let Some(BounceUse::Reply(slot)) = BounceUse::from_id(&self.env.config.geometry, link.into()) else {
            return None;
        };
        let read = self.reads.get_mut(slot.index())?;
        *read = RoundTrip {
            state: RoundTripState::Reserved,
            port: id,
            node,
            owed: true,
            port_generation: port.generation(),
            generation: Generation(read.generation.0.wrapping_add(1)),
            ..RoundTrip::FREE
        };
        port.held.reads += 1;
        peer.reads += 1;
        Some(slot)
    }

    /// Gives a read slot back.
    pub(crate) fn free_read_slot(&mut self, slot: ReadSlot) {
        let Some(read) = self.reads.get_mut(slot.index()) else {
            return;
        };
        if read.state == RoundTripState::Free {
            return;
        }
        read.state = RoundTripState::Free;
        if let Some(port) = self.ports.get_mut(read.port) {
            port.held.reads = port.held.reads.saturating_sub(1);
        }
        self.owes_no_answer(slot);
        let link = BounceUse::Reply(slot).id(&self.env.config.geometry);
        self.free_reads.push(&mut self.env.lines, link.0);
        self.ports.stir();
    }

    /// What a slot still waits for is not its node's business: the answer is here, or not awaited any more.
    fn owes_no_answer(&mut self, slot: ReadSlot) {
        if let Some(read) = self.reads.get_mut(slot.index())
            && core::mem::take(&mut read.owed)
            && let Some(peer) = self.peers.get_mut(read.node.index())
        {
            peer.reads = peer.reads.saturating_sub(1);
        }
    }

    /// Whether an answer is the one that a slot waits for.
    pub(crate) fn awaits(&self, ticket: ReadTicket, node: NodeId, kind: RoundTripKind) -> bool {
        self.reads.get(ticket.slot.index()).is_some_and(|read| {
            read.state == RoundTripState::Asked
                && read.generation == ticket.generation
                && read.node == node
                && read.kind == kind
        })
    }

    /// A reply has arrived.
    pub(crate) fn reply_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        receive: ReceiveId,
        node: NodeId,
        len: u16,
        ticket: ReadTicket,
        status: Status,
    ) {
        let slot = ticket.slot;
        if !self.awaits(ticket, node, RoundTripKind::Read) {
            self.env.counters.late_replies += 1;
            p.release_receive(receive);
            return;
        }
        self.env.counters.read_replies += 1;
        self.env.counters.bytes_received += u64::from(len);
        let Some(read) = self.reads.get_mut(slot.index()) else {
            return;
        };
        let status = match status {
            Status::Ok if len != read.len => Status::Malformed,
            status => status,
        };
        if status != Status::Ok || read.len == 0 {
            p.release_receive(receive);
            self.end_round_trip(p, slot, status, AtomicResult::default());
            return;
        }
        read.receive = receive;
        self.owes_no_answer(slot);
        self.place_reply(p, slot);
    }

    /// Moves a reply into its page, or into its bounce page.
    pub(crate) fn place_reply<P: Platform>(&mut self, p: &mut P, slot: ReadSlot) {
        let Some(read) = self.reads.get_mut(slot.index()) else {
            return;
        };
        let receive = read.receive;
        let Some(port) = self.ports.of_owner(read.port, read.port_generation) else {
            p.release_receive(receive);
            self.free_read_slot(slot);
            return;
        };
        let holder = Holder::Reply(slot);
        let Some(ticket) = self.dmas.ticket() else {
            read.state = RoundTripState::Queued;
            self.dmas.park(&mut self.env, holder);
            return;
        };
        let wanted = PageWanted {
            vpn: Vpn::of(read.port, read.local),
            offset: read.local.page_offset(),
            len: ByteLen(u32::from(read.len)),
            segment: None,
            access: Access::Write,
        };
        let started = self
            .dmas
            .start_with_page(p, &mut self.env, port, (ticket, holder), &wanted, |page| {
                Dma::ReceiveToPage { receive, page }
            });
        let Err((ticket, cause)) = started else {
            read.state = RoundTripState::Moving;
            return;
        };
        read.state = RoundTripState::Bouncing;
        self.env.count_bounce(cause);
        let dma = Dma::ReceiveToBounce {
            receive,
            bounce: holder.bounce(&self.env.config.geometry),
            len: wanted.len,
        };
        self.dmas.start(p, &mut self.env, (ticket, holder), dma);
    }

    /// A reply's DMA has ended.
    pub(crate) fn reply_moved<P: Platform>(&mut self, p: &mut P, slot: ReadSlot, ok: bool) {
        let Some(read) = self.reads.get_mut(slot.index()) else {
            return;
        };
        if !matches!(read.state, RoundTripState::Moving | RoundTripState::Bouncing) {
            return;
        }
        p.release_receive(read.receive);
        if !ok {
            self.env.counters.failed += 1;
            self.end_round_trip(p, slot, Status::BusError, AtomicResult::default());
        } else if read.state == RoundTripState::Moving {
            self.env.counters.zero_copy += 1;
            self.end_round_trip(p, slot, Status::Ok, AtomicResult::default());
        } else {
            read.state = RoundTripState::Bounced;
            // The record names the local page, which the reply from the wire does not.
            let body = Body::ReadReply {
                ticket: ReadTicket::default(),
                status: Status::Ok,
            };
            let mut header = Header::of(body, read.node, self.env.config.node);
            header.source_port = read.remote_port;
            header.destination_port = read.port;
            header.address = read.local;
            header.len = read.len;
            header.op = read.op;
            header.reply = read.reply;
            header.epoch = read.epoch;
            let generation = read.generation;
            let bounce = BounceUse::Reply(slot).id(&self.env.config.geometry);
            self.tell_bounced(p, bounce, generation, &header);
        }
    }

    /// The host has emptied a reply's bounce page.
    pub(crate) fn reply_ended<P: Platform>(
        &mut self,
        p: &mut P,
        slot: ReadSlot,
        generation: Generation,
        status: Status,
    ) {
        let waits = self
            .reads
            .get(slot.index())
            .is_some_and(|read| read.state == RoundTripState::Bounced && read.generation == generation);
        if !waits {
            self.env.counters.late_answers += 1;
            return;
        }
        self.env.counters.bounces_ended += 1;
        if status != Status::Ok {
            *self.env.counters.refusals(status) += 1;
        }
        self.end_round_trip(p, slot, status, AtomicResult::default());
    }

    /// A round trip is over: first the reply record (or, if it named no slot and failed, an error
    /// record), then the counter.
    pub(crate) fn end_round_trip<P: Platform>(
        &mut self,
        p: &mut P,
        slot: ReadSlot,
        status: Status,
        result: AtomicResult,
    ) {
        let Some(read) = self.reads.get(slot.index()).copied() else {
            return;
        };
        self.free_read_slot(slot);
        let Some(port) = self.ports.of_owner(read.port, read.port_generation) else {
            return;
        };
        let AtomicResult { value, second } = result;
        let reply = Reply {
            op: read.op,
            status,
            value,
            second,
        };
        let told = port.store_reply(p, &self.env, read.reply, reply);
        if status != Status::Ok && !told {
            let record = ErrorRecord {
                op: read.op,
                status,
                node: read.node,
                port: read.remote_port,
                epoch: read.epoch,
                address: read.remote,
            };
            port.record_error(p, &mut self.env, &record);
        }
        port.complete(p, &mut self.env, Count::Reads);
    }

    /// Whether an answer of a node is awaited.
    pub(crate) fn asks(&self, node: NodeId) -> bool {
        self.reads
            .iter()
            .any(|read| read.state == RoundTripState::Asked && read.node == node)
    }

    /// Whether a node has acknowledged a request (which it does after it has answered) and the answer
    /// has not come for as long as a gap may stay: it is lost, and with it the link.
    pub(crate) fn answer_is_overdue(&mut self, now: Nanos, node: NodeId) -> bool {
        let Some(acked) = self.peers.get(node.index()).map(|peer| peer.credits.acked()) else {
            return false;
        };
        let window = u32::from(self.env.config.geometry.window);
        let timeout = self.env.config.timers.gap_timeout;
        let mut overdue = false;
        for read in self.reads.iter_mut() {
            let asked = read.state == RoundTripState::Asked && read.node == node;
            if !asked || read.seq.since(acked) < window {
                continue;
            }
            match read.answered {
                None => read.answered = Some(now),
                Some(since) => overdue |= since.after(timeout) <= now,
            }
        }
        overdue
    }

    /// The link to a node has failed: what was asked of it gets no answer.
    pub(crate) fn fail_round_trips<P: Platform>(&mut self, p: &mut P, node: NodeId) {
        for index in 0..self.env.config.geometry.reads {
            let slot = ReadSlot(index);
            let asked = self
                .reads
                .get(slot.index())
                .is_some_and(|read| read.state == RoundTripState::Asked && read.node == node);
            if asked {
                self.end_round_trip(p, slot, Status::LinkLost, AtomicResult::default());
            }
        }
    }
}

/// The responder's side.
impl<S: Storage> Nic<S> {
    /// A request for data has arrived, or its turn has come.
    pub(crate) fn read_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(slot) = self.slot_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        // The whole request is in the slot.
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let header = &slot.header;
        let (address, len) = (header.address(), header.read_len());
        let vpn = Vpn::of(header.destination_port(), address);
        let offset = address.page_offset();
        if let Err(status) = self.authorise_read(p, now, at) {
            return self.refuse_read(p, at, status);
        }
        if len == 0 {
            self.refuse_read(p, at, Status::Ok);
            return Step::Ended(Status::Ok);
        }
        let Some(staging) = self.stage_for_read(at, vpn, offset, len) else {
            self.env.counters.staging_stalls += 1;
            self.set_slot(at, SlotState::Queued);
            self.waiting_reads.push(&mut self.env.lines, at.0);
            return Step::Pending;
        };
        self.set_slot(at, SlotState::Sourcing);
        match self.fill(p, now, staging) {
            Fill::Started => Step::Pending,
            Fill::Refused(status) => {
                self.drop_staging(staging);
                self.refuse_read(p, at, status)
            }
        }
    }

    /// Answers a read without data.
    #[cold]
    fn refuse_read<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) -> Step {
        if let Some(request) = self.slot(at).map(|slot| slot.header.decode()) {
            self.reply(p, &request, Err(status));
        }
        Step::Refused
    }

    /// Whether the read in a window slot may be served.
    pub(crate) fn authorise_read<P: Platform>(&mut self, p: &P, now: Nanos, at: BounceId) -> Authority {
        let Some(slot) = self.slots.get_mut(at.index()) else {
            return Err(Status::Malformed);
        };
        let (len, wanted) = (slot.header.payload_len(), slot.header.read_len());
        let peer = self.peers.get(slot.header.source().index());
        let authority = if len != 0 || peer.is_none_or(|peer| wanted > peer.payload) {
            Err(Status::Malformed)
        } else if let Some(port) = self.ports.get(slot.header.destination_port()) {
            self.env
                .capabilities
                .authorise(p.bar(), now, slot, port, wanted, Modes::READ)
        } else {
            Err(Status::NoSuchPort)
        };
        if let Err(status) = authority {
            *self.env.counters.refusals(status) += 1;
        }
        authority
    }

    /// The data of a read is in its staging buffer, or will not be.
    pub(crate) fn read_served<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        data: Result<StagingId, Status>,
    ) {
        let Some(slot) = self.slot(at) else {
            return;
        };
        if slot.state != SlotState::Sourcing {
            return;
        }
        let header = slot.header.decode();
        self.reply(p, &header, data);
        let step = match data {
            Ok(_) => Step::Ended(Status::Ok),
            Err(_) => Step::Refused,
        };
        self.end_step(p, now, at, step);
    }

    /// The link over which a read came has failed: its data is not wanted any more.
    pub(crate) fn orphan_read(&mut self, at: BounceId) {
        for id in 0..self.env.config.geometry.staging {
            let id = StagingId(id);
            let found = self
                .staging
                .get(id.index())
                .is_some_and(|staging| staging.owner == StagingFor::Read(at));
            if found {
                self.abandon_staging(id);
                return;
            }
        }
    }

    /// Sends a reply: data, or (also for "nothing, all well") a status.
    pub(crate) fn reply<P: Platform>(
        &mut self,
        p: &mut P,
        request: &Header,
        data: Result<StagingId, Status>,
    ) {
        let Body::ReadRequest { ticket, len } = request.body() else {
            return;
        };
        let status = data.err().unwrap_or(Status::Ok);
        let body = Body::ReadReply { ticket, status };
        match data {
            Ok(staging) => {
                self.env.counters.reads_served += 1;
                self.env.counters.bytes_sent += u64::from(len as u16);
                p.transmit(&self.answer(body, len as u16, request), Payload::Staging(staging));
            }
            Err(_) => p.transmit(&self.answer(body, 0, request), Payload::Empty),
        }
    }

    /// Gives free staging buffers to reads that wait for one. Also called once in every pass.
    #[inline]
    pub(crate) fn resume_reads<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        if !self.waiting_reads.is_empty() {
            self.resume_some_reads(p, now);
        }
    }

    #[cold]
    fn resume_some_reads<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        for _ in 0..4 {
            if self.waiting_reads.is_empty() || !self.staging_for_reads() {
                return;
            }
            let Some(id) = self.waiting_reads.pop(&self.env.lines) else {
                return;
            };
            self.resume(p, now, BounceId(id));
        }
    }
}
