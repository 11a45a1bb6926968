//! Posting: a call becomes command descriptors in the port's queue (thesis 5.2).

use crate::error::{Error, Result};
use crate::fence::{Count, Mark, Until};
use crate::port::PortInner;
use crate::poster::Poster;
use crate::region::Region;
use crate::room::Lack;
use netvm_abi::descriptor::{Command, CommandFlags, INLINE_BYTES, Opcode, QUEUE_ENTRIES};
use netvm_abi::frame::MIN_PAYLOAD;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{ByteLen, Epoch, NodeId, NotificationId, OpId, PAGE_SIZE, ReplySlot, VirtAddr};
use parking_lot::MutexGuard;

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
    /// The call is the library's own: earlier failures are not reported instead of it.
    pub(crate) aside: bool,
    /// Without room for all of it the call posts nothing, and does not wait.
    pub(crate) at_once: bool,
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
        // An append gets one place: it is one message, or none.
        let appends = command.flags.contains(CommandFlags::APPEND);
        if appends {
            let limit = crate::fragment::first(plan.len, command.remote, local, payload).into();
            if limit < plan.len {
                return Err(Error::MessageTooLong { len: plan.len, limit });
            }
        }
        let mut rest = plan.len;
        let mut words = [0; INLINE_BYTES / 4];
        let mut spins = 0;

        let mut poster = self.poster();
        let mut call = plan.part_of;
        let epoch = match call {
            Some((_, epoch)) => epoch,
            None => {
                if !plan.aside {
                    self.surface(&mut poster, node)?;
                }
                poster.failures.epoch(node)
            }
        };
        if plan.at_once {
            let messages = at_most_a_queue(plan.len, command.remote, local, payload)?;
            if let Err(error) = self.has_room_now(&mut poster, messages) {
                drop(poster);
                return Err(self.asks_for_room(error));
            }
        }
        command.epoch = epoch;
        let (op, number) = loop {
            if poster.failures.epoch(node) != epoch {
                if let Some((op, _)) = call {
                    poster.failures.unwatch(op)?;
                }
                return Err(Error::StreamFailed { node });
            }
            if !poster.may_post(&self.area) {
                poster = self.wait_for_room(poster, &mut spins)?;
                if appends {
                    // It names refusals only that were reported, or are for threads that wait for them.
                    self.surface(&mut poster, node)?;
                }
                continue;
            }
            poster.continued += u64::from(call.is_some());
            if appends {
                let command = poster.next_command();
                poster.failures.appends.begin(command);
            }
            let (op, _) = *call.get_or_insert_with(|| {
                let op = poster.next_op();
                if plan.watched && appends {
                    poster.failures.watch_append(node, op, epoch);
                } else if plan.watched {
                    poster.failures.watch(op);
                }
                (op, epoch)
            });
            command.op = op;
            if appends {
                command.operand = poster.failures.appends.name(node).0.into();
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
            poster.failures.wrote(node, poster.queue.commands());
            if rest == 0 {
                break (op, poster.writes());
            }
            command.remote = VirtAddr(command.remote.0.wrapping_add(u64::from(len)));
            local = local.map(|local| VirtAddr(local.0.wrapping_add(u64::from(len))));
        };
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
                    let done = poster.writes_done(&self.area);
                    poster.hold(region, number, done)
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
        if call.is_none() && !plan.aside {
            self.surface(&mut poster, node)?;
        }
        if plan.at_once {
            let messages = at_most_a_queue(rest, command.remote, Some(local), payload)?;
            poster.harvest(self, &mut dropped);
            let commands = self.has_room_now(&mut poster, messages);
            if let Err(error) = commands.and_then(|()| poster.has_answers_now(messages)) {
                drop(poster);
                return Err(self.asks_for_room(error));
            }
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
            command.op = poster.next_op();
            let call = *call.get_or_insert_with(|| {
                if plan.watched {
                    poster.failures.watch(command.op);
                }
                command.op
            });
            poster.queue.post(&self.block, &command.encode(), &[]);
            poster.round_trips += 1;
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

/// How many messages a transfer takes that is posted in one piece: no more than the queue holds.
fn at_most_a_queue(len: u64, remote: VirtAddr, local: Option<VirtAddr>, payload: u32) -> Result<u32> {
    let (messages, limit) = crate::fragment::count(len, remote, local, payload, QUEUE_ENTRIES);
    if limit < len {
        return Err(Error::MessageTooLong { len, limit });
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
