//! Questions to the other side, for whose answer no call waits.
//!
//! A receiver binds to the export of its sender, and both ends look now and then whether the other still is there. It
//! may take a second until a node that does not answer counts as gone, which is longer than a caller may want to wait.
//! So a question is put, and the calls that follow see what came of it.

use super::layout::{Owner, credits};
use crate::error::{Error, Result};
use crate::import::{RemoteSegment, import};
use crate::port::PortInner;
use crate::posting::Posted;
use crate::region::RegionSlice;
use crate::timeout::Timeout;
use netvm_abi::Nanos;
use netvm_abi::control::Modes;
use parking_lot::Mutex;
use std::sync::Arc;

/// First pause before a caller that waits for something else looks for an answer, and the longest, in nanoseconds.
const FIRST: u64 = 50_000;
const LONGEST: u64 = 20_000_000;

/// When to see next whether a question put at `since` is answered: soon at first, then ever more seldom.
fn soon(since: Nanos, now: Nanos) -> Nanos {
    let waited = now.0.saturating_sub(since.0);
    now.after(Nanos((waited / 2).clamp(FIRST, LONGEST)))
}

/// Looks in vain before a caller lets go of the processor.
const SPINS: u32 = 16;

impl PortInner {
    /// Looks for something that a card will bring, ever more seldom, until a deadline. Nothing: it has not come by then.
    pub(crate) fn look_until<T>(
        &self,
        deadline: Nanos,
        mut seen: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let since = self.backend.now();
        let mut spins = 0;
        loop {
            if let Some(seen) = seen() {
                return Ok(Some(seen));
            }
            self.alive()?;
            let now = self.backend.now();
            if now >= deadline {
                return Ok(None);
            }
            if spins < SPINS {
                self.backend.relax(spins);
                spins += 1;
            } else {
                self.pause(deadline.min(soon(since, now)))?;
            }
        }
    }
}

/// A look whether memory of the other side is still there: a read of which only the end counts.
pub(crate) struct Look {
    port: Arc<PortInner>,
    posted: Posted,
    since: Nanos,
    ended: bool,
}

impl Look {
    /// Reads from `offset` on into own memory that nothing else uses.
    pub(crate) fn begin(
        port: &Arc<PortInner>,
        remote: &RemoteSegment,
        offset: u64,
        into: &RegionSlice,
    ) -> Result<Self> {
        Ok(Self {
            port: Arc::clone(port),
            posted: remote.read_watched(offset, into)?,
            since: port.backend.now(),
            ended: false,
        })
    }

    /// When to [see](Self::seen) next.
    pub(crate) fn due(&self, now: Nanos) -> Nanos {
        soon(self.since, now)
    }

    /// What came of it, once: nothing while it is under way.
    pub(crate) fn seen(&mut self) -> Option<Result<()>> {
        if !self.port.has_ended(self.posted.op, self.posted.number) {
            return self.port.alive().err().map(Err);
        }
        self.ended = true;
        Some(self.port.finish(self.posted.op, None))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if !self.ended {
            self.port.poster().failures.disregard(self.posted.op);
        }
    }
}

/// Binds to the export of a channel's sender, beside the program, and tells the sender of the entries that are its again:
/// the program may make no other call before that brings the next message.
pub(super) struct Meeting {
    port: Arc<PortInner>,
    owner: Owner,
    since: Nanos,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Entries that are the sender's again, and of how many it was told.
    freed: u64,
    told: u64,
    bound: Option<Result<RemoteSegment>>,
}

impl Meeting {
    /// # Errors
    /// [`Error::Refused`] when the thread cannot be made.
    pub(super) fn begin(port: &Arc<PortInner>, owner: Owner, freed: u64) -> Result<Arc<Self>> {
        let meeting = Arc::new(Self {
            port: Arc::clone(port),
            owner,
            since: port.backend.now(),
            state: Mutex::new(State {
                freed,
                ..State::default()
            }),
        });
        let shared = Arc::clone(&meeting);
        match port
            .backend
            .spawn("netvm-channel", Box::new(move || shared.meet()))
        {
            Ok(()) => Ok(meeting),
            Err(reason) => Err(Error::Refused {
                what: "start the thread in which a channel's ends meet",
                reason,
            }),
        }
    }

    fn meet(&self) {
        let (port, owner) = (&self.port, self.owner);
        let name = owner.export_name();
        let bound = import(port, owner.node, owner.port, &name, Modes::all(), Timeout::Now);
        loop {
            let freed = self.state.lock().freed;
            // Not under the lock: it may wait for room in the command queue.
            let told = match &bound {
                Ok(_) if freed == 0 => true,
                Ok(sender) => tell_freed(sender, owner, freed).is_ok(),
                Err(_) => false,
            };
            let mut state = self.state.lock();
            // More may have come meanwhile, for which the receiver counts on this.
            if !told || state.freed == freed {
                state.told = if told { freed } else { 0 };
                state.bound = Some(bound);
                break;
            }
        }
        port.backend.wake();
    }

    /// So many entries are the sender's again, in all. Unless the meeting is over, the sender is told of them.
    pub(super) fn free(&self, freed: u64) {
        self.state.lock().freed = freed;
    }

    /// When to [see](Self::seen) next.
    pub(super) fn due(&self, now: Nanos) -> Nanos {
        soon(self.since, now)
    }

    /// What came of it, once, and of how many entries the sender was told: nothing while it is under way.
    pub(super) fn seen(&self) -> Option<(Result<RemoteSegment>, u64)> {
        let mut state = self.state.lock();
        let bound = state.bound.take()?;
        Some((bound, state.told))
    }

    /// Waits for what comes of it: a second at most.
    pub(super) fn wait(&self) -> (Result<RemoteSegment>, u64) {
        loop {
            let token = self.port.backend.wait_token();
            if let Some(seen) = self.seen() {
                return seen;
            }
            if let Err(error) = self.port.alive() {
                return (Err(error), 0);
            }
            self.port.backend.block(token, Nanos::MAX);
        }
    }
}

/// Tells a sender how many entries are its again, in all. Waits for room in the command queue, and for no answer.
pub(super) fn tell_freed(sender: &RemoteSegment, owner: Owner, freed: u64) -> Result<()> {
    loop {
        // Ordered: an earlier count never lands on a later one.
        let posted = sender
            .write(credits::FREED, &freed.to_le_bytes())
            .ordered()
            .notify(owner.notification)
            .regardless()
            .aside()
            .post();
        match posted {
            // Another thread was told of a failure just now, and nothing was posted.
            Err(Error::StreamFailed { .. }) => {}
            posted => return posted.map(drop),
        }
    }
}
