//! Round trips of this node (thesis 5.5): reads, flushes, atomics.
//!
//! A round trip holds a read slot, which owns a bounce page for the reply; so the reply needs no credit, and two nodes
//! full of reads cannot wait for each other.

use crate::counters::Counters;
use crate::dmas::{Access, Dmas, Holder, PageWanted};
use crate::env::Env;
use crate::links::Peer;
use crate::platform::{Dma, Platform};
use crate::ports::Port;
use crate::queue::Fifo;
use netvm_abi::bounce::BounceUse;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::{ErrorRecord, Reply};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, OwnHeader, ReadTicket};
use netvm_abi::{
    ByteLen, Epoch, Generation, Nanos, NodeId, OpId, PortId, ReadSlot, ReceiveId, ReplySlot, Seq, VirtAddr,
    Vpn,
};

/// One read slot in so many is kept for ports and nodes that have none.
const KEPT: u16 = 8;
/// A node may owe so many answers for each slot that a port may hold.
const NODE_SHARE: u16 = 3;

/// Whether a port, or a node, may get one more read slot: while it holds fewer than are free beside those that are kept, so alone it
/// gets nearly half (a node three quarters). Many that hold what they have leave less and less; what is kept is for those that have
/// none, one each (promise P5). The first rule is the dynamic threshold of Choudhury and Hahne (IEEE/ACM Transactions on Networking,
/// 1998).
const fn may_hold_more(held: u16, free: u16) -> bool {
    held == 0 || held < free
}

/// What a round trip asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundTripKind {
    /// Data.
    Read,
    /// That everything earlier has landed.
    Flush,
    /// That everything earlier has been received. No message asks for it, and no answer names it.
    Received,
    /// An atomic operation.
    Atomic,
}

/// How far a round trip is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    state: State,
    kind: RoundTripKind,
    port: PortId,
    port_generation: Generation,
    generation: Generation,
    node: NodeId,
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
        state: State::Free,
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
    fn issue<'a>(
        &mut self,
        header: &mut OwnHeader,
        slot: ReadSlot,
        local: VirtAddr,
        counters: &'a mut Counters,
    ) -> &'a mut u64 {
        self.state = State::Asked;
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

/// What becomes of a reply that has moved on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The host, or a DMA slot, or nothing at all is waited for.
    No,
    /// The round trip is over.
    Over(Status),
}

impl RoundTrip {
    /// The port that asked, and its owner then.
    pub(crate) const fn asker(&self) -> (PortId, Generation) {
        (self.port, self.port_generation)
    }

    /// The node that was asked, if its answer is still owed.
    pub(crate) fn debtor(&self) -> Option<NodeId> {
        self.owed.then_some(self.node)
    }

    /// Tells the port how its round trip has ended: the reply record (or, if it named no slot and failed, an error
    /// record).
    pub(crate) fn tell<P: Platform, S: Storage>(
        &self,
        p: &mut P,
        env: &mut Env<S>,
        port: &mut Port,
        status: Status,
        (value, second): (u64, u64),
    ) {
        let reply = Reply {
            op: self.op,
            status,
            value,
            second,
        };
        let told = port.store_reply(p, env, self.reply, reply);
        if status != Status::Ok && !told {
            let record = ErrorRecord {
                op: self.op,
                status,
                node: self.node,
                port: self.remote_port,
                epoch: self.epoch,
                address: self.remote,
            };
            port.record_error(p, env, &record);
        }
    }

    /// Whether it waits until a node has received something.
    fn awaits_receipt(&self) -> bool {
        self.kind == RoundTripKind::Received && self.state == State::Asked
    }

    /// Whether an answer of `node` is awaited.
    fn asks(&self, node: NodeId) -> bool {
        self.state == State::Asked && self.node == node
    }
}

/// All round trips.
pub(crate) struct RoundTrips<S: Storage> {
    table: S::Table<RoundTrip>,
    free: Fifo,
    /// How many are free.
    left: u16,
    /// Some may wait until a node has received something.
    receipts: bool,
}

impl<S: Storage> RoundTrips<S> {
    pub(crate) fn new(env: &mut Env<S>, table: S::Table<RoundTrip>) -> Self {
        let mut free = Fifo::new();
        for read in 0..env.config.geometry.reads {
            let link = BounceUse::Reply(ReadSlot(read)).id(&env.config.geometry);
            free.push(&mut env.lines, link.0);
        }
        Self {
            table,
            free,
            left: env.config.geometry.reads,
            receipts: false,
        }
    }

    /// Slots that are not free.
    pub(crate) fn held(&self) -> u32 {
        self.table.iter().filter(|read| read.state != State::Free).count() as u32
    }

    fn get_mut(&mut self, slot: ReadSlot) -> Option<&mut RoundTrip> {
        self.table.get_mut(slot.index())
    }

    /// Reserves a read slot for a port's round trip to a node, as far as their shares go ([`may_hold_more`]).
    pub(crate) fn reserve(
        &mut self,
        env: &Env<S>,
        port: &mut Port,
        peer: &mut Peer,
        node: NodeId,
    ) -> Option<ReadSlot> {
        let beyond = self.left.saturating_sub(env.config.geometry.reads / KEPT);
        if !may_hold_more(port.reads(), beyond) || !may_hold_more(peer.reads(), NODE_SHARE * beyond) {
            return None;
        }
        let link = self.free.pop(&env.lines)?;
        self.left -= 1;
        let Some(BounceUse::Reply(slot)) = BounceUse::from_id(&env.config.geometry, link.into()) else {
            return None;
        };
        let read = self.get_mut(slot)?;
        *read = RoundTrip {
            state: State::Reserved,
            port: port.id(),
            node,
            owed: true,
            port_generation: port.generation(),
            generation: Generation(read.generation.0.wrapping_add(1)),
            ..RoundTrip::FREE
        };
        port.takes_read();
        peer.owes_answer();
        Some(slot)
    }

    /// Gives a read slot back. What stood in it says whose shares it counted against.
    pub(crate) fn release(&mut self, env: &mut Env<S>, slot: ReadSlot) -> Option<RoundTrip> {
        let read = self.get_mut(slot)?;
        if read.state == State::Free {
            return None;
        }
        let over = *read;
        read.state = State::Free;
        read.owed = false;
        let link = BounceUse::Reply(slot).id(&env.config.geometry);
        self.free.push(&mut env.lines, link.0);
        self.left += 1;
        Some(over)
    }

    /// The request in a slot leaves: from now on its answer is awaited.
    #[inline]
    pub(crate) fn issue(
        &mut self,
        counters: &mut Counters,
        header: &mut OwnHeader,
        slot: ReadSlot,
        local: VirtAddr,
    ) {
        if let Some(read) = self.get_mut(slot) {
            *read.issue(header, slot, local, counters) += 1;
        }
    }

    /// A port's command waits until its node has received everything before `next`.
    #[cold]
    pub(crate) fn await_receipt(&mut self, command: &OwnHeader, slot: ReadSlot, next: Seq) {
        let Some(read) = self.get_mut(slot) else {
            return;
        };
        read.state = State::Asked;
        read.kind = RoundTripKind::Received;
        read.node = command.destination();
        read.op = command.op();
        read.reply = command.reply();
        read.epoch = command.epoch();
        // The last number that is waited for.
        read.seq = next.plus(u32::MAX);
        self.receipts = true;
    }

    /// Whether anything may wait until some node has received it.
    #[inline]
    pub(crate) const fn await_receipts(&self) -> bool {
        self.receipts
    }

    /// Finds out whether anything still does. A link that ends takes its waits with it without a word here.
    pub(crate) fn look_for_receipts(&mut self) {
        self.receipts = self.table.iter().any(RoundTrip::awaits_receipt);
    }

    /// Whether the wait in a slot is over: it is for a node that has received everything before `next`.
    pub(crate) fn is_received(&self, slot: ReadSlot, node: NodeId, next: Seq) -> bool {
        self.get(slot)
            .is_some_and(|read| read.awaits_receipt() && read.node == node && next.is_after(read.seq))
    }

    /// Whether an answer is the one that a slot waits for.
    pub(crate) fn awaits(&self, ticket: ReadTicket, node: NodeId, kind: RoundTripKind) -> bool {
        self.table
            .get(ticket.slot.index())
            .is_some_and(|read| read.asks(node) && read.generation == ticket.generation && read.kind == kind)
    }

    /// The data of a read that is awaited has come, or the reason that it does not. Gives the status that it is over
    /// with, unless its data are to be [placed](Self::place).
    pub(crate) fn answered(
        &mut self,
        slot: ReadSlot,
        receive: ReceiveId,
        len: u16,
        status: Status,
    ) -> Option<Status> {
        let read = self.get_mut(slot)?;
        let status = match status {
            Status::Ok if len != read.len => Status::Malformed,
            status => status,
        };
        if status != Status::Ok || read.len == 0 {
            return Some(status);
        }
        read.receive = receive;
        None
    }

    /// The answer is here, so its node owes it no more: gives the node the first time.
    pub(crate) fn paid(&mut self, slot: ReadSlot) -> Option<NodeId> {
        let read = self.get_mut(slot)?;
        core::mem::take(&mut read.owed).then_some(read.node)
    }

    /// What stands in a slot.
    pub(crate) fn get(&self, slot: ReadSlot) -> Option<&RoundTrip> {
        self.table.get(slot.index())
    }

    /// The receive buffer of a reply.
    pub(crate) fn receive_of(&self, slot: ReadSlot) -> Option<ReceiveId> {
        self.get(slot).map(|read| read.receive)
    }

    /// Moves a reply into its page, or into its bounce page.
    pub(crate) fn place<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        dmas: &mut Dmas,
        port: &mut Port,
        slot: ReadSlot,
    ) {
        let Some(read) = self.table.get_mut(slot.index()) else {
            return;
        };
        let (receive, holder) = (read.receive, Holder::Reply(slot));
        let Some(ticket) = dmas.ticket() else {
            read.state = State::Queued;
            dmas.park(env, holder);
            return;
        };
        let wanted = PageWanted {
            vpn: Vpn::of(read.port, read.local),
            offset: read.local.page_offset(),
            len: ByteLen(u32::from(read.len)),
            segment: None,
            access: Access::Write,
        };
        let started = dmas.start_with_page(p, env, port, (ticket, holder), &wanted, |page| {
            Dma::ReceiveToPage { receive, page }
        });
        let Err((ticket, cause)) = started else {
            read.state = State::Moving;
            return;
        };
        read.state = State::Bouncing;
        env.count_bounce(cause);
        let dma = Dma::ReceiveToBounce {
            receive,
            bounce: holder.bounce(&env.config.geometry),
            len: wanted.len,
        };
        dmas.start(p, env, (ticket, holder), dma);
    }

    /// A reply's DMA has ended.
    pub(crate) fn moved<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        slot: ReadSlot,
        ok: bool,
    ) -> Moved {
        let Some(read) = self.table.get_mut(slot.index()) else {
            return Moved::No;
        };
        if !matches!(read.state, State::Moving | State::Bouncing) {
            return Moved::No;
        }
        p.release_receive(read.receive);
        if !ok {
            env.counters.failed += 1;
            return Moved::Over(Status::BusError);
        }
        if mutant::is(Mutant::ReplyStaysInBounce) && read.state == State::Bouncing {
            return Moved::Over(Status::Ok);
        }
        if read.state == State::Moving {
            env.counters.zero_copy += 1;
            return Moved::Over(Status::Ok);
        }
        read.state = State::Bounced;
        // The record names the local page, which the reply from the wire does not.
        let body = Body::ReadReply {
            ticket: ReadTicket::default(),
            status: Status::Ok,
        };
        let mut header = Header::of(body, read.node, env.config.node);
        header.source_port = read.remote_port;
        header.destination_port = read.port;
        header.address = read.local;
        header.len = read.len;
        header.op = read.op;
        header.reply = read.reply;
        header.epoch = read.epoch;
        let bounce = BounceUse::Reply(slot).id(&env.config.geometry);
        env.tell_bounced(p, bounce, read.generation, &header);
        Moved::No
    }

    /// Whether the host has a reply's bounce page, in this use of the slot.
    pub(crate) fn is_bounced(&self, slot: ReadSlot, generation: Generation) -> bool {
        self.get(slot)
            .is_some_and(|read| read.state == State::Bounced && read.generation == generation)
    }

    /// Whether an answer of a node is awaited.
    pub(crate) fn ask(&self, node: NodeId) -> bool {
        self.table.iter().any(|read| read.asks(node))
    }

    /// Whether a node has acknowledged a request (which it does after it has answered) and the answer
    /// has not come for as long as a gap may stay: it is lost, and with it the link.
    pub(crate) fn is_overdue(
        &mut self,
        now: Nanos,
        node: NodeId,
        acked: Seq,
        window: u32,
        patience: Nanos,
    ) -> bool {
        let mut overdue = false;
        for read in self.table.iter_mut() {
            if !read.asks(node) || read.seq.since(acked) < window {
                continue;
            }
            match read.answered {
                None => read.answered = Some(now),
                Some(since) => overdue |= since.after(patience) <= now,
            }
        }
        overdue
    }

    /// The slots, of all, whose answer is awaited from a node.
    pub(crate) fn is_asked(&self, slot: ReadSlot, node: NodeId) -> bool {
        self.get(slot).is_some_and(|read| read.asks(node))
    }
}
