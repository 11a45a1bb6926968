//! How a measured time spreads.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Times of single operations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) most: f64,
}

impl Spread {
    /// Of these times; zeros if there are none.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let index = (times.len().saturating_sub(1) as f64 * share).round() as usize;
            times
                .get(index)
                .map_or(0.0, |time| (time.as_nanos() as f64 / 10.0).round() / 100.0)
        };
        Self {
            least: at(0.0),
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            most: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_hundred_times() {
        let spread = Spread::of((1..=101).rev().map(Duration::from_micros).collect());
        assert_eq!(
            (spread.least, spread.median, spread.p90, spread.p99),
            (1.0, 51.0, 91.0, 100.0)
        );
        assert_eq!((spread.p999, spread.most), (101.0, 101.0));
        assert_eq!(Spread::of(Vec::new()).most, 0.0);
    }
}
