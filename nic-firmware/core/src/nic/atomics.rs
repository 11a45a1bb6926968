//! Atomic operations (thesis 8.1): a round trip whose answer is what the operand was.
//!
//! One DMA fetches the operand, the operation is carried out here, a second DMA writes the operand back
//! if it has changed. Each locks the page for itself: a page that has gone in between is a miss, and the
//! operation begins again, having done nothing. The answer leaves when the operand stands in host memory.
//!
//! **By the processor.** A platform whose processor shares the memory with the card carries out an atomic of up to 8 bytes in
//! place, by one read-modify-write ([`Platform::apply`]), in the call that would have fetched the operand.
//!
//! **What is atomic with what.** All atomics on one page take the same *unit*, and a unit carries out one
//! operation at a time, in the order of arrival. So NIC operations on a word never mix, unless it is reached at
//! two addresses, or through two ports, which are different units. Where the platform's processor does the work they do not mix
//! either way, nor with read-modify-writes of programs. Elsewhere the
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
use crate::dmas::{Access, Dmas, Holder, NoPage, PageWanted};
use crate::env::Env;
use crate::inbound::{Slot, SlotState, UNITS, Unit, leave};
use crate::leases::Extension;
use crate::links::Links;
use crate::platform::{Dma, Payload, Platform};
use crate::ports::Port;
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::bounce::store_record;
use netvm_abi::control::Modes;
use netvm_abi::event::{AtomicAnswer, NicEvent};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Kind, OwnHeader};
use netvm_abi::{BounceId, ByteLen, Generation, Nanos, SegmentId};

/// The atomic in a slot, with all that it needs to move its operand.
struct Operation<'a, S: Storage> {
    at: BounceId,
    slot: &'a mut Slot,
    unit: &'a mut Unit,
    port: &'a mut Port,
    /// Bytes of its operand.
    bytes: u32,
    env: &'a mut Env<S>,
    dmas: &'a mut Dmas,
}

impl<S: Storage> Operation<'_, S> {
    /// Has it carried out by the processor in place, where the platform can do so. `None`: by two DMAs.
    ///
    /// # Errors
    /// Its page cannot be used.
    #[inline]
    fn apply_in_place<P: Platform>(
        &mut self,
        p: &mut P,
        authority: SegmentId,
    ) -> Result<Option<AtomicResult>, NoPage> {
        if !p.applies_atomics() || self.bytes > 8 {
            return Ok(None);
        }
        let atomic = *self.unit.atomic();
        let wanted = self.wanted(authority, Access::Write);
        let result = match self.env.change_page(p, &wanted, |p, page| p.apply(page, &atomic)) {
            Ok(result) => result,
            Err(cause) => {
                let reached = self
                    .env
                    .reach(p, &wanted, cause, |p, place| p.reach_and_apply(place, &atomic));
                Some(reached.ok_or(cause)?)
            }
        };
        self.env.counters.atomics_in_place += u64::from(result.is_some());
        Ok(result)
    }

    #[inline(always)]
    fn wanted(&self, authority: SegmentId, access: Access) -> PageWanted {
        PageWanted {
            vpn: self.slot.page(),
            offset: self.slot.header().address().page_offset(),
            len: ByteLen(self.bytes),
            segment: Some(authority),
            access,
        }
    }

    /// Starts to fetch the operand, or to store it; later, if no DMA is free.
    ///
    /// # Errors
    /// Its page cannot be used.
    #[inline(always)]
    fn move_operand<P: Platform>(
        self,
        p: &mut P,
        authority: SegmentId,
        store: Option<&Operand>,
    ) -> Result<(), NoPage> {
        let holder = Holder::Window(self.at);
        let Some(ticket) = self.dmas.ticket() else {
            // The first in line for a slot has it; one that has fetched its operand begins again at its turn.
            self.slot.set(SlotState::Queued);
            self.dmas.park(self.env, holder);
            return Ok(());
        };
        let (state, access) = match store {
            Some(operand) => {
                p.set_operand(ticket.slot(), operand);
                (SlotState::Storing, Access::Write)
            }
            None => (SlotState::Fetching, Access::ReadForWrite),
        };
        let wanted = self.wanted(authority, access);
        self.unit.moves_in(ticket.slot());
        let started =
            self.dmas.start_with_page(
                p,
                self.env,
                self.port,
                (ticket, holder),
                &wanted,
                |page| match store {
                    Some(_) => Dma::OperandToPage { page },
                    None => Dma::PageToOperand { page },
                },
            );
        match started {
            Ok(()) => {
                self.slot.set(state);
                Ok(())
            }
            Err((_, cause)) => Err(cause),
        }
    }
}

/// Whether the atomic in a slot may be done.
#[inline(always)]
fn authorise<'a, P: Platform, S: Storage>(
    p: &P,
    now: Nanos,
    env: &mut Env<S>,
    slot: &mut Slot,
    port: Option<&'a mut Port>,
    len: u32,
) -> Result<(SegmentId, &'a mut Port), Status> {
    match port {
        Some(port) => env
            .capabilities
            .authorise(p.bar(), now, slot, port, len, Modes::ATOMIC)
            .map(|segment| (segment, port)),
        None => Err(Status::NoSuchPort),
    }
}

/// Answers an atomic.
#[inline(always)]
fn answer<P: Platform, S: Storage>(
    p: &mut P,
    env: &mut Env<S>,
    links: &mut Links<S>,
    request: &OwnHeader,
    result: Result<AtomicResult, Status>,
) {
    let Some(ticket) = request.atomic_ticket() else {
        return;
    };
    env.counters.atomics_served += u64::from(result.is_ok());
    let body = Body::AtomicReply {
        ticket,
        status: result.err().unwrap_or(Status::Ok),
        result: result.unwrap_or_default(),
    };
    let mut header = links.answer(body, 0, request);
    links.keep_answer(env, &mut header, Payload::Empty);
    p.transmit(&header, Payload::Empty);
}

impl<S: Storage> Nic<S> {
    /// A request for an atomic has arrived, or its turn has come.
    #[inline(never)]
    pub(super) fn atomic_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some((slot, unit)) = self.inbound.with_unit(at) else {
            return Step::Ended(Status::Malformed);
        };
        // The whole request is in the slot.
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let (env, dmas) = (&mut self.env, &mut self.dmas);
        let Some(atomic) = Atomic::requested_by(slot.header()) else {
            return self.other_request(p, now, at);
        };
        let bytes = atomic.operand_bytes();
        let port = self.ports.get_mut(slot.header().destination_port());
        let (authority, port) = match authorise(p, now, env, slot, port, bytes) {
            Ok(granted) => granted,
            Err(status) => return self.atomic_not_begun(p, at, status),
        };
        let Some(unit) = unit else {
            return Step::Ended(Status::NoSuchPort);
        };
        if !unit.enter(env, at, slot) {
            slot.set(SlotState::Queued);
            return Step::Pending;
        }
        unit.begin(atomic);
        let mut operation = Operation {
            at,
            slot,
            unit,
            port,
            bytes,
            env,
            dmas,
        };
        let moved = match operation.apply_in_place(p, authority) {
            Ok(Some(result)) => return self.atomic_over(p, at, Ok(result)),
            Ok(None) => operation.move_operand(p, authority, None),
            Err(cause) => Err(cause),
        };
        if moved.is_err() {
            self.atomic_misses(p, at);
        }
        Step::Pending
    }

    /// What has the form of an atomic, and is none: an extension of a lease, or nothing.
    #[cold]
    fn other_request<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some((slot, _)) = self.inbound.with_unit(at) else {
            return Step::Ended(Status::Malformed);
        };
        let extension = Extension::requested_by(slot.header()).ok_or(Status::Malformed);
        let port = self.ports.get_mut(slot.header().destination_port());
        let result = extension.and_then(|extension| {
            let port = port.ok_or(Status::NoSuchPort)?;
            let leases = &self.env.capabilities;
            leases.extend_lease(p.bar(), now, slot, port, extension)
        });
        match result {
            Ok(_) => self.env.counters.leases_extended += 1,
            Err(status) => *self.env.counters.refusals(status) += 1,
        }
        self.atomic_over(p, at, result)
    }

    /// The operand has been fetched: carries the operation out, and stores it if it has changed.
    #[inline(never)]
    pub(super) fn operand_fetched<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let Some((slot, Some(unit))) = self.inbound.with_unit(at) else {
            return;
        };
        let mut operand = p.operand(unit.moved_in());
        let (result, changed) = unit.apply(&mut operand);
        if !changed {
            return self.finish_atomic(p, now, at, Ok(result));
        }
        let bytes = unit.atomic().operand_bytes();
        let (env, dmas) = (&mut self.env, &mut self.dmas);
        let port = self.ports.get_mut(slot.header().destination_port());
        match authorise(p, now, env, slot, port, bytes) {
            Ok((authority, port)) => {
                let operation = Operation {
                    at,
                    slot,
                    unit,
                    port,
                    bytes,
                    env,
                    dmas,
                };
                if operation.move_operand(p, authority, Some(&operand)).is_err() {
                    self.atomic_misses(p, at);
                }
            }
            Err(status) => {
                *env.counters.refusals(status) += 1;
                self.finish_atomic(p, now, at, Err(status));
            }
        }
    }

    /// An atomic may not be carried out.
    #[cold]
    #[inline(never)]
    fn atomic_not_begun<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) -> Step {
        if self.lease_begins_late(p, at, status) {
            return self.atomic_arrives(p, self.env.now, at);
        }
        *self.env.counters.refusals(status) += 1;
        self.atomic_over(p, at, Err(status))
    }

    /// The operand has been stored.
    #[inline(never)]
    pub(super) fn operand_stored<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let Some((slot, Some(unit))) = self.inbound.with_unit(at) else {
            return;
        };
        answer(
            p,
            &mut self.env,
            &mut self.links,
            slot.header(),
            Ok(unit.result()),
        );
        if let Some(next) = leave(&self.env, slot, Some(unit)) {
            self.inbound.hand_over(&mut self.env, next);
        }
        self.land(p, now, at);
    }

    /// The operand has not been moved.
    #[cold]
    pub(super) fn operand_fails<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        self.env.counters.failed += 1;
        self.finish_atomic(p, now, at, Err(Status::BusError));
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
    #[inline(never)]
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
    #[inline(never)]
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
        if let Some((slot, unit)) = self.inbound.with_unit(at) {
            answer(p, &mut self.env, &mut self.links, slot.header(), result);
            if let Some(next) = leave(&self.env, slot, unit) {
                self.inbound.hand_over(&mut self.env, next);
            }
        }
        step
    }

    /// Sends the answer to an atomic.
    pub(super) fn answer_atomic<P: Platform>(
        &mut self,
        p: &mut P,
        at: BounceId,
        result: Result<AtomicResult, Status>,
    ) {
        if let Some(slot) = self.inbound.get(at) {
            answer(p, &mut self.env, &mut self.links, slot.header(), result);
        }
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
