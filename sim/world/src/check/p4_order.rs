//! P4: a notification comes after the data and the same-numbered notifications of every earlier
//! message of its port, exactly once; an ordered message acts after everything earlier.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::{Nanos, NodeId, NotificationId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// Compares the notifications that a port got with those that were due.
#[derive(Default)]
pub(super) struct Order {
    counts: BTreeMap<(NodeId, PortId, NotificationId), u32>,
    delivered: BTreeMap<(NodeId, PortId, NotificationId), u64>,
    open: BTreeSet<(NodeId, PortId)>,
}

impl Order {
    fn deliver(
        &mut self,
        node: NodeId,
        port: PortId,
        id: NotificationId,
        more: u64,
        ledger: &Ledger,
    ) -> Verdict {
        let delivered = self.delivered.entry((node, port, id)).or_default();
        *delivered += more;
        let due = ledger.due(node.0, port.0, id.0);
        if *delivered > due {
            return Err(format!(
                "node {node}: notification {id} of port {port} was delivered {delivered} times when {due} were due{}",
                ledger.heads(node.0, port.0)
            ));
        }
        Ok(())
    }
}

impl Checker for Order {
    fn promise(&self) -> Promise {
        Promise::P4
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict {
        for item in news {
            match *item {
                News::Landed {
                    lane,
                    seq,
                    early: true,
                    ..
                } => {
                    return Err(format!(
                        "ordered message {seq} of node {} to {} acted before an earlier one had landed",
                        lane.0, lane.1
                    ));
                }
                News::FalseFlush { lane, seq, missing } => {
                    return Err(format!(
                        "flush {seq} of node {} to {} was answered before message {missing} had landed",
                        lane.0, lane.1
                    ));
                }
                _ => {}
            }
        }
        match *fact {
            Seen::PortClosed { node, port } => {
                self.open.remove(&(node, port));
            }
            Seen::PortOpened { node, port, .. } => {
                self.open.insert((node, port));
                self.counts.retain(|key, _| (key.0, key.1) != (node, port));
                self.delivered.retain(|key, _| (key.0, key.1) != (node, port));
            }
            Seen::Restarted { node } => {
                self.open.retain(|key| key.0 != node);
                self.counts.retain(|key, _| key.0 != node);
                self.delivered.retain(|key, _| key.0 != node);
            }
            Seen::Signalled {
                node,
                port,
                id,
                count,
            } => {
                let last = self.counts.insert((node, port, id), count).unwrap_or_default();
                // A count that goes to zero was reset for a new owner.
                if count != 0 {
                    let more = u64::from(count.wrapping_sub(last));
                    return self.deliver(node, port, id, more, ledger);
                }
            }
            Seen::Queued { node, port, id } if id.is_one_shot() => {
                return self.deliver(node, port, id, 1, ledger);
            }
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, ledger: &Ledger) -> Verdict {
        for (&(node, port, id), &delivered) in &self.delivered {
            if !self.open.contains(&(node, port)) {
                continue;
            }
            let owed = ledger.owed(node.0, port.0, id.0);
            if delivered < owed {
                return Err(format!(
                    "node {node}: notification {id} of port {port} was delivered {delivered} times, {owed} were owed"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{arrived, caught, feed, feed_at, moved_at, sent};
    use super::*;
    use netvm_abi::wire::Kind;

    const RECEIVER: NodeId = NodeId(1);

    fn signalled(count: u32) -> Seen {
        Seen::Signalled {
            node: RECEIVER,
            port: PortId(4),
            id: NotificationId(9),
            count,
        }
    }

    /// Two writes, the second one with a notification.
    fn pair() -> [Vec<u8>; 2] {
        [
            frame(Kind::Write, 5, 0x1000, b"first", 0),
            frame(Kind::Write, 6, 0x2000, b"second", 9),
        ]
    }

    #[test]
    fn a_notification_after_all_earlier_data_is_fine_in_any_order_of_arrival() {
        let [first, second] = pair();
        let facts = [
            sent(first.clone()),
            sent(second.clone()),
            arrived(second),
            moved_at(0x2000, b"second"),
            arrived(first),
            moved_at(0x1000, b"first"),
            signalled(1),
        ];
        assert_eq!(feed(&mut Order::default(), &facts), Ok(()));
    }

    #[test]
    fn a_notification_before_earlier_data_and_one_too_many_are_caught() {
        let [first, second] = pair();
        let facts = [
            sent(first.clone()),
            sent(second.clone()),
            arrived(second),
            moved_at(0x2000, b"second"),
            signalled(1),
        ];
        caught(feed(&mut Order::default(), &facts), "when 0 were due");
        let facts = [
            sent(first.clone()),
            arrived(first),
            moved_at(0x1000, b"first"),
            signalled(1),
        ];
        assert!(feed(&mut Order::default(), &facts).is_err());
    }

    #[test]
    fn a_notification_that_never_comes_is_caught_at_the_end() {
        let [first, second] = pair();
        let mut ledger = super::super::ledger::Ledger::default();
        let mut order = Order::default();
        let facts = [
            Seen::PortOpened {
                node: RECEIVER,
                port: PortId(4),
                process: crate::vm::ProcessId(1),
            },
            sent(first.clone()),
            sent(second.clone()),
            arrived(first),
            arrived(second),
            moved_at(0x1000, b"first"),
            moved_at(0x2000, b"second"),
            signalled(1),
            sent(frame(Kind::Write, 7, 0, b"", 9)),
            arrived(frame(Kind::Write, 7, 0, b"", 9)),
        ];
        assert_eq!(feed_at(&mut order, &mut ledger, Nanos(1), &facts), Ok(()));
        caught(order.settled(&ledger), "2 were owed");
    }

    #[test]
    fn an_ordered_message_that_acts_early_is_caught() {
        let first = frame(Kind::Write, 5, 0x1000, b"first", 0);
        let mut second = frame(Kind::Write, 6, 0x2000, b"second", 0);
        second[4] |= super::super::message::ORDERED;
        let facts = [
            sent(first),
            sent(second.clone()),
            arrived(second),
            moved_at(0x2000, b"second"),
        ];
        caught(feed(&mut Order::default(), &facts), "acted before");
    }
}
