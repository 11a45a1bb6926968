//! Shared receive queues: an append says nothing of where it goes, so its bytes are looked for in the queue of the
//! port that it is for, and it has landed when the card says so, in the record of its place.
//!
//! The model knows the queue as its owner exported it, what the owner has given back, and every record. It gives
//! out no places itself: it says which ones the card cannot have given out.

use super::lane::{Direction, Stage};
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
        let sender = queue.awaited.iter().copied().find(|&(direction, seq)| {
            let entry = self.lanes.get(&direction).and_then(|lane| lane.entry(seq));
            entry.is_some_and(|entry| matches!(entry.stage, Stage::Arrived(_)) && entry.digest == digest)
        });
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
        let first = awaited.into_iter().find(|&(direction, seq)| {
            let entry = self.lanes.get(&direction).and_then(|lane| lane.entry(seq));
            direction == (from, node) && entry.is_some_and(|entry| entry.message.source_port == from_port)
        });
        let entry = first
            .and_then(|(direction, seq)| Some((direction, seq, *self.lanes.get(&direction)?.entry(seq)?)));
        let Some((direction, seq, entry)) = entry else {
            return wrong("its record names a sender that has sent nothing");
        };
        if stored != Some(entry.digest) || entry.message.len != word & 0xFFFF {
            return wrong("its record is not that of its sender's next message");
        }
        self.end(direction, seq, true, news);
    }

    /// Appends and ordered writes that the card has ended without a trace: because something before them in their
    /// stream had failed in their epoch, or, of an append, because their port closed when their bytes were in their place. (In a port that stays open, a
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
