//! The sending side of a port: its command queue and what is known about commands in flight.
//!
//! Several threads may post. One small mutex makes the messages of one call go out in order; it is let
//! go of whenever the queue is full, and never held while a caller parks. Messages of two calls may
//! alternate in the queue, which does no harm: a call's notification is on its last message.

use crate::failure::Failures;
use crate::port::PortInner;
use crate::region::{Region, RegionIdentity};
use crate::replies::{Replies, Waiting};
use crate::stats::PortStats;
use netvm_abi::command_queue::Producer;
use netvm_abi::descriptor::Command;
use netvm_abi::port_area::{TAKEN, WRITES_DONE};
use netvm_abi::words::SharedWords;
use netvm_abi::{Generation, OpId, ReplySlot};
use std::collections::VecDeque;

/// What the mutex protects.
#[derive(Debug)]
pub(crate) struct Poster {
    pub(crate) queue: Producer,
    counts_from: u32,
    /// Commands that were no write messages. The short way counts nothing but commands.
    pub(crate) round_trips: u64,
    /// Those that were not the first of their call.
    pub(crate) continued: u64,
    /// The region that the last write from a region read from.
    holding: Option<Region>,
    /// Regions that earlier writes in flight read from, and the number of a write that came after them.
    holds: VecDeque<(u64, Region)>,
    pub(crate) replies: Replies,
    pub(crate) failures: Failures,
    pub(crate) stats: PortStats,
}

impl Poster {
    /// Of a port whose counts begin at `counts_from`.
    pub(crate) fn new(nodes: u16, generation: Generation, counts_from: u32) -> Self {
        Self {
            queue: Producer::starting_at(counts_from),
            counts_from,
            round_trips: 0,
            continued: 0,
            holding: None,
            holds: VecDeque::new(),
            replies: Replies::starting_at(counts_from),
            failures: Failures::new(nodes, generation),
            stats: PortStats::default(),
        }
    }

    /// The number of the operation whose first command is posted next. Numbers of operations in flight
    /// differ, because commands are counted modulo 2^32; and none is 0, which is what an unused reply
    /// slot holds.
    pub(crate) const fn next_op(&self) -> OpId {
        match self.next_command() as u32 {
            0 => INSTEAD_OF_0,
            number => OpId(number),
        }
    }

    /// Which command of the port is posted next.
    pub(crate) const fn next_command(&self) -> u64 {
        self.queue.commands() + 1
    }

    /// Write messages that the program has posted.
    pub(crate) const fn write_messages(&self) -> u64 {
        self.writes() - self.counts_from as u64
    }

    /// Write messages posted so far, and what the counts began with; the card counts them done in the same order, modulo 2^32. What is kept of a
    /// write is its whole number: a port that writes for some minutes posts 2^31 of them.
    #[inline]
    pub(crate) const fn writes(&self) -> u64 {
        self.queue.commands() - self.round_trips
    }

    /// How many of the posted writes are done at this node, as far as the card has told. It tells modulo 2^32; far
    /// fewer are under way. A card that is gone reads as all ones, which says nothing.
    #[inline]
    pub(crate) fn writes_done<W: SharedWords + ?Sized>(&self, area: &W) -> u64 {
        let under_way = (self.writes() as u32).wrapping_sub(area.load_acquire(WRITES_DONE));
        self.writes().saturating_sub(under_way.into())
    }

    /// Whether the queue has room, after asking the card how far it is if need be.
    #[inline]
    pub(crate) fn has_room<W: SharedWords + ?Sized>(&mut self, area: &W) -> bool {
        if self.queue.free() != 0 {
            return true;
        }
        self.queue.update_taken(area.load_acquire(TAKEN));
        self.queue.free() != 0
    }

    /// Whether the queue has room for so many commands, after asking the card how far it is if need be.
    pub(crate) fn has_places<W: SharedWords + ?Sized>(&mut self, area: &W, count: u32) -> bool {
        if self.queue.free() < count {
            self.queue.update_taken(area.load_acquire(TAKEN));
        }
        self.queue.free() >= count
    }

    /// As [`has_room`](Self::has_room), for callers that do not ask whether the port is [quiet](Failures::quiet): there
    /// is no room in the queue of a port that is closed.
    pub(crate) fn may_post<W: SharedWords + ?Sized>(&mut self, area: &W) -> bool {
        !self.failures.is_closed() && self.has_room(area)
    }

    #[inline]
    pub(crate) const fn count(&mut self, staged: bool, bytes: u64) {
        if staged {
            self.stats.staged_bytes += bytes;
        } else {
            self.stats.zero_copy_bytes += bytes;
        }
    }

    /// A reply slot and room in the queue, if there are both.
    #[inline]
    pub(crate) fn reply_slot(&mut self, port: &PortInner, dropped: &mut Vec<Region>) -> Option<ReplySlot> {
        if self.replies.free().is_none() {
            self.harvest(port, dropped);
        }
        let slot = self.replies.free()?;
        self.may_post(&port.area).then_some(slot)
    }

    /// Learns which reads and flushes have ended. The regions that come back are for the caller to
    /// drop when it no longer holds the lock.
    pub(crate) fn harvest(&mut self, port: &PortInner, dropped: &mut Vec<Region>) {
        let mut failed = Vec::new();
        self.replies.harvest(&port.area, &mut failed, dropped);
        if !failed.is_empty() {
            // The record of a lost link first, which the card has stored before: it says more than the replies.
            self.failures.drain(&port.area, &port.block);
        }
        for known in failed {
            self.failures.add(known);
        }
    }

    /// Notes that the command just posted will answer in its reply slot.
    pub(crate) fn await_reply(&mut self, command: &Command, call: OpId, hold: Option<&Region>) {
        let number = self.replies.next_number();
        self.replies.insert(
            command.reply,
            Waiting {
                op: command.op,
                call,
                number,
                node: command.node,
                port: command.port,
                address: command.remote,
                epoch: command.epoch,
                wanted: hold.is_none(),
                hold: hold.cloned(),
            },
        );
    }

    /// Whether a write from this region needs no more to keep it alive: the last one read from it too.
    #[inline]
    pub(crate) fn holds(&self, region: RegionIdentity) -> bool {
        self.holding.as_ref().map(Region::identity) == Some(region)
    }

    /// Keeps `region` alive until write `number`, the last, is done. Gives back one that is no longer
    /// needed; regions come back as fast as they go in, so none stays for ever on a port that writes.
    pub(crate) fn hold(&mut self, region: &Region, number: u64, done: u64) -> Option<Region> {
        if self.holds(region.identity()) {
            return None;
        }
        let before = self.holding.replace(region.clone());
        // Which was its last write is not known: one before this.
        self.holds.extend(before.map(|before| (number, before)));
        let (number, _) = self.holds.front()?;
        if *number > done {
            return None;
        }
        self.holds.pop_front().map(|(_, region)| region)
    }

    /// Takes out a region whose writes are done.
    pub(crate) fn pop_hold(&mut self, done: u64) -> Option<Region> {
        if let Some((number, _)) = self.holds.front() {
            let number = *number;
            return (number <= done).then(|| self.holds.pop_front().map(|(_, region)| region))?;
        }
        (self.writes() <= done).then(|| self.holding.take())?
    }

    /// Gives back everything that is held: the port is closed.
    pub(crate) fn clear(&mut self) -> Vec<Region> {
        let mut dropped: Vec<Region> = self.holds.drain(..).map(|(_, region)| region).collect();
        dropped.extend(self.holding.take());
        self.replies.clear(&mut dropped);
        dropped
    }
}

/// The number of the operation whose first command would have the number 0: the one that was in use the longest time ago.
pub(crate) const INSTEAD_OF_0: OpId = OpId(1 << 31);

/// Whether a wrapping count has come to `target`.
#[inline]
pub(crate) const fn reached(count: u32, target: u32) -> bool {
    count.wrapping_sub(target).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::port_area::AREA_WORDS;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn writes_are_counted_whole_where_the_cards_count_wraps() {
        let area: Vec<AtomicU32> = (0..AREA_WORDS).map(|_| AtomicU32::new(0)).collect();
        let mut poster = Poster::new(2, Generation(0), 0);
        poster.round_trips = 7;
        let wrap = 1 << 32;
        for (writes, done) in [
            (0, 0),
            (64, 0),
            (64, 63),
            (1 << 31, (1 << 31) - 64),
            (wrap - 1, wrap - 5),
            (wrap + 5, wrap - 3),
            (wrap + 5, wrap),
            (3 * wrap, 3 * wrap - 64),
        ] {
            poster.queue.ring(&area[..], writes + 7);
            area[WRITES_DONE.0 as usize].store(done as u32, Ordering::Relaxed);
            assert_eq!(poster.writes_done(&area[..]), done, "of {writes}");
        }
        // A card that is gone.
        let mut poster = Poster::new(2, Generation(0), 0);
        poster.queue.ring(&area[..], 5);
        area[WRITES_DONE.0 as usize].store(u32::MAX, Ordering::Relaxed);
        assert_eq!(poster.writes_done(&area[..]), 0);
    }
}
