//! Mappings: the port's words, and memory for regions.

use super::calls::{Calls, system};
use crate::backend::Refusal;
use netvm_abi::Status;
use netvm_abi::port_area::PORT_STATE;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A range of mapped memory; unmapped where this is dropped.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the range stays where it is, and every access through the pointer is by atomics or copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory, all zeroes. None of it is resident.
    pub(super) fn anonymous(len: usize) -> Result<Self, Refusal> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) };
        Self::new(start.map_err(|errno| system("memory for a region", errno))?, len)
    }

    /// A region of the device; `write`: the process may write it.
    pub(super) fn device(calls: &Calls, offset: u64, len: usize, write: bool) -> Result<Self, Refusal> {
        let access = if write {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: at an address of the kernel's choice.
        let start = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, calls, offset) };
        Self::new(start.map_err(|errno| system("map the port's words", errno))?, len)
    }

    fn new(start: *mut c_void, len: usize) -> Result<Self, Refusal> {
        let start = NonNull::new(start).ok_or(Refusal::Status(Status::NoMemory))?;
        Ok(Self { start, len })
    }

    /// Its first byte.
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Its words.
    pub(super) const fn words(&self) -> (NonNull<u32>, usize) {
        (self.start.cast(), self.len / 4)
    }

    /// Puts ordinary memory in the place of a device's: the words may still be looked at, the port is ended, and the
    /// device can be closed. Where that memory cannot be had, the device's stays until `self` goes.
    pub(super) fn retire(&self) {
        let Ok(memory) = Self::anonymous(self.len) else {
            return;
        };
        let (words, count) = memory.words();
        // SAFETY: new memory of so many words; no other pointer to it exists.
        let words = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<AtomicU32>(), count) };
        if let Some(state) = words.get(PORT_STATE.index()) {
            state.store(u32::from(Status::NoSuchPort.code()), Ordering::Release);
        }
        // SAFETY: both ranges are whole mappings of this length. Accesses of other threads meanwhile find one or the
        // other.
        let moved = unsafe {
            let (from, to) = (memory.start.as_ptr(), self.start.as_ptr());
            mremap_fixed(from, self.len, self.len, MremapFlags::MAYMOVE, to)
        };
        if moved.is_ok() {
            // It is `self`'s now.
            std::mem::forget(memory);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; all users of the range hold the mapping, so none is left.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}
