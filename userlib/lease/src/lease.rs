//! A lease in the hands of a client.

use crate::config::nanos;
use crate::error::Result;
use netvm::{Leased, Nanos, Port, TimeLeft};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A part that is lent to this client: used as a [`netvm::RemoteSegment`], extended by the client itself.
///
/// Dropped, it keeps its part from others until it is over: [`relinquish`](crate::Client::relinquish) gives that back at once.
#[must_use = "a lease that is not relinquished keeps its part until it is over"]
pub struct Lease {
    leased: Leased,
    key: u64,
    port: Arc<Port>,
    /// It is not over before, by the port's clock.
    until: AtomicU64,
}

impl Deref for Lease {
    type Target = Leased;

    fn deref(&self) -> &Leased {
        &self.leased
    }
}

impl Lease {
    /// A lease that was asked for at this time.
    pub(crate) fn new(leased: Leased, key: u64, port: Arc<Port>, asked: Nanos) -> Self {
        let until = asked.after(nanos(leased.token().duration())).0.into();
        Self {
            leased,
            key,
            port,
            until,
        }
    }

    /// The key of its part: others may acquire the part by it, also if it was allocated.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Makes it last so long from now on, unless it lasts longer anyway, and not past the manager's longest life. One round trip to the
    /// manager's card; the manager has nothing to do for it.
    ///
    /// # Errors
    /// [`Library`](crate::Error::Library): as [`Leased::extend`].
    pub fn extend(&self, by: Duration) -> Result<TimeLeft> {
        let asked = self.port.now();
        let left = self.leased.extend(by)?;
        self.until
            .fetch_max(asked.after(nanos(left.left)).0, Ordering::Relaxed);
        Ok(left)
    }

    /// How much is left at least, as far as the client knows without asking. It is over earlier if the manager revokes it.
    #[must_use]
    pub fn surely_left(&self) -> Duration {
        let until = self.until.load(Ordering::Relaxed);
        Duration::from_nanos(until.saturating_sub(self.port.now().0))
    }

    /// Sees to it that so much is left: extends the lease to twice that if it is not sure. Mostly it costs a look at the clock.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn ensure(&self, least: Duration) -> Result<()> {
        if self.surely_left() < least {
            let _ = self.extend(least.saturating_mul(2))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("token", self.leased.token())
            .finish_non_exhaustive()
    }
}
