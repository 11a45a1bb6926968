//! Writing to remote memory (thesis 5.1: write, writeF, writeN, writeFN).

use crate::error::{Error, Result};
use crate::import::{RemoteInner, RemoteSegment};
use crate::poster::{Payload, Posted, WritePlan};
use crate::region::{Region, RegionSlice};
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, INLINE_BYTES};
use netvm_abi::{NotificationId, OpId, VirtAddr};

/// Where a write takes its bytes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source<'a> {
    /// Part of a region of the same port: transferred from where it is. It must not change before
    /// the write is done at this node ([`Write::fenced`],
    /// [`flush_writes`](crate::Port::flush_writes)), or some mix of old and new arrives.
    Slice(RegionSlice),
    /// Any bytes: copied before the call returns, and counted as
    /// [`staged_bytes`](crate::PortStats::staged_bytes) unless they fit a descriptor.
    Bytes(&'a [u8]),
}

impl From<RegionSlice> for Source<'_> {
    fn from(slice: RegionSlice) -> Self {
        Self::Slice(slice)
    }
}

impl From<&RegionSlice> for Source<'_> {
    fn from(slice: &RegionSlice) -> Self {
        Self::Slice(slice.clone())
    }
}

impl From<&Region> for Source<'_> {
    fn from(region: &Region) -> Self {
        Self::Slice(region.whole())
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A write about to be posted. Any offset, any alignment, any length; an aligned word of 1, 2, 4 or 8
/// bytes lands in one piece.
#[derive(Debug)]
#[must_use = "a write does nothing until it is posted"]
pub struct Write<'a> {
    remote: &'a RemoteSegment,
    offset: u64,
    source: Source<'a>,
    notification: NotificationId,
    fenced: bool,
    ordered: bool,
    notified: bool,
}

impl<'a> Write<'a> {
    #[inline]
    pub(crate) const fn new(remote: &'a RemoteSegment, offset: u64, source: Source<'a>) -> Self {
        Self {
            remote,
            offset,
            source,
            notification: NotificationId::NONE,
            fenced: false,
            ordered: false,
            notified: false,
        }
    }

    /// [`post`](Self::post) returns only when this and all earlier writes of the port are done at this
    /// node, so that their source memory may change. Says nothing about arrival.
    #[inline]
    pub const fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Signals this notification of the receiving port when the bytes, and those of every earlier
    /// write from this port to that node, have landed.
    #[inline]
    pub fn notify(mut self, id: impl Into<NotificationId>) -> Self {
        self.notification = id.into();
        self.notified = true;
        self
    }

    /// The bytes land only after everything earlier from this port to that node has landed.
    #[inline]
    pub const fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Hands the write to the card. Returns its number, by which a later [`Error::Failed`] names it.
    /// A write of no bytes and without notification is nothing, but its fence.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ModeRefused`], [`Error::NotificationRefused`],
    /// [`Error::ForeignRegion`], [`Error::Released`], [`Error::PortClosed`], [`Error::PortEnded`];
    /// [`Error::Failed`] for an *earlier* operation to the same node that failed and was not yet
    /// reported (nothing was posted then) or, if fenced, for this one; [`Error::StreamFailed`].
    #[inline]
    pub fn post(self) -> Result<OpId> {
        let remote = self.remote.inner();
        remote.check()?;
        let len = match &self.source {
            Source::Slice(slice) => slice.len(),
            Source::Bytes(bytes) => bytes.len() as u64,
        };
        remote.check_transfer(self.offset, len, Modes::WRITE)?;
        if self.notified {
            remote.check_notification(self.notification)?;
        } else if len == 0 {
            return self.nothing(remote);
        }
        let mut command = remote.command(self.offset);
        if self.ordered {
            command.flags |= CommandFlags::ORDERED;
        }
        let small = len <= remote.port.inline_limit;
        let posted = match &self.source {
            Source::Bytes(bytes) if small => self.post_one(remote, command, Payload::Inline(bytes), len)?,
            Source::Bytes(bytes) => self.post_staged(remote, command, bytes)?,
            Source::Slice(slice) => {
                let region = slice.region();
                if !region.belongs_to(&remote.port.identity) {
                    return Err(Error::ForeignRegion);
                }
                if small {
                    // Its bytes are copied now, before any lock is taken, because that may park.
                    let mut buffer = [0; INLINE_BYTES];
                    let bytes = buffer.get_mut(..len as usize).unwrap_or_default();
                    region.read_into(slice.offset(), bytes)?;
                    self.post_one(remote, command, Payload::Inline(bytes), len)?
                } else {
                    self.post_one(remote, command, Payload::Local(slice.address(), region), len)?
                }
            }
        };
        if self.fenced {
            remote.port.wait_writes(posted.number)?;
            remote.port.finish(posted.op, remote.node)?;
        }
        Ok(posted.op)
    }

    #[inline]
    fn post_one(
        &self,
        remote: &RemoteInner,
        command: Command,
        payload: Payload<'_>,
        len: u64,
    ) -> Result<Posted> {
        remote.port.post_write(&WritePlan {
            command,
            payload,
            len,
            notification: self.notification,
            part_of: None,
            staged: false,
            watched: self.fenced,
        })
    }

    /// Posts bytes that the card cannot reach, through the port's own region, part by part.
    fn post_staged(&self, remote: &RemoteInner, mut command: Command, bytes: &[u8]) -> Result<Posted> {
        let port = &remote.port;
        let mut rest = bytes;
        let mut part_of = None;
        loop {
            let chunk = port.stage(rest.len() as u64, command.remote.page_offset())?;
            let (now, later) = rest.split_at(rest.len().min(chunk.len as usize));
            chunk.region.write_from(chunk.offset, now)?;
            let local = VirtAddr(chunk.region.address().0.wrapping_add(chunk.offset));
            let posted = port.post_write(&WritePlan {
                command,
                payload: Payload::Local(local, &chunk.region),
                len: now.len() as u64,
                notification: if later.is_empty() {
                    self.notification
                } else {
                    NotificationId::NONE
                },
                part_of,
                staged: true,
                watched: self.fenced,
            })?;
            chunk.posted(posted.number);
            if later.is_empty() {
                return Ok(posted);
            }
            part_of = Some((posted.op, posted.epoch));
            command.remote = VirtAddr(command.remote.0.wrapping_add(now.len() as u64));
            rest = later;
        }
    }

    #[cold]
    fn nothing(&self, remote: &RemoteInner) -> Result<OpId> {
        if self.fenced {
            remote.port.flush(false, true)?;
        }
        Ok(OpId(0))
    }
}
