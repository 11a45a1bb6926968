//! The words that a port shares with its NIC and driver.

use netvm_abi::bar::port::{BLOCK_WORDS, COMMANDS};
use netvm_abi::descriptor::{DESCRIPTOR_WORDS, QUEUE_ENTRIES};
use netvm_abi::port_area::AREA_WORDS;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{NodeId, WordIndex};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words in memory that is mapped into this process.
#[derive(Clone)]
pub struct MappedWords {
    start: NonNull<AtomicU32>,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is only followed to make a `&[AtomicU32]`, which threads may share; the owner
// that keeps the memory alive is itself `Send + Sync`.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// `len` words from `start` on.
    ///
    /// # Safety
    /// The words are mapped and stay so, at this place, until `owner` is dropped; they are writable
    /// unless the library only loads them (status pages); `start` is aligned to four bytes; all other accesses in this
    /// process are atomics.
    #[must_use]
    pub unsafe fn new(start: NonNull<u32>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            start: start.cast(),
            len,
            _owner: owner,
        }
    }

    /// The words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the promise of `new`: mapped and only reached through atomics while the owner
        // lives, which `self` keeps alive.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// A word space as the library reaches it: without `dyn` where it is mapped memory.
#[derive(Clone)]
pub enum Words {
    /// Memory mapped into this process.
    Mapped(MappedWords),
    /// A platform that wants to see each access (simulator), or reaches the words otherwise.
    Hooked(Arc<dyn SharedWords + Send + Sync>),
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(words) => write!(f, "Mapped({} words)", words.len),
            Self::Hooked(_) => write!(f, "Hooked"),
        }
    }
}

impl SharedWords for Words {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        match self {
            Self::Mapped(mapped) => mapped.words().load_acquire(at),
            Self::Hooked(words) => words.load_acquire(at),
        }
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        match self {
            Self::Mapped(mapped) => mapped.words().store_release(at, value),
            Self::Hooked(words) => words.store_release(at, value),
        }
    }

    #[inline]
    fn full_barrier(&self) {
        match self {
            Self::Mapped(mapped) => mapped.words().full_barrier(),
            Self::Hooked(words) => words.full_barrier(),
        }
    }

    #[inline]
    fn bus_barrier(&self) {
        match self {
            Self::Mapped(mapped) => mapped.words().bus_barrier(),
            Self::Hooked(words) => words.bus_barrier(),
        }
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        match self {
            Self::Mapped(mapped) => mapped.words().store_slice(at, values),
            Self::Hooked(words) => words.store_slice(at, values),
        }
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        match self {
            Self::Mapped(mapped) => mapped.words().load_slice(at, into),
            Self::Hooked(words) => words.load_slice(at, into),
        }
    }

    #[inline]
    fn atomics(&self, at: WordIndex, len: u32) -> Option<&[AtomicU32]> {
        match self {
            Self::Mapped(mapped) => mapped.words().atomics(at, len),
            Self::Hooked(words) => words.atomics(at, len),
        }
    }
}

/// Words that the short way to post to a node touches, if they are all mapped: found once, when a
/// segment is imported, so that posting checks no bounds.
pub(crate) struct FastWords {
    block: NonNull<[AtomicU32; BLOCK]>,
    area: NonNull<[AtomicU32; AREA]>,
    status: NonNull<[AtomicU32; STATUS]>,
    payload: NonNull<AtomicU32>,
    _keep: [MappedWords; 3],
}

const BLOCK: usize = BLOCK_WORDS as usize;
const AREA: usize = AREA_WORDS as usize;
/// What lies before the peers.
const STATUS: usize = status_page::PEERS.0 as usize;
const QUEUE: usize = QUEUE_ENTRIES as usize;

/// An entry of the command queue, as pairs of words, low one first. Only on a little-endian machine is a
/// pair stored as one what it is stored as two.
pub(crate) type Entry = [AtomicU64; DESCRIPTOR_WORDS / 2];

const _: () = assert!(COMMANDS.0 as usize * 4 + QUEUE * size_of::<Entry>() <= BLOCK * 4);
const _: () = assert!((COMMANDS.0 as usize * 4).is_multiple_of(align_of::<Entry>()));

// SAFETY: as for `MappedWords`, which these pointers come from.
unsafe impl Send for FastWords {}
// SAFETY: as above.
unsafe impl Sync for FastWords {}

impl FastWords {
    pub(crate) fn new(block: &Words, area: &Words, status: &Words, node: NodeId) -> Option<Self> {
        let (Words::Mapped(block), Words::Mapped(area), Words::Mapped(status)) = (block, area, status) else {
            return None;
        };
        if cfg!(target_endian = "big") || !block.start.cast::<AtomicU64>().is_aligned() {
            return None;
        }
        let payload = status_page::peer_payload(node);
        Some(Self {
            payload: NonNull::from(status.words().get(payload.index())?),
            block: NonNull::from(block.words().first_chunk()?),
            area: NonNull::from(area.words().first_chunk()?),
            status: NonNull::from(status.words().first_chunk()?),
            _keep: [block.clone(), area.clone(), status.clone()],
        })
    }

    #[inline]
    pub(crate) const fn block(&self) -> &[AtomicU32; BLOCK] {
        // SAFETY: it was a reference to atomics, in memory that `_keep` keeps alive.
        unsafe { self.block.as_ref() }
    }

    /// The entry of the command with this number. Each write to it is made before the card may read it, or after it
    /// has: accesses of different sizes never meet.
    #[inline]
    pub(crate) const fn entry(&self, number: u32) -> &Entry {
        let entries: &[Entry; QUEUE] =
            // SAFETY: the entries lie in the block, aligned (asserted above, and checked in `new`), which is atomics in
            // memory that `_keep` keeps alive.
            unsafe { self.block.cast::<u32>().add(COMMANDS.0 as usize).cast().as_ref() };
        &entries[number as usize % QUEUE]
    }

    #[inline]
    pub(crate) const fn area(&self) -> &[AtomicU32; AREA] {
        // SAFETY: as for `block`.
        unsafe { self.area.as_ref() }
    }

    #[inline]
    pub(crate) const fn status(&self) -> &[AtomicU32; STATUS] {
        // SAFETY: as for `block`.
        unsafe { self.status.as_ref() }
    }

    /// The payload that was agreed with the node; 0 if it has not been greeted yet.
    #[inline]
    pub(crate) fn payload(&self) -> u32 {
        // SAFETY: as for `block`.
        unsafe { self.payload.as_ref() }.load(Ordering::Acquire)
    }
}
