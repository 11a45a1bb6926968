//! Reading remote memory (thesis 5.1: read, readF; 5.5).

use crate::error::{Error, Result};
use crate::import::{RemoteInner, RemoteSegment};
use crate::posting::{Posted, ReadPlan};
use crate::region::{Region, RegionSlice};
use crate::staging::Chunk;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::{OpId, VirtAddr};
use std::collections::VecDeque;

/// Where a read puts its bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Target<'a> {
    /// Part of a region of the same port: the card writes there. The bytes are there when a fence
    /// ([`Read::fenced`], [`flush_reads`](crate::Port::flush_reads)) says so.
    Slice(RegionSlice),
    /// Any bytes: staged through the port's own region, and there when [`Read::post`] returns.
    Bytes(&'a mut [u8]),
}

impl From<RegionSlice> for Target<'_> {
    fn from(slice: RegionSlice) -> Self {
        Self::Slice(slice)
    }
}

impl From<&RegionSlice> for Target<'_> {
    fn from(slice: &RegionSlice) -> Self {
        Self::Slice(slice.clone())
    }
}

impl From<&Region> for Target<'_> {
    fn from(region: &Region) -> Self {
        Self::Slice(region.whole())
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for Target<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a mut Vec<u8>> for Target<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A read about to be posted. Any offset, any alignment, any length.
#[derive(Debug)]
#[must_use = "a read does nothing until it is posted"]
pub struct Read<'a> {
    remote: &'a RemoteSegment,
    offset: u64,
    target: Target<'a>,
    fenced: bool,
    ordered: bool,
    aside: bool,
}

impl<'a> Read<'a> {
    pub(crate) const fn new(remote: &'a RemoteSegment, offset: u64, target: Target<'a>) -> Self {
        Self {
            remote,
            offset,
            target,
            fenced: false,
            ordered: false,
            aside: false,
        }
    }

    /// [`post`](Self::post) returns only when this and all earlier reads of the port have ended.
    /// A read into bytes waits for itself alone in any case.
    pub const fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// The memory is read only after everything earlier from this port to that node has landed.
    pub const fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// A read of the library's own: it waits for itself and fails for its own failure alone. Those of others are the
    /// program's to hear of, and stay where they are.
    pub(crate) const fn aside(mut self) -> Self {
        self.aside = true;
        self
    }

    /// Hands the read to the card. Returns its number, by which a later [`Error::Failed`] names it.
    /// Bytes of the target are undefined (old, new or a mix) until the read has ended without error.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post).
    pub fn post(self) -> Result<OpId> {
        let remote = self.remote.inner();
        remote.check()?;
        let len = match &self.target {
            Target::Slice(slice) => slice.len(),
            Target::Bytes(bytes) => bytes.len() as u64,
        };
        remote.check_transfer(self.offset, len, Modes::READ)?;
        if len == 0 {
            if self.fenced {
                remote.port.flush(true, false)?;
            }
            return Ok(OpId(0));
        }
        let mut command = remote.command(self.offset);
        if self.ordered {
            command.flags |= CommandFlags::ORDERED;
        }
        let others = (!self.aside).then_some(remote.node);
        match self.target {
            Target::Slice(slice) => {
                if !slice.region().belongs_to(&remote.port.identity) {
                    return Err(Error::ForeignRegion);
                }
                let posted = remote.port.post_read(&ReadPlan {
                    command,
                    local: slice.address(),
                    region: slice.region(),
                    len,
                    part_of: None,
                    staged: false,
                    watched: self.fenced,
                    aside: self.aside,
                })?;
                if self.fenced && self.aside {
                    remote.port.wait_call(posted.op, posted.number)?;
                } else if self.fenced {
                    remote.port.wait_reads(posted.number)?;
                }
                if self.fenced {
                    remote.port.finish(posted.op, others)?;
                }
                Ok(posted.op)
            }
            Target::Bytes(bytes) => {
                let posted = read_staged(remote, command, bytes, self.aside)?;
                if self.fenced {
                    remote.port.wait_reads(posted.number)?;
                }
                remote.port.finish(posted.op, others)?;
                Ok(posted.op)
            }
        }
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
            command: remote.command(offset),
            local: into.address(),
            region: into.region(),
            len: into.len(),
            part_of: None,
            staged: false,
            watched: true,
            aside: true,
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
                command,
                local: VirtAddr(chunk.region.address().0.wrapping_add(chunk.offset)),
                region: &chunk.region,
                len: chunk.len,
                part_of: call,
                staged: true,
                watched: true,
                aside,
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
