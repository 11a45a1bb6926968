//! The words that a port shares with its NIC and driver.

use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

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
    /// unless the library only loads them (status pages); `start` is aligned to four bytes; everybody
    /// else in this process reaches them through atomics only.
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
}
