//! Operations that end with an answer: reads and remote flushes, one reply slot each.
//!
//! Reads end in any order, so a count of those done says nothing about a particular one once
//! several threads read through one port. So every read asks for a reply record, and the shadow
//! counter `READS_DONE` only says when it is worth looking at them again.

use crate::error::Failure;
use crate::failure::Known;
use crate::region::Region;
use netvm_abi::port_area::{REPLY_SLOTS, Reply};
use netvm_abi::words::SharedWords;
use netvm_abi::{Epoch, NodeId, OpId, PortId, ReplySlot, Status, VirtAddr};

/// What waits in a slot.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The operation number of this message: unique among those in flight.
    pub(crate) op: OpId,
    /// The call that it is part of.
    pub(crate) call: OpId,
    /// Its place in the order of such messages of the port.
    pub(crate) number: u64,
    /// Where it went.
    pub(crate) node: NodeId,
    pub(crate) port: PortId,
    pub(crate) address: VirtAddr,
    pub(crate) epoch: Epoch,
    /// Whether a waiter collects the record itself (flush), not only its status (read).
    pub(crate) wanted: bool,
    /// Keeps the local memory of a read alive.
    pub(crate) hold: Option<Region>,
}

/// The reply slots of a port.
#[derive(Debug)]
pub(crate) struct Replies {
    /// Bit per busy slot.
    busy: u64,
    slots: [Option<Waiting>; REPLY_SLOTS as usize],
    /// Messages posted so far.
    posted: u64,
    /// Messages found ended so far.
    ended: u32,
    /// Records that their waiters will collect.
    results: Vec<Reply>,
}

const _: () = assert!(REPLY_SLOTS as u32 == u64::BITS);

impl Replies {
    /// Of a port whose counts begin at `count`.
    pub(crate) const fn starting_at(count: u32) -> Self {
        Self {
            busy: 0,
            slots: [const { None }; REPLY_SLOTS as usize],
            posted: 0,
            ended: count,
            results: Vec::new(),
        }
    }

    /// A free slot, if there is one.
    #[inline]
    pub(crate) const fn free(&self) -> Option<ReplySlot> {
        if self.busy == u64::MAX {
            return None;
        }
        Some(ReplySlot(self.busy.trailing_ones() as u16))
    }

    /// How many are free.
    pub(crate) const fn places(&self) -> u32 {
        self.busy.count_zeros()
    }

    /// The number that the next message gets.
    pub(crate) const fn next_number(&self) -> u64 {
        self.posted + 1
    }

    /// The number of the last message posted.
    pub(crate) const fn last_number(&self) -> u64 {
        self.posted
    }

    /// A message has been posted with this slot.
    pub(crate) fn insert(&mut self, slot: ReplySlot, waiting: Waiting) {
        self.posted = waiting.number;
        if let Some(place) = self.slots.get_mut(slot.index()) {
            *place = Some(waiting);
            self.busy |= 1 << slot.0;
        }
    }

    /// Looks at every busy slot. Gives failed reads to `failed` and regions that are no longer
    /// needed to `dropped`, which the caller lets go of outside of its lock.
    pub(crate) fn harvest<W: SharedWords>(
        &mut self,
        area: &W,
        failed: &mut Vec<Known>,
        dropped: &mut Vec<Region>,
    ) {
        let mut busy = self.busy;
        while busy != 0 {
            let slot = busy.trailing_zeros() as u16;
            busy &= busy - 1;
            let Some(place) = self.slots.get_mut(usize::from(slot)) else {
                continue;
            };
            let Some(waiting) = place else { continue };
            let Some(reply) = Reply::load(area, slot, waiting.op) else {
                continue;
            };
            if let Some(waiting) = place.take() {
                if waiting.wanted {
                    self.results.push(reply);
                } else if reply.status != Status::Ok {
                    failed.push(Known {
                        failure: Failure {
                            op: waiting.call,
                            status: reply.status,
                            node: waiting.node,
                            port: waiting.port,
                            address: waiting.address,
                            others: 0,
                        },
                        epoch: waiting.epoch,
                        write: false,
                    });
                }
                dropped.extend(waiting.hold);
            }
            self.busy &= !(1 << slot);
            self.ended = self.ended.wrapping_add(1);
        }
    }

    /// Whether any message has not ended.
    pub(crate) const fn any_outstanding(&self) -> bool {
        self.busy != 0
    }

    /// How many messages up to number `last` have not ended.
    pub(crate) fn outstanding(&self, last: u64) -> u32 {
        self.count(last, |_| true)
    }

    /// The same of one call.
    pub(crate) fn outstanding_of(&self, call: OpId, last: u64) -> u32 {
        self.count(last, |waiting| waiting.call == call)
    }

    fn count(&self, last: u64, counts: impl Fn(&Waiting) -> bool) -> u32 {
        let early = |waiting: &Waiting| waiting.number <= last;
        let waiting = self.slots.iter().flatten();
        waiting
            .filter(|waiting| early(waiting) && counts(waiting))
            .count() as u32
    }

    /// The count of ended messages at which it is worth looking again for `outstanding` of them:
    /// before that they cannot all have ended.
    pub(crate) const fn fence_for(&self, outstanding: u32) -> u32 {
        self.ended.wrapping_add(outstanding)
    }

    /// Whether the record of an operation that wanted it has come.
    pub(crate) fn has_result(&self, op: OpId) -> bool {
        self.results.iter().any(|reply| reply.op == op)
    }

    /// The record of an operation that wanted it, once it has ended.
    pub(crate) fn take_result(&mut self, op: OpId) -> Option<Reply> {
        let at = self.results.iter().position(|reply| reply.op == op)?;
        Some(self.results.swap_remove(at))
    }

    /// The record of this operation will not be collected: a failure of it is reported as others are.
    pub(crate) fn abandon(&mut self, op: OpId) {
        for waiting in self.slots.iter_mut().flatten() {
            if waiting.op == op {
                waiting.wanted = false;
            }
        }
    }

    /// Forgets everything: the port is closed. Gives back what was held.
    pub(crate) fn clear(&mut self, dropped: &mut Vec<Region>) {
        for place in &mut self.slots {
            dropped.extend(place.take().and_then(|waiting| waiting.hold));
        }
    }
}
