//! A write arrives (thesis 5.4, figure 16): check, lock, DMA into the page, mark dirty, unlock; or,
//! when the page cannot be used, the bounce page.

use crate::authorise::covers;
use crate::dma::{HeldPage, Ticket};
use crate::nic::Nic;
use crate::platform::{Dma, PageRange, Platform};
use crate::receive::Step;
use crate::slot::SlotState;
use netvm_abi::control::Modes;
use netvm_abi::page_lock::{Miss, Used, lock_page, unlock_page};
use netvm_abi::page_table::PageSlot;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, ByteLen, Nanos, Vpn};

impl<S: Storage> Nic<S> {
    /// `mode` is what its capability must allow: to write, or for an append that has its place, to append.
    #[inline(always)]
    pub(crate) fn write_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        mode: Modes,
    ) -> Step {
        let Some(slot) = self.slots.get_mut(at.index()) else {
            return Step::Ended(Status::Malformed);
        };
        let Some(port) = self.ports.get_mut(slot.header.destination_port().index()) else {
            return self.write_refused(Status::NoSuchPort);
        };
        let (bar, len) = (p.bar(), u32::from(slot.header.payload_len()));
        let authority = match self.env.capabilities.authorise(bar, now, slot, port, len, mode) {
            Ok(authority) => authority,
            Err(status) => return self.write_refused(status),
        };
        if len == 0 {
            // A notification alone: no page, no lock, no DMA.
            return Step::Ended(Status::Ok);
        }
        let Some(ticket) = self.dma.ticket() else {
            slot.state = SlotState::Queued;
            self.park_for_dma(at);
            return Step::Pending;
        };
        let vpn = Vpn::of(slot.header.destination_port(), slot.header.address());
        let page = match lock_page(bar, &self.env.page_table, vpn, true) {
            Ok(page) if covers(authority, page.segment) => page,
            Ok(page) => {
                self.write_strays(p, ticket, at, page.slot);
                return Step::Pending;
            }
            Err(miss) => {
                self.write_misses(p, ticket, at, miss);
                return Step::Pending;
            }
        };
        slot.state = SlotState::Moving;
        let held = HeldPage {
            slot: page.slot,
            used: Used::Written,
            port: slot.header.destination_port(),
        };
        let dma = Dma::ReceiveToPage {
            receive: slot.receive,
            page: PageRange {
                ppn: page.ppn,
                vpn,
                offset: slot.header.address().page_offset(),
                len: ByteLen(len),
            },
        };
        self.dma
            .start(p, &mut self.env.counters, ticket, at, Some((held, port)), dma);
        Step::Pending
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn write_refused(&mut self, status: Status) -> Step {
        *self.env.counters.refusals(status) += 1;
        Step::Ended(status)
    }

    /// The page cannot be used: the message goes to its bounce page, and the host does the rest.
    #[inline(never)]
    fn write_misses<P: Platform>(&mut self, p: &mut P, ticket: Ticket, at: BounceId, miss: Miss) {
        match miss {
            Miss::NotFound => self.env.counters.bounced_not_found += 1,
            Miss::NotWritable => self.env.counters.bounced_read_only += 1,
        }
        self.bounce_message(p, ticket, at);
    }

    /// The page is left over from another segment: the host knows what belongs here.
    #[cold]
    fn write_strays<P: Platform>(&mut self, p: &mut P, ticket: Ticket, at: BounceId, page: PageSlot) {
        unlock_page(p.bar(), &self.env.page_table, page, Used::Not);
        self.env.counters.bounced_segment += 1;
        self.bounce_message(p, ticket, at);
    }

    /// The DMA of a message in the window has ended.
    #[inline]
    pub(crate) fn moved<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, ok: bool) {
        match self.slot(at).map(|slot| slot.state) {
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
