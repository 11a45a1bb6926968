//! How a manager lends, and how a client asks.

use netvm::{Nanos, NotificationId};
use std::time::Duration;

/// How a manager lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ManagerConfig {
    pub(crate) longest: Duration,
    pub(crate) requests: u32,
    pub(crate) clears: bool,
}

impl Default for ManagerConfig {
    /// A longest life of a minute, room for 256 requests, and allocations that hold zeros.
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(60),
            requests: 256,
            clears: true,
        }
    }
}

impl ManagerConfig {
    /// The longest life of a lease, however often it is extended: more than none, and no more than a year.
    pub const fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Requests that have room while the manager does something else: 1 to 1,024. What finds none is sent again by its client.
    pub const fn requests(mut self, requests: u32) -> Self {
        self.requests = requests;
        self
    }

    /// Whether a part that is allocated holds zeros, or what the client before has left there. It costs the manager a write
    /// of the part where that was in use before. Parts with keys always keep what they hold.
    pub const fn clears(mut self, clears: bool) -> Self {
        self.clears = clears;
        self
    }
}

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ClientConfig {
    pub(crate) patience: Duration,
    pub(crate) notification: NotificationId,
}

impl Default for ClientConfig {
    /// Answers within five seconds; the notification 880.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(5),
            notification: NotificationId(880),
        }
    }
}

impl ClientConfig {
    /// How long the manager may take for an answer, beside what a wish waits.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The event-count number of the client's port that answers raise: one that the program does not use otherwise, 1 to 895.
    pub fn notification(mut self, id: impl Into<NotificationId>) -> Self {
        self.notification = id.into();
        self
    }
}

/// How a client wants a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Wish {
    pub(crate) write: bool,
    pub(crate) exclusive: bool,
    pub(crate) duration: Duration,
    pub(crate) waits: Duration,
}

impl Wish {
    /// To read it for so long, beside others.
    pub const fn read(duration: Duration) -> Self {
        Self {
            write: false,
            exclusive: false,
            duration,
            waits: Duration::ZERO,
        }
    }

    /// To read, write and do atomics for so long, beside others.
    pub const fn read_write(duration: Duration) -> Self {
        Self {
            write: true,
            ..Self::read(duration)
        }
    }

    /// Beside no other lease of the part.
    pub const fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// It waits so long for what conflicts to end, or for room, instead of being refused.
    pub const fn waiting(mut self, span: Duration) -> Self {
        self.waits = span;
        self
    }
}

/// As the library counts time; what is too long is for ever.
pub(crate) fn nanos(span: Duration) -> Nanos {
    Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}
