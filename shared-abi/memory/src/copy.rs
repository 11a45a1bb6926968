//! Copies between memory that other threads change at the same time.
//!
//! This is the one module that moves payload bytes between mapped memories. Such memory is shared with application threads that may write
//! to it at any moment, so there is never a `&[u8]` over it: on x86-64 a copy is one string instruction (the compiler knows
//! nothing about the bytes it moves), elsewhere a loop of relaxed atomic words. What a concurrent writer does shows as a mix of
//! old and new bytes, as it does with real DMA, and never as undefined behaviour.
//!
//! An aligned payload of 1, 2, 4 or 8 bytes lands as a single store (promise P4): a reader that spins on such a word sees the old
//! value or the new one.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies `len` bytes from `src` to `dst`, either of which other threads may be reading and writing.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes for the whole call, and the two ranges must not overlap. Rust
/// references to either range must not exist, except to atomics.
#[inline]
pub unsafe fn copy_shared(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller promises both ranges; each branch touches exactly `len` bytes of each.
    unsafe {
        match len {
            0 => {}
            8 if aligned(src, dst, 8) => {
                let word = (*src.cast::<AtomicU64>()).load(Ordering::Relaxed);
                (*dst.cast::<AtomicU64>()).store(word, Ordering::Release);
            }
            4 if aligned(src, dst, 4) => {
                let word = (*src.cast::<AtomicU32>()).load(Ordering::Relaxed);
                (*dst.cast::<AtomicU32>()).store(word, Ordering::Release);
            }
            2 if aligned(src, dst, 2) => {
                let word = (*src.cast::<AtomicU16>()).load(Ordering::Relaxed);
                (*dst.cast::<AtomicU16>()).store(word, Ordering::Release);
            }
            1 => {
                let byte = (*src.cast::<AtomicU8>()).load(Ordering::Relaxed);
                (*dst.cast::<AtomicU8>()).store(byte, Ordering::Release);
            }
            2..=8 => copy_small(src, dst, len),
            _ => copy_bulk(src, dst, len),
        }
    }
}

/// Copies out of memory that others change into memory that only the caller sees.
///
/// # Safety
/// `src` must be readable for `dst.len()` bytes and must not overlap `dst`.
#[inline]
pub unsafe fn copy_out(src: *const u8, dst: &mut [u8]) {
    // SAFETY: `dst` is exclusive to the caller; `src` is promised by the caller.
    unsafe { copy_shared(src, dst.as_mut_ptr(), dst.len()) }
}

/// Copies from memory that only the caller sees into memory that others read and write.
///
/// # Safety
/// `dst` must be writable for `src.len()` bytes and must not overlap `src`.
#[inline]
pub unsafe fn copy_in(src: &[u8], dst: *mut u8) {
    let len = src.len();
    if len <= 8 {
        // Through a word of ours, so that an aligned destination gets a single store whatever the alignment of `src`.
        let mut word = Aligned([0; 8]);
        word.0[..len].copy_from_slice(src);
        // SAFETY: `word` holds `len` <= 8 bytes; `dst` is promised by the caller.
        return unsafe { copy_shared(word.0.as_mut_ptr(), dst, len) };
    }
    // SAFETY: `src` is a valid slice; `dst` is promised by the caller.
    unsafe { copy_shared(src.as_ptr(), dst, len) }
}

#[repr(align(8))]
struct Aligned([u8; 8]);

#[inline]
fn aligned(src: *const u8, dst: *const u8, to: usize) -> bool {
    src.addr().is_multiple_of(to) && dst.addr().is_multiple_of(to)
}

/// # Safety
/// As [`copy_shared`], with `len <= 8`.
unsafe fn copy_small(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every index is below `len`. An aligned destination word is still written by one store, whatever the source's
    // alignment: gather the source's bytes first.
    unsafe {
        let mut word = Aligned([0; 8]);
        for (index, byte) in word.0.iter_mut().enumerate().take(len) {
            *byte = (*src.add(index).cast::<AtomicU8>()).load(Ordering::Relaxed);
        }
        let whole = u64::from_ne_bytes(word.0);
        match len {
            8 if dst.addr().is_multiple_of(8) => {
                (*dst.cast::<AtomicU64>()).store(whole, Ordering::Release);
            }
            4 if dst.addr().is_multiple_of(4) => {
                let half = u32::from_ne_bytes([word.0[0], word.0[1], word.0[2], word.0[3]]);
                (*dst.cast::<AtomicU32>()).store(half, Ordering::Release);
            }
            2 if dst.addr().is_multiple_of(2) => {
                (*dst.cast::<AtomicU16>())
                    .store(u16::from_ne_bytes([word.0[0], word.0[1]]), Ordering::Release);
            }
            _ => {
                for (index, byte) in word.0.iter().enumerate().take(len) {
                    (*dst.add(index).cast::<AtomicU8>()).store(*byte, Ordering::Release);
                }
            }
        }
    }
}

/// How far ahead of a copy its target is asked for, in bytes.
const AHEAD: usize = 1024;

/// Asks for the first cache lines of memory that a copy will write soon. Changes nothing, and means nothing
/// where the processor does not know it.
#[inline]
pub fn expect_copy_to(dst: *const u8, len: usize) {
    if len > LINE {
        for at in (0..len.min(AHEAD)).step_by(LINE) {
            expect_write(dst.wrapping_add(at));
        }
    }
}

/// Asks for the first cache lines of memory that a copy will read soon; likewise.
#[inline]
pub fn expect_copy_from(src: *const u8, len: usize) {
    if len > LINE {
        for at in (0..len.min(AHEAD)).step_by(LINE) {
            expect_read(src.wrapping_add(at));
        }
    }
}

/// Asks for the cache line of a place that will be read soon; likewise.
#[inline]
pub fn expect_read<T>(place: *const T) {
    // SAFETY: a prefetch reads and writes nothing, wherever it points.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) place, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for the cache line of a place that will be written soon; likewise.
#[inline]
pub fn expect_write<T>(place: *const T) {
    // SAFETY: a prefetch reads and writes nothing, wherever it points.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// # Safety
/// As [`copy_shared`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_bulk(src: *const u8, dst: *mut u8, len: usize) {
    const STRIDE: usize = 2 * LINE;
    // A string instruction leaves a page outside of the nearest caches; vector loops keep it there for the next copy.
    let whole = if std::arch::is_x86_feature_detected!("avx") {
        len - len % STRIDE
    } else {
        0
    };
    // The part whose target is asked for ahead: the processor reads ahead by itself, but fetches a line that is to be written
    // only when it is, and then waits.
    let near = whole.min(AHEAD);
    let far = whole - near;
    // SAFETY: the loops move `far` and then `near` bytes, multiples of the stride, and `rep movsb` the rest; the first asks for
    // lines that the second writes. The direction flag is clear by the ABI. The blocks clobber memory, so the compiler assumes
    // nothing about either range; the vector registers' upper halves are zeroed as the ABI wants them. String stores may be
    // weakly ordered among themselves but not with later stores, so a release store that follows publishes them.
    unsafe {
        if whole != 0 {
            core::arch::asm!(
                "test {far}, {far}",
                "jz 3f",
                "2:",
                "prefetchw [{dst} + {ahead}]",
                "prefetchw [{dst} + {ahead} + 64]",
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vmovdqu ymm2, [{src} + 64]",
                "vmovdqu ymm3, [{src} + 96]",
                "vmovdqu [{dst}], ymm0",
                "vmovdqu [{dst} + 32], ymm1",
                "vmovdqu [{dst} + 64], ymm2",
                "vmovdqu [{dst} + 96], ymm3",
                "add {src}, 128",
                "add {dst}, 128",
                "sub {far}, 128",
                "jnz 2b",
                "3:",
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vmovdqu ymm2, [{src} + 64]",
                "vmovdqu ymm3, [{src} + 96]",
                "vmovdqu [{dst}], ymm0",
                "vmovdqu [{dst} + 32], ymm1",
                "vmovdqu [{dst} + 64], ymm2",
                "vmovdqu [{dst} + 96], ymm3",
                "add {src}, 128",
                "add {dst}, 128",
                "sub {near}, 128",
                "jnz 3b",
                "vzeroupper",
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                far = inout(reg) far => _,
                near = inout(reg) near => _,
                ahead = const AHEAD,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                options(nostack)
            );
        }
        let rest = len - whole;
        // Not for nothing: even of no bytes it costs as much as ten other instructions.
        if rest != 0 {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") rest => _,
                inout("rdi") dst.add(whole) => _,
                inout("rsi") src.add(whole) => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// As [`copy_shared`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_bulk(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every index stays below `len`; words are used only where both sides are aligned.
    unsafe {
        let mut at = 0;
        if src.addr() % 8 == dst.addr() % 8 {
            while at < len && src.add(at).addr() % 8 != 0 {
                let byte = (*src.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
                (*dst.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
                at += 1;
            }
            while at + 8 <= len {
                let word = (*src.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
                (*dst.add(at).cast::<AtomicU64>()).store(word, Ordering::Relaxed);
                at += 8;
            }
        }
        while at < len {
            let byte = (*src.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
            (*dst.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
            at += 1;
        }
    }
    core::sync::atomic::fence(Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        for len in [
            0usize, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 63, 64, 65, 255, 1024, 1161, 4096,
        ] {
            for from in 0..9 {
                for to in 0..9 {
                    let source: Vec<u8> = (0..len + 32).map(|i| (i * 7 + 1) as u8).collect();
                    let mut target = vec![0u8; len + 32];
                    // SAFETY: both vectors hold `len + 32` bytes and are distinct.
                    unsafe { copy_shared(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                    assert_eq!(&target[to..to + len], &source[from..from + len]);
                    assert!(
                        target[..to]
                            .iter()
                            .chain(&target[to + len..])
                            .all(|byte| *byte == 0)
                    );
                }
            }
        }
    }

    #[test]
    fn an_aligned_eight_byte_payload_never_tears() {
        use std::sync::atomic::AtomicBool;
        let word = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // An unaligned source: the single store must not depend on the sender's alignment.
                let mut bytes = [0u8; 17];
                for round in 0..200_000u64 {
                    let value = if round % 2 == 0 { u64::MAX } else { 0 };
                    bytes[1..9].copy_from_slice(&value.to_ne_bytes());
                    // SAFETY: `word` is 8 bytes, and all threads reach it through atomics.
                    unsafe { copy_in(&bytes[1..9], word.as_ptr().cast()) };
                }
                stop.store(true, Ordering::Release);
            });
            while !stop.load(Ordering::Acquire) {
                let seen = word.load(Ordering::Acquire);
                assert!(seen == 0 || seen == u64::MAX, "torn: {seen:#x}");
            }
        });
    }
}
