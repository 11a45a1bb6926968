//! P6: what has died leaves nothing behind: no mapped page, no held slot, no armed notification; and
//! messages of a life that is over have no effect.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{DmaNumber, Seen};
use crate::vm::ProcessId;
use netvm_abi::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// Knows which ports and processes are gone.
#[derive(Default)]
pub(super) struct CrashSafety {
    owners: BTreeMap<(NodeId, PortId), ProcessId>,
    gone: BTreeSet<(NodeId, ProcessId)>,
    active: BTreeMap<(NodeId, DmaNumber), ProcessId>,
}

impl CrashSafety {
    fn closed(&self, node: NodeId, port: PortId) -> bool {
        self.owners
            .get(&(node, port))
            .is_none_or(|process| self.gone.contains(&(node, *process)))
    }
}

impl Checker for CrashSafety {
    fn promise(&self) -> Promise {
        Promise::P6
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, news: &[News], _ledger: &Ledger) -> Verdict {
        for item in news {
            match *item {
                News::Stale { lane, seq } => {
                    return Err(format!(
                        "message {seq} of node {} to {} belongs to a life that is over, and was carried out",
                        lane.0, lane.1
                    ));
                }
                News::Landed {
                    lane,
                    seq,
                    other_life: true,
                    ..
                } => {
                    return Err(format!(
                        "message {seq} of node {} reached a port of node {} that has a new owner since",
                        lane.0, lane.1
                    ));
                }
                _ => {}
            }
        }
        match *fact {
            Seen::PortOpened { node, port, process } => {
                self.owners.insert((node, port), process);
            }
            Seen::StillMapped { node, port, page } => {
                return Err(format!(
                    "node {node}: page {page:#x} of closed port {port} is still mapped"
                ));
            }
            Seen::PortClosed { node, port } => {
                self.owners.remove(&(node, port));
            }
            Seen::Gone { node, process } => {
                self.gone.insert((node, process));
                if let Some(((_, dma), _)) = self
                    .active
                    .iter()
                    .find(|((at, _), owner)| *at == node && **owner == process)
                {
                    return Err(format!("node {node}: DMA {dma} outlived its process"));
                }
            }
            Seen::DmaStart { node, dma, place, .. } => {
                if self.closed(node, place.port) {
                    return Err(format!(
                        "node {node}: DMA {dma} touches page {:#x} of port {}, whose process is gone",
                        place.page, place.port
                    ));
                }
                if let Some(&process) = self.owners.get(&(node, place.port)) {
                    self.active.insert((node, dma), process);
                }
            }
            Seen::DmaDone { node, dma } | Seen::DmaAborted { node, dma } => {
                self.active.remove(&(node, dma));
            }
            Seen::HostCopied { node, place, .. } if self.closed(node, place.port) => {
                return Err(format!(
                    "node {node}: a bounce page was copied for port {}, which is gone",
                    place.port
                ));
            }
            Seen::Signalled {
                node,
                port,
                id,
                count,
            } if count != 0 && self.closed(node, port) => {
                return Err(format!(
                    "node {node}: notification {id} was delivered to port {port}, which is gone"
                ));
            }
            Seen::Queued { node, port, id } if self.closed(node, port) => {
                return Err(format!(
                    "node {node}: notification {id} was queued for port {port}, which is gone"
                ));
            }
            Seen::Restarted { node } => {
                self.owners.retain(|key, _| key.0 != node);
                self.active.retain(|key, _| key.0 != node);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{
        NODE, PORT, PROCESS, arrived, caught, dma_start, feed, moved_at, port_opened, sent,
    };
    use super::*;
    use crate::seen::{Stored, Way};
    use netvm_abi::NotificationId;
    use netvm_abi::wire::Kind;

    #[test]
    fn nothing_may_touch_or_notify_a_port_that_is_gone() {
        let gone = Seen::Gone {
            node: NODE,
            process: PROCESS,
        };
        let signal = Seen::Signalled {
            node: NODE,
            port: PORT,
            id: NotificationId(3),
            count: 1,
        };
        assert_eq!(
            feed(&mut CrashSafety::default(), &[port_opened(), signal.clone()]),
            Ok(())
        );
        for late in [signal, dma_start(1, Way::ToPage, 10, 100)] {
            let facts = [port_opened(), gone.clone(), late];
            caught(feed(&mut CrashSafety::default(), &facts), "gone");
        }
        let facts = [port_opened(), dma_start(1, Way::ToPage, 10, 100), gone];
        caught(feed(&mut CrashSafety::default(), &facts), "outlived");
        let facts = [Seen::StillMapped {
            node: NODE,
            port: PORT,
            page: 10,
        }];
        caught(feed(&mut CrashSafety::default(), &facts), "still mapped");
    }

    #[test]
    fn a_message_of_an_old_life_must_have_no_effect() {
        let old = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let mut new = frame(Kind::Write, 0, 0x3000, b"other", 0);
        new[16] = 99;
        let facts = [
            sent(old.clone()),
            sent(new),
            arrived(old),
            moved_at(0x1000, b"data"),
        ];
        caught(feed(&mut CrashSafety::default(), &facts), "a life that is over");
    }

    /// The port may read the same bytes to the same place by itself, or an atomic may leave them there.
    #[test]
    fn equal_bytes_that_are_no_message_s_are_not_the_lost_one_s() {
        let old = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let mut new = frame(Kind::Write, 0, 0x3000, b"other", 0);
        new[16] = 99;
        let mut store = moved_at(0x1000, b"data");
        let facts = |store: &Seen| [sent(old.clone()), sent(new.clone()), store.clone()];
        caught(
            feed(&mut CrashSafety::default(), &facts(&store)),
            "a life that is over",
        );
        for other in [Stored::Answer, Stored::Operand] {
            if let Seen::DmaMoved { stored, .. } = &mut store {
                *stored = Some(other);
            }
            assert_eq!(feed(&mut CrashSafety::default(), &facts(&store)), Ok(()));
        }
    }

    /// What has data must not land in a port's next life; what has none is refused by the card after
    /// it has arrived, which is no effect.
    #[test]
    fn a_message_may_arrive_after_its_port_changed_hands_but_not_land() {
        let check = |payload: &[u8]| {
            let write = frame(Kind::Write, 5, 0x1000, payload, 3);
            let opened = Seen::PortOpened {
                node: NodeId(1),
                port: PortId(4),
                process: PROCESS,
            };
            let mut facts = vec![opened.clone(), sent(write.clone()), opened, arrived(write)];
            if !payload.is_empty() {
                facts.push(moved_at(0x1000, payload));
            }
            feed(&mut CrashSafety::default(), &facts)
        };
        caught(check(b"data"), "a new owner");
        assert_eq!(check(b""), Ok(()));
    }
}
