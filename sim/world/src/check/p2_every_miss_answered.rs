//! P2: every message that arrived ends within a stated time, once; none is dropped or sent twice, and
//! none is acknowledged before it has ended.

use super::ledger::Stage;
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::{BounceId, Nanos, NodeId};
use std::collections::BTreeMap;

/// Follows each message from its arrival to its end, and each bounce page from fill to copy.
pub(super) struct EveryMissAnswered {
    deadline: Nanos,
    /// Copies still allowed of what lies in each bounce page.
    filled: BTreeMap<(NodeId, BounceId), u32>,
    /// Until when a node is excused: its card was switched off.
    excused: BTreeMap<u16, Nanos>,
    last_looked: BTreeMap<(u16, u16), u32>,
}

impl EveryMissAnswered {
    /// A checker for whom a message may take `deadline` from arrival to end.
    pub(super) fn new(deadline: Nanos) -> Self {
        Self {
            deadline,
            filled: BTreeMap::new(),
            excused: BTreeMap::new(),
            last_looked: BTreeMap::new(),
        }
    }
}

impl Checker for EveryMissAnswered {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, news: &[News], _ledger: &Ledger) -> Verdict {
        for item in news {
            match *item {
                News::Posted {
                    lane,
                    seq,
                    repeated: true,
                    ..
                } => {
                    return Err(format!(
                        "message {seq} of node {} to {} was sent twice",
                        lane.0, lane.1
                    ));
                }
                News::Posted {
                    lane, seq, gap: true, ..
                } => {
                    return Err(format!(
                        "node {} skipped numbers before message {seq} to {}",
                        lane.0, lane.1
                    ));
                }
                News::FalseAck { lane, seq } => {
                    return Err(format!(
                        "node {} acknowledged message {seq} of node {}, which has not ended",
                        lane.1, lane.0
                    ));
                }
                _ => {}
            }
        }
        match *fact {
            Seen::BounceFilled { node, bounce, .. } => {
                self.filled.insert((node, bounce), 1);
            }
            Seen::HostCopied { node, bounce, .. } => match self.filled.get_mut(&(node, bounce)) {
                Some(left) if *left > 0 => *left -= 1,
                _ => return Err(format!("node {node}: bounce page {bounce} was emptied twice")),
            },
            Seen::CardPaused { node, until } => {
                self.excused.insert(node.0, until);
            }
            Seen::Restarted { node } => self.filled.retain(|key, _| key.0 != node),
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, ledger: &Ledger) -> Verdict {
        for (&direction, lane) in &ledger.lanes {
            let pause = self.excused.get(&direction.1).copied().unwrap_or_default();
            if lane.abandoned || lane.entries.is_empty() {
                continue;
            }
            // Only the oldest that has not ended matters: what is behind it may wait for it.
            let from = self.last_looked.get(&direction).copied().unwrap_or(lane.first);
            let skip = from.wrapping_sub(lane.first) as usize;
            let skip = if skip > lane.entries.len() { 0 } else { skip };
            let oldest = lane
                .entries
                .iter()
                .enumerate()
                .skip(skip)
                .find(|(_, entry)| !entry.ended());
            let at = oldest.map_or(lane.entries.len(), |(at, _)| at);
            self.last_looked
                .insert(direction, lane.first.wrapping_add(at as u32));
            if let Some((_, entry)) = oldest
                && let Stage::Arrived(arrived) = entry.stage
                && arrived.max(pause).after(self.deadline) < now
            {
                return Err(format!(
                    "message {} of node {} arrived at node {} and had not ended {} us later",
                    entry.message.seq,
                    direction.0,
                    direction.1,
                    (now.0 - arrived.0) / 1_000
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, arrived, caught, feed, feed_at, moved_at, sent};
    use super::*;
    use netvm_abi::wire::{Header, Kind};
    use netvm_abi::{Incarnation, NodeId, Seq};

    fn checker() -> EveryMissAnswered {
        EveryMissAnswered::new(Nanos(1_000))
    }

    fn ack(seq: u32) -> Seen {
        let mut header = Header::new(Kind::Ack, NodeId(1), NodeId(0));
        header.source_incarnation = Incarnation(8);
        header.destination_incarnation = Incarnation(7);
        header.seq = Seq(seq);
        sent(header.encode().to_vec())
    }

    #[test]
    fn a_message_that_lands_in_time_may_be_acknowledged() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let facts = [
            sent(write.clone()),
            arrived(write),
            moved_at(0x1000, b"data"),
            ack(6),
        ];
        let mut ledger = Ledger::default();
        let mut checker = checker();
        assert_eq!(feed_at(&mut checker, &mut ledger, Nanos(10), &facts), Ok(()));
        assert_eq!(checker.tick(Nanos(100_000), &ledger), Ok(()));
    }

    #[test]
    fn a_message_that_never_ends_and_an_early_acknowledgement_are_caught() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let facts = [sent(write.clone()), arrived(write)];
        let mut ledger = Ledger::default();
        let mut checker = checker();
        assert_eq!(feed_at(&mut checker, &mut ledger, Nanos(10), &facts), Ok(()));
        assert_eq!(checker.tick(Nanos(900), &ledger), Ok(()));
        caught(checker.tick(Nanos(2_000), &ledger), "had not ended");
        caught(
            feed_at(&mut checker, &mut ledger, Nanos(11), &[ack(6)]),
            "acknowledged",
        );
    }

    #[test]
    fn a_new_card_owes_nothing_for_what_was_sent_to_its_predecessor() {
        let dead = Seen::CardDead { node: NodeId(1) };
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [dead.clone(), sent(write.clone()), arrived(write.clone())];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        assert_eq!(all.tick(Nanos(2_000), &ledger), Ok(()));
        // But for what was sent to itself.
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [dead, ack(5), sent(write.clone()), arrived(write)];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        caught(all.tick(Nanos(2_000), &ledger), "had not ended");
    }

    #[test]
    fn sending_twice_and_skipping_numbers_are_caught() {
        let write = |seq| sent(frame(Kind::Write, seq, 0x1000, b"data", 0));
        caught(feed(&mut checker(), &[write(5), write(5)]), "sent twice");
        caught(feed(&mut checker(), &[write(5), write(7)]), "skipped");
    }

    #[test]
    fn a_bounce_page_is_emptied_once() {
        let fill = Seen::BounceFilled {
            node: NODE,
            bounce: BounceId(3),
        };
        let copy = Seen::HostCopied {
            node: NODE,
            bounce: BounceId(3),
            place: super::super::tests::place(1),
            digest: 1,
        };
        assert_eq!(feed(&mut checker(), &[fill.clone(), copy.clone()]), Ok(()));
        caught(feed(&mut checker(), &[fill, copy.clone(), copy]), "emptied twice");
    }
}
