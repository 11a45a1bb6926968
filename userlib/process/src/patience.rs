//! How long a waiter spins before it naps.
//!
//! A nap gives the processor to the threads that bring a page, for example. But while the waiter serves others, it takes part: a
//! program that waits for its turn, or for the end of all others' work, answers them as fast as one that spins. So patience begins
//! anew whenever the card has served something.

use std::sync::atomic::{AtomicU32, Ordering};

/// Spins after which a waiter naps.
const SPINS: u32 = 2048;

/// The patience of a port's waiters. Several at a time disturb each other's a little, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// The spin at which it began.
    from: AtomicU32,
    /// What the card had served then.
    served: AtomicU32,
}

impl Patience {
    /// Whether it is over, after so many spins of the present wait. `served` counts what the card has served.
    #[inline]
    pub(crate) fn is_over(&self, spins: u32, served: impl FnOnce() -> u32) -> bool {
        if spins == 0 {
            self.from.store(0, Ordering::Relaxed);
        }
        if spins.saturating_sub(self.from.load(Ordering::Relaxed)) < SPINS {
            return false;
        }
        let served = served();
        if self.served.swap(served, Ordering::Relaxed) == served {
            return true;
        }
        self.from.store(spins, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_naps_only_while_nothing_is_served() {
        let patience = Patience::default();
        let over = |spins, served| patience.is_over(spins, || served);
        // Nothing was served while it spun.
        assert!(!over(0, 0) && !over(SPINS - 1, 0));
        assert!(over(SPINS, 0) && over(SPINS + 1, 0));
        // Something was: all of the patience is there again.
        assert!(!over(SPINS + 2, 1) && !over(2 * SPINS + 1, 1));
        assert!(over(2 * SPINS + 2, 1) && over(2 * SPINS + 3, 1));
        // The next wait begins with all of it.
        assert!(!over(0, 1) && !over(SPINS - 1, 1));
        assert!(over(SPINS, 1));
    }
}
