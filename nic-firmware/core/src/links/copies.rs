//! Copies of messages that have left, until the other card has them.
//!
//! Only the wire can lose a message, and only its sender can send it again: what it took from a page may have changed
//! there since, and the command is gone from its queue. So a copy is what left, byte for byte: the header and, where
//! the payload stood in a descriptor, the payload. A payload that was staged stays in its staging buffer.
//!
//! The copies are one pool for all links. A request reserves its copy together with its credit, so a message that may
//! leave always has one. An answer takes one that is not reserved; where there is none it leaves without, and its loss
//! ends the link as it would have before there were copies.

use crate::platform::Payload;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, OwnHeader};
use netvm_abi::{NodeId, NotificationId, StagingId, Stamp};

/// Copies of a node at most, or two windows if these are more.
pub(crate) const COPIES: usize = 1024;

/// No copy.
pub(crate) const NONE: u16 = u16::MAX;

/// What a message is numbered among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Messages that take a slot of the receiver's window.
    Requests,
    /// Answers to them.
    Answers,
}

/// The payload of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Nothing,
    Words,
    Staging(StagingId),
}

/// A copy.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    header: OwnHeader,
    words: [u32; INLINE_BYTES / 4],
    kept: Kept,
    /// When it last left.
    sent: Stamp,
    /// How often it has left again.
    times: u8,
    /// It stands in its link's [`Line`], between these.
    lined: bool,
    before: u16,
    after: u16,
    next_free: u16,
}

impl Copy {
    /// None.
    pub(crate) const FREE: Self = Self {
        header: OwnHeader::new(&Header::new(Kind::Write, NodeId(0), NodeId(0))),
        words: [0; INLINE_BYTES / 4],
        kept: Kept::Nothing,
        sent: Stamp(0),
        times: 0,
        lined: false,
        before: NONE,
        after: NONE,
        next_free: NONE,
    };

    /// When it last left.
    pub(crate) const fn sent(&self) -> Stamp {
        self.sent
    }

    /// How often it has left again.
    pub(crate) const fn times(&self) -> u8 {
        self.times
    }

    /// Whether it asks the other card to say at once that it has it: a request that has left again does.
    pub(crate) fn asks(&self) -> bool {
        self.times != 0 && self.header.kind().is_windowed()
    }

    /// The staging buffer that has its payload.
    pub(crate) const fn staging(&self) -> Option<StagingId> {
        match self.kept {
            Kept::Staging(staging) => Some(staging),
            Kept::Nothing | Kept::Words => None,
        }
    }

    /// Whether it stands in its link's [`Line`].
    pub(super) const fn is_lined(&self) -> bool {
        self.lined
    }

    /// The one behind it in the line.
    pub(super) const fn after(&self) -> u16 {
        self.after
    }

    /// It leaves again now. The other card is to say at once that it has it.
    fn leaves_again(&mut self, now: Stamp) {
        self.times = self.times.saturating_add(1);
        self.header.set_stamp(now);
        if mutant::is(Mutant::OtherMessageAgain) {
            self.header
                .set_notification(NotificationId(self.header.notification().0 ^ 1));
        }
        if self.header.kind().is_windowed() {
            self.header.request_ack();
        }
    }

    /// Its frame.
    pub(crate) fn frame(&self) -> (&OwnHeader, Payload<'_>) {
        let payload = match self.kept {
            Kept::Nothing => Payload::Empty,
            Kept::Words => Payload::Inline(&self.words),
            Kept::Staging(staging) => Payload::Kept(staging),
        };
        (&self.header, payload)
    }
}

/// Copies of one link that have left again, or could not, by the time of that: the first has waited longest.
///
/// What has left once needs no line: its numbers are in the order of time already. So a message that is not lost costs
/// nothing here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    first: u16,
    last: u16,
}

impl Line {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    /// Where it begins, if it is not empty.
    pub(super) const fn first(&self) -> u16 {
        self.first
    }

    /// Where it ends, if it is not empty.
    pub(super) const fn last(&self) -> u16 {
        self.last
    }
}

/// All copies.
pub(crate) struct Copies<S: Storage> {
    table: S::Table<Copy>,
    /// The first free one; the others follow.
    free: u16,
    /// Free ones that no message has reserved.
    spare: u32,
    count: u32,
}

impl<S: Storage> Copies<S> {
    pub(crate) fn new(mut table: S::Table<Copy>) -> Self {
        let count = table.len() as u32;
        for (index, copy) in table.iter_mut().enumerate() {
            let next = index as u32 + 1;
            copy.next_free = if next < count { next as u16 } else { NONE };
        }
        Self {
            table,
            free: if count == 0 { NONE } else { 0 },
            spare: count,
            count,
        }
    }

    /// Copies that are taken or reserved.
    pub(crate) const fn held(&self) -> u32 {
        self.count - self.spare
    }

    /// Reserves one; false when there is none.
    #[inline]
    pub(super) const fn reserve(&mut self) -> bool {
        if self.spare == 0 {
            return false;
        }
        self.spare -= 1;
        true
    }

    /// Gives back what was reserved.
    pub(super) const fn unreserve(&mut self, count: u32) {
        self.spare += count;
        debug_assert!(self.spare <= self.count, "what was reserved is given back once");
    }

    /// Makes a copy, for which one has been reserved.
    #[inline(always)]
    pub(super) fn keep(&mut self, sent: Stamp, header: &OwnHeader, payload: Payload<'_>) -> u16 {
        let index = self.free;
        let Some(copy) = self.table.get_mut(usize::from(index)) else {
            return NONE;
        };
        self.free = copy.next_free;
        copy.header = *header;
        copy.kept = match payload {
            Payload::Empty => Kept::Nothing,
            Payload::Staging(staging) | Payload::Kept(staging) => Kept::Staging(staging),
            Payload::Inline(words) => {
                copy_words(&mut copy.words, words, header.payload_len());
                Kept::Words
            }
        };
        (copy.sent, copy.times) = (sent, 0);
        index
    }

    /// The other card has the message, or its link is lost. Gives the staging buffer that had its payload; nothing, if
    /// there is no such copy. `line` is its link's.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u16, line: &mut Line) -> Option<Option<StagingId>> {
        if self.get(index)?.lined {
            self.step_out(index, line);
        }
        let free = self.free;
        let copy = self.table.get_mut(usize::from(index))?;
        copy.next_free = free;
        self.free = index;
        self.spare += 1;
        debug_assert!(self.spare <= self.count, "a copy is let go of once");
        Some(copy.staging())
    }

    /// A message leaves again: it stands at the end of its link's line.
    pub(super) fn leave_again(&mut self, index: u16, line: &mut Line, now: Stamp) {
        self.line_up(index, line, now);
        if let Some(copy) = self.table.get_mut(usize::from(index)) {
            copy.leaves_again(now);
        }
    }

    /// Of the times that a message has left again, so many count at most.
    #[cold]
    pub(super) fn counts_at_most(&mut self, index: u16, times: u8) {
        if let Some(copy) = self.table.get_mut(usize::from(index)) {
            copy.times = copy.times.min(times);
        }
    }

    /// A message cannot leave now: its turn comes again, at the end of the line.
    #[cold]
    pub(super) fn line_up(&mut self, index: u16, line: &mut Line, now: Stamp) {
        self.step_out(index, line);
        let Some(copy) = self.table.get_mut(usize::from(index)) else {
            return;
        };
        (copy.sent, copy.lined) = (now, true);
        (copy.before, copy.after) = (line.last, NONE);
        match self.table.get_mut(usize::from(line.last)) {
            Some(last) => last.after = index,
            None => line.first = index,
        }
        line.last = index;
    }

    /// Takes a copy out of its link's line, if it stands there.
    #[cold]
    fn step_out(&mut self, index: u16, line: &mut Line) {
        let Some(copy) = self.table.get_mut(usize::from(index)).filter(|copy| copy.lined) else {
            return;
        };
        copy.lined = false;
        let (before, after) = (copy.before, copy.after);
        match self.table.get_mut(usize::from(before)) {
            Some(copy) => copy.after = after,
            None => line.first = after,
        }
        match self.table.get_mut(usize::from(after)) {
            Some(copy) => copy.before = before,
            None => line.last = before,
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u16) -> Option<&Copy> {
        self.table.get(usize::from(index))
    }
}

/// Copies the payload of a descriptor: nearly always two words at most.
#[inline(always)]
fn copy_words(to: &mut [u32; INLINE_BYTES / 4], from: &[u32], len: u16) {
    if len <= 8
        && let ([first, second, ..], [one, two, ..]) = (&mut *to, from)
    {
        (*first, *second) = (*one, *two);
        return;
    }
    for (to, from) in to.iter_mut().zip(from).take(usize::from(len).div_ceil(4)) {
        *to = *from;
    }
}
