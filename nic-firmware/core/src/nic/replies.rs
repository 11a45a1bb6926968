//! The requester's side of round trips: an answer arrives, its data find their place, and the port is told.

use super::Nic;
use crate::platform::Platform;
use crate::ports::Count;
use crate::round_trips::{Moved, RoundTripKind};
use netvm_abi::atomic::AtomicResult;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::ReadTicket;
use netvm_abi::{Generation, NodeId, OpId, ReadSlot, ReceiveId};

impl<S: Storage> Nic<S> {
    /// The reply to a read has arrived.
    pub(super) fn reply_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        receive: ReceiveId,
        node: NodeId,
        len: u16,
        ticket: ReadTicket,
        status: Status,
    ) {
        let slot = ticket.slot;
        if !self.round_trips.awaits(ticket, node, RoundTripKind::Read) {
            self.env.counters.late_replies += 1;
            p.release_receive(receive);
            return;
        }
        self.env.counters.read_replies += 1;
        self.env.counters.bytes_received += u64::from(len);
        if let Some(status) = self.round_trips.answered(slot, receive, len, status) {
            p.release_receive(receive);
            self.end_round_trip(p, slot, status, AtomicResult::default());
            return;
        }
        if let Some(node) = self.round_trips.paid(slot) {
            self.owes_one_answer_less(node);
        }
        self.place_reply(p, slot);
    }

    /// The answer to a flush has arrived.
    pub(super) fn flush_reply_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        node: NodeId,
        ticket: ReadTicket,
        status: Status,
        [failed, refused]: [OpId; 2],
    ) {
        if !self.round_trips.awaits(ticket, node, RoundTripKind::Flush) {
            self.env.counters.late_replies += 1;
            return;
        }
        self.env.counters.flush_replies += 1;
        let result = AtomicResult {
            value: u64::from(failed.0) | u64::from(refused.0) << 32,
            second: 0,
        };
        self.end_round_trip(p, ticket.slot, status, result);
    }

    /// The answer to an atomic has arrived.
    pub(super) fn atomic_reply_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        node: NodeId,
        ticket: ReadTicket,
        status: Status,
        result: AtomicResult,
    ) {
        if !self.round_trips.awaits(ticket, node, RoundTripKind::Atomic) {
            self.env.counters.late_replies += 1;
            return;
        }
        self.env.counters.atomic_replies += 1;
        self.end_round_trip(p, ticket.slot, status, result);
    }

    /// Moves a reply to where it belongs, unless its port is gone.
    pub(super) fn place_reply<P: Platform>(&mut self, p: &mut P, slot: ReadSlot) {
        let Some(read) = self.round_trips.get(slot) else {
            return;
        };
        let (port, owner) = read.asker();
        if let Some(port) = self.ports.of_owner(port, owner) {
            self.round_trips
                .place(p, &mut self.env, &mut self.dmas, port, slot);
            return;
        }
        if let Some(receive) = self.round_trips.receive_of(slot) {
            p.release_receive(receive);
        }
        self.free_read_slot(slot);
    }

    /// A reply's DMA has ended.
    pub(super) fn reply_moved<P: Platform>(&mut self, p: &mut P, slot: ReadSlot, ok: bool) {
        if let Moved::Over(status) = self.round_trips.moved(p, &mut self.env, slot, ok) {
            self.end_round_trip(p, slot, status, AtomicResult::default());
        }
    }

    /// The host has emptied a reply's bounce page.
    pub(super) fn reply_ended<P: Platform>(
        &mut self,
        p: &mut P,
        slot: ReadSlot,
        generation: Generation,
        status: Status,
    ) {
        if !self.round_trips.is_bounced(slot, generation) {
            self.env.counters.late_answers += 1;
            return;
        }
        self.env.counters.bounces_ended += 1;
        if status != Status::Ok {
            *self.env.counters.refusals(status) += 1;
        }
        self.end_round_trip(p, slot, status, AtomicResult::default());
    }

    /// A round trip is over: first its port is told, then the counter moves.
    pub(super) fn end_round_trip<P: Platform>(
        &mut self,
        p: &mut P,
        slot: ReadSlot,
        status: Status,
        result: AtomicResult,
    ) {
        let Some(read) = self.round_trips.get(slot).copied() else {
            return;
        };
        self.free_read_slot(slot);
        let (port, owner) = read.asker();
        if let Some(port) = self.ports.of_owner(port, owner) {
            read.tell(p, &mut self.env, port, status, (result.value, result.second));
            port.complete(p, &mut self.env, Count::Reads);
        }
    }

    /// Gives a read slot back.
    pub(super) fn free_read_slot(&mut self, slot: ReadSlot) {
        let Some(over) = self.round_trips.release(&mut self.env, slot) else {
            return;
        };
        if let Some(port) = self.ports.get_mut(over.asker().0) {
            port.gives_read();
        }
        if let Some(node) = over.debtor() {
            self.owes_one_answer_less(node);
        }
        self.ports.stir();
    }

    fn owes_one_answer_less(&mut self, node: NodeId) {
        if let Some(peer) = self.links.get_mut(node) {
            peer.pays_answer();
        }
    }

    /// The link to a node has failed: what was asked of it gets no answer.
    pub(super) fn fail_round_trips<P: Platform>(&mut self, p: &mut P, node: NodeId) {
        for index in 0..self.env.config.geometry.reads {
            let slot = ReadSlot(index);
            if self.round_trips.is_asked(slot, node) {
                self.end_round_trip(p, slot, Status::LinkLost, AtomicResult::default());
            }
        }
    }
}
