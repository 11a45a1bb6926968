//! A queue in which programs wait for signals, first in, first out.

use super::linear::{Object, Operation};
use super::{Histories, Kept, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// What is asked of a wait queue. `turn` is one standing in it, and no other has that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitQueueOp {
    /// Stands in it, at its end.
    Stand {
        turn: u64,
        /// A signal ends the turn. Not known to the program: follows from how its wait ended.
        woken: bool,
    },
    /// Waits until the turn is over.
    Wait { turn: u64 },
    /// Wakes the first.
    Signal,
    /// This participant stands in it no more, and all others are let out. Also asked by no program: follows from a turn that
    /// was cut off, or that ended so.
    Reset { turn: u64 },
    /// A participant goes. Has no answer.
    Leave,
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitQueueAnswer {
    /// To a `Stand` and to a `Reset`.
    Done,
    /// To a `Wait`: by a signal.
    Woken,
    /// To a `Wait`: the queue has lost a participant.
    LetOut,
    /// To a `Signal`: whether a program waited.
    Found(bool),
}

/// The queue.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue;

/// Those that stand in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Standing {
    /// Turns that no signal is for yet, and whether one comes.
    line: Vec<(u64, bool)>,
    /// Turns that a signal is for, and whether the queue was reset since: then either may be told.
    called: BTreeMap<u64, bool>,
    /// Turns that a reset has let out.
    out: BTreeSet<u64>,
}

impl Standing {
    /// Lets all out, if this turn is not over. The signals that are on their way may come, or not; to those that are let
    /// out comes none.
    fn reset(&self, turn: u64) -> Option<Self> {
        let stands = self.line.iter().any(|&(standing, _)| standing == turn);
        if !stands && self.called.get(&turn) != Some(&false) {
            return None;
        }
        if self.line.iter().any(|&(_, woken)| woken) {
            return None;
        }
        let mut next = self.clone();
        next.out.extend(next.line.drain(..).map(|(turn, _)| turn));
        next.called.values_mut().for_each(|reset| *reset = true);
        Some(next)
    }
}

/// When some queue may have been reset: an operation was cut off, or a participant has gone.
fn first_cause(history: &[Operation<WaitQueue>]) -> Option<u64> {
    let causes = history.iter().filter(|operation| {
        let gone = matches!(operation.op, WaitQueueOp::Leave | WaitQueueOp::Reset { .. });
        gone || operation.returned.is_none()
    });
    causes.map(|operation| operation.called).min()
}

impl Kept for WaitQueue {
    const NAME: &'static str = "wait queue";
    const NEW: Standing = Standing {
        line: Vec::new(),
        called: BTreeMap::new(),
        out: BTreeSet::new(),
    };

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.wait_queues
    }

    /// A turn that was told of a reset has seen one, since it began. With no message lost that needs a participant that
    /// has gone. A turn that was cut off may have led to one that no other was told of.
    fn complete(history: &mut Vec<Operation<Self>>, faulty: bool) {
        let cause = if faulty { Some(0) } else { first_cause(history) };
        let mut ends = BTreeMap::new();
        for operation in &*history {
            if let (WaitQueueOp::Wait { turn }, Some((at, answer))) = (operation.op, operation.returned) {
                ends.insert(turn, (at, answer));
            }
        }
        let mut resets = Vec::new();
        for operation in &mut *history {
            let WaitQueueOp::Stand { turn, woken } = &mut operation.op else {
                continue;
            };
            let turn = *turn;
            *woken = matches!(ends.get(&turn), Some((_, WaitQueueAnswer::Woken)));
            let reset = |called, returned| Operation {
                op: WaitQueueOp::Reset { turn },
                called,
                returned,
            };
            match (ends.get(&turn), cause) {
                (Some(&(at, WaitQueueAnswer::LetOut)), Some(cause)) if cause < at => {
                    let called = operation.called.max(cause);
                    resets.push(reset(called, Some((at, WaitQueueAnswer::Done))));
                }
                (None, _) => resets.push(reset(operation.called, None)),
                _ => {}
            }
        }
        history.retain(|operation| match operation.op {
            WaitQueueOp::Stand { .. } | WaitQueueOp::Signal => true,
            WaitQueueOp::Wait { .. } => operation.returned.is_some(),
            WaitQueueOp::Reset { .. } | WaitQueueOp::Leave => false,
        });
        history.append(&mut resets);
    }
}

impl Object for WaitQueue {
    type State = Standing;
    type Op = WaitQueueOp;
    type Answer = WaitQueueAnswer;

    fn step(state: &Standing, op: &WaitQueueOp, answer: Option<&WaitQueueAnswer>) -> Option<Standing> {
        let mut next = state.clone();
        match (*op, answer) {
            (WaitQueueOp::Stand { turn, woken }, _) => next.line.push((turn, woken)),
            (WaitQueueOp::Signal, Some(WaitQueueAnswer::Found(false))) => {
                return state.line.is_empty().then_some(next);
            }
            (WaitQueueOp::Signal, _) => {
                if state.line.is_empty() {
                    return None;
                }
                next.called.insert(next.line.remove(0).0, false);
            }
            (WaitQueueOp::Wait { turn }, Some(WaitQueueAnswer::Woken)) => {
                next.called.remove(&turn)?;
            }
            (WaitQueueOp::Wait { turn }, Some(WaitQueueAnswer::LetOut)) => {
                let reset = next.called.remove(&turn).is_some_and(|reset| reset);
                if !reset && !next.out.remove(&turn) {
                    return None;
                }
            }
            (WaitQueueOp::Reset { turn }, told) => {
                let seen = state.out.contains(&turn) || state.called.get(&turn) == Some(&true);
                if told.is_some() && seen {
                    return Some(next);
                }
                return state.reset(turn);
            }
            _ => return None,
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ObjectId;
    use super::*;

    const QUEUE: ObjectId = ObjectId { life: 1, index: 0 };

    type Step = (WaitQueueOp, Option<WaitQueueAnswer>);

    /// Operations one after the other, in a run whose messages all arrive; an answer of nothing never comes.
    fn judged(operations: &[Step]) -> bool {
        let mut histories = Histories::default();
        for &(op, answer) in operations {
            let call = histories.call::<WaitQueue>(QUEUE, op);
            if let Some(answer) = answer {
                histories.returns(call, answer);
            }
        }
        histories.judge().is_ok_and(|judged| judged.undecided == 0)
    }

    fn stand(turn: u64) -> Step {
        let woken = false;
        (WaitQueueOp::Stand { turn, woken }, Some(WaitQueueAnswer::Done))
    }

    fn signal(found: bool) -> Step {
        (WaitQueueOp::Signal, Some(WaitQueueAnswer::Found(found)))
    }

    fn woken(turn: u64) -> Step {
        (WaitQueueOp::Wait { turn }, Some(WaitQueueAnswer::Woken))
    }

    fn let_out(turn: u64) -> Step {
        (WaitQueueOp::Wait { turn }, Some(WaitQueueAnswer::LetOut))
    }

    const LEAVE: Step = (WaitQueueOp::Leave, None);

    #[test]
    fn each_signal_wakes_the_first_and_no_other() {
        let two = [signal(false), stand(1), stand(2), signal(true)];
        let then = |more: &[Step]| judged(&[&two, more].concat());
        assert!(then(&[woken(1), signal(true), signal(false), woken(2)]));
        assert!(!then(&[woken(2), signal(true), woken(1)]), "out of order");
        assert!(!then(&[woken(1), woken(2)]), "one signal wakes two");
        let late = [woken(1), signal(false), signal(true), woken(2)];
        assert!(!then(&late), "one still waits");
        assert!(!then(&[signal(true), signal(true)]), "none is left");
        assert!(!judged(&[stand(1), woken(1)]), "no signal");
    }

    #[test]
    fn none_is_let_out_for_nothing() {
        assert!(!judged(&[stand(1), let_out(1)]));
        assert!(!judged(&[stand(1), let_out(1), LEAVE]), "gone too late");
        let gone = [stand(1), stand(2), LEAVE];
        let then = |more: &[Step]| judged(&[&gone, more].concat());
        assert!(then(&[signal(false), let_out(1), let_out(2)]));
        assert!(then(&[let_out(1), stand(3), signal(true), woken(3), let_out(2)]));
        assert!(!then(&[signal(false), signal(true), let_out(1), let_out(2)]));
        // A signal that was on its way may come, or not.
        assert!(then(&[signal(true), let_out(2), woken(1)]));
        assert!(then(&[signal(true), let_out(2), let_out(1)]));
        assert!(!then(&[signal(true), let_out(2), woken(1), let_out(1)]));
    }

    #[test]
    fn a_turn_that_is_cut_off_may_end_by_a_reset_that_no_other_sees() {
        let dead = (stand(1).0, None);
        assert!(judged(&[dead, signal(false)]), "it has never stood there");
        assert!(judged(&[dead, signal(true), signal(false)]), "it was woken");
        assert!(judged(&[dead, stand(2), signal(true), woken(2)]), "reset before");
        assert!(judged(&[dead, stand(2), signal(true), let_out(2)]), "reset after");
        assert!(judged(&[dead, stand(2), signal(true), signal(true), woken(2)]));
        assert!(!judged(&[dead, stand(2), signal(false), woken(2)]));
    }
}
