//! P7: no step of a core takes more than a bound, however much memory, how many nodes and how many ports there are.
//!
//! The unit is an access: of a word, of a table, of the platform. What a step may take is fixed by the ABI and by the
//! loops' budgets: 16 events, slices of work, a window. Each bound is a few times what worlds of four nodes reach.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::effort::CoreStep;
use crate::seen::Seen;
use netvm_abi::Nanos;

/// What a page takes that a fork protects from writes: its entry is retracted, looked at and filled again.
const PROTECTED_PAGE: u32 = 48;

/// What a step may take in worlds with windows of this size, and with tables for so many pages.
fn bound(step: CoreStep, window: u32, pages: u32) -> u32 {
    match step {
        // A link that fails ends a window of messages, and the LSN may move on by one.
        CoreStep::Frame | CoreStep::DmaEnd => 3_000.max(3_000 / 64 * window),
        // Sixteen events may open as many ports, each with some 170 accesses.
        CoreStep::Sent | CoreStep::Rest => 6_000,
        // Sixteen ports, three words each.
        CoreStep::SecondLook => 64,
        // Up to fifteen events, with at most some 170 accesses each, and behind them a slice of 128 withdrawn grants, whose holders are
        // told, with 36 each.
        CoreStep::Poll => 7_500,
        CoreStep::Deadline => 8,
        // A port's memory is cleared. Or a process forks: the kernel's invalidation cannot be cut up, and is about as many pages as
        // the table holds of it.
        CoreStep::Call => 3_000.max(PROTECTED_PAGE * pages),
    }
}

/// Holds the longest steps against their bounds.
pub(super) struct BoundedWork {
    window: u32,
    pages: u32,
}

impl BoundedWork {
    /// A checker for worlds whose widest window has so many messages, and whose largest table so many pages.
    pub(super) const fn new(window: u32, pages: u32) -> Self {
        Self { window, pages }
    }
}

impl Checker for BoundedWork {
    fn promise(&self) -> Promise {
        Promise::P7
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match fact {
            Seen::LongestStep { node, step, work } if *work > bound(*step, self.window, self.pages) => {
                Err(format!(
                    "node {node}: a step ({step:?}) took {work} accesses, and may take {}",
                    bound(*step, self.window, self.pages)
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, caught, feed};
    use super::*;

    #[test]
    fn a_step_past_its_bound_is_caught() {
        let took = |work| Seen::LongestStep {
            node: NODE,
            step: CoreStep::Deadline,
            work,
        };
        let most = bound(CoreStep::Deadline, 64, 64);
        assert_eq!(feed(&mut BoundedWork::new(64, 64), &[took(most)]), Ok(()));
        caught(feed(&mut BoundedWork::new(64, 64), &[took(most + 1)]), "may take");
    }
}
