//! Atomic operations on remote words (thesis 8.1) and on queue blocks (thesis 8.3, 8.4).
//!
//! **What is atomic with what.** The card at the memory's node carries out atomics on one page one after the other,
//! also those of different senders, so they are atomic with one another. A card that is a device is no party to read-modify-writes
//! of that node's processors: it fetches the operand and writes it back. The software card changes an operand of up to 8 bytes by the processor's own atomics. Loads and
//! stores of an aligned word are single accesses on every side. So, for any card, nodes that compete for a word all change
//! it through the card, also a node that could reach it with its processor.
//!
//! | an atomic, and | software card | emulator, simulator | Linux with a card (the rig) |
//! |---|---|---|---|
//! | another one, of any node, to the same page of the same port | atomic | atomic | atomic |
//! | one of up to 8 bytes to the same bytes at another address, or of another port (memory mapped twice) | atomic | cannot be | not atomic |
//! | a load or store of an aligned word of up to 8 bytes, by a processor | one access each | one access each | one access each |
//! | a load of a whole queue block by a processor | word by word | word by word | word by word |
//! | a processor's read-modify-write of the same width, of up to 8 bytes | atomic | not atomic | not atomic |
//! | a processor's read-modify-write in a queue block; a plain remote write | not atomic | not atomic | not atomic |
//!
//! Where the card's core does the work, and not a processor, it locks the page for each of the
//! two transfers, not for the time between. A bus that has atomics of its own (PCI Express) is not used for it.
//!
//! An operation whose page is not resident waits at the card for the host to bring it, and later
//! ones on that page behind it: slower, never lost.

use crate::error::{Error, Failure, Result};
use crate::failure::Known;
use crate::fence::Count;
use crate::import::RemoteSegment;
use crate::notify::{Want, Watch};
use crate::port::PortInner;
use crate::timeout::Timeout;
use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::port_area::Reply;
use netvm_abi::{Epoch, Nanos, NodeId, OpId, PortId, Status, VirtAddr};
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An atomic operation about to be posted.
#[derive(Debug)]
#[must_use = "an atomic does nothing until it is posted"]
pub struct AtomicOp<'a> {
    remote: &'a RemoteSegment,
    offset: u64,
    atomic: Atomic,
    how: CommandFlags,
}

impl<'a> AtomicOp<'a> {
    pub(crate) const fn new(remote: &'a RemoteSegment, offset: u64, atomic: Atomic) -> Self {
        Self {
            remote,
            offset,
            atomic,
            how: CommandFlags::empty(),
        }
    }

    /// It is carried out only after everything earlier from this port to that node has landed. If something of that
    /// has failed and the program has not heard of it, it is not carried out and fails with [`Status::HeldBack`],
    /// unless it stands alone ([`regardless`](Self::regardless)).
    pub const fn ordered(mut self) -> Self {
        self.how = self.how.union(CommandFlags::ORDERED);
        self
    }

    /// It stands alone: an earlier operation that has failed does not hold it back. For hand-overs, which must not be
    /// lost because some data was.
    pub const fn regardless(mut self) -> Self {
        self.how = self.how.union(CommandFlags::REGARDLESS);
        self
    }

    /// Hands it to the card and does not wait: several may be under way, in any order unless they are
    /// [ordered](Self::ordered).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::ModeRefused`], [`Error::Released`],
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn post(self) -> Result<PendingAtomic> {
        self.hand_over(false)
    }

    /// As [`post`](Self::post), and never waits for room.
    ///
    /// # Errors
    /// As [`post`](Self::post), and [`Error::NoRoom`].
    pub fn try_post(self) -> Result<PendingAtomic> {
        self.hand_over(true)
    }

    fn hand_over(self, at_once: bool) -> Result<PendingAtomic> {
        let remote = self.remote.inner();
        remote.check()?;
        let len = u64::from(self.atomic.operand_bytes());
        remote.check_transfer(self.offset, len, Modes::ATOMIC)?;
        let mut command = remote.command(self.offset);
        if len == 0 || !command.remote.0.is_multiple_of(len) {
            return Err(Error::Misaligned {
                offset: self.offset,
                width: len,
            });
        }
        command.opcode = self.atomic.opcode;
        command.operand = self.atomic.operand;
        command.compare = self.atomic.compare;
        command.flags |= self.how;
        command.flags.set(
            CommandFlags::WIDE,
            self.atomic.wide && !self.atomic.opcode.is_extended(),
        );
        PendingAtomic::begin(&remote.port, command, at_once)
    }

    /// Hands it to the card and waits for the answer: one round trip.
    ///
    /// # Errors
    /// As [`post`](Self::post) and [`PendingAtomic::wait`].
    pub fn call(self) -> Result<AtomicResult> {
        self.post()?.wait()
    }
}

/// An atomic operation under way. It can be looked at ([`is_done`](Self::is_done)), waited for ([`wait_for`](Self::wait_for))
/// and awaited: it is a future that runs under any executor. Dropping it does not take the operation back: its failure, if it
/// fails, is then reported as one of a write is.
#[must_use = "an answer is lost unless the caller waits for it"]
pub struct PendingAtomic {
    port: Arc<PortInner>,
    op: OpId,
    epoch: Epoch,
    node: NodeId,
    exporter: PortId,
    address: VirtAddr,
    /// How it has ended, once that is known here.
    end: Option<Result<AtomicResult>>,
    /// It goes on by itself.
    disregarded: bool,
    watch: Watch,
}

impl PendingAtomic {
    /// Posts what has the form of an atomic.
    pub(crate) fn begin(port: &Arc<PortInner>, command: Command, at_once: bool) -> Result<Self> {
        let port = Arc::clone(port);
        let posted = port.post_atomic(command, at_once)?;
        Ok(Self {
            op: posted.op,
            epoch: posted.epoch,
            node: command.node,
            exporter: command.port,
            address: command.remote,
            port,
            end: None,
            disregarded: false,
            watch: Watch::new(),
        })
    }

    /// Its number, as [`Error::Failed`] names it.
    #[must_use]
    pub const fn op(&self) -> OpId {
        self.op
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Error::Failed`] when it was refused or could not be carried out (with
    /// [`Status::LinkLost`] it may have been carried out all the same);
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn wait(mut self) -> Result<AtomicResult> {
        let reply = self.port.wait_reply(self.op)?;
        self.answered(reply)
    }

    /// Waits for the answer so long. After [`Error::TimedOut`] it is still under way, and may be waited for again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::TimedOut`].
    pub fn wait_for(&mut self, timeout: impl Into<Timeout>) -> Result<AtomicResult> {
        let deadline = timeout.into().deadline(self.port.backend.now());
        self.wait_by(deadline)?.ok_or(Error::TimedOut)
    }

    /// Whether it has ended. Its answer stays to be waited for. Never waits.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.has_ended()
    }

    /// How it has ended, if it has. Never waits.
    pub fn end(&mut self) -> Option<Result<AtomicResult>> {
        if let Some(end) = self.end {
            return Some(end);
        }
        match self.port.reply(self.op) {
            Some(reply) => Some(self.answered(reply)),
            None => self.port.alive().err().map(Err),
        }
    }

    pub(crate) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }
}

impl Future for PendingAtomic {
    type Output = Result<AtomicResult>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (port, op) = (Arc::clone(&self.port), self.op);
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        let polled = self.watch.poll(&port, context, || {
            port.reply(op).ok_or_else(|| Want::Mark(port.next_end(None)))
        });
        polled.map(|reply| reply.and_then(|reply| self.answered(reply)))
    }
}

impl PendingAtomic {
    /// Waits for the answer until a deadline. Nothing: it is still under way.
    pub(crate) fn wait_by(&mut self, deadline: Nanos) -> Result<Option<AtomicResult>> {
        if let Some(end) = self.end {
            return end.map(Some);
        }
        let reply = if deadline == Nanos::MAX {
            Some(self.port.wait_reply(self.op)?)
        } else {
            self.port.look_until(deadline, || self.port.reply(self.op))?
        };
        match reply {
            Some(reply) => self.answered(reply).map(Some),
            None => Ok(None),
        }
    }

    fn answered(&mut self, reply: Reply) -> Result<AtomicResult> {
        let end = if reply.status == Status::Ok {
            Ok(AtomicResult {
                value: reply.value,
                second: reply.second,
            })
        } else {
            Err(self.port.answered_badly(self.known(reply.status)))
        };
        self.end = Some(end);
        end
    }

    /// Whether it has ended. Its answer stays to be waited for.
    pub(crate) fn has_ended(&self) -> bool {
        if self.end.is_some() {
            return true;
        }
        let mut dropped = Vec::new();
        let mut poster = self.port.poster();
        poster.harvest(&self.port, &mut dropped);
        let ended = poster.replies.has_result(self.op);
        drop(poster);
        drop(dropped);
        ended
    }

    /// It goes on by itself, and its failure is told to no caller.
    pub(crate) fn disregard(mut self) {
        self.disregarded = true;
        let mut poster = self.port.poster();
        if poster.replies.take_result(self.op).is_none() {
            poster.replies.abandon(self.op);
        }
        poster.failures.disregard(self.op);
    }

    const fn known(&self, status: Status) -> Known {
        Known {
            failure: Failure {
                op: self.op,
                status,
                node: self.node,
                port: self.exporter,
                address: self.address,
                others: 0,
            },
            epoch: self.epoch,
            write: false,
        }
    }
}

impl Drop for PendingAtomic {
    fn drop(&mut self) {
        if self.disregarded || self.end.is_some() {
            return;
        }
        let mut poster = self.port.poster();
        match poster.replies.take_result(self.op) {
            None => poster.replies.abandon(self.op),
            Some(reply) if reply.status != Status::Ok => poster.failures.add(self.known(reply.status)),
            Some(_) => {}
        }
    }
}

impl fmt::Debug for PendingAtomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingAtomic({} to node {})", self.op, self.node)
    }
}

impl PortInner {
    /// The record of an operation that has asked for one, if it has come.
    fn reply(&self, op: OpId) -> Option<Reply> {
        let mut dropped = Vec::new();
        let mut poster = self.poster();
        poster.harvest(self, &mut dropped);
        let reply = poster.replies.take_result(op);
        drop(poster);
        // Regions may park when they are dropped: after the lock.
        drop(dropped);
        reply
    }

    /// Waits for the record of an operation that has asked for one. Does not wait for others.
    pub(crate) fn wait_reply(&self, op: OpId) -> Result<Reply> {
        let mut rounds = 0;
        loop {
            let mut dropped = Vec::new();
            let next = {
                let mut poster = self.poster();
                poster.harvest(self, &mut dropped);
                if let Some(reply) = poster.replies.take_result(op) {
                    return Ok(reply);
                }
                poster.replies.fence_for(1)
            };
            drop(dropped);
            self.alive()?;
            if rounds > 0 {
                // Another operation has ended, or a card that is gone reads as all ones.
                self.backend.relax(rounds - 1);
            }
            rounds = rounds.saturating_add(1);
            self.wait_count(Count::Reads, next)?;
        }
    }

    /// The error of an operation that was answered with a status. It has left nothing undone, so it
    /// holds no notification up; but of a lost link the card has also told in the error ring.
    fn answered_badly(&self, known: Known) -> Error {
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        match poster.failures.unwatch(known.failure.op) {
            Err(error) => error,
            Ok(()) if known.failure.status == Status::LinkLost => poster.failures.report_own(known),
            Ok(()) => {
                poster.failures.count += 1;
                Error::Failed(known.failure)
            }
        }
    }
}

impl RemoteSegment {
    /// An atomic operation on the word (or, if it is an extended one, the queue block) at `offset`. Nothing
    /// happens before it is [posted](AtomicOp::post) or [called](AtomicOp::call).
    pub const fn atomic(&self, offset: u64, atomic: Atomic) -> AtomicOp<'_> {
        AtomicOp::new(self, offset, atomic)
    }

    /// A 32-bit word of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::ModeRefused`].
    pub fn word32(&self, offset: u64) -> Result<RemoteWord32> {
        self.check_word(offset, 4)?;
        Ok(RemoteWord32 {
            remote: self.clone(),
            offset,
        })
    }

    /// A 64-bit word of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::ModeRefused`].
    pub fn word64(&self, offset: u64) -> Result<RemoteWord64> {
        self.check_word(offset, 8)?;
        Ok(RemoteWord64 {
            remote: self.clone(),
            offset,
        })
    }

    pub(crate) fn check_word(&self, offset: u64, width: u64) -> Result<()> {
        let remote = self.inner();
        remote.check_transfer(offset, width, Modes::ATOMIC)?;
        if remote.address(offset).0.is_multiple_of(width) {
            Ok(())
        } else {
            Err(Error::Misaligned { offset, width })
        }
    }
}

/// An atomic operation on a word, about to be posted: from [`RemoteWord32`], [`RemoteWord64`] or
/// [`RemoteNumber`](crate::RemoteNumber).
#[derive(Debug)]
#[must_use = "an atomic does nothing until it is posted"]
pub struct WordOp<'a, T> {
    op: AtomicOp<'a>,
    word: PhantomData<T>,
}

impl<'a, T> WordOp<'a, T> {
    pub(crate) const fn new(op: AtomicOp<'a>) -> Self {
        Self {
            op,
            word: PhantomData,
        }
    }
}

impl<T: Word> WordOp<'_, T> {
    /// As [`AtomicOp::ordered`].
    pub const fn ordered(mut self) -> Self {
        self.op.how = self.op.how.union(CommandFlags::ORDERED);
        self
    }

    /// As [`AtomicOp::regardless`].
    pub const fn regardless(mut self) -> Self {
        self.op.how = self.op.how.union(CommandFlags::REGARDLESS);
        self
    }

    /// As [`AtomicOp::post`]; the answer's [value](AtomicResult::value) is the old one of the word.
    ///
    /// # Errors
    /// As [`AtomicOp::post`].
    pub fn post(self) -> Result<PendingAtomic> {
        self.op.post()
    }

    /// As [`AtomicOp::try_post`].
    ///
    /// # Errors
    /// As [`AtomicOp::try_post`].
    pub fn try_post(self) -> Result<PendingAtomic> {
        self.op.try_post()
    }

    /// Hands it to the card and waits for the answer, one round trip. Gives the old value.
    ///
    /// # Errors
    /// As [`AtomicOp::call`].
    pub fn call(self) -> Result<T> {
        self.op.call().map(|result| T::from_answer(result.value))
    }
}

pub(crate) mod sealed {
    /// What a word holds.
    pub trait Word {
        /// From the answer of an operation.
        fn from_answer(value: u64) -> Self;
    }
}

use sealed::Word;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident, $int:ty, $wide:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `fetch_add` and its like take one round trip each. For several at a time, or an operation that is ordered
        /// behind writes, there are operations to be [posted](WordOp::post) or [called](WordOp::call):
        /// `word.add(1).ordered().call()?`.
        #[derive(Clone, Debug)]
        pub struct $name {
            remote: RemoteSegment,
            offset: u64,
        }

        impl $name {
            const fn op(&self, opcode: Opcode, operand: $int, compare: $int) -> WordOp<'_, $int> {
                let atomic = Atomic {
                    opcode,
                    wide: $wide,
                    operand: operand as u64,
                    compare: compare as u64,
                };
                WordOp::new(AtomicOp::new(&self.remote, self.offset, atomic))
            }

            /// An addition, wrapping. Answered by the old value.
            pub const fn add(&self, count: $int) -> WordOp<'_, $int> {
                self.op(Opcode::FetchAdd, count, 0)
            }

            /// A subtraction, wrapping. Answered by the old value.
            pub const fn sub(&self, count: $int) -> WordOp<'_, $int> {
                self.op(Opcode::FetchAdd, count.wrapping_neg(), 0)
            }

            /// A store. Answered by the old value.
            pub const fn exchange(&self, new: $int) -> WordOp<'_, $int> {
                self.op(Opcode::Swap, new, 0)
            }

            /// A store of `new` if the value is `expected`. Answered by the old value.
            pub const fn exchange_if(&self, expected: $int, new: $int) -> WordOp<'_, $int> {
                self.op(Opcode::CompareSwap, new, expected)
            }

            /// A store of 1 if the value is 0. Answered by the old value.
            pub const fn set(&self) -> WordOp<'_, $int> {
                self.op(Opcode::TestAndSet, 1, 0)
            }

            /// Sets it to 1 if it is 0. Says whether it was set already.
            ///
            /// # Errors
            /// As [`AtomicOp::call`].
            pub fn test_and_set(&self) -> Result<bool> {
                Ok(self.set().call()? != 0)
            }

            /// Adds, wrapping. Gives the old value.
            ///
            /// # Errors
            /// As [`AtomicOp::call`].
            pub fn fetch_add(&self, count: $int) -> Result<$int> {
                self.add(count).call()
            }

            /// Subtracts, wrapping. Gives the old value.
            ///
            /// # Errors
            /// As [`AtomicOp::call`].
            pub fn fetch_sub(&self, count: $int) -> Result<$int> {
                self.sub(count).call()
            }

            /// Stores a value. Gives the old one.
            ///
            /// # Errors
            /// As [`AtomicOp::call`].
            pub fn swap(&self, new: $int) -> Result<$int> {
                self.exchange(new).call()
            }

            /// Stores `new` if the value is `expected`. Gives the old value.
            ///
            /// # Errors
            /// As [`AtomicOp::call`].
            pub fn compare_swap(&self, expected: $int, new: $int) -> Result<$int> {
                self.exchange_if(expected, new).call()
            }
        }
    )*};
}

words! {
    /// An aligned 32-bit word of another port's memory.
    RemoteWord32, u32, false;
    /// An aligned 64-bit word of another port's memory.
    RemoteWord64, u64, true;
}

/// Fills in what the queue knows, and posts.
impl PortInner {
    fn post_atomic(&self, mut command: Command, at_once: bool) -> Result<crate::posting::Posted> {
        let mut dropped = Vec::new();
        let (mut poster, slot) = self.take_slot(self.poster(), &mut dropped, at_once)?;
        command.reply = slot;
        command.op = poster.next_op();
        command.epoch = poster.failures.epoch(command.node);
        poster.queue.post(&self.block, &command.encode(), &[]);
        poster.round_trips += 1;
        poster.await_reply(&command, command.op, None);
        poster.stats.atomics += 1;
        let posted = crate::posting::Posted {
            op: command.op,
            epoch: command.epoch,
            number: poster.replies.last_number(),
        };
        drop(poster);
        self.ring();
        Ok(posted)
    }
}
