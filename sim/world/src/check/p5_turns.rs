//! P5: what other ports of a node post does not keep a modest port from its turn.
//!
//! The modest port posts one command after the other. Each leaves its card within a stated time; [`crate::crowd`] derives
//! that time. Only worlds of a cost model have such a port: in worlds of seeds cards pause and links are cut.

use super::message::{Message, Posted};
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::{Nanos, NodeId, PortId};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The port that is watched.
#[derive(Clone, Debug)]
pub(crate) struct Modest {
    /// Its node.
    pub(crate) node: NodeId,
    /// Its number there.
    pub(crate) port: PortId,
    /// How long a command may wait, from its post to when it has left.
    pub(crate) bound: Nanos,
    /// The longest that one has waited.
    pub(crate) longest: Rc<Cell<Nanos>>,
}

/// Times each command of the modest port.
pub(super) struct Turns {
    modest: Modest,
    /// Commands that have not left, oldest first.
    waiting: VecDeque<(Nanos, Posted)>,
    /// When the next frame leaves, if not at once.
    leaves: Nanos,
}

impl Turns {
    pub(super) fn new(modest: Modest) -> Self {
        Self {
            modest,
            waiting: VecDeque::new(),
            leaves: Nanos(0),
        }
    }

    fn judge(&self, posted: Nanos, now: Nanos) -> Verdict {
        let (waited, bound) = (now.0.saturating_sub(posted.0), self.modest.bound.0);
        if waited > self.modest.longest.get().0 {
            self.modest.longest.set(Nanos(waited));
        }
        if waited > bound {
            return Err(format!(
                "a command of port {} of node {} waits {waited} ns for its turn, bound {bound} ns",
                self.modest.port, self.modest.node
            ));
        }
        Ok(())
    }
}

impl Checker for Turns {
    fn promise(&self) -> Promise {
        Promise::P5
    }

    fn see(&mut self, now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match fact {
            Seen::Posted {
                node, port, words, ..
            } if (*node, *port) == (self.modest.node, self.modest.port) => {
                self.waiting.push_back((now, Posted::read(words)));
            }
            Seen::Leaves { at } => self.leaves = *at,
            Seen::Sent { frame } => {
                let leaves = std::mem::take(&mut self.leaves).max(now);
                let Some(message) = Message::read(frame) else {
                    return Ok(());
                };
                let from = (NodeId(message.source), PortId(message.source_port));
                if from != (self.modest.node, self.modest.port) {
                    return Ok(());
                }
                let at = self.waiting.iter().position(|(_, posted)| posted.is(&message));
                // Those before it have failed, and have no frame.
                if let Some((posted, _)) = at.and_then(|at| self.waiting.drain(..=at).next_back()) {
                    return self.judge(posted, leaves);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, _ledger: &Ledger) -> Verdict {
        self.waiting
            .front()
            .map_or(Ok(()), |&(posted, _)| self.judge(posted, now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, PORT, caught, feed_at, sent};
    use super::*;
    use netvm_abi::descriptor::{Command, Opcode};
    use netvm_abi::wire::Kind;
    use netvm_abi::{ByteLen, VirtAddr};

    fn turns() -> Turns {
        Turns::new(Modest {
            node: NODE,
            port: PORT,
            bound: Nanos(1_000),
            longest: Rc::default(),
        })
    }

    fn posted(node: NodeId, port: PortId) -> Seen {
        let command = Command {
            opcode: Opcode::Write,
            node: NodeId(1),
            port: PortId(4),
            remote: VirtAddr(0x1000),
            len: ByteLen(4),
            ..Command::default()
        };
        let words = command.encode();
        Seen::Posted {
            node,
            port,
            words,
            inline: 0,
        }
    }

    fn leaves() -> Seen {
        sent(frame(Kind::Write, 5, 0x1000, b"data", 0))
    }

    #[test]
    fn a_command_that_leaves_late_is_caught() {
        for (delay, late) in [(1_000, false), (1_001, true)] {
            let (mut turns, mut ledger) = (turns(), Ledger::default());
            let post = [posted(NODE, PORT)];
            feed_at(&mut turns, &mut ledger, Nanos(5), &post).expect("just posted");
            let verdict = feed_at(&mut turns, &mut ledger, Nanos(5 + delay), &[leaves()]);
            if late {
                caught(verdict, "waits 1001 ns for its turn");
            } else {
                verdict.expect("in time");
            }
            assert_eq!(turns.modest.longest.get(), Nanos(delay));
        }
        let (mut turns, mut ledger) = (turns(), Ledger::default());
        let at = Nanos(2_000);
        let facts = [posted(NODE, PORT), Seen::Leaves { at }, leaves()];
        caught(
            feed_at(&mut turns, &mut ledger, Nanos(5), &facts),
            "waits 1995 ns",
        );
    }

    #[test]
    fn a_command_that_does_not_leave_is_caught_by_the_clock() {
        let (mut turns, mut ledger) = (turns(), Ledger::default());
        let facts = [posted(NODE, PORT), posted(NODE, PortId(9))];
        feed_at(&mut turns, &mut ledger, Nanos(5), &facts).expect("just posted");
        turns.tick(Nanos(1_005), &ledger).expect("in time");
        caught(turns.tick(Nanos(1_006), &ledger), "for its turn");
        // Another port's is not watched, and what has left does not wait.
        let _ = feed_at(&mut turns, &mut ledger, Nanos(1_000), &[leaves()]);
        turns.tick(Nanos(9_000), &ledger).expect("nothing waits");
    }
}
