//! The host's own word of a page slot, from memory.
//!
//! Each slot of the page table has one word that only the host writes ([`netvm_abi::page_lock`]). A load of it is a round trip
//! of the bus, under the lock of the host core and often under a page-table lock of the kernel, for a value that this host
//! has stored itself. So the mirror keeps it, and the page lock's steps find it here.
//!
//! No ordering rests on that load. In an unmap the load that pushes the host's store ahead of itself is the one of the *NIC's*
//! word, after the full barrier. Where marks are reset it is the bus barrier. Both still go to the card. A card that is gone
//! shows in the NIC's word.

use core::cell::Cell;
use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;

/// NIC memory, of which one word is known.
pub(crate) struct Own<'a, W: ?Sized> {
    bar: &'a W,
    at: WordIndex,
    word: Cell<u32>,
}

impl<'a, W: SharedWords + ?Sized> Own<'a, W> {
    /// `word` is what this host has stored last at `at`.
    pub(crate) const fn new(bar: &'a W, at: WordIndex, word: u32) -> Self {
        Self {
            bar,
            at,
            word: Cell::new(word),
        }
    }

    /// What this host has stored last by now.
    pub(crate) const fn word(&self) -> u32 {
        self.word.get()
    }
}

impl<W: SharedWords + ?Sized> SharedWords for Own<'_, W> {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        if at == self.at {
            self.word.get()
        } else {
            self.bar.load_acquire(at)
        }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        if at == self.at {
            self.word.set(value);
        }
        self.bar.store_release(at, value);
    }

    fn full_barrier(&self) {
        self.bar.full_barrier();
    }

    fn bus_barrier(&self) {
        self.bar.bus_barrier();
    }
}
