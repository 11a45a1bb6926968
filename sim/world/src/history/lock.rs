//! A lock, and the words that its holders read and write.
//!
//! A history of a lock alone says little: what matters is that one holder at a time sees what it protects, and sees what
//! the holders before it have written. So both are one object.

use super::linear::{Object, Operation};
use super::{Histories, Kept, Kind};
use std::collections::BTreeSet;

/// Words that a lock protects: one at its home, and one on another node.
pub(crate) const WORDS: usize = 2;

/// What is asked of a lock. `turn` is one taking of it, and no other has that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOp {
    /// Takes it. Where the lock is recovered from the dead, the next holder is told.
    Acquire { turn: u64, recovered: bool },
    /// The holder reads a word.
    Read { turn: u64, word: usize },
    /// The holder writes a word, in the memory of this life.
    Write {
        turn: u64,
        word: usize,
        life: u64,
        value: u64,
    },
    /// Gives it back.
    Release { turn: u64 },
    /// The holder has died, or could not give it back. Asked by no program: follows from a release that is missing.
    Die { turn: u64 },
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockAnswer {
    /// To an `Acquire`: whether it said that a holder may have died.
    Held { told: bool },
    /// To a `Read`: which life the word's memory is of, and the value.
    Value { life: u64, value: u64 },
    /// Done.
    Done,
}

/// A lock and what it protects.
#[derive(Clone, Debug)]
pub(crate) struct Lock;

/// What it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    holder: Option<u64>,
    /// A holder has died, and the next one is to be told.
    owed: bool,
    /// By word: the life of its memory, and the value.
    words: [(u64, u64); WORDS],
}

impl Kept for Lock {
    const NAME: &'static str = "lock";
    const NEW: Held = Held {
        holder: None,
        owed: false,
        words: [(0, 0); WORDS],
    };

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.locks
    }

    /// A turn without an answered release may have ended by a death since it began: the holder's port can end before its
    /// process does. What is read in that turn bounds the moment. A taking that was never answered changes nothing that
    /// another can see, and neither does a write that was never read.
    fn complete(history: &mut Vec<Operation<Self>>, _faulty: bool) {
        let ended: BTreeSet<u64> = history
            .iter()
            .filter_map(|operation| match operation.op {
                LockOp::Release { turn } if operation.returned.is_some() => Some(turn),
                _ => None,
            })
            .collect();
        let read: BTreeSet<u64> = history
            .iter()
            .filter_map(|operation| match operation.returned {
                Some((_, LockAnswer::Value { value, .. })) => Some(value),
                _ => None,
            })
            .collect();
        let mut deaths = Vec::new();
        for operation in &*history {
            if let (LockOp::Acquire { turn, recovered }, Some((at, _))) = (operation.op, operation.returned)
                && recovered
                && !ended.contains(&turn)
            {
                deaths.push(Operation {
                    op: LockOp::Die { turn },
                    called: at,
                    returned: None,
                });
            }
        }
        history.retain(|operation| match operation.op {
            _ if operation.returned.is_some() => true,
            LockOp::Acquire { .. } | LockOp::Read { .. } => false,
            LockOp::Write { value, .. } => read.contains(&value),
            LockOp::Release { .. } | LockOp::Die { .. } => true,
        });
        history.append(&mut deaths);
    }
}

impl Object for Lock {
    type State = Held;
    type Op = LockOp;
    type Answer = LockAnswer;

    fn step(state: &Held, op: &LockOp, answer: Option<&LockAnswer>) -> Option<Held> {
        let mut next = state.clone();
        let holds = |turn| state.holder == Some(turn);
        match (*op, answer) {
            (LockOp::Acquire { turn, .. }, Some(&LockAnswer::Held { told })) => {
                if state.holder.is_some() || (state.owed && !told) {
                    return None;
                }
                next.holder = Some(turn);
                next.owed = false;
            }
            (LockOp::Read { turn, word }, Some(&LockAnswer::Value { life, value })) => {
                let place = &mut next.words[word];
                // Memory of a new life of its owner is zero.
                let same = *place == (life, value) || (place.0 < life && value == 0);
                if !same || !holds(turn) {
                    return None;
                }
                *place = (life, value);
            }
            (
                LockOp::Write {
                    turn,
                    word,
                    life,
                    value,
                },
                answer,
            ) => {
                // That of a dead holder may come at any later time.
                if answer.is_some() && !holds(turn) {
                    return None;
                }
                if next.words[word].0 <= life {
                    next.words[word] = (life, value);
                }
            }
            (LockOp::Release { turn } | LockOp::Die { turn }, _) => {
                if !holds(turn) {
                    return None;
                }
                next.holder = None;
                next.owed = matches!(op, LockOp::Die { .. });
            }
            _ => return None,
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Histories, ObjectId};
    use super::*;

    const LOCK: ObjectId = ObjectId { life: 1, index: 0 };

    /// Operations one after the other, each answered at once; an answer of nothing never comes.
    fn judged(operations: &[(LockOp, Option<LockAnswer>)]) -> bool {
        let mut histories = Histories::default();
        for &(op, answer) in operations {
            let call = histories.call::<Lock>(LOCK, op);
            if let Some(answer) = answer {
                histories.returns(call, answer);
            }
        }
        histories.judge().is_ok_and(|judged| judged.undecided == 0)
    }

    fn acquire(turn: u64, told: bool) -> (LockOp, Option<LockAnswer>) {
        let recovered = true;
        (
            LockOp::Acquire { turn, recovered },
            Some(LockAnswer::Held { told }),
        )
    }

    fn release(turn: u64) -> (LockOp, Option<LockAnswer>) {
        (LockOp::Release { turn }, Some(LockAnswer::Done))
    }

    fn read(turn: u64, life: u64, value: u64) -> (LockOp, Option<LockAnswer>) {
        (
            LockOp::Read { turn, word: 1 },
            Some(LockAnswer::Value { life, value }),
        )
    }

    fn write(turn: u64, life: u64, value: u64) -> (LockOp, Option<LockAnswer>) {
        let op = LockOp::Write {
            turn,
            word: 1,
            life,
            value,
        };
        (op, Some(LockAnswer::Done))
    }

    #[test]
    fn one_holder_at_a_time_sees_what_those_before_it_wrote() {
        let first = [acquire(1, false), read(1, 3, 0), write(1, 3, 7), release(1)];
        let then = |more: &[_]| judged(&[&first, more].concat());
        assert!(then(&[acquire(2, false), read(2, 3, 7), release(2)]));
        assert!(!then(&[acquire(2, false), read(2, 3, 0)]), "a write is missing");
        assert!(then(&[acquire(2, false), read(2, 4, 0)]), "memory of a new life");
        assert!(!then(&[acquire(2, false), read(2, 4, 7)]), "is zero");
        assert!(then(&[acquire(2, true)]), "told for nothing");
        let two = [acquire(1, false), acquire(2, false), release(1), release(2)];
        assert!(!judged(&two), "two holders");
    }

    #[test]
    fn after_a_holder_that_died_the_next_is_told() {
        let dead = [acquire(1, false), read(1, 1, 0)];
        let then = |more: &[_]| judged(&[&dead, more].concat());
        assert!(then(&[acquire(2, true), release(2), acquire(3, false)]));
        assert!(!then(&[acquire(2, false)]), "not told");
        assert!(!then(&[acquire(2, true), read(1, 1, 0)]), "it was alive");
        // In the middle of the release: either.
        let releasing = (LockOp::Release { turn: 1 }, None);
        assert!(then(&[releasing, acquire(2, false)]) && then(&[releasing, acquire(2, true)]));
        // A lock that cannot be recovered has no holder again.
        let (recovered, told) = (false, false);
        let lost = |turn| {
            (
                LockOp::Acquire { turn, recovered },
                Some(LockAnswer::Held { told }),
            )
        };
        assert!(judged(&[lost(1)]) && !judged(&[lost(1), lost(2)]));
        assert!(judged(&[lost(1), release(1), lost(2)]));
    }

    #[test]
    fn what_a_dead_holder_wrote_may_come_late_or_never() {
        let late = (write(1, 1, 7).0, None);
        let dead = [acquire(1, false), late];
        let then = |more: &[_]| judged(&[&dead, more].concat());
        assert!(then(&[acquire(2, true), read(2, 1, 0), read(2, 1, 7)]));
        assert!(then(&[acquire(2, true), read(2, 1, 0), read(2, 1, 0)]));
        assert!(!then(&[acquire(2, true), read(2, 1, 7), read(2, 1, 0)]));
    }
}
