//! A channel: one sender, one receiver, and a number of entries between them.

use super::entries::Entries;
use super::linear::{Object, Operation};
use super::{Histories, Kept, Kind};

/// What is asked of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelOp {
    /// Sends a message, once one of so many entries is free.
    Send { number: u64, capacity: u32 },
    /// Takes the next message.
    Receive,
    /// The receiver gives back the entry of the last one.
    Free,
    /// The sender ends the channel. Without an answer: it goes without waiting for what it has sent.
    Close,
    /// The receiver goes. Has no answer.
    Leave,
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelAnswer {
    /// To a `Close`: everything has landed.
    Done,
    /// To a `Receive`: which message, and whether it is whole.
    Message { number: u64, whole: bool },
    /// The other end has gone: to a `Receive` after the last message, or to the sender.
    Closed,
    /// A message is lost, or the other end may be. In a run whose messages all arrive there is no excuse for it.
    Broken { excused: bool },
}

/// The channel.
#[derive(Clone, Debug)]
pub(crate) struct Channel;

/// What it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Between {
    entries: Entries,
    /// The sender has ended it.
    closed: bool,
    /// It was told that everything has landed.
    assured: bool,
    /// The receiver has gone.
    left: bool,
    /// The receiver was told that a message is lost.
    broken: bool,
}

impl Kept for Channel {
    const NAME: &'static str = "channel";
    const NEW: Between = Between {
        entries: Entries::NEW,
        closed: false,
        assured: false,
        left: false,
        broken: false,
    };

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.channels
    }

    /// A message that the sender was told is lost may have come. A receiver that was cut off has told no program of what it
    /// took.
    fn complete(history: &mut Vec<Operation<Self>>, faulty: bool) {
        for operation in &mut *history {
            if let (true, Some((_, ChannelAnswer::Broken { excused }))) = (faulty, &mut operation.returned) {
                *excused = true;
                if matches!(operation.op, ChannelOp::Send { .. } | ChannelOp::Close) {
                    operation.returned = None;
                }
            }
        }
        history.retain(|operation| operation.returned.is_some() || operation.op != ChannelOp::Receive);
    }
}

impl Object for Channel {
    type State = Between;
    type Op = ChannelOp;
    type Answer = ChannelAnswer;

    fn step(state: &Between, op: &ChannelOp, answer: Option<&ChannelAnswer>) -> Option<Between> {
        let mut next = state.clone();
        match (*op, answer) {
            (ChannelOp::Send { number, capacity }, None | Some(ChannelAnswer::Done)) => {
                if state.closed {
                    return None;
                }
                next.entries.send(number, capacity)?;
            }
            (ChannelOp::Close, None) => next.closed = true,
            (ChannelOp::Close, Some(ChannelAnswer::Done)) => {
                next.closed = true;
                next.assured = true;
            }
            // The receiver says so, or is found gone.
            (
                ChannelOp::Send { .. } | ChannelOp::Close,
                Some(ChannelAnswer::Closed | ChannelAnswer::Broken { .. }),
            ) => {
                if !state.left {
                    return None;
                }
                next.closed = true;
            }
            (ChannelOp::Receive, Some(&ChannelAnswer::Message { number, whole })) => {
                if !whole || state.broken {
                    return None;
                }
                next.entries.receive(number)?;
            }
            (ChannelOp::Receive, Some(ChannelAnswer::Closed)) => {
                return (state.closed && state.entries.is_empty()).then_some(next);
            }
            (ChannelOp::Receive, Some(&ChannelAnswer::Broken { excused })) => {
                // What the sender was told of has landed. The word that it was all may be missing: its failure is no flush's.
                if !excused || (state.assured && !state.entries.is_empty()) {
                    return None;
                }
                next.broken = true;
            }
            (ChannelOp::Free, _) => next.entries.free()?,
            (ChannelOp::Leave, _) => next.left = true,
            _ => return None,
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ObjectId;
    use super::*;

    const CHANNEL: ObjectId = ObjectId { life: 1, index: 0 };

    type Step = (ChannelOp, Option<ChannelAnswer>);

    /// Operations one after the other; an answer of nothing never comes.
    fn judged_in(faulty: bool, operations: &[Step]) -> bool {
        let mut histories = Histories::new(faulty);
        for &(op, answer) in operations {
            let call = histories.call::<Channel>(CHANNEL, op);
            if let Some(answer) = answer {
                histories.returns(call, answer);
            }
        }
        histories.judge().is_ok_and(|judged| judged.undecided == 0)
    }

    fn judged(operations: &[Step]) -> bool {
        judged_in(false, operations)
    }

    fn send(number: u64) -> Step {
        let op = ChannelOp::Send { number, capacity: 2 };
        (op, Some(ChannelAnswer::Done))
    }

    fn taken(number: u64) -> Step {
        let answer = ChannelAnswer::Message { number, whole: true };
        (ChannelOp::Receive, Some(answer))
    }

    fn told(op: ChannelOp, answer: ChannelAnswer) -> Step {
        (op, Some(answer))
    }

    const FREE: Step = (ChannelOp::Free, Some(ChannelAnswer::Done));
    const CLOSE: Step = (ChannelOp::Close, Some(ChannelAnswer::Done));
    const OVER: Step = (ChannelOp::Receive, Some(ChannelAnswer::Closed));
    const BROKEN: ChannelAnswer = ChannelAnswer::Broken { excused: false };

    #[test]
    fn each_message_comes_once_in_order_and_whole() {
        let two = [send(0), send(1)];
        let then = |more: &[Step]| judged(&[&two, more].concat());
        assert!(then(&[taken(0), FREE, taken(1), FREE]));
        assert!(!then(&[taken(1)]), "out of order, or one is lost");
        assert!(!then(&[taken(0), FREE, taken(0)]), "twice");
        assert!(!then(&[taken(0), taken(1), taken(2)]), "from nowhere");
        let part = ChannelAnswer::Message {
            number: 0,
            whole: false,
        };
        assert!(!then(&[told(ChannelOp::Receive, part)]));
    }

    #[test]
    fn no_more_is_sent_than_there_are_entries() {
        assert!(!judged(&[send(0), send(1), send(2)]));
        assert!(!judged(&[send(0), send(1), taken(0), send(2)]), "it is borrowed");
        assert!(judged(&[send(0), send(1), taken(0), FREE, send(2)]));
    }

    #[test]
    fn a_channel_that_was_closed_well_loses_nothing() {
        for faulty in [false, true] {
            let judged = |operations: &[Step]| judged_in(faulty, operations);
            assert!(judged(&[send(0), CLOSE, taken(0), OVER]));
            assert!(!judged(&[send(0), CLOSE, OVER]), "one is lost");
            let broken = told(ChannelOp::Receive, BROKEN);
            assert!(!judged(&[send(0), CLOSE, broken]));
            assert_eq!(judged(&[send(0), CLOSE, taken(0), FREE, broken]), faulty);
            assert_eq!(judged(&[send(0), (ChannelOp::Close, None), broken]), faulty);
            assert_eq!(judged(&[send(0), broken]), faulty);
            assert!(!judged(&[send(0), broken, taken(0)]), "after the end");
            assert!(!judged(&[send(0), taken(0), OVER]), "the sender is there");
            assert!(!judged(&[CLOSE, send(0)]), "after the end");
        }
    }

    #[test]
    fn a_sender_is_told_of_a_receiver_that_has_gone_and_of_no_other() {
        let leave = (ChannelOp::Leave, None);
        let refused = |answer| told(send(0).0, answer);
        for faulty in [false, true] {
            let judged = |operations: &[Step]| judged_in(faulty, operations);
            assert!(!judged(&[refused(ChannelAnswer::Closed)]));
            assert!(judged(&[leave, refused(ChannelAnswer::Closed)]));
            assert_eq!(judged(&[refused(BROKEN)]), faulty);
            assert!(judged(&[leave, refused(BROKEN)]));
        }
        // What it was told may be lost may have come.
        assert!(judged_in(true, &[refused(BROKEN), taken(0)]));
        assert!(!judged_in(
            true,
            &[leave, refused(ChannelAnswer::Closed), taken(0)]
        ));
    }
}
