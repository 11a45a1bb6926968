//! Access to memory that may be gone. A program hands such memory over (`adopt`), and may unmap it, or cut the file behind it,
//! at any time. An access that meets this ends in a [`Status`], not in a signal that ends the process.
//!
//! The functions copy under [`netvm_memory::guard`], so each needs its handler in place.

use crate::backend::Width;
use netvm_abi::{PAGE_SIZE, Status};
use netvm_memory::guard::{self, Fault};
use std::sync::atomic::{Ordering, fence};

/// What a fault says of a page that was to be read.
#[must_use]
pub const fn status_of_read(fault: Fault) -> Status {
    match fault {
        Fault::Bus => Status::BusError,
        Fault::Segment => Status::Unmapped,
    }
}

/// What a fault says of the page of `at`, which was to be written.
///
/// # Safety
/// [`guard::install`] was called.
#[must_use]
pub unsafe fn status_of_write(fault: Fault, at: *mut u8) -> Status {
    match fault {
        Fault::Bus => Status::BusError,
        // SAFETY: the handler is in place, so a byte may be read wherever it is.
        Fault::Segment => match unsafe { guard::touch_to_read(at) } {
            Ok(()) => Status::ReadOnly,
            Err(fault) => status_of_read(fault),
        },
    }
}

/// A word of this process, so that a short copy is one load and one store wherever the other bytes lie.
#[repr(align(8))]
struct Aligned([u8; 8]);

/// The parts of a range that lie in one page each, so that a fault belongs to a page: offset and length.
fn parts(at: *const u8, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let page = PAGE_SIZE as usize;
    let mut offset = 0;
    std::iter::from_fn(move || {
        let room = page - (at.addr() + offset) % page;
        let part = (offset, room.min(len - offset));
        offset += part.1;
        (part.1 > 0).then_some(part)
    })
}

/// Copies out. An aligned copy of 1, 2, 4 or 8 bytes is one load.
///
/// # Safety
/// [`guard::install`] was called. No reference to what lies in the range exists, and it does not overlap `into`.
pub(crate) unsafe fn read(at: *const u8, into: &mut [u8]) -> Result<(), Status> {
    for (offset, len) in parts(at, into.len()) {
        let (from, into) = (at.wrapping_add(offset), &mut into[offset..offset + len]);
        let mut word = Aligned([0; 8]);
        let to = if len <= 8 {
            word.0.as_mut_ptr()
        } else {
            into.as_mut_ptr()
        };
        // SAFETY: the caller's promise; `to` has room for `len` bytes.
        unsafe { guard::copy(from, to, len) }.map_err(status_of_read)?;
        if let Some(word) = word.0.get(..len) {
            into.copy_from_slice(word);
        }
    }
    fence(Ordering::Acquire);
    Ok(())
}

/// Copies in. An aligned copy of 1, 2, 4 or 8 bytes is one store, with release order.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn write(from: &[u8], at: *mut u8) -> Result<(), Status> {
    fence(Ordering::Release);
    for (offset, len) in parts(at, from.len()) {
        let (from, to) = (&from[offset..offset + len], at.wrapping_add(offset));
        let mut word = Aligned([0; 8]);
        let from = match word.0.get_mut(..len) {
            Some(word) => {
                word.copy_from_slice(from);
                word.as_ptr()
            }
            None => from.as_ptr(),
        };
        // SAFETY: the caller's promise; `from` has `len` bytes.
        let copied = unsafe { guard::copy(from, to, len) };
        // SAFETY: as promised.
        copied.map_err(|fault| unsafe { status_of_write(fault, to) })?;
    }
    Ok(())
}

/// Loads an aligned word, with acquire order.
///
/// # Safety
/// As [`read`], for the word.
pub(crate) unsafe fn load(at: *const u8, width: Width) -> Result<u64, Status> {
    let mut word = [0; 8];
    let part = &mut word[..width.bytes() as usize];
    // SAFETY: the caller's promise.
    unsafe { read(at, part) }?;
    Ok(match width {
        Width::Word32 => u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])),
        Width::Word64 => u64::from_ne_bytes(word),
    })
}

/// Stores an aligned word, with release order.
///
/// # Safety
/// As [`read`], for the word.
pub(crate) unsafe fn store(at: *mut u8, width: Width, value: u64) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::Word32 => write(&(value as u32).to_ne_bytes(), at),
            Width::Word64 => write(&value.to_ne_bytes(), at),
        }
    }
}

/// Stores `new` if the aligned word is `expected`; gives the old value.
///
/// # Safety
/// As [`read`], for the word.
pub(crate) unsafe fn compare_swap(at: *mut u8, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
    // SAFETY: the caller's promise.
    let swapped = unsafe {
        match width {
            Width::Word32 => guard::compare_swap_4(at.cast(), expected as u32, new as u32).map(u64::from),
            Width::Word64 => guard::compare_swap_8(at.cast(), expected, new),
        }
    };
    // SAFETY: as promised.
    swapped.map_err(|fault| unsafe { status_of_write(fault, at) })
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    #[test]
    fn a_fault_says_what_the_page_lacks() {
        guard::install().unwrap();
        for (prot, wanted) in [
            (ProtFlags::READ, Status::ReadOnly),
            (ProtFlags::empty(), Status::Unmapped),
        ] {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at = unsafe {
                rustix::mm::mmap_anonymous(core::ptr::null_mut(), 4096, prot, MapFlags::PRIVATE).unwrap()
            };
            let at = at.cast::<u8>();
            // SAFETY: the guard is in place.
            let (segment, bus) = unsafe {
                (
                    status_of_write(Fault::Segment, at),
                    status_of_write(Fault::Bus, at),
                )
            };
            assert_eq!((segment, bus), (wanted, Status::BusError));
        }
        assert_eq!(status_of_read(Fault::Segment), Status::Unmapped);
        assert_eq!(status_of_read(Fault::Bus), Status::BusError);
    }
}
