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
use netvm_abi::port_area::TAKEN;
use netvm_abi::words::SharedWords;
use netvm_abi::{Generation, OpId, ReplySlot};
use std::collections::VecDeque;

/// What the mutex protects.
#[derive(Debug)]
pub(crate) struct Poster {
    pub(crate) queue: Producer,
    /// Write messages posted so far; the card counts them done in the same order, modulo 2^32.
    pub(crate) writes: u64,
    /// Those that were not the first of their call.
    pub(crate) continued: u64,
    /// The region that the last write from a region read from.
    holding: Option<Region>,
    /// Regions that earlier writes in flight read from, and the number of a write that came after them.
    holds: VecDeque<(u32, Region)>,
    pub(crate) replies: Replies,
    pub(crate) failures: Failures,
    pub(crate) stats: PortStats,
}

impl Poster {
    pub(crate) fn new(nodes: u16, generation: Generation) -> Self {
        Self {
            queue: Producer::default(),
            writes: 0,
            continued: 0,
            holding: None,
            holds: VecDeque::new(),
            replies: Replies::default(),
            failures: Failures::new(nodes, generation),
            stats: PortStats::default(),
        }
    }

    /// The number of the operation whose first command is posted next. Numbers of operations in flight
    /// differ, because commands are counted modulo 2^32; and none is 0, which is what an unused reply
    /// slot holds.
    pub(crate) const fn next_op(&self) -> OpId {
        match self.queue.posted().wrapping_add(1) {
            // The number that was in use the longest time ago.
            0 => OpId(1 << 31),
            number => OpId(number),
        }
    }

    /// The number of the last write message posted.
    #[inline]
    pub(crate) const fn last_write(&self) -> u32 {
        self.writes as u32
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
    pub(crate) fn hold(&mut self, region: &Region, number: u32, done: u32) -> Option<Region> {
        if self.holds(region.identity()) {
            return None;
        }
        let before = self.holding.replace(region.clone());
        // Which was its last write is not known: one before this.
        self.holds.extend(before.map(|before| (number, before)));
        let (number, _) = self.holds.front()?;
        if !reached(done, *number) {
            return None;
        }
        self.holds.pop_front().map(|(_, region)| region)
    }

    /// Takes out a region whose writes are done.
    pub(crate) fn pop_hold(&mut self, done: u32) -> Option<Region> {
        let last = self.last_write();
        if let Some((number, _)) = self.holds.front() {
            let number = *number;
            return reached(done, number).then(|| self.holds.pop_front().map(|(_, region)| region))?;
        }
        reached(done, last).then(|| self.holding.take())?
    }

    /// Gives back everything that is held: the port is closed.
    pub(crate) fn clear(&mut self) -> Vec<Region> {
        let mut dropped: Vec<Region> = self.holds.drain(..).map(|(_, region)| region).collect();
        dropped.extend(self.holding.take());
        self.replies.clear(&mut dropped);
        dropped
    }
}

/// Whether a wrapping count has come to `target`.
#[inline]
pub(crate) const fn reached(count: u32, target: u32) -> bool {
    count.wrapping_sub(target).cast_signed() >= 0
}
