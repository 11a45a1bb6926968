//! What an acknowledgement says has been *received*: what its sender holds, landed or not.
//!
//! A card keeps a copy of each message that it sends over a wire that may lose it, until the other card says that it has
//! the message. Two kinds of messages are numbered apart: *requests* take slots of the receiver's window, and their
//! number is the header's; *answers* take none, and have a number of their own ([`MessageFlags::NUMBERED`]). What has
//! *landed* is another matter: the header of an acknowledgement says so by its sequence number, and that gives credits.
//!
//! An acknowledgement has no use for most fields of a header. The table of `docs/ABI.md`, chapter 12, says which of them
//! a receipt takes; this file is the one place that knows.

use crate::raw_header::RawHeader;
use crate::units::{CapabilitySlot, Epoch, NotificationId, OpId, Seq, Stamp, VirtAddr};
use crate::wire::{HEADER_WORDS, Header, Kind, MessageFlags};
use crate::words::join;
use core::borrow::Borrow;

/// Answers of one direction of a link that may be on their way at once, for each slot of the window: what left in the round
/// trip in which a lost one is found missing fills one window, and what was asked for before that the other.
pub const ANSWERS_PER_SLOT: u32 = 2;

/// Answers of one direction of a link that may be on their way at once.
#[must_use]
#[inline]
pub const fn answers(window: u16) -> u32 {
    ANSWERS_PER_SLOT * window as u32
}

/// What has been received of messages that are numbered one by one.
///
/// A window may be larger than the bits that an acknowledgement has. So they begin where the receiver says: it speaks of
/// what has arrived last, and each message that arrives past a gap is spoken of more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Received {
    /// The lowest number that is missing.
    pub next: Seq,
    /// The number of bit 0 in `beyond`, past `next`.
    pub from: Seq,
    /// Bit i: the number `from + i` has been received. A bit that is not set says nothing.
    pub beyond: u64,
}

impl Received {
    /// All before `next` has been received, and nothing past it.
    #[must_use]
    pub const fn before(next: Seq) -> Self {
        Self {
            next,
            from: next.plus(1),
            beyond: 0,
        }
    }
}

/// What an acknowledgement says beyond its sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Requests received.
    pub requests: Received,
    /// Of the numbers from [`requests.from`](Received::from) on so many: those that have been received have ended, too. They
    /// have landed, or failed.
    pub ended: u16,
    /// Numbered answers received.
    pub answers: Received,
    /// The stamp of the frame that arrived last, repeated.
    pub echo: Stamp,
    /// How long ago that was, in ticks of a [`Stamp`]; [`NO_ECHO`](Self::NO_ECHO): there is none to repeat.
    pub held: u32,
    /// Frames of this life of the link that arrived although their message had been received, modulo 2^32.
    pub repeats: u32,
}

impl Receipt {
    /// The requests past one that is missing of which it says that they have ended.
    pub fn ended_beyond(&self) -> impl Iterator<Item = Seq> {
        let Received { from, beyond, .. } = self.requests;
        let others = u64::BITS.saturating_sub(u32::from(self.ended));
        // Nearly every acknowledgement has no bit at all.
        let mut bits = beyond & u64::MAX.checked_shr(others).unwrap_or(0);
        core::iter::from_fn(move || {
            let bit = bits.trailing_zeros();
            bits &= bits.checked_sub(1)?;
            Some(from.plus(bit))
        })
    }

    /// In [`held`](Self::held): no frame of this life has arrived yet.
    pub const NO_ECHO: u32 = u32::MAX;
}

impl Header {
    /// Makes an acknowledgement say what has been received.
    pub const fn set_receipt(&mut self, receipt: &Receipt) {
        self.notification = NotificationId(receipt.requests.next.0);
        self.epoch = Epoch(receipt.ended);
        self.address = VirtAddr(receipt.requests.beyond);
        self.capability = CapabilitySlot(receipt.answers.next.0);
        self.raw.operand = receipt.answers.beyond;
        self.raw.compare = join(receipt.requests.from.0, receipt.answers.from.0);
        self.op = OpId(receipt.echo.0);
        self.secret = join(receipt.held, receipt.repeats);
    }
}

impl<W: Borrow<[u32; HEADER_WORDS]>> RawHeader<W> {
    /// What an acknowledgement says has been received.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        let secret = self.secret();
        let [requests_from, answers_from] = self.received_from();
        Receipt {
            requests: Received {
                next: Seq(self.notification().0),
                from: requests_from,
                beyond: self.address().0,
            },
            ended: self.epoch().0,
            answers: Received {
                next: Seq(self.capability().0),
                from: answers_from,
                beyond: self.answers_beyond(),
            },
            echo: Stamp(self.op().0),
            held: secret as u32,
            repeats: (secret >> 32) as u32,
        }
    }

    /// The number of an answer, if it has one.
    #[must_use]
    #[inline]
    pub fn answer_number(&self) -> Option<Seq> {
        let answers = !self.kind().is_windowed() && self.kind() != Kind::Ack;
        let numbered = answers && self.flags().contains(MessageFlags::NUMBERED);
        numbered.then(|| Seq(self.capability().0))
    }
}

impl RawHeader<[u32; HEADER_WORDS]> {
    /// Gives an answer its number.
    #[inline]
    pub fn number_answer(&mut self, number: Seq) {
        debug_assert!(!self.kind().is_windowed() && self.kind() != Kind::Ack);
        self.add_flags(MessageFlags::NUMBERED);
        self.set_word_of_answer(number.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_header::OwnHeader;
    use crate::units::{NodeId, PortId};
    use crate::wire::Body;

    #[test]
    fn a_receipt_comes_back_as_it_was_written() {
        let receipt = Receipt {
            requests: Received {
                next: Seq(u32::MAX),
                from: Seq(3),
                beyond: 0x8000_0000_0000_0005,
            },
            ended: 0xBEEF,
            answers: Received {
                next: Seq(7),
                from: Seq(0xFFFF_0000),
                beyond: 3,
            },
            echo: Stamp(0xDEAD_BEEF),
            held: 12,
            repeats: 0xFFFF_FFFE,
        };
        let mut ack = Header::of(Body::Ack, NodeId(3), NodeId(9));
        (ack.seq, ack.source_port) = (Seq(41), PortId(0));
        ack.set_receipt(&receipt);
        let words = ack.encode_words();
        let raw = RawHeader::of(&words).expect("an acknowledgement");
        assert_eq!((raw.receipt(), raw.seq()), (receipt, Seq(41)));
        assert_eq!(raw.answer_number(), None);
    }

    #[test]
    fn what_has_ended_is_received_and_among_the_first_bits() {
        let ended = |ended, beyond| {
            let requests = Received {
                next: Seq(u32::MAX - 2),
                from: Seq(u32::MAX),
                beyond,
            };
            let receipt = Receipt {
                requests,
                ended,
                ..Receipt::default()
            };
            receipt.ended_beyond().count()
        };
        for count in [0u16, 1, 5, 63, 64, 65, u16::MAX] {
            assert_eq!(ended(count, u64::MAX), usize::from(count.min(64)), "{count}");
            assert_eq!(ended(count, 0), 0);
        }
        assert_eq!(
            [0, 3, 4, 64].map(|count| ended(count, 1 << 3 | 1 << 63)),
            [0, 0, 1, 2]
        );
    }

    #[test]
    fn an_answer_has_a_number_only_if_it_says_so() {
        let body = Body::Error {
            status: crate::Status::BusError,
            owner: crate::wire::Owner::default(),
        };
        let mut answer = OwnHeader::new(&Header::of(body, NodeId(0), NodeId(1)));
        assert_eq!(answer.answer_number(), None);
        answer.number_answer(Seq(0));
        assert_eq!(answer.answer_number(), Some(Seq(0)));
        let words = *answer.words();
        assert_eq!(
            RawHeader::of(&words).expect("a header").answer_number(),
            Some(Seq(0))
        );
    }
}
