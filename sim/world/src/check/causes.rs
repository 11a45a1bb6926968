//! P2: a failure has a cause. What a program is told of an operation that failed, and a card that its driver declares
//! dead, must follow from something that has happened: a fault of the run, or a port, a region or an export that is no
//! more. Each cause holds for a stated time.

use super::message::Posted;
use super::{Checker, Ledger, Limits, News, Promise, Verdict};
use crate::faults::FaultKind;
use crate::seen::{Ending, Seen};
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::{Nanos, NodeId, PortId, Status};
use std::collections::{BTreeMap, BTreeSet};

/// A port of a node.
type At = (NodeId, PortId);

/// A journal of what may make operations fail.
pub(super) struct Causes {
    limits: Limits,
    /// Ports of each node's tables.
    ports: Vec<u16>,
    /// When each kind of fault last struck each node.
    faults: BTreeMap<(NodeId, FaultKind), Nanos>,
    /// Ports that are open, and when each last changed hands, or began to.
    open: BTreeSet<At>,
    changed: BTreeMap<At, Nanos>,
    /// Ports that are about to close. What they may do elsewhere ends before they do.
    closing: BTreeSet<At>,
    /// Ports of which an export, or the region of one, has been withdrawn or is about to be.
    withdrawn: BTreeSet<At>,
    /// Ports that have lent something: it may be over.
    lent: BTreeSet<At>,
    /// Regions of each port, first byte and length, those that are gone included.
    regions: BTreeMap<At, Vec<(u64, u64)>>,
    /// Ports of which a region is gone, or about to be, and ports that have named memory of no region.
    unregistered: BTreeSet<At>,
    /// When a card last said that its link to a node is down.
    down: BTreeMap<(NodeId, NodeId), Nanos>,
    hostile: BTreeSet<At>,
    /// Nodes whose card has hung since it was last reset, and when.
    hung: BTreeMap<NodeId, Nanos>,
    /// When the first of the open ports of each node was opened. With none open, the driver does not look at its card.
    watched: BTreeMap<NodeId, Nanos>,
}

impl Causes {
    /// A journal of a run whose nodes have tables of these many ports.
    pub(super) fn new(limits: Limits, ports: Vec<u16>) -> Self {
        Self {
            limits,
            ports,
            faults: BTreeMap::new(),
            open: BTreeSet::new(),
            changed: BTreeMap::new(),
            closing: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            lent: BTreeSet::new(),
            regions: BTreeMap::new(),
            unregistered: BTreeSet::new(),
            down: BTreeMap::new(),
            hostile: BTreeSet::new(),
            hung: BTreeMap::new(),
            watched: BTreeMap::new(),
        }
    }

    /// Whether something has happened within the time in which every message ends.
    fn is_recent(&self, now: Nanos, at: Option<&Nanos>) -> bool {
        at.is_some_and(|at| at.after(self.limits.deadline) >= now)
    }

    /// Whether a kind of fault has struck one of two nodes.
    fn struck(&self, now: Nanos, kind: FaultKind, nodes: [NodeId; 2]) -> bool {
        let recent = |node| self.is_recent(now, self.faults.get(&(node, kind)));
        nodes.into_iter().any(recent)
    }

    /// Whether the link of a node to another is down, or has gone down within the time in which every message ends: an
    /// operation that the link has cost, and whose source page the host still looks for, is told when that has come.
    fn is_cut(&self, now: Nanos, (node, peer): (NodeId, NodeId), ledger: &Ledger) -> bool {
        let told = self.is_recent(now, self.down.get(&(node, peer)));
        // Of a link that has not come up again the card says nothing more.
        let blamed = ledger.blamed(node, peer);
        told || (!ledger.is_up(node.0, peer.0) && blamed.is_some())
    }

    /// Whether what has happened explains such a record of a port.
    fn explains(&self, now: Nanos, from: At, record: &ErrorRecord, ledger: &Ledger) -> bool {
        let (nodes, to) = ([from.0, record.node], (record.node, record.port));
        match record.status {
            Status::BusError => [FaultKind::VmRefuse, FaultKind::DmaFails]
                .into_iter()
                .any(|kind| self.struck(now, kind, nodes)),
            Status::NoMemory => self.struck(now, FaultKind::VmNoMemory, nodes),
            Status::LinkLost | Status::StaleIncarnation => self.is_cut(now, (from.0, to.0), ledger),
            Status::NoSuchPort => {
                let table = self.ports.get(to.0.index()).copied().unwrap_or_default();
                !self.open.contains(&to) || from.1.0 >= table || self.is_recent(now, self.changed.get(&to))
            }
            // A program may keep the name of what is no more for as long as it likes.
            Status::CapabilityRefused | Status::Revoked => {
                self.withdrawn.contains(&to)
                    || self.closing.contains(&from)
                    || ledger.blamed(from.0, to.0).is_some()
            }
            Status::Expired => self.lent.contains(&to),
            Status::LocalAddress | Status::Unmapped => {
                self.unregistered.contains(&from) || self.unregistered.contains(&to)
            }
            Status::TimedOut => {
                self.hung.contains_key(&from.0) || self.struck(now, FaultKind::VmStuck, nodes)
            }
            Status::CardGone => self.hung.contains_key(&from.0),
            // The ledger judges these: full queues, and what is held back behind a failure.
            Status::QueueFull | Status::NoPlace | Status::HeldBack => true,
            // The library lets no program ask for what ends so.
            _ => false,
        }
    }

    fn told(&self, now: Nanos, from: At, record: &ErrorRecord, ledger: &Ledger) -> Verdict {
        let honest = record.node.0 < self.limits.nodes && !self.hostile.contains(&from);
        if !honest || self.explains(now, from, record, ledger) {
            return Ok(());
        }
        Err(format!(
            "port {} of node {} is told that operation {} to port {} of node {} failed with {:?}, to which nothing has led",
            from.1, from.0, record.op, record.port, record.node, record.status
        ))
    }

    fn has_open_port(&self, node: NodeId) -> bool {
        self.open.iter().any(|at| at.0 == node)
    }

    /// Whether a card that is declared dead now has hung, and not so long ago that its driver should have seen it before.
    fn is_dead(&mut self, now: Nanos, node: NodeId) -> bool {
        let Some(hung) = self.hung.remove(&node) else {
            return false;
        };
        let watched = self.watched.get(&node).copied().unwrap_or_default();
        let bound = self.limits.deadline.after(self.limits.loss);
        !self.has_open_port(node) || hung.max(watched).after(bound) >= now
    }

    /// A port has another owner, or none.
    fn changes(&mut self, now: Nanos, at: At) {
        self.changed.insert(at, now);
        self.withdrawn.insert(at);
    }
}

impl Checker for Causes {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, now: Nanos, fact: &Seen, _news: &[News], ledger: &Ledger) -> Verdict {
        match *fact {
            Seen::Fault { node, kind } => {
                self.faults.insert((node, kind), now);
                if kind == FaultKind::CardHangs {
                    self.hung.insert(node, now);
                }
            }
            Seen::PortOpened { node, port, .. } => {
                let at = (node, port);
                if !self.has_open_port(node) {
                    self.watched.insert(node, now);
                }
                self.hostile.remove(&at);
                self.regions.remove(&at);
                self.unregistered.remove(&at);
                self.closing.remove(&at);
                self.open.insert(at);
                self.changed.insert(at, now);
            }
            Seen::PortClosed { node, port } => {
                self.open.remove(&(node, port));
                self.changes(now, (node, port));
            }
            Seen::Registered {
                node,
                port,
                start,
                len,
            } => {
                self.regions.entry((node, port)).or_default().push((start, len));
            }
            Seen::Posted {
                node, port, words, ..
            } => {
                let local = Posted::read(&words).local;
                let mut regions = self.regions.get(&(node, port)).into_iter().flatten();
                if local != 0 && !regions.any(|&(start, len)| local.wrapping_sub(start) < len) {
                    self.unregistered.insert((node, port));
                }
            }
            Seen::Ends { node, port, what } => match what {
                Ending::Port => {
                    self.closing.insert((node, port));
                    self.changes(now, (node, port));
                }
                Ending::Region => {
                    self.unregistered.insert((node, port));
                    self.withdrawn.insert((node, port));
                }
                Ending::Export => {
                    self.withdrawn.insert((node, port));
                }
                Ending::Lease => {
                    self.lent.insert((node, port));
                }
            },
            Seen::Hostile { node, port } => {
                self.hostile.insert((node, port));
            }
            Seen::LinkDown { node, peer } => {
                self.down.insert((node, peer), now);
            }
            Seen::Restarted { node } => {
                self.hung.remove(&node);
                let gone: Vec<At> = self.open.iter().copied().filter(|at| at.0 == node).collect();
                for at in gone {
                    self.open.remove(&at);
                    self.changes(now, at);
                }
            }
            Seen::CardDead { node } => {
                if !self.is_dead(now, node) {
                    return Err(format!("node {node} declares its card dead, which has not hung"));
                }
                // Its ports are closed one by one, and other nodes' messages to them end meanwhile.
                let open: Vec<At> = self.open.iter().copied().filter(|at| at.0 == node).collect();
                for at in open {
                    self.changes(now, at);
                }
            }
            Seen::Told { node, port, words } => {
                return self.told(now, (node, port), &ErrorRecord::decode(words), ledger);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, PORT, caught, feed_at, port_opened};
    use super::*;
    use crate::vm::ProcessId;

    fn journal() -> Causes {
        let limits = Limits {
            nodes: 2,
            deadline: Nanos(1_000),
            loss: Nanos(500),
            ..Limits::default()
        };
        Causes::new(limits, vec![8, 8])
    }

    const TO: At = (NodeId(1), PortId(4));

    fn told(status: Status) -> Seen {
        let record = ErrorRecord {
            status,
            node: TO.0,
            port: TO.1,
            ..ErrorRecord::default()
        };
        Seen::Told {
            node: NODE,
            port: PORT,
            words: record.encode(),
        }
    }

    fn fault(node: NodeId, kind: FaultKind) -> Seen {
        Seen::Fault { node, kind }
    }

    fn opened() -> Seen {
        Seen::PortOpened {
            node: TO.0,
            port: TO.1,
            process: ProcessId(2),
        }
    }

    /// Each status with what explains it, if anything does.
    #[test]
    fn a_failure_needs_a_cause_of_its_own_kind_within_its_time() {
        let ends = |what| Seen::Ends {
            node: TO.0,
            port: TO.1,
            what,
        };
        let own_port_ends = Seen::Ends {
            node: NODE,
            port: PORT,
            what: Ending::Port,
        };
        let down = Seen::LinkDown {
            node: NODE,
            peer: TO.0,
        };
        let cases = [
            (Status::BusError, Some(fault(TO.0, FaultKind::VmRefuse))),
            (Status::BusError, Some(fault(NODE, FaultKind::DmaFails))),
            (Status::NoMemory, Some(fault(NODE, FaultKind::VmNoMemory))),
            (Status::TimedOut, Some(fault(TO.0, FaultKind::VmStuck))),
            (Status::LinkLost, Some(down)),
            (Status::NoSuchPort, Some(ends(Ending::Port))),
            (Status::CapabilityRefused, Some(ends(Ending::Export))),
            (Status::CapabilityRefused, Some(own_port_ends)),
            (Status::Expired, Some(ends(Ending::Lease))),
            (Status::LocalAddress, Some(ends(Ending::Region))),
            (Status::Malformed, None),
        ];
        for (status, cause) in cases {
            let begin = [port_opened(), opened()];
            let (mut journal_of, mut ledger) = (journal(), Ledger::default());
            let at = |past: u64| Nanos(10_000_000 + past);
            feed_at(&mut journal_of, &mut ledger, Nanos(1), &begin).expect("nothing has failed");
            caught(
                feed_at(&mut journal_of, &mut ledger, at(0), &[told(status)]),
                "to which nothing has led",
            );
            let Some(cause) = cause else { continue };
            let _ = feed_at(&mut journal_of, &mut ledger, at(1), &[cause]);
            feed_at(&mut journal_of, &mut ledger, at(2), &[told(status)]).expect("it has a cause");
            if matches!(
                status,
                Status::BusError | Status::NoMemory | Status::LinkLost | Status::NoSuchPort
            ) {
                caught(
                    feed_at(&mut journal_of, &mut ledger, at(1_002), &[told(status)]),
                    "to which nothing has led",
                );
            }
        }
    }

    #[test]
    fn a_card_that_has_not_hung_is_not_dead() {
        let dead = Seen::CardDead { node: NODE };
        let hangs = fault(NODE, FaultKind::CardHangs);
        for (facts, sound) in [
            (vec![hangs.clone(), dead.clone()], true),
            (vec![fault(NODE, FaultKind::CardPauses), dead.clone()], false),
            (vec![fault(TO.0, FaultKind::CardHangs), dead.clone()], false),
            (vec![hangs, dead.clone(), dead], false),
        ] {
            let verdict = feed_at(&mut journal(), &mut Ledger::default(), Nanos(1), &facts);
            assert_eq!(verdict.is_ok(), sound, "{verdict:?}");
        }
    }

    #[test]
    fn a_card_is_dead_soon_after_it_has_hung_unless_no_port_was_open() {
        let dead = Seen::CardDead { node: NODE };
        let closed = Seen::PortClosed {
            node: NODE,
            port: PORT,
        };
        // The bound is 1,500: before the hang, after it, and when the card is declared dead.
        for (before, after, at, sound) in [
            (vec![port_opened()], vec![], 1_600, true),
            (vec![port_opened()], vec![], 1_602, false),
            (vec![], vec![], 90_000, true),
            (vec![port_opened(), closed.clone()], vec![], 90_000, true),
            (vec![], vec![port_opened()], 51_400, true),
            (vec![], vec![port_opened()], 51_600, false),
        ] {
            let (mut journal, mut ledger) = (journal(), Ledger::default());
            let hangs = fault(NODE, FaultKind::CardHangs);
            feed_at(&mut journal, &mut ledger, Nanos(1), &before).expect("ports open");
            feed_at(&mut journal, &mut ledger, Nanos(100), &[hangs]).expect("it hangs");
            feed_at(&mut journal, &mut ledger, Nanos(50_000), &after).expect("ports open");
            let verdict = feed_at(&mut journal, &mut ledger, Nanos(at), std::slice::from_ref(&dead));
            assert_eq!(verdict.is_ok(), sound, "at {at}: {verdict:?}");
        }
    }

    #[test]
    fn a_port_that_posts_anything_may_be_told_anything() {
        let hostile = Seen::Hostile {
            node: NODE,
            port: PORT,
        };
        let facts = [port_opened(), hostile, told(Status::Malformed)];
        let verdict = feed_at(&mut journal(), &mut Ledger::default(), Nanos(1), &facts);
        assert_eq!(verdict, Ok(()));
    }
}
