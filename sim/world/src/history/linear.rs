//! Whether a history of concurrent operations is linearizable: whether each operation can be given one moment between its
//! call and its return, so that the answers are those of the same operations carried out one after the other.
//!
//! The search is that of Wing and Gong with Lowe's memory of configurations (as in Porcupine): at each point it tries the
//! operations that were called before any other one returned, and never visits the same set of carried out operations with
//! the same state twice. An operation without a return (its process died, or its link was lost) may have been carried out at
//! any moment after its call, or never.

use std::collections::HashSet;
use std::hash::Hash;

/// What an object does, one operation at a time.
pub(crate) trait Object {
    /// What it holds.
    type State: Clone + Eq + Hash;
    /// What is asked of it.
    type Op;
    /// What it answers.
    type Answer;

    /// The state after an operation; nothing if it cannot be answered so in this state. Without an answer: the operation
    /// happened, and what it would have answered is not known.
    fn step(state: &Self::State, op: &Self::Op, answer: Option<&Self::Answer>) -> Option<Self::State>;
}

/// An operation of a history. Moments are numbers of their own: no two calls or returns share one.
#[derive(Clone, Debug)]
pub(crate) struct Operation<O: Object> {
    /// What was asked.
    pub(crate) op: O::Op,
    /// When.
    pub(crate) called: u64,
    /// When it was answered, and what; nothing if it never was.
    pub(crate) returned: Option<(u64, O::Answer)>,
}

/// What a history comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// There is such an order.
    Linearizable,
    /// There is none; so many operations, at most, could be put in order.
    Not {
        /// Operations of the longest beginning.
        placed: usize,
    },
    /// The search took more configurations than it may.
    Undecided,
}

/// Configurations that a search may visit.
const MOST: usize = 200_000;

/// A set of operations, by index: all below one, but for some. A history may be long, and few of its operations overlap at a time.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Done {
    below: usize,
    /// In order.
    but: Vec<usize>,
}

impl Done {
    fn with(&self, index: usize) -> Self {
        let mut but = self.but.clone();
        if index < self.below {
            but.retain(|&other| other != index);
        } else {
            but.extend(self.below..index);
        }
        Self {
            below: self.below.max(index + 1),
            but,
        }
    }

    /// What is not in it, of so many.
    fn left(&self, all: usize) -> impl Iterator<Item = usize> {
        self.but.iter().copied().chain(self.below..all)
    }

    const fn len(&self) -> usize {
        self.below - self.but.len()
    }
}

/// Judges a history of an object that began with this state.
pub(crate) fn judge<O: Object>(initial: O::State, history: &[Operation<O>]) -> Judgement {
    let mut order: Vec<&Operation<O>> = history.iter().collect();
    order.sort_unstable_by_key(|operation| operation.called);
    let mut seen = HashSet::new();
    let mut stack = vec![(Done::default(), initial)];
    let mut placed = 0;
    while let Some((done, state)) = stack.pop() {
        // By their calls. What returned first of what is left: nothing that was called after it may come before it.
        let mut first = u64::MAX;
        let mut candidates = Vec::new();
        for index in done.left(order.len()) {
            let operation = order[index];
            if operation.called >= first {
                break;
            }
            candidates.push((index, operation));
            first = first.min(operation.returned.as_ref().map_or(u64::MAX, |&(at, _)| at));
        }
        if first == u64::MAX {
            return Judgement::Linearizable;
        }
        placed = placed.max(done.len());
        candidates.retain(|(_, operation)| operation.called < first);
        // The earliest call is tried first: it lies on top.
        candidates.reverse();
        for (index, operation) in candidates {
            let answer = operation.returned.as_ref().map(|(_, answer)| answer);
            let Some(next) = O::step(&state, &operation.op, answer) else {
                continue;
            };
            let configuration = (done.with(index), next);
            if seen.len() >= MOST {
                return Judgement::Undecided;
            }
            if seen.insert(configuration.clone()) {
                stack.push(configuration);
            }
        }
    }
    Judgement::Not { placed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word that is read, stored to and added to.
    struct Word;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Load,
        Store(u64),
        Add(u64),
    }

    impl Object for Word {
        type State = u64;
        type Op = Op;
        /// The old value.
        type Answer = u64;

        fn step(state: &u64, op: &Op, answer: Option<&u64>) -> Option<u64> {
            let answered = answer.is_none_or(|answer| matches!(op, Op::Store(_)) || answer == state);
            answered.then_some(match op {
                Op::Load => *state,
                Op::Store(new) => *new,
                Op::Add(count) => state + count,
            })
        }
    }

    /// Operations by call, return and answer; a return of 0 never comes.
    fn judged(history: &[(Op, u64, u64, u64)]) -> Judgement {
        let operation = |&(op, called, returned, answer): &(Op, u64, u64, u64)| Operation::<Word> {
            op,
            called,
            returned: (returned > 0).then_some((returned, answer)),
        };
        let history: Vec<_> = history.iter().map(operation).collect();
        judge(0, &history)
    }

    #[test]
    fn a_set_holds_what_was_put_there() {
        let mut set = Done::default();
        for (index, left) in [
            (2, &[0, 1, 3, 4][..]),
            (0, &[1, 3, 4]),
            (4, &[1, 3]),
            (1, &[3]),
            (3, &[]),
        ] {
            set = set.with(index);
            assert!(set.left(5).eq(left.iter().copied()), "{index}");
            assert_eq!(set.len(), 5 - left.len());
        }
    }

    #[test]
    fn answers_in_order_are_linearizable_and_others_are_not() {
        assert_eq!(judged(&[]), Judgement::Linearizable);
        assert_eq!(
            judged(&[(Op::Add(1), 1, 2, 0), (Op::Load, 3, 4, 1)]),
            Judgement::Linearizable
        );
        assert_eq!(
            judged(&[(Op::Add(1), 1, 2, 0), (Op::Load, 3, 4, 0)]),
            Judgement::Not { placed: 1 },
            "a stale read"
        );
    }

    #[test]
    fn operations_at_a_time_may_come_in_either_order() {
        for answers in [[0, 1], [1, 0]] {
            let history = [(Op::Add(1), 1, 3, answers[0]), (Op::Add(1), 2, 4, answers[1])];
            assert_eq!(judged(&history), Judgement::Linearizable, "{answers:?}");
        }
        let both = [(Op::Add(1), 1, 3, 0), (Op::Add(1), 2, 4, 0)];
        assert_eq!(
            judged(&both),
            Judgement::Not { placed: 1 },
            "an increment is lost"
        );
        // Two readers may not see two stores in different orders.
        let history = [
            (Op::Store(1), 1, 20, 0),
            (Op::Store(2), 2, 21, 0),
            (Op::Load, 3, 4, 1),
            (Op::Load, 5, 6, 2),
            (Op::Load, 7, 8, 1),
        ];
        assert!(matches!(judged(&history), Judgement::Not { .. }));
    }

    #[test]
    fn what_never_returned_may_have_happened_at_any_later_time_or_never() {
        let pending = (Op::Add(5), 3, 0, 0);
        for seen in [0, 5] {
            let history = [(Op::Load, 1, 2, 0), pending, (Op::Load, 100, 101, seen)];
            assert_eq!(judged(&history), Judgement::Linearizable, "{seen}");
        }
        let twice = [pending, (Op::Load, 100, 101, 5), (Op::Load, 102, 103, 10)];
        assert!(matches!(judged(&twice), Judgement::Not { .. }), "not twice");
        let early = [(Op::Load, 1, 2, 5), pending];
        assert!(
            matches!(judged(&early), Judgement::Not { .. }),
            "not before its call"
        );
        let undone = [pending, (Op::Load, 4, 5, 5), (Op::Load, 6, 7, 0)];
        assert!(matches!(judged(&undone), Judgement::Not { .. }), "not taken back");
    }

    #[test]
    fn long_histories_of_several_callers_are_decided() {
        // Four callers, each with its next addition under way before the last answers come.
        let mut history = Vec::new();
        for round in 0..200 {
            for caller in 0..4 {
                let at = round * 100 + caller;
                history.push((Op::Add(1), at + 1, at + 50, round * 4 + 3 - caller));
            }
        }
        assert_eq!(judged(&history), Judgement::Linearizable);
        history.push((Op::Load, 1_000_000, 1_000_001, 799));
        assert_eq!(judged(&history), Judgement::Not { placed: 800 });
    }

    #[test]
    fn a_search_that_leads_nowhere_ends() {
        let mut history: Vec<_> = (0..40).map(|n| (Op::Add(1 << n), n + 1, 0, 0)).collect();
        history.push((Op::Load, 1000, 1001, u64::MAX));
        assert_eq!(judged(&history), Judgement::Undecided);
    }
}
