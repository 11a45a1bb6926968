//! Memory that the card can reach, and how a program reaches it.

use crate::backend::{Memory, View, Width};
use crate::copy;
use crate::error::{Error, Result};
use netvm_abi::{PAGE_SIZE, SegmentId, VirtAddr};
use std::any::Any;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A registered piece of memory: the card may read and write it, remote nodes may once it is
/// exported, and no page of it is pinned.
///
/// Cheap to clone; all clones are the same memory. It is unregistered and given back when the last
/// clone, slice, export and transfer in flight has gone, whatever happened to the port. Others may
/// change it at any time, so there is no `&[u8]` of it but by a [promise](Self::as_slice): bytes are copied in and out, words are
/// loaded and stored.
#[derive(Clone)]
pub struct Region {
    inner: Arc<RegionInner>,
}

/// The same for the same memory, as long as that is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionIdentity(NonNull<()>);

struct RegionInner {
    memory: Arc<dyn Memory>,
    /// Where it is mapped, if it is.
    mapped: Option<NonNull<u8>>,
    _owner: Option<Arc<dyn Any + Send + Sync>>,
    start: VirtAddr,
    len: u64,
    /// The port that it is registered with: the same pointer for all its regions.
    port: Arc<()>,
    /// It is all memory of the process.
    is_everything: bool,
}

// SAFETY: the pointer is the only part that is not `Send + Sync` by itself. It is followed only
// through `copy` and atomics, which is sound from any thread while the owner keeps the mapping alive.
unsafe impl Send for RegionInner {}
// SAFETY: as above.
unsafe impl Sync for RegionInner {}

impl Drop for RegionInner {
    fn drop(&mut self) {
        self.memory.free();
    }
}

/// Whether the byte `last` after this one lies in another page.
#[inline(always)]
pub(crate) const fn across_pages(address: VirtAddr, last: u64) -> bool {
    (address.0 ^ address.0.wrapping_add(last)) >= PAGE_SIZE as u64
}

/// Checks that `len` bytes from `offset` on lie inside of `size`.
#[inline]
pub(crate) const fn check_range(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}

/// Start and length of a range inside of `size` bytes.
pub(crate) fn resolve(range: &impl RangeBounds<u64>, size: u64) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    let len = end.checked_sub(start).ok_or(Error::OutOfRange {
        offset: start,
        len: 0,
        size,
    })?;
    check_range(start, len, size)?;
    Ok((start, len))
}

impl Region {
    pub(crate) fn new(memory: Arc<dyn Memory>, len: u64, port: Arc<()>) -> Self {
        Self::make(memory, len, port, false)
    }

    /// All memory of the process.
    pub(crate) fn of_everything(memory: Arc<dyn Memory>, len: u64, port: Arc<()>) -> Self {
        Self::make(memory, len, port, true)
    }

    fn make(memory: Arc<dyn Memory>, len: u64, port: Arc<()>, is_everything: bool) -> Self {
        let (mapped, owner) = match memory.view() {
            View::Mapped { start, owner } => (Some(start), Some(owner)),
            View::Indirect => (None, None),
        };
        Self {
            inner: Arc::new(RegionInner {
                start: memory.address(),
                len: len.min(memory.size()),
                memory,
                mapped,
                _owner: owner,
                port,
                is_everything,
            }),
        }
    }

    /// Its length in bytes, as asked for.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Never: a region of no bytes cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Its first address in the address space that the port names. Fixed for its life.
    #[must_use]
    #[inline]
    pub fn address(&self) -> VirtAddr {
        self.inner.start
    }

    /// Whether it is all memory of the process, which others may not have.
    pub(crate) fn is_everything(&self) -> bool {
        self.inner.is_everything
    }

    pub(crate) fn segment(&self) -> SegmentId {
        self.inner.memory.segment()
    }

    /// What tells it from others.
    #[inline]
    pub(crate) fn identity(&self) -> RegionIdentity {
        RegionIdentity(NonNull::from(&*self.inner).cast())
    }

    /// Whether it is registered with the port of this identity.
    #[inline]
    pub(crate) fn belongs_to(&self, port: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.inner.port, port)
    }

    /// A part of it, for a zero-copy transfer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RegionSlice> {
        let (offset, len) = resolve(&range, self.len())?;
        Ok(RegionSlice::new(self, offset, len))
    }

    /// All of it, for a zero-copy transfer.
    #[must_use]
    pub fn whole(&self) -> RegionSlice {
        RegionSlice::new(self, 0, self.len())
    }

    /// Copies bytes from `offset` on out of it. What others write meanwhile may be torn anywhere.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Memory`] where a page cannot be had.
    pub fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(offset, into.len() as u64, self.len())?;
        match self.inner.mapped {
            Some(start) => {
                // SAFETY: the range was checked against the mapping, which the owner keeps alive;
                // `into` is ordinary memory, which no mapping of a region overlaps.
                unsafe { copy::copy_out(start.as_ptr().add(offset as usize), into) }
                std::sync::atomic::fence(Ordering::Acquire);
                Ok(())
            }
            None => self
                .inner
                .memory
                .read(offset, into)
                .map_err(|status| Error::Memory { offset, status }),
        }
    }

    /// Copies bytes into it from `offset` on. An aligned 1, 2, 4 or 8 bytes is a single store.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Memory`] where a page cannot be had.
    pub fn write_from(&self, offset: u64, from: &[u8]) -> Result<()> {
        check_range(offset, from.len() as u64, self.len())?;
        match self.inner.mapped {
            Some(start) => {
                // SAFETY: as in `read_into`.
                unsafe { copy::copy_in(from, start.as_ptr().add(offset as usize)) }
                Ok(())
            }
            None => self
                .inner
                .memory
                .write(offset, from)
                .map_err(|status| Error::Memory { offset, status }),
        }
    }

    /// A 32-bit word of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn word32(&self, offset: u64) -> Result<Word32> {
        self.word(offset, Width::Word32).map(Word32)
    }

    /// A 64-bit word of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn word64(&self, offset: u64) -> Result<Word64> {
        self.word(offset, Width::Word64).map(Word64)
    }

    /// Its bytes where they lie, as atomics, which remote nodes may change at any time. Nothing, where this back end reaches its memory
    /// in another way, and for [adopted](crate::Port::adopt) memory, which may be gone. Threads of this process must not access the same
    /// bytes at the same time by atomics of different sizes ([`word64`](Self::word64) is one of eight bytes): `std::sync::atomic` says why.
    #[must_use]
    pub fn atomics(&self) -> Option<&[AtomicU8]> {
        let start = self.inner.mapped?.cast::<AtomicU8>();
        // SAFETY: the owner keeps the mapping alive, which has at least so many bytes, and no reference to it exists but to
        // atomics.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len() as usize) })
    }

    /// Its bytes where they lie. Nothing, as [`atomics`](Self::atomics).
    ///
    /// # Safety
    /// For as long as the slice is used nothing changes the region: no remote node that may write to it or change it atomically does, no
    /// read of this port into it is under way, and this process writes to it by no other way.
    #[must_use]
    pub unsafe fn as_slice(&self) -> Option<&[u8]> {
        let start = self.inner.mapped?;
        // SAFETY: the owner keeps the mapping alive, which has at least so many bytes; the caller promises the rest.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len() as usize) })
    }

    fn word(&self, offset: u64, width: Width) -> Result<Word> {
        check_range(offset, width.bytes(), self.len())?;
        if !self
            .address()
            .0
            .wrapping_add(offset)
            .is_multiple_of(width.bytes())
        {
            return Err(Error::Misaligned {
                offset,
                width: width.bytes(),
            });
        }
        Ok(Word {
            region: self.clone(),
            offset,
            width,
        })
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.address().0, self.len())
    }
}

/// A part of a region. Keeps the region alive, as does a transfer that was given it: forgetting or
/// dropping handles never leaves a card with memory that belongs to another owner.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Region,
    /// Its first address.
    start: VirtAddr,
    len: u64,
    /// From its first byte to its last, where one page holds all of them; else more than any page.
    reach: u64,
}

impl RegionSlice {
    /// `len` bytes from `offset` on, which lie inside of the region.
    fn new(region: &Region, offset: u64, len: u64) -> Self {
        let start = VirtAddr(region.address().0.wrapping_add(offset));
        let last = len.wrapping_sub(1);
        let in_page = len > 0 && last < u64::from(PAGE_SIZE) && !across_pages(start, last);
        Self {
            region: region.clone(),
            start,
            len,
            reach: if in_page { last } else { u64::MAX },
        }
    }

    /// Its region.
    #[must_use]
    #[inline]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Where it begins in the region.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        self.start.0.wrapping_sub(self.region.address().0)
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first address.
    #[inline]
    pub(crate) const fn address(&self) -> VirtAddr {
        self.start
    }

    /// From its first byte to its last, where one page holds all of them; else more than any page.
    #[inline]
    pub(crate) const fn reach(&self) -> u64 {
        self.reach
    }
}

#[derive(Clone, Debug)]
struct Word {
    region: Region,
    offset: u64,
    width: Width,
}

/// Pointer to the word, if its region is mapped.
macro_rules! atomic {
    ($word:expr, $kind:ty) => {
        $word.region.inner.mapped.map(|start| {
            // SAFETY: range and alignment were checked when the word was made; the region keeps the
            // mapping alive for as long as the borrow of `$word`; all accesses there are atomics.
            unsafe { &*start.as_ptr().add($word.offset as usize).cast::<$kind>() }
        })
    };
}

impl Word {
    fn fault(&self, status: netvm_abi::Status) -> Error {
        Error::Memory {
            offset: self.offset,
            status,
        }
    }

    fn load(&self) -> Result<u64> {
        let memory = &self.region.inner.memory;
        memory.load(self.offset, self.width).map_err(|s| self.fault(s))
    }

    fn store(&self, value: u64) -> Result<()> {
        let memory = &self.region.inner.memory;
        memory
            .store(self.offset, self.width, value)
            .map_err(|s| self.fault(s))
    }

    fn compare_swap(&self, expected: u64, new: u64) -> Result<u64> {
        let memory = &self.region.inner.memory;
        memory
            .compare_swap(self.offset, self.width, expected, new)
            .map_err(|s| self.fault(s))
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident, $int:ty, $atomic:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// Others, remote nodes included, may change it between any two accesses. Its
        /// `compare_swap` is atomic among the programs of this node; remote nodes change words that
        /// several nodes compete for with the card's own atomics.
        #[derive(Clone, Debug)]
        pub struct $name(Word);

        impl $name {
            /// Its value, with acquire order: data that was written before it is seen.
            ///
            /// # Errors
            /// [`Error::Memory`] where the page cannot be had.
            #[inline]
            pub fn load(&self) -> Result<$int> {
                match atomic!(self.0, $atomic) {
                    Some(word) => Ok(word.load(Ordering::Acquire)),
                    None => self.0.load().map(|value| value as $int),
                }
            }

            /// Stores a value, with release order.
            ///
            /// # Errors
            /// [`Error::Memory`] where the page cannot be had.
            #[inline]
            pub fn store(&self, value: $int) -> Result<()> {
                match atomic!(self.0, $atomic) {
                    Some(word) => {
                        word.store(value, Ordering::Release);
                        Ok(())
                    }
                    None => self.0.store(u64::from(value)),
                }
            }

            /// Stores `new` if the value is `expected`; gives the old value.
            ///
            /// # Errors
            /// [`Error::Memory`] where the page cannot be had.
            #[inline]
            pub fn compare_swap(&self, expected: $int, new: $int) -> Result<$int> {
                match atomic!(self.0, $atomic) {
                    Some(word) => Ok(word
                        .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                        .unwrap_or_else(|old| old)),
                    None => self
                        .0
                        .compare_swap(u64::from(expected), u64::from(new))
                        .map(|value| value as $int),
                }
            }
        }
    )*};
}

words! {
    /// An aligned 32-bit word of a region.
    Word32, u32, AtomicU32;
    /// An aligned 64-bit word of a region.
    Word64, u64, AtomicU64;
}
