//! P2: no port waits for ever. The command at the front of a port's queue leaves its card, or its program is told how it has
//! ended, within a stated time.
//!
//! Commands of a port leave in the order in which they were posted, so what is behind the front one waits for it, and the
//! wait of each counts from when it has come to the front. There it may wait for its own page, which comes or ends it
//! within the deadline; for room in the window of a node that does not answer, until the link is given up; and for a link,
//! until its greetings are. A write that is held back (`docs/ABI.md`, chapter 10) ends without a word: its program has been
//! told of the failure before it.

use super::message::{Message, Posted};
use super::{Checker, Ledger, Limits, News, Promise, Verdict};
use crate::seen::{Ending, Seen};
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::status::Status;
use netvm_abi::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A port of a node.
type At = (NodeId, PortId);

/// What a port has posted and has not left.
#[derive(Default)]
struct Queue {
    commands: VecDeque<Posted>,
    /// Since when the front one is there.
    since: Nanos,
    /// The last one that was posted: a doorbell may be rung again.
    last: Option<u32>,
    /// Nodes and epochs in which something failed of which the receiver does not know: a write that asks for order behind
    /// that ends without a word.
    broken: BTreeSet<(u16, u16)>,
    /// Of some failures it is not known what failed.
    missed: bool,
}

impl Queue {
    /// Another command has come to the front.
    fn moved(&mut self, now: Nanos) {
        self.since = now;
        self.pass_held_back(now);
    }

    /// What ends without a word does not wait at the front.
    fn pass_held_back(&mut self, now: Nanos) {
        while let Some(front) = self.commands.front()
            && front.ends_without_a_word()
            && (self.missed || self.broken.contains(&(front.node, front.epoch)))
        {
            self.commands.pop_front();
            self.since = now;
        }
    }
}

/// Times the commands at the fronts of the ports' queues.
pub(super) struct Waits {
    limits: Limits,
    queues: BTreeMap<At, Queue>,
    hostile: BTreeSet<At>,
    /// Until when a card is switched off.
    paused: BTreeMap<NodeId, Nanos>,
}

impl Waits {
    /// A checker of these limits.
    pub(super) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            queues: BTreeMap::new(),
            hostile: BTreeSet::new(),
            paused: BTreeMap::new(),
        }
    }

    fn posted(&mut self, now: Nanos, at: At, command: Posted) {
        if self.hostile.contains(&at) {
            return;
        }
        let queue = self.queues.entry(at).or_default();
        if queue.last.replace(command.op) == Some(command.op) {
            return;
        }
        queue.commands.push_back(command);
        if queue.commands.len() == 1 {
            queue.moved(now);
        }
    }

    /// A command has left: those before it have ended, and have no frame.
    fn left(&mut self, now: Nanos, message: &Message) {
        let at = (NodeId(message.source), PortId(message.source_port));
        let Some(queue) = self.queues.get_mut(&at) else {
            return;
        };
        if let Some(place) = queue.commands.iter().position(|command| command.is(message)) {
            queue.commands.drain(..=place);
            queue.moved(now);
        }
    }

    /// A program is told how an operation has ended.
    fn ended(&mut self, now: Nanos, at: At, op: u32) {
        let Some(queue) = self.queues.get_mut(&at) else {
            return;
        };
        let is_front = queue.commands.front().is_some_and(|command| command.op == op);
        queue.commands.retain(|command| command.op != op);
        if is_front {
            queue.moved(now);
        }
    }

    /// A program is told of a failure. The receiver does not know of it if the operation has not left, or was lost with its
    /// link.
    fn failed(&mut self, now: Nanos, at: At, record: &ErrorRecord) {
        let op = record.op.0;
        if let Some(queue) = self.queues.get_mut(&at)
            && (record.status == Status::LinkLost || queue.commands.iter().any(|command| command.op == op))
        {
            queue.broken.insert((record.node.0, record.epoch.0));
            queue.pass_held_back(now);
        }
        self.ended(now, at, op);
    }

    fn forget_node(&mut self, node: NodeId) {
        self.queues.retain(|at, _| at.0 != node);
        self.hostile.retain(|at| at.0 != node);
    }

    fn bound(&self) -> Nanos {
        let Limits {
            deadline,
            loss,
            greeting,
            ..
        } = self.limits;
        deadline.after(loss).after(greeting)
    }
}

impl Checker for Waits {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match *fact {
            Seen::Posted {
                node,
                port,
                ref words,
                ..
            } => self.posted(now, (node, port), Posted::read(words)),
            Seen::Sent { ref frame } => {
                if let Some(message) = Message::read(frame) {
                    self.left(now, &message);
                }
            }
            Seen::Told { node, port, words } => {
                self.failed(now, (node, port), &ErrorRecord::decode(words));
            }
            Seen::Replied {
                node, port, words, ..
            } => self.ended(now, (node, port), words[0]),
            // Which ones is not told.
            Seen::ErrorsLost { node, port } => {
                let queue = self.queues.entry((node, port)).or_default();
                queue.commands.clear();
                queue.missed = true;
            }
            Seen::PortOpened { node, port, .. }
            | Seen::PortClosed { node, port }
            | Seen::Ends {
                node,
                port,
                what: Ending::Port,
            } => {
                self.queues.remove(&(node, port));
                self.hostile.remove(&(node, port));
            }
            Seen::Hostile { node, port } => {
                self.queues.remove(&(node, port));
                self.hostile.insert((node, port));
            }
            Seen::Restarted { node } | Seen::CardDead { node } => self.forget_node(node),
            Seen::CardPaused { node, until } => {
                self.paused.insert(node, until);
                if until == Nanos::MAX {
                    self.forget_node(node);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, _ledger: &Ledger) -> Verdict {
        let paused = |node: NodeId| match self.paused.get(&node) {
            Some(&until) if until < Nanos::MAX => until,
            _ => Nanos(0),
        };
        for (&(node, port), queue) in &self.queues {
            let Some(front) = queue.commands.front() else {
                continue;
            };
            let since = queue.since.max(paused(node)).max(paused(NodeId(front.node)));
            if since.after(self.bound()) < now {
                return Err(format!(
                    "operation {:#x} of port {port} of node {node} to node {} has waited {} us at the front of its queue, and \
                     has neither left nor ended",
                    front.op,
                    front.node,
                    (now.0 - since.0) / 1_000
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, PORT, caught, feed_at, sent};
    use super::*;
    use netvm_abi::descriptor::{Command, CommandFlags};
    use netvm_abi::wire::Kind;
    use netvm_abi::{ByteLen, OpId, VirtAddr};

    const BOUND: u64 = 1_700;

    fn waits() -> Waits {
        Waits::new(Limits {
            nodes: 2,
            deadline: Nanos(1_000),
            loss: Nanos(500),
            greeting: Nanos(200),
            ..Limits::default()
        })
    }

    fn with(op: u32, flags: CommandFlags) -> Seen {
        let command = Command {
            flags,
            node: NodeId(1),
            port: PortId(4),
            len: ByteLen(4),
            remote: VirtAddr(0x1000),
            op: OpId(op),
            ..Command::default()
        };
        Seen::Posted {
            node: NODE,
            port: PORT,
            words: command.encode(),
            inline: 0,
        }
    }

    fn posted(op: u32) -> Seen {
        with(op, CommandFlags::empty())
    }

    fn ordered(op: u32) -> Seen {
        with(op, CommandFlags::ORDERED)
    }

    fn replied(op: u32) -> Seen {
        Seen::Replied {
            node: NODE,
            port: PORT,
            slot: 0,
            words: [op, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// What is seen at 1,000, and the verdict at this time, if operation 1 was posted at 0.
    fn after(facts: &[Seen], at: u64) -> Verdict {
        let (mut waits, mut ledger) = (waits(), Ledger::default());
        feed_at(&mut waits, &mut ledger, Nanos(0), &[posted(1)])?;
        feed_at(&mut waits, &mut ledger, Nanos(1_000), facts)?;
        waits.tick(Nanos(at), &ledger)
    }

    #[test]
    fn a_command_that_neither_leaves_nor_ends_is_caught() {
        assert_eq!(after(&[], BOUND), Ok(()));
        caught(after(&[], BOUND + 1), "has neither left nor ended");
        caught(after(&[posted(2)], BOUND + 1), "operation 0x1");
        // A doorbell that is rung again is no command.
        caught(after(&[posted(1)], BOUND + 1), "operation 0x1");
    }

    #[test]
    fn a_write_that_is_held_back_ends_without_a_word() {
        let told = |op, status| Seen::Told {
            node: NODE,
            port: PORT,
            words: ErrorRecord {
                op: OpId(op),
                status,
                node: NodeId(1),
                ..ErrorRecord::default()
            }
            .encode(),
        };
        // One that had left is lost with its link, or one in the queue fails at its source.
        let one_lost = [told(1, Status::Unmapped), ordered(2)];
        assert_eq!(after(&one_lost, 10 * BOUND), Ok(()));
        let one_left = [told(1, Status::Unmapped), told(0, Status::LinkLost), ordered(2)];
        assert_eq!(after(&one_left, 10 * BOUND), Ok(()));
        // The receiver knows of this one: what is behind it leaves.
        let known = [replied(1), told(0, Status::Unmapped), ordered(2)];
        caught(after(&known, 1_001 + BOUND), "operation 0x2");
        // What asks for no order is told.
        caught(
            after(&[told(1, Status::LinkLost), posted(2)], 1_001 + BOUND),
            "operation 0x2",
        );
    }

    #[test]
    fn each_way_to_end_is_seen_and_the_next_one_has_a_time_of_its_own() {
        let told = ErrorRecord {
            op: OpId(1),
            ..ErrorRecord::default()
        };
        let (node, port) = (NODE, PORT);
        let ends = [
            Seen::Told {
                node,
                port,
                words: told.encode(),
            },
            replied(1),
            Seen::ErrorsLost { node, port },
            Seen::PortClosed { node, port },
            Seen::CardDead { node },
        ];
        for end in ends {
            assert_eq!(after(std::slice::from_ref(&end), 10 * BOUND), Ok(()), "{end:?}");
            caught(after(&[end, posted(2)], 1_001 + BOUND), "operation 0x2");
        }
        // The frame of operation 9 says that those before it have ended.
        let left = sent(frame(Kind::Write, 5, 0x1000, b"data", 0));
        let Seen::Sent { frame } = &left else { panic!() };
        let op = Message::read(frame).expect("a message").op;
        assert_eq!(after(&[posted(op), left], 10 * BOUND), Ok(()));
    }
}
