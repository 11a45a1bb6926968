//! A write arrives (thesis 5.4, figure 16): check, lock, DMA into the page, mark dirty, unlock; or,
//! when the page cannot be used, the bounce page.

use crate::dma::HeldPage;
use crate::nic::Nic;
use crate::platform::{Dma, PageRange, Platform};
use crate::receive::Step;
use crate::slot::SlotState;
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::Modes;
use netvm_abi::page_lock::{Miss, Used, lock_page, unlock_page};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{ByteLen, Nanos, NodeId, Vpn};

impl<S: Storage> Nic<S> {
    #[inline]
    pub(crate) fn write_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        peer: NodeId,
        index: u16,
    ) -> Step {
        let Some(slot) = self.slot(peer, index) else {
            return Step::Ended(Status::Malformed);
        };
        let (header, receive) = (slot.header, slot.receive);
        let len = u32::from(header.len);
        let authority = match self.authorise(p, now, &header, len, Modes::WRITE) {
            Ok(authority) => authority,
            Err(status) => return Step::Ended(status),
        };
        self.note_port(peer, index);
        if len == 0 {
            // A notification alone: no page, no lock, no DMA.
            return Step::Ended(Status::Ok);
        }
        let holder = BounceUse::Window { peer, slot: index }.id(&self.config.geometry);
        let Some(ticket) = self.dma.ticket() else {
            self.set_slot(peer, index, SlotState::Queued);
            self.park_for_dma(holder);
            return Step::Pending;
        };
        let vpn = Vpn::of(header.destination_port, header.address);
        match lock_page(p.bar(), &self.page_table, vpn, true) {
            Ok(page) if authority.is_none_or(|segment| segment == page.segment) => {
                self.counters.zero_copy += 1;
                self.set_slot(peer, index, SlotState::Moving);
                let held = HeldPage {
                    slot: page.slot,
                    used: Used::Written,
                    port: header.destination_port,
                };
                let dma = Dma::ReceiveToPage {
                    receive,
                    page: PageRange {
                        ppn: page.ppn,
                        vpn,
                        offset: header.address.page_offset(),
                        len: ByteLen(len),
                    },
                };
                self.start_dma(p, ticket, holder, Some(held), dma);
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
        self.bounce_message(p, ticket, peer, index);
        Step::Pending
    }

    /// The DMA of a message in the window has ended.
    #[inline]
    pub(crate) fn moved<P: Platform>(&mut self, p: &mut P, now: Nanos, peer: NodeId, index: u16, ok: bool) {
        match self.slot(peer, index).map(|slot| slot.state) {
            Some(SlotState::Moving | SlotState::Bouncing) if !ok => {
                self.counters.failed += 1;
                self.end(p, now, peer, index, Status::BusError);
            }
            Some(SlotState::Moving) => self.end(p, now, peer, index, Status::Ok),
            Some(SlotState::Bouncing) => self.message_bounced(p, peer, index),
            Some(SlotState::Dead) => self.bury(p, now, peer, index),
            _ => {}
        }
    }
}
