//! When to look whether the other side still is there, and which failures concern it.

use crate::error::Failure;
use crate::import::RemoteSegment;
use netvm_abi::Nanos;

/// How long nothing happens before the first look.
const FIRST: Nanos = Nanos::from_millis(5);
/// Looks are at most this far apart.
const LONGEST: Nanos = Nanos::from_millis(500);

/// When to look next: from the first fruitless wait on, less and less often.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When, and how long after the look before.
    next: Option<(Nanos, Nanos)>,
}

impl Patience {
    /// Something came.
    pub(super) const fn renew(&mut self) {
        self.next = None;
    }

    /// When the next look is due.
    pub(super) fn due(&mut self, now: Nanos) -> Nanos {
        self.next.get_or_insert_with(|| (now.after(FIRST), FIRST)).0
    }

    /// Whether it is time to look; then the next look is due later.
    pub(super) fn is_over(&mut self, now: Nanos) -> bool {
        match self.next {
            Some((due, span)) if now >= due => {
                let span = Nanos(span.0 * 2).min(LONGEST);
                self.next = Some((now.after(span), span));
                true
            }
            _ => false,
        }
    }
}

/// Whether this failure is one of an operation on that memory.
pub(super) fn concerns(remote: &RemoteSegment, failure: &Failure) -> bool {
    let offset = failure.address.0.wrapping_sub(remote.address().0);
    (failure.node, failure.port) == (remote.node(), remote.port()) && offset < remote.len()
}
