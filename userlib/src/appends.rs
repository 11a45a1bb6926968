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

use crate::failure::after;
use netvm_abi::{Epoch, NodeId, OpId};
use std::collections::{BTreeMap, VecDeque};

/// Refusals that are remembered: the link may fail before the refused message is acknowledged.
const REMEMBERED: usize = 128;
/// A refusal that comes after as many commands as this is news, whatever the last one was.
const OLDEST: u32 = 1 << 30;

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
    epoch: Epoch,
    fate: Fate,
}

/// The latest refusal of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// What appends name; 0 for none.
    named: OpId,
    /// Refusals up to this number were heard of.
    heard: u32,
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
}

impl Appends {
    /// An append of this number is posted to `node`: the refusal that it names, 0 for none.
    pub(crate) fn name(&mut self, node: NodeId, op: OpId) -> OpId {
        let latest = self.latest.entry(node).or_default();
        // Numbers wrap. No refusal takes so long that its append would not stand between these two.
        if op.0.wrapping_sub(latest.heard) > OLDEST {
            latest.heard = op.0.wrapping_sub(OLDEST / 2);
        }
        latest.named
    }

    /// An append has been posted whose sender comes to hear what became of it.
    pub(crate) fn watch(&mut self, node: NodeId, op: OpId, epoch: Epoch) {
        self.awaited.push(Append {
            node,
            op,
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
        let latest = self.latest.entry(node).or_default();
        if !after(op.0, latest.heard) {
            return None;
        }
        *latest = Latest {
            named: op,
            heard: op.0,
        };
        let mut comes = false;
        for append in self.awaited.iter_mut().filter(|append| append.node == node) {
            comes |= append.op == op;
            if append.fate != Fate::Unknown {
                continue;
            }
            if !after(op.0, append.op.0) {
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

    #[test]
    fn a_refusal_tells_what_became_of_the_appends_around_it() {
        let mut appends = Appends::default();
        for (node, op, epoch) in [(1, 3, 8), (1, 4, 9), (1, 5, 9), (1, 6, 9), (2, 7, 9), (1, 8, 10)] {
            appends.watch(NodeId(node), OpId(op), Epoch(epoch));
        }
        assert_eq!(appends.name(NODE, OpId(9)), OpId(0));
        assert_eq!(
            appends.refused(NODE, OpId(5), Epoch(9)),
            Some(true),
            "its sender comes"
        );
        assert_eq!(appends.name(NODE, OpId(9)), OpId(5));
        assert_eq!(appends.name(NodeId(2), OpId(9)), OpId(0));
        appends.watch(NODE, OpId(9), Epoch(9));
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
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), Some(false));
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), None);
        assert_eq!(appends.name(NODE, OpId(6)), OpId(5));
        assert_eq!(appends.refused(NODE, OpId(6), Epoch(0)), Some(false));
        // The record of the first comes late: nothing behind it is judged, and nothing names it again.
        appends.watch(NODE, OpId(7), Epoch(0));
        assert_eq!(appends.refused(NODE, OpId(5), Epoch(0)), None);
        assert_eq!(appends.name(NODE, OpId(8)), OpId(6));
        assert_eq!(appends.fate(OpId(7)), Fate::Unknown);
        assert!(appends.was_refused(OpId(5)) && !appends.was_refused(OpId(7)));
    }

    #[test]
    fn numbers_wrap() {
        let mut appends = Appends::default();
        let mut op = 0_u32;
        // Some of these distances are more than half of all numbers.
        for step in [5, 1 << 31, 3, u32::MAX - 2, (1 << 31) + 7, 1 << 30, 1] {
            op = op.wrapping_add(step);
            appends.name(NODE, OpId(op));
            assert_eq!(appends.refused(NODE, OpId(op), Epoch(0)), Some(false), "{step}");
            assert_eq!(appends.refused(NODE, OpId(op), Epoch(0)), None, "{step}");
        }
    }
}
