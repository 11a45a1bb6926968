//! Changes of a value in memory that other threads change at the same time: one read-modify-write of the processor, at the
//! value's width.

use crate::guard::{self, Fault};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Puts `new` of the value at `at` in its place, by the processor's compare-and-exchange. Gives the value that was changed.
/// Values are little-endian, in the lowest bytes. `new` is called again where another thread was faster.
///
/// `None`: not 1, 2, 4 or 8 bytes, or not aligned to as many.
///
/// # Safety
/// `at` is mapped to be written for `len` bytes, and no reference to them exists, except to atomics.
pub unsafe fn change(at: *mut u8, len: usize, mut new: impl FnMut(u64) -> u64) -> Option<u64> {
    if !at.addr().is_multiple_of(len.max(1)) {
        return None;
    }
    macro_rules! by {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: the caller's promise; the address is aligned to the word.
            let word = unsafe { <$atomic>::from_ptr(at.cast()) };
            let new = |old: $word| Some((new(<$word>::from_le(old).into()) as $word).to_le());
            let before = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, new);
            <$word>::from_le(before.unwrap_or_else(|old| old)).into()
        }};
    }
    Some(match len {
        1 => by!(AtomicU8, u8),
        2 => by!(AtomicU16, u16),
        4 => by!(AtomicU32, u32),
        8 => by!(AtomicU64, u64),
        _ => return None,
    })
}

/// The same in memory that may not be there.
///
/// # Errors
/// The fault. Memory that may only be read is one, whatever its value and the new one.
///
/// # Safety
/// As [`guard::copy`].
pub unsafe fn change_guarded(
    at: *mut u8,
    len: usize,
    mut new: impl FnMut(u64) -> u64,
) -> Result<Option<u64>, Fault> {
    if !matches!(len, 1 | 2 | 4 | 8) || !at.addr().is_multiple_of(len) {
        return Ok(None);
    }
    let mut word = [0; 8];
    // SAFETY: the caller's promise; `word` is this function's own, and not shorter.
    unsafe { guard::copy(at, word.as_mut_ptr(), len) }?;
    let mut old = u64::from_le_bytes(word);
    loop {
        let wanted = new(old);
        // SAFETY: the caller's promise; the address is aligned.
        let found = unsafe { guard::compare_swap(at, len, old, wanted) }?;
        if found == old {
            return Ok(Some(old));
        }
        old = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of 16 bytes, aligned to 8.
    fn memory() -> [u64; 2] {
        [0x8877_6655_4433_2211, 0]
    }

    #[test]
    fn a_value_is_changed_and_its_neighbours_are_not() {
        for (len, old) in [
            (1, 0x33),
            (2, 0x4433),
            (4, 0x8877_6655),
            (8, 0x8877_6655_4433_2211),
        ] {
            let offset = [2, 2, 4, 0][usize::trailing_zeros(len) as usize];
            for guarded in [false, true] {
                let mut memory = memory();
                let at = memory.as_mut_ptr().cast::<u8>().wrapping_add(offset);
                let new = |value: u64| value.wrapping_add(0x101);
                // SAFETY: the bytes lie in `memory`.
                let found = unsafe {
                    match guarded {
                        true => change_guarded(at, len, new).unwrap(),
                        false => change(at, len, new),
                    }
                };
                assert_eq!(found, Some(old), "{len} bytes");
                let mut expected = memory_bytes(&self::memory());
                let bytes = (old + 0x101).to_le_bytes();
                expected[offset..offset + len].copy_from_slice(&bytes[..len]);
                assert_eq!(memory_bytes(&memory), expected, "{len} bytes, guarded: {guarded}");
            }
        }
    }

    fn memory_bytes(memory: &[u64; 2]) -> Vec<u8> {
        memory.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_is_no_aligned_value_is_left_alone() {
        let mut memory = memory();
        let start = memory.as_mut_ptr().cast::<u8>();
        for (offset, len) in [(1, 2), (2, 4), (4, 8), (0, 0), (0, 3), (0, 16)] {
            let at = start.wrapping_add(offset);
            // SAFETY: the bytes lie in `memory`.
            unsafe {
                assert_eq!(change(at, len, |_| 0), None);
                assert_eq!(change_guarded(at, len, |_| 0), Ok(None));
            }
        }
        assert_eq!(memory, self::memory());
    }

    #[test]
    fn no_change_of_several_threads_is_lost() {
        const ROUNDS: u64 = 20_000;
        for len in [1, 2, 4, 8] {
            let mut memory = 0_u64;
            let at = (&raw mut memory).expose_provenance();
            std::thread::scope(|scope| {
                for guarded in [false, true, false] {
                    scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            let at = core::ptr::with_exposed_provenance_mut(at);
                            // SAFETY: `memory` outlives the threads, and all of them change it by atomics.
                            unsafe {
                                match guarded {
                                    true => change_guarded(at, len, |old| old + 1).unwrap(),
                                    false => change(at, len, |old| old + 1),
                                }
                            };
                        }
                    });
                }
            });
            let mask = u64::MAX >> (64 - 8 * len);
            assert_eq!(memory, (3 * ROUNDS) & mask, "{len} bytes");
        }
    }
}
