//! Writing to remote memory (thesis 5.1: write, writeF, writeN, writeFN).

use crate::error::{Error, Result};
use crate::import::{RemoteInner, RemoteSegment};
use crate::pending::Pending;
use crate::port::PortInner;
use crate::posting::{Payload, Posted, WritePiece, WritePlan};
use crate::region::{Region, RegionSlice};
use crate::room::Lack;
use crate::short;
use crate::staging::Chunk;
use bitflags::bitflags;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, FlagTag, INLINE_BYTES};
use netvm_abi::{Epoch, NodeId, NotificationId, OpId, PageOffset, VirtAddr};

/// Where a write takes its bytes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source<'a> {
    /// Part of a region of the same port: transferred from where it is. It must not change before
    /// the write is done at this node ([`Write::fenced`],
    /// [`flush_writes`](crate::Port::flush_writes)), or some mix of old and new arrives.
    Slice(RegionSlice),
    /// The same, borrowed.
    Part(&'a RegionSlice),
    /// Any bytes: copied before the call returns, and counted as
    /// [`staged_bytes`](crate::PortStats::staged_bytes) unless they fit a descriptor.
    Bytes(&'a [u8]),
}

impl Source<'_> {
    /// How many bytes it has.
    pub(crate) const fn len(&self) -> u64 {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Part(slice) => slice.len(),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl From<RegionSlice> for Source<'_> {
    fn from(slice: RegionSlice) -> Self {
        Self::Slice(slice)
    }
}

impl<'a> From<&'a RegionSlice> for Source<'a> {
    #[inline]
    fn from(slice: &'a RegionSlice) -> Self {
        Self::Part(slice)
    }
}

impl From<&Region> for Source<'_> {
    fn from(region: &Region) -> Self {
        Self::Slice(region.whole())
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// How a write is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) notification: NotificationId,
    manner: Manner,
    flags: CommandFlags,
}

bitflags! {
    /// What the library alone does differently. One byte: all of a [`How`] fits the register in which it is handed on.
    #[derive(Clone, Copy, Debug)]
    struct Manner: u8 {
        /// It has a notification, or should have one.
        const NOTIFIED = 1;
        /// The call waits for its end.
        const FENCED = 2;
        /// It is the library's own.
        const ASIDE = 4;
        /// It does not wait for room.
        const AT_ONCE = 8;
        /// The caller gets a value that tells of its end.
        const BEGUN = 16;
        /// The card is not called for it.
        const MORE = 32;
    }
}

const _: () = assert!(size_of::<How>() == 8);

impl How {
    /// Plainly.
    pub(crate) const PLAIN: Self = Self {
        notification: NotificationId::NONE,
        manner: Manner::empty(),
        flags: CommandFlags::empty(),
    };

    #[inline(always)]
    const fn with(mut self, manner: Manner) -> Self {
        self.manner = self.manner.union(manner);
        self
    }

    #[inline(always)]
    const fn flagged(mut self, flags: CommandFlags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    /// The call waits for its end.
    #[inline(always)]
    pub(crate) const fn fence(self) -> Self {
        self.with(Manner::FENCED)
    }

    /// It signals a notification.
    #[inline(always)]
    pub(crate) const fn signal(mut self, id: NotificationId) -> Self {
        self.notification = id;
        self.with(Manner::NOTIFIED)
    }

    /// It acts after everything earlier.
    #[inline(always)]
    pub(crate) const fn in_order(self) -> Self {
        self.flagged(CommandFlags::ORDERED)
    }

    /// It acts whatever has failed.
    #[inline(always)]
    pub(crate) const fn alone(self) -> Self {
        self.flagged(CommandFlags::REGARDLESS)
    }

    /// It does not wait for room.
    #[inline(always)]
    pub(crate) const fn now(self) -> Self {
        self.with(Manner::AT_ONCE)
    }

    /// It does not wait for room, and its caller gets a value that tells of its end.
    pub(crate) const fn begun(self) -> Self {
        self.now().with(Manner::BEGUN)
    }

    /// The card is not called for it.
    #[inline(always)]
    pub(crate) const fn followed(self) -> Self {
        self.with(Manner::MORE)
    }

    #[inline(always)]
    const fn is_followed(self) -> bool {
        self.manner.contains(Manner::MORE)
    }

    /// Whether the short way to post can do it.
    #[inline(always)]
    const fn is_plain(self) -> bool {
        let manner = self.manner.intersection(Manner::NOTIFIED.union(Manner::FENCED));
        manner.is_empty() || (!self.fenced() && self.notification.is_some())
    }

    pub(crate) const fn notified(self) -> bool {
        self.manner.contains(Manner::NOTIFIED)
    }

    #[inline(always)]
    pub(crate) const fn fenced(self) -> bool {
        self.manner.contains(Manner::FENCED)
    }

    const fn aside(self) -> bool {
        self.manner.contains(Manner::ASIDE)
    }

    pub(crate) const fn at_once(self) -> bool {
        self.manner.contains(Manner::AT_ONCE)
    }

    /// Whether the call's own failure is for its caller.
    const fn watched(self) -> bool {
        self.manner.intersects(Manner::FENCED.union(Manner::BEGUN))
    }

    /// A descriptor of a message to this offset.
    pub(crate) fn command(self, remote: &RemoteInner, offset: u64) -> Command {
        Command {
            flags: self.flags,
            ..remote.command(offset)
        }
    }

    /// A plan for these pieces of the call.
    pub(crate) const fn plan<'a>(
        self,
        pieces: &'a [WritePiece<'a>],
        notification: NotificationId,
        part_of: Option<(OpId, Epoch)>,
    ) -> WritePlan<'a> {
        WritePlan {
            pieces,
            notification,
            part_of,
            watched: self.watched(),
            aside: self.aside(),
            at_once: self.at_once(),
            more: self.is_followed(),
        }
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
    how: How,
}

impl<'a> Write<'a> {
    #[inline(always)]
    pub(crate) const fn new(remote: &'a RemoteSegment, offset: u64, source: Source<'a>) -> Self {
        Self {
            remote,
            offset,
            source,
            how: How::PLAIN,
        }
    }

    /// [`post`](Self::post) returns only when this and all earlier writes of the port are done at this
    /// node, so that their source memory may change. Says nothing about arrival.
    #[inline(always)]
    pub const fn fenced(mut self) -> Self {
        self.how = self.how.fence();
        self
    }

    /// Signals this notification of the receiving port when the bytes, and those of every earlier
    /// write from this port to that node, have landed.
    #[inline(always)]
    pub fn notify(mut self, id: impl Into<NotificationId>) -> Self {
        self.how = self.how.signal(id.into());
        self
    }

    /// The bytes land only after everything earlier from this port to that node has landed. If something of that has
    /// failed and the program has not heard of it, they do not land, unless the write stands alone
    /// ([`regardless`](Self::regardless)).
    #[inline(always)]
    pub const fn ordered(mut self) -> Self {
        self.how = self.how.in_order();
        self
    }

    /// It stands alone. It acts and its notification is delivered even if an earlier operation of the stream has
    /// failed and the program has not heard of it yet. If it fails itself at the other node, it holds nothing up and
    /// is not reported. For hand-overs: they must not be lost because some data was, and their receiver may have
    /// just gone.
    #[inline(always)]
    pub const fn regardless(mut self) -> Self {
        self.how = self.how.alone();
        self
    }

    /// More follows at once, so the card is not called for this write alone: the next operation of the port that does not say so calls
    /// it for all of them, and so do a wait and [`Port::progress`](crate::Port::progress). Until then it may stand in the queue.
    ///
    /// For many writes of one thread. The card takes them in one run, and over UDP they leave together: a call of the kernel costs as
    /// much for sixteen as for one. It says nothing of order or arrival.
    #[inline(always)]
    pub const fn more(mut self) -> Self {
        self.how = self.how.followed();
        self
    }

    /// A write of the library's own: earlier failures are the program's to hear of, and stay where they are. Does not go
    /// with a fence.
    pub(crate) const fn aside(mut self) -> Self {
        self.how = self.how.with(Manner::ASIDE);
        self
    }

    /// As [`post`](Self::post), and never waits: a write for which the port has no room now is not posted. One of more than
    /// 64 messages, or of more bytes than a chunk of staging holds, is refused: post it in parts. (A [fenced](Self::fenced) one
    /// waits for its end all the same.)
    ///
    /// # Errors
    /// As [`post`](Self::post), and [`Error::NoRoom`], [`Error::MessageTooLong`].
    #[inline(always)]
    pub fn try_post(mut self) -> Result<OpId> {
        self.how = self.how.now();
        self.post()
    }

    /// As [`try_post`](Self::try_post), with a value that tells of its end: that its source memory may be used again. What
    /// fails at the other node fails later: a [flush](crate::Port::begin_flush_remote) tells.
    ///
    /// # Errors
    /// As [`try_post`](Self::try_post).
    pub fn begin(self) -> Result<Pending> {
        let remote = self.remote.inner();
        let how = self.how.begun();
        let posted = match self.source {
            Source::Bytes(bytes) => place_bytes(remote, self.offset, bytes, how)?,
            Source::Part(slice) => place_slice(remote, self.offset, slice, how)?,
            Source::Slice(slice) => place_slice(remote, self.offset, &slice, how)?,
        };
        Ok(match posted {
            Some(posted) => Pending::write(&remote.port, remote.node, posted),
            None => Pending::nothing(&remote.port, remote.node),
        })
    }

    /// Hands the write to the card. Returns its number, by which a later [`Error::Failed`] names it.
    /// A write of no bytes and without notification is nothing, but its fence.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ModeRefused`], [`Error::NotificationRefused`],
    /// [`Error::ForeignRegion`], [`Error::Released`], [`Error::PortClosed`], [`Error::PortEnded`];
    /// [`Error::Failed`] for an *earlier* operation to the same node that failed and was not yet
    /// reported (nothing was posted then) or, if fenced, for this one; [`Error::StreamFailed`].
    #[inline(always)]
    pub fn post(self) -> Result<OpId> {
        // This much is inlined, so that what kind of write it is costs nothing, and so that a caller of
        // the short way neither makes a `Result` in memory nor looks into one: the optimiser sees which
        // it is.
        let (to, offset, how) = (self.remote, self.offset, self.how);
        let (plain, tag) = (how.is_plain(), FlagTag::new(how.flags));
        let follow = (how.notification, how.is_followed());
        match self.source {
            Source::Bytes(bytes) => {
                let tag = FlagTag::new(how.flags.union(CommandFlags::INLINE));
                match plain.then(|| short::bytes(to, offset, bytes, tag, follow)) {
                    Some(Some(number)) => Ok(OpId(number.get())),
                    _ => post_any_bytes(to.inner(), offset, bytes, how),
                }
            }
            Source::Part(slice) => match plain.then(|| short::slice(to, offset, slice, tag, follow)) {
                Some(Some(number)) => Ok(OpId(number.get())),
                _ => post_any_slice(to.inner(), offset, slice, how),
            },
            Source::Slice(slice) => match plain.then(|| short::slice(to, offset, &slice, tag, follow)) {
                Some(Some(number)) => Ok(OpId(number.get())),
                _ => post_any_slice(to.inner(), offset, &slice, how),
            },
        }
    }
}

/// Checks a write against the import map.
fn check(remote: &RemoteInner, offset: u64, len: u64, how: How) -> Result<()> {
    remote.check()?;
    remote.check_transfer(offset, len, Modes::WRITE)?;
    if how.notified() {
        remote.check_notification(how.notification)?;
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn post_any_bytes(remote: &RemoteInner, offset: u64, bytes: &[u8], how: How) -> Result<OpId> {
    let posted = place_bytes(remote, offset, bytes, how)?;
    fence(remote, posted, how)
}

/// Posts a write of bytes. Nothing: there is none to post.
fn place_bytes(remote: &RemoteInner, offset: u64, bytes: &[u8], how: How) -> Result<Option<Posted>> {
    let len = bytes.len() as u64;
    check(remote, offset, len, how)?;
    if len == 0 && !how.notified() {
        return Ok(None);
    }
    if len <= remote.port.inline_limit {
        post_one(remote, offset, Payload::Inline(bytes), len, how).map(Some)
    } else {
        post_staged(remote, offset, bytes, how).map(Some)
    }
}

#[cold]
#[inline(never)]
fn post_any_slice(remote: &RemoteInner, offset: u64, slice: &RegionSlice, how: How) -> Result<OpId> {
    let posted = place_slice(remote, offset, slice, how)?;
    fence(remote, posted, how)
}

/// Posts a write of a region's slice. Nothing: there is none to post.
fn place_slice(remote: &RemoteInner, offset: u64, slice: &RegionSlice, how: How) -> Result<Option<Posted>> {
    let len = slice.len();
    check(remote, offset, len, how)?;
    if !slice.region().belongs_to(&remote.port.identity) {
        return Err(Error::ForeignRegion);
    }
    if len <= remote.port.inline_limit {
        // Small: its bytes are copied now, before any lock is taken, because that may park.
        let mut buffer = [0; INLINE_BYTES];
        let bytes = buffer.get_mut(..len as usize).unwrap_or_default();
        slice.region().read_into(slice.offset(), bytes)?;
        return place_bytes(remote, offset, bytes, how);
    }
    let payload = Payload::Local(slice.address(), slice.region());
    post_one(remote, offset, payload, len, how).map(Some)
}

fn post_one(remote: &RemoteInner, offset: u64, payload: Payload<'_>, len: u64, how: How) -> Result<Posted> {
    let piece = WritePiece {
        command: how.command(remote, offset),
        payload,
        len,
        staged: false,
    };
    remote
        .port
        .post_write(&how.plan(&[piece], how.notification, None))
}

/// Posts bytes that the card cannot reach, through the port's own region, part by part.
fn post_staged(remote: &RemoteInner, offset: u64, bytes: &[u8], how: How) -> Result<Posted> {
    let port = &remote.port;
    let mut command = how.command(remote, offset);
    let mut rest = bytes;
    let mut part_of = None;
    loop {
        let len = rest.len() as u64;
        let chunk = if how.at_once() {
            stage_now(port, len, command.remote.page_offset())?
        } else {
            port.stage(len, command.remote.page_offset())?
        };
        let (now, later) = rest.split_at(rest.len().min(chunk.len as usize));
        chunk.region.write_from(chunk.offset, now)?;
        let piece = WritePiece {
            command,
            payload: Payload::Local(chunk.address(0), &chunk.region),
            len: now.len() as u64,
            staged: true,
        };
        let notification = if later.is_empty() {
            how.notification
        } else {
            NotificationId::NONE
        };
        let posted = port.post_write(&how.plan(&[piece], notification, part_of));
        let posted = chunk.given(posted)?;
        if later.is_empty() {
            return Ok(posted);
        }
        part_of = Some((posted.op, posted.epoch));
        command.remote = VirtAddr(command.remote.0.wrapping_add(now.len() as u64));
        rest = later;
    }
}

/// A chunk for all of `len` bytes, without waiting for one.
pub(crate) fn stage_now(port: &PortInner, len: u64, offset: PageOffset) -> Result<Chunk<'_>> {
    let chunk = port.try_stage(len, offset)?.map_err(|behind| {
        port.asks_for_room(Error::NoRoom {
            lacks: Lack::staging(behind),
        })
    })?;
    if chunk.len < len {
        let limit = chunk.len;
        return Err(Error::MessageTooLong { len, limit });
    }
    Ok(chunk)
}

fn fence(remote: &RemoteInner, posted: Option<Posted>, how: How) -> Result<OpId> {
    end(&remote.port, remote.node, posted, how)
}

/// Waits for what was posted, if the call is to; nothing: there was nothing to post.
pub(crate) fn end(port: &PortInner, node: NodeId, posted: Option<Posted>, how: How) -> Result<OpId> {
    let Some(posted) = posted else {
        if how.fenced() {
            port.flush(false, true)?;
        }
        return Ok(OpId(0));
    };
    if how.fenced() {
        port.wait_writes(posted.number)?;
        port.finish(posted.op, Some(node))?;
    }
    Ok(posted.op)
}
