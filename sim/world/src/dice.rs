//! Every random choice of a run comes from one seeded generator (promise P8).

use netvm_abi::Nanos;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A seeded source of choices. ChaCha is specified, so a seed means the same run everywhere.
#[derive(Clone)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The dice of a run.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// An independent sequence, so that one part's choices do not shift another's.
    pub fn split(&mut self, stream: u64) -> Self {
        let mut other = ChaCha8Rng::seed_from_u64(self.0.next_u64());
        other.set_stream(stream);
        Self(other)
    }

    /// True `parts` times in a million.
    pub fn chance(&mut self, parts: u32) -> bool {
        parts > 0 && self.0.random_range(0..1_000_000u32) < parts
    }

    /// A number below `end`; zero when `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.0.random_range(0..end) }
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `low` to `high`, both possible.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A span from `low` to `high`.
    pub fn span(&mut self, low: Nanos, high: Nanos) -> Nanos {
        Nanos(self.within(low.0, high.0))
    }

    /// Any 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Any bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_and_splits_differ() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        assert_eq!(a.word(), b.word());
        assert_ne!(a.split(1).word(), Dice::new(7).split(2).word());
        assert_eq!(
            (0..50)
                .map(|_| b.within(3, 5))
                .filter(|n| !(3..=5).contains(n))
                .count(),
            0
        );
        assert_eq!(b.below(0), 0);
        assert!(!b.chance(0) && b.chance(1_000_000));
    }
}
