//! P2: every message that arrived ends within a stated time, once; none is dropped or sent twice, and
//! none is acknowledged before it has ended. Whatever the wire loses, the sender's card knows within a stated time that
//! a message has ended, or gives up the link; and no link is given up that nothing happened to.

use super::ledger::{Direction, Lane, Stage};
use super::silence::Silence;
use super::{Checker, Ledger, Limits, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::{BounceId, Nanos, NodeId};
use std::collections::BTreeMap;

/// Follows each message from its arrival to its end, and each bounce page from fill to copy.
pub(super) struct EveryMissAnswered {
    limits: Limits,
    /// Copies still allowed of what lies in each bounce page.
    filled: BTreeMap<(NodeId, BounceId), u32>,
    /// Until when a node is excused: its card was switched off.
    excused: BTreeMap<u16, Nanos>,
    silence: Silence,
    last_looked: BTreeMap<(u16, u16), u32>,
}

impl EveryMissAnswered {
    /// A checker of these limits.
    pub(super) fn new(limits: Limits) -> Self {
        // Ten times as long as a message may take without them.
        let memory = Nanos(limits.deadline.0.saturating_mul(10));
        Self {
            limits,
            silence: Silence::new(limits.silence, memory),
            filled: BTreeMap::new(),
            excused: BTreeMap::new(),
            last_looked: BTreeMap::new(),
        }
    }

    /// The time from a message's leaving, or from the last progress of its window, to the sender's knowing.
    fn bound(&self) -> Nanos {
        self.limits.deadline.after(self.limits.loss)
    }

    /// Whether the oldest message of a lane that has not ended arrived too long ago: what is behind it may wait for it.
    fn ended(&mut self, now: Nanos, direction: Direction, lane: &Lane) -> Verdict {
        let pause = self.excused.get(&direction.1).copied().unwrap_or_default();
        if lane.abandoned || lane.entries.is_empty() {
            return Ok(());
        }
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
            && let since = arrived.max(pause)
            && since
                .after(self.limits.deadline)
                .after(self.silence.delay(direction.1, since))
                < now
        {
            return Err(format!(
                "message {} of node {} arrived at node {} and had not ended {} us later",
                entry.message.seq,
                direction.0,
                direction.1,
                (now.0 - arrived.0) / 1_000
            ));
        }
        Ok(())
    }

    /// Whether the sender of a lane has not been told for too long of what it waits for.
    fn told(&self, now: Nanos, direction: Direction, lane: &Lane) -> Verdict {
        let honest = direction.0 < self.limits.nodes && direction.1 < self.limits.nodes;
        if lane.told || !honest {
            return Ok(());
        }
        let pause = |node| match self.excused.get(&node) {
            Some(&until) if until < Nanos::MAX => until,
            _ => Nanos(0),
        };
        let late = |since: Nanos| {
            let since = since.max(pause(direction.0)).max(pause(direction.1));
            since
                .after(self.bound())
                .after(self.silence.delay(direction.1, since))
                < now
        };
        if lane.acked != lane.next_seq() && late(lane.progress) {
            return Err(format!(
                "node {} has not heard for {} us what became of message {} to node {}, and has not given up the link",
                direction.0,
                (now.0 - lane.progress.0) / 1_000,
                lane.acked,
                direction.1
            ));
        }
        if let Some((&(_, seq), _)) = lane.unanswered.iter().find(|(_, since)| late(**since)) {
            return Err(format!(
                "the answer of node {} to message {seq} of node {} was lost and has not come since, and the link has \
                 not been given up",
                direction.1, direction.0
            ));
        }
        Ok(())
    }
}

impl Checker for EveryMissAnswered {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, now: Nanos, fact: &Seen, news: &[News], _ledger: &Ledger) -> Verdict {
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
                News::LinkDown { lane, cause, .. }
                    if lane.0.max(lane.1) < self.limits.nodes
                        && cause.is_none_or(|cause| cause.after(self.bound()).after(self.bound()) < now) =>
                {
                    return Err(format!(
                        "node {} has given up its link to node {}, to which nothing has happened",
                        lane.0, lane.1
                    ));
                }
                _ => {}
            }
        }
        self.silence.see(now, fact);
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
            self.ended(now, direction, lane)?;
            self.told(now, direction, lane)?;
        }
        Ok(())
    }

    fn settled(&mut self, ledger: &Ledger) -> Verdict {
        match ledger.given_up(self.limits.reunited) {
            Some((from, to)) => Err(format!(
                "the link of node {from} to {to} is still down when everything has ended"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, arrived, caught, feed, feed_at, moved_at, sent};
    use super::*;
    use crate::faults::FaultKind;
    use crate::seen::Stored;
    use netvm_abi::wire::{Header, Kind, MessageFlags};
    use netvm_abi::{Incarnation, NodeId, Seq};

    fn checker() -> EveryMissAnswered {
        EveryMissAnswered::new(Limits {
            nodes: 2,
            deadline: Nanos(1_000),
            silence: Nanos(200),
            loss: Nanos(500),
            ..Limits::default()
        })
    }

    fn ack(seq: u32) -> Seen {
        let mut header = Header::new(Kind::Ack, NodeId(1), NodeId(0));
        header.source_incarnation = Incarnation(8);
        header.destination_incarnation = Incarnation(7);
        header.seq = Seq(seq);
        sent(header.encode().to_vec())
    }

    /// What node 1 has sent reaches node 0.
    fn heard(sent: Seen) -> Seen {
        let Seen::Sent { frame } = sent else {
            panic!("nothing was sent")
        };
        Seen::Arrived { to: NodeId(0), frame }
    }

    fn down() -> Seen {
        Seen::LinkDown {
            node: NodeId(0),
            peer: NodeId(1),
        }
    }

    /// A message that is lost, one whose acknowledgement is lost, and a request whose answer is.
    #[test]
    fn what_the_wire_has_lost_comes_or_ends_the_link_within_the_stated_time() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let flush = frame(Kind::Flush, 5, 0, b"", 0);
        let mut answer = Header::new(Kind::FlushReply, NodeId(1), NodeId(0));
        answer.source_incarnation = Incarnation(8);
        answer.destination_incarnation = Incarnation(7);
        answer.seq = Seq(5);
        answer.flags = MessageFlags::NUMBERED;
        answer.destination_port = netvm_abi::PortId(3);
        let answer = answer.encode().to_vec();
        let lost = |frame: Vec<u8>| Seen::Cut { frame: frame.into() };
        let Seen::Sent { frame: acked } = ack(6) else {
            panic!()
        };
        let cases = [
            vec![sent(write.clone()), lost(write.clone())],
            vec![
                sent(write.clone()),
                arrived(write),
                moved_at(0x1000, b"data"),
                ack(6),
                lost(acked.to_vec()),
            ],
            vec![
                sent(flush.clone()),
                arrived(flush),
                sent(answer.clone()),
                lost(answer),
                ack(6),
                heard(ack(6)),
            ],
        ];
        for facts in cases {
            let (mut ledger, mut all) = (Ledger::default(), checker());
            assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
            assert_eq!(all.tick(Nanos(1_500), &ledger), Ok(()));
            caught(all.tick(Nanos(1_600), &ledger), "given up");
            assert_eq!(feed_at(&mut all, &mut ledger, Nanos(1_600), &[down()]), Ok(()));
            assert_eq!(all.tick(Nanos(9_000), &ledger), Ok(()));
        }
    }

    /// A message that its receiver has refused leaves again, into a wire that is cut by then.
    #[test]
    fn what_leaves_again_into_a_cut_wire_has_its_time_from_there_on() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let again = Seen::Cut {
            frame: write.clone().into(),
        };
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [sent(write.clone()), arrived(write)];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(900), &[again]), Ok(()));
        assert_eq!(all.tick(Nanos(1_200), &ledger), Ok(()));
        caught(all.tick(Nanos(2_000), &ledger), "arrived at node");
    }

    /// What was lost has come since; and what was lost had come before, when it left for the first time.
    #[test]
    fn an_answer_that_comes_after_all_is_not_missed() {
        let flush = frame(Kind::Flush, 5, 0, b"", 0);
        let mut answer = Header::new(Kind::FlushReply, NodeId(1), NodeId(0));
        answer.source_incarnation = Incarnation(8);
        answer.destination_incarnation = Incarnation(7);
        (answer.seq, answer.flags) = (Seq(5), MessageFlags::NUMBERED);
        answer.destination_port = netvm_abi::PortId(3);
        let answer = sent(answer.encode().to_vec());
        let Seen::Sent { frame } = &answer else { panic!() };
        let lost = Seen::Cut { frame: frame.clone() };
        for order in [
            [lost.clone(), heard(answer.clone())],
            [heard(answer.clone()), lost],
        ] {
            let (mut ledger, mut all) = (Ledger::default(), checker());
            let facts = [sent(flush.clone()), arrived(flush.clone()), answer.clone()];
            let facts: Vec<Seen> = facts
                .into_iter()
                .chain(order)
                .chain([ack(6), heard(ack(6))])
                .collect();
            assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
            assert_eq!(all.tick(Nanos(9_000), &ledger), Ok(()));
        }
    }

    /// The link of a node is down when its card says so, and not because the wire was cut.
    #[test]
    fn a_cut_alone_does_not_end_a_link() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let cut = Seen::Cut {
            frame: write.clone().into(),
        };
        let (mut ledger, mut all) = (Ledger::default(), checker());
        assert_eq!(
            feed_at(&mut all, &mut ledger, Nanos(10), &[sent(write), cut]),
            Ok(())
        );
        assert_eq!(ledger.given_up(2), None);
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &[down()]), Ok(()));
        assert_eq!(ledger.given_up(2), Some((0, 1)));
    }

    #[test]
    fn a_link_that_is_given_up_for_nothing_is_caught() {
        caught(feed(&mut checker(), &[down()]), "nothing has happened");
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let alone = Seen::FrameLost {
            frame: write.clone().into(),
        };
        caught(feed(&mut checker(), &[alone, down()]), "nothing has happened");
        let cut = Seen::Cut { frame: write.into() };
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [cut, down()];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        let much_later = feed_at(&mut all, &mut ledger, Nanos(9_000), &[down()]);
        caught(much_later, "nothing has happened");
    }

    #[test]
    fn a_message_that_lands_in_time_may_be_acknowledged() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let facts = [
            sent(write.clone()),
            arrived(write),
            moved_at(0x1000, b"data"),
            ack(6),
            heard(ack(6)),
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

    /// Each page of the receiver that does not come gives it as much longer as its driver waits for it.
    #[test]
    fn pages_that_do_not_come_hold_up_what_is_behind_them_for_so_long() {
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let stuck = |node| Seen::Fault {
            node: NodeId(node),
            kind: FaultKind::VmStuck,
        };
        for (facts, longer) in [
            (vec![stuck(0)], 0),
            (vec![stuck(1)], 200),
            (vec![stuck(1), stuck(0), stuck(1)], 400),
        ] {
            let (mut ledger, mut all) = (Ledger::default(), checker());
            let message = [sent(write.clone()), arrived(write.clone())];
            assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &message), Ok(()));
            assert_eq!(feed_at(&mut all, &mut ledger, Nanos(500), &facts), Ok(()));
            assert_eq!(all.tick(Nanos(1_010 + longer), &ledger), Ok(()));
            caught(all.tick(Nanos(1_011 + longer), &ledger), "had not ended");
        }
    }

    #[test]
    fn a_new_card_owes_nothing_for_what_was_sent_to_its_predecessor() {
        let dead = Seen::CardDead { node: NodeId(1) };
        let write = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [dead.clone(), sent(write.clone()), arrived(write.clone())];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        assert_eq!(all.tick(Nanos(1_200), &ledger), Ok(()));
        // But for what was sent to itself.
        let (mut ledger, mut all) = (Ledger::default(), checker());
        let facts = [dead, ack(5), sent(write.clone()), arrived(write)];
        assert_eq!(feed_at(&mut all, &mut ledger, Nanos(10), &facts), Ok(()));
        caught(all.tick(Nanos(1_200), &ledger), "had not ended");
    }

    /// The receiving card remembers in which epoch a stream has failed when the link's life ends. In the next life it
    /// holds an ordered write of that epoch back, without a trace.
    #[test]
    fn an_ordered_write_behind_a_failure_of_an_earlier_life_ends_unseen() {
        let failed = frame(Kind::Write, 5, 0x1000, b"data", 0);
        let mut error = Header::new(Kind::Error, NodeId(1), NodeId(0));
        error.source_incarnation = Incarnation(8);
        error.destination_incarnation = Incarnation(7);
        error.seq = Seq(5);
        let mut write = Header::new(Kind::Write, NodeId(0), NodeId(1));
        write.source_port = netvm_abi::PortId(3);
        write.destination_port = netvm_abi::PortId(4);
        write.source_incarnation = Incarnation(9);
        write.destination_incarnation = Incarnation(10);
        write.flags = netvm_abi::wire::MessageFlags::ORDERED;
        write.len = 4;
        let ordered = [&write.encode()[..], &b"late"[..]].concat();
        let mut acked = Header::new(Kind::Ack, NodeId(1), NodeId(0));
        acked.source_incarnation = Incarnation(10);
        acked.destination_incarnation = Incarnation(9);
        acked.seq = Seq(1);
        let before = [
            sent(failed.clone()),
            arrived(failed),
            sent(error.encode().to_vec()),
        ];
        let after = [
            sent(ordered.clone()),
            arrived(ordered),
            sent(acked.encode().to_vec()),
        ];
        let between = |fact: Option<Seen>| [&before[..], fact.as_slice(), &after[..]].concat();
        assert_eq!(feed(&mut checker(), &between(None)), Ok(()));
        // Another card than the one that refused the first remembers nothing.
        let anew = Seen::Restarted { node: NodeId(1) };
        caught(feed(&mut checker(), &between(Some(anew))), "acknowledged");
        caught(feed(&mut checker(), &after), "acknowledged");
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
            from: None,
            bytes: [1].as_slice().into(),
        };
        let copy = Seen::HostCopied {
            node: NODE,
            bounce: BounceId(3),
            ppn: netvm_abi::Ppn(100),
            place: super::super::tests::place(1),
            bytes: [1].as_slice().into(),
            stored: Stored::Message,
        };
        assert_eq!(feed(&mut checker(), &[fill.clone(), copy.clone()]), Ok(()));
        caught(feed(&mut checker(), &[fill, copy.clone(), copy]), "emptied twice");
    }
}
