//! An endpoint without its functions: links, and how what is called leaves.
//!
//! Functions run beside this, with a [`Context`](crate::Context) of it: from there calls are packed or queued, and nothing is
//! posted, so a function never waits.

use crate::config::{Aggregation, CallsConfig, WhenFull};
use crate::error::{End, Ended, Error, Result};
use crate::function::Id;
use crate::group::Groups;
use crate::layout::decode_table;
use crate::link::{Address, Link, Peer, Phase, Queued, Slot};
use crate::notice::{Synchronizer, Waiter};
use crate::record::{self, Body, Where};
use crate::ring::HEAD;
use netvm::{Nanos, NotificationQueue, Port, SharedReceiver};
use std::collections::VecDeque;

/// Failures of calls that are kept for the program.
const KEPT: usize = 1024;

/// A call that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// The link; nothing of a broadcast.
    pub peer: Option<Peer>,
    /// The function's name.
    pub function: &'static str,
    /// The call's number: so many calls were made over this link before.
    pub call: u64,
    /// Why.
    pub why: Ended,
}

/// What an endpoint has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallsStats {
    /// Calls packed or queued here.
    pub called: u64,
    /// Functions run here.
    pub ran: u64,
    /// Functions that panicked here.
    pub panics: u64,
    /// Batches written.
    pub batches: u64,
    /// Batches received.
    pub received: u64,
    /// Times that a receiver had no place for a batch.
    pub pushed_back: u64,
    /// The most chunks that one link has used.
    pub most_chunks: u32,
    /// Looks whether another side is still there, and resynchronizations.
    pub looks: u64,
    /// Greetings refused: of another version, or for which there was no room.
    pub refused: u64,
    /// Failures of calls that were not kept, because the program took none.
    pub failures_lost: u64,
}

pub(crate) struct Core {
    pub(crate) config: CallsConfig,
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: Vec<u32>,
    /// Links over which something may have come.
    pub(crate) dirty: Vec<u32>,
    /// Links that have something to send.
    pub(crate) unsent: Vec<u32>,
    pub(crate) door: SharedReceiver,
    pub(crate) name: String,
    pub(crate) queue: NotificationQueue,
    pub(crate) table: Vec<u8>,
    pub(crate) last_serial: u64,
    pub(crate) failures: VecDeque<CallFailure>,
    pub(crate) accepted: VecDeque<Peer>,
    pub(crate) ended: VecDeque<(Peer, End)>,
    pub(crate) groups: Groups,
    pub(crate) stats: CallsStats,
    /// When to look after all links.
    pub(crate) next_tick: Nanos,
    /// A function runs: nothing may be posted.
    pub(crate) in_function: bool,
    pub(crate) scratch: Vec<u8>,
    // Last: the others end before it.
    pub(crate) port: Port,
}

/// What a call is, but for its argument's bytes.
pub(crate) struct Call<'a> {
    pub(crate) id: Id,
    pub(crate) name: &'static str,
    pub(crate) body: Body<'a>,
    pub(crate) waiter: Option<Waiter>,
    pub(crate) sent: Option<Synchronizer>,
    pub(crate) when_full: WhenFull,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It is packed, or has left.
    Packed,
    /// It is queued.
    Queued,
}

impl Core {
    /// This endpoint.
    pub(crate) fn here(&self) -> Address {
        Address {
            node: self.port.node().id(),
            port: self.port.id(),
        }
    }

    /// A link to an endpoint, if there is one.
    pub(crate) fn link_to(&self, to: Address) -> Option<Peer> {
        let at = self.slots.iter().position(|slot| {
            let link = slot.link.as_deref();
            link.is_some_and(|link| link.to == to && link.broken.is_none())
        })?;
        Some(self.peer(at))
    }

    /// What identifies the function in a slot here.
    pub(crate) fn table_id(&self, slot: u16) -> Option<Id> {
        decode_table(&self.table).nth(slot.into())
    }

    /// The link of a peer.
    #[inline]
    pub(crate) fn find(&self, peer: Peer) -> Result<usize> {
        let at = peer.index as usize;
        match self.slots.get(at) {
            Some(Slot {
                life, link: Some(_), ..
            }) if *life == peer.life => Ok(at),
            Some(slot) if slot.life == peer.life.wrapping_add(1) => Err(Error::Ended(slot.last)),
            _ => Err(Error::Ended(End::Closed)),
        }
    }

    #[inline]
    pub(crate) fn link(&mut self, at: usize) -> Option<&mut Link> {
        self.slots.get_mut(at)?.link.as_deref_mut()
    }

    pub(crate) fn peer(&self, at: usize) -> Peer {
        Peer {
            index: at as u32,
            life: self.slots.get(at).map_or(0, |slot| slot.life),
        }
    }

    /// Makes a call whose argument `put` appends.
    #[inline]
    pub(crate) fn call(
        &mut self,
        at: usize,
        call: Call<'_>,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Sending> {
        let most_open = self.config.most_open;
        let Some(link) = self.link(at) else {
            return Err(Error::Ended(End::Closed));
        };
        if let Some(end) = link.broken {
            return Err(Error::Ended(end));
        }
        if call.waiter.is_none() && call.sent.is_none() {
            let kind = call.body.kind();
            let sending = self.place(at, call, kind, put)?;
            self.stats.called += 1;
            return Ok(sending);
        }
        let returns = matches!(call.waiter, Some(Waiter::Reply(_) | Waiter::Passed(_)));
        if returns && link.out.unanswered >= most_open {
            return Err(Error::Full);
        }
        let kind = call.body.kind() | call.waiter.as_ref().map_or(0, Waiter::kind);
        let consumed = match &call.waiter {
            Some(Waiter::Consumed(counter)) => Some(counter.clone()),
            _ => None,
        };
        let counters = [consumed, call.sent.clone()];
        // Before it can be over.
        counters.iter().flatten().for_each(Synchronizer::add);
        let sending = self.place(at, call, kind, put);
        if sending.is_ok() {
            self.stats.called += 1;
        } else {
            counters.iter().flatten().for_each(Synchronizer::take_back);
        }
        if returns
            && sending.is_ok()
            && let Some(link) = self.link(at)
        {
            link.out.unanswered += 1;
        }
        sending
    }

    /// Packs or queues a call.
    #[inline]
    fn place(
        &mut self,
        at: usize,
        call: Call<'_>,
        kind: u8,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Sending> {
        let Some(link) = self.link(at) else {
            return Err(Error::Ended(End::Closed));
        };
        let body = call.body;
        let put = |to: &mut Vec<u8>| body.encode_with(to, put);
        match &mut link.phase {
            Phase::Ready(remote) if link.out.queue.is_empty() => {
                let slot = remote.functions.find(call.id, call.name, link.to)?;
                let limit = remote.description.shape.longest();
                let start = link.out.open.len();
                record::append(&mut link.out.open, slot, kind, record::status::DONE, put);
                let len = link.out.open.len().saturating_sub(start) as u64;
                if len > limit {
                    link.out.open.truncate(start);
                    return Err(Error::TooLong { len, limit });
                }
                self.settle(at, start, true, call.waiter, call.sent, call.when_full)
            }
            Phase::Ready(remote) => {
                let slot = remote.functions.find(call.id, call.name, link.to)?;
                let limit = remote.description.shape.longest();
                let mut record = Vec::new();
                record::append(&mut record, slot, kind, record::status::DONE, put);
                let len = record.len() as u64;
                if len > limit {
                    return Err(Error::TooLong { len, limit });
                }
                self.enqueue(at, record, None, true, call.waiter, call.sent, call.when_full)?;
                Ok(Sending::Queued)
            }
            // What the other side offers, and how much it takes at once, is not known yet.
            _ => {
                let mut record = Vec::new();
                record::append(&mut record, 0, kind, record::status::DONE, put);
                let unresolved = Some((call.id, call.name));
                self.enqueue(
                    at,
                    record,
                    unresolved,
                    true,
                    call.waiter,
                    call.sent,
                    call.when_full,
                )?;
                Ok(Sending::Queued)
            }
        }
    }

    /// Sends an answer. There is no limit to those, but the one that their caller keeps to.
    pub(crate) fn answer(&mut self, at: usize, number: u64, slot: u16, status: u8, result: &[u8]) {
        let most = u64::from(self.config.most_open).saturating_mul(64 << 10);
        let Some(link) = self.link(at) else { return };
        let limit = match &link.phase {
            Phase::Ready(remote) => remote.description.shape.longest(),
            _ => u64::MAX,
        };
        let (status, result) = if (result.len() + record::HEAD + 8) as u64 > limit {
            (record::status::TOO_LONG, &[][..])
        } else {
            (status, result)
        };
        let put = |to: &mut Vec<u8>| {
            to.extend_from_slice(&number.to_le_bytes());
            to.extend_from_slice(result);
        };
        if link.out.queued_bytes > most {
            // It asks for more than it takes: no honest caller does.
            link.broken = Some(End::Malformed);
            return;
        }
        if link.is_ready() && link.out.queue.is_empty() {
            let start = link.out.open.len();
            record::append(&mut link.out.open, slot, record::kind::ANSWER, status, put);
            let _ = self.settle(at, start, false, None, None, WhenFull::Queue);
        } else {
            let mut record = Vec::new();
            record::append(&mut record, slot, record::kind::ANSWER, status, put);
            let _ = self.enqueue(at, record, None, false, None, None, WhenFull::Queue);
        }
    }

    /// Decides about the record that was appended to the open batch, from `start` on.
    #[inline]
    fn settle(
        &mut self,
        at: usize,
        start: usize,
        is_call: bool,
        waiter: Option<Waiter>,
        sent: Option<Synchronizer>,
        when_full: WhenFull,
    ) -> Result<Sending> {
        let (aggregation, in_function) = (self.config.aggregation, self.in_function);
        let Some(link) = self.link(at) else {
            return Err(Error::Ended(End::Closed));
        };
        let out = &mut link.out;
        let len = out.open.len();
        // In a function nothing can leave, so a batch grows until it would not fit a chunk.
        let longest = match &link.phase {
            Phase::Ready(remote) => (remote.description.shape.longest() + HEAD) as usize,
            _ => 0,
        };
        let most = match aggregation {
            _ if in_function => longest,
            Aggregation::None => 0,
            Aggregation::Packed { bytes, .. } | Aggregation::Overflow { bytes } => {
                longest.min(bytes as usize)
            }
        };
        if out.records == 0 || len <= most {
            out.packed(is_call, waiter, sent);
            self.list(at);
            let leaves = match aggregation {
                Aggregation::None | Aggregation::Overflow { .. } => true,
                Aggregation::Packed { .. } => len >= most,
            };
            if leaves
                && !in_function
                && !self.flush(at)?
                && aggregation == Aggregation::None
                && is_call
                && when_full == WhenFull::Fail
            {
                return self.take_back(at, start);
            }
            return Ok(Sending::Packed);
        }
        // It does not fit behind what is there: that leaves first, or it waits behind it.
        let tail = out.open.split_off(start);
        if !in_function && self.flush(at)? {
            let Some(link) = self.link(at) else {
                return Err(Error::Ended(End::Closed));
            };
            let start = link.out.open.len();
            link.out.open.extend_from_slice(&tail);
            return self.settle(at, start, is_call, waiter, sent, when_full);
        }
        self.enqueue(at, tail, None, is_call, waiter, sent, when_full)?;
        Ok(Sending::Queued)
    }

    /// Takes the only call of the open batch out of it again: it has not left, and is not to wait.
    fn take_back(&mut self, at: usize, start: usize) -> Result<Sending> {
        if let Some(link) = self.link(at) {
            let out = &mut link.out;
            out.open.truncate(start);
            out.records = 0;
            out.calls = out.calls.saturating_sub(1);
            let number = out.calls;
            while out.awaiting.back().is_some_and(|(of, _)| *of == number) {
                out.awaiting.pop_back();
            }
            while out.counted.back().is_some_and(|(of, _)| *of == number) {
                out.counted.pop_back();
            }
            out.sent.clear();
        }
        Err(Error::Full)
    }

    #[expect(clippy::too_many_arguments, reason = "what a record is, once")]
    fn enqueue(
        &mut self,
        at: usize,
        record: Vec<u8>,
        unresolved: Option<(Id, &'static str)>,
        is_call: bool,
        waiter: Option<Waiter>,
        sent: Option<Synchronizer>,
        when_full: WhenFull,
    ) -> Result<()> {
        let most = self.config.queue_bytes;
        let can_wait = !self.in_function;
        let Some(link) = self.link(at) else {
            return Err(Error::Ended(End::Closed));
        };
        let out = &mut link.out;
        let len = record.len() as u64;
        if is_call {
            let room = out.queued_bytes + len <= most;
            let refused = match when_full {
                // A link that comes up is no reason to refuse: nothing is full.
                WhenFull::Fail => unresolved.is_none() || !room,
                WhenFull::Wait => !can_wait && !room,
                WhenFull::Queue => !room,
            };
            if refused {
                return Err(Error::Full);
            }
        }
        out.queued_bytes += len;
        out.queue.push_back(Queued {
            record,
            unresolved,
            is_call,
            waiter,
            sent,
        });
        self.list(at);
        Ok(())
    }

    /// A call has failed: its waiter hears why, or the program.
    pub(crate) fn failed(
        &mut self,
        at: usize,
        waiter: Option<Waiter>,
        function: &'static str,
        call: u64,
        why: Ended,
    ) {
        match waiter {
            Some(Waiter::Reply(cell)) => return cell.fail(why),
            Some(Waiter::Passed(place)) => return self.passed(place, 1),
            Some(Waiter::Consumed(counter)) => counter.end(false),
            None => {}
        }
        let peer = (at < self.slots.len()).then(|| self.peer(at));
        if self.failures.len() >= KEPT {
            self.stats.failures_lost += 1;
            return;
        }
        self.failures.push_back(CallFailure {
            peer,
            function,
            call,
            why,
        });
    }

    /// The link has something to send.
    #[inline]
    pub(crate) fn list(&mut self, at: usize) {
        if let Some(link) = self.link(at)
            && !link.out.listed
        {
            link.out.listed = true;
            self.unsent.push(at as u32);
        }
    }
}

/// A body without a buffer.
pub(crate) const PLAIN: Body<'static> = Body {
    audience: None,
    argument: &[],
    buffer: Where::Nowhere,
};
