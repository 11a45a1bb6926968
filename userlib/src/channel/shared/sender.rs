//! A sending end of a shared queue.

use super::pace::Pace;
use crate::appends::Fate;
use crate::beside::PendingCall;
use crate::error::{Error, Failure, Result};
use crate::failure::{Known, after};
use crate::import::RemoteSegment;
use crate::port::Port;
use crate::posting::{Payload, Posted, WritePiece, WritePlan};
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::{Nanos, NodeId, NotificationId, OpId, PortId, Status, VirtAddr};
use parking_lot::Mutex;
use std::fmt;

/// A sending end of a shared queue: see the [module](crate::channel::shared)'s text.
pub struct SharedSender {
    queue: RemoteSegment,
    entry: u64,
    /// How long to pause while it is full.
    pace: Mutex<Pace>,
}

impl SharedSender {
    /// Joins the queue of this name at that port. [`Timeout::Now`] asks once; otherwise the call waits until the queue
    /// is there.
    ///
    /// # Errors
    /// As [`Port::import`]; [`Error::NotAChannel`] when something else has that name.
    pub fn join(
        port: &Port,
        node: NodeId,
        at: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        Self::of(port.import_with(node, at, name, Modes::all(), timeout)?)
    }

    /// Begins what [`join`](Self::join) does, and does not wait for it.
    ///
    /// # Errors
    /// As [`Port::begin_import`]; its end fails as [`join`](Self::join) does.
    pub fn begin_join(
        port: &Port,
        node: NodeId,
        at: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<PendingCall<Self>> {
        port.begin_import_as(node, at, name, Modes::all(), timeout, Self::of)
    }

    fn of(queue: RemoteSegment) -> Result<Self> {
        let shape = queue.inner().queue();
        if !shape.is_some() || !queue.modes().contains(Modes::APPEND) {
            return Err(Error::NotAChannel {
                why: "it is no shared queue, or gives this port no right to append",
            });
        }
        Ok(Self {
            entry: shape.entry_bytes().into(),
            queue,
            pace: Mutex::default(),
        })
    }

    /// Size of the largest message in bytes: what fits an entry, and on the path to it one message of the cards.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        let remote = self.queue.inner();
        self.entry.min(remote.port.path_payload(remote.node).into())
    }

    /// Sends a message and returns when it has its place: one round trip. While the queue is full it is sent again, after
    /// pauses of 20 us to 5 ms that go by how often messages of this sender are refused, and how old this one is.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send); [`Error::QueueFull`] when there was no room in time.
    pub fn send(&self, message: &[u8], timeout: impl Into<Timeout>) -> Result<()> {
        let port = &self.queue.inner().port;
        let deadline = timeout.into().deadline(port.backend.now());
        let asked = port.backend.now();
        let mut refusals = 0;
        loop {
            let sent = match self.append(message, true) {
                Ok(posted) => self.hear(posted),
                // Another thread was told of a failure before anything was posted.
                Err(Error::StreamFailed { .. }) => Err(Error::QueueFull),
                Err(error) => Err(error),
            };
            let now = port.backend.now();
            let age = Nanos(now.0.saturating_sub(asked.0));
            match sent {
                Err(Error::QueueFull) if now < deadline => {}
                Ok(()) => {
                    self.pace.lock().placed(age, refusals);
                    return Ok(());
                }
                error => return error,
            }
            refusals += 1;
            let pause = self.pace.lock().pause(age, refusals);
            port.pause(deadline.min(now.after(pause)))?;
        }
    }

    /// Sends a message, once, and returns when it has its place.
    ///
    /// # Errors
    /// [`Error::QueueFull`], also when a message of another thread was refused before this one, or an operation of
    /// another thread failed at this side: try again.
    /// [`Error::Empty`], [`Error::MessageTooLong`], [`Error::Released`], [`Error::PortClosed`], [`Error::PortEnded`].
    /// [`Error::Failed`] when it could not be put into its place, or for
    /// an earlier operation to the same node that failed and was not yet reported: the message has no place then.
    /// With [`Status::LinkLost`] the receiver may have got it, or not; the same with [`Error::StreamFailed`], of
    /// another thread's failure in between.
    pub fn try_send(&self, message: &[u8]) -> Result<()> {
        let posted = self.append(message, true)?;
        self.hear(posted)
    }

    /// Waits until an append that is watched has acted, and tells whether it has its place.
    fn hear(&self, posted: Posted) -> Result<()> {
        let remote = self.queue.inner();
        let flushed = remote.port.await_flush(remote.node);
        let mut poster = remote.port.poster();
        let failures = &mut poster.failures;
        failures.drain(&remote.port.area, &remote.port.block);
        let own = failures.unwatch(posted.op);
        let fate = failures.appends.fate(posted.op);
        let (flush, reply) = flushed?;
        own?;
        match fate {
            Fate::Placed => return Ok(()),
            Fate::NoPlace => {
                // Behind one that was posted blindly, its caller is to send that one first.
                failures.take(Some(remote.node))?;
                return Err(Error::QueueFull);
            }
            Fate::Unknown => {}
        }
        if flush.epoch != posted.epoch {
            return Err(Error::StreamFailed { node: remote.node });
        }
        if reply.status == Status::Ok {
            if failures.held_back(remote.node, posted.epoch, posted.op) {
                // It never left: a write before it failed at this side, of which the receiver knows nothing. That is
                // told first, or another thread has been told, and this message is to be sent again.
                failures.take(Some(remote.node))?;
                return Err(Error::QueueFull);
            }
            return Ok(());
        }
        // The first operation of the stream that failed, or the flush itself if it got no answer. What was posted
        // before that has its place.
        let op = match reply.value as u32 {
            0 => flush.op,
            op if after(OpId(op), posted.op) => return Ok(()),
            op => OpId(op),
        };
        let known = failures.known(op).unwrap_or(Known {
            failure: Failure {
                op,
                status: reply.status,
                node: remote.node,
                port: self.queue.port(),
                address: VirtAddr(0),
                others: 0,
            },
            epoch: flush.epoch,
            write: op != flush.op,
        });
        Err(failures.report_flush(known))
    }

    /// Sends a message and does not wait to hear whether it has a place. If it gets none, no message gets one that this
    /// port sends to a shared queue of the node after it, until that is reported: by a later call to the node or
    /// [`flush_remote`](Port::flush_remote), as [`Error::Failed`] with this message's number and
    /// [`Status::NoPlace`]. To repeat it and what followed it is the caller's. Other operations go on.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send), of earlier operations.
    pub fn post(&self, message: &[u8]) -> Result<OpId> {
        self.append(message, false).map(|posted| posted.op)
    }

    fn append(&self, message: &[u8], watched: bool) -> Result<Posted> {
        let remote = self.queue.inner();
        remote.check()?;
        let (len, limit) = (message.len() as u64, self.message_bytes());
        if len == 0 {
            return Err(Error::Empty { what: "a message" });
        }
        if len > limit {
            return Err(Error::MessageTooLong { len, limit });
        }
        let command = Command {
            flags: CommandFlags::APPEND,
            remote: VirtAddr(0),
            ..remote.command(0)
        };
        let port = &remote.port;
        let post = |payload, staged| {
            port.post_write(&WritePlan {
                pieces: &[WritePiece {
                    command,
                    payload,
                    len,
                    staged,
                }],
                notification: NotificationId::NONE,
                part_of: None,
                watched,
                aside: false,
                at_once: false,
                more: false,
            })
        };
        if len <= port.inline_limit {
            return post(Payload::Inline(message), false);
        }
        let chunk = port.stage(len, command.remote.page_offset())?;
        chunk.region.write_from(chunk.offset, message)?;
        let posted = post(Payload::Local(chunk.address(0), &chunk.region), true);
        chunk.given(posted)
    }
}

impl fmt::Debug for SharedSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSender")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
