//! One operation: posted part by part, as the port has room.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use netvm::abi::atomic::Atomic;
use netvm::{Error, NodeId, OpId, Pending, PendingAtomic, RemoteSegment, Status, ValueOp, ValueType};

use super::keys::Aim;
use super::scratch::{PLACE, Place};
use super::{Calls, Target, errno_of};
use crate::buffer::Buffer;
use crate::cq::{Completion, Failed};
use crate::domain::Domain;
use crate::ep::{Counted, Endpoint};
use crate::fi::*;

/// Bytes that one call moves: what is cut at page boundaries on both sides fits half of a command queue.
const PART: usize = 96 << 10;
/// The same on a path with small messages.
const SMALL_PART: usize = 16 << 10;
/// A write up to this size travels in its descriptor, and needs no place.
const SHORT: usize = 128;
/// Reads and atomics of one operation that are under way at a time.
const DEPTH: usize = 16;

/// Each time that more fails than is told, some of it is told: so this is not reached, unless something else is wrong.
const MOST_DOUBTS: u8 = 200;

/// What an operation is.
pub(crate) enum What {
    Read,
    Write,
    /// On each value of a range. The operands are copied before.
    Atomic {
        op: ValueOp,
        on: ValueType,
        operands: Vec<u64>,
        compares: Vec<u64>,
        /// Old values go to the buffer.
        fetches: bool,
        /// It takes effect behind those that were begun before it (`FI_ORDER_ATOMIC_*`).
        ordered: bool,
    },
}

/// What a read brings to a place, and how much of the operation it is.
struct Arrival {
    place: Place,
    at: usize,
    len: usize,
}

/// The key that was used names nothing any more.
pub(super) const fn is_stale(status: Status) -> bool {
    matches!(
        status,
        Status::CapabilityRefused | Status::Revoked | Status::Expired
    )
}

/// It is about a link, and so about everything that went by it.
pub(super) const fn is_of_a_link(status: Status) -> bool {
    matches!(
        status,
        Status::LinkLost | Status::StaleIncarnation | Status::CardGone | Status::NoSuchNode
    )
}

/// An operation.
pub(crate) struct Op {
    /// Where its end is told.
    pub(crate) endpoint: Weak<Endpoint>,
    pub(crate) what: What,
    /// The program's memory: source, target, or where old values go.
    pub(crate) buffer: Buffer,
    /// A copy of what is to be written, where the program may use its memory at once.
    pub(crate) copy: Option<Box<[u8]>>,
    pub(crate) context: usize,
    pub(crate) completes: bool,
    /// For the other side's completion queue: its address there, and the data.
    pub(crate) tells: Option<(u64, u64)>,
    aim: Option<Aim>,
    /// What the program has named.
    target: Option<Target>,
    /// Operations of the domain are numbered as they are begun.
    number: u64,
    /// It has begun anew, since its key named other memory.
    anew: bool,
    /// How often it has begun anew because it was not known how it had ended.
    doubts: u8,
    /// An atomic of it took effect.
    took_effect: bool,
    /// Bytes that were posted.
    posted: usize,
    calls: Calls,
    /// Reads under way, and where their bytes come first.
    reads: VecDeque<(Pending, Option<Arrival>)>,
    /// Places from which its writes were posted.
    sources: Vec<Place>,
    /// The next part of a write, for which the port had no room.
    prepared: Option<Place>,
    atomics: VecDeque<(usize, PendingAtomic)>,
    failed: Option<(Errno, Status)>,
    /// It may have failed.
    in_doubt: bool,
}

impl Op {
    pub(crate) fn new(
        endpoint: &Arc<Endpoint>,
        what: What,
        buffer: Buffer,
        context: usize,
        completes: bool,
    ) -> Self {
        Self {
            endpoint: Arc::downgrade(endpoint),
            what,
            buffer,
            copy: None,
            context,
            completes,
            tells: None,
            aim: None,
            target: None,
            number: 0,
            anew: false,
            doubts: 0,
            took_effect: false,
            posted: 0,
            calls: Vec::new(),
            reads: VecDeque::new(),
            sources: Vec::new(),
            prepared: None,
            atomics: VecDeque::new(),
            failed: None,
            in_doubt: false,
        }
    }

    /// Says what the program has named, and which operation of the domain it is.
    pub(super) const fn name(&mut self, target: Target, number: u64) {
        self.target = Some(target);
        self.number = number;
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// One that failed for a key that names nothing, or memory of another length, begins anew, once: the key may name other memory by
    /// now than when it was looked up. One that may have failed begins anew until it is known. Says whether it does.
    pub(super) fn begin_anew(&mut self) -> bool {
        let begins = match self.failed {
            Some((errno, status)) => {
                let other_memory = is_stale(status) || (errno == Errno::ACCES && self.calls.is_empty());
                other_memory && !std::mem::replace(&mut self.anew, true)
            }
            None => self.in_doubt,
        };
        if !begins || self.took_effect {
            return false;
        }
        self.doubts += u8::from(self.in_doubt);
        (self.failed, self.in_doubt) = (None, false);
        (self.posted, self.aim) = (0, None);
        self.calls.clear();
        true
    }

    /// What the program has named.
    pub(super) const fn target(&self) -> Option<Target> {
        self.target
    }

    /// Says what it is about.
    pub(super) fn aim(&mut self, aim: Aim) {
        self.aim = Some(aim);
    }

    /// Whether nothing of it was posted yet.
    pub(super) fn is_new(&self) -> bool {
        self.calls.is_empty() && self.failed.is_none()
    }

    /// Which import it uses.
    pub(super) fn import(&self) -> Option<u64> {
        self.aim.as_ref().map(|aim| aim.import)
    }

    fn segment(&self) -> Option<&RemoteSegment> {
        self.aim.as_ref().map(|aim| &aim.segment)
    }

    pub(super) fn fail(&mut self, errno: Errno, status: Status) {
        self.failed.get_or_insert((errno, status));
    }

    /// It may have failed: of several that did it is not told which. A write may be repeated as long as its end has not been told.
    pub(super) fn doubt(&mut self) {
        if self.lands().is_none() || self.failed.is_some() {
            return;
        }
        if self.doubts < MOST_DOUBTS {
            self.in_doubt = true;
        } else {
            self.fail(Errno::IO, Status::Ok);
        }
    }

    /// Whether this call was made for it.
    pub(super) fn is(&self, op: OpId) -> bool {
        self.calls.contains(&op)
    }

    /// The key that it used names nothing any more.
    pub(super) const fn key_is_gone(&self) -> bool {
        match self.failed {
            Some((_, Status::NoSuchPort | Status::LinkLost | Status::StaleIncarnation)) => true,
            Some((_, status)) => is_stale(status),
            None => false,
        }
    }

    const fn len(&self) -> usize {
        match &self.what {
            What::Read | What::Write => match &self.copy {
                Some(copy) => copy.len(),
                None => self.buffer.len(),
            },
            What::Atomic { on, operands, .. } => operands.len() * on.bytes() as usize,
        }
    }

    /// Whether all of it is posted, or nothing more will be.
    pub(super) const fn is_whole(&self) -> bool {
        self.failed.is_some() || self.in_doubt || self.posted >= self.len()
    }

    /// Posts as much of it as there is room for, and collects what is told of others meanwhile. Says whether that was all.
    pub(super) fn post(&mut self, domain: &Domain, of_others: &mut Vec<Error>) -> bool {
        while !self.is_whole() {
            if self.is_deep() {
                self.harvest(domain);
                if self.is_deep() {
                    return true;
                }
            }
            match self.post_part(domain) {
                Ok(bytes) => self.posted += bytes,
                Err(Error::NoRoom { .. }) => return false,
                // Of earlier ones: nothing was posted.
                Err(error) if self.is_about_others(&error) => of_others.push(error),
                Err(Error::StreamFailed { .. }) => {}
                Err(error) => self.fail(errno_of(&error), error.status().unwrap_or(Status::Ok)),
            }
        }
        true
    }

    /// Whether as much of it is under way as may be.
    fn is_deep(&self) -> bool {
        self.reads.len().max(self.atomics.len()) >= DEPTH
    }

    fn is_about_others(&self, error: &Error) -> bool {
        match error {
            Error::Failed(failure) => !self.is(failure.op),
            Error::FailuresLost { .. } => true,
            _ => false,
        }
    }

    fn post_part(&mut self, domain: &Domain) -> netvm::Result<usize> {
        let Some(Aim { segment, at, .. }) = &self.aim else {
            return Err(Error::Released);
        };
        let at = at.saturating_add(self.posted as u64);
        // As a whole, so that one that does not fit changes nothing.
        let (len, base) = (self.len() as u64, at - self.posted as u64);
        if base.checked_add(len).is_none_or(|end| end > segment.len()) {
            return Err(Error::OutOfRange {
                offset: base,
                len,
                size: segment.len(),
            });
        }
        if let What::Atomic { .. } = self.what {
            return self.post_atomic();
        }
        let most = if domain.node.udp_address().is_some() {
            SMALL_PART
        } else {
            PART
        };
        let left = self.len() - self.posted;
        let writes = matches!(self.what, What::Write);
        let alike = segment.address().get().wrapping_add(at);
        if let Some(place) = self.prepared.take() {
            return self.post_by_place(domain, place, left.min(most).min(PLACE), true);
        }
        if left > 0
            && !(writes && left <= SHORT)
            && let Some(place) = domain.scratch.take(alike, writes)
        {
            return self.post_by_place(domain, place, left.min(most).min(PLACE), false);
        }
        let (segment, at) = self.next()?;
        let part = self.local(self.posted, most);
        let (start, len) = part.parts().next().unwrap_or_default();
        let slice = domain.everything.slice(start as u64, len as u64)?;
        if let What::Read = self.what {
            let read = segment.read(at, slice).begin()?;
            self.calls.push(read.op());
            self.reads.push_back((read, None));
        } else {
            let call = segment.write(at, &slice).try_post()?;
            self.calls.push(call);
        }
        Ok(len)
    }

    /// A part of what it moves, at this side.
    fn local(&self, at: usize, len: usize) -> Buffer {
        match &self.copy {
            Some(copy) => Buffer::of_bytes(copy).part(at, len),
            None => self.buffer.part(at, len),
        }
    }

    /// The next part of it by way of a place, which may have been prepared before.
    fn post_by_place(
        &mut self,
        domain: &Domain,
        place: Place,
        len: usize,
        prepared: bool,
    ) -> netvm::Result<usize> {
        let posted = if let What::Read = self.what {
            self.read_to(domain, &place, len).map(|read| {
                self.calls.push(read.op());
                Some(read)
            })
        } else {
            self.write_from(domain, &place, len, prepared).map(|call| {
                self.calls.push(call);
                None
            })
        };
        match posted {
            Ok(Some(read)) => {
                let at = self.posted;
                self.reads.push_back((read, Some(Arrival { place, at, len })));
                Ok(len)
            }
            Ok(None) => {
                self.sources.push(place);
                Ok(len)
            }
            Err(error) => {
                if matches!(error, Error::NoRoom { .. }) && matches!(self.what, What::Write) {
                    // It has been copied.
                    self.prepared = Some(place);
                } else {
                    domain.scratch.give(place);
                }
                Err(error)
            }
        }
    }

    /// Where the next part of it goes to or comes from.
    fn next(&self) -> netvm::Result<(&RemoteSegment, u64)> {
        let aim = self.aim.as_ref().ok_or(Error::Released)?;
        Ok((&aim.segment, aim.at.saturating_add(self.posted as u64)))
    }

    fn read_to(&self, domain: &Domain, place: &Place, len: usize) -> netvm::Result<Pending> {
        let (segment, at) = self.next()?;
        segment.read(at, domain.scratch.room(place, len)?).begin()
    }

    fn write_from(&self, domain: &Domain, place: &Place, len: usize, prepared: bool) -> netvm::Result<OpId> {
        let (segment, at) = self.next()?;
        if !prepared {
            let from = self.local(self.posted, len);
            domain.scratch.fill(place, &from, &domain.everything)?;
        }
        segment.write(at, domain.scratch.room(place, len)?).try_post()
    }

    fn post_atomic(&mut self) -> netvm::Result<usize> {
        let (
            Some(Aim {
                segment, at: base, ..
            }),
            What::Atomic {
                op,
                on,
                operands,
                compares,
                ordered,
                ..
            },
        ) = (&self.aim, &self.what)
        else {
            return Err(Error::Released);
        };
        let bytes = on.bytes() as usize;
        let index = self.posted / bytes;
        let operand = operands.get(index).copied().unwrap_or(0);
        let compare = compares.get(index).copied().unwrap_or(0);
        let at = base.saturating_add((index * bytes) as u64);
        // The call was refused where the operation is not defined on the type.
        let atomic = Atomic::on_value(*op, *on, operand, compare).ok_or(Error::Released)?;
        let atomic = segment.atomic(at, atomic);
        // Behind what has ended, well or not: what has failed before it is no matter of its.
        let atomic = if *ordered {
            atomic.ordered().regardless()
        } else {
            atomic
        };
        let under_way = atomic.try_post()?;
        self.calls.push(under_way.op());
        self.atomics.push_back((index, under_way));
        Ok(bytes)
    }

    /// Takes the answers that have come.
    fn harvest(&mut self, domain: &Domain) {
        while let Some(mut end) = self.reads.front_mut().and_then(|(read, _)| read.end()) {
            if let Some((_, Some(Arrival { place, at, len }))) = self.reads.pop_front() {
                end = end.and_then(|()| {
                    let into = self.buffer.part(at, len);
                    domain.scratch.copy(&place, &into, &domain.everything)
                });
                domain.scratch.give(place);
            }
            if let Err(error) = end {
                self.fail(errno_of(&error), error.status().unwrap_or(Status::Ok));
            }
        }
        while self.atomics.front().is_some_and(|(_, atomic)| atomic.is_done()) {
            let Some((index, atomic)) = self.atomics.pop_front() else {
                break;
            };
            match atomic.wait() {
                Ok(answer) => {
                    self.took_effect = true;
                    self.keep(index, answer.value);
                }
                Err(error) => self.fail(errno_of(&error), error.status().unwrap_or(Status::Ok)),
            }
        }
    }

    /// Gives the program an old value.
    fn keep(&self, index: usize, value: u64) {
        let What::Atomic {
            on, fetches: true, ..
        } = self.what
        else {
            return;
        };
        let (bytes, len) = (value.to_le_bytes(), on.bytes() as usize);
        let _ = self.buffer.scatter(index * len, len, |at, piece| {
            let end = at + piece.len();
            piece.copy_from_slice(bytes.get(at..end).ok_or(())?);
            Ok::<(), ()>(())
        });
    }

    /// Whether it is to take effect behind earlier ones.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self.what, What::Atomic { ordered: true, .. })
    }

    /// Whether answers of the card are to come.
    pub(super) fn awaits_answers(&self) -> bool {
        !self.atomics.is_empty()
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether nothing of it is under way, but what a flush tells of.
    pub(super) fn has_ended(&mut self, domain: &Domain) -> bool {
        self.harvest(domain);
        self.is_whole() && self.reads.is_empty() && self.atomics.is_empty()
    }

    /// The node at which it has to land.
    pub(super) fn lands(&self) -> Option<NodeId> {
        let writes = matches!(self.what, What::Write) && !self.calls.is_empty();
        self.segment().filter(|_| writes).map(RemoteSegment::node)
    }

    /// The places of its writes, and whether the card has read all of them: of one that has failed some may still leave.
    pub(super) fn take_sources(&mut self) -> (Vec<Place>, bool) {
        self.sources.extend(self.prepared.take());
        let landed = self.failed.is_none() && !self.in_doubt;
        (std::mem::take(&mut self.sources), landed)
    }

    const fn counted(&self) -> (Counted, u64) {
        match &self.what {
            What::Read => (Counted::Read, FI_RMA | FI_READ),
            What::Write => (Counted::Write, FI_RMA | FI_WRITE),
            What::Atomic { fetches: true, .. } => (Counted::Read, FI_ATOMIC | FI_READ),
            What::Atomic { .. } => (Counted::Write, FI_ATOMIC | FI_WRITE),
        }
    }

    /// Tells its end.
    pub(super) fn tell(&self) {
        let Some(endpoint) = self.endpoint.upgrade() else {
            return;
        };
        let (counted, flags) = self.counted();
        if let (Some((errno, status)), Some(target)) = (self.failed, self.target) {
            crate::log::trace(|| {
                let (len, to) = (self.len(), target.address.text());
                let Target { key, at, .. } = target;
                format!(
                    "one-sided operation of {len} bytes at {at:#x} of key {key:#x} of {to} failed: {errno:?}, {status:?}"
                )
            });
        }
        let completion = Completion::new(self.context, flags);
        endpoint.tell(|ends| match self.failed {
            None => ends.good(counted, self.completes, completion),
            Some((errno, status)) => ends.bad(
                counted,
                Failed {
                    completion,
                    errno,
                    status: status as u8,
                    over: 0,
                },
            ),
        });
        if let Some((to, data)) = self.tells.filter(|_| self.failed.is_none()) {
            endpoint.tell_of_write(to, data, self.len() as u64);
        }
    }
}
