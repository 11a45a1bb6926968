//! What has been received of a link's messages, landed or not: no message acts twice, and the other card learns what it
//! need not keep.
//!
//! Of requests the window's slots know what has arrived, and [`Sequence`](crate::window::Sequence) where the first one
//! is missing. Answers act when they arrive, so a bit each is enough. A message that comes again does nothing, but it is
//! acknowledged again: its sender may not have heard.

use super::{Links, Peer};
use crate::env::Env;
use crate::inbound::Presence;
use crate::tables::answer_words;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{ANSWERS_PER_SLOT, Receipt, Received};
use netvm_abi::{BounceId, Nanos, NodeId, Seq, Stamp};

/// Answers that arrive between two acknowledgements at most.
const ANSWERS_PER_ACK: u8 = 16;
/// Numbers of which an acknowledgement speaks one by one.
const SAID: u32 = u64::BITS;
/// It speaks of so many past the message that arrived last, where it cannot speak of all.
const PAST_LATEST: i32 = 17;
/// Messages past one that is missing are counted up to here, and then anew.
const EARLY_ROUND: u8 = 128;

/// Of messages that arrive past one that is missing, one in so many is acknowledged at once: each is spoken of at least
/// twice, and in a window often enough.
const fn early_per_ack(window: u32) -> u8 {
    match window / 8 {
        ..=8 => 8,
        few @ ..32 => few as u8,
        _ => SAID as u8 / 2,
    }
}

/// Which answers have been received. The bits stand elsewhere ([`Links::answered_of`]): one for each number that may be
/// out, at its number modulo their count; those before `next` and from `end` on are clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answers {
    next: Seq,
    /// One past the highest number that has been received; `next`, if none is missing.
    end: Seq,
    /// The one that arrived last of those that did not come in order.
    latest: Seq,
}

impl Answers {
    /// Nothing has been received before this number.
    const fn begin(first: Seq) -> Self {
        Self {
            next: first,
            end: first,
            latest: first,
        }
    }

    /// Takes note of a number, of which `most` may be out. Whether it is new; nothing, if no honest card sends it now, or there is no
    /// bit for it. A link at rest has no bits: it takes what comes in order. Only word of failed writes, which are not waited for, can come
    /// otherwise; that is sent again, as if the wire had lost it.
    #[inline]
    fn take(&mut self, number: Seq, most: u32, bits: &mut [u64]) -> Option<bool> {
        if number == self.next && number == self.end {
            self.next = number.plus(1);
            self.end = self.next;
            return Some(true);
        }
        self.take_out_of_order(number, most, bits)
    }

    #[cold]
    fn take_out_of_order(&mut self, number: Seq, most: u32, bits: &mut [u64]) -> Option<bool> {
        let ahead = number.since(self.next);
        if ahead >= most && self.next.since(number) > most {
            return None;
        }
        self.latest = number;
        if ahead >= most {
            return Some(false);
        }
        let (word, bit) = place_of(number, bits)?;
        if *word & bit != 0 {
            return Some(false);
        }
        *word |= bit;
        if ahead >= self.end.since(self.next) {
            self.end = number.plus(1);
        }
        while let Some((word, bit)) = place_of(self.next, bits).filter(|(word, bit)| **word & bit != 0) {
            *word &= !bit;
            self.next = self.next.plus(1);
        }
        Some(true)
    }

    /// Whether one is missing before one that has been received.
    fn misses_some(&self) -> bool {
        self.next != self.end
    }

    /// As it is said in an acknowledgement.
    fn said(&self, bits: &[u64]) -> Received {
        if !self.misses_some() {
            return Received::before(self.next);
        }
        let from = self.next.plus(first_said(self.next, self.end, self.latest));
        let at = from.index() / SAID as usize;
        let word = |at: usize| bits.get(at & (bits.len().wrapping_sub(1))).copied().unwrap_or(0);
        let both = u128::from(word(at)) | u128::from(word(at + 1)) << SAID;
        Received {
            next: self.next,
            from,
            beyond: (both >> (from.0 % SAID)) as u64,
        }
    }
}

/// The bit of a number: as many as there are are a power of two.
fn place_of(number: Seq, bits: &mut [u64]) -> Option<(&mut u64, u64)> {
    let words = bits.len();
    let word = bits.get_mut((number.index() / SAID as usize) & words.checked_sub(1)?)?;
    Some((word, 1 << (number.0 % SAID)))
}

/// How far past `next` the bits of an acknowledgement begin: right behind it, if they reach `end`; else so that they reach
/// some numbers past the one that arrived last.
fn first_said(next: Seq, end: Seq, latest: Seq) -> u32 {
    let known = end.since(next) as i32;
    let reach = known.min((latest.since(next) as i32).saturating_add(PAST_LATEST));
    if known <= SAID as i32 {
        return 1;
    }
    (reach - SAID as i32).max(1) as u32
}

/// The receiving side of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    answers: Answers,
    /// The request that arrived last of those that did not come in order.
    latest: Seq,
    /// Answers since the last acknowledgement.
    unsaid: u8,
    /// The stamp of the frame that arrived last, and when.
    echo: Option<(Stamp, Stamp)>,
    /// Messages that came again.
    repeats: u32,
    /// Messages since the last one that was acknowledged for coming past one that is missing.
    early: u8,
    /// Messages have arrived ahead of all others, past one that is missing, and no acknowledgement has spoken of them. One
    /// that speaks of lower numbers vouches for the time at which these left, and its reader would take them for lost.
    unsaid_ahead: bool,
    /// Something has been received since the last acknowledgement.
    news: bool,
}

impl Arrivals {
    pub(super) const fn new() -> Self {
        Self::begin(Seq(0))
    }

    /// Of a life whose first request, and whose first answer, have this number.
    pub(super) const fn begin(first: Seq) -> Self {
        Self {
            answers: Answers::begin(first),
            latest: first,
            unsaid: 0,
            echo: None,
            unsaid_ahead: false,
            repeats: 0,
            early: 0,
            news: false,
        }
    }

    /// Whether an answer is missing before one that has been received.
    pub(super) fn misses_answers(&self) -> bool {
        self.answers.misses_some()
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
    /// not ended may ask for an answer.
    #[inline]
    pub(crate) fn has_room_for_answer(&self, seq: Seq) -> bool {
        let out = self.resend.answers_out();
        out == 0 || out + self.sequence.ahead_of_lsn(seq) < ANSWERS_PER_SLOT * self.sequence.size()
    }

    /// A request has come again: its sender has not heard that it is here.
    pub(crate) const fn request_repeated(&mut self, seq: Seq) {
        self.arrivals.latest = seq;
        self.repeated();
    }

    /// Whether an acknowledgement now would not speak of what has arrived ahead of all others since the one before.
    #[inline]
    pub(super) fn leaves_some_unsaid(&self) -> bool {
        self.arrivals.unsaid_ahead && !self.speaks_of_end()
    }

    /// Whether an acknowledgement now speaks of the highest numbers that have arrived.
    #[cold]
    fn speaks_of_end(&self) -> bool {
        let ((received, seen), Arrivals { answers, latest, .. }) = (self.sequence.received(), &self.arrivals);
        [
            (received, seen, *latest),
            (answers.next, answers.end, answers.latest),
        ]
        .into_iter()
        .all(|(next, end, latest)| end.since(next) <= first_said(next, end, latest) + SAID)
    }

    /// Has the next acknowledgement speak of the highest numbers. Gives what it would have spoken of.
    pub(super) const fn speaks_of_highest(&mut self) -> [Seq; 2] {
        let arrivals = &mut self.arrivals;
        let before = [arrivals.latest, arrivals.answers.latest];
        (arrivals.latest, arrivals.answers.latest) = (self.sequence.received().1, arrivals.answers.end);
        before
    }

    /// Has the next acknowledgement speak of these, of requests and answers.
    pub(super) const fn speaks_of(&mut self, [requests, answers]: [Seq; 2]) {
        (self.arrivals.latest, self.arrivals.answers.latest) = (requests, answers);
    }

    /// A message has come again.
    const fn repeated(&mut self) {
        self.arrivals.repeats = self.arrivals.repeats.wrapping_add(1);
        self.arrivals.news = true;
    }

    /// A request has arrived past one that is missing, or has filled such a gap: whether its sender is to hear at once.
    /// It is, of the first ones past a gap, of some that follow, and of each that fills one. The very first may have left
    /// too shortly after the missing one to tell that it is lost; one that soon follows has not.
    const fn gap_is_news(&mut self, filled: bool) -> bool {
        let past = self.arrivals.early;
        self.arrivals.early = (past + 1) % EARLY_ROUND;
        let (received, seen) = self.sequence.received();
        if received.0 == seen.0 {
            self.arrivals.early = 0;
        }
        filled || matches!(past, 0 | 3) || past.is_multiple_of(early_per_ack(self.sequence.size()))
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
    pub(crate) fn answer_numbered(
        &mut self,
        env: &Env<S>,
        now: Nanos,
        (id, number): (NodeId, Seq),
        stamp: Stamp,
    ) -> Numbered {
        let words = answer_words(env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return Numbered::Nonsense;
        };
        let at = peer.windows.to.index() * words;
        let bits = self.answered.get_mut(at..at + words).unwrap_or_default();
        let most = words as u32 * u64::BITS;
        match peer.arrivals.answers.take(number, most, bits) {
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
                let gap = arrivals.answers.misses_some();
                arrivals.unsaid_ahead |= gap && arrivals.answers.end == number.plus(1);
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
        presence: impl Fn(BounceId) -> Presence,
    ) -> Receipt {
        let words = answer_words(env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return Receipt::default();
        };
        let at = peer.windows.to.index() * words;
        let bits = self.answered.get(at..at + words).unwrap_or_default();
        let (received, seen) = peer.sequence.received();
        let (mut from, mut beyond, mut ended) = (1, 0, None);
        if received != seen {
            from = first_said(received, seen, peer.arrivals.latest);
            let window = peer.sequence.size();
            for ahead in from..seen.since(received).min(from + SAID).min(window) {
                let slot = peer.sequence.slot_of(received.plus(ahead));
                let presence = presence(env.config.slot_id(peer.windows.from, slot));
                beyond |= u64::from(presence != Presence::Missing) << (ahead - from);
                if presence == Presence::Held && !mutant::is(Mutant::HeldEnded) {
                    ended = ended.or(Some(ahead - from));
                }
            }
        }
        let arrivals = &mut peer.arrivals;
        (arrivals.unsaid, arrivals.news) = (0, false);
        let answers = arrivals.answers.said(bits);
        arrivals.unsaid_ahead = false;
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
            requests: Received {
                next,
                from: received.plus(from),
                beyond,
            },
            ended: ended.unwrap_or(SAID) as u16,
            answers,
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
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return false;
        };
        peer.arrivals.latest = seq;
        // Not only the lowest that was missing: what has left again asks to be heard of.
        let filled = peer.sequence.received().1 != seq.plus(1);
        peer.arrivals.unsaid_ahead |= !filled && peer.lossy;
        for _ in 0..peer.sequence.size() {
            let (received, seen) = peer.sequence.received();
            let at = env
                .config
                .slot_id(peer.windows.from, peer.sequence.slot_of(received));
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
    extern crate std;

    use super::*;
    use netvm_abi::wire::answers;
    use std::vec;

    #[test]
    fn each_answer_is_new_once_in_whatever_order() {
        for window in [64u16, 256, 1024] {
            let most = answers(window);
            for start in [0u32, 5, u32::MAX - 70, u32::MAX] {
                let mut answers = Answers::begin(Seq(start));
                let mut bits = vec![0; answer_words(window)];
                for block in 0..20u32 {
                    for step in 0..most {
                        // All numbers of the block, in a scattered order.
                        let number = Seq(start).plus(block * most + (step * 37 + block) % most);
                        assert_eq!(answers.take(number, most, &mut bits), Some(true), "{number}");
                        assert_eq!(answers.take(number, most, &mut bits), Some(false));
                    }
                    assert_eq!(answers.next, Seq(start).plus((block + 1) * most));
                    assert!(!answers.misses_some());
                    assert!(bits.iter().all(|&word| word == 0));
                    let far = |number: u32| Seq(answers.next.0.wrapping_sub(number));
                    let (next, last, old) = (answers.next, far(1), far(most + 1));
                    assert_eq!(answers.take(next.plus(most), most, &mut bits), None);
                    assert_eq!(answers.take(last, most, &mut bits), Some(false));
                    assert_eq!(answers.take(old, most, &mut bits), None);
                    // Of a link at rest, too.
                    assert_eq!(answers.take(last, most, &mut []), Some(false));
                    assert_eq!(answers.take(old, most, &mut []), None);
                }
            }
        }
    }

    #[test]
    fn what_is_past_a_gap_is_said_by_a_bit_each() {
        let (mut answers, mut bits) = (Answers::begin(Seq(10)), [0; 2]);
        assert_eq!(answers.take(Seq(11), 128, &mut bits), Some(true));
        assert_eq!(answers.take(Seq(13), 128, &mut bits), Some(true));
        let said = |next, from, beyond| Received {
            next: Seq(next),
            from: Seq(from),
            beyond,
        };
        assert_eq!(answers.said(&bits), said(10, 11, 0b101));
        assert_eq!(answers.take(Seq(10), 128, &mut bits), Some(true));
        assert_eq!(answers.said(&bits), said(12, 13, 0b1));
    }

    #[test]
    fn where_not_all_can_be_said_the_latest_is() {
        for start in [0u32, u32::MAX - 100] {
            let first = Seq(start);
            let (mut answers, mut bits) = (Answers::begin(first), [0; 8]);
            for ahead in 1..300 {
                let number = first.plus(ahead);
                assert_eq!(answers.take(number, 512, &mut bits), Some(true));
                let said = answers.said(&bits);
                let (from, known) = (said.from.since(first), ahead.min(SAID));
                assert_eq!(
                    (said.next, from),
                    (first, (ahead + 1).saturating_sub(SAID).max(1))
                );
                let all = u64::MAX >> (SAID - known.min(ahead + 1 - from));
                assert_eq!(said.beyond, all, "{ahead}");
            }
            // One that comes again in the middle is spoken of, with those about it.
            assert_eq!(answers.take(first.plus(100), 512, &mut bits), Some(false));
            let said = answers.said(&bits);
            assert_eq!((said.from, said.beyond), (first.plus(100 + 17 - 64), u64::MAX));
        }
    }

    #[test]
    fn the_bits_reach_all_where_they_can() {
        let at = |end: u32, latest: u32| first_said(Seq(7), Seq(7).plus(end), Seq(7).plus(latest));
        assert_eq!([at(0, 0), at(1, 0), at(64, 3), at(64, 63)], [1; 4]);
        assert_eq!([at(300, 299), at(300, 290), at(300, 100)], [236, 236, 53]);
        assert_eq!(at(300, 2), 1);
        assert_eq!(at(300, u32::MAX), 1, "before the first that is missing");
    }
}
