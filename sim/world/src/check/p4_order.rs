//! P4: a notification comes after the data and the same-numbered notifications of every earlier
//! message of its port, exactly once; an ordered message acts after everything earlier. What a blocked app waits for
//! wakes it.

use super::p4_debts::Debts;
use super::{Checker, Ledger, Limits, News, Promise, Verdict};
use crate::seen::{Ending, Place, Seen};
use netvm_abi::{Nanos, NodeId, NotificationId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A notification of a port.
pub(super) type Key = (NodeId, PortId, NotificationId);

/// A port has another owner: forgets what was kept of it, without a look at all others.
pub(super) fn forget_port<T>(of: &mut BTreeMap<Key, T>, node: NodeId, port: PortId) {
    let [first, last] = [0, u32::MAX].map(|id| (node, port, NotificationId(id)));
    let gone: Vec<Key> = of.range(first..=last).map(|(&key, _)| key).collect();
    for key in gone {
        of.remove(&key);
    }
}

/// Compares the notifications that a port got with those that were due.
#[derive(Default)]
pub(super) struct Order {
    counts: BTreeMap<Key, u32>,
    delivered: BTreeMap<Key, u64>,
    open: BTreeSet<(NodeId, PortId)>,
    debts: Debts,
}

impl Order {
    /// A checker of these limits.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            debts: Debts::new(limits),
            ..Self::default()
        }
    }

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
        let never = self.debts.never((node, port, id));
        let mut due = ledger.due(node.0, port.0, id.0).saturating_sub(never);
        if *delivered > due {
            due = ledger.due_past_held(node.0, port.0, id.0).saturating_sub(never);
        }
        if *delivered > due {
            return Err(format!(
                "node {node}: notification {id} of port {port} was delivered {delivered} times when {due} were due{}",
                ledger.heads(node.0, port.0)
            ));
        }
        Ok(())
    }
}

/// What is wrong with a part of a DMA: it must not cut an aligned word of 8 bytes, or of fewer that are all there is.
fn whole_words(node: NodeId, of: Place, place: Place) -> Verdict {
    let ends = |place: Place| [place.offset, place.offset + place.len];
    let cuts = ends(place)
        .into_iter()
        .zip(ends(of))
        .find(|(at, end)| at != end && at % 8 != 0);
    match cuts {
        Some((at, _)) => Err(format!(
            "node {node}: a DMA to or from page {:#x} of port {} tears the word at {:#x}",
            place.page,
            place.port,
            at & !7
        )),
        None => Ok(()),
    }
}

impl Checker for Order {
    fn promise(&self) -> Promise {
        Promise::P4
    }

    fn bytes(&self) -> usize {
        // Nodes of a tree are two thirds full on average.
        let keys = size_of::<(NodeId, PortId, NotificationId)>();
        let counts = self.counts.len() * (keys + size_of::<u32>());
        (counts + self.delivered.len() * (keys + size_of::<u64>())) * 3 / 2
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
                News::BehindFailure { lane, seq } => {
                    return Err(format!(
                        "message {seq} of node {} to {} asks for order and acted, though an earlier one of its stream was lost or has failed, and its program does not know",
                        lane.0, lane.1
                    ));
                }
                News::BehindRefusal { lane, seq } => {
                    return Err(format!(
                        "append {seq} of node {} to {} acted behind a refused one that its sender did not know of",
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
            Seen::DmaPart { node, of, place, .. } => return whole_words(node, of, place),
            Seen::PortClosed { node, port }
            | Seen::Ends {
                node,
                port,
                what: Ending::Port,
            } => {
                self.open.remove(&(node, port));
            }
            Seen::CardPaused { node, until } => self.debts.pause(node, until),
            Seen::PortOpened { node, port, .. } => {
                self.open.insert((node, port));
                forget_port(&mut self.counts, node, port);
                forget_port(&mut self.delivered, node, port);
                self.debts.forget_port(node, port);
            }
            Seen::Overslept { node, port } => {
                return Err(format!(
                    "node {node}: an app at port {port} found what it waits for when the clock ended its wait; no wake-up came"
                ));
            }
            Seen::Restarted { node } => {
                self.open.retain(|key| key.0 != node);
                self.counts.retain(|key, _| key.0 != node);
                self.delivered.retain(|key, _| key.0 != node);
                self.debts.forget_node(node);
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

    fn tick(&mut self, now: Nanos, ledger: &Ledger) -> Verdict {
        self.debts.look(now, ledger, &self.delivered, &self.open)
    }

    fn settled(&mut self, ledger: &Ledger) -> Verdict {
        // What is owed, not what came: a notification that is owed once and never comes is in no count.
        for ((node, port, id), owed) in ledger.owed() {
            let key = (NodeId(node), PortId(port), NotificationId(id));
            let delivered = self.delivered.get(&key).copied().unwrap_or_default();
            if self.open.contains(&(key.0, key.1)) && delivered < owed {
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
    use super::super::tests::{NODE, PORT, arrived, caught, feed, feed_at, moved_at, sent};
    use super::*;
    use netvm_abi::descriptor::{Command, CommandFlags};
    use netvm_abi::wire::{Header, Kind};
    use netvm_abi::{ByteLen, Epoch, Incarnation, OpId, Seq, VirtAddr};

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
    fn a_notification_that_is_owed_once_and_never_comes_is_caught_at_the_end() {
        let mut ledger = super::super::ledger::Ledger::default();
        let mut order = Order::default();
        let write = frame(Kind::Write, 5, 0x1000, b"data", 1030);
        let opened = Seen::PortOpened {
            node: RECEIVER,
            port: PortId(4),
            process: crate::vm::ProcessId(1),
        };
        let facts = [
            opened.clone(),
            sent(write.clone()),
            arrived(write),
            moved_at(0x1000, b"data"),
        ];
        assert_eq!(feed_at(&mut order, &mut ledger, Nanos(1), &facts), Ok(()));
        caught(order.settled(&ledger), "was delivered 0 times, 1 were owed");
        // Its next owner is owed nothing of it.
        assert_eq!(feed_at(&mut order, &mut ledger, Nanos(1), &[opened]), Ok(()));
        assert_eq!(order.settled(&ledger), Ok(()));
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

    /// The command of a frame of [`pair`], or of one like it.
    fn posted(op: u32, address: u64, len: u32, epoch: u16, flags: CommandFlags) -> Seen {
        let command = Command {
            flags,
            len: ByteLen(len),
            node: RECEIVER,
            port: PortId(4),
            remote: VirtAddr(address),
            op: OpId(op),
            epoch: Epoch(epoch),
            ..Command::default()
        };
        Seen::Posted {
            node: NodeId(0),
            port: PortId(3),
            words: command.encode(),
            inline: 0,
        }
    }

    /// A frame of this epoch, with these flags.
    fn changed(mut frame: Vec<u8>, epoch: u8, flags: u8) -> Vec<u8> {
        frame[4] |= flags;
        frame[58] = epoch;
        frame
    }

    #[test]
    fn what_asks_for_order_behind_a_command_that_never_left_is_caught() {
        let none = CommandFlags::empty();
        let [_, second] = pair();
        // Its program has heard, and posts in another epoch.
        for (epoch, told) in [(0, false), (1, true)] {
            let second = changed(second.clone(), epoch as u8, 0);
            let facts = [
                posted(1, 0x1000, 5, 0, none),
                posted(0, 0x2000, 6, epoch, none),
                sent(second.clone()),
                arrived(second),
                moved_at(0x2000, b"second"),
                signalled(1),
            ];
            let verdict = feed(&mut Order::default(), &facts);
            assert_eq!(verdict.is_ok(), told, "{verdict:?}");
        }
        for (flags, command, acts) in [
            (super::super::message::ORDERED, CommandFlags::ORDERED, false),
            (
                super::super::message::ORDERED | super::super::message::REGARDLESS,
                CommandFlags::ORDERED | CommandFlags::REGARDLESS,
                true,
            ),
        ] {
            let second = changed(frame(Kind::Write, 6, 0x2000, b"second", 0), 0, flags);
            let facts = [
                posted(1, 0x1000, 5, 0, none),
                posted(0, 0x2000, 6, 0, command),
                sent(second.clone()),
                arrived(second),
                moved_at(0x2000, b"second"),
            ];
            let verdict = feed(&mut Order::default(), &facts);
            if acts {
                assert_eq!(verdict, Ok(()));
            } else {
                caught(verdict, "asks for order");
            }
        }
    }

    #[test]
    fn a_hostile_ports_commands_are_not_believed() {
        let [_, second] = pair();
        let facts = [
            Seen::Hostile {
                node: NodeId(0),
                port: PortId(3),
            },
            posted(1, 0x1000, 5, 0, CommandFlags::empty()),
            posted(0, 0x2000, 6, 0, CommandFlags::empty()),
            sent(second.clone()),
            arrived(second),
            moved_at(0x2000, b"second"),
            signalled(1),
        ];
        assert_eq!(feed(&mut Order::default(), &facts), Ok(()));
    }

    /// What the receiver says of the first of [`pair`].
    fn refusal() -> Seen {
        let mut error = Header::new(Kind::Error, RECEIVER, NodeId(0));
        (error.source_port, error.destination_port) = (PortId(4), PortId(3));
        (error.source_incarnation, error.destination_incarnation) = (Incarnation(8), Incarnation(7));
        (error.seq, error.raw.status) = (Seq(5), 5);
        sent(error.encode().to_vec())
    }

    #[test]
    fn what_is_held_back_does_not_stand_before_a_notification_of_another_epoch() {
        let [first, second] = pair();
        let second = changed(second, 0, super::super::message::ORDERED);
        // Its program has been told of the failure before it posts the third, or has not.
        for (epoch, told) in [(1, true), (0, false)] {
            let third = changed(frame(Kind::Write, 7, 0x3000, b"third", 9), epoch, 0);
            let facts = [
                sent(first.clone()),
                sent(second.clone()),
                sent(third.clone()),
                arrived(first.clone()),
                refusal(),
                arrived(second.clone()),
                arrived(third),
                moved_at(0x3000, b"third"),
                signalled(1),
            ];
            let verdict = feed(&mut Order::default(), &facts);
            assert_eq!(verdict.is_ok(), told, "{verdict:?}");
        }
    }

    #[test]
    fn what_is_held_back_does_not_stand_before_an_ordered_message_of_another_epoch() {
        let [first, second] = pair();
        let second = changed(second, 0, super::super::message::ORDERED);
        // The card has ended the second without a word, or has not got it.
        for (epoch, held, complaint) in [
            (1, true, None),
            (1, false, Some("acted before")),
            (0, true, Some("asks for order")),
        ] {
            let third = frame(Kind::Write, 7, 0x3000, b"third", 0);
            let third = changed(third, epoch, super::super::message::ORDERED);
            let mut facts = vec![
                sent(first.clone()),
                sent(second.clone()),
                sent(third.clone()),
                arrived(first.clone()),
                refusal(),
                arrived(third),
                moved_at(0x3000, b"third"),
            ];
            if held {
                facts.insert(5, arrived(second.clone()));
            }
            let verdict = feed(&mut Order::default(), &facts);
            match complaint {
                None => assert_eq!(verdict, Ok(())),
                Some(complaint) => caught(verdict, complaint),
            }
        }
    }

    #[test]
    fn what_has_not_arrived_stands_before_a_notification_of_another_epoch() {
        let [first, second] = pair();
        let second = changed(second, 0, super::super::message::ORDERED);
        let third = changed(frame(Kind::Write, 7, 0x3000, b"third", 9), 1, 0);
        let facts = [
            sent(first.clone()),
            sent(second),
            sent(third.clone()),
            arrived(first),
            refusal(),
            arrived(third),
            moved_at(0x3000, b"third"),
            signalled(1),
        ];
        caught(feed(&mut Order::default(), &facts), "when 0 were due");
    }

    #[test]
    fn an_ordered_write_behind_one_that_was_refused_is_caught() {
        let [first, second] = pair();
        let second = changed(second, 0, super::super::message::ORDERED);
        let facts = [
            sent(first.clone()),
            sent(second.clone()),
            arrived(first),
            refusal(),
            arrived(second),
            moved_at(0x2000, b"second"),
        ];
        caught(feed(&mut Order::default(), &facts), "asks for order");
    }

    #[test]
    fn a_dma_may_move_in_parts_that_tear_no_word() {
        let place = |offset, len| Place {
            offset,
            len,
            ..super::super::tests::place(10)
        };
        for (of, part, sound) in [
            ((4, 60), (4, 4), true),
            ((4, 60), (8, 56), true),
            ((4, 60), (4, 8), false),
            ((4, 60), (12, 52), false),
            ((8, 8), (8, 4), false),
            ((4, 8), (4, 4), true),
        ] {
            let part = Seen::DmaPart {
                node: RECEIVER,
                way: crate::seen::Way::ToPage,
                ppn: netvm_abi::Ppn(100),
                of: place(of.0, of.1),
                place: place(part.0, part.1),
                bytes: [].as_slice().into(),
            };
            let verdict = feed(&mut Order::default(), &[part]);
            assert_eq!(verdict.is_ok(), sound, "{verdict:?}");
        }
    }

    #[test]
    fn a_wait_that_only_the_clock_ends_is_caught() {
        let overslept = Seen::Overslept {
            node: NODE,
            port: PORT,
        };
        caught(feed(&mut Order::default(), &[overslept]), "no wake-up came");
    }
}
