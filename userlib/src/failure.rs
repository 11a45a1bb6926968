//! How a failed operation comes back to the program (promise P2).
//!
//! Whatever fails is known by the number of its call: from the port's error ring, or from the reply
//! record of a read. It is reported once, by the call's own fence if it has one, else by the next
//! call to the same node or the next flush. Until then the cards suppress the notifications of this
//! port to that node that were posted in the same *epoch*. Reporting raises the epoch, so that later
//! operations notify again. A call keeps the epoch it began with; if it is raised meanwhile the call
//! fails, because its earlier messages may be lost while its notification would arrive.

use crate::appends::Appends;
use crate::error::{Error, Failure, Result};
use crate::poster::INSTEAD_OF_0;
use netvm_abi::bar::port::ERROR_READ;
use netvm_abi::descriptor::StreamTag;
use netvm_abi::port_area::{ERROR_RECORDS, ERROR_WORDS, ERROR_WRITE, ERRORS, ERRORS_LOST, ErrorRecord};
use netvm_abi::words::SharedWords;
use netvm_abi::{Epoch, Generation, NodeId, OpId, PortId, Status, VirtAddr};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that are remembered as reported: several messages of one call may fail, at any time.
const REMEMBERED: usize = 128;
/// Failures that are kept apart; more are only counted.
const KEPT: usize = 256;

/// 2^16 divided by the golden ratio: multiples of it lie as far apart as they can, and none comes
/// twice in 65,536.
const GOLDEN: u16 = 0x9E37;

/// A failure and the epoch in which its call was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) failure: Failure,
    pub(crate) epoch: Epoch,
    /// Whether it was a write: cards hold back what asks for order behind it.
    pub(crate) write: bool,
}

impl Known {
    /// Whether a link was lost.
    fn is_loss(&self) -> bool {
        self.failure.status == Status::LinkLost
    }

    /// Whether one who knows of it learns nothing from `other`.
    fn covers(&self, other: &Self) -> bool {
        self.failure.op == other.failure.op && (self.is_loss() || !other.is_loss())
    }
}

/// A stream: what this port sends to one node. Changed under the port's lock only.
#[derive(Debug)]
pub(crate) struct Stream {
    tag: AtomicU64,
    /// How many commands the port had posted with the last write message to it.
    written: AtomicU64,
    /// As many commands of the port as were posted before a flush of it that has ended: of these, no write to it is
    /// under way.
    settled: AtomicU64,
}

impl Stream {
    const fn new(tag: StreamTag) -> Self {
        Self {
            tag: AtomicU64::new(tag.0),
            written: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// Whether write messages to it may be under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.written.load(Ordering::Relaxed) > self.settled.load(Ordering::Relaxed)
    }

    /// Whether a write message has been posted to it after the port's first `commands`.
    fn has_written_after(&self, commands: u64) -> bool {
        self.written.load(Ordering::Relaxed) > commands
    }

    /// Whether a write message has been posted to it behind this operation, one of the latest.
    fn has_written_behind(&self, op: OpId) -> bool {
        after(OpId(self.written.load(Ordering::Relaxed) as u32), op)
    }

    /// No write message to it among the port's first `commands` is under way.
    pub(crate) fn settled(&self, commands: u64) {
        self.settled.fetch_max(commands, Ordering::Relaxed);
    }

    /// A write message has been posted to it: this command of the port. The caller holds the port's lock, so numbers come
    /// in their order.
    #[inline]
    pub(crate) fn wrote(&self, command: u64) {
        self.written.store(command, Ordering::Relaxed);
    }

    /// Its epoch.
    #[inline]
    pub(crate) fn tag(&self) -> StreamTag {
        StreamTag(self.tag.load(Ordering::Relaxed))
    }

    fn raise(&self) {
        let next = Epoch(self.tag().epoch().0.wrapping_add(1));
        self.tag.store(StreamTag::from(next).0, Ordering::Relaxed);
    }
}

/// Whether an operation was posted after another. Fewer than 2^30 commands lie between them.
pub(crate) const fn after(op: OpId, other: OpId) -> bool {
    let distance = command(op, other).wrapping_sub(command(other, op));
    distance.cast_signed() > 0
}

/// The number of an operation's first command: of the two that the number instead of 0 stands for, the one near `other`.
const fn command(op: OpId, other: OpId) -> u32 {
    let near_0 = other.0.wrapping_add(1 << 30) < 1 << 31;
    if op.0 == INSTEAD_OF_0.0 && near_0 { 0 } else { op.0 }
}

/// What is known about failures of a port.
#[derive(Debug)]
pub(crate) struct Failures {
    /// By node, where the port has one.
    streams: Box<[Option<Arc<Stream>>]>,
    /// The epoch of a stream that is not there yet.
    first: Epoch,
    /// What the card's count of error records is while nothing keeps a write from being posted: `read`;
    /// more than any count can be, while something does.
    quiet_at: u64,
    /// Nothing may be posted any more.
    closed: bool,
    /// Error records taken out of the ring.
    read: u32,
    /// The card's count of records that it could not write, as far as it was reported.
    lost_seen: u32,
    /// Failures of which nothing is known, not yet reported.
    lost: u32,
    /// Not yet reported.
    known: Vec<Known>,
    /// Calls whose failure is for the thread that waits for them.
    watched: Vec<OpId>,
    pub(crate) appends: Appends,
    /// Calls reported lately.
    reported: VecDeque<Known>,
    /// Calls whose failure is reported to no thread.
    disregarded: VecDeque<OpId>,
    /// Reported so far.
    pub(crate) count: u64,
}

impl Failures {
    /// For a port of this generation. Other nodes remember the epoch in which an earlier port of the
    /// same number failed, and know nothing of generations: so each begins far from the ones before it.
    pub(crate) fn new(nodes: u16, generation: Generation) -> Self {
        let first = Epoch((generation.0 as u16).wrapping_mul(GOLDEN));
        Self {
            streams: vec![None; usize::from(nodes)].into_boxed_slice(),
            first,
            quiet_at: 0,
            closed: false,
            read: 0,
            lost_seen: 0,
            lost: 0,
            known: Vec::new(),
            watched: Vec::new(),
            appends: Appends::default(),
            reported: VecDeque::new(),
            disregarded: VecDeque::new(),
            count: 0,
        }
    }

    /// The epoch of the stream to `node`.
    #[inline]
    pub(crate) fn epoch(&self, node: NodeId) -> Epoch {
        let stream = self.streams.get(node.index()).and_then(Option::as_ref);
        stream.map_or(self.first, |stream| stream.tag().epoch())
    }

    /// The stream to `node`, which the port has from now on.
    pub(crate) fn stream(&mut self, node: NodeId) -> Arc<Stream> {
        let make = || Arc::new(Stream::new(self.first.into()));
        match self.streams.get_mut(node.index()) {
            Some(stream) => Arc::clone(stream.get_or_insert_with(make)),
            // No such node: nothing will be posted to it.
            None => make(),
        }
    }

    /// A write message of this number has been posted to `node`.
    pub(crate) fn wrote(&self, node: NodeId, number: u64) {
        if let Some(Some(stream)) = self.streams.get(node.index()) {
            stream.wrote(number);
        }
    }

    /// Nodes to which a write message was posted after the port's first `number` commands.
    pub(crate) fn written_after(&self, number: u64) -> Vec<NodeId> {
        let streams = self.streams.iter().enumerate();
        let written = streams.filter(|(_, stream)| {
            stream
                .as_ref()
                .is_some_and(|stream| stream.has_written_after(number))
        });
        written.map(|(node, _)| NodeId(node as u16)).collect()
    }

    /// Whether there is nothing to report, to any thread, and the port is open: the check of the short way.
    #[inline]
    pub(crate) fn quiet<W: SharedWords + ?Sized>(&self, area: &W) -> bool {
        u64::from(area.load_acquire(ERROR_WRITE)) == self.quiet_at
    }

    /// What makes the port quiet has changed.
    fn settle(&mut self) {
        let quiet = self.known.is_empty() && self.lost == 0 && !self.closed;
        self.quiet_at = if quiet { self.read.into() } else { u64::MAX };
    }

    /// The program has closed the port.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.settle();
    }

    /// Whether the program has closed the port: then its words are the next owner's.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes new records out of the error ring.
    pub(crate) fn drain<W: SharedWords>(&mut self, area: &W, block: &W) {
        if self.closed {
            return;
        }
        let written = area.load_acquire(ERROR_WRITE);
        if written.wrapping_sub(self.read) > ERROR_RECORDS {
            // Not a count that the ring could have reached: a card that is gone reads as all ones.
            return;
        }
        if written != self.read {
            while self.read != written {
                let mut words = [0; ERROR_WORDS];
                let at = ERRORS.plus((self.read % ERROR_RECORDS) * ERROR_WORDS as u32);
                area.load_slice(at, &mut words);
                let record = ErrorRecord::decode(words);
                self.add(Known {
                    failure: Failure {
                        op: record.op,
                        status: record.status,
                        node: record.node,
                        port: record.port,
                        address: record.address,
                        others: 0,
                    },
                    epoch: record.epoch,
                    // Every round trip of the library names a reply slot, and so has no record.
                    write: true,
                });
                self.read = self.read.wrapping_add(1);
            }
            block.store_release(ERROR_READ, self.read);
        }
        let lost = area.load_acquire(ERRORS_LOST);
        self.lost = self.lost.saturating_add(lost.wrapping_sub(self.lost_seen));
        self.lost_seen = lost;
        self.settle();
    }

    /// Learns of a failure.
    pub(crate) fn add(&mut self, known: Known) {
        let op = known.failure.op;
        if known.failure.status == Status::NoPlace {
            let comes = self.appends.refused(known.failure.node, op, known.epoch);
            if comes != Some(false) {
                // Its sender comes for its fate, or it is no news.
                return;
            }
        }
        if self.is_old(&known) {
            return;
        }
        let untold = self.disregarded.contains(&op) || self.appends.was_refused(op);
        if untold && known.failure.status != Status::NoPlace && !self.is_loss_of_more(&known) {
            // Of a refused append nothing else is news; the link may have failed before it was acknowledged.
            self.remember(&known);
            return;
        }
        if self.known.len() < KEPT {
            self.known.push(known);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
        self.settle();
    }

    /// Whether it is the word of a lost link, of which write messages behind this one hear in no other way: the card
    /// names the first message of each epoch only.
    fn is_loss_of_more(&self, known: &Known) -> bool {
        let Failure { node, op, .. } = known.failure;
        let stream = self.streams.get(node.index()).and_then(Option::as_ref);
        known.is_loss() && known.write && stream.is_some_and(|stream| stream.has_written_behind(op))
    }

    /// Whether it says nothing that is not known or was not reported. A lost link says more than any other failure of its
    /// call: what was posted behind that is lost, too.
    fn is_old(&mut self, known: &Known) -> bool {
        let mut old = false;
        for other in self.known.iter_mut().chain(&mut self.reported) {
            if other.failure.status != Status::NoPlace && other.covers(known) {
                // The reply to a read says less than the card's record of the same loss.
                other.write |= known.write;
                old = true;
            }
        }
        old
    }

    /// Failures of this call are for the thread that waits for it, not for others.
    pub(crate) fn watch(&mut self, op: OpId) {
        self.watched.push(op);
    }

    /// The thread that waited for the call has come for its failure.
    pub(crate) fn unwatch(&mut self, op: OpId) -> Result<()> {
        if let Some(at) = self.watched.iter().position(|&watched| watched == op) {
            self.watched.swap_remove(at);
        }
        match self.known.iter().position(|known| known.failure.op == op) {
            None => Ok(()),
            Some(at) => {
                let known = self.known.swap_remove(at);
                self.settle();
                Err(self.report(known, 0))
            }
        }
    }

    /// No thread comes for the failure of a call that was [watched](Self::watch): the next call to its node reports it.
    pub(crate) fn leave_to_others(&mut self, op: OpId) {
        self.watched.retain(|&watched| watched != op);
    }

    /// As [`unwatch`](Self::unwatch), of a call of the library's own: of a lost link the program hears by its next call.
    pub(crate) fn unwatch_own(&mut self, op: OpId) -> Result<()> {
        let mut known = self.known.iter().copied();
        let loss = known.find(|known| known.failure.op == op && self.is_loss_of_more(known));
        let ended = self.unwatch(op);
        if let Some(loss) = loss
            && !self.known.iter().any(|known| known.covers(&loss))
        {
            self.known.push(loss);
            self.settle();
        }
        ended
    }

    /// No thread comes for the failure of a call that was [watched](Self::watch), and it tells the program nothing. It has
    /// its effect on the stream all the same: a card may hold notifications back behind it.
    pub(crate) fn disregard(&mut self, op: OpId) {
        self.watched.retain(|&watched| watched != op);
        if self.disregarded.len() == REMEMBERED {
            self.disregarded.pop_front();
        }
        self.disregarded.push_back(op);
        let before = std::mem::take(&mut self.known);
        let (of_call, others) = before.into_iter().partition(|known| known.failure.op == op);
        self.known = others;
        for known in of_call {
            self.add(known);
        }
        self.settle();
    }

    /// An append has been posted whose sender comes to hear what became of it.
    pub(crate) fn watch_append(&mut self, node: NodeId, op: OpId, epoch: Epoch) {
        self.watch(op);
        self.appends.watch(node, op, epoch);
    }

    /// The answer to a flush of this epoch has come. It names the latest append that was refused, whose error record may
    /// be lost.
    pub(crate) fn flushed(&mut self, node: NodeId, epoch: Epoch, refused: OpId) {
        if refused == OpId(0) {
            return;
        }
        self.add(Known {
            failure: Failure {
                op: refused,
                status: Status::NoPlace,
                node,
                port: PortId(0),
                address: VirtAddr(0),
                others: 0,
            },
            epoch,
            write: false,
        });
    }

    /// Whether an operation to `node` in this epoch was held back by this side's card: a write before it failed here,
    /// or may have, so the operation never left, and the receiver knows nothing of it.
    pub(crate) fn held_back(&self, node: NodeId, epoch: Epoch, op: OpId) -> bool {
        let before = |known: &Known| {
            let failure = &known.failure;
            known.write && failure.node == node && known.epoch == epoch && after(op, failure.op)
        };
        self.lost > 0 || self.known.iter().chain(&self.reported).any(before)
    }

    /// Takes out the known failures to `node` (or to any node) that any thread may report.
    fn take_known(&mut self, node: Option<NodeId>) -> Vec<Known> {
        let Self { known, watched, .. } = self;
        let mut taken = Vec::new();
        known.retain(|known| {
            let failure = &known.failure;
            let mine = node.is_none_or(|node| node == failure.node) && !watched.contains(&failure.op);
            if mine {
                taken.push(*known);
            }
            !mine
        });
        self.settle();
        taken
    }

    /// What is known of failures to `node` and not reported yet, and whether there are more of which nothing is known. It
    /// stays to be reported. A refused append is none: it suppresses nothing.
    pub(crate) fn untold(&self, node: NodeId) -> (Vec<Failure>, bool) {
        let known = self.known.iter().map(|known| known.failure);
        let fails = |failure: &Failure| failure.node == node && failure.status != Status::NoPlace;
        let to_node = known.filter(fails).collect();
        (to_node, self.lost > 0)
    }

    /// Reports what is known of failures to `node`, or to any node.
    pub(crate) fn take(&mut self, node: Option<NodeId>) -> Result<()> {
        let taken = self.take_known(node);
        if let Some((first, others)) = taken.split_first() {
            for other in others {
                self.remember(other);
            }
            return Err(self.report(*first, others.len() as u32));
        }
        if self.lost > 0 {
            let count = std::mem::take(&mut self.lost);
            self.count += u64::from(count);
            // It is not known which streams they were of, so every stream may be held up.
            self.first.0 = self.first.0.wrapping_add(1);
            for stream in self.streams.iter().flatten() {
                stream.raise();
            }
            self.settle();
            return Err(Error::FailuresLost { count });
        }
        Ok(())
    }

    /// Makes the error of a failure and lets the stream go on.
    fn report(&mut self, known: Known, others: u32) -> Error {
        self.remember(&known);
        Error::Failed(Failure {
            others,
            ..known.failure
        })
    }

    /// Makes the error of a failure that its caller has learnt by itself.
    pub(crate) fn report_own(&mut self, known: Known) -> Error {
        self.report(known, 0)
    }

    fn remember(&mut self, known: &Known) {
        self.count += 1;
        if known.failure.status == Status::NoPlace {
            // Its stream has not failed.
            return;
        }
        if self.reported.len() == REMEMBERED {
            self.reported.pop_front();
        }
        self.reported.push_back(*known);
        let node = known.failure.node;
        if self.epoch(node) == known.epoch {
            self.stream(node).raise();
        }
    }

    /// What is known of the failure of this call.
    pub(crate) fn known(&self, op: OpId) -> Option<Known> {
        self.known.iter().copied().find(|known| known.failure.op == op)
    }

    /// A flush found the stream broken: reports that, whether or not it has been reported before. All other known
    /// failures at the node go with it.
    pub(crate) fn report_flush(&mut self, first: Known) -> Error {
        self.known.retain(|other| !first.covers(other));
        let others = self.take_known(Some(first.failure.node));
        for other in &others {
            self.remember(other);
        }
        self.report(first, others.len() as u32)
    }
}

#[cfg(test)]
mod tests;
