//! A shared queue: any number of senders, and one receiver.

use super::entries::Entries;
use super::linear::{Object, Operation};
use super::{Histories, Kept, Kind};
use std::collections::BTreeMap;

/// What is asked of a shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedOp {
    /// Sends a message, if one of so many places is free.
    Send {
        number: u64,
        capacity: u32,
        /// Which of the received messages it is. Not asked by the program: follows from what the receiver was told.
        rank: Option<usize>,
    },
    /// Takes the next message.
    Receive,
    /// The receiver gives back the place of the last one.
    Free,
    /// The receiver goes, and has taken all that there was.
    Drain,
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedAnswer {
    /// Done.
    Done,
    /// To a `Receive`: which message, and whether it is whole and from its sender.
    Message { number: u64, whole: bool },
}

/// The queue.
#[derive(Clone, Debug)]
pub(crate) struct SharedQueue;

/// What it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Places {
    entries: Entries,
    /// Messages that have got a place and were received, or will be.
    placed: usize,
    /// Before the next one lies a message that was never received: none behind it was, either.
    blocked: bool,
}

impl Kept for SharedQueue {
    const NAME: &'static str = "shared queue";
    const NEW: Places = Places {
        entries: Entries::NEW,
        placed: 0,
        blocked: false,
    };

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.shared_queues
    }

    /// The order in which messages were received is the order in which they got their places. So the search does not have to
    /// guess that. A message without an answer that was never received explains nothing.
    fn complete(history: &mut Vec<Operation<Self>>, _faulty: bool) {
        let mut received: Vec<(u64, u64)> = Vec::new();
        for operation in &*history {
            if let Some((_, SharedAnswer::Message { number, .. })) = operation.returned {
                received.push((operation.called, number));
            }
        }
        received.sort_unstable();
        let mut ranks = BTreeMap::new();
        for (at, (_, number)) in received.into_iter().enumerate() {
            ranks.entry(number).or_insert(at);
        }
        for operation in &mut *history {
            if let SharedOp::Send { number, rank, .. } = &mut operation.op {
                *rank = ranks.get(number).copied();
            }
        }
        history.retain(|operation| match operation.op {
            SharedOp::Send { rank, .. } => rank.is_some() || operation.returned.is_some(),
            SharedOp::Free => true,
            SharedOp::Receive | SharedOp::Drain => operation.returned.is_some(),
        });
    }
}

impl Object for SharedQueue {
    type State = Places;
    type Op = SharedOp;
    type Answer = SharedAnswer;

    fn step(state: &Places, op: &SharedOp, answer: Option<&SharedAnswer>) -> Option<Places> {
        let mut next = state.clone();
        match (*op, answer) {
            (
                SharedOp::Send {
                    number,
                    capacity,
                    rank,
                },
                _,
            ) => {
                match rank {
                    Some(rank) if rank != state.placed || state.blocked => return None,
                    Some(_) => next.placed += 1,
                    None => next.blocked = true,
                }
                next.entries.send(number, capacity)?;
            }
            (SharedOp::Receive, Some(&SharedAnswer::Message { number, whole })) => {
                if !whole {
                    return None;
                }
                next.entries.receive(number)?;
            }
            (SharedOp::Free, _) => next.entries.free()?,
            (SharedOp::Drain, _) => return state.entries.is_empty().then_some(next),
            (SharedOp::Receive, _) => return None,
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ObjectId;
    use super::*;

    const QUEUE: ObjectId = ObjectId { life: 1, index: 0 };

    type Step = (SharedOp, Option<SharedAnswer>);

    /// Operations by call and return; a return of 0 never comes.
    fn judged_at(operations: &[(Step, u64, u64)]) -> bool {
        let mut history: Vec<_> = operations
            .iter()
            .map(|&((op, answer), called, returned)| Operation::<SharedQueue> {
                op,
                called,
                returned: answer.filter(|_| returned > 0).map(|answer| (returned, answer)),
            })
            .collect();
        SharedQueue::complete(&mut history, true);
        super::super::linear::judge::<SharedQueue>(SharedQueue::NEW, &history)
            == super::super::linear::Judgement::Linearizable
    }

    /// One after the other.
    fn judged(operations: &[Step]) -> bool {
        let mut histories = Histories::default();
        for &(op, answer) in operations {
            let call = histories.call::<SharedQueue>(QUEUE, op);
            if let Some(answer) = answer {
                histories.returns(call, answer);
            }
        }
        histories.judge().is_ok_and(|judged| judged.undecided == 0)
    }

    fn send(number: u64) -> Step {
        let op = SharedOp::Send {
            number,
            capacity: 2,
            rank: None,
        };
        (op, Some(SharedAnswer::Done))
    }

    fn taken(number: u64) -> Step {
        let answer = SharedAnswer::Message { number, whole: true };
        (SharedOp::Receive, Some(answer))
    }

    const FREE: Step = (SharedOp::Free, Some(SharedAnswer::Done));
    const DRAIN: Step = (SharedOp::Drain, Some(SharedAnswer::Done));

    #[test]
    fn each_message_comes_once_in_the_order_of_the_places() {
        let two = [send(7), send(4)];
        let then = |more: &[Step]| judged(&[&two, more].concat());
        assert!(then(&[taken(7), FREE, taken(4), FREE, DRAIN]));
        assert!(!then(&[taken(4), FREE, taken(7)]), "out of order");
        assert!(!then(&[taken(7), FREE, taken(7)]), "twice");
        assert!(!then(&[taken(7), FREE, taken(5)]), "from nowhere");
        assert!(!then(&[taken(7), FREE, DRAIN]), "one is lost");
        assert!(then(&[taken(7), FREE]), "the receiver has died");
        assert!(!judged(&[send(7), send(4), send(5)]), "no place is free");
        assert!(judged(&[send(7), send(4), taken(7), FREE, send(5)]));
    }

    #[test]
    fn those_at_a_time_come_in_either_order_and_others_in_theirs() {
        let (first, second) = ((send(1), 1, 10), (send(2), 2, 11));
        for [early, late] in [[1, 2], [2, 1]] {
            let both = [first, second, (taken(early), 20, 21), (FREE, 22, 23)];
            assert!(judged_at(
                &[&both[..], &[(taken(late), 24, 25), (FREE, 26, 27)]].concat()
            ));
        }
        let late = (send(2), 12, 13);
        let swapped = [
            first,
            late,
            (taken(2), 20, 21),
            (FREE, 22, 23),
            (taken(1), 24, 25),
        ];
        assert!(!judged_at(&swapped));
    }

    #[test]
    fn a_message_without_an_answer_may_come_or_not() {
        let unknown = (send(1).0, None);
        assert!(judged(&[unknown, send(2), taken(2), FREE, DRAIN]));
        assert!(judged(&[unknown, send(2), taken(1), FREE, taken(2), FREE, DRAIN]));
        assert!(judged(&[unknown, send(2), taken(2), FREE, taken(1), FREE, DRAIN]));
        assert!(!judged(&[taken(1), unknown]), "not before its call");
    }
}
