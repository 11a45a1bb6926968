//! A write arrives (thesis 5.4, figure 16): check, lock, DMA into the page, mark dirty, unlock; or,
//! when the page cannot be used, the bounce page.

use crate::dma::HeldPage;
use crate::nic::Nic;
use crate::platform::{Dma, PageRange, Platform};
use crate::receive::Step;
use crate::slot::SlotState;
use netvm_abi::control::Modes;
use netvm_abi::page_lock::{Miss, Used, lock_page, unlock_page};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, ByteLen, Nanos, Vpn};

impl<S: Storage> Nic<S> {
    #[inline]
    pub(crate) fn write_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(len) = self.slot(at).map(|slot| u32::from(slot.header.len)) else {
            return Step::Ended(Status::Malformed);
        };
        let authority = match self.authorise(p, now, at, len, Modes::WRITE) {
            Ok(authority) => authority,
            Err(status) => return Step::Ended(status),
        };
        if len == 0 {
            // A notification alone: no page, no lock, no DMA.
            return Step::Ended(Status::Ok);
        }
        let Some(ticket) = self.dma.ticket() else {
            self.set_slot(at, SlotState::Queued);
            self.park_for_dma(at);
            return Step::Pending;
        };
        let Some(slot) = self.slot(at) else {
            return Step::Ended(Status::Malformed);
        };
        let (port, address, receive) = (slot.header.destination_port, slot.header.address, slot.receive);
        let vpn = Vpn::of(port, address);
        match lock_page(p.bar(), &self.page_table, vpn, true) {
            Ok(page) if Self::covers(authority, page.segment) => {
                self.counters.zero_copy += 1;
                self.set_slot(at, SlotState::Moving);
                let held = HeldPage {
                    slot: page.slot,
                    used: Used::Written,
                    port,
                };
                let dma = Dma::ReceiveToPage {
                    receive,
                    page: PageRange {
                        ppn: page.ppn,
                        vpn,
                        offset: address.page_offset(),
                        len: ByteLen(len),
                    },
                };
                self.start_dma(p, ticket, at, Some(held), dma);
                return Step::Pending;
            }
            // Left over from another segment: the host knows what belongs here.
            Ok(page) => {
                unlock_page(p.bar(), &self.page_table, page.slot, Used::Not);
                self.counters.bounced_segment += 1;
            }
            Err(Miss::NotFound) => self.counters.bounced_not_found += 1,
            Err(Miss::NotWritable) => self.counters.bounced_read_only += 1,
        }
        self.bounce_message(p, ticket, at);
        Step::Pending
    }

    /// The DMA of a message in the window has ended.
    #[inline]
    pub(crate) fn moved<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, ok: bool) {
        match self.slot(at).map(|slot| slot.state) {
            Some(SlotState::Moving) if ok => self.end(p, now, at, Status::Ok),
            Some(SlotState::Bouncing) if ok => self.message_bounced(p, at),
            Some(SlotState::Moving | SlotState::Bouncing) => {
                self.counters.failed += 1;
                self.end(p, now, at, Status::BusError);
            }
            Some(SlotState::Dead) => self.bury(p, now, at),
            _ => {}
        }
    }
}
