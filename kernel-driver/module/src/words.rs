// SPDX-License-Identifier: GPL-2.0

//! The two spaces of words that driver and card share: NIC memory behind the BAR, and the driver's
//! memory, which the card reaches by DMA. The one place where the module touches either.
//!
//! The spinlock around the host core orders the kernel's CPUs among themselves. This file orders them against a
//! device: `readl`, `writel` and `mb()` for the BAR, acquire and release accesses of coherent memory for the rest, and
//! `mb()` for both as the full barrier. `mb()` does not wait for a posted write to land. The barrier that does is
//! [`SharedWords::bus_barrier`], a `readl`. The wake path needs none on this side: the card reads across the bus before it
//! sleeps (`docs/decisions/0015-posted-stores.md`).

use crate::errno::{self, Errno};
use crate::shim;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Ppn, WordIndex, PAGE_SIZE};

const PAGE: usize = PAGE_SIZE as usize;

/// C's card, kept alive.
pub(crate) struct CardRef(NonNull<shim::NvCard>);

// SAFETY: C's functions over it may be called from any thread.
unsafe impl Send for CardRef {}
// SAFETY: as above.
unsafe impl Sync for CardRef {}

impl CardRef {
    /// Takes a reference.
    ///
    /// # Safety
    /// The card lives now.
    pub(crate) unsafe fn new(card: NonNull<shim::NvCard>) -> Self {
        // SAFETY: as promised.
        unsafe { shim::nv_card_get(card.as_ptr()) };
        Self(card)
    }

    /// For calls of C.
    pub(crate) fn as_ptr(&self) -> *mut shim::NvCard {
        self.0.as_ptr()
    }
}

impl Clone for CardRef {
    fn clone(&self) -> Self {
        // SAFETY: it lives because of `self`.
        unsafe { Self::new(self.0) }
    }
}

impl Drop for CardRef {
    fn drop(&mut self) {
        // SAFETY: the reference that `new` took.
        unsafe { shim::nv_card_put(self.0.as_ptr()) }
    }
}

/// NIC memory. Reads as all ones, and takes no stores, once the card has been taken away.
pub(crate) struct Bar {
    card: CardRef,
    words: u32,
    /// The card was unplugged: its BAR is not mapped any more.
    gone: AtomicBool,
}

impl Bar {
    pub(crate) fn new(card: CardRef) -> Self {
        Self {
            // SAFETY: the card lives.
            words: unsafe { shim::nv_bar_words(card.as_ptr()) },
            card,
            gone: AtomicBool::new(false),
        }
    }

    /// Words of the BAR.
    pub(crate) const fn words(&self) -> u32 {
        self.words
    }

    /// From now on the BAR is not touched. Call it under the lock of the host core, as all accesses are.
    pub(crate) fn take_away(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether the card was taken away.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Interrupts the card.
    pub(crate) fn ring(&self) {
        if !self.is_gone() {
            // SAFETY: the card lives, and its registers are mapped until it is taken away.
            unsafe { shim::nv_card_ring(self.card.as_ptr()) }
        }
    }
}

impl SharedWords for Bar {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        if at.0 >= self.words || self.is_gone() {
            return u32::MAX;
        }
        // SAFETY: inside of the BAR, which is mapped. `readl` keeps later accesses behind it.
        unsafe { shim::nv_bar_load(self.card.as_ptr(), at.0) }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        if at.0 < self.words && !self.is_gone() {
            // SAFETY: as above. `writel` keeps earlier accesses before it.
            unsafe { shim::nv_bar_store(self.card.as_ptr(), at.0, value) }
        }
    }

    fn full_barrier(&self) {
        // It orders the CPU's accesses. Stores that it let go may still be under way; in the page lock the load of
        // the lock word, which follows, pushes them ahead of itself.
        shim::nv_barrier();
    }

    fn bus_barrier(&self) {
        shim::nv_barrier();
        // A read of the BAR: it pushes earlier stores to it, and its answer pushes what the card has stored to the
        // host's memory before. `readl` lets nothing overtake the answer.
        self.load_acquire(WordIndex(0));
    }
}

/// Contiguous memory that the card reaches by DMA, zeroed at the beginning. It may outlive the card: then only this host
/// sees it.
pub(crate) struct DmaMemory {
    card: CardRef,
    start: NonNull<c_void>,
    bytes: usize,
    bus: u64,
    /// The card can reach it.
    mapped: bool,
    /// It is never given back.
    kept: bool,
}

// SAFETY: it is reached through atomics and the copies of the workers, from any thread.
unsafe impl Send for DmaMemory {}
// SAFETY: as above.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Memory of `bytes` bytes, rounded up to pages.
    pub(crate) fn new(card: &CardRef, bytes: usize) -> Result<Self, Errno> {
        let bytes = bytes.next_multiple_of(PAGE);
        let mut bus = 0;
        // SAFETY: the card lives; `bus` is ours.
        let start = unsafe { shim::nv_memory_alloc(card.as_ptr(), bytes, &mut bus) };
        Ok(Self {
            card: card.clone(),
            start: NonNull::new(start).ok_or(errno::NOMEM)?,
            bytes,
            bus,
            mapped: true,
            kept: false,
        })
    }

    /// Keeps it for ever: a card that could not be stopped may still write to it.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// Takes it away from the card. Before the device goes: no mapping may be left then.
    pub(crate) fn detach(&mut self) {
        if core::mem::replace(&mut self.mapped, false) {
            // SAFETY: mapped in `new`, and unmapped once. The device is there: the card's thread calls this before it ends.
            unsafe { shim::nv_memory_unmap(self.card.as_ptr(), self.bytes, self.bus) }
        }
    }

    /// Its first bus page.
    pub(crate) const fn ppn(&self) -> Ppn {
        Ppn(self.bus >> 12)
    }

    /// In bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// For C: where it is.
    pub(crate) const fn place(&self) -> *mut c_void {
        self.start.as_ptr()
    }

    fn words(&self) -> &[AtomicU32] {
        // SAFETY: so many bytes, on a page boundary, for as long as `self`; all code in the kernel reaches them through
        // atomics, and whatever the card does shows as a value.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 4) }
    }

    /// Zeroes everything: no other user may exist.
    pub(crate) fn clear(&self) {
        for word in self.words() {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Where a bounce page is, if it is one.
    pub(crate) fn page(&self, bounce: BounceId) -> Option<*mut c_void> {
        let at = bounce.index().checked_mul(PAGE)?;
        (at.checked_add(PAGE)? <= self.bytes).then(|| {
            // SAFETY: a page of the memory begins there, as just checked.
            unsafe { self.start.as_ptr().cast::<u8>().add(at).cast() }
        })
    }

    /// The first words of a bounce page, each loaded once.
    pub(crate) fn load(&self, bounce: BounceId, into: &mut [u32]) {
        let first = bounce.index().saturating_mul(PAGE / 4);
        let words = self.words().iter().skip(first);
        for (value, word) in into.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
    }

    /// Stores to the first words of a bounce page.
    pub(crate) fn store(&self, bounce: BounceId, from: &[u32]) {
        let first = bounce.index().saturating_mul(PAGE / 4);
        let words = self.words().iter().skip(first);
        for (value, word) in from.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        self.detach();
        if self.kept {
            return;
        }
        // SAFETY: allocated in `new`, and nothing refers to it any more: mappings of processes keep
        // their files open, which keep the card.
        unsafe { shim::nv_memory_free(self.bytes, self.start.as_ptr()) }
    }
}

impl SharedWords for DmaMemory {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.words().load_acquire(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.words().store_release(at, value);
    }

    fn full_barrier(&self) {
        shim::nv_barrier();
    }

    fn bus_barrier(&self) {
        // This memory is on the CPU's side of the bus.
        shim::nv_barrier();
    }

    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        self.words().store_slice(at, values);
    }

    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        self.words().load_slice(at, into);
    }
}
