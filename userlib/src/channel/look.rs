//! Questions to the other side, for whose answer no call waits.
//!
//! A receiver binds to the export of its sender, and both ends look now and then whether the other still is there. It
//! may take a second until a node that does not answer counts as gone, which is longer than a caller may want to wait.
//! So a question is put, and the calls that follow see what came of it.

use super::layout::Owner;
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

/// A look whether memory of the other side is still there: a read of which only the end counts.
pub(super) struct Look {
    port: Arc<PortInner>,
    posted: Posted,
    since: Nanos,
    ended: bool,
}

impl Look {
    /// Reads from `offset` on into own memory that nothing else uses.
    pub(super) fn begin(
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
    pub(super) fn due(&self, now: Nanos) -> Nanos {
        soon(self.since, now)
    }

    /// What came of it, once: nothing while it is under way.
    pub(super) fn seen(&mut self) -> Option<Result<()>> {
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

/// Binds to the export of a channel's sender, beside the program.
pub(super) struct Meeting {
    port: Arc<PortInner>,
    since: Nanos,
    bound: Mutex<Option<Result<RemoteSegment>>>,
}

impl Meeting {
    /// # Errors
    /// [`Error::Refused`] when the thread cannot be made.
    pub(super) fn begin(port: &Arc<PortInner>, owner: Owner) -> Result<Arc<Self>> {
        let meeting = Arc::new(Self {
            port: Arc::clone(port),
            since: port.backend.now(),
            bound: Mutex::new(None),
        });
        let shared = Arc::clone(&meeting);
        let bind = move || {
            let name = owner.export_name();
            let port = &shared.port;
            let bound = import(port, owner.node, owner.port, &name, Modes::all(), Timeout::Now);
            *shared.bound.lock() = Some(bound);
            port.backend.wake();
        };
        match port.backend.spawn("netvm-channel", Box::new(bind)) {
            Ok(()) => Ok(meeting),
            Err(reason) => Err(Error::Refused {
                what: "start the thread in which a channel's ends meet",
                reason,
            }),
        }
    }

    /// When to [see](Self::seen) next.
    pub(super) fn due(&self, now: Nanos) -> Nanos {
        soon(self.since, now)
    }

    /// What came of it, once: nothing while it is under way.
    pub(super) fn seen(&self) -> Option<Result<RemoteSegment>> {
        self.bound.lock().take()
    }

    /// Waits for what comes of it: a second at most.
    pub(super) fn wait(&self) -> Result<RemoteSegment> {
        loop {
            let token = self.port.backend.wait_token();
            if let Some(bound) = self.seen() {
                return bound;
            }
            self.port.alive()?;
            self.port.backend.block(token, Nanos::MAX);
        }
    }
}
