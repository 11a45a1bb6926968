//! From the NIC's event to a port's queue: the check of a bounced message.

use super::Host;
use crate::bounce::{State, Work, WorkKind};
use crate::events::Notice;
use crate::grants::Claim;
use crate::platform::Platform;
use netvm_abi::atomic::Atomic;
use netvm_abi::bounce::{BounceUse, load_record};
use netvm_abi::control::{CONTROL_BYTES, CONTROL_WORDS, Modes};
use netvm_abi::event::{HostEvent, SourceAnswer};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, MessageFlags};
use netvm_abi::{
    BounceId, ByteLen, Generation, Nanos, NodeId, PAGE_SIZE, PageOffset, PortId, SegmentId, StagingId,
    Status, Vpn,
};

impl<S: Storage> Host<S> {
    pub(crate) fn staging_of(&self, index: u32) -> StagingId {
        match BounceUse::from_id(&self.geometry, BounceId(index)) {
            Some(BounceUse::Source(staging)) => staging,
            _ => StagingId(u16::MAX),
        }
    }

    /// A message waits in a bounce page, or an atomic (after the NIC has tried often enough) for its operand.
    pub(crate) fn bounced<P: Platform>(
        &mut self,
        platform: &mut P,
        bounce: BounceId,
        generation: Generation,
        attempt: Option<u8>,
        now: Nanos,
    ) -> Option<Notice> {
        let place = BounceUse::from_id(&self.geometry, bounce);
        let idle = self
            .work
            .get(bounce.index())
            .is_some_and(|work| work.state == State::Idle);
        let taken = match place {
            Some(BounceUse::Window { .. } | BounceUse::Reply(_)) if idle => {
                load_record(platform.shared(), self.shared_map.bounce_record(bounce))
                    .map_err(|_| Status::Malformed)
                    .and_then(|header| {
                        self.take_in(platform, place, (bounce, generation), &header, attempt, now)
                    })
            }
            // The use of a page that is not over, or of none: a card that works does not do that.
            _ => {
                self.counters.nic_events_bad += 1;
                return None;
            }
        };
        match taken {
            Ok(port) => port.map(Notice::Work),
            Err(status) => {
                match status {
                    Status::Malformed | Status::Unsupported => self.counters.bounce_bad += 1,
                    _ => self.counters.bounce_refused += 1,
                }
                self.end_slot(platform, bounce, generation, status);
                None
            }
        }
    }

    fn end_slot<P: Platform>(
        &mut self,
        platform: &mut P,
        bounce: BounceId,
        generation: Generation,
        status: Status,
    ) {
        self.post(
            platform,
            &HostEvent::BounceEnded {
                bounce,
                generation,
                status,
            },
        );
    }

    /// Queues a bounced message at its port, or acts on it at once if it is the driver's.
    fn take_in<P: Platform>(
        &mut self,
        platform: &mut P,
        place: Option<BounceUse>,
        (bounce, generation): (BounceId, Generation),
        header: &Header,
        attempt: Option<u8>,
        now: Nanos,
    ) -> Result<Option<PortId>, Status> {
        if let Some(BounceUse::Window { window, .. }) = place {
            let peer = self.peers.get_mut(header.source.index());
            peer.ok_or(Status::Malformed)?.window = window;
        }
        let kind = match (place, header.kind) {
            (Some(BounceUse::Window { .. }), Kind::AtomicRequest) if attempt.is_some() => WorkKind::Atomic,
            (_, _) if attempt.is_some() => return Err(Status::Malformed),
            (Some(BounceUse::Window { .. }), kind) => match kind {
                Kind::Control => {
                    return self.take_control(platform, bounce, generation, header, now);
                }
                Kind::Write => WorkKind::Write,
                Kind::AtomicRequest | Kind::ReadRequest | Kind::Flush => return Err(Status::Unsupported),
                _ => return Err(Status::Malformed),
            },
            (Some(BounceUse::Reply(_)), Kind::ReadReply) => WorkKind::Reply,
            _ => return Err(Status::Malformed),
        };
        let atomic = match kind {
            WorkKind::Atomic => Some(Atomic::requested(header).ok_or(Status::Malformed)?),
            _ => None,
        };
        let offset = header.address.page_offset();
        let len = ByteLen(atomic.map_or(u32::from(header.len), |atomic| atomic.operand_bytes()));
        if u32::from(offset.0) + len.0 > PAGE_SIZE || header.address.0 >> 60 != 0 {
            return Err(Status::Malformed);
        }
        match kind {
            WorkKind::Write => self.counters.bounced += 1,
            WorkKind::Atomic => self.counters.atomics_missed += 1,
            _ => self.counters.bounced_replies += 1,
        }
        if mutant::is(Mutant::BounceRecordDropped) && kind == WorkKind::Write {
            return Ok(None);
        }
        let port = header.destination_port;
        let port_generation = self.open_generation(port).ok_or(Status::NoSuchPort)?;
        // Its place, the card has chosen.
        let append = kind == WorkKind::Write && header.flags.contains(MessageFlags::APPEND);
        let mut modes = Modes::empty();
        modes.set(Modes::WRITE, len.0 > 0 && atomic.is_none() && !append);
        modes.set(Modes::APPEND, append);
        modes.set(Modes::ATOMIC, atomic.is_some());
        let claim = Claim {
            slot: header.capability,
            secret: header.secret,
            port,
            holder: header.source,
            holder_port: header.source_port,
            address: header.address,
            len,
            modes,
            notification: header.notification,
        };
        let work = Work {
            state: State::Queued,
            kind,
            generation,
            port,
            port_generation,
            peer: header.source,
            claim: (kind != WorkKind::Reply).then_some(claim),
            vpn: Vpn::of(port, header.address),
            offset,
            len,
            attempt: attempt.unwrap_or(0),
            atomic,
            since: now,
            ..Work::new()
        };
        self.enqueue(bounce, work);
        Ok(Some(port))
    }

    fn enqueue(&mut self, bounce: BounceId, work: Work) {
        let (port, now) = (work.port, work.since);
        if let Some(place) = self.work.get_mut(bounce.index()) {
            *place = work;
        }
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.queue.push_back(&mut self.work, bounce.0);
        }
        self.has_page_work(port, now);
    }

    /// A message for this driver: copied, its slot ended, then acted upon.
    fn take_control<P: Platform>(
        &mut self,
        platform: &mut P,
        bounce: BounceId,
        generation: Generation,
        header: &Header,
        now: Nanos,
    ) -> Result<Option<PortId>, Status> {
        if header.source_port != PortId::DRIVER
            || header.destination_port != PortId::DRIVER
            || usize::from(header.len) < CONTROL_BYTES
        {
            self.counters.control_bad += 1;
            return Err(Status::Malformed);
        }
        let mut words = [0; CONTROL_WORDS];
        platform.load_bounce(bounce, &mut words);
        self.end_slot(platform, bounce, generation, Status::Ok);
        if self.handle_control(platform, header.source, &words, now).is_err() {
            self.counters.control_bad += 1;
        }
        Ok(None)
    }

    /// A page that the NIC should read is not mapped.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the event")]
    pub(crate) fn source_missed<P: Platform>(
        &mut self,
        platform: &mut P,
        staging: StagingId,
        generation: Generation,
        vpn: Vpn,
        offset: PageOffset,
        len: ByteLen,
        attempt: u8,
        now: Nanos,
    ) -> Option<Notice> {
        let bounce = BounceUse::Source(staging).id(&self.geometry);
        let idle = self
            .work
            .get(bounce.index())
            .is_some_and(|work| work.state == State::Idle);
        if staging.0 >= self.geometry.staging || !idle {
            self.counters.nic_events_bad += 1;
            return None;
        }
        self.counters.source_misses += 1;
        let port = vpn.port();
        let inside = u32::from(offset.0) + len.0.min(PAGE_SIZE + 1) <= PAGE_SIZE;
        let refused = match self.open_generation(port) {
            None => Status::NoSuchPort,
            Some(_) if !inside => Status::Malformed,
            Some(port_generation) => {
                let work = Work {
                    state: State::Queued,
                    kind: WorkKind::Source,
                    generation,
                    port,
                    port_generation,
                    peer: self.node,
                    vpn,
                    offset,
                    len,
                    attempt,
                    since: now,
                    ..Work::new()
                };
                self.enqueue(bounce, work);
                return Some(Notice::Work(port));
            }
        };
        self.counters.source_failed += 1;
        let answer = SourceAnswer::Failed(refused);
        self.post(
            platform,
            &HostEvent::SourceAnswer {
                staging,
                generation,
                answer,
            },
        );
        None
    }

    /// Whether a piece of work may (still) be done: port, incarnation, capability, mapping. On
    /// success its segment.
    ///
    /// # Errors
    /// The status with which it must end.
    pub(crate) fn authorise(&self, index: u32, now: Nanos) -> Result<SegmentId, Status> {
        let work = self.work.get(index as usize).ok_or(Status::Malformed)?;
        if !self.is_alive() {
            return Err(Status::CardGone);
        }
        if self.open_generation(work.port) != Some(work.port_generation) {
            return Err(Status::NoSuchPort);
        }
        if work.orphan {
            return Err(Status::StaleIncarnation);
        }
        let claimed = match &work.claim {
            Some(claim) => Some(self.grants.check(claim, now)?),
            None => None,
        };
        let near = claimed.or(work.near);
        let located = self.segments.holding_near(near, work.port, work.address());
        let segment = located.ok_or(match work.kind {
            WorkKind::Reply => Status::LocalAddress,
            WorkKind::Write | WorkKind::Source | WorkKind::Atomic => Status::Unmapped,
        })?;
        match claimed {
            Some(claimed) if claimed != segment => Err(Status::CapabilityRefused),
            _ => Ok(segment),
        }
    }

    /// Takes one piece of work out of a port's queue and refuses it; false when there is none.
    pub(crate) fn refuse_one<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        status: Status,
        now: Nanos,
    ) -> bool {
        let first = match self.ports.get_mut(port.index()) {
            Some(port) => port.queue.pop_front(&mut self.work),
            None => None,
        };
        let Some(index) = first else {
            return false;
        };
        self.count_refused(index);
        self.answer(platform, index, status, now);
        true
    }

    /// Lets go of everything of a peer's old incarnation.
    pub(crate) fn drop_work_of<P: Platform>(&mut self, platform: &mut P, peer: NodeId, now: Nanos) {
        let messages = u32::from(self.geometry.window);
        let windows = self.geometry.window_slots();
        let window = self.peers.get(peer.index()).map_or(0, |peer| peer.window);
        for index in u32::from(window) * messages..(u32::from(window) + 1) * messages {
            let Some(work) = self.work.get_mut(index as usize) else {
                return;
            };
            if work.peer != peer {
                continue;
            }
            match work.state {
                State::Idle => {}
                State::Queued => {
                    work.state = State::Idle;
                    if let Some(port) = self.ports.get_mut(work.port.index()) {
                        port.queue.remove(&mut self.work, index);
                    }
                    self.counters.bounce_dropped += 1;
                }
                State::Asking => {
                    work.state = State::Idle;
                    self.asking.remove(&mut self.work, index);
                    self.counters.bounce_dropped += 1;
                }
                // Its page may never come, and its worker will find that it is over. A copy must come back: it is waited
                // for.
                State::Paging => {
                    work.state = State::Idle;
                    work.ticket = None;
                    if let Some(port) = self.put_down(index) {
                        self.worker_moves(port);
                    }
                    self.counters.bounce_dropped += 1;
                }
                State::Copying => {
                    if !core::mem::replace(&mut work.orphan, true)
                        && let Some(peer) = self.peers.get_mut(peer.index())
                    {
                        peer.orphans += 1;
                    }
                }
            }
        }
        for index in windows..windows + u32::from(self.geometry.reads) {
            let Some(work) = self.work.get_mut(index as usize) else {
                return;
            };
            if work.state == State::Queued && work.peer == peer {
                if let Some(port) = self.ports.get_mut(work.port.index()) {
                    port.queue.remove(&mut self.work, index);
                }
                self.counters.bounce_dropped += 1;
                self.answer(platform, index, Status::LinkLost, now);
            }
        }
    }
}
