//! What has been received of a link's messages, landed or not: no message acts twice, and the other card learns what it
//! need not keep.
//!
//! Of requests the window's slots know what has arrived, and [`Sequence`](crate::window::Sequence) where the first one
//! is missing. Answers act when they arrive, so a bit each is enough. A message that comes again does nothing, but it is
//! acknowledged again: its sender may not have heard.

use super::{Links, Peer};
use crate::env::Env;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{ANSWERS, Receipt, Received};
use netvm_abi::{BounceId, Nanos, NodeId, Seq, Stamp};

/// Answers that arrive between two acknowledgements at most.
const ANSWERS_PER_ACK: u8 = ANSWERS as u8 / 8;
/// Of messages that arrive past one that is missing, one in so many is acknowledged at once.
const EARLY_PER_ACK: u8 = 8;

/// Which answers have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answers {
    next: Seq,
    /// Bit i: `next + i`; the lowest is clear.
    seen: u128,
}

impl Answers {
    /// Takes note of a number. Whether it is new; nothing, if no honest card sends it now.
    fn take(&mut self, number: Seq) -> Option<bool> {
        let ahead = number.since(self.next);
        if ahead >= ANSWERS {
            return (self.next.since(number) <= ANSWERS).then_some(false);
        }
        if self.seen >> ahead & 1 != 0 {
            return Some(false);
        }
        self.seen |= 1 << ahead;
        let passed = self.seen.trailing_ones();
        self.seen = self.seen.checked_shr(passed).unwrap_or(0);
        self.next = self.next.plus(passed);
        Some(true)
    }

    /// As it is said in an acknowledgement: of the first ones past the gap.
    const fn said(&self) -> Received {
        Received {
            next: self.next,
            beyond: (self.seen >> 1) as u64,
        }
    }
}

/// The receiving side of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    answers: Answers,
    /// Answers since the last acknowledgement.
    unsaid: u8,
    /// The stamp of the frame that arrived last, and when.
    echo: Option<(Stamp, Stamp)>,
    /// Messages that came again.
    repeats: u32,
    /// Messages since the last one that was acknowledged for coming past one that is missing.
    early: u8,
    /// Something has been received since the last acknowledgement.
    news: bool,
}

impl Arrivals {
    pub(super) const fn new() -> Self {
        Self::begin(Seq(0))
    }

    /// Of a life whose first answer has this number.
    pub(super) const fn begin(first: Seq) -> Self {
        Self {
            answers: Answers { next: first, seen: 0 },
            unsaid: 0,
            echo: None,
            repeats: 0,
            early: 0,
            news: false,
        }
    }

    /// Whether something has been received since the last acknowledgement.
    pub(super) const fn has_news(&self) -> bool {
        self.news
    }
}

impl Peer {
    /// A frame of this life has arrived that its sender keeps, or that asks for an acknowledgement.
    #[inline]
    pub(crate) const fn stamped(&mut self, now: Nanos, stamp: Stamp) {
        self.arrivals.echo = Some((stamp, Stamp::of(now)));
        self.arrivals.news = true;
    }

    /// Whether the answer to a request that has just come would find a number. If not, it is as if the wire had lost the
    /// request: it comes again, when the other card has said what it has of the answers before. Each request that has
    /// not ended may ask for an answer, a window of the usual size at most.
    #[inline]
    pub(crate) fn has_room_for_answer(&self, seq: Seq) -> bool {
        let out = self.resend.answers_out();
        out == 0 || out + (self.sequence.ahead_of_lsn(seq) + 1).min(ANSWERS / 2) <= ANSWERS
    }

    /// A message has come again.
    pub(crate) const fn repeated(&mut self) {
        self.arrivals.repeats = self.arrivals.repeats.wrapping_add(1);
        self.arrivals.news = true;
    }

    /// A request has arrived past one that is missing, or has filled such a gap: whether its sender is to hear at once.
    /// It is, of the first one past a gap, of some that follow, and of each that fills one.
    const fn gap_is_news(&mut self, filled: bool) -> bool {
        let first = self.arrivals.early == 0;
        self.arrivals.early = (self.arrivals.early + 1) % EARLY_PER_ACK;
        let (received, seen) = self.sequence.received();
        if received.0 == seen.0 {
            self.arrivals.early = 0;
        }
        first || filled
    }
}

/// What is to be done with a numbered answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// It is new.
    New {
        /// It is to be acknowledged now; else later.
        acknowledge: bool,
    },
    /// It has been here: it is to be acknowledged again.
    Again,
    /// No honest card sends it now.
    Nonsense,
}

impl<S: Storage> Links<S> {
    /// A numbered answer has arrived in the present life of its link.
    pub(crate) fn answer_numbered(&mut self, now: Nanos, id: NodeId, number: Seq, stamp: Stamp) -> Numbered {
        let Some(peer) = self.get_mut(id) else {
            return Numbered::Nonsense;
        };
        match peer.arrivals.answers.take(number) {
            None => Numbered::Nonsense,
            Some(false) => {
                peer.stamped(now, stamp);
                peer.repeated();
                Numbered::Again
            }
            Some(true) => {
                peer.stamped(now, stamp);
                let arrivals = &mut peer.arrivals;
                arrivals.unsaid += 1;
                let gap = arrivals.answers.seen != 0;
                Numbered::New {
                    acknowledge: gap || arrivals.unsaid >= ANSWERS_PER_ACK,
                }
            }
        }
    }

    /// What an acknowledgement says of what has been received.
    pub(super) fn receipt(
        &mut self,
        env: &Env<S>,
        id: NodeId,
        has_arrived: impl Fn(BounceId) -> bool,
    ) -> Receipt {
        let window = u32::from(env.config.geometry.window);
        let Some(peer) = self.get_mut(id) else {
            return Receipt::default();
        };
        let (received, seen) = peer.sequence.received();
        let mut beyond = 0;
        for ahead in 1..seen.since(received).min(65).min(window) {
            let number = received.plus(ahead);
            let arrived = has_arrived(env.config.slot_id(id, (number.0 & (window - 1)) as u16));
            beyond |= u64::from(arrived) << (ahead - 1);
        }
        let arrivals = &mut peer.arrivals;
        (arrivals.unsaid, arrivals.news) = (0, false);
        let (echo, held) = match arrivals.echo {
            Some((stamp, at)) => (stamp, Stamp::of(env.now).since(at)),
            None => (Stamp(0), Receipt::NO_ECHO),
        };
        let next = if mutant::is(Mutant::GapReceived) {
            seen
        } else {
            received
        };
        Receipt {
            requests: Received { next, beyond },
            answers: arrivals.answers.said(),
            echo,
            held,
            repeats: arrivals.repeats,
        }
    }

    /// A request has arrived, with this number, and another one is missing before the last that is known of;
    /// `has_arrived` knows of each. Whether their sender is to hear of it at once.
    #[cold]
    pub(crate) fn out_of_order(
        &mut self,
        env: &Env<S>,
        id: NodeId,
        seq: Seq,
        has_arrived: impl Fn(BounceId) -> bool,
    ) -> bool {
        let window = u32::from(env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return false;
        };
        // Not only the lowest that was missing: what has left again asks to be heard of.
        let filled = peer.sequence.received().1 != seq.plus(1);
        for _ in 0..window {
            let (received, seen) = peer.sequence.received();
            let at = env.config.slot_id(id, (received.0 & (window - 1)) as u16);
            if received == seen || !has_arrived(at) {
                break;
            }
            peer.sequence.receive_next();
        }
        // What closes the last gap is said when it has landed, as its sender asks: an acknowledgement now would let go of
        // all copies, and if the one with the credits were lost then, nothing would be left to send again and ask.
        let (received, seen) = peer.sequence.received();
        peer.lossy && peer.gap_is_news(filled) && received != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_new_once_in_whatever_order() {
        for start in [0u32, 5, u32::MAX - 70, u32::MAX] {
            let mut answers = Answers {
                next: Seq(start),
                seen: 0,
            };
            for block in 0..20u32 {
                for step in 0..ANSWERS {
                    // All numbers of the block, in a scattered order.
                    let number = Seq(start).plus(block * ANSWERS + (step * 37 + block) % ANSWERS);
                    assert_eq!(answers.take(number), Some(true), "{number}");
                    assert_eq!(answers.take(number), Some(false));
                }
                assert_eq!(answers.next, Seq(start).plus((block + 1) * ANSWERS));
                assert_eq!(answers.said().beyond, 0);
                assert_eq!(answers.take(answers.next.plus(ANSWERS)), None);
                assert_eq!(answers.take(Seq(answers.next.0.wrapping_sub(1))), Some(false));
                assert_eq!(answers.take(Seq(answers.next.0.wrapping_sub(ANSWERS + 1))), None);
            }
        }
    }

    #[test]
    fn what_is_past_a_gap_is_said_by_a_bit_each() {
        let mut answers = Answers {
            next: Seq(10),
            seen: 0,
        };
        assert_eq!(answers.take(Seq(11)), Some(true));
        assert_eq!(answers.take(Seq(13)), Some(true));
        let said = answers.said();
        assert_eq!((said.next, said.beyond), (Seq(10), 0b101));
        assert_eq!(answers.take(Seq(10)), Some(true));
        let said = answers.said();
        assert_eq!((said.next, said.beyond), (Seq(12), 0b1));
    }
}
