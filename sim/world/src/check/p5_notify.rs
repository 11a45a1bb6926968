//! P5: a notification is raised only by a port that an export allows it.
//!
//! A message without data has no effect in memory, so it is judged by the notification that comes of it: some port must
//! have sent a write with this number that an export of the present owner allows. An export counts for as long as its
//! owner lives, because a notification may wait for earlier messages of its stream until after the export is gone.

use super::message::{Message, WRITE};
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{ExportFact, Seen};
use netvm_abi::control::Modes;
use netvm_abi::{Nanos, NodeId, NotificationId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A port of a node.
type At = (NodeId, PortId);

/// Who may raise what: node and port, if not any, and the numbers, first and last.
type Right = (Option<NodeId>, Option<PortId>, u32, u32);

/// Knows what exports allow, and which notifications were asked for.
#[derive(Default)]
pub(super) struct Notifies {
    rights: BTreeMap<At, BTreeSet<Right>>,
    /// Event counts that entries of a port's shared queue raise.
    queues: BTreeSet<(At, u32)>,
    /// Of writes that have arrived: the port, the number, and the sender's node and port.
    asked: BTreeMap<(At, u32), BTreeSet<(u16, u16)>>,
}

impl Notifies {
    fn exported(&mut self, at: At, fact: &ExportFact) {
        let lines = fact
            .allowed
            .iter()
            .filter(|line| line.modes.contains(Modes::NOTIFY));
        let rights = lines.map(|line| (line.node, line.port, line.notify.0.0, line.notify.1.0));
        self.rights.entry(at).or_default().extend(rights);
        self.queues.extend(fact.queue.map(|(_, number)| (at, number)));
    }

    fn forget(&mut self, gone: impl Fn(At) -> bool) {
        self.rights.retain(|&at, _| !gone(at));
        self.queues.retain(|&(at, _)| !gone(at));
        self.asked.retain(|&(at, _), _| !gone(at));
    }

    fn is_allowed(&self, at: At, id: u32) -> bool {
        let callers = self.asked.get(&(at, id)).into_iter().flatten();
        let rights = || self.rights.get(&at).into_iter().flatten();
        let allows = |caller: (u16, u16)| {
            rights().any(|&(node, port, first, last)| {
                node.is_none_or(|node| node.0 == caller.0)
                    && port.is_none_or(|port| port.0 == caller.1)
                    && (first..=last).contains(&id)
            })
        };
        self.queues.contains(&(at, id)) || callers.copied().any(allows)
    }

    fn raised(&self, node: NodeId, port: PortId, id: NotificationId) -> Verdict {
        if self.is_allowed((node, port), id.0) {
            return Ok(());
        }
        let callers = self.asked.get(&((node, port), id.0));
        Err(format!(
            "node {node}: notification {id} of port {port} was raised, which no export allows to a port that sent it: {:?}",
            callers.unwrap_or(&BTreeSet::new())
        ))
    }
}

impl Checker for Notifies {
    fn promise(&self) -> Promise {
        Promise::P5
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match fact {
            Seen::Exported { node, port, fact } => self.exported((*node, *port), fact),
            Seen::PortOpened { node, port, .. } => self.forget(|at| at == (*node, *port)),
            Seen::Restarted { node } => self.forget(|at| at.0 == *node),
            Seen::Arrived { to, frame } => {
                if let Some(message) = Message::read(frame)
                    && message.kind == WRITE
                    && message.notification != 0
                {
                    let at = (*to, PortId(message.destination_port));
                    let callers = self.asked.entry((at, message.notification)).or_default();
                    callers.insert((message.source, message.source_port));
                }
            }
            Seen::Signalled {
                node,
                port,
                id,
                count,
            } if *count != 0 => return self.raised(*node, *port, *id),
            Seen::Queued { node, port, id } => return self.raised(*node, *port, *id),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{arrived, caught, exported, feed};
    use super::*;
    use crate::seen::Allowed;
    use crate::vm::ProcessId;
    use netvm_abi::wire::Kind;
    use std::rc::Rc;

    const AT: At = (NodeId(1), PortId(4));

    /// An export that allows numbers 5 to 9 to port 3 of node 0, or to another port.
    fn allows(modes: Modes, port: u16) -> Seen {
        let Seen::Exported { node, port: of, fact } = exported(0x1000, 0x2000, modes) else {
            panic!()
        };
        let line = Allowed {
            node: Some(NodeId(0)),
            port: Some(PortId(port)),
            modes,
            notify: (NotificationId(5), NotificationId(9)),
        };
        let fact = ExportFact {
            allowed: vec![line],
            ..(*fact).clone()
        };
        Seen::Exported {
            node,
            port: of,
            fact: Rc::new(fact),
        }
    }

    fn signalled(id: u32) -> Seen {
        Seen::Signalled {
            node: AT.0,
            port: AT.1,
            id: NotificationId(id),
            count: 1,
        }
    }

    fn check(export: Seen, id: u32) -> Verdict {
        let facts = [
            export,
            arrived(frame(Kind::Write, 5, 0x1000, b"", id)),
            signalled(id),
        ];
        feed(&mut Notifies::default(), &facts)
    }

    #[test]
    fn a_write_of_no_bytes_raises_only_what_an_export_allows_its_sender() {
        let both = Modes::WRITE | Modes::NOTIFY;
        assert_eq!(check(allows(both, 3), 9), Ok(()));
        for (export, id) in [
            (allows(both, 3), 10),
            (allows(both, 2), 9),
            (allows(Modes::WRITE, 3), 9),
        ] {
            caught(check(export, id), "no export allows");
        }
    }

    #[test]
    fn a_notification_that_was_not_asked_for_is_caught_and_so_is_the_last_owners() {
        let both = Modes::WRITE | Modes::NOTIFY;
        let facts = [allows(both, 3), signalled(9)];
        caught(feed(&mut Notifies::default(), &facts), "no export allows");
        let opened = Seen::PortOpened {
            node: AT.0,
            port: AT.1,
            process: ProcessId(1),
        };
        let write = arrived(frame(Kind::Write, 5, 0x1000, b"", 9));
        let facts = [allows(both, 3), write, opened, signalled(9)];
        caught(feed(&mut Notifies::default(), &facts), "no export allows");
    }
}
