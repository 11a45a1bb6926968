//! One direction of a link in one life: its messages in order, and its streams.

use super::super::message::{Message, REGARDLESS};
use crate::seen::Place;
use netvm_abi::{Nanos, PortId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// So many messages of a direction are remembered at least.
const KEPT: usize = 4096;

/// A direction between two nodes.
pub(in crate::check) type Direction = (u16, u16);

/// Where a windowed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Stage {
    /// On the wire.
    Sent,
    /// With the receiving card since then.
    Arrived(Nanos),
    /// Its effect is complete.
    Landed,
    /// It was refused, and its sender told.
    Failed,
}

/// A windowed message.
#[derive(Clone, Copy, Debug)]
pub(in crate::check) struct Entry {
    pub(in crate::check) message: Message,
    pub(in crate::check) digest: u64,
    pub(in crate::check) stage: Stage,
    /// Which owner of the destination port it was sent to.
    pub(in crate::check) port_life: u32,
    /// Which owner of the source port sent it.
    pub(in crate::check) source_life: u32,
    /// The operation: that of an atomic, its message does not name.
    pub(in crate::check) op: u32,
    /// The sender knows that it has landed.
    pub(in crate::check) acked: bool,
    /// The same, or an acknowledgement has said so before its turn: the port has its slot back.
    pub(in crate::check) settled: bool,
    /// It left after one of its stream and epoch that was lost.
    pub(super) behind: bool,
    /// Of an append: its bytes lie in a place.
    pub(super) stored: bool,
    /// Of an append: it was refused, because its queue was full.
    pub(super) refused: bool,
}

impl Entry {
    pub(in crate::check) const fn ended(&self) -> bool {
        matches!(self.stage, Stage::Landed | Stage::Failed)
    }

    pub(super) fn place(&self) -> Place {
        Place {
            port: PortId(self.message.destination_port),
            page: (self.message.address >> 12) & 0xFFFF_FFFF_FFFF,
            offset: (self.message.address & 0xFFF) as u32,
            len: self.message.len,
        }
    }
}

/// A notification of a port: the port, its life, and the number.
pub(super) type Notified = (u16, u32, u32);

/// One life of a link in one direction.
#[derive(Clone, Debug, Default)]
pub(in crate::check) struct Lane {
    pub(in crate::check) lives: (u32, u32),
    /// Sequence number of the first entry.
    pub(in crate::check) first: u32,
    pub(in crate::check) entries: VecDeque<Entry>,
    /// Everything below has been acknowledged to the sender.
    pub(in crate::check) acked: u32,
    pub(super) streams: BTreeMap<u16, Stream>,
    /// The sender's card or host went down, or the link was cut: nothing is owed any more.
    pub(in crate::check) abandoned: bool,
    /// When the window last moved: an acknowledgement reached the sender, or the first message left.
    pub(in crate::check) progress: Nanos,
    /// When answers were lost that the sender waits for and that have not come since, by kind and number of what they
    /// answer.
    pub(in crate::check) unanswered: BTreeMap<(u8, u32), Nanos>,
    /// Answers that have come, in the same way.
    pub(super) answered: BTreeSet<(u8, u32)>,
    /// The sender's card has ended this life: it hears no answers any more.
    pub(in crate::check) over: bool,
    /// The sender's card has said that the link is down, or there is no such card any more.
    pub(in crate::check) told: bool,
    /// The receiver's card has begun anew since, and remembers nothing.
    pub(super) forgotten: bool,
}

/// The messages of one port to one node, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// Sequence numbers of those that are not the head of a complete prefix.
    pub(super) waiting: VecDeque<u32>,
    /// Owner and epoch of a failure whose notifications are suppressed.
    pub(super) poison: Option<(u32, u16)>,
    /// Owners that had a failure.
    pub(super) failed: BTreeSet<u32>,
    /// The same with the epoch: appends of it are held back.
    pub(super) failed_epochs: BTreeSet<(u32, u16)>,
    /// Owner and operation of the latest append that was refused: appends that do not name it are held back.
    pub(super) refused: Option<(u32, u32)>,
    /// Notifications that became due, by owner of the source port, and by destination port, its
    /// life, and number.
    pub(super) due: BTreeMap<(u32, Notified), u64>,
}

impl Stream {
    /// What the receiving card knows of it when the link's next life begins: which epochs have failed, and which append
    /// was refused.
    fn remembered(self) -> Self {
        Self {
            failed: self.failed,
            failed_epochs: self.failed_epochs,
            refused: self.refused,
            ..Self::default()
        }
    }

    /// Whether this append is held back, because it was posted by one that did not know of a refusal before it.
    pub(super) fn withholds(&self, entry: &Entry) -> bool {
        let refused = self.refused.filter(|&(owner, _)| owner == entry.source_life);
        entry.message.appends() && refused.is_some_and(|(_, op)| op != entry.message.operand as u32)
    }
}

impl Lane {
    /// Its streams for the next life of the link.
    pub(super) fn remembered(self) -> BTreeMap<u16, Stream> {
        if self.forgotten {
            return BTreeMap::new();
        }
        let streams = self.streams.into_iter();
        streams
            .map(|(port, stream)| (port, stream.remembered()))
            .collect()
    }

    pub(in crate::check) fn entry(&self, seq: u32) -> Option<&Entry> {
        self.entries.get(seq.wrapping_sub(self.first) as usize)
    }

    pub(super) fn entry_mut(&mut self, seq: u32) -> Option<&mut Entry> {
        self.entries.get_mut(seq.wrapping_sub(self.first) as usize)
    }

    pub(in crate::check) fn next_seq(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    /// An acknowledgement has reached the sender.
    pub(super) fn acknowledge(&mut self, now: Nanos, message: &Message) {
        let before = self.acked;
        while self.acked != message.seq && (message.seq.wrapping_sub(self.acked) as i32) > 0 {
            let seq = self.acked;
            let Some(entry) = self.entry_mut(seq) else { break };
            (entry.acked, entry.settled) = (true, true);
            self.acked = self.acked.wrapping_add(1);
        }
        for seq in message.ended_beyond() {
            if let Some(entry) = self.entry_mut(seq) {
                entry.settled = true;
            }
        }
        if self.acked != before {
            self.progress = now;
        }
        if self.entries.len() > 2 * KEPT {
            self.forget_past();
        }
    }

    /// What is acknowledged and long past is not asked for any more. It goes in batches: the answers are looked through for each.
    fn forget_past(&mut self) {
        while self.entries.len() > KEPT && self.entries.front().is_some_and(|e| e.acked && e.ended()) {
            self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        let first = self.first;
        let is_known = |&(_, seq): &(u8, u32)| (seq.wrapping_sub(first) as i32) >= 0;
        self.answered.retain(is_known);
    }

    /// What its sender's card has no acknowledgement for: what is behind a gap counts.
    pub(in crate::check) fn unacknowledged(&self) -> impl Iterator<Item = &Entry> {
        let acked = self.acked.wrapping_sub(self.first) as usize;
        self.entries.iter().skip(acked)
    }

    /// Notifications of this kind that became due.
    pub(super) fn due(&self, key: Notified) -> u64 {
        let all = self.streams.values().flat_map(|stream| &stream.due);
        all.filter(|((_, notified), _)| *notified == key)
            .map(|(_, count)| count)
            .sum()
    }

    /// The message at the head of a stream, if its receiver has it and ends it without a trace: it asks for order
    /// behind a failure of its epoch, or is an append behind a refusal, or its bytes are in a place of a queue whose
    /// port has closed.
    pub(super) fn held_head(&self, port: u16) -> Option<u32> {
        let stream = self.streams.get(&port)?;
        let seq = *stream.waiting.front()?;
        let entry = self.entry(seq)?;
        let epoch = (entry.source_life, entry.message.epoch);
        let held = entry.message.asks_for_order()
            && matches!(entry.stage, Stage::Arrived(_))
            && (entry.stored || stream.failed_epochs.contains(&epoch) || stream.withholds(entry));
        held.then_some(seq)
    }

    /// The lane as it is when the receiver has ended what it holds back. It does so without a trace, and an
    /// acknowledgement that says so can come later than the notifications of what follows.
    pub(super) fn past_held(&self) -> Self {
        let mut lane = self.clone();
        for &port in self.streams.keys() {
            while let Some(seq) = lane.held_head(port) {
                let Some(entry) = lane.entry_mut(seq) else { break };
                entry.stage = Stage::Landed;
                lane.advance(port);
            }
        }
        lane
    }

    /// Whether a message of the stream before this one has not ended, and is not held back either.
    pub(super) fn is_early(&self, port: u16, seq: u32) -> bool {
        let behind = |lane: &Self| {
            let first = lane.streams.get(&port).and_then(|stream| stream.waiting.front());
            first.is_some_and(|&first| (first.wrapping_sub(seq) as i32) < 0)
        };
        behind(self) && behind(&self.past_held())
    }

    /// Moves a stream's head past what has ended; notifications there become due.
    pub(super) fn advance(&mut self, port: u16) {
        let first = self.first;
        let Some(stream) = self.streams.get_mut(&port) else {
            return;
        };
        while let Some(&seq) = stream.waiting.front() {
            let Some(entry) = self.entries.get(seq.wrapping_sub(first) as usize) else {
                break;
            };
            if !entry.ended() {
                break;
            }
            stream.waiting.pop_front();
            let message = &entry.message;
            let alone = message.flags & REGARDLESS != 0;
            // A failed read or atomic leaves nothing undone at the receiver, and no message relies on one that stands
            // alone; a refused append is sent again; a new owner or epoch starts afresh.
            let failed = entry.stage == Stage::Failed && !entry.refused;
            if failed && !message.only_asks() && !alone {
                stream.poison = Some((entry.source_life, message.epoch));
            } else if stream
                .poison
                .is_some_and(|poison| poison != (entry.source_life, message.epoch))
            {
                stream.poison = None;
            }
            let held_back = (stream.poison.is_some() || entry.behind) && !alone;
            if message.notification != 0 && entry.stage == Stage::Landed && !held_back {
                let key = (message.destination_port, entry.port_life, message.notification);
                *stream.due.entry((entry.source_life, key)).or_default() += 1;
            }
        }
    }
}
