//! Memory that both sides of a boundary read and write at once, as 32-bit words.
//!
//! Thirty-two bits is what every bus moves in one piece. Everything shared (page entries, lock
//! words, counters, queues) is reached through [`SharedWords`]; each platform implements it once,
//! in reviewed code: atomics over mapped memory, `readl`/`writel`/`mb`, simulator hooks, loom.
//!
//! **Two barriers.** A bus between card and host *posts* stores: the store leaves, the processor goes on, and a
//! barrier among processors does not wait for the store to land. Only a read across the bus does
//! ([`SharedWords::bus_barrier`]). Where each side stores across the bus and then loads its own memory, one side
//! has to read across before it loads; `docs/decisions/0015-posted-stores.md` lists these pairs and the side that pays.

use crate::units::WordIndex;
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering, fence};

/// A space of 32-bit words that others read and write at the same time.
///
/// An access outside of the space is no error of memory safety: a load gives all ones, as a PCI
/// read of a card that is gone does, and a store is dropped.
pub trait SharedWords {
    /// Loads a word; later accesses of this side stay behind it.
    fn load_acquire(&self, at: WordIndex) -> u32;

    /// Stores a word; earlier accesses of this side stay before it.
    fn store_release(&self, at: WordIndex, value: u32);

    /// Orders every earlier access of this side before every later one, loads against stores
    /// included. A sequentially consistent *access* does not do that (promise P1): this is
    /// `fence(SeqCst)`, `mb()` or `dmb`.
    ///
    /// It orders what this side does, not what a bus delivers: a store across a bus has left, and may still be
    /// under way. Stores that go the same way keep their order.
    fn full_barrier(&self);

    /// A [full barrier](Self::full_barrier) that waits for the bus, for words that lie across it: a read of them.
    ///
    /// When it returns, every earlier store of this side to these words has landed. So has, in this side's
    /// memory, every store of the other side that was posted before the read was answered. The ordering rules of
    /// PCI give both: a read pushes the posted stores ahead of it, and its answer does not overtake posted stores
    /// that go the same way. (A device clears "relaxed ordering" and "ID-based ordering" in this read.)
    ///
    /// Call it on the words across the bus: a card on host memory, a host on NIC memory. It takes a round trip
    /// of the bus there; in one coherent memory it is a full barrier and a load.
    fn bus_barrier(&self);

    /// Stores consecutive words that a later [`store_release`](Self::store_release) publishes.
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        let mut next = at;
        for &value in values {
            self.store_release(next, value);
            next = next.plus(1);
        }
    }

    /// Loads consecutive words, each once.
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        let mut next = at;
        for word in into {
            *word = self.load_acquire(next);
            next = next.plus(1);
        }
    }

    /// Loads a 64-bit value kept as two words, low first. The two halves may be of different age.
    fn load_pair(&self, at: WordIndex) -> u64 {
        u64::from(self.load_acquire(at)) | (u64::from(self.load_acquire(at.plus(1))) << 32)
    }

    /// `len` words from `at` on as what they are, where they are atomics in this machine's memory:
    /// bounds are then checked once for all of them. Nothing, where every access is an act of its
    /// own (a bus, the simulator, loom) or some of them lie outside.
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        let _ = (at, len);
        None
    }
}

impl<W: SharedWords + ?Sized> SharedWords for &W {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        (**self).load_acquire(at)
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        (**self).store_release(at, value);
    }

    #[inline]
    fn full_barrier(&self) {
        (**self).full_barrier();
    }

    #[inline]
    fn bus_barrier(&self) {
        (**self).bus_barrier();
    }

    // Forwarded, so that a platform's own way to move many words is used through references too.
    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        (**self).store_slice(at, values);
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        (**self).load_slice(at, into);
    }

    #[inline]
    fn load_pair(&self, at: WordIndex) -> u64 {
        (**self).load_pair(at)
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        (**self).atomics(at, len)
    }
}

/// Words in memory that is mapped here: ordinary shared memory of one machine, or memory behind a bus.
impl SharedWords for [AtomicU32] {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.get(at.index())
            .map_or(u32::MAX, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        if let Some(word) = self.get(at.index()) {
            word.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn bus_barrier(&self) {
        fence(Ordering::SeqCst);
        if let Some(word) = self.first() {
            // Acquire: nothing that follows overtakes the answer. `black_box`: the load stays, though nothing uses it.
            black_box(word.load(Ordering::Acquire));
        }
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        let Some(words) = self.get(at.index()..at.index().saturating_add(values.len())) else {
            return;
        };
        // A release store each would forbid nothing more: the publishing store orders them all.
        fence(Ordering::Release);
        for (word, &value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        let Some(words) = self.get(at.index()..at.index().saturating_add(into.len())) else {
            into.fill(u32::MAX);
            return;
        };
        for (value, word) in into.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        self.get(at.index()..at.index().checked_add(len as usize)?)
    }
}

/// As a slice, of a length that the compiler knows: constant places need no check at run time.
impl<const N: usize> SharedWords for [AtomicU32; N] {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.as_slice().load_acquire(at)
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        self.as_slice().store_release(at, value);
    }

    #[inline]
    fn full_barrier(&self) {
        self.as_slice().full_barrier();
    }

    #[inline]
    fn bus_barrier(&self) {
        self.as_slice().bus_barrier();
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        self.as_slice().store_slice(at, values);
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        self.as_slice().load_slice(at, into);
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        self.as_slice().atomics(at, len)
    }
}

/// A part of a word space that starts at `base`: what one party may see of it.
#[derive(Clone, Copy, Debug)]
pub struct Part<W> {
    words: W,
    base: WordIndex,
    len: u32,
}

impl<W: SharedWords> Part<W> {
    /// `len` words of `words` from `base` on.
    pub const fn new(words: W, base: WordIndex, len: u32) -> Self {
        Self { words, base, len }
    }

    /// Whether `count` words from `at` on are all inside.
    const fn holds(&self, at: WordIndex, count: usize) -> bool {
        at.index() + count <= self.len as usize
    }
}

impl<W: SharedWords> SharedWords for Part<W> {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        if at.0 < self.len {
            self.words.load_acquire(self.base.plus(at.0))
        } else {
            u32::MAX
        }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        if at.0 < self.len {
            self.words.store_release(self.base.plus(at.0), value);
        }
    }

    fn full_barrier(&self) {
        self.words.full_barrier();
    }

    fn bus_barrier(&self) {
        self.words.bus_barrier();
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        if self.holds(at, values.len()) {
            self.words.store_slice(self.base.plus(at.0), values);
        }
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        if self.holds(at, into.len()) {
            self.words.load_slice(self.base.plus(at.0), into);
        } else {
            into.fill(u32::MAX);
        }
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        if !self.holds(at, len as usize) {
            return None;
        }
        self.words.atomics(self.base.plus(at.0), len)
    }
}

/// Splits a 64-bit value into words, low first.
#[must_use]
pub const fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Joins two words, low first.
#[must_use]
pub const fn join(low: u32, high: u32) -> u64 {
    low as u64 | ((high as u64) << 32)
}
