//! Operations under way as values: looked at, waited for until a deadline, or awaited.
//!
//! A value is known to the port's failures as *watched*: what fails of its operation is its own to tell. Dropped before that,
//! it leaves the failure to the next call to the same node, as a write that was posted does.

use crate::error::{Error, Result};
use crate::fence::{Count, Mark, Until};
use crate::notify::{Want, Watch};
use crate::port::PortInner;
use crate::posting::Posted;
use crate::timeout::{Timeout, is_over};
use netvm_abi::{Nanos, NodeId, OpId};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What an operation under way is.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A write, done when its source memory may be used again.
    Write,
    /// A read, done when its bytes are there.
    Read,
    /// A flush. The port had posted so many commands before it.
    Flush(Until, u64),
    /// There was nothing to do.
    Nothing,
}

/// A write, a read or a flush under way, from [`Write::begin`](crate::Write::begin), [`Read::begin`](crate::Read::begin) or
/// [`Port::begin_flush_remote`](crate::Port::begin_flush_remote).
///
/// It can be looked at ([`is_done`](Self::is_done)), waited for ([`wait_for`](Self::wait_for)) and awaited: it is a future that
/// runs under any executor. It keeps the memory that its operation uses. Dropping it takes nothing back: the operation goes on,
/// and if it fails, the next call to the same node says so.
///
/// ```no_run
/// use netvm::{Error, OpId, Port, RegionSlice, RemoteSegment};
///
/// /// Copies a page from one place to another, and waits nowhere inside of a call.
/// async fn copy(port: &Port, from: &RemoteSegment, to: &RemoteSegment, page: RegionSlice) -> netvm::Result<()> {
///     from.read(0, &page).begin()?.await?;
///     while let Err(Error::NoRoom { lacks }) = to.write(0, &page).notify(7).try_post() {
///         port.room(lacks).await?;
///     }
///     port.begin_flush_remote(to.node())?.await
/// }
/// ```
#[must_use = "an operation's end is told to what holds this"]
pub struct Pending {
    port: Arc<PortInner>,
    node: NodeId,
    posted: Posted,
    what: What,
    /// How it has ended.
    end: Option<Result<()>>,
    watch: Watch,
}

impl Pending {
    const fn of(port: Arc<PortInner>, node: NodeId, posted: Posted, what: What) -> Self {
        Self {
            port,
            node,
            posted,
            what,
            end: None,
            watch: Watch::new(),
        }
    }

    /// A watched write.
    pub(crate) fn write(port: &Arc<PortInner>, node: NodeId, posted: Posted) -> Self {
        Self::of(Arc::clone(port), node, posted, What::Write)
    }

    /// A watched read.
    pub(crate) fn read(port: &Arc<PortInner>, node: NodeId, posted: Posted) -> Self {
        Self::of(Arc::clone(port), node, posted, What::Read)
    }

    /// A flush of what was posted to a node before.
    pub(crate) fn flush(port: &Arc<PortInner>, node: NodeId, until: Until) -> Result<Self> {
        port.check_node(node)?;
        let before = port.poster().queue.commands();
        let posted = port.post_flush(node, until, true)?;
        Ok(Self::of(
            Arc::clone(port),
            node,
            posted,
            What::Flush(until, before),
        ))
    }

    /// There was nothing to do.
    pub(crate) fn nothing(port: &Arc<PortInner>, node: NodeId) -> Self {
        let mut pending = Self::of(Arc::clone(port), node, Posted::NOTHING, What::Nothing);
        pending.end = Some(Ok(()));
        pending
    }

    /// Its number, as [`Error::Failed`] names it.
    #[must_use]
    pub const fn op(&self) -> OpId {
        self.posted.op
    }

    /// Whether it has ended, well or not. Never waits.
    #[must_use]
    pub fn is_done(&mut self) -> bool {
        self.look().is_some()
    }

    /// How it has ended, if it has. Never waits.
    pub fn end(&mut self) -> Option<Result<()>> {
        self.look()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Failed`] if it has failed; of a flush, if something failed that it was for. [`Error::PortClosed`],
    /// [`Error::PortEnded`].
    pub fn wait(mut self) -> Result<()> {
        self.wait_for(Timeout::Never)
    }

    /// Waits for its end, so long. After [`Error::TimedOut`] it is still under way, and may be waited for again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::TimedOut`].
    pub fn wait_for(&mut self, timeout: impl Into<Timeout>) -> Result<()> {
        let deadline = timeout.into().deadline(self.port.backend.now());
        self.wait_until(deadline)
    }

    fn wait_until(&mut self, deadline: Nanos) -> Result<()> {
        let port = Arc::clone(&self.port);
        let ended = port.wait_by(deadline, || match self.look() {
            Some(end) => Ok(end),
            None => Err(self.mark()),
        })?;
        ended.unwrap_or(Err(Error::TimedOut))
    }

    pub(crate) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    /// How it has ended, if it has.
    fn look(&mut self) -> Option<Result<()>> {
        if self.end.is_none() {
            self.end = match self.what {
                What::Write => self.port.write_end(&self.posted),
                What::Read => self.port.read_end(&self.posted),
                What::Flush(until, before) => self.port.flush_end(self.node, &self.posted, until, before),
                What::Nothing => None,
            };
        }
        self.end
    }

    /// The count before which it has not ended.
    pub(crate) fn mark(&self) -> Mark {
        match self.what {
            What::Write | What::Nothing => Mark {
                count: Count::Writes,
                at: self.posted.number as u32,
            },
            What::Read => self.port.next_end(Some(&self.posted)),
            What::Flush(..) => self.port.next_end(None),
        }
    }
}

impl Future for Pending {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let port = Arc::clone(&self.port);
        let mut watch = std::mem::take(&mut self.watch);
        let polled = watch.poll(&port, context, || {
            self.look().ok_or_else(|| Want::Mark(self.mark()))
        });
        self.watch = watch;
        polled.map(|ended| ended.and_then(|end| end))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.end.is_some() {
            return;
        }
        let mut poster = self.port.poster();
        match self.what {
            What::Write | What::Read => poster.failures.leave_to_others(self.posted.op),
            What::Flush(until, before) => match poster.replies.take_result(self.posted.op) {
                None => poster.replies.abandon(self.posted.op),
                // What it says of others is not lost with it.
                Some(reply) if until == Until::Landed => {
                    let (node, flush) = (self.node, &self.posted);
                    self.port.flush_answered(&mut poster, node, flush, before, &reply);
                }
                Some(_) => {}
            },
            What::Nothing => {}
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("op", &self.posted.op)
            .field("node", &self.node)
            .field("what", &self.what)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl PortInner {
    /// How a watched write has ended, if it has: its source memory may be used again.
    fn write_end(&self, posted: &Posted) -> Option<Result<()>> {
        if self.poster().writes_done(&self.area) < posted.number {
            return self.alive().err().map(Err);
        }
        self.let_go(posted.number);
        Some(self.finish(posted.op, None))
    }

    /// How a watched read has ended, if it has.
    fn read_end(&self, posted: &Posted) -> Option<Result<()>> {
        if !self.has_ended(posted.op, posted.number) {
            return self.alive().err().map(Err);
        }
        Some(self.finish(posted.op, None))
    }

    /// The count at which it is worth looking again whether a read has ended, or else any round trip.
    pub(crate) fn next_end(&self, read: Option<&Posted>) -> Mark {
        let poster = self.poster();
        let outstanding = read.map_or(1, |read| poster.replies.outstanding_of(read.op, read.number));
        Mark {
            count: Count::Reads,
            at: poster.replies.fence_for(outstanding.max(1)),
        }
    }

    /// Flushes, and gives up after a while.
    pub(crate) fn flush_for(self: &Arc<Self>, node: NodeId, until: Until, timeout: Timeout) -> Result<()> {
        let deadline = timeout.deadline(self.backend.now());
        loop {
            match Pending::flush(self, node, until) {
                Ok(mut flush) => return flush.wait_until(deadline),
                Err(Error::NoRoom { lacks }) => {
                    self.wait_by(deadline, || self.finds(lacks))?
                        .ok_or(Error::TimedOut)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks until something has ended, or a deadline comes: then gives nothing. What has not ended says at which count it
    /// is worth looking again.
    fn wait_by<T>(
        &self,
        deadline: Nanos,
        mut look: impl FnMut() -> std::result::Result<T, Mark>,
    ) -> Result<Option<T>> {
        let mut spins = 0;
        loop {
            let mark = match look() {
                Ok(end) => return Ok(Some(end)),
                Err(mark) => mark,
            };
            self.alive()?;
            if is_over(deadline, spins, &*self.backend) {
                return Ok(None);
            }
            self.ask(mark);
            self.backend.relax(spins);
            spins = spins.saturating_add(1);
        }
    }
}
