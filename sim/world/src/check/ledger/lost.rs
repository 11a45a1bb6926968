//! Operations that never left: a command that fails at its source makes no frame, so it is known by what leaves
//! after it. A port's commands leave in the order in which they were posted; when one leaves, every earlier one that
//! has not will never do so.
//!
//! From then on the port's stream to that node is *broken* in the epoch of the lost command, until the library has
//! told the program and posts in another one. What asks for order in a broken stream must have no effect.

use super::super::message::{Message, Posted, WRITE};
use super::Ledger;
use netvm_abi::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A sending port and a node that it sends to.
type Stream = (u16, u16, u16);

/// What was posted and has not left, and which streams are broken.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// By node and port, in the order of posting.
    posted: BTreeMap<(u16, u16), VecDeque<Command>>,
    /// Ports that post anything, also behind the checker's back.
    hostile: BTreeSet<(u16, u16)>,
    /// Owner of the sending port and epoch of what was lost.
    broken: BTreeMap<Stream, BTreeSet<(u32, u16)>>,
}

/// A command, and when it was posted.
pub(in crate::check) type Command = (Nanos, Posted);

/// Commands of a port that are remembered, at most: its queue and its card's pipeline hold fewer.
const KEPT: usize = 256;

impl Lost {
    /// A port has another owner, or none.
    pub(super) fn forget(&mut self, node: u16, port: u16) {
        self.posted.remove(&(node, port));
        self.hostile.remove(&(node, port));
        self.broken
            .retain(|stream, _| (stream.0, stream.1) != (node, port));
    }

    /// A node has nothing left of what it was.
    pub(super) fn forget_node(&mut self, node: u16) {
        self.posted.retain(|key, _| key.0 != node);
        self.hostile.retain(|key| key.0 != node);
        self.broken.retain(|stream, _| stream.0 != node);
    }

    pub(super) fn hostile(&mut self, node: u16, port: u16) {
        self.posted.remove(&(node, port));
        self.hostile.insert((node, port));
    }

    /// An app has posted a command.
    pub(super) fn posted(&mut self, node: u16, port: u16, command: Command) {
        if self.hostile.contains(&(node, port)) {
            return;
        }
        let queue = self.posted.entry((node, port)).or_default();
        queue.push_back(command);
        if queue.len() > KEPT {
            queue.pop_front();
        }
    }

    fn is_broken(&self, stream: Stream, owner: u32, epoch: u16) -> bool {
        self.broken
            .get(&stream)
            .is_some_and(|broken| broken.contains(&(owner, epoch)))
    }

    /// An operation of a stream was lost before the receiver could know of it.
    pub(super) fn lost(&mut self, stream: Stream, owner: u32, epoch: u16) {
        self.broken.entry(stream).or_default().insert((owner, epoch));
    }
}

impl Ledger {
    /// A message leaves: what was posted before it and has not left is lost. Says whether the message is behind such
    /// a one, and gives the command that has become the message.
    pub(super) fn leaves(&mut self, message: &Message, owner: u32) -> (bool, Option<Command>) {
        let sender = (message.source, message.source_port);
        let queue = self.lost.posted.get_mut(&sender);
        let mut before: Vec<Command> = queue
            .and_then(|queue| {
                let at = queue.iter().position(|(_, posted)| posted.is(message))?;
                Some(queue.drain(..=at).collect())
            })
            .unwrap_or_default();
        let own = before.pop();
        for (_, command) in before {
            let stream = (sender.0, sender.1, command.node);
            let held_back = command.asks_for_order() && self.lost.is_broken(stream, owner, command.epoch);
            // A read or an atomic leaves nothing undone.
            if command.opcode == WRITE && !held_back {
                self.lost.lost(stream, owner, command.epoch);
            }
        }
        let stream = (sender.0, sender.1, message.destination);
        (self.lost.is_broken(stream, owner, message.epoch), own)
    }
}
