//! Shared receive queues: an append says nothing of where it goes, so its bytes are looked for in the queue of the
//! port that it is for, and it has landed when the card says so, in the record of its place.
//!
//! The model knows the queue as its owner exported it, what the owner has given back, and every record. It gives
//! out no places itself: it says which ones the card cannot have given out.

use super::lane::{Direction, Entry, Lane, Stage};
use super::{Ledger, News};
use crate::seen::{ExportFact, Place};
use std::collections::{BTreeMap, BTreeSet};

/// Records of a port's area.
const RECORDS: u32 = 1024;

/// The queue of one life of a port.
#[derive(Debug, Default)]
pub(super) struct Queue {
    start: u64,
    end: u64,
    /// Bytes of an entry; 0: nothing was exported as a queue.
    entry: u64,
    /// The event count that each record raises.
    raises: u32,
    /// Places that were given back.
    freed: u32,
    /// Appends on their way.
    awaited: Vec<(Direction, u32)>,
    /// Digests of those that had arrived when their link was lost.
    stale: Vec<u64>,
    /// What was stored in a place that has no record yet.
    stored: BTreeMap<u64, u64>,
    /// How often each record was stored.
    laps: BTreeMap<u32, u32>,
    /// Places with a record that were not given back.
    held: BTreeSet<u32>,
    /// How many have a record, and the number after the highest of them.
    recorded: (u32, u32),
}

impl Queue {
    fn capacity(&self) -> u32 {
        ((self.end - self.start) / self.entry.max(1)) as u32
    }

    fn address(&self, place: u32) -> u64 {
        self.start + u64::from(place % self.capacity().max(1)) * self.entry
    }

    /// This append is no longer awaited.
    pub(super) fn over(&mut self, direction: Direction, seq: u32) {
        self.awaited.retain(|&awaited| awaited != (direction, seq));
    }

    /// What is wrong with bytes there, if anything.
    fn misplaced(&self, at: u64, len: u32) -> Option<&'static str> {
        if !(at - self.start).is_multiple_of(self.entry) || u64::from(len) > self.entry {
            return Some("its bytes are in no place");
        }
        if self.stored.contains_key(&at) || self.held.iter().any(|&place| self.address(place) == at) {
            return Some("its place was given out before, and has not come back");
        }
        None
    }
}

impl Ledger {
    fn queue(&mut self, node: u16, port: u16) -> &mut Queue {
        self.queues.entry((node, port)).or_default()
    }

    /// A port has exported something: perhaps a queue.
    pub(super) fn queue_exported(&mut self, node: u16, port: u16, fact: &ExportFact) {
        if let Some((entry, raises)) = fact.queue {
            let queue = self.queue(node, port);
            (queue.start, queue.end) = (fact.start, fact.end);
            (queue.entry, queue.raises) = (entry, raises);
        }
    }

    /// The receiver has given back all places before this one.
    pub(super) fn queue_freed(&mut self, node: u16, port: u16, freed: u32) {
        let queue = self.queue(node, port);
        queue.freed = freed;
        queue.held.retain(|&place| place >= freed);
    }

    /// An append has left for a port.
    pub(super) fn append_posted(&mut self, direction: Direction, port: u16, seq: u32) {
        self.queue(direction.1, port).awaited.push((direction, seq));
    }

    /// An append is no longer awaited.
    pub(super) fn append_over(&mut self, direction: Direction, port: u16, seq: u32) {
        self.queue(direction.1, port).over(direction, seq);
    }

    /// The link of an append that had arrived is over.
    pub(super) fn append_stale(&mut self, direction: Direction, port: u16, digest: u64) {
        self.queue(direction.1, port).stale.push(digest);
    }

    /// Bytes were stored that no plain write explains. Whether an append does.
    pub(super) fn stored_in_queue(
        &mut self,
        node: u16,
        place: Place,
        digest: u64,
        news: &mut Vec<News>,
    ) -> bool {
        let at = place.start();
        let Some(queue) = self.queues.get(&(node, place.port.0)) else {
            return false;
        };
        if queue.entry == 0 || at < queue.start || at + u64::from(place.len) > queue.end {
            return false;
        }
        let says = |&(direction, seq): &(Direction, u32)| {
            let entry = self.lanes.get(&direction).and_then(|lane| lane.entry(seq));
            entry.is_some_and(|entry| matches!(entry.stage, Stage::Arrived(_)) && entry.digest == digest)
        };
        let saying = || queue.awaited.iter().copied().filter(says);
        // What is held back behind a refusal is sent again, with the same bytes.
        let sender = saying().find(|&(direction, seq)| !self.is_withheld(direction, seq));
        let sender = sender.or_else(|| saying().next());
        if sender.is_none() && !queue.stale.contains(&digest) {
            return false;
        }
        if let Some(why) = queue.misplaced(at, place.len) {
            news.push(News::BadPlace {
                port: (node, place.port.0),
                at,
                why,
            });
        }
        if let Some((lane, seq)) = sender {
            if let Some(entry) = self.lanes.get_mut(&lane).and_then(|lane| lane.entry_mut(seq)) {
                entry.stored = true;
            }
            news.push(News::Appended { lane, seq, at });
        }
        self.queue(node, place.port.0).stored.insert(at, digest);
        true
    }

    /// The card has stored the record of a place: its first word, and the sender in the other.
    pub(super) fn recorded(
        &mut self,
        node: u16,
        port: u16,
        slot: u32,
        word: u32,
        source: u32,
        news: &mut Vec<News>,
    ) {
        let life = self.port_life(node, port);
        let queue = self.queue(node, port);
        let lap = queue.laps.entry(slot).or_default();
        let (number, good_lap) = (*lap * RECORDS + slot, word >> 24 == (*lap + 1) & 0xFF);
        *lap += 1;
        let (at, raises) = (queue.address(number), queue.raises);
        let beyond = number >= queue.freed.saturating_add(queue.capacity());
        queue.recorded.0 += 1;
        queue.recorded.1 = queue.recorded.1.max(number + 1);
        if number >= queue.freed {
            queue.held.insert(number);
        }
        let stored = queue.stored.remove(&at);
        let awaited = queue.awaited.clone();
        if raises != 0 {
            *self.raised.entry((node, port, life, raises)).or_default() += 1;
        }
        let mut wrong = |why| {
            news.push(News::BadPlace {
                port: (node, port),
                at,
                why,
            });
        };
        if !good_lap {
            return wrong("its record is of another lap");
        }
        if beyond {
            return wrong("it was given out before it came back");
        }
        if (word >> 16) & 0xFF != 0 {
            // To be skipped: the sender's failure is told by itself.
            return;
        }
        let (from, from_port) = (source as u16, (source >> 16) as u16);
        let direction = (from, node);
        let of_sender = |&(lane, seq): &(Direction, u32)| {
            let entry = *self.lanes.get(&lane)?.entry(seq)?;
            (lane == direction && entry.message.source_port == from_port).then_some((seq, entry))
        };
        let sent: Vec<(u32, Entry)> = awaited.iter().filter_map(of_sender).collect();
        let next = sent.iter().find(|&&(seq, _)| !self.is_withheld(direction, seq));
        if next.is_none_or(|(_, entry)| stored != Some(entry.digest))
            && let Some(&(seq, _)) = sent
                .iter()
                .find(|(seq, entry)| stored == Some(entry.digest) && self.is_withheld(direction, *seq))
        {
            news.push(News::BehindRefusal { lane: direction, seq });
            return;
        }
        let Some(&(seq, entry)) = next else {
            return wrong("its record names a sender that has sent nothing");
        };
        if stored != Some(entry.digest) || entry.message.len != word & 0xFFFF {
            return wrong("its record is not that of its sender's next message");
        }
        // Everything earlier of its stream has ended, what was held back without a trace as well.
        self.held_back(direction, from_port, seq.wrapping_sub(1));
        self.end(direction, seq, true, news);
    }

    /// Whether an append is held back behind a refusal that its sender did not know of.
    fn is_withheld(&self, direction: Direction, seq: u32) -> bool {
        let withheld = |lane: &Lane| {
            let entry = lane.entry(seq)?;
            let stream = lane.streams.get(&entry.message.source_port)?;
            Some(stream.withholds(entry))
        };
        self.lanes.get(&direction).and_then(withheld).unwrap_or_default()
    }

    /// The card says that the queue of an append is full: the append has ended, and those of its stream that do not name
    /// it are held back from now on.
    pub(super) fn append_refused(&mut self, direction: Direction, seq: u32, news: &mut Vec<News>) {
        let entry = self.lanes.get(&direction).and_then(|lane| lane.entry(seq));
        let Some(entry) = entry.filter(|entry| !entry.ended()).copied() else {
            return;
        };
        if !entry.message.appends() {
            return self.end(direction, seq, false, news);
        }
        if self.is_withheld(direction, seq) {
            news.push(News::BehindRefusal { lane: direction, seq });
        }
        let port = entry.message.source_port;
        // As before an append that has its place.
        self.held_back(direction, port, seq.wrapping_sub(1));
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        if let Some(entry) = lane.entry_mut(seq) {
            entry.refused = true;
        }
        if let Some(stream) = lane.streams.get_mut(&port) {
            stream.refused = Some((entry.source_life, entry.message.op));
        }
        self.end(direction, seq, false, news);
    }

    /// Appends and ordered writes that the card has ended without a trace: because something before them in their
    /// stream had failed in their epoch, or an append before them was refused, or, of an append, because their port closed when their bytes were in their place. (In a port that stays open, a
    /// place with bytes and without a record is found in the end.) Those at the head of their stream, up to this message.
    pub(super) fn held_back(&mut self, direction: Direction, port: u16, until: u32) {
        loop {
            let Some(lane) = self.lanes.get(&direction) else {
                return;
            };
            let head = lane.held_head(port);
            let Some(seq) = head.filter(|&seq| (until.wrapping_sub(seq) as i32) >= 0) else {
                return;
            };
            // It had no effect, so this is no news.
            self.end(direction, seq, true, &mut Vec::new());
        }
    }

    /// What is wrong with the queues when everything has ended: a place that has no record, though a later one has,
    /// or though bytes lie there.
    pub(in crate::check) fn lost_place(&self, open: impl Fn(u16, u16) -> bool) -> Option<String> {
        let lost = |(&(node, port), queue): (&(u16, u16), &Queue)| {
            let (count, end) = queue.recorded;
            let missing = count != end || !queue.stored.is_empty();
            (missing && open(node, port)).then(|| {
                format!(
                    "the shared queue of port {port} of node {node} has {count} records of {end} places, and bytes in {} more",
                    queue.stored.len()
                )
            })
        };
        self.queues.iter().find_map(lost)
    }
}

#[cfg(test)]
mod tests {
    use crate::check::message::tests::frame;
    use crate::check::message::{APPEND, NO_PLACE, ORDERED};
    use crate::check::p4_order::Order;
    use crate::check::shared_queue::SharedQueue;
    use crate::check::tests::{arrived, caught, feed, feed_at, moved_at, sent};
    use crate::check::{Checker, Ledger};
    use crate::seen::{ExportFact, Seen};
    use netvm_abi::wire::{Header, Kind};
    use netvm_abi::{Incarnation, Nanos, NodeId, NotificationId, PortId, Seq};
    use std::rc::Rc;

    const RECEIVER: NodeId = NodeId(1);
    const AT: PortId = PortId(4);

    fn opened() -> Seen {
        Seen::PortOpened {
            node: RECEIVER,
            port: AT,
            process: crate::vm::ProcessId(1),
        }
    }

    /// A queue of two entries of 512 bytes.
    fn queue() -> Seen {
        let fact = ExportFact {
            start: 0x4000,
            end: 0x4400,
            allowed: Vec::new(),
            queue: Some((512, 0)),
        };
        Seen::Exported {
            node: RECEIVER,
            port: AT,
            fact: Rc::new(fact),
        }
    }

    /// An append whose number is its sequence number, and which names this refusal.
    fn append(seq: u8, refusal: u8, text: &[u8]) -> Vec<u8> {
        let mut bytes = frame(Kind::Write, seq.into(), 0, text, 0);
        bytes[4] |= APPEND | ORDERED;
        (bytes[44], bytes[64]) = (seq, refusal);
        bytes
    }

    fn refused(seq: u32) -> Seen {
        let mut error = Header::new(Kind::Error, RECEIVER, NodeId(0));
        (error.source_port, error.destination_port) = (AT, PortId(3));
        (error.source_incarnation, error.destination_incarnation) = (Incarnation(8), Incarnation(7));
        (error.seq, error.raw.status) = (Seq(seq), NO_PLACE);
        sent(error.encode().to_vec())
    }

    /// The record of a place of the first lap.
    fn recorded(place: u32, len: u32) -> Seen {
        Seen::Recorded {
            node: RECEIVER,
            port: AT,
            slot: place,
            word: 1 << 24 | len,
            source: 3 << 16,
        }
    }

    /// Three appends, of which the first is refused. The third names this refusal, and carries these bytes.
    fn begun(refusal: u8, text: &[u8]) -> Vec<Seen> {
        let frames = [
            append(5, 0, b"first"),
            append(6, 0, b"second"),
            append(7, refusal, text),
        ];
        let mut facts = vec![opened(), queue()];
        facts.extend(frames.iter().cloned().map(sent));
        facts.push(arrived(frames[0].clone()));
        facts.push(refused(5));
        facts.extend(frames[1..].iter().cloned().map(arrived));
        facts
    }

    fn judge(checker: &mut dyn Checker, more: &[Seen], begun: Vec<Seen>) -> crate::check::Verdict {
        let facts: Vec<Seen> = begun.into_iter().chain(more.iter().cloned()).collect();
        feed(checker, &facts)
    }

    #[test]
    fn an_append_that_names_the_refusal_has_a_place_though_others_were_held_back() {
        // The same bytes as the one that is held back, or others.
        for text in [&b"first"[..], b"second"] {
            let more = [moved_at(0x4000, text), recorded(0, text.len() as u32)];
            for checker in [
                &mut Order::default() as &mut dyn Checker,
                &mut SharedQueue::default(),
            ] {
                assert_eq!(judge(checker, &more, begun(5, text)), Ok(()));
            }
        }
    }

    #[test]
    fn an_append_that_acts_and_does_not_name_the_refusal_is_caught() {
        let words = "behind a refused one";
        let more = [moved_at(0x4000, b"second"), recorded(0, 6)];
        caught(judge(&mut Order::default(), &more, begun(5, b"third")), words);
        caught(
            judge(&mut Order::default(), &[refused(6)], begun(5, b"third")),
            words,
        );
        let more = [moved_at(0x4000, b"third"), recorded(0, 5)];
        caught(judge(&mut Order::default(), &more, begun(0, b"third")), words);
    }

    #[test]
    fn a_notification_behind_a_refused_append_is_owed() {
        let (mut ledger, mut order) = (Ledger::default(), Order::default());
        let bell = frame(Kind::Write, 8, 0, b"", 9);
        let mut facts = begun(5, b"third");
        facts.extend([
            moved_at(0x4000, b"third"),
            recorded(0, 5),
            sent(bell.clone()),
            arrived(bell),
        ]);
        assert_eq!(feed_at(&mut order, &mut ledger, Nanos(1), &facts), Ok(()));
        assert_eq!(ledger.owed().get(&(RECEIVER.0, AT.0, 9)), Some(&1));
        let signalled = Seen::Signalled {
            node: RECEIVER,
            port: AT,
            id: NotificationId(9),
            count: 1,
        };
        assert_eq!(feed_at(&mut order, &mut ledger, Nanos(1), &[signalled]), Ok(()));
        assert_eq!(order.settled(&ledger), Ok(()));
    }
}
