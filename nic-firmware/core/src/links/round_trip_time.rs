//! How long a round trip of a link takes, and how long to wait for one: RFC 6298, from stamps that come back.

use crate::config::Timers;
use netvm_abi::Stamp;

/// The wait for an acknowledgement before any round trip has been measured, in nanoseconds.
pub(super) const FIRST_WAIT: u64 = 3_000_000;
/// The reordering window is never shorter, in ticks of a stamp: 1 us.
pub(super) const LEAST_REORDERING: u32 = 16;

/// Round trips of a link, in ticks of a stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTripTime {
    pub(super) smoothed: u32,
    variation: u32,
    pub(super) least: u32,
    pub(super) measured: bool,
    /// How long an acknowledgement may take that is delayed, in nanoseconds.
    pub(super) wait: u64,
    /// The same of one that is not.
    pub(super) at_once: u64,
    /// When what has left is first looked at.
    pub(super) first: u64,
}

impl RoundTripTime {
    pub(super) const UNKNOWN: Self = Self {
        smoothed: 0,
        variation: 0,
        least: u32::MAX,
        measured: false,
        wait: FIRST_WAIT,
        at_once: FIRST_WAIT,
        first: FIRST_WAIT,
    };

    /// A round trip has taken this long (RFC 6298).
    pub(super) fn add(&mut self, took: u32, timers: &Timers) {
        // The shortest one is forgotten little by little: the path may have changed.
        self.least = took.min(self.least.saturating_add(self.least / 4096));
        if self.measured {
            let off = self.smoothed.abs_diff(took);
            self.variation = self.variation - self.variation / 4 + off / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + took / 8;
        } else {
            (self.smoothed, self.variation, self.measured) = (took, took / 2, true);
        }
        let spread = (4 * u64::from(self.variation)).max(u64::from(LEAST_REORDERING));
        self.at_once = (u64::from(self.smoothed) + spread) * Stamp::TICK;
        self.wait = self.at_once + timers.ack_delay.0;
        self.first = if self.asks_early(timers) {
            self.at_once
        } else {
            self.wait
        };
    }

    /// Whether to wait for the delay of an acknowledgement takes longer than to ask for one.
    pub(super) fn asks_early(&self, timers: &Timers) -> bool {
        self.measured && u64::from(self.smoothed) * Stamp::TICK < timers.ack_delay.0
    }
}
