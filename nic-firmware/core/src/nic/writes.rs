//! A write arrives (thesis 5.4, figure 16): check, lock, DMA into the page, mark dirty, unlock; or,
//! when the page cannot be used, the bounce page.

use super::Nic;
use super::receive::Step;
use crate::dmas::{Access, Holder, NoPage, PageWanted, Ticket};
use crate::inbound::SlotState;
use crate::platform::{Dma, Platform};
use netvm_abi::control::Modes;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, ByteLen, Nanos, Vpn};

impl<S: Storage> Nic<S> {
    /// `mode` is what its capability must allow: to write, or for an append that has its place, to append.
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
        let Some(port) = self.ports.get_mut(slot.header().destination_port()) else {
            return self.write_refused(Status::NoSuchPort);
        };
        let (bar, len) = (p.bar(), u32::from(slot.header().payload_len()));
        let authority = match self.env.capabilities.authorise(bar, now, slot, port, len, mode) {
            Ok(authority) => authority,
            Err(status) => return self.write_refused(status),
        };
        if len == 0 {
            // A notification alone: no page, no lock, no DMA.
            return Step::Ended(Status::Ok);
        }
        let Some(ticket) = self.dmas.ticket() else {
            slot.set(SlotState::Queued);
            self.dmas.park(&mut self.env, Holder::Window(at));
            return Step::Pending;
        };
        let wanted = PageWanted {
            vpn: Vpn::of(slot.header().destination_port(), slot.header().address()),
            offset: slot.header().address().page_offset(),
            len: ByteLen(len),
            segment: Some(authority),
            access: Access::Write,
        };
        let receive = slot.receive();
        let started = self.dmas.start_with_page(
            p,
            &mut self.env,
            port,
            (ticket, Holder::Window(at)),
            &wanted,
            |page| Dma::ReceiveToPage { receive, page },
        );
        match started {
            Ok(()) => slot.set(SlotState::Moving),
            Err((ticket, cause)) => self.write_misses(p, ticket, at, cause),
        }
        Step::Pending
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
    #[inline]
    pub(super) fn moved<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, ok: bool) {
        match self.inbound.get(at).map(|slot| slot.state()) {
            Some(SlotState::Moving) if ok => {
                self.env.counters.zero_copy += 1;
                self.end(p, now, at, Status::Ok);
            }
            Some(state @ (SlotState::Fetching | SlotState::Storing)) => {
                self.operand_moved(p, now, at, state, ok)
            }
            Some(SlotState::Bouncing) if ok => self.message_bounced(p, at),
            Some(SlotState::Moving | SlotState::Bouncing) => {
                self.env.counters.failed += 1;
                self.end(p, now, at, Status::BusError);
            }
            Some(SlotState::Dead) => self.bury(p, now, at),
            _ => {}
        }
    }
}
