//! Payload is moved by the process itself: a copy to or from its own address space, at once.
//!
//! A page number that the driver gives the card is an address of this process, divided by the page size. The driver gives it
//! only pages of memory that it made itself and that has no file behind it ([`Direct`] would fault on one while it holds the
//! card's turn).

use std::collections::VecDeque;

use netvm_abi::Nanos;
use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_nic::platform::{Dma, DmaId, PageRange};
use netvm_platform::DmaEnd;

use crate::PAGE_BYTES;
use crate::board::Engine;
use crate::transfer::{self, Buffers, in_page, transfer};

/// The engine of a software card.
#[derive(Debug, Default)]
pub struct Direct {
    ready: VecDeque<(DmaId, Dma)>,
    halted: bool,
    page_bytes: u64,
}

/// Where a page lies in this process.
fn address_of(page: &PageRange) -> Option<*mut u8> {
    let address = (page.ppn.0 as usize).wrapping_mul(PAGE_BYTES);
    Some(core::ptr::with_exposed_provenance_mut(address))
}

impl Engine for Direct {
    fn start(&mut self, _: Nanos, id: DmaId, dma: Dma) {
        self.ready.push_back((id, dma));
    }

    fn advance(&mut self, _: Nanos) {}

    fn pop_ended(&mut self, buffers: &mut Buffers) -> Option<DmaEnd> {
        let (id, dma) = self.ready.pop_front()?;
        let page = match &dma {
            Dma::PageToStaging { page, .. }
            | Dma::ReceiveToPage { page, .. }
            | Dma::PageToOperand { page }
            | Dma::OperandToPage { page } => Some(page),
            Dma::ReceiveToBounce { .. } | Dma::BounceToStaging { .. } => None,
        };
        let at = page.and_then(address_of);
        // SAFETY: the driver puts a page into the card's table only while it is mapped for both, and takes it out, and waits
        // for the card's lock, before it unmaps it. The program has promised that no references to it exist.
        let ok = !self.halted && unsafe { transfer(id, &dma, at, buffers) };
        if ok && let Some(page) = page {
            self.page_bytes += u64::from(page.len.0);
        }
        Some(DmaEnd { id, ok })
    }

    fn applies_atomics(&self) -> bool {
        true
    }

    fn apply(&mut self, page: &PageRange, atomic: &Atomic) -> Option<AtomicResult> {
        // A card that is stopped fails the DMAs by which the core tries next.
        let (at, _) = in_page(address_of(page), page).filter(|_| !self.halted)?;
        // SAFETY: as in `pop_ended`: the page is mapped while the card has it locked, and no references to it exist.
        let result = unsafe { transfer::apply(at, atomic) }?;
        self.page_bytes += u64::from(page.len.0);
        Some(result)
    }

    fn has_ended(&self) -> bool {
        !self.ready.is_empty()
    }

    fn next_due(&self) -> Option<Nanos> {
        None
    }

    fn halt(&mut self) {
        self.halted = true;
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}
