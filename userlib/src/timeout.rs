//! How long a call may wait.

use crate::backend::PortBackend;
use netvm_abi::Nanos;
use std::time::Duration;

/// Looks of a waiter between two at the clock. Reading it takes as long as a look does, and while it is read what comes is not found. A
/// look takes less than a microsecond at first, and never more than a [relaxing](PortBackend::relax) may: a waiter gives up less than a
/// millisecond late.
const LOOKS: u32 = 8;

/// Whether the time has come at which a waiter that has looked so often gives up.
#[inline]
pub(crate) fn is_over(deadline: Nanos, looks: u32, backend: &dyn PortBackend) -> bool {
    // The count stands still at its end.
    let is_time = looks.is_multiple_of(LOOKS) || looks == u32::MAX;
    is_time && deadline != Nanos::MAX && backend.now() >= deadline
}

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
