//! P2: what a program is told of its operations is true, whole, and told once.
//!
//! A record of an error ring, or a reply, comes of something that the checker has seen: a command that will never leave; an
//! `Error` or an answer that has arrived for a message of this very owner of the port; a link that has gone down under its
//! messages. It says what that says: the operation, its epoch and where it was going as its program posted it, the status and
//! the values as they arrived. Each of these is told once, within a stated time, or counts as lost; that a read has its data
//! is told when they lie where they belong. A command that has been passed by, and of which nothing was told, is a write that
//! is held back. No count of operations runs ahead of them.
//!
//! An `Error` frame without a number that the wire brings twice is told twice: the cards do not look for that.

mod book;
mod order;
#[cfg(test)]
mod tests;

use super::ledger::{Direction, Entry, Stage};
use super::message::{
    ATOMIC_REPLY, ERROR, FLUSH_REPLY, HEAD, Message, Posted, READ_REPLY, REGARDLESS, answer_number,
};
use super::{Checker, Ledger, Limits, News, Promise, Verdict};
use crate::seen::{Counts, Ending, Seen, Stored, digest};
use book::{Answer, Book, Owed, Trip, Wait};
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::{Epoch, Nanos, NodeId, OpId, PortId, Status, VirtAddr};
use order::Order;
use std::collections::BTreeMap;

/// A port of a node.
type At = (NodeId, PortId);

/// A round trip: the node that is asked, this side's incarnation of the link, the sequence number.
type Asked = (u16, u32, u32);

/// No reply slot.
const NO_SLOT: u16 = 0xFFFF;

/// Whether a record tells of a command that has not left, as it was posted.
fn tells_of(record: &ErrorRecord, from: NodeId, command: &Posted) -> bool {
    // Towards no node there is no other place than the own one.
    let node = match record.status {
        Status::NoSuchNode => from.0,
        _ => command.node,
    };
    let local = record.status == Status::LocalAddress && record.address.0 == command.local;
    (record.node.0, record.port.0, record.epoch.0) == (node, command.port, command.epoch)
        && (record.address.0 == command.remote || local)
}

/// Follows the operations of each port from their posting to what is told of them.
pub(super) struct Told {
    limits: Limits,
    books: BTreeMap<At, Book>,
    /// Numbered answers on their way, by the nodes that they go from and to.
    answers: BTreeMap<Direction, Order>,
    /// Until when a card is switched off.
    paused: BTreeMap<NodeId, Nanos>,
}

impl Told {
    /// A checker of these limits.
    pub(super) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            books: BTreeMap::new(),
            answers: BTreeMap::new(),
            paused: BTreeMap::new(),
        }
    }

    /// A command has become a message. Of equal atomics it is the first of which nothing has been told.
    fn left(&mut self, now: Nanos, (lane, entry): (Direction, &Entry), ledger: &Ledger) {
        let message = &entry.message;
        let at = (NodeId(message.source), PortId(message.source_port));
        let Some(book) = self.books.get_mut(&at) else {
            return;
        };
        let Some(place) = book.queue.iter().position(|command| command.is(message)) else {
            return;
        };
        let command = book.queue[place];
        book.overtakes_waits(place, |node| match node {
            node if node == lane.1 => message.seq,
            node => ledger.next_seq((lane.0, node)),
        });
        book.pass(now, place);
        if !command.is_write() {
            let trip = Trip {
                command,
                answer: None,
            };
            book.trips
                .insert((lane.1, message.source_life, message.seq), trip);
        }
    }

    /// A frame has left that may have a number among answers.
    fn sent(&mut self, frame: &[u8]) {
        let Some((number, answer)) = answer_number(frame).zip(Message::read(frame)) else {
            return;
        };
        let lane = (answer.source, answer.destination);
        let lives = (answer.source_life, answer.destination_life);
        self.answers.entry(lane).or_default().leaves(lives, number);
    }

    /// A frame has arrived that says how a message has ended.
    fn arrived(&mut self, now: Nanos, frame: &[u8], ledger: &Ledger) {
        let Some(answer) = Message::read(frame) else {
            return;
        };
        let number = answer_number(frame);
        let in_order = number.is_none_or(|number| {
            let order = self.answers.get_mut(&(answer.source, answer.destination));
            order.is_none_or(|order| order.arrives(number))
        });
        if !matches!(answer.kind, ERROR | READ_REPLY | ATOMIC_REPLY | FLUSH_REPLY) {
            return;
        }
        let lane = ledger.lanes.get(&(answer.destination, answer.source));
        let lives = (answer.destination_life, answer.source_life);
        let Some(lane) = lane.filter(|lane| lane.lives == lives && !lane.over) else {
            return;
        };
        let at = (NodeId(answer.destination), PortId(answer.destination_port));
        let Some(book) = self.books.get_mut(&at) else {
            return;
        };
        if answer.kind != ERROR {
            let asked = (answer.source, answer.destination_life, answer.seq);
            let data = digest(&frame[HEAD..HEAD + answer.len as usize]);
            return answered(book, now, asked, &answer, data);
        }
        let owner = ledger.port_life(at.0.0, at.1.0);
        let entry = lane.entry(answer.seq);
        if answer.flags & REGARDLESS != 0 || entry.is_some_and(|entry| entry.source_life != owner) {
            return;
        }
        // One that comes twice may be told of twice, or not: the card may be busy with something else by then.
        let of = (answer.source, answer.destination_life, answer.seq);
        let is_first = book.heard.insert(of);
        let must = in_order && !book.ending;
        // A card takes one that is numbered once, however often it comes.
        if !is_first && number.is_some() {
            if let Some(owed) = book.owed.iter_mut().find(|owed| owed.of == of && !owed.must) {
                (owed.since, owed.must) = (now, must);
            }
            return;
        }
        // Of one that is long over the ledger knows nothing.
        let sent = entry.map_or(&answer, |entry| &entry.message);
        book.owed.push(Owed {
            of,
            since: now,
            record: ErrorRecord {
                op: OpId(sent.op),
                status: Status::from_code(answer.status),
                node: NodeId(answer.source),
                port: PortId(entry.map_or(answer.source_port, |entry| entry.message.destination_port)),
                epoch: Epoch(sent.epoch),
                address: VirtAddr(sent.address),
            },
            anywhere: sent.appends() || entry.is_none(),
            must: is_first && must,
        });
    }

    /// A card says that a link is down: each port hears of its first message of each epoch without an acknowledgement, and
    /// of each round trip without an answer.
    fn link_down(&mut self, now: Nanos, lane: Direction, ledger: &Ledger) {
        let (node, peer) = (NodeId(lane.0), lane.1);
        let Some(lane) = ledger.lanes.get(&lane) else {
            return;
        };
        let books = self.books.range_mut((node, PortId(0))..=(node, PortId(u16::MAX)));
        for (&at, book) in books {
            let owner = ledger.port_life(node.0, at.1.0);
            let of_owner = |entry: &&Entry| (entry.message.source_port, entry.source_life) == (at.1.0, owner);
            let mut epoch = None;
            for entry in lane.unacknowledged().filter(of_owner) {
                book.broken.insert((peer, entry.message.epoch));
                if epoch.replace(entry.message.epoch) == Some(entry.message.epoch) {
                    continue;
                }
                book.owed.push(Owed {
                    of: (peer, entry.message.source_life, entry.message.seq),
                    since: now,
                    record: ErrorRecord {
                        op: OpId(entry.op),
                        status: Status::LinkLost,
                        node: NodeId(peer),
                        epoch: Epoch(entry.message.epoch),
                        ..ErrorRecord::default()
                    },
                    anywhere: false,
                    must: !book.ending,
                });
            }
            let lost = Answer {
                since: now,
                status: Status::LinkLost.code(),
                values: (0, 0),
                came: None,
                data: None,
            };
            let trips = book.trips.range_mut((peer, 0, 0)..=(peer, u32::MAX, u32::MAX));
            for (_, trip) in trips.filter(|(_, trip)| trip.answer.is_none()) {
                trip.answer = Some(lost);
            }
        }
    }

    /// A record stands in a port's error ring.
    fn told(&mut self, now: Nanos, at: At, told: &ErrorRecord) -> Verdict {
        let Some(book) = self.books.get_mut(&at) else {
            return Ok(());
        };
        if let Some(place) = book.owed.iter().position(|owed| owed.is(told)) {
            book.owed.remove(place);
            return Ok(());
        }
        let of_record = |command: &Posted| command.op == told.op.0 && tells_of(told, at.0, command);
        let Some(command) = book.take(now, of_record) else {
            return Err(format!(
                "port {} of node {} is told of operation {:#x}: {:?} of epoch {} to {:#x} of port {} of node {}; no operation of its \
                 owner has failed so, of which it was not told. Known: {:?}",
                at.1,
                at.0,
                told.op.0,
                told.status,
                told.epoch.0,
                told.address.0,
                told.port,
                told.node,
                book.owed.iter().map(|owed| owed.record).collect::<Vec<_>>()
            ));
        };
        if command.is_write() {
            book.broken.insert((command.node, command.epoch));
        } else {
            book.trip_ends();
        }
        Ok(())
    }

    /// A reply stands in its slot.
    fn replied(&mut self, now: Nanos, at: At, slot: u16, words: &[u32; 8], ledger: &Ledger) -> Verdict {
        let Some(book) = self.books.get_mut(&at) else {
            return Ok(());
        };
        let pair = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        let (op, status, values) = (words[0], words[1] as u8, (pair(2), pair(4)));
        let says = |what: &str| {
            Err(format!(
                "port {} of node {} has a reply in slot {slot}: operation {op:#x} has ended with status {status} and {values:x?}; {what}",
                at.1, at.0
            ))
        };
        book.set_right(now, op);
        let trip = book
            .trips
            .iter()
            .find(|(_, trip)| trip.command.op == op && trip.answer.is_some());
        if let Some((&asked, trip)) = trip {
            let (command, Some(answer)) = (trip.command, trip.answer) else {
                return Ok(());
            };
            book.trips.remove(&asked);
            book.trip_ends();
            // The data of a read may find no place.
            let is_read = answer.data.is_some() && status != 0;
            let missing = answer.data.filter(|_| status == 0);
            return if command.reply != slot {
                says("it asks for another slot")
            } else if missing.is_some_and(|data| !book.stored_as_another(&command, data)) {
                says("its data have not been stored")
            } else if !is_read && status != answer.status {
                says(&format!("its answer has status {}", answer.status))
            } else if values != answer.values {
                says(&format!("its answer has {:x?}", answer.values))
            } else {
                Ok(())
            };
        }
        if let Some(wait) = book.wait_ends(now, op, |node| ledger.next_seq((at.0.0, node))) {
            book.trip_ends();
            let missing = (status == 0).then(|| not_received(at, &wait, ledger)).flatten();
            return if wait.command.reply != slot {
                says("it asks for another slot")
            } else if let Some(missing) = missing {
                says(&format!(
                    "message {missing} has left before it, and has not arrived"
                ))
            } else {
                Ok(())
            };
        }
        let of_op = |command: &Posted| command.op == op && !command.is_write();
        let Some(command) = book.take(now, of_op) else {
            return says("no answer to it has come that was not told, and it has left");
        };
        book.trip_ends();
        if status == 0 || command.reply != slot {
            return says("it has not left, or asks for another slot");
        }
        Ok(())
    }

    /// A count of a port's operations.
    fn counted(&self, at: At, which: Counts, count: u32) -> Verdict {
        let most = self
            .books
            .get(&at)
            .map_or(u32::MAX, |book| book.counts[which as usize]);
        if count <= most {
            return Ok(());
        }
        Err(format!(
            "port {} of node {} reads that {count} of its operations are over ({which:?}), of {most}",
            at.1, at.0
        ))
    }

    fn forget_node(&mut self, node: NodeId) {
        self.books.retain(|at, _| at.0 != node);
    }
}

/// A message of a port that had left when a command's turn came, and has not arrived.
fn not_received(at: At, wait: &Wait, ledger: &Ledger) -> Option<u32> {
    let lane = ledger.lanes.get(&(at.0.0, wait.command.node))?;
    let owner = ledger.port_life(at.0.0, at.1.0);
    let is_missing = |entry: &&Entry| {
        let message = &entry.message;
        let of_owner = (message.source_port, entry.source_life) == (at.1.0, owner);
        of_owner && entry.stage == Stage::Sent && (message.seq.wrapping_sub(wait.next) as i32) < 0
    };
    let entry = lane.entries.iter().filter(|_| !lane.told).find(is_missing)?;
    Some(entry.message.seq)
}

/// A round trip has its answer.
fn answered(book: &mut Book, now: Nanos, asked: Asked, answer: &Message, data: u64) {
    let Some(trip) = book.trips.get_mut(&asked).filter(|trip| trip.answer.is_none()) else {
        return;
    };
    let is_read = answer.kind == READ_REPLY;
    let data = (is_read && answer.status == 0 && answer.len > 0).then_some(data);
    trip.answer = Some(Answer {
        since: now,
        status: answer.status,
        values: if is_read {
            (0, 0)
        } else if answer.kind == FLUSH_REPLY {
            (answer.operand, 0)
        } else {
            (answer.operand, answer.compare)
        },
        came: data,
        data,
    });
    // Of what names no slot the library asks for nothing.
    if trip.command.reply == NO_SLOT {
        book.trips.remove(&asked);
        book.trip_ends();
    }
}

impl Checker for Told {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict {
        for item in news {
            match item {
                News::Left { lane, seq, .. } => {
                    if let Some(entry) = ledger.lanes.get(lane).and_then(|lane| lane.entry(*seq)) {
                        self.left(now, (*lane, entry), ledger);
                    }
                }
                News::LinkDown { lane, anew: true, .. } => self.link_down(now, *lane, ledger),
                _ => {}
            }
        }
        match fact {
            Seen::Posted {
                node,
                port,
                words,
                inline,
            } => {
                if let Some(book) = self.books.get_mut(&(*node, *port)) {
                    book.posted(words, Posted::read(words).carrying(*inline));
                }
            }
            Seen::Sent { frame } => self.sent(frame),
            Seen::Arrived { frame, .. } => self.arrived(now, frame, ledger),
            Seen::DmaMoved {
                node,
                place,
                bytes,
                stored: Some(Stored::Answer),
                ..
            }
            | Seen::HostCopied {
                node,
                place,
                bytes,
                stored: Stored::Answer,
                ..
            } => {
                if let Some(book) = self.books.get_mut(&(*node, place.port)) {
                    book.stored(*place, bytes);
                }
            }
            Seen::Told { node, port, words } => {
                return self.told(now, (*node, *port), &ErrorRecord::decode(*words));
            }
            Seen::Replied {
                node,
                port,
                slot,
                words,
            } => return self.replied(now, (*node, *port), *slot, words, ledger),
            Seen::Counted {
                node,
                port,
                which,
                count,
            } => return self.counted((*node, *port), *which, *count),
            Seen::ErrorsLost { node, port } => {
                if let Some(book) = self.books.get_mut(&(*node, *port)) {
                    book.owed.clear();
                    book.missed = true;
                }
            }
            Seen::PortOpened { node, port, .. } => {
                self.books.insert((*node, *port), Book::default());
            }
            Seen::Ends {
                node,
                port,
                what: Ending::Port,
            } => {
                if let Some(book) = self.books.get_mut(&(*node, *port)) {
                    book.ending = true;
                }
            }
            Seen::PortClosed { node, port } => {
                let book = self.books.remove(&(*node, *port));
                if let Some((_, op)) = book.and_then(|book| book.untold().next()) {
                    return Err(format!(
                        "port {port} of node {node} closes, and was not told how operation {op:#x} has ended"
                    ));
                }
            }
            Seen::Hostile { node, port } => {
                self.books.remove(&(*node, *port));
            }
            Seen::Restarted { node } | Seen::CardDead { node } => self.forget_node(*node),
            Seen::CardPaused { node, until } => {
                self.paused.insert(*node, *until);
                if *until == Nanos::MAX {
                    self.forget_node(*node);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, _ledger: &Ledger) -> Verdict {
        for (&(node, port), book) in self.books.iter().filter(|(_, book)| !book.ending) {
            let Some((since, op)) = book.waits() else { continue };
            let paused = self.paused.get(&node).copied().unwrap_or_default();
            let paused = if paused == Nanos::MAX { Nanos(0) } else { paused };
            if since.max(paused).after(self.limits.deadline) < now {
                return Err(format!(
                    "port {port} of node {node} has not been told for {} us how operation {op:#x} has ended",
                    (now.0 - since.0) / 1_000
                ));
            }
        }
        Ok(())
    }
}
