//! Waiting until operations are done (thesis 5.1, 5.3.1; remote completion goes beyond the thesis).
//!
//! The card refreshes a shadow counter every 32 completions, and exactly when it passes the count in
//! the port's fence word. Several threads may fence at once but there is one word: it holds the lowest count that a
//! thread still waits for. A thread that waits for a higher count checks in each round whether the word has been
//! passed, and then stores its own count there. So no thread waits for a later command than its own.

use crate::error::{Error, Failure, Result};
use crate::failure::Known;
use crate::port::PortInner;
use crate::poster::{Poster, reached};
use crate::posting::Posted;
use crate::replies::Replies;
use netvm_abi::bar::port::{READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::port_area::{READS_DONE, Reply, TAKEN, WRITES_DONE};
use netvm_abi::words::SharedWords;
use netvm_abi::{NodeId, OpId, PortId, Status, VirtAddr, WordIndex};

/// How far something that was sent has to have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The other node's card has it.
    Received,
    /// It lies in memory there.
    Landed,
}

/// What the card counts for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Commands taken out of the queue.
    Taken,
    /// Write messages done at this node.
    Writes,
    /// Reads, flushes and atomics that have ended.
    Reads,
}

impl Count {
    /// Where it is asked for, and where its shadow is.
    const fn words(self) -> (WordIndex, WordIndex) {
        match self {
            Self::Taken => (TAKEN_FENCE, TAKEN),
            Self::Writes => (WRITE_FENCE, WRITES_DONE),
            Self::Reads => (READ_FENCE, READS_DONE),
        }
    }
}

/// A count to come to, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) count: Count,
    pub(crate) at: u32,
}

/// What the fence words hold.
#[derive(Debug)]
pub(crate) struct Fences {
    taken: u32,
    writes: u32,
    reads: u32,
}

impl Fences {
    /// Of a port whose counts begin at `count`.
    pub(crate) const fn starting_at(count: u32) -> Self {
        Self {
            taken: count,
            writes: count,
            reads: count,
        }
    }
}

impl Mark {
    pub(crate) const fn is_of_writes(self) -> bool {
        matches!(self.count, Count::Writes)
    }

    /// Whether it is come to before another one of the same count.
    pub(crate) const fn is_before(self, other: Self) -> bool {
        !reached(self.at, other.at)
    }
}

impl PortInner {
    /// Asks the card to tell when a count comes to a mark.
    pub(crate) fn ask(&self, mark: Mark) {
        let (fence, _) = mark.count.words();
        let mut fences = self.fences.lock();
        if !self.has_words() {
            return;
        }
        let asked = match mark.count {
            Count::Taken => &mut fences.taken,
            Count::Writes => &mut fences.writes,
            Count::Reads => &mut fences.reads,
        };
        let passed = self.has_come_to(Mark { at: *asked, ..mark });
        if passed || !reached(mark.at, *asked) {
            *asked = mark.at;
            self.block.store_release(fence, mark.at);
            drop(fences);
            self.ring();
        }
    }

    /// Whether a count has come to a mark, as far as the card has told. A card that is gone reads as all ones: its death is
    /// told by the driver.
    pub(crate) fn has_come_to(&self, mark: Mark) -> bool {
        let (_, shadow) = mark.count.words();
        reached(self.area.load_acquire(shadow), mark.at)
    }

    /// From now on nothing here changes the port's words: as [`leave_inbox`](Self::leave_inbox).
    pub(crate) fn leave_fences(&self) {
        drop(self.fences.lock());
    }

    /// Waits until a count comes to a mark.
    pub(crate) fn wait_count(&self, count: Count, at: u32) -> Result<()> {
        let mark = Mark { count, at };
        let mut spins = 0;
        while !self.has_come_to(mark) {
            self.alive()?;
            self.ask(mark);
            self.backend.relax(spins);
            spins = spins.saturating_add(1);
        }
        Ok(())
    }

    /// Waits until write message `number` and all before it are done at this node: their source
    /// memory may be used again.
    pub(crate) fn wait_writes(&self, number: u64) -> Result<()> {
        // What may be long done is judged by its whole number. What is not done is among the latest: so the card's count
        // has not come to it modulo 2^32 either.
        if self.poster().writes_done(&self.area) < number {
            self.wait_count(Count::Writes, number as u32)?;
        }
        self.let_go(number);
        Ok(())
    }

    /// Lets go of the regions of the writes up to this number, which are done.
    pub(crate) fn let_go(&self, number: u64) {
        // One at a time, because dropping a region may park.
        loop {
            let unneeded = self.poster().pop_hold(number);
            if unneeded.is_none() {
                return;
            }
        }
    }

    /// Waits until read message `number` and all before it have ended.
    pub(crate) fn wait_reads(&self, number: u64) -> Result<()> {
        self.wait_ended(|replies| replies.outstanding(number))
    }

    /// Waits until those messages of a call that are among the first `number` have ended. A read to a node that does
    /// not answer holds up no other.
    pub(crate) fn wait_call(&self, call: OpId, number: u64) -> Result<()> {
        self.wait_ended(|replies| replies.outstanding_of(call, number))
    }

    /// Whether the messages of a call that are among the first `number` have ended.
    pub(crate) fn has_ended(&self, call: OpId, number: u64) -> bool {
        let mut dropped = Vec::new();
        let mut poster = self.poster();
        poster.harvest(self, &mut dropped);
        let ended = poster.replies.outstanding_of(call, number) == 0;
        drop(poster);
        // Regions may park when they are dropped: after the lock.
        drop(dropped);
        ended
    }

    /// Waits until none of certain messages is outstanding.
    fn wait_ended(&self, outstanding: impl Fn(&Replies) -> u32) -> Result<()> {
        let mut rounds = 0;
        loop {
            let mut dropped = Vec::new();
            let next = {
                let mut poster = self.poster();
                poster.harvest(self, &mut dropped);
                match outstanding(&poster.replies) {
                    0 => None,
                    outstanding => Some(poster.replies.fence_for(outstanding)),
                }
            };
            drop(dropped);
            let Some(next) = next else { return Ok(()) };
            if rounds > 0 {
                // Counted, but its record is not here: a card that is gone reads as all ones, which
                // is a count that may look reached. Its death is told by the driver, soon.
                self.alive()?;
                self.backend.relax(rounds - 1);
            }
            rounds = rounds.saturating_add(1);
            self.wait_count(Count::Reads, next)?;
        }
    }

    /// Reports failures of earlier operations to `node`, or to any.
    #[cold]
    fn surface_slow(&self, poster: &mut Poster, node: Option<NodeId>) -> Result<()> {
        if poster.failures.is_closed() {
            return Err(Error::PortClosed);
        }
        poster.failures.drain(&self.area, &self.block);
        poster.failures.take(node)
    }

    /// As [`surface_slow`](Self::surface_slow), where there is rarely anything.
    #[inline]
    pub(crate) fn surface(&self, poster: &mut Poster, node: NodeId) -> Result<()> {
        if poster.failures.quiet(&self.area) {
            return Ok(());
        }
        self.surface_slow(poster, Some(node))
    }

    /// As [`hear`](Self::hear), without reporting: see [`Failures::untold`](crate::failure::Failures::untold).
    pub(crate) fn untold(&self, node: NodeId) -> (Vec<Failure>, bool) {
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        poster.failures.untold(node)
    }

    /// Reports failures of earlier operations to `node`, if there are any.
    pub(crate) fn hear(&self, node: NodeId) -> Result<()> {
        self.surface(&mut self.poster(), node)
    }

    /// The end of a fenced call: its own failure, else another one to `others`.
    pub(crate) fn finish(&self, op: OpId, others: Option<NodeId>) -> Result<()> {
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        let Some(node) = others else {
            return poster.failures.unwatch_own(op);
        };
        poster.failures.unwatch(op)?;
        poster.failures.take(Some(node))
    }

    /// Waits for all reads, all writes, or both, then reports what failed meanwhile.
    pub(crate) fn flush(&self, reads: bool, writes: bool) -> Result<()> {
        let (last_read, last_write) = {
            let poster = self.poster();
            (poster.replies.last_number(), poster.writes())
        };
        if writes {
            self.wait_writes(last_write)?;
        }
        if reads {
            self.wait_reads(last_read)?;
        }
        self.surface_slow(&mut self.poster(), None)
    }

    /// Posts a remote flush and waits for its record.
    pub(crate) fn await_flush(&self, node: NodeId) -> Result<(Posted, Reply)> {
        let before = self.poster().queue.commands();
        let posted = self.post_flush(node, Until::Landed, false)?;
        let reply = self.await_reply(&posted, |poster, reply| {
            self.flush_answered(poster, node, &posted, before, reply);
        })?;
        Ok((posted, reply))
    }

    /// The record of a remote flush has come, before which the port had posted so many commands.
    pub(crate) fn flush_answered(
        &self,
        poster: &mut Poster,
        node: NodeId,
        flush: &Posted,
        before: u64,
        reply: &Reply,
    ) {
        poster.failures.stream(node).settled(before);
        // The error records first: they say more.
        poster.failures.drain(&self.area, &self.block);
        let refused = OpId((reply.value >> 32) as u32);
        poster.failures.flushed(node, flush.epoch, refused);
    }

    /// How a flush has ended that its caller does not wait for, if it has. The port had posted so many commands before it.
    pub(crate) fn flush_end(
        &self,
        node: NodeId,
        flush: &Posted,
        until: Until,
        before: u64,
    ) -> Option<Result<()>> {
        let mut dropped = Vec::new();
        let mut poster = self.poster();
        poster.harvest(self, &mut dropped);
        let reply = poster.replies.take_result(flush.op);
        if let (Some(reply), Until::Landed) = (&reply, until) {
            self.flush_answered(&mut poster, node, flush, before, reply);
        }
        drop(poster);
        drop(dropped);
        let Some(reply) = reply else {
            return self.alive().err().map(Err);
        };
        Some(match until {
            Until::Received => self.received(node, flush, &reply),
            Until::Landed => self.tell(self.landed(node, flush, &reply)),
        })
    }

    /// Waits for the record of a flush. `take` sees it in the same step in which the poster lets go of it.
    fn await_reply(&self, posted: &Posted, take: impl Fn(&mut Poster, &Reply)) -> Result<Reply> {
        let mut rounds = 0;
        loop {
            let mut dropped = Vec::new();
            let (reply, next) = {
                let mut poster = self.poster();
                poster.harvest(self, &mut dropped);
                let reply = poster.replies.take_result(posted.op);
                if let Some(reply) = &reply {
                    take(&mut poster, reply);
                }
                // Any end is worth another look. Reads and flushes end in any order, and one to a node that does not
                // answer must not hold this one up.
                (reply, poster.replies.fence_for(1))
            };
            drop(dropped);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            if rounds > 0 {
                // As in `wait_reads`: counted, and its record is not here.
                self.alive()?;
                self.backend.relax(rounds - 1);
            }
            rounds = rounds.saturating_add(1);
            self.wait_count(Count::Reads, next)?;
        }
    }

    /// Waits until everything sent to `node` has landed, or failed. Reports no failure: failures stay for the next call
    /// that reports them.
    pub(crate) fn settle(&self, node: NodeId) -> Result<()> {
        self.await_flush(node).map(drop)
    }

    pub(crate) fn flush_remote(&self, node: NodeId) -> Result<()> {
        self.check_node(node)?;
        let landed = self.land(node)?;
        self.tell(landed)
    }

    /// Waits until everything sent to `node` has been received there, or has failed, and reports what has failed so far.
    pub(crate) fn flush_received(&self, node: NodeId) -> Result<()> {
        self.check_node(node)?;
        let posted = self.post_flush(node, Until::Received, false)?;
        let reply = self.await_reply(&posted, |_, _| ())?;
        self.received(node, &posted, &reply)
    }

    /// Reports what has failed so far, or that the flush itself has.
    fn received(&self, node: NodeId, flush: &Posted, reply: &Reply) -> Result<()> {
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        // What has failed says more than that this wait has.
        poster.failures.take(Some(node))?;
        if reply.status == Status::Ok {
            return Ok(());
        }
        Err(poster
            .failures
            .report_flush(unanswered(node, flush, reply.status, flush.op)))
    }

    /// As [`settle`](Self::settle), for a caller that [tells](Self::tell) later, or leaves it to the next call.
    pub(crate) fn land(&self, node: NodeId) -> Result<Landed> {
        let (posted, reply) = self.await_flush(node)?;
        Ok(self.landed(node, &posted, &reply))
    }

    /// What the record of a remote flush says.
    fn landed(&self, node: NodeId, flush: &Posted, reply: &Reply) -> Landed {
        if reply.status == Status::Ok {
            return Landed { node, lost: None };
        }
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        // The failing operation, or the flush itself if it got no answer.
        let op = match reply.value as u32 {
            0 => flush.op,
            op => OpId(op),
        };
        let known = poster.failures.known(op);
        let known = known.unwrap_or_else(|| unanswered(node, flush, reply.status, op));
        let lost = Some(known);
        Landed { node, lost }
    }

    /// Reports what a flush has found, or else what is known of failures to its node.
    pub(crate) fn tell(&self, landed: Landed) -> Result<()> {
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        match landed.lost {
            None => poster.failures.take(Some(landed.node)),
            Some(known) => Err(poster.failures.report_flush(known)),
        }
    }

    /// The same of several flushes: the first failure is reported, the others are left for the next calls to their nodes.
    pub(crate) fn tell_all(&self, flushes: Vec<Landed>) -> Result<()> {
        let mut told = Ok(());
        for landed in flushes {
            if told.is_ok() {
                told = self.tell(landed);
            } else if let Some(known) = landed.lost {
                self.poster().failures.add(known);
            }
        }
        told
    }
}

/// What a flush says of itself, or of an operation before it, where no record says more.
const fn unanswered(node: NodeId, flush: &Posted, status: Status, op: OpId) -> Known {
    Known {
        failure: Failure {
            op,
            status,
            node,
            port: PortId(0),
            address: VirtAddr(0),
            others: 0,
        },
        epoch: flush.epoch,
        write: op.0 != flush.op.0,
    }
}

/// Everything sent to a node before a flush has landed, or failed.
#[derive(Clone, Copy, Debug)]
#[must_use = "what has failed is to be told"]
pub(crate) struct Landed {
    node: NodeId,
    /// What did not, if the flush has found something.
    lost: Option<Known>,
}
