//! The wait queue (thesis 8.3, tables 19 and 20): first in, first out, one round trip each way.
//!
//! The block ([`QueueBlock`](netvm_abi::atomic::QueueBlock)) names the first and the last waiter; the rest is a chain
//! through their seats. A woken waiter brings its successor's name as the new first. A signal that comes before that is
//! *pending*, and the waiter that brings the name hands it on.

use super::seat::{Place, SeatId};
use super::{Answer, Centre, GRANTS, Machine, Want, block};
use netvm_abi::atomic::{EMPTY, NOBODY};
use netvm_abi::descriptor::Opcode;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::words::{join, split};

/// Which grant a queue of this epoch uses.
const fn slot(epoch: u32) -> u8 {
    (epoch % GRANTS as u32) as u8
}

/// What wakes `to`, in this epoch of the queue, behind which so many wait.
///
/// A signal of an epoch that is over may come at any later time. Then its receiver looks at the grant of another epoch, where
/// the word of an earlier turn of its own still stands. So the word names the turn as well.
pub(super) const fn wake<R>(to: SeatId, count: u32, epoch: u32) -> Want<R> {
    Want::Grant {
        to,
        slot: slot(epoch),
        word: join(turn_and(to, count > 0), epoch),
    }
}

/// The lower half of a grant's word: the turn that it is for, and whether others wait behind that one.
const fn turn_and(to: SeatId, others: bool) -> u32 {
    (to.turn() as u32) << 1 | others as u32
}

/// That a participant stands in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inserted {
    /// Its predecessor, or [`SeatId::NOBODY`].
    pub behind: SeatId,
    /// In which of the queue's epochs.
    pub epoch: u32,
}

/// Stands in the queue (`insertQ`). Waiting is another thing ([`Await`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insert {
    me: SeatId,
    at: InsertAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InsertAt {
    Begin,
    Enqueue,
    Link(Inserted),
    Ended(Inserted),
}

impl Insert {
    /// For this participant, that stands in no queue.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            at: InsertAt::Begin,
        }
    }
}

impl Machine for Insert {
    type Want = Want<Inserted>;
    type Answer = Answer;

    fn want(&self) -> Want<Inserted> {
        match self.at {
            InsertAt::Begin => Want::Begin(Place::Asking),
            InsertAt::Enqueue => Want::Atomic(Centre::Main, block(Opcode::Enqueue, self.me.0, 0)),
            InsertAt::Link(where_) => Want::Link(where_.behind),
            InsertAt::Ended(where_) => Want::Ended(where_),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            InsertAt::Begin => InsertAt::Enqueue,
            InsertAt::Enqueue => {
                let result = answer.atomic();
                let [_, epoch] = split(result.second);
                let behind = SeatId(result.value);
                let inserted = Inserted { behind, epoch };
                if behind.is_nobody() {
                    InsertAt::Ended(inserted)
                } else {
                    InsertAt::Link(inserted)
                }
            }
            InsertAt::Link(inserted) | InsertAt::Ended(inserted) => InsertAt::Ended(inserted),
        };
    }
}

/// Waits to be woken, and makes the next the first (`waitQ`). Ends with whether the grant was for the
/// turn and epoch that it waits in: if not it still waits, and the caller decides what that grant was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Await {
    me: SeatId,
    epoch: u32,
    at: AwaitAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AwaitAt {
    Grant,
    Next,
    NewHead(SeatId),
    Wake(SeatId, u32),
    Ended(bool),
}

impl Await {
    /// For a participant that stands in the queue since this epoch.
    #[must_use]
    pub const fn new(me: SeatId, epoch: u32) -> Self {
        Self {
            me,
            epoch,
            at: AwaitAt::Grant,
        }
    }

    /// Whether it has not been woken yet.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self.at, AwaitAt::Grant)
    }

    /// Whether it has been woken, and only waits for its successor's name.
    #[must_use]
    pub const fn lingers(&self) -> bool {
        matches!(self.at, AwaitAt::Next)
    }

    /// The queue was reset while it [lingered](Self::lingers): there is no successor to bring in.
    pub const fn give_up(&mut self) {
        if self.lingers() {
            self.at = AwaitAt::Ended(true);
        }
    }

    /// Its epoch.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl Machine for Await {
    type Want = Want<bool>;
    type Answer = Answer;

    fn want(&self) -> Want<bool> {
        match self.at {
            AwaitAt::Grant => Want::AwaitGrant {
                slot: slot(self.epoch),
            },
            AwaitAt::Next => Want::AwaitNext,
            AwaitAt::NewHead(next) => {
                Want::Atomic(Centre::Main, block(Opcode::NewHead, next.0, self.epoch as u64))
            }
            AwaitAt::Wake(next, count) => wake(next, count, self.epoch),
            AwaitAt::Ended(mine) => Want::Ended(mine),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            AwaitAt::Grant => match split(answer.word()) {
                [_, epoch] if epoch != self.epoch => AwaitAt::Ended(false),
                [what, _] if what == turn_and(self.me, false) => AwaitAt::Ended(true),
                [what, _] if what == turn_and(self.me, true) => AwaitAt::Next,
                _ => AwaitAt::Ended(false),
            },
            AwaitAt::Next => AwaitAt::NewHead(answer.next()),
            AwaitAt::NewHead(next) => {
                let result = answer.atomic();
                let [count, _] = split(result.second);
                if result.value == 1 || mutant::is(Mutant::SignalWakesTwo) {
                    AwaitAt::Wake(next, count)
                } else {
                    AwaitAt::Ended(true)
                }
            }
            AwaitAt::Wake(..) => AwaitAt::Ended(true),
            AwaitAt::Ended(mine) => AwaitAt::Ended(mine),
        };
    }
}

/// What a signal came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Removed {
    /// All waiters, if any, were spoken for already: the signal is lost.
    Nobody,
    /// This one has been woken.
    Woken(SeatId),
    /// A waiter will be woken by the one that was woken before.
    Pending,
}

/// Wakes the first waiter (`removeQ`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remove {
    at: RemoveAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RemoveAt {
    Dequeue,
    Wake { to: SeatId, count: u32, epoch: u32 },
    Ended(Removed),
}

impl Remove {
    /// Any caller may run it; it needs no seat.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "as the other machines")]
    pub const fn new() -> Self {
        Self {
            at: RemoveAt::Dequeue,
        }
    }
}

impl Machine for Remove {
    type Want = Want<Removed>;
    type Answer = Answer;

    fn want(&self) -> Want<Removed> {
        match self.at {
            RemoveAt::Dequeue => Want::Atomic(Centre::Main, block(Opcode::Dequeue, 0, 0)),
            RemoveAt::Wake { to, count, epoch } => wake(to, count, epoch),
            RemoveAt::Ended(what) => Want::Ended(what),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            RemoveAt::Dequeue => {
                let result = answer.atomic();
                let [count, epoch] = split(result.second);
                match result.value {
                    EMPTY if count == NOBODY => RemoveAt::Ended(Removed::Nobody),
                    EMPTY => RemoveAt::Ended(Removed::Pending),
                    head if mutant::is(Mutant::SignalLost) => RemoveAt::Ended(Removed::Woken(SeatId(head))),
                    head => RemoveAt::Wake {
                        to: SeatId(head),
                        count,
                        epoch,
                    },
                }
            }
            RemoveAt::Wake { to, .. } => RemoveAt::Ended(Removed::Woken(to)),
            RemoveAt::Ended(what) => RemoveAt::Ended(what),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::{NodeId, PortId};

    /// Whether a participant in this turn is woken by a word, in epoch 1.
    fn is_woken(turn: u16, word: u64) -> bool {
        let me = SeatId::new(NodeId(1), PortId(5), 3, 9).in_turn(turn);
        let mut machine = Await::new(me, 1);
        machine.answer(Answer::Granted(word));
        machine.lingers() || machine.want() == Want::Ended(true)
    }

    #[test]
    fn a_late_signal_that_finds_the_word_of_an_earlier_turn_wakes_none() {
        for count in [0, 1, 2] {
            let to = SeatId::new(NodeId(1), PortId(5), 3, 9).in_turn(5);
            let Want::Grant { slot: at, word, .. } = wake::<()>(to, count, 1) else {
                panic!("it wakes by a grant");
            };
            assert_eq!(at, slot(1));
            assert!(is_woken(5, word));
            assert!(!is_woken(6, word), "the next turn");
            let Want::Grant { word, .. } = wake::<()>(to, count, 1 + u32::from(GRANTS)) else {
                panic!("it wakes by a grant");
            };
            assert!(!is_woken(5, word), "an epoch that uses the same grant");
        }
    }
}
