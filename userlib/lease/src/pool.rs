//! The bytes of a manager's memory: which parts are free.
//!
//! A part that is allocated has a power of two of bytes and lies at a multiple of that, so that it merges with its neighbour when both are free
//! (the buddy system of `buddy_system_allocator`). One that is made for a key has just the bytes that were asked for.

use buddy_system_allocator::FrameAllocator;

/// The unit: a cache line, so that no two parts share one.
pub(crate) const FRAME: u64 = 64;
/// Sizes of parts, in powers of two of [`FRAME`].
const SIZES: usize = 48;

/// A range of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What is free.
pub(crate) struct Pool {
    frames: FrameAllocator<SIZES>,
    size: u64,
    free: u64,
    /// No part has ever reached from here on.
    fresh: u64,
}

impl Pool {
    pub(crate) fn new(size: u64) -> Self {
        let size = (size / FRAME * FRAME).min(FRAME << (SIZES - 1));
        let mut frames = FrameAllocator::new();
        frames.add_frame(0, frame(size));
        Self {
            frames,
            size,
            free: size,
            fresh: 0,
        }
    }

    /// Bytes of the part that an allocation of `len` gets. `None`: more than there can be, or none.
    pub(crate) fn size_of(&self, len: u64) -> Option<u64> {
        let size = len.max(FRAME).checked_next_power_of_two()?;
        (len != 0 && size <= self.size).then_some(size)
    }

    /// Takes a part of a [size](Self::size_of).
    pub(crate) fn allocate(&mut self, size: u64) -> Option<Part> {
        let at = self.frames.alloc(frame(size))?;
        let part = Part {
            offset: at as u64 * FRAME,
            len: size,
        };
        self.free -= size;
        self.fresh = self.fresh.max(part.offset + size);
        Some(part)
    }

    /// Takes a part of just these bytes, for good.
    pub(crate) fn carve(&mut self, len: u64) -> Option<Part> {
        let whole = self.allocate(self.size_of(len)?)?;
        let used = len.next_multiple_of(FRAME);
        let (from, to) = (whole.offset + used, whole.offset + whole.len);
        self.frames.add_frame(frame(from), frame(to));
        self.free += to - from;
        Some(Part { len, ..whole })
    }

    /// A part that was allocated comes back.
    pub(crate) fn give_back(&mut self, part: Part) {
        self.frames.dealloc(frame(part.offset), frame(part.len));
        self.free += part.len;
    }

    /// Bytes that are free.
    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// Bytes that there are.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Bytes from here on are in no part, and never were.
    pub(crate) const fn fresh(&self) -> u64 {
        self.fresh
    }
}

/// The number of frames in so many bytes. Memory of this process has no more than a `usize` can say.
const fn frame(bytes: u64) -> usize {
    (bytes / FRAME) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_merge_when_they_come_back() {
        let mut pool = Pool::new(1024 + 63);
        assert_eq!((pool.size(), pool.fresh()), (1024, 0));
        let keyed = pool.carve(300).unwrap();
        assert_eq!((keyed.len, pool.free()), (300, 1024 - 320));
        let small: Vec<Part> = std::iter::from_fn(|| pool.allocate(64)).collect();
        assert_eq!((small.len(), pool.free(), pool.fresh()), (11, 0, 1024));
        let mut ranges: Vec<(u64, u64)> = small.iter().chain([&keyed]).map(|p| (p.offset, p.len)).collect();
        ranges.sort_unstable();
        for two in ranges.windows(2) {
            assert!(two[0].0 + two[0].1 <= two[1].0, "{ranges:?}");
        }
        assert_eq!(pool.allocate(64), None);
        small.into_iter().for_each(|part| pool.give_back(part));
        // The half without the keyed part is one again.
        assert_eq!(pool.allocate(512).map(|part| part.len), Some(512));
        assert_eq!(pool.allocate(512), None);
        assert_eq!(pool.free(), 512 - 320);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let mut pool = Pool::new(1000);
        assert_eq!(pool.size(), 960);
        for (len, size) in [(1, 64), (64, 64), (65, 128), (512, 512)] {
            assert_eq!(pool.size_of(len), Some(size));
        }
        for len in [0, 513, 960, 1 << 50, u64::MAX] {
            assert_eq!(pool.size_of(len), None, "{len}");
            assert_eq!(pool.carve(len), None, "{len}");
        }
        assert_eq!(Pool::new(63).size_of(1), None);
    }
}
