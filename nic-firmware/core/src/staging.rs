//! Staging buffers: one page each of NIC memory, between a host page and the wire.
//!
//! A buffer belongs to a command of a local port or to a read that this node serves. Each port gets
//! at most half of them, all local ports together and all served reads together at most three
//! quarters each, so that neither kind can starve the other (promise P5). A page that is not mapped is
//! asked of the host (a *source miss*) without any lock held.
//!
//! **Sources that do not come.** A host may take as long as a disk or a server does. Ports that wait for theirs get
//! half of the buffers together, and one each: so a port whose pages are there finds one, as long as fewer ports wait
//! than a quarter of the buffers.

use crate::dma::{Access, Holder, PageWanted};
use crate::nic::Nic;
use crate::platform::{Dma, Platform};
use netvm_abi::event::{NicEvent, SourceAnswer};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{
    BounceId, ByteLen, Generation, Nanos, PageOffset, PortId, SegmentId, StagingId, VirtAddr, Vpn,
};

/// What a buffer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagingState {
    /// Nothing.
    Free,
    /// It waits for a DMA slot.
    Waiting,
    /// A DMA fills it.
    Filling,
    /// The host has been asked for its page.
    Missing,
    /// It is full, and waits for its turn.
    Full,
    /// The platform sends it.
    Leaving,
}

/// The transfer that a buffer is filled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagingFor {
    /// None any more: the buffer is freed as soon as DMA, host or platform let go of it.
    Nobody,
    /// An entry of a port's pipeline.
    Port {
        /// The port.
        port: PortId,
        /// Index of the entry.
        entry: u8,
    },
    /// A read that this node serves: its request in the window.
    Read(BounceId),
}

/// The share that a buffer counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    Port(PortId),
    Reads,
}

/// A staging buffer.
#[derive(Clone, Copy, Debug)]
pub struct Staging {
    pub(crate) state: StagingState,
    pub(crate) owner: StagingFor,
    payer: Payer,
    generation: u32,
    vpn: Vpn,
    offset: PageOffset,
    len: u32,
    segment: Option<SegmentId>,
    attempts: u8,
    copied: bool,
}

impl Staging {
    /// A free buffer.
    pub(crate) const FREE: Self = Self {
        state: StagingState::Free,
        owner: StagingFor::Nobody,
        payer: Payer::Reads,
        generation: 0,
        vpn: Vpn::from_raw(0),
        offset: PageOffset(0),
        len: 0,
        segment: None,
        attempts: 0,
        copied: false,
    };

    /// A full buffer is handed to the platform.
    #[inline]
    pub(crate) fn leaves(&mut self) {
        self.state = StagingState::Leaving;
        self.owner = StagingFor::Nobody;
    }
}

/// Which buffers are free, and how many each share has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingPool {
    free: u64,
    for_ports: u16,
    for_reads: u16,
    /// Of those for ports, those whose page the host has been asked for.
    missing: u16,
}

impl StagingPool {
    pub(crate) const fn new(count: u16) -> Self {
        Self {
            free: u64::MAX >> (64 - count as u32),
            for_ports: 0,
            for_reads: 0,
            missing: 0,
        }
    }
}

/// How a try to fill a buffer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// It is under way, or the host or a DMA slot is waited for.
    Started,
    /// It may not be.
    Refused(Status),
}

impl<S: Storage> Nic<S> {
    /// Takes a buffer for a port's command; nothing when the port has its share or none is left.
    pub(crate) fn stage_for_port(
        &mut self,
        port: PortId,
        entry: u8,
        local: VirtAddr,
        len: u16,
    ) -> Option<StagingId> {
        let count = self.env.config.geometry.staging;
        let state = self.ports.get(port)?;
        if state.held.staging >= count / 2 || self.pool.for_ports >= count - count / 4 {
            return None;
        }
        if state.held.missing != 0 && self.pool.missing >= count / 2 {
            return None;
        }
        let id = self.take_staging(Staging {
            owner: StagingFor::Port { port, entry },
            payer: Payer::Port(port),
            vpn: Vpn::of(port, local),
            offset: local.page_offset(),
            len: u32::from(len),
            ..Staging::FREE
        })?;
        self.pool.for_ports += 1;
        self.ports.get_mut(port)?.held.staging += 1;
        Some(id)
    }

    /// Takes a buffer for a read of another node.
    pub(crate) fn stage_for_read(
        &mut self,
        request: BounceId,
        vpn: Vpn,
        offset: PageOffset,
        len: u32,
    ) -> Option<StagingId> {
        let count = self.env.config.geometry.staging;
        if self.pool.for_reads >= count - count / 4 {
            return None;
        }
        let id = self.take_staging(Staging {
            owner: StagingFor::Read(request),
            payer: Payer::Reads,
            vpn,
            offset,
            len,
            ..Staging::FREE
        })?;
        self.pool.for_reads += 1;
        Some(id)
    }

    fn take_staging(&mut self, new: Staging) -> Option<StagingId> {
        let index = self.pool.free.trailing_zeros() as u16;
        let staging = self.staging.get_mut(usize::from(index))?;
        let generation = staging.generation.wrapping_add(1);
        *staging = Staging {
            state: StagingState::Waiting,
            generation,
            ..new
        };
        self.pool.free &= !(1 << index);
        Some(StagingId(index))
    }

    fn free_staging(&mut self, id: StagingId) {
        let Some(staging) = self.staging.get_mut(id.index()) else {
            return;
        };
        staging.state = StagingState::Free;
        staging.owner = StagingFor::Nobody;
        self.pool.free |= 1 << id.0;
        match staging.payer {
            Payer::Port(port) => {
                self.pool.for_ports = self.pool.for_ports.saturating_sub(1);
                if let Some(port) = self.ports.get_mut(port) {
                    port.held.staging = port.held.staging.saturating_sub(1);
                }
            }
            Payer::Reads => self.pool.for_reads = self.pool.for_reads.saturating_sub(1),
        }
        self.ports.stir();
    }

    /// Whether a served read could get a buffer.
    pub(crate) const fn staging_for_reads(&self) -> bool {
        let count = self.env.config.geometry.staging;
        self.pool.free != 0 && self.pool.for_reads < count - count / 4
    }

    /// Gives back a buffer that was never filled.
    pub(crate) fn drop_staging(&mut self, id: StagingId) {
        self.free_staging(id);
    }

    /// A buffer is not wanted any more. It is free at once, or when DMA, host or platform let go of it: a host that
    /// copies into its source bounce page must not meet the next use of that page.
    pub(crate) fn abandon_staging(&mut self, id: StagingId) {
        let Some(staging) = self.staging.get_mut(id.index()) else {
            return;
        };
        staging.owner = StagingFor::Nobody;
        if staging.state == StagingState::Full {
            self.free_staging(id);
        }
    }

    /// Starts to fill a buffer, or asks the host for its page.
    pub(crate) fn fill<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) -> Fill {
        let Some(staging) = self.staging.get(id.index()).copied() else {
            return Fill::Started;
        };
        let mut segment = staging.segment;
        if let StagingFor::Read(request) = staging.owner {
            // Each time anew: it may have been revoked while the host was asked.
            match self.authorise_read(p, now, request) {
                Ok(authority) => segment = Some(authority),
                Err(status) => return Fill::Refused(status),
            }
        }
        let holder = Holder::Source(id);
        let Some(ticket) = self.dmas.ticket() else {
            self.set_staging(id, StagingState::Waiting);
            self.dmas.park(&mut self.env, holder);
            return Fill::Started;
        };
        let len = ByteLen(staging.len);
        if staging.copied {
            self.set_staging(id, StagingState::Filling);
            let dma = Dma::BounceToStaging {
                bounce: holder.bounce(&self.env.config.geometry),
                staging: id,
                len,
            };
            self.dmas.start(p, &mut self.env, (ticket, holder), dma);
            return Fill::Started;
        }
        let wanted = PageWanted {
            vpn: staging.vpn,
            offset: staging.offset,
            len,
            segment,
            access: Access::Read,
        };
        let Some(port) = self.ports.get_mut(staging.vpn.port()) else {
            return Fill::Refused(Status::NoSuchPort);
        };
        let started = self
            .dmas
            .start_with_page(p, &mut self.env, port, (ticket, holder), &wanted, |page| {
                Dma::PageToStaging { page, staging: id }
            });
        if started.is_ok() {
            self.set_staging(id, StagingState::Filling);
            return Fill::Started;
        }
        self.set_staging(id, StagingState::Missing);
        self.env.counters.source_misses += 1;
        self.env.tell_host(
            p,
            NicEvent::SourceMiss {
                staging: id,
                generation: Generation(staging.generation),
                vpn: staging.vpn,
                offset: staging.offset,
                len,
                attempt: staging.attempts,
            },
        );
        Fill::Started
    }

    /// Every change of a buffer's state but those to free, full and leaving, which none that is missed has before.
    fn set_staging(&mut self, id: StagingId, state: StagingState) {
        let Some(staging) = self.staging.get_mut(id.index()) else {
            return;
        };
        let before = core::mem::replace(&mut staging.state, state);
        if let Payer::Port(port) = staging.payer
            && let Some(port) = self.ports.get_mut(port)
        {
            for (state, by) in [(before, -1), (state, 1)] {
                if state == StagingState::Missing {
                    port.held.missing = port.held.missing.saturating_add_signed(by);
                    self.pool.missing = self.pool.missing.saturating_add_signed(by);
                }
            }
        }
    }

    /// Fills a buffer that has waited, unless it is not wanted any more.
    pub(crate) fn fill_again<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        match self.staging.get(id.index()).map(|staging| staging.owner) {
            None => {}
            Some(StagingFor::Nobody) => self.release_staging(p, now, id),
            Some(_) => {
                if let Fill::Refused(status) = self.fill(p, now, id) {
                    self.unfilled(p, now, id, status);
                }
            }
        }
    }

    /// A buffer's DMA has ended.
    pub(crate) fn filled<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId, ok: bool) {
        let Some(staging) = self.staging.get_mut(id.index()) else {
            return;
        };
        if staging.state != StagingState::Filling {
            return;
        }
        staging.state = StagingState::Full;
        match staging.owner {
            StagingFor::Nobody => self.release_staging(p, now, id),
            _ if !ok => self.unfilled(p, now, id, Status::BusError),
            StagingFor::Port { port, entry } => self.staged(p, now, port, entry, Ok(())),
            StagingFor::Read(request) => {
                staging.leaves();
                self.read_served(p, now, request, Ok(id));
            }
        }
    }

    /// A buffer will not be filled: tells its owner and frees it.
    fn unfilled<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId, status: Status) {
        let owner = self
            .staging
            .get(id.index())
            .map_or(StagingFor::Nobody, |staging| staging.owner);
        self.release_staging(p, now, id);
        match owner {
            StagingFor::Nobody => {}
            StagingFor::Port { port, entry } => self.staged(p, now, port, entry, Err(status)),
            StagingFor::Read(request) => self.read_served(p, now, request, Err(status)),
        }
    }

    /// Frees a buffer and gives it to a read that waits for one.
    fn release_staging<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        self.free_staging(id);
        self.resume_reads(p, now);
    }

    /// The host's answer to a source miss.
    pub(crate) fn source_answered<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: StagingId,
        generation: Generation,
        answer: SourceAnswer,
    ) {
        let counters = &mut self.env.counters;
        let Some(staging) = self.staging.get_mut(id.index()) else {
            counters.host_events_refused += 1;
            return;
        };
        if staging.state != StagingState::Missing || staging.generation != generation.0 {
            counters.late_answers += 1;
            return;
        }
        self.set_staging(id, StagingState::Waiting);
        let (counters, Some(staging)) = (&mut self.env.counters, self.staging.get_mut(id.index())) else {
            return;
        };
        match answer {
            SourceAnswer::Retry => {
                counters.source_retries += 1;
                staging.attempts = staging.attempts.saturating_add(1);
            }
            SourceAnswer::Copied => {
                counters.source_copies += 1;
                staging.copied = true;
            }
            SourceAnswer::Failed(status) => {
                counters.source_failures += 1;
                self.unfilled(p, now, id, status);
                return;
            }
        }
        self.fill_again(p, now, id);
    }

    /// The platform has sent a buffer.
    pub(crate) fn sent<P: Platform>(&mut self, p: &mut P, now: Nanos, id: StagingId) {
        let leaving = self
            .staging
            .get(id.index())
            .is_some_and(|staging| staging.state == StagingState::Leaving);
        if leaving {
            self.release_staging(p, now, id);
        }
    }
}
