//! How long a call may wait.

use netvm_abi::Nanos;
use std::time::Duration;

/// How long a call may wait for something to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Not at all: fail at once if it is not there.
    Now,
    /// So long.
    After(Duration),
    /// For ever.
    Never,
}

impl Timeout {
    /// The point in time at which to give up.
    pub(crate) fn deadline(self, now: Nanos) -> Nanos {
        match self {
            Self::Now => now,
            Self::After(span) => now.after(Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))),
            Self::Never => Nanos::MAX,
        }
    }

    /// The same for the round trips of a call that makes some in any case: [`Timeout::Now`] makes them, too, and bounds
    /// none.
    pub(crate) fn deadline_of_trips(self, now: Nanos) -> Nanos {
        match self {
            Self::Now => Nanos::MAX,
            other => other.deadline(now),
        }
    }
}

impl From<Duration> for Timeout {
    fn from(span: Duration) -> Self {
        Self::After(span)
    }
}
