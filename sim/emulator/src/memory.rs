//! Memory of card and driver: word spaces, bounce pages, message buffers. None of it is ever application memory.

use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};

use netvm_abi::WordIndex;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;

use crate::error::EmulatorError;
use crate::vm::PAGE_SIZE;

/// Tables of the cores, on the heap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heap;

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        (0..len).map(make).collect()
    }
}

/// A word space that starts as zeros: the card's memory (BAR), or the driver's.
#[derive(Debug)]
pub(crate) struct WordSpace(Box<[AtomicU32]>);

impl WordSpace {
    pub(crate) fn new(words: u32) -> Self {
        Self((0..words).map(|_| AtomicU32::new(0)).collect())
    }

    /// `len` words from `start` on; fewer where the space ends.
    pub(crate) fn part(&self, start: WordIndex, len: u32) -> &[AtomicU32] {
        let words = self.0.get(start.index()..).unwrap_or_default();
        words.get(..len as usize).unwrap_or(words)
    }
}

impl SharedWords for WordSpace {
    #[inline]
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.0.load_acquire(at)
    }

    #[inline]
    fn store_release(&self, at: WordIndex, value: u32) {
        self.0.store_release(at, value);
    }

    #[inline]
    fn full_barrier(&self) {
        self.0.full_barrier();
    }

    #[inline]
    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        self.0.store_slice(at, values);
    }

    #[inline]
    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        self.0.load_slice(at, into);
    }
}

/// Pages that card and driver share, untouched until first used: the bounce pages.
#[derive(Debug)]
pub(crate) struct SharedPages {
    start: usize,
    pages: u32,
}

impl SharedPages {
    pub(crate) fn new(pages: u32) -> Result<Self, EmulatorError> {
        use rustix::mm::{MapFlags, ProtFlags};
        let len = pages as usize * PAGE_SIZE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let at = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                len,
                prot,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = at.map_err(EmulatorError::os("bounce pages"))?.expose_provenance();
        Ok(Self { start, pages })
    }

    /// Address of a page; reached by the copy module only, from several threads.
    pub(crate) fn page(&self, index: u32) -> Option<*mut u8> {
        let address = self.start + index as usize * PAGE_SIZE;
        (index < self.pages).then(|| core::ptr::with_exposed_provenance_mut(address))
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        let at = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping is this value's own, and whoever used it held this value.
        let _ = unsafe { rustix::mm::munmap(at, self.pages as usize * PAGE_SIZE) };
    }
}

/// A page of private memory for one payload; it has one owner at a time.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Buffer(pub(crate) [u8; PAGE_SIZE]);

/// Buffers of all cards. The last returned is the next given, so that a stream keeps using the same few, which stay in the
/// processor's cache.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Box<Buffer>>>);

impl Pool {
    pub(crate) fn take(&self) -> Box<Buffer> {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| Box::new(Buffer([0; PAGE_SIZE])))
    }

    pub(crate) fn give(&self, buffer: Box<Buffer>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
