//! What a call lacked that would not wait, and a future that ends when it is there.

use crate::error::Result;
use crate::fence::{Count, Mark};
use crate::notify::{Want, Watch};
use crate::port::PortInner;
use crate::poster::Poster;
use crate::staging::State;
use netvm_abi::descriptor::QUEUE_ENTRIES;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What a port had too little of for a call that does not wait: [`Port::room`](crate::Port::room) tells when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// So many places of the command queue.
    Commands(u32),
    /// So many places for answers.
    Answers(u32),
    /// Staging, until this write message is done.
    Staging(u64),
    /// Staging, which another call is about to give back.
    Soon,
}

impl Lack {
    /// So many places of the command queue.
    pub(crate) const fn commands(count: u32) -> Self {
        Self(Kind::Commands(count))
    }

    /// So many places for answers.
    pub(crate) const fn answers(count: u32) -> Self {
        Self(Kind::Answers(count))
    }

    /// Staging, which this is in the way of.
    pub(crate) const fn staging(behind: State) -> Self {
        match behind {
            State::Until(number) => Self(Kind::Staging(number)),
            State::Busy | State::Free => Self(Kind::Soon),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Commands(count) => write!(f, "{count} of {QUEUE_ENTRIES} places of the command queue"),
            Kind::Answers(count) => write!(f, "{count} places for answers"),
            Kind::Staging(_) | Kind::Soon => f.write_str("staging memory"),
        }
    }
}

impl Poster {
    /// Whether there is what was lacking; if not, the count to wait for.
    fn finds(&mut self, port: &PortInner, lack: Lack) -> std::result::Result<(), Mark> {
        let mark = |count, at| Err(Mark { count, at });
        match lack.0 {
            Kind::Commands(count) if !self.has_places(&port.area, count) => {
                // All that were posted are taken, but for so many that the rest of the queue has room.
                let may_stay = QUEUE_ENTRIES.saturating_sub(count);
                mark(Count::Taken, self.queue.posted().wrapping_sub(may_stay))
            }
            Kind::Answers(count) if self.replies.places() < count => {
                let missing = count - self.replies.places();
                mark(Count::Reads, self.replies.fence_for(missing))
            }
            Kind::Staging(number) if self.writes_done(&port.area) < number => {
                mark(Count::Writes, number as u32)
            }
            _ => Ok(()),
        }
    }
}

impl PortInner {
    /// Whether there is what was lacking; if not, the count to wait for.
    pub(crate) fn finds(&self, lack: Lack) -> std::result::Result<(), Mark> {
        let mut dropped = Vec::new();
        let mut poster = self.poster();
        if matches!(lack.0, Kind::Answers(_)) {
            poster.harvest(self, &mut dropped);
        }
        let found = poster.finds(self, lack);
        drop(poster);
        // Regions may park when they are dropped: after the lock.
        drop(dropped);
        found
    }
}

/// Ends when there is room for a call that found none. Another thread may take it first: then the call is made again, and
/// waits again. From [`Port::room`](crate::Port::room).
#[must_use = "futures do nothing unless they are polled"]
pub struct Room {
    port: Arc<PortInner>,
    lack: Lack,
    /// It has let others run once.
    yielded: bool,
    watch: Watch,
}

impl Room {
    pub(crate) fn new(port: &Arc<PortInner>, lack: Lack) -> Self {
        Self {
            port: Arc::clone(port),
            lack,
            yielded: false,
            watch: Watch::default(),
        }
    }
}

impl Future for Room {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            port,
            lack,
            yielded,
            watch,
        } = &mut *self;
        if lack.0 == Kind::Soon && !std::mem::replace(yielded, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        watch.poll(port, context, || port.finds(*lack).map_err(Want::Mark))
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room(port {}, for {})", self.port.port(), self.lack)
    }
}
