//! Notifications that have been due for long, and those that never will be.
//!
//! Signals of one number are counted together, those of all its senders. So one that comes too early could hide behind one
//! that is due and does not come, and what a lost link leaves in doubt could hide one for ever. Therefore the books are
//! closed from time to time: what every sender's landed prefix owed when they were closed last has been delivered; and when
//! nothing has become due or been delivered since, what might still have been due, and was not delivered, never is.

use super::p4_order::{Key, forget_port};
use super::{Ledger, Limits, Verdict};
use netvm_abi::{Nanos, NodeId, NotificationId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// What was known of a number when the books were closed: what may have been due, what was owed, what was delivered.
type Balance = (u64, u64, u64);

/// The books.
#[derive(Default)]
pub(super) struct Debts {
    /// Time from one closing to the next: what is due has been delivered by then.
    span: Nanos,
    closed: Nanos,
    last: BTreeMap<Key, Balance>,
    never: BTreeMap<Key, u64>,
    /// Until when cards are switched off.
    paused: BTreeMap<NodeId, Nanos>,
}

impl Debts {
    /// Books of a run that keeps to these limits: what stands before a notification is a message that has arrived, and
    /// ends, or one that is lost, with its link.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            span: limits.deadline.after(limits.loss),
            ..Self::default()
        }
    }

    /// Of the notifications that may have been due, those that are not any more.
    pub(super) fn never(&self, key: Key) -> u64 {
        self.never.get(&key).copied().unwrap_or_default()
    }

    pub(super) fn pause(&mut self, node: NodeId, until: Nanos) {
        self.paused.insert(node, until);
    }

    /// A port's numbers are another owner's from now on.
    pub(super) fn forget_port(&mut self, node: NodeId, port: PortId) {
        forget_port(&mut self.last, node, port);
        forget_port(&mut self.never, node, port);
    }

    /// So are those of all ports of a node.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        self.last.retain(|key, _| key.0 != node);
        self.never.retain(|key, _| key.0 != node);
    }

    /// Closes the books, if it is time.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        ledger: &Ledger,
        delivered: &BTreeMap<Key, u64>,
        open: &BTreeSet<(NodeId, PortId)>,
    ) -> Verdict {
        if self.span == Nanos(0) || now <= self.closed.after(self.span) {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.closed, now);
        let owed = ledger.owed();
        let named = owed
            .keys()
            .map(|&(node, port, id)| (NodeId(node), PortId(port), NotificationId(id)));
        let keys: BTreeSet<Key> = named.chain(delivered.keys().copied()).collect();
        let last = std::mem::take(&mut self.last);
        for key in keys.into_iter().filter(|key| open.contains(&(key.0, key.1))) {
            let number = (key.0.0, key.1.0, key.2.0);
            let balance: Balance = (
                ledger.due(number.0, number.1, number.2),
                owed.get(&number).copied().unwrap_or_default(),
                delivered.get(&key).copied().unwrap_or_default(),
            );
            self.last.insert(key, balance);
            let is_awake = self.paused.get(&key.0).is_none_or(|until| *until < before);
            let Some(&then) = last.get(&key).filter(|_| is_awake) else {
                continue;
            };
            let (due, owed, came) = balance;
            if came < then.1.min(owed) {
                return Err(format!(
                    "node {}: notification {} of port {} has been owed {} times for {} us, and was delivered {came} times",
                    key.0,
                    key.2,
                    key.1,
                    then.1,
                    (now.0 - before.0) / 1_000
                ));
            }
            if (due, came) == (then.0, then.2) {
                self.never.insert(key, due.saturating_sub(came));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::p4_order::Order;
    use super::super::tests::{arrived, caught, feed_at, moved_at, sent};
    use super::super::{Checker, Ledger, Limits};
    use super::*;
    use crate::seen::Seen;
    use netvm_abi::wire::Kind;

    const SPAN: u64 = 1_000;

    fn limits() -> Limits {
        Limits {
            deadline: Nanos(600),
            loss: Nanos(400),
            ..Limits::default()
        }
    }

    fn opened() -> Seen {
        Seen::PortOpened {
            node: NodeId(1),
            port: PortId(4),
            process: crate::vm::ProcessId(1),
        }
    }

    fn signalled(count: u32) -> Seen {
        Seen::Signalled {
            node: NodeId(1),
            port: PortId(4),
            id: NotificationId(9),
            count,
        }
    }

    /// A write of a sender, in a life of its link.
    fn write(port: u8, life: u8, seq: u32, text: &[u8]) -> Vec<u8> {
        let mut bytes = frame(Kind::Write, seq, 0x1000, text, 9);
        (bytes[12], bytes[16]) = (port, life);
        bytes
    }

    /// Looks at all of them, each at its time.
    fn judge(facts: &[(u64, Vec<Seen>)]) -> Verdict {
        let (mut order, mut ledger) = (Order::new(limits()), Ledger::default());
        for (at, facts) in facts {
            feed_at(&mut order, &mut ledger, Nanos(*at), facts)?;
            order.tick(Nanos(*at), &ledger)?;
        }
        Ok(())
    }

    fn lands(message: &[u8], text: &[u8]) -> Vec<Seen> {
        vec![
            sent(message.to_vec()),
            arrived(message.to_vec()),
            moved_at(0x1000, text),
        ]
    }

    #[test]
    fn an_early_signal_does_not_hide_behind_one_that_does_not_come() {
        let (one, two) = (write(3, 7, 5, b"one"), write(5, 7, 6, b"two"));
        // The second one has not landed; the one signal may be that of either.
        let pending = vec![sent(two.clone()), arrived(two.clone())];
        let begun = |count: Option<u32>| {
            let signal = count.map(signalled).into_iter().collect();
            let all = [vec![opened()], lands(&one, b"one"), pending.clone(), signal].concat();
            vec![(10, all), (10 + 2 * SPAN, vec![]), (10 + 4 * SPAN, vec![])]
        };
        assert_eq!(judge(&begun(Some(1))), Ok(()));
        caught(judge(&begun(None)), "has been owed 1 times");
        // When the second has landed as well, both are owed.
        let mut late = begun(Some(1));
        late.push((10 + 5 * SPAN, vec![moved_at(0x1000, b"two")]));
        late.push((10 + 7 * SPAN, vec![]));
        late.push((10 + 9 * SPAN, vec![]));
        caught(judge(&late), "has been owed 2 times");
        late[3].1.push(signalled(2));
        assert_eq!(judge(&late), Ok(()));
        // A card that is switched off delivers nothing.
        let mut paused = begun(None);
        let until = Nanos(10 + 3 * SPAN);
        let node = NodeId(1);
        paused[0].1.push(Seen::CardPaused { node, until });
        assert_eq!(judge(&paused), Ok(()));
    }

    #[test]
    fn what_a_lost_link_left_in_doubt_hides_no_signal_for_ever() {
        let (lost, mut next) = (write(3, 7, 5, b"lost"), write(3, 99, 0, b"next"));
        // Its program has been told of the loss, and posts in another epoch.
        next[58] = 1;
        let doubt = |at: u64| {
            let begun = [
                vec![opened(), sent(lost.clone())],
                lands(&next, b"next"),
                vec![signalled(1)],
            ]
            .concat();
            vec![
                (10, begun),
                (10 + 2 * SPAN, vec![]),
                (10 + 4 * SPAN, vec![]),
                (at, vec![signalled(2)]),
            ]
        };
        // It may have been delivered before its link was lost, but not much later.
        let mut early = doubt(20);
        early.swap(1, 3);
        early.swap(2, 3);
        assert_eq!(judge(&early), Ok(()));
        caught(
            judge(&doubt(10 + 5 * SPAN)),
            "was delivered 2 times when 1 were due",
        );
    }
}
