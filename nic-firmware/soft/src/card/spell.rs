//! How often the helper looks in while other threads run the card.

use std::time::Duration;

use netvm_abi::Nanos;

use super::nanos;

/// How often the helper looks in while others run the card, at first.
pub(super) const TICK: Duration = Duration::from_micros(200);
/// And at least.
const LONG_TICK: Duration = Duration::from_millis(1);

/// A time in which other threads than the helper run the card.
///
/// Each look of the helper takes their processor from them for some microseconds. The longer they have run the card, the seldomer it
/// looks in: what comes in when they have just stopped waits for the next look, and so for no more than a part of the time that
/// they ran it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spell {
    /// [`SoftCard::runs`](super::SoftCard), as it was seen last.
    runs: u32,
    begun: Nanos,
    /// When a run was seen last; 0: none was.
    seen: Nanos,
}

impl Spell {
    pub(super) const fn new(runs: u32) -> Self {
        Self {
            runs,
            begun: Nanos(0),
            seen: Nanos(0),
        }
    }

    /// Looks whether the card was run. Says in which time the helper looks again; nothing once the others have stopped.
    pub(super) fn look(&mut self, runs: u32, now: Nanos) -> Option<Duration> {
        if runs != self.runs {
            if self
                .tick()
                .is_none_or(|tick| self.seen.after(Nanos(2 * nanos(tick))) < now)
            {
                self.begun = now;
            }
            (self.runs, self.seen) = (runs, now);
        }
        self.tick()
            .filter(|tick| now < self.seen.after(Nanos(nanos(*tick))))
    }

    fn tick(&self) -> Option<Duration> {
        let ran = Duration::from_nanos(self.seen.0.saturating_sub(self.begun.0));
        (self.seen.0 != 0).then(|| (ran / 4).clamp(TICK, LONG_TICK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The helper looks in more and more seldom while others run the card, and no longer than a tick after they have stopped.
    #[test]
    fn the_longer_others_run_the_card_the_seldomer_the_helper_looks() {
        let at = |micros| Nanos::from_micros(micros);
        let mut spell = Spell::new(7);
        assert_eq!(spell.look(7, at(50)), None);
        let (mut now, mut runs, mut looks) = (100, 7, 0);
        while now < 100_000 {
            runs += 1;
            let tick = spell.look(runs, at(now)).unwrap();
            assert!(tick >= TICK && tick <= LONG_TICK.min(TICK.max(Duration::from_micros(now) / 4)));
            now += tick.as_micros() as u64;
            looks += 1;
        }
        assert!((100..120).contains(&looks), "{looks}");
        // They stop.
        assert_eq!(spell.look(runs, at(now)), None);
        // Another spell begins with short ticks.
        assert_eq!(spell.look(runs + 1, at(now + 50_000)), Some(TICK));
    }
}
