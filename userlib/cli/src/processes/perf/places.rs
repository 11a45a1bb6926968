//! Where on a part of another node's memory an operation takes place.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

const PAGE: u64 = 4096;

/// Random pages, again and again the same ones.
#[derive(Clone, Debug)]
pub(in crate::processes) struct Places {
    /// Where the random numbers begin, each time.
    first: SmallRng,
    now: SmallRng,
    /// How many there are.
    count: u64,
    /// Those before they begin anew.
    left: u64,
    /// Pages on which one may begin.
    pages: u64,
}

impl Places {
    /// Bytes of the pages that operations of this size touch at one place.
    pub(super) fn span(size: u32) -> u64 {
        u64::from(size).max(1).next_multiple_of(PAGE)
    }

    /// Places for operations of `size` bytes in a memory of `len` bytes, of which at most `touch` bytes are touched.
    pub(super) fn new(seed: u64, size: u32, len: u64, touch: u64) -> Self {
        let span = Self::span(size);
        let first = SmallRng::seed_from_u64(seed);
        Self {
            now: first.clone(),
            first,
            count: (touch / span).max(1),
            left: 0,
            pages: (len.saturating_sub(span) / PAGE) + 1,
        }
    }

    /// The next one, in bytes from the beginning.
    pub(super) fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.left = self.count;
            self.now = self.first.clone();
        }
        self.left -= 1;
        self.now.random_range(0..self.pages) * PAGE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_more_is_touched_than_allowed_and_the_whole_range_is_reached() {
        let (len, touch) = (40 << 30, 1 << 20);
        for size in [1, 8, 4096, 4097, 65_536, 1 << 20] {
            let mut places = Places::new(size.into(), size, len, touch);
            let mut pages = BTreeSet::new();
            for _ in 0..10_000 {
                let at = places.next();
                assert!(at + u64::from(size) <= len && at.is_multiple_of(PAGE), "{size}");
                pages.extend((at..at + u64::from(size)).step_by(PAGE as usize));
            }
            assert!(pages.len() as u64 * PAGE <= touch, "{size}");
        }
        let mut places = Places::new(1, 8, len, touch);
        let all: Vec<u64> = (0..256).map(|_| places.next()).collect();
        assert!(all.iter().any(|at| *at < len / 16) && all.iter().any(|at| *at > len / 16 * 15));
        assert!(all.iter().collect::<BTreeSet<_>>().len() > 250, "they differ");
        assert_eq!(places.next(), all[0]);
        // A memory that is as large as one operation.
        assert_eq!(Places::new(1, 1 << 20, 1 << 20, touch).next(), 0);
    }
}
