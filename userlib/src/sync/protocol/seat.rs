//! The participants, and where each stands.

use netvm_abi::{NodeId, PortId};
use std::fmt;

const SEAT_BITS: u32 = 6;
const TURN_BITS: u32 = 9;
const SEAT_SHIFT: u32 = 32;
const TURN_SHIFT: u32 = SEAT_SHIFT + SEAT_BITS;
const MARK_SHIFT: u32 = TURN_SHIFT + TURN_BITS;
const GENERATION_SHIFT: u32 = 48;

/// A participant: a seat of a port, and which of the seat's turns is meant. Node, port, seat, turn, a
/// mark that belongs to messages, and the lower half of the port's generation, in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeatId(pub u64);

impl SeatId {
    /// No participant.
    pub const NOBODY: Self = Self(0);
    /// Seats of a port.
    pub const SEATS: u16 = 1 << SEAT_BITS;
    /// Turns until a number comes again.
    ///
    /// That is safe if nothing of a turn is left that many turns later. Each turn takes its seat a round trip to the
    /// home at least, so a message would have to be under way for 512 of these, and a NIC gives up long before; a
    /// survey would have to take as long between its two looks at one seat. What a grant has said since an earlier turn
    /// is read only after a signal, of which those left over are acknowledged when a turn begins: one that comes still
    /// later, because a participant has died, would have to find the word of the same seat from 512 of its turns ago,
    /// which no grant of a later turn has overwritten.
    pub const TURNS: u16 = 1 << TURN_BITS;

    /// A seat, in its turn 0. Never [`NOBODY`](Self::NOBODY): no program has port 0.
    #[must_use]
    pub const fn new(node: NodeId, port: PortId, seat: u16, generation: u32) -> Self {
        Self(
            node.0 as u64
                | (port.0 as u64) << 16
                | ((seat % Self::SEATS) as u64) << SEAT_SHIFT
                | (generation as u16 as u64) << GENERATION_SHIFT,
        )
    }

    /// Its node.
    #[must_use]
    pub const fn node(self) -> NodeId {
        NodeId(self.0 as u16)
    }

    /// Its port.
    #[must_use]
    pub const fn port(self) -> PortId {
        PortId((self.0 >> 16) as u16)
    }

    /// Which seat of its port.
    #[must_use]
    pub const fn seat(self) -> u16 {
        (self.0 >> SEAT_SHIFT) as u16 % Self::SEATS
    }

    /// Which turn of its seat, modulo [`TURNS`](Self::TURNS).
    #[must_use]
    pub const fn turn(self) -> u16 {
        (self.0 >> TURN_SHIFT) as u16 % Self::TURNS
    }

    /// The lower half of its port's generation.
    #[must_use]
    pub const fn generation(self) -> u16 {
        (self.0 >> GENERATION_SHIFT) as u16
    }

    /// The same seat in this turn, unmarked.
    #[must_use]
    pub const fn in_turn(self, turn: u16) -> Self {
        let keep = ((1u64 << TURN_SHIFT) - 1) | (u64::MAX << GENERATION_SHIFT);
        Self(self.0 & keep | ((turn % Self::TURNS) as u64) << TURN_SHIFT)
    }

    /// The same seat in its next turn.
    #[must_use]
    pub const fn next_turn(self) -> Self {
        self.in_turn(self.turn().wrapping_add(1))
    }

    /// The same with or without the mark.
    #[must_use]
    pub const fn with_mark(self, mark: bool) -> Self {
        Self(self.0 & !(1 << MARK_SHIFT) | (mark as u64) << MARK_SHIFT)
    }

    /// Whether it bears the mark.
    #[must_use]
    pub const fn mark(self) -> bool {
        self.0 >> MARK_SHIFT & 1 == 1
    }

    /// What it puts down as `next` of its predecessor: itself, marked if the predecessor's turn is odd. A message that
    /// comes late finds its addressee in a later turn, and must not be taken for a message of that turn.
    #[must_use]
    pub const fn linked_to(self, before: Self) -> Self {
        self.with_mark(before.turn() % 2 == 1)
    }

    /// The participant behind this one in its present turn, if its word `next` holds this.
    #[must_use]
    pub const fn follower(self, next: Self) -> Self {
        if next.mark() == (self.turn() % 2 == 1) {
            next.with_mark(false)
        } else {
            Self::NOBODY
        }
    }

    /// What it sends to its successor, in the place of a grant, when it leaves its place in the chain. A successor that
    /// takes another word for this leaves its own place, which does no harm.
    #[must_use]
    pub const fn astray(self) -> u64 {
        !self.0
    }

    /// Whether it is [`NOBODY`](Self::NOBODY).
    #[must_use]
    pub const fn is_nobody(self) -> bool {
        self.0 == 0
    }

    /// Whether the two are the same seat, in whatever turn.
    #[must_use]
    pub const fn same_seat(self, other: Self) -> bool {
        self.in_turn(0).0 == other.in_turn(0).0
    }
}

impl fmt::Debug for SeatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nobody() {
            return f.write_str("nobody");
        }
        let mark = if self.mark() { "!" } else { "" };
        write!(
            f,
            "{}:{}.{}#{}{mark}",
            self.node(),
            self.port(),
            self.seat(),
            self.turn()
        )
    }
}

/// Where a participant of a lock stands in its turn. In its own memory, so that saying it costs no
/// message; others read it when they suspect a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Has asked for the lock, and may have it without knowing.
    Asking,
    /// Waits for this one to hand it the lock.
    Behind(SeatId),
    /// Still waits, but no more for the one before: that is gone, or will not hand the lock to this one. Whatever that
    /// one may have sent counts for nothing from now on.
    Adrift,
    /// Has the lock.
    Holding,
    /// Has nothing to do with the lock any more; has handed it to this participant, or in this turn to none.
    Over(SeatId),
}

/// What another's seat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Where it stands.
    pub place: Place,
    /// In which of its turns.
    pub turn: u16,
    /// The participant to which it handed the lock last, in this turn or an earlier one. Turns in which it handed the
    /// lock to none leave it: the lock may still be on its way from an earlier turn. It is never that of an earlier turn
    /// for the one behind it in this turn, because the names of participants bear turns.
    pub given: SeatId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_comes_a_turn_late_is_ignored() {
        let holder = SeatId::new(NodeId(1), PortId(2), 3, 4).in_turn(SeatId::TURNS - 1);
        let next = SeatId::new(NodeId(5), PortId(6), 7, 8).in_turn(9);
        let word = next.linked_to(holder);
        assert_eq!(holder.follower(word), next);
        assert_eq!(holder.next_turn().follower(word), SeatId::NOBODY);
        assert_eq!(
            holder.next_turn().follower(next.linked_to(holder.next_turn())),
            next
        );
        for turn in 0..2 {
            assert!(holder.in_turn(turn).follower(SeatId::NOBODY).is_nobody());
        }
    }
}
