//! Copies between the card's own memory and memory that others change at the same time: never a `&[u8]` over the latter.
//!
//! Such memory is reached by relaxed atomic accesses only. What a concurrent writer does shows as a mix of old and new
//! bytes, as with any DMA, and never as undefined behaviour. An aligned payload of 1, 2, 4 or 8 bytes is one store
//! (promise P4).

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Copies `from` to `to`.
///
/// # Safety
/// `to` must be memory of `from.len()` bytes that stays, to which no references exist but to atomics.
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let place = to.addr();
    // SAFETY: one access of just the length that the caller promises, aligned as its type needs.
    unsafe {
        match *from {
            [a] => return (*to.cast::<AtomicU8>()).store(a, Ordering::Relaxed),
            [a, b] if place.is_multiple_of(2) => {
                let value = u16::from_ne_bytes([a, b]);
                return (*to.cast::<AtomicU16>()).store(value, Ordering::Relaxed);
            }
            [a, b, c, d] if place.is_multiple_of(4) => {
                let value = u32::from_ne_bytes([a, b, c, d]);
                return (*to.cast::<AtomicU32>()).store(value, Ordering::Relaxed);
            }
            _ => {}
        }
    }
    let first = to.align_offset(WORD).min(from.len());
    let (start, rest) = from.split_at(first);
    let (words, end) = rest.as_chunks::<WORD>();
    let mut at = to;
    // SAFETY: `at` advances by what was stored, `from.len()` bytes in all, as the caller promises; words are stored
    // only from the first aligned address on.
    unsafe {
        for &byte in start {
            (*at.cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
            at = at.add(1);
        }
        for &word in words {
            (*at.cast::<AtomicU64>()).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            at = at.add(WORD);
        }
        for &byte in end {
            (*at.cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
            at = at.add(1);
        }
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// `from` must be memory of `to.len()` bytes that stays, to which no references exist but to atomics.
pub(super) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    let first = from.align_offset(WORD).min(to.len());
    let (start, rest) = to.split_at_mut(first);
    let (words, end) = rest.as_chunks_mut::<WORD>();
    let mut at = from;
    // SAFETY: `at` advances by what was loaded, `to.len()` bytes in all, as the caller promises; words are loaded only
    // from the first aligned address on.
    unsafe {
        for byte in start {
            *byte = (*at.cast::<AtomicU8>()).load(Ordering::Relaxed);
            at = at.add(1);
        }
        for word in words {
            *word = (*at.cast::<AtomicU64>()).load(Ordering::Relaxed).to_ne_bytes();
            at = at.add(WORD);
        }
        for byte in end {
            *byte = (*at.cast::<AtomicU8>()).load(Ordering::Relaxed);
            at = at.add(1);
        }
    }
}
