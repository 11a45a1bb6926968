//! Sequence window and credits (thesis 6.2.1, 6.2.3): two small pure types.
//!
//! A sequence number is at once a slot of the receiver's window and a credit for one of its bounce
//! pages. The sender may have `size` of them outstanding; the receiver's lowest missing number
//! (LSN), acknowledged by halves, gives them back. All arithmetic is modulo 2^32, and `size` is a
//! power of two, so slots go on evenly across the wrap.

use netvm_abi::Seq;

/// The sender's side: which numbers are out, and how many more may go.
#[derive(Clone, Copy, Debug)]
pub struct Credits {
    size: u32,
    /// Most messages of one port.
    share: u16,
    /// The bits of a number that say where in a quarter it stands.
    quarter: u16,
    next: Seq,
    acked: Seq,
    reserved: u16,
}

impl Credits {
    /// A window of `size` whose first number is `first`.
    #[must_use]
    pub const fn new(size: u16, first: Seq) -> Self {
        Self {
            size: size as u32,
            share: size / 2,
            quarter: size / 4 - 1,
            next: first,
            acked: first,
            reserved: 0,
        }
    }

    /// Its size in messages.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// No message gets a credit any more, until the window [opens](Self::open).
    pub(crate) const fn close(&mut self) {
        self.share = 0;
    }

    /// Whether none gets a credit.
    #[inline]
    pub(crate) const fn is_closed(&self) -> bool {
        self.share == 0
    }

    /// Messages get credits.
    pub(crate) const fn open(&mut self) {
        self.share = (self.size / 2) as u16;
    }

    /// How many messages of one port may be outstanding: a half of the window.
    #[must_use]
    #[inline]
    pub const fn share(&self) -> u16 {
        self.share
    }

    /// So many messages may be on the wire at once: what ends a half of them is acknowledged soon, too.
    pub(crate) const fn fits_wire(&mut self, messages: u32) {
        let (quarter, half) = (self.size / 4, messages / 2);
        // The power of two that is nearest: of 48 to 95 messages, 64.
        let half = half + half / 3;
        let run = if half < quarter { half } else { quarter };
        self.quarter = match run.checked_ilog2() {
            Some(bits) => (1 << bits) - 1,
            None => 0,
        };
    }

    /// Whether a number is the last one of a quarter of the window, or of a half of what the wire has room for.
    #[must_use]
    #[inline]
    pub const fn ends_a_quarter(&self, number: Seq) -> bool {
        number.plus(1).0 as u16 & self.quarter == 0
    }

    /// The next number to be given out.
    #[must_use]
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// The lowest number that is not acknowledged.
    #[must_use]
    pub const fn acked(&self) -> Seq {
        self.acked
    }

    /// Numbers given out and not acknowledged.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.next.since(self.acked)
    }

    /// Numbers that may be given out, each reserved for a message that has not left.
    #[must_use]
    pub const fn reserved(&self) -> u32 {
        self.reserved as u32
    }

    /// Credits not taken.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.size - self.in_flight() - self.reserved as u32
    }

    /// Reserves a credit; false when there is none.
    pub const fn reserve(&mut self) -> bool {
        if self.free() == 0 {
            return false;
        }
        self.reserved += 1;
        true
    }

    /// Takes a credit for a message that leaves at once: the next number.
    #[inline]
    pub const fn take(&mut self) -> Option<Seq> {
        if self.free() == 0 {
            return None;
        }
        let seq = self.next;
        self.next = seq.plus(1);
        Some(seq)
    }

    /// Gives a reserved credit back.
    pub const fn unreserve(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Turns a reserved credit into the next number.
    pub const fn assign(&mut self) -> Seq {
        let seq = self.next;
        self.reserved = self.reserved.saturating_sub(1);
        self.next = self.next.plus(1);
        seq
    }

    /// The receiver lacks `lsn` and nothing before it. Returns how many numbers that frees, or
    /// nothing when no honest receiver says so.
    pub const fn acknowledge(&mut self, lsn: Seq) -> Option<u32> {
        let freed = lsn.since(self.acked);
        if freed <= self.in_flight() {
            self.acked = lsn;
            Some(freed)
        } else if self.acked.since(lsn) <= self.size {
            // An acknowledgement that a later one has overtaken.
            Some(0)
        } else {
            None
        }
    }
}

/// Where a received number falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into this slot of the window.
    Slot(u16),
    /// Before the window: it has been here.
    Before,
    /// Past the window: the sender had no credit for it.
    Beyond,
}

/// The receiver's side: what is missing, and what has been said about it.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    size: u32,
    lsn: Seq,
    /// The lowest number that has not arrived: not before the LSN, nor past `seen`.
    received: Seq,
    /// One past the highest number that has arrived or been announced.
    seen: Seq,
    /// What the last acknowledgement said.
    acked: Seq,
    /// Acknowledge when the LSN passes this number.
    wanted: Seq,
    wants: bool,
}

impl Sequence {
    /// A window of `size` that waits for `first`.
    #[must_use]
    pub const fn new(size: u16, first: Seq) -> Self {
        Self {
            size: size as u32,
            lsn: first,
            received: first,
            seen: first,
            acked: first,
            wanted: first,
            wants: false,
        }
    }

    /// Its size in messages.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The lowest number missing.
    #[must_use]
    pub const fn lsn(&self) -> Seq {
        self.lsn
    }

    /// Slot of a number: the size, of the link's window and not of this end's, is a power of two.
    #[inline]
    pub(crate) const fn slot_of(&self, seq: Seq) -> u16 {
        (seq.0 & (self.size - 1)) as u16
    }

    /// Slot of the lowest number missing.
    #[must_use]
    pub const fn lsn_slot(&self) -> u16 {
        self.slot_of(self.lsn)
    }

    /// Where `seq` falls.
    #[must_use]
    #[inline]
    pub const fn place(&self, seq: Seq) -> Place {
        if seq.since(self.lsn) < self.size {
            Place::Slot(self.slot_of(seq))
        } else if self.lsn.since(seq) <= self.size {
            Place::Before
        } else {
            Place::Beyond
        }
    }

    /// A message inside the window has arrived.
    #[inline]
    pub const fn arrived(&mut self, seq: Seq, wants_ack: bool) {
        if seq.since(self.lsn) >= self.seen.since(self.lsn) {
            self.seen = seq.plus(1);
        }
        self.received.0 = self.received.0.wrapping_add((seq.0 == self.received.0) as u32);
        if wants_ack && (!self.wants || seq.since(self.lsn) > self.wanted.since(self.lsn)) {
            self.wants = true;
            self.wanted = seq;
        }
    }

    /// The lowest number that has not arrived, and one past the highest that is known of: the same, unless one is missing.
    #[must_use]
    #[inline]
    pub const fn received(&self) -> (Seq, Seq) {
        (self.received, self.seen)
    }

    /// How far a number, and all that is known of, reach past the LSN.
    #[inline]
    pub(crate) fn ahead_of_lsn(&self, seq: Seq) -> u32 {
        seq.since(self.lsn).max(self.past_lsn())
    }

    /// The lowest number that was missing has arrived before.
    pub const fn receive_next(&mut self) {
        self.received = self.received.plus(1);
    }

    /// The sender has sent everything before `next`, whether it has arrived or not.
    pub const fn announced(&mut self, next: Seq) {
        let ahead = next.since(self.lsn);
        if ahead <= self.size && ahead > self.seen.since(self.lsn) {
            self.seen = next;
        }
    }

    /// The message at the LSN is done with.
    #[inline]
    pub const fn advance(&mut self) {
        self.lsn = self.lsn.plus(1);
    }

    /// Whether something past the LSN has arrived, or has been sent.
    #[must_use]
    pub const fn anything_past_lsn(&self) -> bool {
        self.seen.since(self.lsn) != 0 && self.seen.since(self.lsn) <= self.size
    }

    /// Numbers behind the LSN of which something has been heard: that they have arrived, or that they have been sent.
    #[must_use]
    pub const fn past_lsn(&self) -> u32 {
        if self.anything_past_lsn() {
            self.seen.since(self.lsn) - 1
        } else {
            0
        }
    }

    /// Whether an acknowledgement is due: the LSN is in another half than at the last one, or has
    /// passed a number for which the sender asked.
    #[must_use]
    #[inline]
    pub const fn ack_due(&self) -> bool {
        // A bit from that of the half upward differs: so does the number of the half.
        let crossed = (self.lsn.0 ^ self.acked.0) >= self.size / 2;
        crossed || (self.wants && self.lsn.since(self.wanted).wrapping_sub(1) < self.size)
    }

    /// Whether there is anything new to acknowledge.
    #[must_use]
    pub const fn ack_useful(&self) -> bool {
        self.lsn.0 != self.acked.0
    }

    /// An acknowledgement of the LSN has been sent.
    pub const fn acknowledged(&mut self) {
        if self.wants && self.lsn.since(self.wanted).wrapping_sub(1) < self.size {
            self.wants = false;
        }
        self.acked = self.lsn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTS: [u32; 6] = [0, 1, 31, u32::MAX - 200, u32::MAX - 1, u32::MAX];

    #[test]
    fn credits_never_exceed_the_window_and_survive_the_wrap() {
        for size in [64u16, 128, 1024] {
            for start in STARTS {
                let mut credits = Credits::new(size, Seq(start));
                let mut lsn = Seq(start);
                let mut expected = Seq(start);
                for round in 0..5 * u32::from(size) {
                    while credits.reserve() {}
                    assert_eq!(credits.free(), 0);
                    assert_eq!(credits.in_flight() + credits.reserved(), u32::from(size));
                    let send = (round % u32::from(size)).min(credits.reserved());
                    for _ in 0..send {
                        assert_eq!(credits.assign(), expected);
                        expected = expected.plus(1);
                    }
                    let take = credits.in_flight() / 2;
                    lsn = lsn.plus(take);
                    assert_eq!(credits.acknowledge(lsn), Some(take));
                }
            }
        }
    }

    #[test]
    fn what_the_wire_holds_has_an_end_that_asks_for_an_acknowledgement() {
        for messages in 1..=1024u32 {
            let mut credits = Credits::new(1024, Seq(0));
            credits.fits_wire(messages);
            let asks = |from: u32, so_many: u32| {
                let numbers = from..from + so_many;
                numbers
                    .filter(|&number| credits.ends_a_quarter(Seq(number)))
                    .count()
            };
            assert!((0..256).all(|from| asks(from, messages) >= 1), "{messages}");
            assert!(asks(0, 1024) <= 4096 / messages as usize + 4, "{messages}");
        }
    }

    #[test]
    fn an_acknowledgement_is_accepted_exactly_inside_what_is_out() {
        for start in STARTS {
            for out in 0..=64u32 {
                for said in -130i64..=130 {
                    let mut credits = Credits::new(64, Seq(start));
                    for _ in 0..out {
                        assert!(credits.reserve());
                        credits.assign();
                    }
                    let lsn = Seq(start.wrapping_add(said as u32));
                    let freed = credits.acknowledge(lsn);
                    let expected = if (0..=i64::from(out)).contains(&said) {
                        Some(said as u32)
                    } else if (-64..0).contains(&said) {
                        Some(0)
                    } else {
                        None
                    };
                    assert_eq!(freed, expected, "out {out}, said {said}");
                    assert_eq!(credits.in_flight(), out - freed.unwrap_or(0));
                }
            }
        }
    }

    #[test]
    fn unreserve_gives_back_what_was_reserved() {
        let mut credits = Credits::new(64, Seq(7));
        credits.unreserve();
        assert_eq!(credits.free(), 64);
        assert!(credits.reserve());
        credits.unreserve();
        assert_eq!(credits.free(), 64);
    }

    #[test]
    fn every_number_has_one_place() {
        for start in STARTS {
            for moved in 0..130u32 {
                let mut sequence = Sequence::new(64, Seq(start));
                for _ in 0..moved {
                    sequence.advance();
                }
                let lsn = start.wrapping_add(moved);
                for offset in -200i64..200 {
                    let seq = Seq(lsn.wrapping_add(offset as u32));
                    let expected = match offset {
                        0..=63 => Place::Slot((seq.0 % 64) as u16),
                        -64..=-1 => Place::Before,
                        _ => Place::Beyond,
                    };
                    assert_eq!(sequence.place(seq), expected, "lsn {lsn}, offset {offset}");
                }
            }
        }
    }

    #[test]
    fn acknowledges_by_halves() {
        for start in STARTS {
            let mut sequence = Sequence::new(64, Seq(start));
            let mut acks = 0;
            for _ in 0..640 {
                sequence.arrived(sequence.lsn(), false);
                sequence.advance();
                if sequence.ack_due() {
                    assert_eq!(sequence.lsn().0 % 32, 0);
                    sequence.acknowledged();
                    acks += 1;
                    assert!(!sequence.ack_due());
                }
            }
            assert_eq!(acks, 20);
        }
    }

    #[test]
    fn acknowledges_what_was_asked_for_once_it_is_passed() {
        for start in STARTS {
            let first = Seq(start);
            let mut sequence = Sequence::new(64, first);
            sequence.arrived(first.plus(2), true);
            sequence.arrived(first.plus(1), true);
            assert!(!sequence.ack_due());
            for passed in 1..=4 {
                sequence.advance();
                let crossed = sequence.lsn().0.is_multiple_of(32);
                assert_eq!(sequence.ack_due(), crossed || passed == 3, "start {start}");
                if sequence.ack_due() {
                    sequence.acknowledged();
                }
                assert!(!sequence.ack_due());
            }
        }
    }

    #[test]
    fn what_is_announced_is_missed_and_nonsense_is_not_believed() {
        for start in STARTS {
            for ahead in -70i64..=140 {
                let mut sequence = Sequence::new(64, Seq(start));
                sequence.announced(Seq(start.wrapping_add(ahead as u32)));
                assert_eq!(sequence.anything_past_lsn(), (1..=64).contains(&ahead), "{ahead}");
                assert!(!sequence.ack_due());
            }
            let mut sequence = Sequence::new(64, Seq(start));
            sequence.arrived(Seq(start).plus(5), false);
            sequence.announced(Seq(start).plus(2));
            for _ in 0..5 {
                sequence.advance();
                assert!(
                    sequence.anything_past_lsn(),
                    "an older announcement takes nothing back"
                );
            }
        }
    }

    #[test]
    fn a_gap_is_seen_and_closes() {
        let mut sequence = Sequence::new(64, Seq(u32::MAX));
        assert!(!sequence.anything_past_lsn());
        assert_eq!(sequence.past_lsn(), 0);
        sequence.arrived(Seq(1), false);
        assert!(sequence.anything_past_lsn());
        assert_eq!(sequence.past_lsn(), 2);
        sequence.advance();
        assert_eq!(sequence.past_lsn(), 1);
        sequence.advance();
        assert!(sequence.anything_past_lsn());
        assert_eq!(sequence.past_lsn(), 0);
        sequence.advance();
        assert!(!sequence.anything_past_lsn());
        assert_eq!(sequence.past_lsn(), 0);
        assert!(sequence.ack_useful());
    }
}
