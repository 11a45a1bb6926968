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

/// Copies of a node at most.
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

    /// It leaves again now: its frame. The other card is to say at once that it has it.
    pub(crate) fn again(&mut self, now: Stamp) -> (&OwnHeader, Payload<'_>) {
        self.sent = now;
        self.times = self.times.saturating_add(1);
        self.header.set_stamp(now);
        if mutant::is(Mutant::OtherMessageAgain) {
            self.header
                .set_notification(NotificationId(self.header.notification().0 ^ 1));
        }
        if self.header.kind().is_windowed() {
            self.header.request_ack();
        }
        let payload = match self.kept {
            Kept::Nothing => Payload::Empty,
            Kept::Words => Payload::Inline(&self.words),
            Kept::Staging(staging) => Payload::Staging(staging),
        };
        (&self.header, payload)
    }

    /// It cannot leave now: its turn comes again.
    pub(crate) const fn later(&mut self, now: Stamp) {
        self.sent = now;
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
            Payload::Staging(staging) => Kept::Staging(staging),
            Payload::Inline(words) => {
                copy_words(&mut copy.words, words, header.payload_len());
                Kept::Words
            }
        };
        (copy.sent, copy.times) = (sent, 0);
        index
    }

    /// The other card has the message, or its link is lost. Gives what has become of it.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u16) -> Option<Released> {
        let free = self.free;
        let copy = self.table.get_mut(usize::from(index))?;
        copy.next_free = free;
        self.free = index;
        self.spare += 1;
        debug_assert!(self.spare <= self.count, "a copy is let go of once");
        Some(Released {
            staging: copy.staging(),
            again: copy.times != 0,
        })
    }

    #[inline]
    pub(super) fn get(&self, index: u16) -> Option<&Copy> {
        self.table.get(usize::from(index))
    }

    pub(super) fn get_mut(&mut self, index: u16) -> Option<&mut Copy> {
        self.table.get_mut(usize::from(index))
    }
}

/// A copy that is not needed any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    /// The staging buffer that had its payload.
    pub(super) staging: Option<StagingId>,
    /// It had left more than once.
    pub(super) again: bool,
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
