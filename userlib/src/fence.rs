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
use netvm_abi::bar::port::{READ_FENCE, WRITE_FENCE};
use netvm_abi::port_area::{READS_DONE, Reply, WRITES_DONE};
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

/// What the fence words hold.
#[derive(Debug)]
pub(crate) struct Fences {
    write: u32,
    read: u32,
}

impl Fences {
    /// Of a port whose counts begin at `count`.
    pub(crate) const fn starting_at(count: u32) -> Self {
        Self {
            write: count,
            read: count,
        }
    }
}

impl PortInner {
    /// Asks the card to tell when the count that `counter` shadows comes to `target`.
    fn ask(&self, fence: WordIndex, counter: WordIndex, target: u32) {
        let mut fences = self.fences.lock();
        if !self.has_words() {
            return;
        }
        let asked = if fence == WRITE_FENCE {
            &mut fences.write
        } else {
            &mut fences.read
        };
        let done = self.area.load_acquire(counter);
        if reached(done, *asked) || !reached(target, *asked) {
            *asked = target;
            self.block.store_release(fence, target);
            drop(fences);
            self.ring();
        }
    }

    /// From now on nothing here changes the port's words: as [`leave_inbox`](Self::leave_inbox).
    pub(crate) fn leave_fences(&self) {
        drop(self.fences.lock());
    }

    /// Waits until the count at `counter` comes to `target`.
    pub(crate) fn wait_count(&self, fence: WordIndex, counter: WordIndex, target: u32) -> Result<()> {
        let mut spins = 0;
        while !reached(self.area.load_acquire(counter), target) {
            self.alive()?;
            self.ask(fence, counter, target);
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
            self.wait_count(WRITE_FENCE, WRITES_DONE, number as u32)?;
        }
        // One at a time, because dropping a region may park.
        loop {
            let unneeded = self.poster().pop_hold(number);
            if unneeded.is_none() {
                return Ok(());
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
            self.wait_count(READ_FENCE, READS_DONE, next)?;
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
        let posted = self.post_flush(node, Until::Landed)?;
        let reply = self.await_reply(&posted, |poster, reply| {
            poster.failures.stream(node).settled(before);
            // The error records first: they say more.
            poster.failures.drain(&self.area, &self.block);
            let refused = OpId((reply.value >> 32) as u32);
            poster.failures.flushed(node, posted.epoch, refused);
        })?;
        Ok((posted, reply))
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
            self.wait_count(READ_FENCE, READS_DONE, next)?;
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
        let posted = self.post_flush(node, Until::Received)?;
        let reply = self.await_reply(&posted, |_, _| ())?;
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        // What has failed says more than that this wait has.
        poster.failures.take(Some(node))?;
        if reply.status == Status::Ok {
            return Ok(());
        }
        Err(poster
            .failures
            .report_flush(unanswered(node, &posted, reply.status, posted.op)))
    }

    /// As [`settle`](Self::settle), for a caller that [tells](Self::tell) later, or leaves it to the next call.
    pub(crate) fn land(&self, node: NodeId) -> Result<Landed> {
        let (posted, reply) = self.await_flush(node)?;
        if reply.status == Status::Ok {
            return Ok(Landed { node, lost: None });
        }
        let mut poster = self.poster();
        poster.failures.drain(&self.area, &self.block);
        // The failing operation, or the flush itself if it got no answer.
        let op = match reply.value as u32 {
            0 => posted.op,
            op => OpId(op),
        };
        let known = poster.failures.known(op);
        let known = known.unwrap_or_else(|| unanswered(node, &posted, reply.status, op));
        let lost = Some(known);
        Ok(Landed { node, lost })
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
