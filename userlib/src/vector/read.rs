//! Reading several pieces as one operation.

use crate::error::{Error, Result};
use crate::import::RemoteSegment;
use crate::pending::Pending;
use crate::port::{Port, PortInner};
use crate::posting::{Posted, ReadPiece, ReadPlan};
use crate::read::{Target, command, sealed};
use crate::region::RegionSlice;
use crate::staging::Chunk;
use crate::vector::one_node;
use crate::vector::packing::{Packed, Packing};
use netvm_abi::descriptor::Command;
use netvm_abi::{NodeId, OpId, VirtAddr};
use std::collections::VecDeque;

/// A read of several pieces about to be done, from [`Port::read_vector`]: each from any offset of any import of one node.
///
/// It is one operation, with one number, one end and one failure. Every piece is checked before any is posted; one that is refused keeps
/// all of them from being posted. Pieces of no bytes do not matter.
///
/// `P` is where bytes go, as with [`Read`](crate::Read): into slices of regions it is [posted](Self::post), into bytes
/// [called](Self::call). The first piece decides. Where pieces overlap here, which of them is seen afterwards is open.
///
/// ```no_run
/// use netvm::{Port, RemoteSegment};
///
/// /// Two counters, in one round trip.
/// fn counters(port: &Port, remote: &RemoteSegment) -> netvm::Result<(u64, u64)> {
///     let (mut first, mut second) = ([0; 8], [0; 8]);
///     port.read_vector()
///         .piece(remote, 0, &mut first)
///         .piece(remote, 8192, &mut second)
///         .call()?;
///     Ok((u64::from_le_bytes(first), u64::from_le_bytes(second)))
/// }
/// ```
#[derive(Debug)]
#[must_use = "a read does nothing until it is posted or called"]
pub struct ReadVector<'a, P> {
    port: &'a Port,
    pieces: Vec<(&'a RemoteSegment, u64, P)>,
    fenced: bool,
    ordered: bool,
}

impl<'a, P> ReadVector<'a, P> {
    pub(super) const fn new(port: &'a Port) -> Self {
        Self {
            port,
            pieces: Vec::new(),
            fenced: false,
            ordered: false,
        }
    }

    /// Adds a piece: what is from `offset` on goes into `target`.
    pub fn piece<T>(mut self, remote: &'a RemoteSegment, offset: u64, target: T) -> Self
    where
        T: Target + sealed::Target<Place = P>,
    {
        self.pieces.push((remote, offset, target.place()));
        self
    }

    /// The memory is read piece after piece, in the order in which they were added, and only after everything earlier from this port to
    /// that node has landed.
    #[expect(clippy::missing_const_for_fn, reason = "a place may have a destructor")]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// The node, if there is a piece.
    fn node(&self) -> Result<Option<NodeId>> {
        self.port.inner.alive()?;
        one_node(&self.port.inner, self.pieces.iter().map(|(remote, ..)| *remote))
    }
}

impl ReadVector<'_, RegionSlice> {
    /// [`post`](Self::post) returns only when this and all earlier reads of the port have ended.
    #[expect(clippy::missing_const_for_fn, reason = "a slice has a destructor")]
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Hands the read to the card. Returns its number, by which a later [`Error::Failed`] names it. Bytes of the targets are undefined
    /// (old, new or a mix) until the read has ended without error. A vector may have any length: where there is no room for all of it,
    /// the call posts what has room, and waits for more. A vector without a byte is nothing, but its fence, and its number is 0.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post); [`Error::ForeignPiece`].
    pub fn post(self) -> Result<OpId> {
        self.hand_over(false)
    }

    /// As [`post`](Self::post), and never waits: without room for all pieces none is posted. One of more than 64 messages is refused:
    /// post it in parts. (A [fenced](Self::fenced) one waits for its end all the same.)
    ///
    /// # Errors
    /// As [`post`](Self::post), and [`Error::NoRoom`], [`Error::MessageTooLong`].
    pub fn try_post(self) -> Result<OpId> {
        self.hand_over(true)
    }

    /// As [`try_post`](Self::try_post), with a value that tells of its end: that the bytes of all pieces are there.
    ///
    /// # Errors
    /// As [`try_post`](Self::try_post).
    pub fn begin(self) -> Result<Pending> {
        let port = &self.port.inner;
        Ok(match self.place(true, true)? {
            (node, Some(posted)) => Pending::read(port, node, posted),
            (node, None) => Pending::nothing(port, node),
        })
    }

    /// Checks every piece, and posts them. Nothing: there is nothing to read.
    fn place(&self, at_once: bool, begun: bool) -> Result<(NodeId, Option<Posted>)> {
        let port = &self.port.inner;
        let Some(node) = self.node()? else {
            return Ok((port.node_id(), None));
        };
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for (remote, offset, slice) in &self.pieces {
            let command = command(remote.inner(), *offset, slice.len(), self.ordered)?;
            if !slice.region().belongs_to(&port.identity) {
                return Err(Error::ForeignRegion);
            }
            pieces.extend(command.map(|command| ReadPiece::into_slice(command, slice)));
        }
        if pieces.is_empty() {
            return Ok((node, None));
        }
        let plan = ReadPlan {
            pieces: &pieces,
            part_of: None,
            staged: false,
            watched: self.fenced || begun,
            aside: false,
            at_once,
        };
        port.post_read(&plan).map(|posted| (node, Some(posted)))
    }

    fn hand_over(self, at_once: bool) -> Result<OpId> {
        let port = &self.port.inner;
        let (node, Some(posted)) = self.place(at_once, false)? else {
            if self.fenced {
                port.flush(true, false)?;
            }
            return Ok(OpId(0));
        };
        if self.fenced {
            port.wait_reads(posted.number)?;
            port.finish(posted.op, Some(node))?;
        }
        Ok(posted.op)
    }
}

impl ReadVector<'_, &mut [u8]> {
    /// Hands the read to the card and waits for it, and for no other. After an error the bytes are undefined: old, new or a mix.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post), for this read as if it were fenced; [`Error::ForeignPiece`].
    pub fn call(self) -> Result<()> {
        let port = &self.port.inner;
        let Some(node) = self.node()? else {
            return Ok(());
        };
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for (remote, offset, bytes) in self.pieces {
            let command = command(remote.inner(), offset, bytes.len() as u64, self.ordered)?;
            pieces.extend(command.map(|command| (command, bytes)));
        }
        match through_staging(port, pieces)? {
            Some(posted) => port.finish(posted.op, Some(node)),
            None => Ok(()),
        }
    }
}

/// A chunk that is being read into.
struct Filling<'a> {
    chunk: Chunk<'a>,
    packed: Packed,
    posted: Posted,
}

/// Reads into memory that the card cannot reach, chunk by chunk. Where there is room the next chunk is under way while one is copied
/// out. Nothing: there is nothing to read.
fn through_staging(port: &PortInner, mut pieces: Vec<(Command, &mut [u8])>) -> Result<Option<Posted>> {
    let places = pieces
        .iter()
        .map(|(command, bytes)| (command.remote, bytes.len() as u64));
    let mut packing = Packing::new(places.collect());
    let limit = port.largest_chunk();
    let mut next = packing.next_chunk(limit);
    let mut under_way: VecDeque<Filling<'_>> = VecDeque::with_capacity(2);
    let mut last = None;
    loop {
        while let Some(packed) = &next
            && under_way.len() < 2
        {
            let chunk = if under_way.is_empty() {
                port.stage(packed.len, packed.offset)?
            } else if let Ok(chunk) = port.try_stage(packed.len, packed.offset)? {
                chunk
            } else {
                break;
            };
            let posted = post(port, &pieces, packed, &chunk, last.map(|last: Posted| last.op))?;
            last = Some(posted);
            let packed = std::mem::replace(&mut next, packing.next_chunk(limit));
            under_way.extend(packed.map(|packed| Filling {
                chunk,
                packed,
                posted,
            }));
        }
        let Some(filling) = under_way.pop_front() else {
            return Ok(last);
        };
        port.wait_call(filling.posted.op, filling.posted.number)?;
        let copied = filling.copy_out(&mut pieces);
        if let Err(error) = copied {
            // The card must be done with a chunk before it is free for others.
            if let Some(last) = last {
                port.wait_call(last.op, last.number)?;
            }
            return Err(error);
        }
    }
}

/// Posts the reads of what goes through a chunk.
fn post(
    port: &PortInner,
    pieces: &[(Command, &mut [u8])],
    packed: &Packed,
    chunk: &Chunk<'_>,
    part_of: Option<OpId>,
) -> Result<Posted> {
    let stretches = packed.stretches.iter().filter_map(|stretch| {
        let (command, _) = pieces.get(stretch.piece)?;
        let remote = VirtAddr(command.remote.0.wrapping_add(stretch.from));
        Some(ReadPiece {
            command: Command { remote, ..*command },
            local: chunk.address(stretch.at),
            region: &chunk.region,
            len: stretch.len,
        })
    });
    port.post_read(&ReadPlan {
        pieces: &stretches.collect::<Vec<_>>(),
        part_of,
        staged: true,
        watched: true,
        aside: false,
        at_once: false,
    })
}

impl Filling<'_> {
    /// Copies what has come to where it belongs.
    fn copy_out(&self, pieces: &mut [(Command, &mut [u8])]) -> Result<()> {
        let chunk = &self.chunk;
        for stretch in &self.packed.stretches {
            let (from, to) = (stretch.from as usize, (stretch.from + stretch.len) as usize);
            let place = pieces.get_mut(stretch.piece);
            let place = place.and_then(|(_, bytes)| bytes.get_mut(from..to));
            chunk
                .region
                .read_into(chunk.offset + stretch.at, place.unwrap_or_default())?;
        }
        Ok(())
    }
}
