//! Payload is moved by the process itself: a copy to or from its own address space, at once.
//!
//! A page number that the driver gives the card is an address of this process, divided by the page size. The driver gives it
//! only pages of memory that it made itself and that has no file behind it ([`Direct`] would fault on one while it holds the
//! card's turn).
//!
//! What the driver does not give it, memory of the program's own, the card reaches by its address, once its owner has said that
//! the page is there ([`Pages`]). Such a copy is guarded, since the page may be gone by then.

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::Nanos;
use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_memory::change::change_guarded;
use netvm_memory::guard;
use netvm_nic::platform::{Dma, DmaId, PageRange, Place, Way};
use netvm_platform::DmaEnd;

use crate::PAGE_BYTES;
use crate::board::Engine;
use crate::transfer::{self, Buffers, changed, in_page, payload, staging_slice, transfer};

/// Which pages of the process may be touched with the card's turn in hand.
pub trait Pages: Send + Sync + std::fmt::Debug {
    /// Whether the page of this address is there, so that no file, no server and no swap device is waited for. It may be gone
    /// when this returns. What the driver gives the card page by page is not.
    ///
    /// The handler of [`netvm_memory::guard`] is in place.
    fn is_there(&self, address: u64) -> bool;
}

/// The engine of a software card.
#[derive(Debug, Default)]
pub struct Direct {
    /// What of the program's own memory can be reached; without it, nothing.
    pub pages: Option<Arc<dyn Pages>>,
    ready: VecDeque<(DmaId, Dma)>,
    halted: bool,
    page_bytes: u64,
}

/// A few bytes on their way into memory, where they land as one store if they are one value.
#[repr(align(8))]
struct Word([u8; 8]);

impl Direct {
    /// Where a place lies in this process, if it is there now.
    fn reachable(&self, place: &Place) -> Option<(*mut u8, usize)> {
        let pages = self.pages.as_ref().filter(|_| !self.halted)?;
        let (offset, len) = (place.offset.index(), place.len.index());
        let address = place.vpn.address().0;
        let inside = offset.checked_add(len).is_some_and(|end| end <= PAGE_BYTES);
        if !inside || !pages.is_there(address) {
            return None;
        }
        let at = core::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        Some((at.wrapping_add(offset), len))
    }
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

    fn reaches(&self) -> bool {
        self.pages.is_some()
    }

    fn reach(&mut self, place: &Place, way: Way, buffers: &mut Buffers) -> bool {
        let Some((at, len)) = self.reachable(place) else {
            return false;
        };
        // SAFETY: the request is allowed, so the place lies in memory that the program has handed over: it may be changed, and no
        // references to it exist. It may be gone, for which the guard is. The other side is the card's own.
        let done = unsafe {
            match way {
                Way::In(receive) => match payload(buffers, receive.index(), len) {
                    Some(source) if len <= 8 => {
                        let mut word = Word([0; 8]);
                        word.0.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
                        guard::copy(word.0.as_ptr(), at, len).is_ok()
                    }
                    Some(source) => guard::copy(source.as_ptr(), at, len).is_ok(),
                    None => false,
                },
                Way::Out(staging) => staging_slice(buffers, staging, len)
                    .is_some_and(|target| guard::copy(at, target.as_mut_ptr(), len).is_ok()),
            }
        };
        if done {
            self.page_bytes += len as u64;
        }
        done
    }

    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        let (at, len) = self.reachable(place)?;
        let mut result = AtomicResult::default();
        // SAFETY: as in `reach`.
        let changed = unsafe { change_guarded(at, len, |old| changed(atomic, old, &mut result)) };
        changed.ok().flatten()?;
        self.page_bytes += len as u64;
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
