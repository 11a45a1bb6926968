//! What became of a port's appends to shared queues (`docs/decisions/0023-refused-append.md`).
//!
//! A full queue refuses an append, and then refuses silently every later one of the stream that does not *name* this
//! refusal. So a sender that knows of a refusal knows what became of all appends that it posted before: those before
//! the refused one have their places, those after it have none. From then on its appends name the refusal, and get
//! places again.
//!
//! A refusal comes by its error record, or by the answer to a flush, or by both in any order. The next one of a stream
//! can only come to an append that names this one, so refusals come in the order of their numbers: one that is not
//! higher than the last is told a second time.

use crate::poster::INSTEAD_OF_0;
use netvm_abi::{Epoch, NodeId, OpId};
use std::collections::{BTreeMap, VecDeque};

/// Refusals that are remembered: the link may fail before the refused message is acknowledged.
const REMEMBERED: usize = 128;

/// What has become of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The answer to the flush that was posted after it tells.
    Unknown,
    /// It has its place, unless it has failed itself.
    Placed,
    /// It has none: it was refused, or another append of its stream before it.
    NoPlace,
}

/// An append whose sender waits.
#[derive(Debug)]
struct Append {
    node: NodeId,
    op: OpId,
    /// Which command of the port it is.
    number: u64,
    epoch: Epoch,
    fate: Fate,
}

/// The latest refusal of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// What appends name; 0 for none.
    named: OpId,
    /// Refusals up to this command of the port were heard of.
    heard: u64,
}

/// The appends of a port.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    /// Those whose senders wait to hear what became of them.
    awaited: Vec<Append>,
    /// By node, where there are appends.
    latest: BTreeMap<NodeId, Latest>,
    /// Those that were refused lately.
    refused: VecDeque<OpId>,
    /// Which command of the port the latest append is. Operations are numbered modulo 2^32, with a hole where 0 would be.
    latest_command: u64,
}

impl Appends {
    /// The port's next command, this one, is an append.
    pub(crate) const fn begin(&mut self, command: u64) {
        self.latest_command = command;
    }

    /// What an append to `node` names: the latest refusal, 0 for none.
    pub(crate) fn name(&self, node: NodeId) -> OpId {
        self.latest.get(&node).map_or(OpId(0), |latest| latest.named)
    }

    /// Which command of the port an append is: the latest that has this number. Fewer than 2^31 commands are posted before
    /// all has been heard of it.
    fn command(&self, op: OpId) -> u64 {
        let before = |number: u32| (self.latest_command as u32).wrapping_sub(number);
        let before = match op {
            INSTEAD_OF_0 => before(0).min(before(op.0)),
            op => before(op.0),
        };
        self.latest_command.saturating_sub(before.into())
    }

    /// The append that [has begun](Self::begin) has a sender that comes to hear what became of it.
    pub(crate) fn watch(&mut self, node: NodeId, op: OpId, epoch: Epoch) {
        self.awaited.push(Append {
            node,
            op,
            number: self.latest_command,
            epoch,
            fate: Fate::Unknown,
        });
    }

    /// The sender of an append has come.
    pub(crate) fn fate(&mut self, op: OpId) -> Fate {
        let at = self.awaited.iter().position(|append| append.op == op);
        at.map_or(Fate::Unknown, |at| self.awaited.swap_remove(at).fate)
    }

    /// An append of this epoch, or of an earlier one, was refused. Tells whether its sender comes for that; nothing if
    /// it was known before.
    pub(crate) fn refused(&mut self, node: NodeId, op: OpId, epoch: Epoch) -> Option<bool> {
        let number = self.command(op);
        let latest = self.latest.entry(node).or_default();
        if number <= latest.heard {
            return None;
        }
        *latest = Latest {
            named: op,
            heard: number,
        };
        let mut comes = false;
        for append in self.awaited.iter_mut().filter(|append| append.node == node) {
            comes |= append.op == op;
            if append.fate != Fate::Unknown {
                continue;
            }
            if append.number >= number {
                // Nothing that was posted before now names this refusal.
                append.fate = Fate::NoPlace;
            } else if append.epoch == epoch {
                // What holds it back would have held the refused one back, too. In another epoch it may have been
                // held back behind a failure.
                append.fate = Fate::Placed;
            }
        }
        if self.refused.len() == REMEMBERED {
            self.refused.pop_front();
        }
        self.refused.push_back(op);
        Some(comes)
    }

    /// Whether an append was refused lately.
    pub(crate) fn was_refused(&self, op: OpId) -> bool {
        self.refused.contains(&op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    /// Posts an append whose sender waits; says what it names.
    fn post(appends: &mut Appends, node: NodeId, op: u32, epoch: u16) -> OpId {
        appends.begin(op.into());
        appends.watch(node, OpId(op), Epoch(epoch));
        appends.name(node)
    }

    #[test]
    fn a_refusal_tells_what_became_of_the_appends_around_it() {
        let mut appends = Appends::default();
        for (node, op, epoch) in [(1, 3, 8), (1, 4, 9), (1, 5, 9), (1, 6, 9), (2, 7, 9), (1, 8, 10)] {
            assert_eq!(post(&mut appends, NodeId(node), op, epoch), OpId(0));
        }
        assert_eq!(
            appends.refused(NODE, OpId(5), Epoch(9)),
            Some(true),
            "its sender comes"
        );
        assert_eq!(appends.name(NodeId(2)), OpId(0));
        assert_eq!(post(&mut appends, NODE, 9, 9), OpId(5));
        for (op, fate) in [
            (3, Fate::Unknown),
            (4, Fate::Placed),
            (5, Fate::NoPlace),
            (6, Fate::NoPlace),
            (7, Fate::Unknown),
            (8, Fate::NoPlace),
            (9, Fate::Unknown),
        ] {
            assert_eq!(appends.fate(OpId(op)), fate, "{op}");
        }
        assert_eq!(appends.fate(OpId(4)), Fate::Unknown, "its sender has come");
    }

    #[test]
    fn a_refusal_is_told_once_by_record_and_flush_in_any_order() {
        let mut appends = Appends::default();
        appends.begin(5);
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), Some(false));
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), None);
        appends.begin(6);
        assert_eq!(appends.name(NODE), OpId(5));
        assert_eq!(appends.refused(NODE, OpId(6), Epoch(0)), Some(false));
        // The record of the first comes late: nothing behind it is judged, and nothing names it again.
        post(&mut appends, NODE, 7, 0);
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), None);
        assert_eq!(appends.name(NODE), OpId(6));
        assert_eq!(appends.fate(OpId(7)), Fate::Unknown);
        assert!(appends.was_refused(OpId(5)) && !appends.was_refused(OpId(7)));
    }

    #[test]
    fn numbers_wrap() {
        let mut appends = Appends::default();
        let mut command = 0_u64;
        // Some of these distances are more than half of all numbers, and one is all of them.
        for step in [5, 1 << 31, 3, (1 << 32) - 2, (1 << 31) + 7, 1 << 30, 1 << 32, 1] {
            command += step;
            appends.begin(command);
            let op = OpId(command as u32);
            assert_eq!(appends.refused(NODE, op, Epoch(0)), Some(false), "{step}");
            assert_eq!(appends.refused(NODE, op, Epoch(0)), None, "{step}");
        }
    }

    #[test]
    fn the_append_without_a_number_stands_between_its_neighbours() {
        let wrap = 1_u64 << 32;
        let last = OpId(u32::MAX - 3);
        let post = |appends: &mut Appends, command: u64| {
            appends.begin(command);
            let op = match command as u32 {
                0 => INSTEAD_OF_0,
                op => OpId(op),
            };
            appends.watch(NODE, op, Epoch(0));
            appends.name(NODE)
        };
        let mut appends = Appends::default();
        assert_eq!(post(&mut appends, wrap - 4), OpId(0));
        assert_eq!(post(&mut appends, wrap), OpId(0));
        assert_eq!(appends.refused(NODE, last, Epoch(0)), Some(true));
        assert_eq!(
            appends.fate(INSTEAD_OF_0),
            Fate::NoPlace,
            "posted after the refused one"
        );
        assert_eq!(post(&mut appends, wrap + 1), last);
        assert_eq!(appends.refused(NODE, OpId(1), Epoch(0)), Some(true));
        assert_eq!(appends.refused(NODE, last, Epoch(0)), None, "told a second time");
        assert_eq!(appends.refused(NODE, INSTEAD_OF_0, Epoch(0)), None);

        let mut appends = Appends::default();
        post(&mut appends, wrap - 4);
        assert_eq!(appends.refused(NODE, last, Epoch(0)), Some(true));
        assert_eq!(post(&mut appends, wrap), last);
        post(&mut appends, wrap + 1);
        assert_eq!(appends.refused(NODE, INSTEAD_OF_0, Epoch(0)), Some(true));
        assert_eq!(appends.fate(OpId(1)), Fate::NoPlace);
        assert_eq!(appends.refused(NODE, last, Epoch(0)), None, "told a second time");
        // At 2^31 it is a number like the others.
        for command in [wrap + (1 << 31) - 1, wrap + (1 << 31), wrap + (1 << 31) + 1] {
            post(&mut appends, command);
            let op = OpId(command as u32);
            assert_eq!(appends.refused(NODE, op, Epoch(0)), Some(true), "{op:?}");
            assert_eq!(appends.refused(NODE, op, Epoch(0)), None, "{op:?}");
        }
    }
}
