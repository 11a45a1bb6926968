//! Memory that is sized at boot: one range, given out piece by piece, never taken back. No heap.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    static mut __arena_start: [u8; 0];
    static mut __arena_end: [u8; 0];
}

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The rest of the range.
pub(crate) struct Arena {
    rest: &'static mut [MaybeUninit<u8>],
    used: usize,
}

impl Arena {
    /// The whole range, once.
    pub(crate) fn take() -> Option<Self> {
        // Load and store, not a swap: this runs before the MMU is on, when exclusives need not work.
        if TAKEN.load(Ordering::Relaxed) {
            return None;
        }
        TAKEN.store(true, Ordering::Relaxed);
        let start = (&raw mut __arena_start).cast::<MaybeUninit<u8>>();
        let len = (&raw mut __arena_end) as usize - start as usize;
        // SAFETY: the linker script keeps this range free of anything else, and it is taken only once.
        let rest = unsafe { core::slice::from_raw_parts_mut(start, len) };
        Some(Self { rest, used: 0 })
    }

    /// Bytes given out so far, gaps for alignment included.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// `len` entries, aligned to `align` bytes at least, each made by `make`. Too little memory is a
    /// mistake of the configuration and ends the boot.
    pub(crate) fn slice<T: 'static>(
        &mut self,
        len: usize,
        align: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> &'static mut [T] {
        let align = align.max(align_of::<T>());
        let gap = self.rest.as_ptr().align_offset(align);
        let bytes = len * size_of::<T>();
        let rest = core::mem::take(&mut self.rest);
        assert!(
            gap + bytes <= rest.len(),
            "the arena of the linker script is too small for this geometry"
        );
        let (piece, rest) = rest.split_at_mut(gap + bytes);
        self.rest = rest;
        self.used += gap + bytes;
        let first = piece.as_mut_ptr().wrapping_add(gap).cast::<T>();
        for index in 0..len {
            // SAFETY: inside of the piece, which is aligned for `T` behind the gap and given out once.
            unsafe { first.add(index).write(make(index)) };
        }
        // SAFETY: all `len` entries have just been written; the piece is ours for ever.
        unsafe { core::slice::from_raw_parts_mut(first, len) }
    }
}
