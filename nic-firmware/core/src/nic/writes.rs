//! A write arrives (thesis 5.4, figure 16): check, lock, DMA into the page, mark dirty, unlock; or,
//! when the page cannot be used, the bounce page.

use super::Nic;
use super::receive::Step;
use crate::dmas::{Access, Dmas, Holder, NoPage, PageWanted, Ticket};
use crate::env::Env;
use crate::inbound::{Slot, SlotState};
use crate::platform::{Dma, Platform, Way};
use crate::ports::Ports;
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, ByteLen, Nanos, Vpn};

/// What became of a write at once.
pub(super) enum Begun {
    /// A DMA moves it, or it waits for one.
    Moves,
    /// It has nothing to move, or that is done: it is over.
    Over,
    /// It may not be done.
    Refused(Status),
    /// Its page cannot be used.
    Misses(Ticket, NoPage),
}

/// The parts that a write needs.
pub(super) struct Parts<'a, S: Storage> {
    pub(super) env: &'a mut Env<S>,
    pub(super) ports: &'a mut Ports<S>,
    pub(super) dmas: &'a mut Dmas,
}

impl<S: Storage> Parts<'_, S> {
    /// Checks the write in a slot, locks its page and starts its DMA. `mode` is what its capability must allow: to
    /// write, or for an append that has its place, to append.
    #[inline(always)]
    pub(super) fn begin<P: Platform>(
        self,
        p: &mut P,
        now: Nanos,
        (at, slot): (BounceId, &mut Slot),
        mode: Modes,
    ) -> Begun {
        let Some(port) = self.ports.get_mut(slot.header().destination_port()) else {
            return Begun::Refused(Status::NoSuchPort);
        };
        let (bar, len) = (p.bar(), u32::from(slot.header().payload_len()));
        let authority = match self.env.capabilities.authorise(bar, now, slot, port, len, mode) {
            Ok(authority) => authority,
            Err(status) => return Begun::Refused(status),
        };
        if len == 0 {
            // A notification alone: no page, no lock, no DMA.
            return Begun::Over;
        }
        let Some(ticket) = self.dmas.ticket() else {
            slot.set(SlotState::Queued);
            self.dmas.park(self.env, Holder::Window(at));
            return Begun::Moves;
        };
        let address = slot.header().address();
        let wanted = PageWanted {
            vpn: Vpn::of(slot.header().destination_port(), address),
            offset: address.page_offset(),
            len: ByteLen(len),
            segment: Some(authority),
            access: Access::Write,
        };
        let (receive, holder) = (slot.receive(), Holder::Window(at));
        let started = self
            .dmas
            .start_with_page(p, self.env, port, (ticket, holder), &wanted, |page| {
                Dma::ReceiveToPage { receive, page }
            });
        match started {
            Ok(()) => {
                slot.set(SlotState::Moving);
                Begun::Moves
            }
            Err((ticket, cause)) => {
                let reached = self.env.reach(p, &wanted, cause, |p, place| {
                    p.reach(place, Way::In(receive)).then_some(())
                });
                reached.map_or(Begun::Misses(ticket, cause), |()| Begun::Over)
            }
        }
    }
}

impl<S: Storage> Nic<S> {
    /// A write arrives, or an append that has its place.
    #[inline(always)]
    pub(super) fn write_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        mode: Modes,
    ) -> Step {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        let parts = Parts {
            env: &mut self.env,
            ports: &mut self.ports,
            dmas: &mut self.dmas,
        };
        let begun = parts.begin(p, now, (at, slot), mode);
        self.write_begun(p, at, begun)
    }

    /// How far a write has got that has begun.
    #[inline(always)]
    pub(super) fn write_begun<P: Platform>(&mut self, p: &mut P, at: BounceId, begun: Begun) -> Step {
        match begun {
            Begun::Moves => Step::Pending,
            Begun::Over => Step::Ended(Status::Ok),
            Begun::Refused(status) => self.write_not_begun(p, at, status),
            Begun::Misses(ticket, cause) => {
                self.write_misses(p, ticket, at, cause);
                Step::Pending
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn write_not_begun<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) -> Step {
        if self.lease_begins_late(p, at, status) {
            // No append is under a lease.
            return self.write_arrives(p, self.env.now, at, Modes::WRITE);
        }
        self.write_refused(status)
    }

    /// The message in a window slot was refused with this status, because its lease had not begun: it has now.
    pub(super) fn lease_begins_late<P: Platform>(&self, p: &P, at: BounceId, status: Status) -> bool {
        let slot = self.inbound.get(at).filter(|_| status == Status::Expired);
        slot.is_some_and(|slot| {
            let named = slot.header().capability();
            self.env.capabilities.begins_late(p.bar(), named, self.env.now)
        })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn write_refused(&mut self, status: Status) -> Step {
        *self.env.counters.refusals(status) += 1;
        Step::Ended(status)
    }

    /// The page cannot be used: the message goes to its bounce page, and the host does the rest.
    #[inline(never)]
    fn write_misses<P: Platform>(&mut self, p: &mut P, ticket: Ticket, at: BounceId, cause: NoPage) {
        self.env.count_bounce(cause);
        self.bounce_message(p, ticket, at);
    }

    /// The DMA of a message in the window has ended.
    #[inline(always)]
    pub(super) fn moved<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, ok: bool) {
        match self.inbound.state(at) {
            // Nearly always.
            Some(SlotState::Moving) if ok || mutant::is(Mutant::FailedDmaLands) => {
                self.env.counters.zero_copy += 1;
                self.land(p, now, at);
            }
            Some(SlotState::Fetching) if ok => self.operand_fetched(p, now, at),
            Some(SlotState::Storing) if ok => self.operand_stored(p, now, at),
            Some(state) => self.something_moved(p, now, at, state, ok),
            None => {}
        }
    }

    #[inline(never)]
    fn something_moved<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        state: SlotState,
        ok: bool,
    ) {
        match state {
            SlotState::Fetching | SlotState::Storing => self.operand_fails(p, now, at),
            SlotState::Bouncing if ok => {
                self.message_bounced(p, at);
                if let Some(peer) = self.inbound.get(at).map(|slot| slot.header().source()) {
                    self.held_up(p, now, peer);
                }
            }
            SlotState::Moving | SlotState::Bouncing => {
                self.env.counters.failed += 1;
                self.end(p, now, at, Status::BusError);
            }
            SlotState::Dead => self.bury(p, now, at),
            _ => {}
        }
    }
}
