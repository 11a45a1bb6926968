//! The sending side of a port: its command queue and what is known about commands in flight.
//!
//! Several threads may post. One small mutex makes the fragments of one message go out whole; it is
//! let go of whenever the queue is full, and never held while a caller parks. Fragments of two calls
//! may alternate in the queue, which harms nobody: a call's notification is on its last fragment.

use crate::error::{Error, Result};
use crate::failure::Failures;
use crate::port::PortInner;
use crate::region::Region;
use crate::replies::{Replies, Waiting};
use crate::stats::PortStats;
use netvm_abi::bar::port::TAKEN_FENCE;
use netvm_abi::command_queue::Producer;
use netvm_abi::descriptor::{Command, CommandFlags, INLINE_BYTES, Opcode, QUEUE_ENTRIES};
use netvm_abi::port_area::TAKEN;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{ByteLen, Epoch, Generation, NodeId, NotificationId, OpId, PAGE_SIZE, ReplySlot, VirtAddr};
use std::collections::VecDeque;
use std::sync::MutexGuard;

/// What the mutex protects.
#[derive(Debug)]
pub(crate) struct Poster {
    queue: Producer,
    next_op: u32,
    /// Write messages posted so far; the card counts them done in the same order.
    pub(crate) writes: u32,
    /// Regions that writes in flight read from, each with the number of the last such write.
    holds: VecDeque<(u32, Region)>,
    pub(crate) replies: Replies,
    pub(crate) failures: Failures,
    pub(crate) stats: PortStats,
}

/// What a write takes its bytes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// The descriptor.
    Inline(&'a [u8]),
    /// A region, from this address on.
    Local(VirtAddr, &'a Region),
}

/// A write call, as far as the queue is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePlan<'a> {
    /// Node, port, capability, secret, first remote address; the rest is filled in here.
    pub(crate) command: Command,
    pub(crate) payload: Payload<'a>,
    pub(crate) len: u64,
    /// For the last fragment.
    pub(crate) notification: NotificationId,
    /// From an earlier part of the same call, if this is a later one.
    pub(crate) part_of: Option<(OpId, Epoch)>,
    /// The region is the library's own, with a copy of the program's bytes.
    pub(crate) staged: bool,
    /// The caller comes for the call's failure itself.
    pub(crate) watched: bool,
}

/// A read call, as far as the queue is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPlan<'a> {
    /// Node, port, capability, secret, first remote address; the rest is filled in here.
    pub(crate) command: Command,
    pub(crate) local: VirtAddr,
    pub(crate) region: &'a Region,
    pub(crate) len: u64,
    /// From an earlier part of the same call, if this is a later one.
    pub(crate) part_of: Option<OpId>,
    /// The region is the library's own, with a copy of the program's bytes.
    pub(crate) staged: bool,
    /// The caller comes for the call's failure itself.
    pub(crate) watched: bool,
}

/// A call that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) op: OpId,
    pub(crate) epoch: Epoch,
    /// The number of its last message.
    pub(crate) number: u32,
}

impl Poster {
    pub(crate) fn new(nodes: u16, generation: Generation) -> Self {
        Self {
            queue: Producer::default(),
            next_op: 0,
            writes: 0,
            holds: VecDeque::new(),
            replies: Replies::default(),
            failures: Failures::new(nodes, generation),
            stats: PortStats::default(),
        }
    }

    /// Operation numbers are never 0, which is what an unused reply slot holds.
    #[inline]
    fn take_op(&mut self) -> OpId {
        self.next_op = self.next_op.wrapping_add(1);
        if self.next_op == 0 {
            self.next_op = 1;
        }
        OpId(self.next_op)
    }

    /// Whether the queue has room, after asking the card how far it is if need be.
    #[inline]
    fn has_room(&mut self, port: &PortInner) -> bool {
        if self.queue.free() == 0 {
            self.queue.update_taken(port.area.load_acquire(TAKEN));
        }
        self.queue.free() != 0
    }

    #[inline]
    const fn count(&mut self, staged: bool, bytes: u64) {
        if staged {
            self.stats.staged_bytes += bytes;
        } else {
            self.stats.zero_copy_bytes += bytes;
        }
    }

    /// A reply slot and room in the queue, if there are both.
    #[inline]
    fn reply_slot(&mut self, port: &PortInner, dropped: &mut Vec<Region>) -> Option<ReplySlot> {
        if self.replies.free().is_none() {
            self.harvest(port, dropped);
        }
        let slot = self.replies.free()?;
        self.has_room(port).then_some(slot)
    }

    /// Learns which reads and flushes have ended. The regions that come back are for the caller to
    /// drop when it holds the lock no more.
    pub(crate) fn harvest(&mut self, port: &PortInner, dropped: &mut Vec<Region>) {
        let mut failed = Vec::new();
        self.replies.harvest(&port.area, &mut failed, dropped);
        for known in failed {
            self.failures.add(known);
        }
    }

    /// Notes that the command just posted will answer in its reply slot.
    fn await_reply(&mut self, command: &Command, call: OpId, hold: Option<&Region>) {
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

    /// Keeps `region` alive until write `number` is done. Gives back one that is no longer needed;
    /// regions come back as fast as they go in, so none stays for ever on a port that writes.
    #[inline]
    fn hold(&mut self, region: &Region, number: u32, done: u32) -> Option<Region> {
        match self.holds.back_mut() {
            Some((last, held)) if held.is(region) => {
                *last = number;
                None
            }
            _ => {
                self.holds.push_back((number, region.clone()));
                self.pop_hold(done)
            }
        }
    }

    /// Takes out a region whose writes are done.
    pub(crate) fn pop_hold(&mut self, done: u32) -> Option<Region> {
        let (number, _) = self.holds.front()?;
        if !reached(done, *number) {
            return None;
        }
        self.holds.pop_front().map(|(_, region)| region)
    }

    /// Gives back everything that is held: the port is closed.
    pub(crate) fn clear(&mut self) -> Vec<Region> {
        let mut dropped: Vec<Region> = self.holds.drain(..).map(|(_, region)| region).collect();
        self.replies.clear(&mut dropped);
        dropped
    }
}

impl PortInner {
    /// Stores before this are for the card: wake it, or run it, if it sleeps.
    #[inline]
    pub(crate) fn ring(&self) {
        self.block.full_barrier();
        if self.status.load_acquire(status_page::SLEEPING) != 0 {
            self.backend.doorbell();
        }
    }

    /// Largest payload on the path to `node`. A path that has not been greeted yet carries the
    /// smallest that a path may agree on.
    #[inline]
    fn path_payload(&self, node: NodeId) -> u32 {
        let agreed = self.status.load_acquire(status_page::peer(node).plus(1));
        agreed.clamp(MIN_PAYLOAD, PAGE_SIZE)
    }

    /// Waits for room in the command queue or for a reply slot; takes the lock again.
    #[cold]
    fn wait_for_room<'a>(
        &'a self,
        mut poster: MutexGuard<'a, Poster>,
        spins: &mut u32,
    ) -> Result<MutexGuard<'a, Poster>> {
        poster.stats.queue_full += u64::from(*spins == 0);
        if poster.queue.free() == 0 {
            // Half a queue at a time, so that caller and card do not trade single entries.
            let half = poster.queue.posted().wrapping_sub(QUEUE_ENTRIES / 2);
            self.block.store_release(TAKEN_FENCE, half);
        }
        drop(poster);
        self.ring();
        self.alive()?;
        self.backend.relax(*spins);
        *spins = spins.saturating_add(1);
        Ok(self.poster())
    }

    /// Posts a write, cut into messages.
    pub(crate) fn post_write(&self, plan: &WritePlan<'_>) -> Result<Posted> {
        let mut command = plan.command;
        let node = command.node;
        let payload = self.path_payload(node);
        let mut local = match plan.payload {
            Payload::Inline(_) => {
                command.flags |= CommandFlags::INLINE;
                None
            }
            Payload::Local(address, _) => Some(address),
        };
        let mut rest = plan.len;
        let mut words = [0; INLINE_BYTES / 4];
        let mut spins = 0;

        let mut poster = self.poster();
        let (op, epoch) = match plan.part_of {
            Some(part) => part,
            None => {
                self.surface(&mut poster, node)?;
                let op = poster.take_op();
                if plan.watched {
                    poster.failures.watch(op);
                }
                (op, poster.failures.epoch(node))
            }
        };
        command.op = op;
        command.epoch = epoch;
        loop {
            if poster.failures.epoch(node) != epoch {
                poster.failures.unwatch(op)?;
                return Err(Error::StreamFailed { node });
            }
            if !poster.has_room(self) {
                poster = self.wait_for_room(poster, &mut spins)?;
                continue;
            }
            let len = crate::fragment::first(rest, command.remote, local, payload);
            let inline = match plan.payload {
                Payload::Inline(bytes) => pack(bytes, plan.len - rest, len, &mut words),
                Payload::Local(..) => &[],
            };
            command.len = ByteLen(len);
            command.local = local.unwrap_or_default();
            rest -= u64::from(len);
            if rest == 0 {
                command.notification = plan.notification;
            }
            poster.queue.post(&self.block, &command.encode(), inline);
            poster.writes = poster.writes.wrapping_add(1);
            poster.stats.write_messages += 1;
            if rest == 0 {
                break;
            }
            command.remote = VirtAddr(command.remote.0.wrapping_add(u64::from(len)));
            local = local.map(|local| VirtAddr(local.0.wrapping_add(u64::from(len))));
        }
        let number = poster.writes;
        poster.stats.writes += u64::from(plan.part_of.is_none());
        let unneeded = match plan.payload {
            Payload::Inline(_) => {
                poster.stats.inline_bytes += plan.len;
                None
            }
            Payload::Local(_, region) => {
                poster.count(plan.staged, plan.len);
                if plan.staged {
                    // It lives as long as the port, and its chunk is marked busy.
                    None
                } else {
                    poster.hold(region, number, self.writes_done())
                }
            }
        };
        drop(poster);
        self.ring();
        drop(unneeded);
        Ok(Posted { op, epoch, number })
    }

    /// Posts a read of `len` bytes into a region from `local` on, cut into messages.
    pub(crate) fn post_read(&self, plan: &ReadPlan<'_>) -> Result<Posted> {
        let mut command = plan.command;
        command.opcode = Opcode::Read;
        let node = command.node;
        let payload = self.path_payload(node);
        let mut local = plan.local;
        let mut rest = plan.len;
        let mut call = plan.part_of;
        let mut spins = 0;
        let mut dropped = Vec::new();

        let mut poster = self.poster();
        if call.is_none() {
            self.surface(&mut poster, node)?;
        }
        loop {
            let Some(slot) = poster.reply_slot(self, &mut dropped) else {
                poster = self.wait_for_room(poster, &mut spins)?;
                continue;
            };
            let len = crate::fragment::first(rest, command.remote, Some(local), payload);
            command.len = ByteLen(len);
            command.local = local;
            command.reply = slot;
            command.epoch = poster.failures.epoch(node);
            // Each message has a number of its own, or a reused slot's old record could pass for its
            // answer; the call goes by the number of its first.
            command.op = poster.take_op();
            let call = *call.get_or_insert_with(|| {
                if plan.watched {
                    poster.failures.watch(command.op);
                }
                command.op
            });
            poster.queue.post(&self.block, &command.encode(), &[]);
            poster.await_reply(&command, call, Some(plan.region));
            poster.stats.read_messages += 1;
            rest -= u64::from(len);
            if rest == 0 {
                break;
            }
            command.remote = VirtAddr(command.remote.0.wrapping_add(u64::from(len)));
            local = VirtAddr(local.0.wrapping_add(u64::from(len)));
        }
        poster.count(plan.staged, plan.len);
        poster.stats.reads += u64::from(plan.part_of.is_none());
        let posted = Posted {
            op: call.unwrap_or(command.op),
            epoch: command.epoch,
            number: poster.replies.last_number(),
        };
        drop(poster);
        self.ring();
        Ok(posted)
    }

    /// Posts a remote flush, whose record somebody will come for.
    pub(crate) fn post_flush(&self, node: NodeId) -> Result<Posted> {
        let mut spins = 0;
        let mut dropped = Vec::new();
        let mut poster = self.poster();
        let slot = loop {
            match poster.reply_slot(self, &mut dropped) {
                Some(slot) => break slot,
                None => poster = self.wait_for_room(poster, &mut spins)?,
            }
        };
        let command = Command {
            opcode: Opcode::FlushRemote,
            flags: CommandFlags::ORDERED,
            node,
            op: poster.take_op(),
            reply: slot,
            epoch: poster.failures.epoch(node),
            ..Command::default()
        };
        poster.queue.post(&self.block, &command.encode(), &[]);
        poster.await_reply(&command, command.op, None);
        poster.stats.remote_flushes += 1;
        let posted = Posted {
            op: command.op,
            epoch: command.epoch,
            number: poster.replies.last_number(),
        };
        drop(poster);
        self.ring();
        Ok(posted)
    }
}

/// Whether a wrapping count has come to `target`.
#[inline]
pub(crate) const fn reached(count: u32, target: u32) -> bool {
    count.wrapping_sub(target).cast_signed() >= 0
}

/// The smallest payload that a path may agree on, in bytes.
const MIN_PAYLOAD: u32 = 512;

/// Packs `len` bytes from `at` on into little-endian words.
#[inline]
fn pack<'a>(bytes: &[u8], at: u64, len: u32, words: &'a mut [u32; INLINE_BYTES / 4]) -> &'a [u32] {
    let from = at as usize;
    let bytes = bytes.get(from..from + len as usize).unwrap_or_default();
    let count = bytes.len().div_ceil(4).min(words.len());
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(4)) {
        let mut four = [0; 4];
        if let Some(room) = four.get_mut(..chunk.len()) {
            room.copy_from_slice(chunk);
        }
        *word = u32::from_le_bytes(four);
    }
    words.get(..count).unwrap_or_default()
}
