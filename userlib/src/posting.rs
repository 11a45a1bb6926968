//! Posting: a call becomes command descriptors in the port's queue (thesis 5.2).

use crate::error::{Error, Result};
use crate::fence::{Count, Mark, Until};
use crate::port::PortInner;
use crate::poster::Poster;
use crate::region::{Region, RegionSlice};
use crate::room::Lack;
use netvm_abi::descriptor::{Command, CommandFlags, INLINE_BYTES, Opcode, QUEUE_ENTRIES};
use netvm_abi::frame::MIN_PAYLOAD;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{ByteLen, Epoch, NodeId, NotificationId, OpId, PAGE_SIZE, ReplySlot, VirtAddr};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// What a write takes its bytes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// The descriptor.
    Inline(&'a [u8]),
    /// A region, from this address on.
    Local(VirtAddr, &'a Region),
}

/// What a write puts in one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePiece<'a> {
    /// Node, port, capability, secret, first remote address, flags; the rest is filled in here.
    pub(crate) command: Command,
    pub(crate) payload: Payload<'a>,
    pub(crate) len: u64,
    /// The region is the library's own, with a copy of the program's bytes.
    pub(crate) staged: bool,
}

/// A write call, as far as the queue is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePlan<'a> {
    /// At least one; all for the same node.
    pub(crate) pieces: &'a [WritePiece<'a>],
    /// For the last message.
    pub(crate) notification: NotificationId,
    /// From an earlier part of the same call, if this is a later one.
    pub(crate) part_of: Option<(OpId, Epoch)>,
    /// The caller comes for the call's failure itself.
    pub(crate) watched: bool,
    /// The call is the library's own: earlier failures are not reported instead of it.
    pub(crate) aside: bool,
    /// Without room for all of it the call posts nothing, and does not wait.
    pub(crate) at_once: bool,
    /// More follows, so the card is not called for this.
    pub(crate) more: bool,
}

/// What a read fetches from one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPiece<'a> {
    /// Node, port, capability, secret, first remote address, flags; the rest is filled in here.
    pub(crate) command: Command,
    pub(crate) local: VirtAddr,
    pub(crate) region: &'a Region,
    pub(crate) len: u64,
}

/// A read call, as far as the queue is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPlan<'a> {
    /// At least one, none of them empty; all for the same node.
    pub(crate) pieces: &'a [ReadPiece<'a>],
    /// From an earlier part of the same call, if this is a later one.
    pub(crate) part_of: Option<OpId>,
    /// The regions are the library's own, with a copy of the program's bytes.
    pub(crate) staged: bool,
    /// The caller comes for the call's failure itself.
    pub(crate) watched: bool,
    /// The call is the library's own: earlier failures are not reported instead of it.
    pub(crate) aside: bool,
    /// Without room for all of it the call posts nothing, and does not wait.
    pub(crate) at_once: bool,
}

/// A call that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) op: OpId,
    pub(crate) epoch: Epoch,
    /// The number of its last message.
    pub(crate) number: u64,
}

impl Posted {
    /// Of a call that had nothing to do.
    pub(crate) const NOTHING: Self = Self {
        op: OpId(0),
        epoch: Epoch(0),
        number: 0,
    };
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

    /// A thread is going to wait for what others do: it has nothing to add to what it has posted.
    #[inline]
    pub(crate) fn ring_if_owed(&self) {
        if self.owes_call.load(Ordering::Relaxed) {
            self.owes_call.store(false, Ordering::Relaxed);
            self.ring();
        }
    }

    /// Largest payload on the path to `node`. A path that has not been greeted yet carries the
    /// smallest that a path may agree on.
    #[inline]
    pub(crate) fn path_payload(&self, node: NodeId) -> u32 {
        let agreed = self.status.load_acquire(status_page::peer_payload(node));
        agreed.clamp(MIN_PAYLOAD, PAGE_SIZE)
    }

    /// Waits for room in the command queue or for a reply slot; takes the lock again.
    #[cold]
    pub(crate) fn wait_for_room<'a>(
        &'a self,
        mut poster: MutexGuard<'a, Poster>,
        spins: &mut u32,
    ) -> Result<MutexGuard<'a, Poster>> {
        poster.stats.queue_full += u64::from(*spins == 0);
        // Half a queue at a time, so that caller and card do not trade single entries.
        let half = poster.queue.posted().wrapping_sub(QUEUE_ENTRIES / 2);
        let full = poster.queue.free() == 0;
        drop(poster);
        if full {
            self.ask(Mark {
                count: Count::Taken,
                at: half,
            });
        }
        self.ring();
        self.alive()?;
        self.backend.relax(*spins);
        *spins = spins.saturating_add(1);
        Ok(self.poster())
    }

    /// Posts a write, cut into messages.
    pub(crate) fn post_write(&self, plan: &WritePlan<'_>) -> Result<Posted> {
        let Some(first) = plan.pieces.first() else {
            return Ok(Posted::NOTHING);
        };
        let node = first.command.node;
        let payload = self.path_payload(node);
        // An append gets one place: it is one message, or none.
        if first.is_append() {
            let limit = u64::from(first.message(0, payload).len.0);
            if limit < first.len {
                let len = first.len;
                return Err(Error::MessageTooLong { len, limit });
            }
        }
        let mut poster = self.poster();
        let epoch = match plan.part_of {
            Some((_, epoch)) => epoch,
            None => {
                if !plan.aside {
                    self.surface(&mut poster, node)?;
                }
                poster.failures.epoch(node)
            }
        };
        if plan.at_once {
            let pieces = plan.pieces.iter().map(WritePiece::transfer);
            let messages = at_most_a_queue(pieces, payload)?;
            if let Err(error) = self.has_room_now(&mut poster, messages) {
                drop(poster);
                return Err(self.asks_for_room(error));
            }
        }
        let mut call = Call {
            op: plan.part_of.map(|(op, _)| op),
            epoch,
            payload,
            watched: plan.watched,
            spins: 0,
        };
        let mut unneeded = Vec::new();
        for (index, piece) in plan.pieces.iter().enumerate() {
            let notification = if index + 1 == plan.pieces.len() {
                plan.notification
            } else {
                NotificationId::NONE
            };
            poster = self.post_piece(poster, &mut call, piece, notification)?;
            match piece.payload {
                Payload::Inline(_) => poster.stats.inline_bytes += piece.len,
                Payload::Local(_, region) => {
                    poster.count(piece.staged, piece.len);
                    // A staging region lives as long as the port, and its chunk is marked busy.
                    if !piece.staged {
                        let (number, done) = (poster.writes(), poster.writes_done(&self.area));
                        unneeded.extend(poster.hold(region, number, done));
                    }
                }
            }
        }
        let posted = Posted {
            op: call.op.unwrap_or_default(),
            epoch,
            number: poster.writes(),
        };
        drop(poster);
        if plan.more {
            self.owes_call.store(true, Ordering::Relaxed);
        } else {
            self.ring();
        }
        // Regions may park when they are dropped: after the lock.
        drop(unneeded);
        Ok(posted)
    }

    /// Posts the messages of one piece. Lets go of the lock while there is no room.
    fn post_piece<'a>(
        &'a self,
        mut poster: MutexGuard<'a, Poster>,
        call: &mut Call,
        piece: &WritePiece<'_>,
        notification: NotificationId,
    ) -> Result<MutexGuard<'a, Poster>> {
        let (node, appends) = (piece.command.node, piece.is_append());
        let mut words = [0; INLINE_BYTES / 4];
        let mut done = 0;
        loop {
            if poster.failures.epoch(node) != call.epoch {
                if let Some(op) = call.op {
                    poster.failures.unwatch(op)?;
                }
                return Err(Error::StreamFailed { node });
            }
            if !poster.may_post(&self.area) {
                poster = self.wait_for_room(poster, &mut call.spins)?;
                if appends {
                    // It names refusals only that were reported, or are for threads that wait for them.
                    self.surface(&mut poster, node)?;
                }
                continue;
            }
            poster.continued += u64::from(call.op.is_some());
            if appends {
                let command = poster.next_command();
                poster.failures.appends.begin(command);
            }
            let op = *call.op.get_or_insert_with(|| {
                let op = poster.next_op();
                if call.watched && appends {
                    poster.failures.watch_append(node, op, call.epoch);
                } else if call.watched {
                    poster.failures.watch(op);
                }
                op
            });
            let mut command = piece.message(done, call.payload);
            command.op = op;
            command.epoch = call.epoch;
            if appends {
                command.operand = poster.failures.appends.name(node).0.into();
            }
            let inline = match piece.payload {
                Payload::Inline(bytes) => pack(bytes, done, command.len.0, &mut words),
                Payload::Local(..) => &[],
            };
            done += u64::from(command.len.0);
            if done == piece.len {
                command.notification = notification;
            }
            poster.queue.post(&self.block, &command.encode(), inline);
            poster.failures.wrote(node, poster.queue.commands());
            if done == piece.len {
                return Ok(poster);
            }
        }
    }

    /// Posts a read, cut into messages.
    pub(crate) fn post_read(&self, plan: &ReadPlan<'_>) -> Result<Posted> {
        let Some(first) = plan.pieces.first() else {
            return Ok(Posted::NOTHING);
        };
        let node = first.command.node;
        let payload = self.path_payload(node);
        let mut call = plan.part_of;
        let mut spins = 0;
        let mut dropped = Vec::new();

        let mut poster = self.poster();
        if call.is_none() && !plan.aside {
            self.surface(&mut poster, node)?;
        }
        if plan.at_once {
            let pieces = plan.pieces.iter().map(ReadPiece::transfer);
            let messages = at_most_a_queue(pieces, payload)?;
            poster.harvest(self, &mut dropped);
            let commands = self.has_room_now(&mut poster, messages);
            if let Err(error) = commands.and_then(|()| poster.has_answers_now(messages)) {
                drop(poster);
                return Err(self.asks_for_room(error));
            }
        }
        for piece in plan.pieces {
            let mut done = 0;
            while done < piece.len {
                let Some(slot) = poster.reply_slot(self, &mut dropped) else {
                    poster = self.wait_for_room(poster, &mut spins)?;
                    continue;
                };
                let mut command = piece.message(done, payload);
                command.reply = slot;
                command.epoch = poster.failures.epoch(node);
                // Each message has a number of its own, or a reused slot's old record could pass for its
                // answer; the call goes by the number of its first.
                command.op = poster.next_op();
                let call = *call.get_or_insert_with(|| {
                    if plan.watched {
                        poster.failures.watch(command.op);
                    }
                    command.op
                });
                poster.queue.post(&self.block, &command.encode(), &[]);
                poster.round_trips += 1;
                poster.await_reply(&command, call, Some(piece.region));
                poster.stats.read_messages += 1;
                done += u64::from(command.len.0);
            }
            poster.count(plan.staged, piece.len);
        }
        poster.stats.reads += u64::from(plan.part_of.is_none());
        let posted = Posted {
            op: call.unwrap_or_default(),
            epoch: poster.failures.epoch(node),
            number: poster.replies.last_number(),
        };
        drop(poster);
        self.ring();
        Ok(posted)
    }

    /// Takes a reply slot, with room in the queue for its command. `at_once` fails where there is none, and does not wait.
    pub(crate) fn take_slot<'a>(
        &'a self,
        mut poster: MutexGuard<'a, Poster>,
        dropped: &mut Vec<Region>,
        at_once: bool,
    ) -> Result<(MutexGuard<'a, Poster>, ReplySlot)> {
        let mut spins = 0;
        loop {
            match poster.reply_slot(self, dropped) {
                Some(slot) => return Ok((poster, slot)),
                None if at_once => {
                    let commands = self.has_room_now(&mut poster, 1);
                    if let Err(error) = commands.and_then(|()| poster.has_answers_now(1)) {
                        drop(poster);
                        return Err(self.asks_for_room(error));
                    }
                }
                None => poster = self.wait_for_room(poster, &mut spins)?,
            }
        }
    }

    /// Whether so many commands can be posted now.
    ///
    /// # Errors
    /// [`Error::NoRoom`]; [`Error::PortClosed`], [`Error::PortEnded`].
    fn has_room_now(&self, poster: &mut Poster, commands: u32) -> Result<()> {
        self.alive()?;
        if poster.failures.is_closed() {
            return Err(Error::PortClosed);
        }
        if poster.has_places(&self.area, commands) {
            return Ok(());
        }
        poster.stats.queue_full += 1;
        Err(Error::NoRoom {
            lacks: Lack::commands(commands),
        })
    }

    /// Has the card tell when there is room. It tells how far it is at steps of its own otherwise, and a caller that only tries
    /// again and again could come between two of them for ever.
    #[cold]
    pub(crate) fn asks_for_room(&self, error: Error) -> Error {
        if let Error::NoRoom { lacks } = error
            && let Err(mark) = self.finds(lacks)
        {
            self.ask(mark);
        }
        error
    }

    /// Posts a flush of what was posted before it to a node, whose record its poster will collect.
    pub(crate) fn post_flush(&self, node: NodeId, until: Until, at_once: bool) -> Result<Posted> {
        let mut dropped = Vec::new();
        let (mut poster, slot) = self.take_slot(self.poster(), &mut dropped, at_once)?;
        let command = Command {
            opcode: match until {
                Until::Received => Opcode::FlushReceived,
                Until::Landed => Opcode::FlushRemote,
            },
            flags: match until {
                Until::Received => CommandFlags::empty(),
                Until::Landed => CommandFlags::ORDERED,
            },
            node,
            op: poster.next_op(),
            reply: slot,
            epoch: poster.failures.epoch(node),
            ..Command::default()
        };
        poster.queue.post(&self.block, &command.encode(), &[]);
        poster.round_trips += 1;
        poster.await_reply(&command, command.op, None);
        match until {
            Until::Received => poster.stats.received_flushes += 1,
            Until::Landed => poster.stats.remote_flushes += 1,
        }
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

impl Poster {
    /// Whether so many answers can be asked for now, after a [look](Self::harvest) at those that were.
    const fn has_answers_now(&self, count: u32) -> Result<()> {
        if self.replies.places() >= count {
            return Ok(());
        }
        Err(Error::NoRoom {
            lacks: Lack::answers(count),
        })
    }
}

/// A write call as it is posted.
struct Call {
    /// Its number, once it has a message.
    op: Option<OpId>,
    epoch: Epoch,
    /// The path's.
    payload: u32,
    watched: bool,
    spins: u32,
}

impl WritePiece<'_> {
    const fn is_append(&self) -> bool {
        self.command.flags.contains(CommandFlags::APPEND)
    }

    /// Its length, where it goes, and where it lies here.
    const fn transfer(&self) -> (u64, VirtAddr, Option<VirtAddr>) {
        let local = match self.payload {
            Payload::Inline(_) => None,
            Payload::Local(address, _) => Some(address),
        };
        (self.len, self.command.remote, local)
    }

    /// The message for what begins behind the first `done` bytes.
    const fn message(&self, done: u64, payload: u32) -> Command {
        let mut command = message(self.command, self.transfer(), done, payload);
        if matches!(self.payload, Payload::Inline(_)) {
            command.flags = command.flags.union(CommandFlags::INLINE);
        }
        command
    }
}

impl<'a> ReadPiece<'a> {
    /// All of a slice, as `command` says.
    pub(crate) fn into_slice(command: Command, slice: &'a RegionSlice) -> Self {
        Self {
            command,
            local: slice.address(),
            region: slice.region(),
            len: slice.len(),
        }
    }

    /// Its length, where it comes from, and where it goes here.
    const fn transfer(&self) -> (u64, VirtAddr, Option<VirtAddr>) {
        (self.len, self.command.remote, Some(self.local))
    }

    /// The message for what begins behind the first `done` bytes.
    const fn message(&self, done: u64, payload: u32) -> Command {
        let mut command = message(self.command, self.transfer(), done, payload);
        command.opcode = Opcode::Read;
        command
    }
}

/// The message of a transfer for what begins behind its first `done` bytes.
const fn message(
    mut command: Command,
    (len, remote, local): (u64, VirtAddr, Option<VirtAddr>),
    done: u64,
    payload: u32,
) -> Command {
    let remote = VirtAddr(remote.0.wrapping_add(done));
    let local = match local {
        Some(local) => Some(VirtAddr(local.0.wrapping_add(done))),
        None => None,
    };
    command.len = ByteLen(crate::fragment::first(len - done, remote, local, payload));
    command.remote = remote;
    if let Some(local) = local {
        command.local = local;
    }
    command
}

/// How many messages transfers take that are posted in one piece: no more than the queue holds.
fn at_most_a_queue(
    transfers: impl Iterator<Item = (u64, VirtAddr, Option<VirtAddr>)> + Clone,
    payload: u32,
) -> Result<u32> {
    let (mut messages, mut limit) = (0, 0);
    for (len, remote, local) in transfers.clone() {
        let places = QUEUE_ENTRIES - messages;
        let (taken, bytes) = crate::fragment::count(len, remote, local, payload, places);
        (messages, limit) = (messages + taken, limit + bytes);
        if bytes < len || places == 0 {
            let len = transfers.map(|(len, ..)| len).sum();
            return Err(Error::MessageTooLong { len, limit });
        }
    }
    Ok(messages)
}

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
