//! The responder's side of reads (thesis 5.5): a request is checked, its data are staged, and the reply leaves. The
//! request holds its window slot until then.

use super::Nic;
use super::receive::Step;
use crate::authorise::Authority;
use crate::env::Env;
use crate::inbound::{Slot, SlotState};
use crate::links::{Links, Peer};
use crate::platform::{Payload, Platform};
use crate::ports::Port;
use crate::staging::Filling;
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::{BounceId, Nanos, SegmentId, StagingId};

/// Answers a read. Whether the answer is kept until it has been received.
#[inline(always)]
fn reply<P: Platform, S: Storage>(
    p: &mut P,
    env: &mut Env<S>,
    links: &mut Links<S>,
    request: &OwnHeader,
    data: Result<StagingId, Status>,
) -> bool {
    let Body::ReadRequest { ticket, len } = request.body() else {
        return false;
    };
    let (status, len, payload) = match data {
        Ok(staging) => {
            let len = len as u16;
            env.counters.reads_served += 1;
            env.counters.bytes_sent += u64::from(len);
            let staging = if mutant::is(Mutant::OtherBufferAnswers) {
                StagingId(staging.0 ^ 1)
            } else {
                staging
            };
            (Status::Ok, len, Payload::Staging(staging))
        }
        Err(status) => (status, 0, Payload::Empty),
    };
    let body = Body::ReadReply { ticket, status };
    let mut header = links.answer(body, len, request);
    let kept = links.keep_answer(env, &mut header, payload);
    p.transmit(&header, payload.kept(kept));
    kept
}

/// Whether the read in a window slot may be served; its sender's path takes answers of at most `payload` bytes.
#[inline(always)]
fn authorise<'a, P: Platform, S: Storage>(
    p: &P,
    now: Nanos,
    env: &mut Env<S>,
    slot: &mut Slot,
    port: Option<&'a mut Port>,
    payload: Option<u32>,
) -> Result<(SegmentId, &'a mut Port), Status> {
    let (len, wanted) = (slot.header().payload_len(), slot.header().read_len());
    let authority = if len != 0 || payload.is_none_or(|payload| wanted > payload) {
        Err(Status::Malformed)
    } else if let Some(port) = port {
        env.capabilities
            .authorise(p.bar(), now, slot, port, wanted, Modes::READ)
            .map(|segment| (segment, port))
    } else {
        Err(Status::NoSuchPort)
    };
    if let Err(status) = authority {
        *env.counters.refusals(status) += 1;
    }
    authority
}

impl<S: Storage> Nic<S> {
    /// A request for data has arrived, or its turn has come.
    #[inline(never)]
    pub(super) fn read_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        // The whole request is in the slot.
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let header = slot.header();
        let (source, destination) = (header.source(), header.destination_port());
        let payload = self.links.get(source).map(Peer::payload);
        let port = self.ports.get_mut(destination);
        let (segment, port) = match authorise(p, now, &mut self.env, slot, port, payload) {
            Ok(granted) => granted,
            Err(status) => return self.refuse_read(p, at, status),
        };
        let header = slot.header();
        let (offset, len) = (header.address().page_offset(), header.read_len());
        if len == 0 {
            self.refuse_read(p, at, Status::Ok);
            return Step::Ended(Status::Ok);
        }
        let Some(staging) = self.staging.take_for_read(at, slot.page(), offset, len) else {
            slot.set(SlotState::Queued);
            self.staging.park_read(&mut self.env, at);
            return Step::Pending;
        };
        slot.set(SlotState::Sourcing);
        let filling = self
            .staging
            .fill(p, &mut self.env, &mut self.dmas, port, (staging, Some(segment)));
        slot.misses_source(filling == Filling::Missing);
        if filling == Filling::Full {
            return self.answer_at_once(p, at, staging);
        }
        Step::Pending
    }

    /// Answers a read whose page the platform has reached.
    #[cold]
    #[inline(never)]
    fn answer_at_once<P: Platform>(&mut self, p: &mut P, at: BounceId, staging: StagingId) -> Step {
        if let Some(request) = self.inbound.get(at).map(|slot| *slot.header()) {
            self.staging.filled(staging);
            self.staging.leaves(staging);
            self.reply(p, &request, Ok(staging));
        }
        Step::Ended(Status::Ok)
    }

    /// Answers a read without data.
    #[cold]
    fn refuse_read<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) -> Step {
        if self.lease_begins_late(p, at, status) {
            // It has been counted as refused.
            self.env.counters.refused_expired -= 1;
            return self.read_arrives(p, self.env.now, at);
        }
        if let Some(request) = self.inbound.get(at).map(|slot| *slot.header()) {
            self.reply(p, &request, Err(status));
        }
        Step::Refused
    }

    /// Whether the read in a window slot may be served.
    pub(super) fn authorise_read<P: Platform>(&mut self, p: &P, now: Nanos, at: BounceId) -> Authority {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Err(Status::Malformed);
        };
        let payload = self.links.get(slot.header().source()).map(Peer::payload);
        let port = self.ports.get_mut(slot.header().destination_port());
        authorise(p, now, &mut self.env, slot, port, payload).map(|(segment, _)| segment)
    }

    /// The data of a read is in its staging buffer, or will not be.
    #[inline]
    pub(super) fn read_served<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
        data: Result<StagingId, Status>,
    ) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        if slot.state() != SlotState::Sourcing {
            return;
        }
        slot.misses_source(false);
        let kept = reply(p, &mut self.env, &mut self.links, slot.header(), data);
        if let Ok(staging) = data
            && kept
        {
            self.staging.keep(staging);
        }
        let step = match data {
            Ok(_) => Step::Ended(Status::Ok),
            Err(_) => Step::Refused,
        };
        self.end_step(p, now, at, step);
    }

    /// Sends a reply: data, or (also for "nothing, all well") a status.
    #[inline(always)]
    pub(super) fn reply<P: Platform>(
        &mut self,
        p: &mut P,
        request: &OwnHeader,
        data: Result<StagingId, Status>,
    ) {
        let kept = reply(p, &mut self.env, &mut self.links, request, data);
        if let Ok(staging) = data
            && kept
        {
            self.staging.keep(staging);
        }
    }

    /// Gives free staging buffers to reads that wait for one. Also called once in every pass.
    #[inline]
    pub(super) fn resume_reads<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        if self.staging.any_read_waits() {
            self.resume_some_reads(p, now);
        }
    }

    #[cold]
    fn resume_some_reads<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        for _ in 0..4 {
            let Some(at) = self.staging.next_parked(&self.env) else {
                return;
            };
            self.resume(p, now, at);
        }
    }
}
