//! P6: a port's next owner starts with a clean sheet. What was asked by, or for, the owner before is told to no port: no error,
//! no reply, no notification, no count, no interrupt. When the port is open its words say nothing of the time before.

use super::ledger::{Direction, Entry};
use super::message::{ATOMIC_REPLY, ERROR, FLUSH_REPLY, Message, READ_REPLY};
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::status::Status;
use netvm_abi::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A port of a node.
type At = (NodeId, PortId);

/// How an operation has ended: its port, its number, and the next word of a record or of a reply.
type End = (PortId, u32, u32);

/// Knows which ports are closed, and what a card has just heard that was for the owner before.
#[derive(Default)]
pub(super) struct Owners {
    closed: BTreeSet<At>,
    /// What the last frame that a card took, or the link that it has lost, says to earlier owners, and when. The card deals
    /// with it at once.
    stale: BTreeMap<NodeId, (Nanos, BTreeSet<End>)>,
}

impl Owners {
    /// Something stands in the words of a port, or wakes its process.
    fn reaches(&self, node: NodeId, port: PortId, what: &str) -> Verdict {
        if !self.closed.contains(&(node, port)) {
            return Ok(());
        }
        Err(format!("node {node}: {what} for port {port}, which is closed"))
    }

    /// A port is told how an operation has ended.
    fn told(&self, now: Nanos, node: NodeId, end: End, what: &str) -> Verdict {
        self.reaches(node, end.0, what)?;
        match self.stale.get(&node) {
            Some((at, stale)) if *at == now && stale.contains(&end) => Err(format!(
                "node {node}: {what} of operation {:#x} reaches port {}, which has a new owner since",
                end.1, end.0
            )),
            _ => Ok(()),
        }
    }

    /// A card takes a frame.
    fn arrived(&mut self, now: Nanos, to: NodeId, frame: &[u8], ledger: &Ledger) {
        self.stale.remove(&to);
        let Some(answer) = Message::read(frame) else {
            return;
        };
        if !matches!(answer.kind, ERROR | READ_REPLY | ATOMIC_REPLY | FLUSH_REPLY) {
            return;
        }
        let lane = ledger.lanes.get(&(answer.destination, answer.source));
        let lives = (answer.destination_life, answer.source_life);
        let entry = lane
            .filter(|lane| lane.lives == lives)
            .and_then(|lane| lane.entry(answer.seq));
        if let Some(entry) = entry
            && entry.source_life != ledger.port_life(to.0, entry.message.source_port)
        {
            let epoch = if answer.kind == ERROR {
                entry.message.epoch
            } else {
                0
            };
            let end = (
                PortId(entry.message.source_port),
                entry.op,
                u32::from(answer.status) | u32::from(epoch) << 16,
            );
            self.stale.insert(to, (now, BTreeSet::from([end])));
        }
    }

    /// A card has lost its link: what earlier owners have sent fails with it, unless the present one has sent the same.
    fn link_down(&mut self, now: Nanos, lane: Direction, ledger: &Ledger) {
        let node = NodeId(lane.0);
        let Some(lane) = ledger.lanes.get(&lane) else {
            return;
        };
        let is_own = |entry: &Entry| entry.source_life == ledger.port_life(node.0, entry.message.source_port);
        let end = |entry: &Entry| {
            (
                PortId(entry.message.source_port),
                entry.op,
                u32::from(Status::LinkLost.code()) | u32::from(entry.message.epoch) << 16,
            )
        };
        let of = |own: bool| {
            lane.unacknowledged()
                .filter(move |&entry| is_own(entry) == own)
                .map(end)
        };
        let own: BTreeSet<End> = of(true).collect();
        let stale = of(false).filter(|end| !own.contains(end)).collect();
        self.stale.insert(node, (now, stale));
    }

    fn forget_node(&mut self, node: NodeId) {
        self.closed.retain(|at| at.0 != node);
        self.stale.remove(&node);
    }
}

impl Checker for Owners {
    fn promise(&self) -> Promise {
        Promise::P6
    }

    fn see(&mut self, now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict {
        for item in news {
            if let News::LinkDown { lane, anew: true, .. } = item {
                self.link_down(now, *lane, ledger);
            }
        }
        match *fact {
            Seen::Arrived { to, ref frame } => self.arrived(now, to, frame, ledger),
            Seen::Told { node, port, words } => {
                return self.told(now, node, (port, words[0], words[1]), "an error");
            }
            Seen::Replied {
                node, port, words, ..
            } => return self.told(now, node, (port, words[0], words[1]), "a reply"),
            Seen::Shadowed { node, port, .. } => return self.reaches(node, port, "a signal"),
            Seen::Counted { node, port, .. } => return self.reaches(node, port, "a count"),
            Seen::Interrupted { node, port } => return self.reaches(node, port, "an interrupt"),
            Seen::LeftOver { node, port, word } => {
                return Err(format!(
                    "node {node}: port {port} is open, and its {word} is that of its last owner"
                ));
            }
            Seen::PortOpened { node, port, .. } => {
                self.closed.remove(&(node, port));
            }
            Seen::PortClosed { node, port } => {
                self.closed.insert((node, port));
            }
            Seen::Restarted { node } | Seen::CardDead { node } => self.forget_node(node),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, PORT, caught, feed, port_opened, sent};
    use super::*;
    use netvm_abi::port_area::ErrorRecord;
    use netvm_abi::wire::{Header, Kind};
    use netvm_abi::{Incarnation, NotificationId, OpId, Seq};

    fn told(op: u32, status: Status) -> Seen {
        let record = ErrorRecord {
            op: OpId(op),
            status,
            ..ErrorRecord::default()
        };
        Seen::Told {
            node: NODE,
            port: PORT,
            words: record.encode(),
        }
    }

    /// Port 3 of node 0 has sent a message, operation 1, and has another owner when it is told how that has ended.
    fn after(kind: Kind, more: &[Seen]) -> Verdict {
        let mut message = frame(kind, 5, 0x1000, b"", 0);
        message[44] = 1;
        let begun = [port_opened(), sent(message), port_opened()];
        feed(&mut Owners::default(), &[&begun[..], more].concat())
    }

    fn comes(kind: Kind) -> Seen {
        let mut header = Header::new(kind, NodeId(1), NODE);
        (header.source_port, header.destination_port) = (PortId(4), PORT);
        (header.source_incarnation, header.destination_incarnation) = (Incarnation(8), Incarnation(7));
        (header.seq, header.raw.status) = (Seq(5), Status::Revoked.code());
        Seen::Arrived {
            to: NODE,
            frame: header.encode().as_slice().into(),
        }
    }

    #[test]
    fn errors_and_replies_for_the_last_owner_do_not_reach_the_next() {
        let words = [1, Status::Revoked.code().into(), 0, 0, 0, 0, 0, 0];
        let replied = Seen::Replied {
            node: NODE,
            port: PORT,
            slot: 2,
            words,
        };
        let down = Seen::LinkDown {
            node: NODE,
            peer: NodeId(1),
        };
        for (kind, facts) in [
            (Kind::Write, [comes(Kind::Error), told(1, Status::Revoked)]),
            (Kind::Flush, [comes(Kind::FlushReply), replied]),
            (Kind::Write, [down, told(1, Status::LinkLost)]),
        ] {
            caught(after(kind, &facts), "a new owner since");
            assert_eq!(after(kind, &facts[..1]), Ok(()));
        }
        // Of its own operation of that number.
        let own = [comes(Kind::Error), told(1, Status::Unmapped)];
        assert_eq!(after(Kind::Write, &own), Ok(()));
    }

    #[test]
    fn nothing_reaches_a_port_that_is_closed() {
        let closed = Seen::PortClosed {
            node: NODE,
            port: PORT,
        };
        let shadowed = Seen::Shadowed {
            node: NODE,
            port: PORT,
            id: NotificationId(3),
            count: 1,
        };
        let interrupted = Seen::Interrupted {
            node: NODE,
            port: PORT,
        };
        for late in [told(1, Status::Revoked), shadowed, interrupted] {
            let judge = |before: &[Seen]| {
                let facts = [before, std::slice::from_ref(&late)].concat();
                feed(&mut Owners::default(), &facts)
            };
            assert_eq!(judge(&[port_opened()]), Ok(()));
            caught(judge(&[port_opened(), closed.clone()]), "which is closed");
            assert_eq!(judge(&[port_opened(), closed.clone(), port_opened()]), Ok(()));
        }
    }

    #[test]
    fn a_port_that_opens_with_the_words_of_its_last_owner_is_caught() {
        let left = Seen::LeftOver {
            node: NODE,
            port: PORT,
            word: "reply",
        };
        caught(
            feed(&mut Owners::default(), &[left]),
            "its reply is that of its last owner",
        );
    }
}
