//! A counting semaphore.

use super::linear::{Object, Operation};
use super::{Histories, Kept, Kind};

/// What is asked of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SemaphoreOp {
    pub(crate) what: What,
    /// Nothing had been cut off when it was answered, so that the count that it tells is exact.
    exact: bool,
}

/// The calls that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Takes a token, however long it takes.
    Wait,
    /// Takes one if there is one.
    TryWait,
    /// Gives one.
    Signal,
    /// A participant goes. Has no answer.
    Leave,
}

impl From<What> for SemaphoreOp {
    fn from(what: What) -> Self {
        Self { what, exact: true }
    }
}

/// The semaphore.
#[derive(Clone, Debug)]
pub(crate) struct Semaphore;

impl Kept for Semaphore {
    const NAME: &'static str = "semaphore";
    /// Tokens in a new one.
    const NEW: u64 = 1;

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.semaphores
    }

    /// Where a waiter finds the one before it gone, all stand in line anew, and one of them may get a second token, which it
    /// gives back later. A token that is on its way over a link that is lost is gone. So from then on the count that is told
    /// may be lower than it would be, never higher; and an unanswered wait, which may have taken a token, explains nothing.
    fn complete(history: &mut Vec<Operation<Self>>, faulty: bool) {
        let cut = |operation: &&Operation<Self>| operation.returned.is_none();
        let first = history.iter().filter(cut).map(|operation| operation.called).min();
        for operation in &mut *history {
            let returned = operation.returned.map_or(u64::MAX, |(at, _)| at);
            operation.op.exact = !faulty && first.is_none_or(|first| returned < first);
        }
        history.retain(|operation| operation.returned.is_some() || operation.op.what == What::Signal);
    }
}

impl Object for Semaphore {
    type State = u64;
    type Op = SemaphoreOp;
    /// The count that a wait has found, 0 if it had to wait; or the count after a signal, 0 if another participant waited.
    type Answer = u32;

    fn step(state: &u64, op: &SemaphoreOp, answer: Option<&u32>) -> Option<u64> {
        let told = answer.map(|&told| u64::from(told));
        let fits = |told: u64| told == *state || (!op.exact && told < *state);
        match (op.what, told) {
            // It waited, and got its token at the moment of a signal.
            (What::Wait, None | Some(0)) => state.checked_sub(1),
            (What::TryWait, Some(0)) => fits(0).then_some(*state),
            (What::Wait | What::TryWait, Some(found)) => fits(found).then(|| state - 1),
            (What::TryWait, None) => Some(state.saturating_sub(1)),
            (What::Signal, None) => Some(state + 1),
            (What::Signal, Some(0)) => fits(0).then_some(state + 1),
            (What::Signal, Some(after)) => fits(after - 1).then_some(state + 1),
            (What::Leave, _) => Some(*state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ObjectId;
    use super::*;

    const OBJECT: ObjectId = ObjectId { life: 1, index: 1 };

    /// Operations one after the other, in a run whose messages all arrive; an answer of nothing never comes.
    fn judged(operations: &[(What, Option<u32>)]) -> bool {
        let mut histories = Histories::default();
        for &(what, answer) in operations {
            let call = histories.call::<Semaphore>(OBJECT, what.into());
            if let Some(answer) = answer {
                histories.returns(call, answer);
            }
        }
        histories.judge().is_ok_and(|judged| judged.undecided == 0)
    }

    #[test]
    fn no_token_is_made_or_lost() {
        use What::{Signal, TryWait, Wait};
        let usual = [(Wait, Some(1)), (TryWait, Some(0)), (Signal, Some(1))];
        let then = |more: &[_]| judged(&[&usual, more].concat());
        assert!(then(&[(Signal, Some(2)), (Wait, Some(2)), (Wait, Some(1))]));
        assert!(!then(&[(Wait, Some(1)), (TryWait, Some(1))]), "one is made");
        assert!(
            !then(&[(Wait, Some(1)), (Wait, Some(0))]),
            "taken where there is none"
        );
        assert!(!then(&[(TryWait, Some(0))]), "one is lost");
        assert!(!then(&[(Signal, Some(1))]), "one is lost");
        assert!(!then(&[(Signal, Some(0))]), "no participant waited");
    }

    #[test]
    fn a_waiter_gets_its_token_from_a_signal() {
        let mut histories = Histories::default();
        let call = |histories: &mut Histories, what: What| histories.call::<Semaphore>(OBJECT, what.into());
        let taken = call(&mut histories, What::Wait);
        histories.returns(taken, 1);
        let waits = call(&mut histories, What::Wait);
        let signal = call(&mut histories, What::Signal);
        histories.returns(signal, 0);
        histories.returns(waits, 0);
        let none = call(&mut histories, What::TryWait);
        histories.returns(none, 0);
        assert!(histories.judge().is_ok());
    }

    #[test]
    fn once_a_participant_has_gone_counts_may_be_low_and_never_high() {
        use What::{Leave, Signal, TryWait, Wait};
        for gone in [Leave, Wait] {
            assert!(judged(&[(gone, None), (TryWait, Some(0)), (Wait, Some(1))]));
            assert!(!judged(&[(gone, None), (TryWait, Some(2))]));
            assert!(!judged(&[(TryWait, Some(0)), (gone, None)]), "it was there then");
        }
        assert!(
            judged(&[(Signal, None), (Wait, Some(1)), (Wait, Some(1))]),
            "carried out"
        );
        assert!(!judged(&[
            (Signal, None),
            (Wait, Some(2)),
            (Wait, Some(1)),
            (Wait, Some(1))
        ]));
    }
}
