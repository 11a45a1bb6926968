//! When a sender of a full queue tries again.
//!
//! The card refuses a message that it has no place for, and keeps no list of waiting senders. A sender that tries more
//! often gets more, so senders share a queue evenly if all try equally often. Pauses that double, and begin anew with
//! each message, do the opposite: a sender that has just got a place tries many times as often as one that has long
//! been refused, and keeps the queue.
//!
//! So a pause depends on *how many refusals a message takes*, which is the same for all senders of a queue: each
//! message moves it towards that many times [`STEP`]. What made two senders' pauses different is forgotten after a few
//! messages. With `n` senders, and a receiver that takes `s` for a message, it comes to some `sqrt(n * s / STEP)` refusals
//! a message, a load that leaves the card its time for what it has to do.
//!
//! A message that has waited long tends to come first: its pauses grow shorter once it is older than messages usually
//! are when they get their place.

use netvm_abi::Nanos;

/// The part of the pause that a refusal stands for; also the shortest pause.
const STEP: Nanos = Nanos::from_micros(20);
/// Longest pause.
const LONGEST: Nanos = Nanos::from_millis(5);
/// Older than this (some minutes, in nanoseconds) is all one; products stay below 2^64.
const OLDEST: u64 = 1 << 40;
/// Weight of history: a message counts for one part in this many, those before it for the rest.
const MEMORY: u64 = 4;

/// What a sender has learned of how full its queue is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Between two attempts.
    pause: u64,
    /// How long messages have waited for their place of late.
    waited: u64,
}

impl Pace {
    /// How long to pause, with a message of this age that has been refused this often.
    pub(super) fn pause(&self, age: Nanos, refusals: u32) -> Nanos {
        // For a queue that has only just become full.
        let at_first = STEP.0 * u64::from(refusals) / MEMORY;
        let pause = self.pause.max(at_first).min(LONGEST.0);
        let pause = match self.waited {
            0 => pause,
            // From twice as long for a new one; as long at the usual age.
            usual => pause * 2 * usual / usual.saturating_add(age.0),
        };
        Nanos(pause).clamp(STEP, LONGEST)
    }

    /// A message has its place, at this age and after this number of refusals.
    pub(super) fn placed(&mut self, age: Nanos, refusals: u32) {
        let towards = |old: u64, new: u64| (old * (MEMORY - 1) + new) / MEMORY;
        self.pause = towards(self.pause, STEP.0 * u64::from(refusals)).min(LONGEST.0);
        self.waited = towards(self.waited, age.0.min(OLDEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_of_one_queue_come_to_the_same_pause() {
        let mut hasty = Pace::default();
        let mut slow = Pace {
            pause: LONGEST.0,
            waited: 0,
        };
        for _ in 0..30 {
            hasty.placed(Nanos(0), 12);
            slow.placed(Nanos(0), 12);
        }
        let pauses = [hasty, slow].map(|pace| pace.pause(Nanos(0), 0).0);
        let expected = 12 * STEP.0;
        for pause in pauses {
            assert!(pause.abs_diff(expected) < expected / 50, "{pauses:?}");
        }
    }

    #[test]
    fn the_old_come_first() {
        let usual = Nanos::from_millis(2);
        let mut pace = Pace::default();
        for _ in 0..30 {
            pace.placed(usual, 20);
        }
        let [new, old, older] = [0, 1, 3].map(|times| pace.pause(Nanos(times * usual.0), 20).0);
        assert!(new.abs_diff(2 * old) < old / 10, "{new} {old}");
        assert!(old.abs_diff(2 * older) < old / 10, "{old} {older}");
    }

    #[test]
    fn pauses_have_bounds_and_pressure_is_forgotten() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(Nanos(0), 1), STEP);
        assert_eq!(pace.pause(Nanos(u64::MAX), u32::MAX), LONGEST);
        for _ in 0..30 {
            pace.placed(Nanos(u64::MAX), u32::MAX);
        }
        assert_eq!(pace.pause(Nanos(0), 0), LONGEST);
        assert_eq!(pace.pause(Nanos(u64::MAX), 0), STEP);
        for _ in 0..60 {
            pace.placed(Nanos(0), 0);
        }
        assert_eq!(pace.pause(Nanos(0), 1), STEP);
    }
}
