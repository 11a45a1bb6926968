//! Which numbered datagrams of a peer have come.

/// Numbers behind the highest one that are told apart.
pub(super) const WINDOW: u64 = 2_048;
const WORDS: usize = WINDOW as usize / 64;

/// Remembers, of the last [`WINDOW`] numbers, which have come. Older ones count as come.
///
/// Numbers begin at 1. A number is asked for before its datagram is checked, and marked after: what is forged moves nothing.
#[derive(Debug)]
pub(super) struct Seen {
    highest: u64,
    /// A bit for each number of the window, at the number's remainder.
    bits: [u64; WORDS],
}

impl Seen {
    pub(super) const fn new() -> Self {
        Self {
            highest: 0,
            bits: [0; WORDS],
        }
    }

    const fn place(number: u64) -> (usize, u64) {
        let bit = number % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Whether a number has not come, and would be told from one that has.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number > self.highest {
            return true;
        }
        let (word, bit) = Self::place(number);
        let come = self.bits.get(word).is_none_or(|word| word & bit != 0);
        number != 0 && self.highest - number < WINDOW && !come
    }

    /// A number that [is new](Self::is_new) has come.
    pub(super) fn mark(&mut self, number: u64) {
        let ahead = number.saturating_sub(self.highest);
        if ahead >= WINDOW {
            self.bits = [0; WORDS];
        } else {
            // The places of the numbers between belonged to numbers that leave the window.
            for passed in number - ahead..number {
                let (word, bit) = Self::place(passed + 1);
                if let Some(word) = self.bits.get_mut(word) {
                    *word &= !bit;
                }
            }
        }
        self.highest = self.highest.max(number);
        let (word, bit) = Self::place(number);
        if let Some(word) = self.bits.get_mut(word) {
            *word |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn take(seen: &mut Seen, number: u64) -> bool {
        let new = seen.is_new(number);
        if new {
            seen.mark(number);
        }
        new
    }

    #[test]
    fn each_number_counts_once_in_any_order_within_the_window() {
        let mut seen = Seen::new();
        assert!(!take(&mut seen, 0), "there is no such number");
        let numbers = || (1..=WINDOW).rev();
        assert!(numbers().all(|number| take(&mut seen, number)));
        assert!(numbers().all(|number| !take(&mut seen, number)));
    }

    #[test]
    fn the_window_ends_where_it_says() {
        let mut seen = Seen::new();
        assert!(take(&mut seen, 5_000));
        assert!(!take(&mut seen, 5_000 - WINDOW));
        assert!(take(&mut seen, 5_000 - WINDOW + 1));
        assert!(!take(&mut seen, 5_000 - WINDOW + 1));
        // The next number has the place of the one that leaves.
        assert!(take(&mut seen, 5_001));
        assert!(!take(&mut seen, 5_001 - WINDOW));
        assert!(!take(&mut seen, 5_001));
    }

    #[test]
    fn a_jump_forgets_nothing_that_it_must_know() {
        for jump in [1, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 1 << 40] {
            let mut seen = Seen::new();
            let first = 10 * WINDOW;
            assert!(take(&mut seen, first) && take(&mut seen, first + jump));
            assert!(!take(&mut seen, first), "{jump}");
            assert!(!take(&mut seen, first + jump), "{jump}");
            assert_eq!(take(&mut seen, first + 1), jump != 1 && jump <= WINDOW, "{jump}");
        }
        let mut seen = Seen::new();
        assert!(take(&mut seen, u64::MAX) && !take(&mut seen, u64::MAX) && take(&mut seen, u64::MAX - 1));
    }

    proptest! {
        /// As a list of all that have come does.
        #[test]
        fn it_is_a_set_with_an_end(steps in proptest::collection::vec((0u64..3 * WINDOW, any::<bool>()), 1..400)) {
            let (mut seen, mut come, mut highest) = (Seen::new(), BTreeSet::new(), 0u64);
            for (step, ahead) in steps {
                let number = if ahead { highest + step } else { highest.saturating_sub(step) };
                let wanted = number != 0 && number + WINDOW > highest && !come.contains(&number);
                prop_assert_eq!(take(&mut seen, number), wanted);
                if wanted {
                    come.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }
}
