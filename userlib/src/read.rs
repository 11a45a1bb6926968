//! Reading remote memory (thesis 5.1: read, readF; 5.5).

use crate::error::{Error, Result};
use crate::import::{RemoteInner, RemoteSegment};
use crate::pending::Pending;
use crate::posting::{Posted, ReadPiece, ReadPlan};
use crate::region::RegionSlice;
use crate::staging::Chunk;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::{NodeId, OpId, VirtAddr};
use std::collections::VecDeque;

/// Where a read may put its bytes.
///
/// - Part of a region of the same port (a [`RegionSlice`], or a whole [`Region`](crate::Region)): the card writes there. The read is
///   [posted](Read::post), and the bytes are there when a fence ([`Read::fenced`],
///   [`flush_reads`](crate::Port::flush_reads)) says so.
/// - Any bytes: staged through the port's own region. The read is [called](Read::call), and the bytes are there when that
///   returns.
pub trait Target: sealed::Target {}

impl<T: sealed::Target> Target for T {}

pub(crate) mod sealed {
    use crate::region::{Region, RegionSlice};

    /// Seals [`super::Target`].
    pub trait Target {
        /// A slice of a region, or bytes.
        type Place;

        /// As one of the two.
        fn place(self) -> Self::Place;
    }

    impl Target for RegionSlice {
        type Place = Self;
        fn place(self) -> Self {
            self
        }
    }

    impl Target for &RegionSlice {
        type Place = RegionSlice;
        fn place(self) -> RegionSlice {
            self.clone()
        }
    }

    impl Target for &Region {
        type Place = RegionSlice;
        fn place(self) -> RegionSlice {
            self.whole()
        }
    }

    impl<'a> Target for &'a mut [u8] {
        type Place = &'a mut [u8];
        fn place(self) -> &'a mut [u8] {
            self
        }
    }

    impl<'a, const N: usize> Target for &'a mut [u8; N] {
        type Place = &'a mut [u8];
        fn place(self) -> &'a mut [u8] {
            self
        }
    }

    impl<'a> Target for &'a mut Vec<u8> {
        type Place = &'a mut [u8];
        fn place(self) -> &'a mut [u8] {
            self
        }
    }
}

/// A read about to be done. Any offset, any alignment, any length.
///
/// `P` is where its bytes go, and decides how it is done: into a slice of a region it is [posted](Self::post), into bytes
/// [called](Self::call).
#[derive(Debug)]
#[must_use = "a read does nothing until it is posted or called"]
pub struct Read<'a, P> {
    remote: &'a RemoteSegment,
    offset: u64,
    place: P,
    fenced: bool,
    ordered: bool,
    aside: bool,
}

/// Checks a read of so many bytes. Nothing: there is none to read.
pub(crate) fn command(remote: &RemoteInner, offset: u64, len: u64, ordered: bool) -> Result<Option<Command>> {
    remote.check()?;
    remote.check_transfer(offset, len, Modes::READ)?;
    let mut command = remote.command(offset);
    if ordered {
        command.flags |= CommandFlags::ORDERED;
    }
    Ok((len > 0).then_some(command))
}

impl<'a, P> Read<'a, P> {
    pub(crate) const fn new(remote: &'a RemoteSegment, offset: u64, place: P) -> Self {
        Self {
            remote,
            offset,
            place,
            fenced: false,
            ordered: false,
            aside: false,
        }
    }

    /// The memory is read only after everything earlier from this port to that node has landed.
    #[expect(clippy::missing_const_for_fn, reason = "a place may have a destructor")]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// A read of the library's own: it waits for itself and fails for its own failure alone. Those of others are the
    /// program's to hear of, and stay where they are.
    #[expect(clippy::missing_const_for_fn, reason = "a place may have a destructor")]
    pub(crate) fn aside(mut self) -> Self {
        self.aside = true;
        self
    }

    fn command(&self, len: u64) -> Result<Option<Command>> {
        command(self.remote.inner(), self.offset, len, self.ordered)
    }

    /// The node whose failures it reports beside its own.
    fn others(&self) -> Option<NodeId> {
        (!self.aside).then_some(self.remote.node())
    }
}

impl Read<'_, RegionSlice> {
    /// [`post`](Self::post) returns only when this and all earlier reads of the port have ended.
    #[expect(clippy::missing_const_for_fn, reason = "a slice has a destructor")]
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Hands the read to the card. Returns its number, by which a later [`Error::Failed`] names it.
    /// Bytes of the target are undefined (old, new or a mix) until the read has ended without error.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post).
    pub fn post(self) -> Result<OpId> {
        self.hand_over(false)
    }

    /// As [`post`](Self::post), and never waits: a read for which the port has no room now is not posted. One of more than 64
    /// messages is refused: post it in parts. (A [fenced](Self::fenced) one waits for its end all the same.)
    ///
    /// # Errors
    /// As [`post`](Self::post), and [`Error::NoRoom`], [`Error::MessageTooLong`].
    pub fn try_post(self) -> Result<OpId> {
        self.hand_over(true)
    }

    /// As [`try_post`](Self::try_post), with a value that tells of its end: that its bytes are there.
    ///
    /// # Errors
    /// As [`try_post`](Self::try_post).
    pub fn begin(self) -> Result<Pending> {
        let remote = self.remote.inner();
        Ok(match self.place(true, true)? {
            Some(posted) => Pending::read(&remote.port, remote.node, posted),
            None => Pending::nothing(&remote.port, remote.node),
        })
    }

    /// Posts it. Nothing: there is nothing to read.
    fn place(&self, at_once: bool, begun: bool) -> Result<Option<Posted>> {
        let slice = &self.place;
        let port = &self.remote.inner().port;
        let Some(command) = self.command(slice.len())? else {
            return Ok(None);
        };
        if !slice.region().belongs_to(&port.identity) {
            return Err(Error::ForeignRegion);
        }
        let plan = ReadPlan {
            pieces: &[ReadPiece::into_slice(command, slice)],
            part_of: None,
            staged: false,
            watched: self.fenced || begun,
            aside: self.aside,
            at_once,
        };
        port.post_read(&plan).map(Some)
    }

    fn hand_over(self, at_once: bool) -> Result<OpId> {
        let port = &self.remote.inner().port;
        let Some(posted) = self.place(at_once, false)? else {
            if self.fenced {
                port.flush(true, false)?;
            }
            return Ok(OpId(0));
        };
        if self.fenced {
            if self.aside {
                port.wait_call(posted.op, posted.number)?;
            } else {
                port.wait_reads(posted.number)?;
            }
            port.finish(posted.op, self.others())?;
        }
        Ok(posted.op)
    }
}

impl Read<'_, &mut [u8]> {
    /// Hands the read to the card and waits for it, and for no other. After an error the bytes are undefined: old, new or a
    /// mix.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post), for this read as if it were fenced.
    pub fn call(self) -> Result<()> {
        let Some(command) = self.command(self.place.len() as u64)? else {
            return Ok(());
        };
        let others = self.others();
        let remote = self.remote.inner();
        let posted = read_staged(remote, command, self.place, self.aside)?;
        remote.port.finish(posted.op, others)
    }
}

impl RemoteSegment {
    /// Posts a read of the library's own that its poster does not wait for: the poster sees
    /// [whether it has ended](crate::port::PortInner::has_ended), and then comes for its failure.
    pub(crate) fn read_watched(&self, offset: u64, into: &RegionSlice) -> Result<Posted> {
        let remote = self.inner();
        remote.check()?;
        remote.check_transfer(offset, into.len(), Modes::READ)?;
        remote.port.post_read(&ReadPlan {
            pieces: &[ReadPiece::into_slice(remote.command(offset), into)],
            part_of: None,
            staged: false,
            watched: true,
            aside: true,
            at_once: false,
        })
    }
}

/// Reads into memory that the card cannot reach, part by part. Where there is room the next part is
/// under way while one is copied out.
fn read_staged(remote: &RemoteInner, mut command: Command, bytes: &mut [u8], aside: bool) -> Result<Posted> {
    let port = &remote.port;
    let mut unposted = bytes.len() as u64;
    let mut unread = bytes;
    let mut call = None;
    let mut parts: VecDeque<(Chunk<'_>, Posted)> = VecDeque::with_capacity(2);
    loop {
        while unposted > 0 && parts.len() < 2 {
            let offset = command.remote.page_offset();
            let chunk = if parts.is_empty() {
                port.stage(unposted, offset)?
            } else if let Ok(chunk) = port.try_stage(unposted, offset)? {
                chunk
            } else {
                break;
            };
            let posted = port.post_read(&ReadPlan {
                pieces: &[ReadPiece {
                    command,
                    local: chunk.address(0),
                    region: &chunk.region,
                    len: chunk.len,
                }],
                part_of: call,
                staged: true,
                watched: true,
                aside,
                at_once: false,
            })?;
            call = Some(posted.op);
            command.remote = VirtAddr(command.remote.0.wrapping_add(chunk.len));
            unposted -= chunk.len;
            parts.push_back((chunk, posted));
        }
        let Some((chunk, posted)) = parts.pop_front() else {
            return Err(Error::PortClosed);
        };
        port.wait_call(posted.op, posted.number)?;
        let now = unread
            .split_off_mut(..(chunk.len as usize).min(unread.len()))
            .unwrap_or_default();
        let copied = chunk.region.read_into(chunk.offset, now);
        if copied.is_err() || unread.is_empty() {
            // The card must be done with a chunk before it is free for others.
            if let Some((_, last)) = parts.back() {
                port.wait_call(last.op, last.number)?;
            }
            return copied.map(|()| posted);
        }
    }
}
