//! How long a round trip of a link takes, and how long to wait for one: RFC 6298, from stamps that come back.

use crate::config::Timers;
use netvm_abi::Stamp;

/// The wait for an acknowledgement before any round trip has been measured, in ticks of a stamp: 3 ms.
pub(super) const FIRST_WAIT: u32 = (3_000_000 / Stamp::TICK) as u32;
/// The reordering window is never shorter, in ticks of a stamp: 1 us.
pub(super) const LEAST_REORDERING: u32 = 16;

/// Round trips of a link, and waits for them, in ticks of a stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTripTime {
    pub(super) smoothed: u32,
    variation: u32,
    /// The shortest one, or the most that there can be before one is measured, until the way is found to have become longer ([`super::congestion`]).
    pub(super) least: u32,
    /// How long an acknowledgement may take that is delayed.
    pub(super) wait: u32,
    /// The same of one that is not.
    pub(super) at_once: u32,
    /// When what has left is first looked at.
    pub(super) first: u32,
}

impl RoundTripTime {
    pub(super) const UNKNOWN: Self = Self {
        smoothed: 0,
        variation: 0,
        least: u32::MAX,
        wait: FIRST_WAIT,
        at_once: FIRST_WAIT,
        first: FIRST_WAIT,
    };

    /// Whether one has been measured.
    pub(super) const fn is_known(&self) -> bool {
        self.least != u32::MAX
    }

    /// A round trip has taken this long (RFC 6298).
    pub(super) fn add(&mut self, took: u32, timers: &Timers) {
        let first = !self.is_known();
        self.least = took.min(self.least);
        if !first {
            let off = self.smoothed.abs_diff(took);
            self.variation = self.variation - self.variation / 4 + off / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + took / 8;
        } else {
            (self.smoothed, self.variation) = (took, took / 2);
        }
        let spread = self.variation.saturating_mul(4).max(LEAST_REORDERING);
        self.at_once = self.smoothed.saturating_add(spread);
        let delay = u32::try_from(timers.ack_delay.0.div_ceil(Stamp::TICK)).unwrap_or(u32::MAX);
        self.wait = self.at_once.saturating_add(delay);
        self.first = if self.asks_early(timers) {
            self.at_once
        } else {
            self.wait
        };
    }

    /// Whether to wait for the delay of an acknowledgement takes longer than to ask for one.
    pub(super) fn asks_early(&self, timers: &Timers) -> bool {
        self.is_known() && u64::from(self.smoothed) * Stamp::TICK < timers.ack_delay.0
    }
}
