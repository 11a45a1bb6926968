//! Atomic operations (thesis 8.1): a round trip whose answer is what the operand was.
//!
//! One DMA fetches the operand, the operation is carried out here, a second DMA writes the operand back
//! if it has changed. Each locks the page for itself: a page that has gone in between is a miss, and the
//! operation begins again, having done nothing. The answer leaves when the operand stands in host memory.
//!
//! **What is atomic with what.** All atomics on one page take the same *unit*, and a unit carries out one
//! operation at a time, in the order of arrival. So NIC operations on a word never mix, unless it is reached at
//! two addresses, or through two ports, which are different units. The
//! host's processor is no party to that: its own read-modify-writes are not atomic with a NIC's, which
//! fetches and writes back. Its plain loads and stores of an aligned word are, each by itself.
//!
//! **A page that is not there** keeps its unit: the host is asked, later operations on the page wait
//! behind, and the first is *replayed* when the page is mapped. At the third replay that misses the host
//! carries it out itself, while the NIC, whose unit is taken, stays off. An authority is checked again
//! each time.
//!
//! The units are in `inbound/units.rs`.

use super::Nic;
use super::receive::Step;
use crate::authorise::Authority;
use crate::dmas::{Access, Holder, PageWanted, Ticket};
use crate::inbound::{Slot, SlotState, UNITS};
use crate::platform::{Dma, Payload, Platform};
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::bounce::store_record;
use netvm_abi::control::Modes;
use netvm_abi::event::{AtomicAnswer, NicEvent};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Kind};
use netvm_abi::{BounceId, ByteLen, Generation, Nanos, SegmentId, Vpn};

impl<S: Storage> Nic<S> {
    /// A request for an atomic has arrived, or its turn has come.
    #[inline(never)]
    pub(super) fn atomic_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        // The whole request is in the slot.
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let Some(atomic) = Atomic::requested_by(slot.header()) else {
            *self.env.counters.refusals(Status::Malformed) += 1;
            return self.atomic_over(p, at, Err(Status::Malformed));
        };
        let authority = match self.authorise_atomic(p, now, at, atomic.operand_bytes()) {
            Ok(authority) => authority,
            Err(status) => return self.atomic_over(p, at, Err(status)),
        };
        if !self.inbound.enter_unit(&mut self.env, at) {
            self.inbound.set(at, SlotState::Queued);
            return Step::Pending;
        }
        if let Some(unit) = self.inbound.unit(at) {
            unit.begin(atomic);
        }
        let Some(ticket) = self.dmas.ticket() else {
            self.inbound.set(at, SlotState::Queued);
            self.dmas.park(&mut self.env, Holder::Window(at));
            return Step::Pending;
        };
        self.move_operand(p, (ticket, at), authority, None);
        Step::Pending
    }

    /// Starts to fetch the operand, or to store it; if its page cannot be used the host is asked.
    fn move_operand<P: Platform>(
        &mut self,
        p: &mut P,
        (ticket, at): (Ticket, BounceId),
        authority: SegmentId,
        store: Option<&Operand>,
    ) {
        let Some((vpn, offset)) = self.inbound.get(at).map(|slot| {
            let address = slot.header().address();
            let vpn = Vpn::of(slot.header().destination_port(), address);
            (vpn, address.page_offset())
        }) else {
            return;
        };
        let (Some(port), Some(unit)) = (self.ports.get_mut(vpn.port()), self.inbound.unit(at)) else {
            return;
        };
        let (state, access) = match store {
            Some(operand) => {
                p.set_operand(ticket.slot(), operand);
                (SlotState::Storing, Access::Write)
            }
            None => (SlotState::Fetching, Access::ReadForWrite),
        };
        let wanted = PageWanted {
            vpn,
            offset,
            len: ByteLen(unit.atomic().operand_bytes()),
            segment: Some(authority),
            access,
        };
        unit.moves_in(ticket.slot());
        let holder = Holder::Window(at);
        let started = self
            .dmas
            .start_with_page(p, &mut self.env, port, (ticket, holder), &wanted, |page| {
                if store.is_some() {
                    Dma::OperandToPage { page }
                } else {
                    Dma::PageToOperand { page }
                }
            });
        if started.is_ok() {
            self.inbound.set(at, state);
        } else {
            self.atomic_misses(p, at);
        }
    }

    /// The operand has been fetched, or stored.
    pub(super) fn operand_moved<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        state: SlotState,
        ok: bool,
    ) {
        let Some(unit) = self.inbound.unit(at) else {
            return;
        };
        if !ok {
            self.env.counters.failed += 1;
            self.finish_atomic(p, now, at, Err(Status::BusError));
            return;
        }
        if state == SlotState::Storing {
            let result = unit.result();
            self.finish_atomic(p, now, at, Ok(result));
            return;
        }
        let mut operand = p.operand(unit.moved_in());
        let (result, changed) = unit.apply(&mut operand);
        let bytes = unit.atomic().operand_bytes();
        if !changed {
            self.finish_atomic(p, now, at, Ok(result));
            return;
        }
        let authority = match self.authorise_atomic(p, now, at, bytes) {
            Ok(authority) => authority,
            Err(status) => {
                self.finish_atomic(p, now, at, Err(status));
                return;
            }
        };
        match self.dmas.ticket() {
            Some(ticket) => self.move_operand(p, (ticket, at), authority, Some(&operand)),
            None => {
                // The first in line for a slot has it; this one begins again at its turn.
                self.inbound.set(at, SlotState::Queued);
                self.dmas.park(&mut self.env, Holder::Window(at));
            }
        }
    }

    fn authorise_atomic<P: Platform>(&mut self, p: &P, now: Nanos, at: BounceId, len: u32) -> Authority {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Err(Status::Malformed);
        };
        let authority = match self.ports.get(slot.header().destination_port()) {
            Some(port) => self
                .env
                .capabilities
                .authorise(p.bar(), now, slot, port, len, Modes::ATOMIC),
            None => Err(Status::NoSuchPort),
        };
        if let Err(status) = authority {
            *self.env.counters.refusals(status) += 1;
        }
        authority
    }

    /// The page cannot be used: the host is asked for it, and the unit is kept.
    #[cold]
    fn atomic_misses<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        slot.set(SlotState::Bounced);
        let (generation, attempt, header) = (slot.generation(), slot.attempts(), slot.header().decode());
        self.env.counters.atomics_missed += 1;
        store_record(p.shared(), self.env.shared.bounce_record(at), &header);
        self.env.tell_host(
            p,
            NicEvent::AtomicMiss {
                bounce: at,
                generation,
                attempt,
            },
        );
    }

    /// The host has brought an operand's page, or has done what was to be done with it.
    pub(super) fn atomic_answered<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        generation: Generation,
        answer: AtomicAnswer,
    ) {
        let Some(slot) = self.inbound.get_mut(at) else {
            self.env.counters.host_events_refused += 1;
            return;
        };
        let waits = slot.state() == SlotState::Bounced
            && slot.generation() == generation
            && slot.header().kind() == Kind::AtomicRequest;
        if !waits {
            self.env.counters.late_answers += 1;
            return;
        }
        if self.link_is_over(at) {
            self.forget(p, at);
            return;
        }
        match answer {
            AtomicAnswer::Retry => {
                self.env.counters.atomic_replays += 1;
                if let Some(slot) = self.inbound.get_mut(at) {
                    slot.try_again();
                }
                self.resume(p, now, at);
            }
            AtomicAnswer::Done(result) => {
                self.env.counters.atomics_by_host += 1;
                self.finish_atomic(p, now, at, Ok(result));
            }
        }
    }

    /// Answers an operation that something came back for.
    pub(super) fn finish_atomic<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        result: Result<AtomicResult, Status>,
    ) {
        let step = self.atomic_over(p, at, result);
        self.end_step(p, now, at, step);
    }

    /// Answers an operation, and lets the next one on its page follow. An operation that failed has been
    /// told so: for its stream it has not failed.
    pub(super) fn atomic_over<P: Platform>(
        &mut self,
        p: &mut P,
        at: BounceId,
        result: Result<AtomicResult, Status>,
    ) -> Step {
        let step = match result {
            Ok(_) => Step::Ended(Status::Ok),
            Err(_) => Step::Refused,
        };
        self.answer_atomic(p, at, result);
        self.inbound.leave_unit(&mut self.env, at);
        step
    }

    /// Sends the answer to an atomic.
    pub(super) fn answer_atomic<P: Platform>(
        &mut self,
        p: &mut P,
        at: BounceId,
        result: Result<AtomicResult, Status>,
    ) {
        let Some(request) = self.inbound.get(at).map(Slot::header) else {
            return;
        };
        let Body::AtomicRequest { ticket, .. } = request.body() else {
            return;
        };
        self.env.counters.atomics_served += u64::from(result.is_ok());
        let body = Body::AtomicReply {
            ticket,
            status: result.err().unwrap_or(Status::Ok),
            result: result.unwrap_or_default(),
        };
        let header = self.links.answer(body, 0, request);
        p.transmit(&header, Payload::Empty);
    }

    /// Takes up operations that have got their unit. Called once in every pass.
    #[inline]
    pub(super) fn resume_atomics<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        if self.inbound.any_ready() {
            self.resume_some_atomics(p, now);
        }
    }

    #[cold]
    fn resume_some_atomics<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        for _ in 0..UNITS {
            let Some(at) = self.inbound.next_ready(&self.env) else {
                return;
            };
            self.resume(p, now, at);
        }
    }
}
