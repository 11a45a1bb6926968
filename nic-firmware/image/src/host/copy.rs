//! Copies between memories, of which at least one may be changed by others at the same time: never a `&[u8]` over that.
//!
//! The compiler knows nothing of what is moved: short copies are relaxed atomic accesses, long ones instructions of our
//! own. What a concurrent writer does shows as a mix of old and new bytes, as with any DMA, and never as undefined
//! behaviour. An aligned payload of 1, 2, 4 or 8 bytes is one load and one store (promise P4).

use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes that the long copy moves a turn.
const STRIDE: usize = 32;

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges must be Normal memory of `len` bytes that stays, and must not overlap. References to either exist to
/// atomics only, or belong to the caller.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let aligned = |size| from.addr().is_multiple_of(size) && to.addr().is_multiple_of(size);
    // SAFETY: `len` bytes of each range, as the caller promises; typed accesses only where both are aligned for them.
    unsafe {
        match len {
            8 if aligned(8) => {
                let value = (*from.cast::<AtomicU64>()).load(Ordering::Relaxed);
                (*to.cast::<AtomicU64>()).store(value, Ordering::Relaxed);
            }
            4 if aligned(4) => {
                let value = (*from.cast::<AtomicU32>()).load(Ordering::Relaxed);
                (*to.cast::<AtomicU32>()).store(value, Ordering::Relaxed);
            }
            2 if aligned(2) => {
                let value = (*from.cast::<AtomicU16>()).load(Ordering::Relaxed);
                (*to.cast::<AtomicU16>()).store(value, Ordering::Relaxed);
            }
            _ => {
                let whole = len - len % STRIDE;
                if whole != 0 {
                    strides(from, to, whole);
                }
                for at in whole..len {
                    let byte = (*from.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
                    (*to.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Copies `len` bytes, a multiple of [`STRIDE`] above zero, at any alignment: Normal memory allows it, and alignment
/// checks are off.
///
/// # Safety
/// As [`copy`].
unsafe fn strides(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: loads and stores `len` bytes, as the caller promises. Memory is clobbered: the compiler assumes nothing of
    // either range.
    unsafe {
        asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{from}], #32",
            "subs {len}, {len}, #32",
            "stp {a:q}, {b:q}, [{to}], #32",
            "b.ne 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            a = out(vreg) _,
            b = out(vreg) _,
            options(nostack)
        );
    }
}

/// A short payload, aligned for what it may be.
#[repr(C, align(8))]
struct Word([u8; 8]);

/// Copies out of memory that only the caller sees. A payload of up to 8 bytes lands as one store wherever it stood.
///
/// # Safety
/// As [`copy`], for `from.len()` bytes.
pub(crate) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let mut word = Word([0; 8]);
    let source = match word.0.get_mut(..from.len()) {
        Some(bytes) => {
            bytes.copy_from_slice(from);
            word.0.as_ptr()
        }
        None => from.as_ptr(),
    };
    // SAFETY: `source` holds `from.len()` bytes that are this function's or its caller's; `to` is promised.
    unsafe { copy(source, to, from.len()) }
}

/// Copies into memory that only the caller sees.
///
/// # Safety
/// As [`copy`], for `to.len()` bytes.
pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    // SAFETY: `to` is the caller's alone; `from` is promised.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// Copies between memories that only the caller sees, as much as fits: shorter than the compiler's own copy, which for
/// this target moves no two registers at once.
pub(crate) fn copy_own(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    // SAFETY: both slices hold `len` bytes; being slices, they do not overlap.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len) }
}
