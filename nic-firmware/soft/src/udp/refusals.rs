//! When it is told how many datagrams were forged or came again: at most once a second, however many come.

use netvm_abi::Nanos;

use super::UdpStats;

/// From one time to the next.
const PACE: Nanos = Nanos::from_millis(1_000);

/// What has been told.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    forged: u64,
    replayed: u64,
    next: Nanos,
}

impl Refusals {
    /// How many were forged and how many came again since this was told last, if it is to be told now.
    pub(crate) fn news(&mut self, now: Nanos, stats: &UdpStats) -> Option<(u64, u64)> {
        let forged = stats.forged.saturating_sub(self.forged);
        let replayed = stats.replayed.saturating_sub(self.replayed);
        if forged + replayed == 0 || now < self.next {
            return None;
        }
        *self = Self {
            forged: stats.forged,
            replayed: stats.replayed,
            next: Nanos(now.0.saturating_add(PACE.0)),
        };
        Some((forged, replayed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_told_once_a_second_and_none_is_left_out() {
        let mut refusals = Refusals::default();
        let mut stats = UdpStats::default();
        assert_eq!(refusals.news(Nanos(0), &stats), None, "there are none");
        let (mut told, mut times) = ((0, 0), 0);
        for millis in 0..3_500 {
            stats.forged += 2;
            stats.replayed += 1;
            if let Some((forged, replayed)) = refusals.news(Nanos::from_millis(millis), &stats) {
                told = (told.0 + forged, told.1 + replayed);
                times += 1;
            }
        }
        assert_eq!(times, 4, "at 0, 1, 2 and 3 s");
        assert_eq!(told, (2 * 3_001, 3_001));
        assert_eq!(refusals.news(Nanos::from_millis(9_000), &stats), Some((998, 499)));
        assert_eq!(
            refusals.news(Nanos::from_millis(19_000), &stats),
            None,
            "no more have come"
        );
    }
}
