//! Writing several pieces as one operation.

use crate::error::{Error, Result};
use crate::import::RemoteSegment;
use crate::pending::Pending;
use crate::port::{Port, PortInner};
use crate::posting::{Payload, Posted, WritePiece};
use crate::region::RegionSlice;
use crate::staging::Chunk;
use crate::vector::one_node;
use crate::vector::packing::{Packed, Packing};
use crate::write::{How, Source, end, stage_now};
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, INLINE_BYTES};
use netvm_abi::{NodeId, NotificationId, OpId, VirtAddr};
use std::iter::Peekable;
use std::slice::Iter;

/// A write of several pieces about to be posted, from [`Port::write_vector`]: each from a slice of a region (zero-copy) or from bytes
/// (copied before the call returns), to any offset of any import of one node.
///
/// It is one operation: with one number, one end, at most one notification, and one failure. Every piece is checked before any is
/// posted; one that is refused keeps all of them from being posted. Pieces of no bytes do not matter.
///
/// ```no_run
/// use netvm::{Port, RegionSlice, RemoteSegment};
///
/// /// A record: its body first, and its head at another place.
/// fn store(port: &Port, heap: &RemoteSegment, index: &RemoteSegment, body: &RegionSlice, at: u64) -> netvm::Result<()> {
///     let head = [at.to_le_bytes(), body.len().to_le_bytes()].concat();
///     port.write_vector()
///         .piece(heap, at, body)
///         .piece(index, 0, &head)
///         .notify(7)
///         .post()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a write does nothing until it is posted"]
pub struct WriteVector<'a> {
    port: &'a Port,
    pieces: Vec<(&'a RemoteSegment, u64, Source<'a>)>,
    how: How,
}

impl<'a> WriteVector<'a> {
    pub(super) const fn new(port: &'a Port) -> Self {
        Self {
            port,
            pieces: Vec::new(),
            how: How::PLAIN,
        }
    }

    /// Adds a piece: `source` goes to `offset` on.
    pub fn piece(mut self, remote: &'a RemoteSegment, offset: u64, source: impl Into<Source<'a>>) -> Self {
        self.pieces.push((remote, offset, source.into()));
        self
    }

    /// [`post`](Self::post) returns only when this and all earlier writes of the port are done at this node, so that the source memory
    /// of every piece may change. Says nothing about arrival.
    pub const fn fenced(mut self) -> Self {
        self.how = self.how.fence();
        self
    }

    /// Signals this notification of the port that exports the last piece's memory, when all pieces, and every earlier write from this
    /// port to that node, have landed. The last piece may be one of no bytes.
    pub fn notify(mut self, id: impl Into<NotificationId>) -> Self {
        self.how = self.how.signal(id.into());
        self
    }

    /// The pieces land one after the other, in the order in which they were added, and after everything earlier from this port to that
    /// node. If something of that has failed, or a piece of it, and the program has not heard of it, what comes behind it does not land,
    /// unless the write stands alone ([`regardless`](Self::regardless)).
    pub const fn ordered(mut self) -> Self {
        self.how = self.how.in_order();
        self
    }

    /// It stands alone, as [`Write::regardless`](crate::Write::regardless) says.
    pub const fn regardless(mut self) -> Self {
        self.how = self.how.alone();
        self
    }

    /// More follows at once, as [`Write::more`](crate::Write::more) says.
    pub const fn more(mut self) -> Self {
        self.how = self.how.followed();
        self
    }

    /// Hands the write to the card. Returns its number, by which a later [`Error::Failed`] names it. A vector may have any length: where
    /// the queue lacks room for all of it, the call posts what has room, and waits for more. A vector without a byte and without
    /// notification is nothing, but its fence, and its number is 0.
    ///
    /// # Errors
    /// As [`Write::post`](crate::Write::post); [`Error::ForeignPiece`]; [`Error::Empty`] for a notification without a piece.
    pub fn post(self) -> Result<OpId> {
        let (node, posted) = self.place(self.how)?;
        end(&self.port.inner, node, posted, self.how)
    }

    /// As [`post`](Self::post), and never waits: without room for all pieces none is posted. One of more than 64 messages, or of more
    /// bytes than a chunk of staging holds, is refused: post it in parts. (A [fenced](Self::fenced) one waits for its end all the
    /// same.)
    ///
    /// # Errors
    /// As [`post`](Self::post), and [`Error::NoRoom`], [`Error::MessageTooLong`].
    pub fn try_post(mut self) -> Result<OpId> {
        self.how = self.how.now();
        self.post()
    }

    /// As [`try_post`](Self::try_post), with a value that tells of its end: that the source memory of every piece may be used again.
    ///
    /// # Errors
    /// As [`try_post`](Self::try_post).
    pub fn begin(self) -> Result<Pending> {
        let port = &self.port.inner;
        let (node, posted) = self.place(self.how.begun())?;
        Ok(match posted {
            Some(posted) => Pending::write(port, node, posted),
            None => Pending::nothing(port, node),
        })
    }

    /// Checks every piece, and posts them. Nothing: there is none to post.
    fn place(&self, how: How) -> Result<(NodeId, Option<Posted>)> {
        let port = &self.port.inner;
        port.alive()?;
        let node = one_node(port, self.pieces.iter().map(|(remote, ..)| *remote))?;
        let Some(node) = node else {
            if how.notified() {
                let what = "a vector with a notification";
                return Err(Error::Empty { what });
            }
            return Ok((port.node_id(), None));
        };
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for (index, (remote, offset, source)) in self.pieces.iter().enumerate() {
            let signals = how.notified() && index + 1 == self.pieces.len();
            let checked = checked(port, remote, *offset, source, how)?;
            if signals {
                remote.inner().check_notification(how.notification)?;
            }
            if checked.len > 0 || signals {
                pieces.push(checked);
            }
        }
        if pieces.is_empty() {
            return Ok((node, None));
        }
        post(port, &pieces, how).map(|posted| (node, Some(posted)))
    }
}

/// A piece that nothing is wrong with.
struct Checked<'a> {
    command: Command,
    bytes: Bytes<'a>,
    len: u64,
}

impl Checked<'_> {
    /// Whether it goes through staging.
    const fn is_long(&self) -> bool {
        matches!(self.bytes, Bytes::Long(_))
    }
}

/// A piece's bytes.
enum Bytes<'a> {
    /// They fit a descriptor.
    Short([u8; INLINE_BYTES]),
    /// In a region.
    Local(&'a RegionSlice),
    /// The card cannot reach them.
    Long(&'a [u8]),
}

/// Checks a piece. Few bytes are copied now, before any lock is taken, because that may park.
fn checked<'a>(
    port: &PortInner,
    remote: &RemoteSegment,
    offset: u64,
    source: &'a Source<'_>,
    how: How,
) -> Result<Checked<'a>> {
    let remote = remote.inner();
    let len = source.len();
    remote.check()?;
    remote.check_transfer(offset, len, Modes::WRITE)?;
    let bytes = match source {
        Source::Bytes(bytes) if len <= port.inline_limit => short(len, |room| {
            room.copy_from_slice(bytes);
            Ok(())
        })?,
        Source::Bytes(bytes) => Bytes::Long(bytes),
        Source::Part(slice) => of_slice(port, slice)?,
        Source::Slice(slice) => of_slice(port, slice)?,
    };
    Ok(Checked {
        command: how.command(remote, offset),
        bytes,
        len,
    })
}

fn of_slice<'a>(port: &PortInner, slice: &'a RegionSlice) -> Result<Bytes<'a>> {
    if !slice.region().belongs_to(&port.identity) {
        return Err(Error::ForeignRegion);
    }
    if slice.len() > port.inline_limit {
        return Ok(Bytes::Local(slice));
    }
    short(slice.len(), |room| slice.region().read_into(slice.offset(), room))
}

/// Bytes for a descriptor, which `fill` copies.
fn short<'a>(len: u64, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Bytes<'a>> {
    let mut bytes = [0; INLINE_BYTES];
    fill(bytes.get_mut(..len as usize).unwrap_or_default())?;
    Ok(Bytes::Short(bytes))
}

/// Posts pieces in their order: all at once, if their staged bytes fit a chunk; else chunk by chunk.
fn post(port: &PortInner, pieces: &[Checked<'_>], how: How) -> Result<Posted> {
    let long = pieces.iter().filter(|piece| piece.is_long());
    let mut packing = Packing::new(long.map(|piece| (piece.command.remote, piece.len)).collect());
    let mut rest = pieces.iter().peekable();
    let mut part_of = None;
    loop {
        let packed = packing.next_chunk(port.largest_chunk());
        let staged = match &packed {
            Some(packed) => Some(stage(port, packed, packing.bytes(), how)?),
            None => None,
        };
        let batch = batch(&mut rest, packed.as_ref().zip(staged.as_ref()))?;
        let notification = match rest.peek() {
            None => how.notification,
            Some(_) => NotificationId::NONE,
        };
        let posted = port.post_write(&how.plan(&batch, notification, part_of));
        let posted = match staged {
            Some(chunk) => chunk.given(posted)?,
            None => posted?,
        };
        if rest.peek().is_none() {
            return Ok(posted);
        }
        part_of = Some((posted.op, posted.epoch));
    }
}

/// A chunk for what was packed. A call that does not wait needs one for all `bytes` that go through staging.
fn stage<'a>(port: &'a PortInner, packed: &Packed, bytes: u64, how: How) -> Result<Chunk<'a>> {
    if !how.at_once() {
        return port.stage(packed.len, packed.offset);
    }
    let limit = packed.stretches.iter().map(|stretch| stretch.len).sum();
    if limit < bytes {
        return Err(Error::MessageTooLong { len: bytes, limit });
    }
    stage_now(port, packed.len, packed.offset)
}

/// Takes what is posted in one step: pieces up to the first that goes through staging and has no place in the chunk, to which the others'
/// bytes are copied.
fn batch<'b, 'p: 'b>(
    rest: &mut Peekable<Iter<'p, Checked<'p>>>,
    staged: Option<(&Packed, &'b Chunk<'_>)>,
) -> Result<Vec<WritePiece<'b>>> {
    let mut stretches = staged.iter().flat_map(|(packed, _)| &packed.stretches);
    let mut batch = Vec::with_capacity(rest.len());
    while let Some(&piece) = rest.peek() {
        let (payload, from, len) = match (&piece.bytes, staged) {
            (Bytes::Short(bytes), _) => (Payload::Inline(bytes), 0, piece.len),
            (Bytes::Local(slice), _) => (Payload::Local(slice.address(), slice.region()), 0, piece.len),
            (Bytes::Long(bytes), Some((_, chunk))) => {
                let Some(stretch) = stretches.next() else {
                    break;
                };
                let (from, to) = (stretch.from as usize, (stretch.from + stretch.len) as usize);
                let now = bytes.get(from..to).unwrap_or_default();
                chunk.region.write_from(chunk.offset + stretch.at, now)?;
                let local = chunk.address(stretch.at);
                (Payload::Local(local, &chunk.region), stretch.from, stretch.len)
            }
            (Bytes::Long(_), None) => break,
        };
        let remote = VirtAddr(piece.command.remote.0.wrapping_add(from));
        let command = Command {
            remote,
            ..piece.command
        };
        batch.push(WritePiece {
            command,
            payload,
            len,
            staged: piece.is_long(),
        });
        if from + len < piece.len {
            break;
        }
        rest.next();
    }
    Ok(batch)
}
