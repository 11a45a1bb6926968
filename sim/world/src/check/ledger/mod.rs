//! Which message is where: built from the frames on the wire and from the bytes that arrive in
//! memory, for the checkers of P2, P4, P5 and P6.
//!
//! A message with data has *landed* when bytes with its digest were stored exactly where it says.
//! Two messages of different senders with one place and one digest cannot be told apart; then each
//! sender gets the benefit, so the ledger may believe in a landing too early, never too late.

mod lane;
mod lost;
mod questions;
mod queues;
mod wire;

use super::message::{
    ATOMIC_REPLY, ATOMIC_REQUEST, BYE, CONTROL, ERROR, FLUSH, FLUSH_REPLY, HEAD, Message, NO_PLACE, Posted,
    READ_REPLY, WRITE,
};
use crate::seen::{Place, Seen, Stored, Way, digest};
use netvm_abi::{Nanos, NodeId};
use std::collections::BTreeMap;

pub(in crate::check) use lane::{Direction, Entry, Lane, Stage};

/// What the ledger concluded from a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum News {
    /// A windowed message left its card.
    Posted {
        lane: Direction,
        seq: u32,
        repeated: bool,
        gap: bool,
    },
    /// It is what has become of this command, which was posted then.
    Left {
        lane: Direction,
        seq: u32,
        command: Posted,
        at: Nanos,
    },
    /// A message has its effect.
    Landed {
        lane: Direction,
        seq: u32,
        early: bool,
        other_life: bool,
    },
    /// A message was refused.
    Failed { lane: Direction, seq: u32 },
    /// Bytes of a message of a life that is over were stored.
    Stale { lane: Direction, seq: u32 },
    /// Bytes of an append were stored in a queue.
    Appended { lane: Direction, seq: u32, at: u64 },
    /// A place of a port's shared queue that cannot have been given out, or not be recorded so.
    BadPlace {
        port: (u16, u16),
        at: u64,
        why: &'static str,
    },
    /// Bytes were stored that no message from another node explains.
    Unexplained,
    /// An acknowledgement was sent that covers a message which has not ended.
    FalseAck { lane: Direction, seq: u32 },
    /// A message acted that asks for order, though an earlier one of its stream is lost or has failed, and nothing
    /// shows that the program knows.
    BehindFailure { lane: Direction, seq: u32 },
    /// An append acted that does not name the refusal before it.
    BehindRefusal { lane: Direction, seq: u32 },
    /// A card has given up its link to a node. When something last happened that explains it.
    LinkDown {
        lane: Direction,
        cause: Option<Nanos>,
        /// It had not said so of the life that the lane is of.
        anew: bool,
    },
    /// A flush was answered although an earlier message of its port had not ended.
    FalseFlush { lane: Direction, seq: u32, missing: u32 },
}

/// A message of a life that is over: direction, number, digest, whether it had arrived.
type Stale = (Direction, u32, u64, bool);

/// The books.
#[derive(Default)]
pub(in crate::check) struct Ledger {
    pub(in crate::check) lanes: BTreeMap<Direction, Lane>,
    /// Messages waiting for bytes at a place of a node.
    awaited: BTreeMap<(u16, Place), Vec<(Direction, u32)>>,
    /// Messages of lives that are over and that had not arrived then.
    stale: BTreeMap<(u16, Place), Vec<Stale>>,
    /// How many owners each port has had.
    port_lives: BTreeMap<(u16, u16), u32>,
    /// Notifications of finished lanes that were due, as an upper bound.
    past_due: BTreeMap<(u16, u16, u32, u32), u64>,
    /// The shared queue of each port.
    queues: BTreeMap<(u16, u16), queues::Queue>,
    /// Event counts that records of places have raised, by node, port, its life, and number.
    raised: BTreeMap<(u16, u16, u32, u32), u64>,
    pub(in crate::check) messages: u64,
    /// What was posted and never left.
    lost: lost::Lost,
    /// Of nodes whose card has died: the lives that its successor has named, by peer. That takes nothing that was
    /// sent to its predecessor, on a lane that was begun after the death as well.
    reborn: BTreeMap<u16, BTreeMap<u16, u32>>,
    /// When something last happened to a pair of nodes that may end a life of their link.
    causes: BTreeMap<Direction, Nanos>,
    /// The same to all links of a node.
    node_causes: BTreeMap<u16, Nanos>,
    /// A port that sends only so that there is traffic: its messages are no progress of the run.
    background: Option<u16>,
}

impl Ledger {
    /// Empty books for a run in which this port sends only so that there is traffic.
    pub(in crate::check) fn with_background(background: Option<u16>) -> Self {
        Self {
            background,
            ..Self::default()
        }
    }

    /// Bytes of the messages that are kept.
    pub(in crate::check) fn bytes(&self) -> u64 {
        let entries: usize = self.lanes.values().map(|lane| lane.entries.capacity()).sum();
        (entries * size_of::<lane::Entry>() + self.lanes.len() * size_of::<Lane>()) as u64
    }

    /// The number of the next message that leaves on a lane.
    pub(in crate::check) fn next_seq(&self, lane: Direction) -> u32 {
        self.lanes.get(&lane).map_or(0, Lane::next_seq)
    }

    /// Takes in a fact.
    pub(in crate::check) fn see(&mut self, now: Nanos, fact: &Seen) -> Vec<News> {
        let mut news = Vec::new();
        match fact {
            Seen::Sent { frame, .. } => self.sent(now, frame, &mut news),
            Seen::Arrived { to, frame } => self.arrived(now, *to, frame, &mut news),
            Seen::DmaMoved {
                node,
                way: Way::ToPage,
                place,
                bytes,
                stored: Some(stored),
                ..
            }
            | Seen::HostCopied {
                node,
                place,
                bytes,
                stored,
                ..
            } => match stored {
                Stored::Message => self.stored(node.0, *place, digest(bytes), &mut news),
                Stored::Answer | Stored::Operand => news.push(News::Unexplained),
            },
            Seen::Posted {
                node,
                port,
                words,
                inline,
            } => {
                let command = Posted::read(words);
                self.lost.posted(node.0, port.0, (now, command.carrying(*inline)));
            }
            Seen::Hostile { node, port } => self.lost.hostile(node.0, port.0),
            Seen::PortClosed { node, port } => self.lost.forget(node.0, port.0),
            Seen::PortOpened { node, port, .. } => {
                self.lost.forget(node.0, port.0);
                *self.port_lives.entry((node.0, port.0)).or_default() += 1;
                self.queues.remove(&(node.0, port.0));
            }
            Seen::Exported { node, port, fact } => self.queue_exported(node.0, port.0, fact),
            Seen::Freed { node, port, freed } => self.queue_freed(node.0, port.0, *freed),
            Seen::Recorded {
                node,
                port,
                slot,
                word,
                source,
            } => self.recorded(node.0, port.0, *slot, *word, *source, &mut news),
            Seen::Restarted { node } | Seen::CardDead { node } => {
                self.node_causes.insert(node.0, now);
                self.abandon(*node);
                self.lost.forget_node(node.0);
                self.hears_no_more(*node);
                self.reborn.insert(node.0, BTreeMap::new());
            }
            Seen::CardPaused { node, until } if *until == Nanos::MAX => {
                self.node_causes.insert(node.0, now);
                self.hears_no_more(*node);
            }
            Seen::Lost { from, to } => {
                self.blame(now, *from, *to);
                self.give_up(*from, *to);
            }
            Seen::MadeUp { from, to } => self.made_up(now, *from, *to),
            Seen::Cut { frame } => {
                self.cut(now, frame);
                self.again_on_its_way(now, frame);
                self.frame_lost(now, frame);
            }
            Seen::FrameLost { frame } => self.frame_lost(now, frame),
            Seen::LinkEnds { node, peer } => {
                if let Some(lane) = self.lanes.get_mut(&(node.0, peer.0)) {
                    lane.over = true;
                }
            }
            Seen::LinkDown { node, peer } => self.link_down(*node, *peer, &mut news),
            _ => {}
        }
        news
    }

    fn sent(&mut self, now: Nanos, frame: &[u8], news: &mut Vec<News>) {
        let Some(message) = Message::read(frame) else {
            return;
        };
        if message.kind != BYE
            && let Some(lives) = self.reborn.get_mut(&message.source)
        {
            lives.insert(message.destination, message.source_life);
        }
        let direction = (message.source, message.destination);
        if message.windowed() {
            self.post(
                now,
                direction,
                message,
                &frame[HEAD..HEAD + message.len as usize],
                news,
            );
            return;
        }
        // Answers travel against the message they answer.
        let lane_of = (message.destination, message.source);
        let Some(lane) = self.lanes.get_mut(&lane_of) else {
            return;
        };
        if lane.lives != (message.destination_life, message.source_life) {
            return;
        }
        match message.kind {
            READ_REPLY | ATOMIC_REPLY => self.end(lane_of, message.seq, message.status == 0, news),
            FLUSH_REPLY => {
                self.held_back(lane_of, message.destination_port, message.seq);
                let Some(lane) = self.lanes.get(&lane_of) else {
                    return;
                };
                let missing = lane.entry(message.seq).and_then(|flush| {
                    let stream = lane.streams.get(&flush.message.source_port)?;
                    let first = *stream.waiting.front()?;
                    (first != message.seq).then_some(first)
                });
                if let Some(missing) = missing {
                    news.push(News::FalseFlush {
                        lane: lane_of,
                        seq: message.seq,
                        missing,
                    });
                }
                self.end(lane_of, message.seq, true, news);
            }
            ERROR if message.status == NO_PLACE => self.append_refused(lane_of, message.seq, news),
            ERROR => self.refused(lane_of, message.seq, news),
            super::message::ACK => {
                let mut covered: Vec<u32> = Vec::new();
                let mut seq = lane.acked;
                while seq.wrapping_sub(message.seq) as i32 > -2048
                    && (seq.wrapping_sub(message.seq) as i32) < 0
                {
                    covered.push(seq);
                    seq = seq.wrapping_add(1);
                }
                covered.extend(message.ended_beyond());
                for &seq in &covered {
                    self.acknowledged(lane_of, seq, message.seq, &covered, news);
                }
            }
            _ => {}
        }
    }

    /// A message was refused. Bytes that were taken for its own were those of one that says the same.
    fn refused(&mut self, direction: Direction, seq: u32, news: &mut Vec<News>) {
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        let Some(entry) = lane.entry(seq).copied() else {
            return;
        };
        if entry.stage == Stage::Landed && entry.message.kind == WRITE {
            if let Some(entry) = lane.entry_mut(seq) {
                entry.stage = Stage::Failed;
            }
            // Its notification, if it has one, is not owed.
            if let Some(stream) = lane.streams.get_mut(&entry.message.source_port) {
                stream.failed.insert(entry.source_life);
                stream
                    .failed_epochs
                    .insert((entry.source_life, entry.message.epoch));
            }
            let twin = lane.entries.iter().find(|other| {
                entry.message.len > 0
                    && matches!(other.stage, Stage::Arrived(_))
                    && other.digest == entry.digest
                    && other.place() == entry.place()
                    && other.message.source_port == entry.message.source_port
            });
            if let Some(twin) = twin.map(|twin| twin.message.seq) {
                self.landed_before(direction, twin);
            }
        }
        self.end(direction, seq, false, news);
    }

    /// An acknowledgement covers a message: it must have ended.
    fn acknowledged(
        &mut self,
        direction: Direction,
        seq: u32,
        lsn: u32,
        covered: &[u32],
        news: &mut Vec<News>,
    ) {
        let entry = self.lanes.get(&direction).and_then(|lane| lane.entry(seq));
        let held = entry.filter(|entry| entry.message.asks_for_order() && !entry.ended());
        if let Some(port) = held.map(|entry| entry.message.source_port) {
            self.held_back(direction, port, seq);
        }
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        let Some(entry) = lane.entry(seq).copied() else {
            return;
        };
        if entry.ended() {
            return;
        }
        // Bytes that were taken for another message's may have been this one's, if both say the same;
        // not those of a message that this acknowledgement needs itself.
        let twin = lane.entries.iter().position(|other| {
            other.stage == Stage::Landed
                && other.message.seq.wrapping_sub(lsn) as i32 >= 0
                && !covered.contains(&other.message.seq)
                && other.digest == entry.digest
                && other.place() == entry.place()
                && other.message.source_port == entry.message.source_port
        });
        match twin {
            Some(twin) if matches!(entry.stage, Stage::Arrived(_)) => {
                let other = &mut lane.entries[twin];
                other.stage = entry.stage;
                let (key, other) = ((other.message.destination, other.place()), other.message.seq);
                self.landed_before(direction, seq);
                self.awaited.entry(key).or_default().push((direction, other));
            }
            _ => news.push(News::FalseAck { lane: direction, seq }),
        }
    }

    fn post(
        &mut self,
        now: Nanos,
        direction: Direction,
        message: Message,
        payload: &[u8],
        news: &mut Vec<News>,
    ) {
        // Drivers talking to one another are not what a run is for.
        let counts = message.kind != CONTROL && self.background != Some(message.source_port);
        self.messages += u64::from(counts);
        let port_life = self.port_life(message.destination, message.destination_port);
        let source_life = self.port_life(message.source, message.source_port);
        let lives = (message.source_life, message.destination_life);
        let known = self.lanes.get(&direction).is_some_and(|lane| lane.lives == lives);
        if !known {
            let lane = Lane {
                streams: self.retire(direction),
                lives,
                first: message.seq,
                acked: message.seq,
                abandoned: self.is_to_predecessor(&message),
                ..Lane::default()
            };
            self.lanes.insert(direction, lane);
        }
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        let repeated = lane.entry(message.seq).is_some();
        let gap = !repeated && message.seq != lane.next_seq();
        news.push(News::Posted {
            lane: direction,
            seq: message.seq,
            repeated,
            gap,
        });
        if repeated || gap {
            return;
        }
        let (behind, command) = self.leaves(&message, source_life);
        let op = command.map_or(message.op, |(_, command)| command.op);
        if let Some((at, command)) = command {
            news.push(News::Left {
                lane: direction,
                seq: message.seq,
                command,
                at,
            });
        }
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        let entry = Entry {
            behind,
            source_life,
            op,
            message,
            digest: digest(payload),
            stage: Stage::Sent,
            port_life,
            acked: false,
            settled: false,
            stored: false,
            refused: false,
        };
        if lane.acked == message.seq {
            lane.progress = now;
        }
        lane.entries.push_back(entry);
        lane.streams
            .entry(message.source_port)
            .or_default()
            .waiting
            .push_back(message.seq);
        if message.appends() {
            self.append_posted(direction, message.destination_port, message.seq);
        } else if message.kind == WRITE && message.len > 0 {
            let key = (message.destination, entry.place());
            self.awaited
                .entry(key)
                .or_default()
                .push((direction, message.seq));
        }
    }

    /// Whether a message is for a card that the node no longer has.
    fn is_to_predecessor(&self, message: &Message) -> bool {
        let lives = self.reborn.get(&message.destination);
        lives.is_some_and(|lives| lives.get(&message.source) != Some(&message.destination_life))
    }

    /// Ends a lane whose life is over. Gives what the next one begins with.
    fn retire(&mut self, direction: Direction) -> BTreeMap<u16, lane::Stream> {
        let Some(lane) = self.lanes.remove(&direction) else {
            return BTreeMap::new();
        };
        for entry in lane.entries.iter().filter(|entry| !entry.acked) {
            // Its sender does not know what became of it.
            let message = &entry.message;
            let stream = (message.source, message.source_port, message.destination);
            let lives = (
                entry.source_life,
                self.port_life(message.source, message.source_port),
            );
            if message.kind == WRITE && lives.0 == lives.1 && message.source_port != 0 {
                self.lost.lost(stream, entry.source_life, message.epoch);
            }
        }
        for entry in lane.entries.iter().filter(|entry| !entry.ended()) {
            let key = (entry.message.destination, entry.place());
            if let Some(list) = self.awaited.get_mut(&key) {
                list.retain(|&(lane, seq)| (lane, seq) != (direction, entry.message.seq));
            }
            let arrived = matches!(entry.stage, Stage::Arrived(_));
            if entry.message.appends() {
                let port = entry.message.destination_port;
                self.append_over(direction, port, entry.message.seq);
                if arrived {
                    self.append_stale(direction, port, entry.digest);
                }
            } else if entry.message.kind == WRITE && entry.message.len > 0 {
                let list = self.stale.entry(key).or_default();
                list.push((direction, entry.message.seq, entry.digest, arrived));
            }
            // Its notification may have been delivered, or not.
            self.maybe_due(entry);
        }
        for ((_, key), count) in lane.streams.values().flat_map(|stream| &stream.due) {
            *self
                .past_due
                .entry((direction.1, key.0, key.1, key.2))
                .or_default() += count;
        }
        lane.remembered()
    }

    fn maybe_due(&mut self, entry: &Entry) {
        if entry.message.notification != 0 {
            let message = &entry.message;
            let key = (
                message.destination,
                message.destination_port,
                entry.port_life,
                message.notification,
            );
            *self.past_due.entry(key).or_default() += 1;
        }
    }

    fn arrived(&mut self, now: Nanos, to: NodeId, frame: &[u8], news: &mut Vec<News>) {
        let Some(message) = Message::read(frame) else {
            return;
        };
        if message.destination != to.0 {
            return;
        }
        if message.kind == super::message::ACK {
            let lane_of = (message.destination, message.source);
            if let Some(lane) = self.lanes.get_mut(&lane_of)
                && lane.lives == (message.destination_life, message.source_life)
                && !lane.over
            {
                lane.acknowledge(now, &message);
            }
        }
        if !message.windowed() {
            self.answer_arrived(&message);
            return;
        }
        let direction = (message.source, message.destination);
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        if lane.lives != (message.source_life, message.destination_life) {
            return;
        }
        let Some(entry) = lane.entry_mut(message.seq) else {
            return;
        };
        if entry.stage == Stage::Sent && entry.message == message {
            entry.stage = Stage::Arrived(now);
            // Only data has to be seen in memory; the rest has its effect in the card or the driver.
            if !message.only_asks() && message.kind != FLUSH && (message.kind != WRITE || message.len == 0) {
                self.end(direction, message.seq, true, news);
            }
        }
    }

    /// A message that has arrived leaves again, and a cut wire has it: so it was refused, or its card does not know that it was
    /// not. Either way it cannot end before the wire is there again.
    fn again_on_its_way(&mut self, now: Nanos, frame: &[u8]) {
        let Some(message) = Message::read(frame).filter(Message::windowed) else {
            return;
        };
        let direction = (message.source, message.destination);
        let entry = self
            .lanes
            .get_mut(&direction)
            .and_then(|lane| lane.entry_mut(message.seq));
        if let Some(entry) = entry
            && matches!(entry.stage, Stage::Arrived(_))
            && entry.message == message
        {
            entry.stage = Stage::Arrived(now);
        }
    }

    /// Bytes were stored at a place of a node.
    fn stored(&mut self, node: u16, place: Place, stored: u64, news: &mut Vec<News>) {
        let waiting = self.awaited.get(&(node, place)).cloned().unwrap_or_default();
        let mut lanes_served: Vec<(Direction, u16)> = Vec::new();
        for (direction, seq) in waiting {
            let Some(entry) = self.lanes.get(&direction).and_then(|lane| lane.entry(seq)) else {
                continue;
            };
            let sender = (direction, entry.message.source_port);
            let arrived = matches!(entry.stage, Stage::Arrived(_));
            if entry.digest == stored && arrived && !lanes_served.contains(&sender) {
                lanes_served.push(sender);
                self.end(direction, seq, true, news);
            }
        }
        if !lanes_served.is_empty() || self.stored_in_queue(node, place, stored, news) {
            return;
        }
        let stale = self.stale.get_mut(&(node, place)).and_then(|list| {
            let found = list.iter().position(|&(_, _, digest, _)| digest == stored)?;
            Some(list.remove(found))
        });
        match stale {
            // What had arrived before the life ended may still be on its way into memory.
            Some((_, _, _, true)) => {}
            Some((lane, seq, _, false)) => news.push(News::Stale { lane, seq }),
            None => news.push(News::Unexplained),
        }
    }

    /// A message turns out to have landed some time ago, when its bytes were taken for those of one
    /// that says the same. Its landing was judged then, in the other's name: exports and owners of
    /// today have no say in it, so it is no news.
    fn landed_before(&mut self, direction: Direction, seq: u32) {
        self.end(direction, seq, true, &mut Vec::new());
    }

    fn end(&mut self, direction: Direction, seq: u32, landed: bool, news: &mut Vec<News>) {
        let present = self
            .lanes
            .get(&direction)
            .and_then(|lane| lane.entry(seq))
            .map_or(0, |e| {
                self.port_life(e.message.destination, e.message.destination_port)
            });
        let Some(lane) = self.lanes.get_mut(&direction) else {
            return;
        };
        let Some(entry) = lane.entry_mut(seq) else { return };
        if entry.ended() {
            return;
        }
        entry.stage = if landed { Stage::Landed } else { Stage::Failed };
        let entry = *entry;
        let message = entry.message;
        let key = (message.destination, entry.place());
        if let Some(list) = self.awaited.get_mut(&key) {
            list.retain(|&(lane, at)| (lane, at) != (direction, seq));
            if list.is_empty() {
                self.awaited.remove(&key);
            }
        }
        let is_ordered = message.flags & super::message::ORDERED != 0;
        let is_early = (is_ordered || message.asks_for_order()) && lane.is_early(message.source_port, seq);
        let Some(stream) = lane.streams.get_mut(&message.source_port) else {
            return;
        };
        if message.appends() {
            let queue = self
                .queues
                .entry((direction.1, message.destination_port))
                .or_default();
            queue.over(direction, seq);
        }
        // What has no data acts unseen; its notification, if it has one, is checked by itself.
        let early = is_ordered && (message.len > 0 || message.kind == ATOMIC_REQUEST) && is_early;
        let poisoned = stream
            .poison
            .is_some_and(|poison| poison == (entry.source_life, entry.message.epoch));
        let failed_before = entry.behind || (poisoned && !is_early);
        // An ordered write of no bytes has no effect but its notification.
        if landed && failed_before && message.asks_for_order() && (message.len > 0 || message.kind != WRITE) {
            news.push(News::BehindFailure { lane: direction, seq });
        }
        if landed {
            // What has no data counts as landed when it arrives, and may be refused all the same;
            // its notification is due to the owner of its time alone.
            let other_life = entry.port_life != present && message.destination_port != 0 && message.len > 0;
            news.push(News::Landed {
                lane: direction,
                seq,
                early,
                other_life,
            });
        } else {
            if !message.only_asks() && !entry.refused {
                stream.failed.insert(entry.source_life);
                stream
                    .failed_epochs
                    .insert((entry.source_life, entry.message.epoch));
            }
            news.push(News::Failed { lane: direction, seq });
        }
        lane.advance(message.source_port);
    }

    fn abandon(&mut self, node: NodeId) {
        for (direction, lane) in &mut self.lanes {
            if direction.0 == node.0 || direction.1 == node.0 {
                lane.abandoned = true;
            }
            lane.forgotten |= direction.1 == node.0;
        }
    }
}
