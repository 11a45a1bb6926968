//! A range of host memory that the card reaches by page number.

use super::copy;
use crate::arena::Arena;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use netvm_abi::{PAGE_SIZE, PageOffset};
use netvm_fw_common::host::Pages;

const PAGE: usize = PAGE_SIZE as usize;

/// A page of the range, for its size and alignment.
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Pages that the card may read and write while others do. Copies of it name the same pages.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    start: *mut u8,
    pages: usize,
}

impl Window {
    /// `pages` pages of this image's static memory, all zeroes.
    pub(crate) fn inside(arena: &mut Arena, pages: usize) -> Self {
        let range = arena.slice(pages, PAGE, |_| Page([0; PAGE]));
        Self {
            start: range.as_mut_ptr().cast(),
            pages,
        }
    }

    /// `pages` pages of memory that a device shows at `range`.
    ///
    /// # Safety
    /// The range is mapped as memory for ever, and only reached through `Window` and atomics.
    pub(super) unsafe fn over(range: &Range<usize>) -> Self {
        Self {
            start: range.start as *mut u8,
            pages: (range.end - range.start) / PAGE,
        }
    }

    /// No pages.
    pub(super) const fn none() -> Self {
        Self {
            start: core::ptr::null_mut(),
            pages: 0,
        }
    }

    /// `count` pages from page `first` on; nothing where they are not all inside.
    pub(super) fn part(&self, first: u64, count: usize) -> Option<Self> {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(count)?;
        (end <= self.pages).then(|| Self {
            start: self.start.wrapping_add(first * PAGE),
            pages: count,
        })
    }

    /// The first `count` words; nothing where there are fewer.
    pub(super) fn words(&self, count: u32) -> Option<&'static [AtomicU32]> {
        let count = count as usize;
        if count * size_of::<AtomicU32>() > self.pages * PAGE {
            return None;
        }
        // SAFETY: the range stays for ever, is aligned to a page, and is reached through atomics and `Window` only.
        Some(unsafe { core::slice::from_raw_parts(self.start.cast(), count) })
    }

    /// Where `len` bytes at `offset` of a page are; nothing where they are not all inside of that page.
    fn place(&self, page: u64, offset: PageOffset, len: usize) -> Option<*mut u8> {
        let page = usize::try_from(page).ok().filter(|&page| page < self.pages)?;
        let end = offset.index().checked_add(len)?;
        // Inside of the range, so no sum can wrap.
        (end <= PAGE).then(|| self.start.wrapping_add(page * PAGE + offset.index()))
    }

    /// Writes bytes to a page; false, and nothing written, where there are no such bytes.
    pub(crate) fn write(&self, page: u64, offset: PageOffset, from: &[u8]) -> bool {
        let Some(to) = self.place(page, offset, from.len()) else {
            return false;
        };
        // SAFETY: `place` checked the range, which is the image's for ever and only reached through `Window`.
        unsafe { copy::copy_in(from, to) };
        true
    }

    /// Reads bytes of a page; false, and nothing read, where there are no such bytes.
    pub(crate) fn read(&self, page: u64, offset: PageOffset, into: &mut [u8]) -> bool {
        let Some(from) = self.place(page, offset, into.len()) else {
            return false;
        };
        // SAFETY: as for `write`.
        unsafe { copy::copy_out(from, into) };
        true
    }
}

impl Pages for Window {
    fn write(&self, page: u64, offset: PageOffset, from: &[u8]) -> bool {
        self.write(page, offset, from)
    }

    fn read(&self, page: u64, offset: PageOffset, into: &mut [u8]) -> bool {
        self.read(page, offset, into)
    }
}
