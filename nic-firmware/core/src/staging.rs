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

use crate::dmas::{Access, Dmas, Holder, PageWanted};
use crate::env::Env;
use crate::platform::{Dma, Platform, Way};
use crate::ports::{Port, Ports};
use crate::queue::Fifo;
use netvm_abi::event::{NicEvent, SourceAnswer};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, ByteLen, Generation, PageOffset, PortId, SegmentId, StagingId, VirtAddr, Vpn};

/// No buffer.
const NONE: u16 = u16::MAX;

/// What a buffer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    /// It has left, and may have to leave again.
    Kept,
}

/// The transfer that a buffer is filled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagingFor {
    /// Nothing any more: the buffer is freed as soon as DMA, host or platform let go of it.
    Nothing,
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
pub struct Buffer {
    state: State,
    owner: StagingFor,
    payer: Payer,
    generation: u32,
    vpn: Vpn,
    offset: PageOffset,
    len: u32,
    attempts: u8,
    copied: bool,
    /// Its message has a copy: it is free when that message has been received.
    kept: bool,
    /// Of a free buffer, the one that is free below it.
    below: u16,
}

impl Buffer {
    /// A free buffer.
    pub(crate) const FREE: Self = Self {
        state: State::Free,
        owner: StagingFor::Nothing,
        payer: Payer::Reads,
        generation: 0,
        vpn: Vpn::from_raw(0),
        offset: PageOffset(0),
        len: 0,
        attempts: 0,
        copied: false,
        kept: false,
        below: NONE,
    };
}

/// How far a buffer has got at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// A DMA fills it, or it waits for one.
    Started,
    /// It is full.
    Full,
    /// The host was asked for its page.
    Missing,
}

/// What the host's answer to a source miss leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Nothing: the answer comes late, or names no buffer.
    Ignored,
    /// The buffer is to be filled again.
    Again,
    /// It will not be filled.
    Failed(Status),
}

/// All staging buffers: which are free, and how many each share has.
pub(crate) struct Staging<S: Storage> {
    table: S::Table<Buffer>,
    /// The free buffer that is taken next, which is the one that became free last; the others stand below it.
    top: u16,
    for_ports: u16,
    for_reads: u16,
    /// Of those for ports, those whose page the host has been asked for.
    missing: u16,
    /// Reads of other nodes that wait for a buffer.
    waiting_reads: Fifo,
}

impl<S: Storage> Staging<S> {
    pub(crate) fn new(table: S::Table<Buffer>) -> Self {
        let mut staging = Self {
            top: NONE,
            for_ports: 0,
            for_reads: 0,
            missing: 0,
            waiting_reads: Fifo::new(),
            table,
        };
        for index in (0..staging.count()).rev() {
            staging.push_free(StagingId(index));
        }
        staging
    }

    /// A buffer is free: it is the next to be taken.
    fn push_free(&mut self, id: StagingId) {
        if let Some(buffer) = self.table.get_mut(id.index()) {
            buffer.below = self.top;
            self.top = id.0;
        }
    }

    /// Buffers that are not free.
    pub(crate) fn held(&self) -> u32 {
        u32::from(self.for_ports) + u32::from(self.for_reads)
    }

    /// The number of buffers.
    fn count(&self) -> u16 {
        self.table.len() as u16
    }

    fn get_mut(&mut self, id: StagingId) -> Option<&mut Buffer> {
        self.table.get_mut(id.index())
    }

    /// Takes a buffer for a port's command; nothing when the port has its share or none is left.
    pub(crate) fn take_for_port(
        &mut self,
        port: &mut Port,
        entry: u8,
        local: VirtAddr,
        len: u16,
    ) -> Option<StagingId> {
        let count = self.count();
        if port.buffers() >= count / 2 || self.for_ports >= count - count / 4 {
            return None;
        }
        if port.missing() != 0 && self.missing >= count / 2 {
            return None;
        }
        let id = self.take(Buffer {
            owner: StagingFor::Port {
                port: port.id(),
                entry,
            },
            payer: Payer::Port(port.id()),
            vpn: Vpn::of(port.id(), local),
            offset: local.page_offset(),
            len: u32::from(len),
            ..Buffer::FREE
        })?;
        self.for_ports += 1;
        port.takes_buffer();
        Some(id)
    }

    /// Takes a buffer for a read of another node.
    pub(crate) fn take_for_read(
        &mut self,
        request: BounceId,
        vpn: Vpn,
        offset: PageOffset,
        len: u32,
    ) -> Option<StagingId> {
        if !self.has_one_for_reads() {
            return None;
        }
        let id = self.take(Buffer {
            owner: StagingFor::Read(request),
            payer: Payer::Reads,
            vpn,
            offset,
            len,
            ..Buffer::FREE
        })?;
        self.for_reads += 1;
        Some(id)
    }

    fn take(&mut self, new: Buffer) -> Option<StagingId> {
        let index = self.top;
        let buffer = self.table.get_mut(usize::from(index))?;
        self.top = buffer.below;
        let generation = buffer.generation.wrapping_add(1);
        *buffer = Buffer {
            state: State::Waiting,
            generation,
            ..new
        };
        Some(StagingId(index))
    }

    /// Whether a served read could get a buffer.
    fn has_one_for_reads(&self) -> bool {
        let count = self.count();
        self.top != NONE && self.for_reads < count - count / 4
    }

    /// Lets a read of another node wait for a buffer.
    pub(crate) fn park_read(&mut self, env: &mut Env<S>, request: BounceId) {
        env.counters.staging_stalls += 1;
        self.waiting_reads.push(&mut env.lines, request.0);
    }

    /// Whether a read waits for a buffer.
    #[inline]
    pub(crate) const fn any_read_waits(&self) -> bool {
        !self.waiting_reads.is_empty()
    }

    /// Whether one waits, and one is there for it.
    pub(crate) fn parked_could_go(&self) -> bool {
        self.any_read_waits() && self.has_one_for_reads()
    }

    /// Takes the first read that waits for a buffer, if there is one for it.
    pub(crate) fn next_parked(&mut self, env: &Env<S>) -> Option<BounceId> {
        if !self.parked_could_go() {
            return None;
        }
        self.waiting_reads.pop(&env.lines).map(BounceId)
    }

    /// Gives a buffer back.
    pub(crate) fn release(&mut self, ports: &mut Ports<S>, id: StagingId) {
        let Some(buffer) = self.table.get_mut(id.index()) else {
            return;
        };
        if mutant::is(Mutant::StagingKept) && buffer.payer == Payer::Reads && id.0 == 1 {
            return;
        }
        buffer.state = State::Free;
        buffer.kept = false;
        buffer.owner = StagingFor::Nothing;
        let payer = buffer.payer;
        self.push_free(id);
        match payer {
            Payer::Port(port) => {
                self.for_ports = self.for_ports.saturating_sub(1);
                if let Some(port) = ports.get_mut(port) {
                    port.gives_buffer();
                }
            }
            Payer::Reads => self.for_reads = self.for_reads.saturating_sub(1),
        }
        ports.stir();
    }

    /// A buffer is not wanted any more. It is free at once, or when DMA, host or platform let go of it: a host that
    /// copies into its source bounce page must not meet the next use of that page.
    pub(crate) fn abandon(&mut self, ports: &mut Ports<S>, id: StagingId) {
        let Some(buffer) = self.get_mut(id) else {
            return;
        };
        buffer.owner = StagingFor::Nothing;
        if buffer.state == State::Full {
            self.release(ports, id);
        }
    }

    /// The link over which a read came has failed: its data are not wanted any more.
    pub(crate) fn orphan(&mut self, ports: &mut Ports<S>, request: BounceId) {
        let wanted = StagingFor::Read(request);
        let found = self.table.iter().position(|buffer| buffer.owner == wanted);
        if let Some(index) = found {
            self.abandon(ports, StagingId(index as u16));
        }
    }

    /// What a buffer is filled for, and the port whose page it gets.
    pub(crate) fn of(&self, id: StagingId) -> Option<(StagingFor, PortId)> {
        let buffer = self.table.get(id.index())?;
        Some((buffer.owner, buffer.vpn.port()))
    }

    /// Starts to fill a buffer from a page of `port`, fills it, or asks the host for the page. The page of a read belongs to a
    /// segment.
    #[inline(always)]
    pub(crate) fn fill<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        dmas: &mut Dmas,
        port: &mut Port,
        (id, segment): (StagingId, Option<SegmentId>),
    ) -> Filling {
        let Some(buffer) = self.table.get_mut(id.index()) else {
            return Filling::Started;
        };
        let holder = Holder::Source(id);
        let Some(ticket) = dmas.ticket() else {
            buffer.state = State::Waiting;
            dmas.park(env, holder);
            return Filling::Started;
        };
        let wanted = PageWanted {
            vpn: buffer.vpn,
            offset: buffer.offset,
            len: ByteLen(buffer.len),
            segment,
            access: Access::Read,
        };
        buffer.state = State::Filling;
        if buffer.copied {
            let dma = Dma::BounceToStaging {
                bounce: holder.bounce(&env.config.geometry),
                staging: id,
                len: wanted.len,
            };
            dmas.start(p, env, (ticket, holder), dma);
            return Filling::Started;
        }
        let started = dmas.start_with_page(p, env, port, (ticket, holder), &wanted, |page| {
            Dma::PageToStaging { page, staging: id }
        });
        let Err((_, cause)) = started else {
            return Filling::Started;
        };
        let reached = env.reach(p, &wanted, cause, |p, place| {
            p.reach(place, Way::Out(id)).then_some(())
        });
        if reached.is_some() {
            return Filling::Full;
        }
        buffer.state = State::Missing;
        if buffer.payer != Payer::Reads {
            port.lacks_page();
            self.missing += 1;
        }
        env.counters.source_misses += 1;
        let miss = NicEvent::SourceMiss {
            staging: id,
            generation: Generation(buffer.generation),
            vpn: wanted.vpn,
            offset: wanted.offset,
            len: wanted.len,
            attempt: buffer.attempts,
        };
        env.tell_host(p, miss);
        Filling::Missing
    }

    /// A buffer's DMA has ended: it is full. Gives what it was filled for.
    pub(crate) fn filled(&mut self, id: StagingId) -> Option<StagingFor> {
        let buffer = self.get_mut(id)?;
        if buffer.state != State::Filling {
            return None;
        }
        buffer.state = State::Full;
        Some(buffer.owner)
    }

    /// A full buffer is handed to the platform.
    #[inline]
    pub(crate) fn leaves(&mut self, id: StagingId) {
        if let Some(buffer) = self.get_mut(id) {
            buffer.state = State::Leaving;
            buffer.owner = StagingFor::Nothing;
        }
        if mutant::is(Mutant::StagingFreedEarly) {
            self.push_free(id);
        }
    }

    /// The message of a buffer that leaves has a copy.
    #[inline]
    pub(crate) fn keep(&mut self, id: StagingId) {
        if let Some(buffer) = self.get_mut(id) {
            buffer.kept = true;
        }
    }

    /// The platform has sent a buffer. Whether it is free now.
    pub(crate) fn has_left(&mut self, id: StagingId) -> bool {
        let Some(buffer) = self.get_mut(id).filter(|buffer| buffer.state == State::Leaving) else {
            return false;
        };
        if buffer.kept {
            buffer.state = State::Kept;
        }
        !buffer.kept
    }

    /// The message of a buffer has been received, or its link is lost: it is free, or will be when the platform has sent
    /// it.
    pub(crate) fn received(&mut self, ports: &mut Ports<S>, id: StagingId) {
        let Some(buffer) = self.get_mut(id) else {
            return;
        };
        buffer.kept = false;
        if buffer.state == State::Kept {
            self.release(ports, id);
        }
    }

    /// Whether a buffer may be handed to the platform again; if so, it is.
    pub(crate) fn leaves_again(&mut self, id: StagingId) -> bool {
        let Some(buffer) = self.get_mut(id).filter(|buffer| buffer.state == State::Kept) else {
            return false;
        };
        buffer.state = State::Leaving;
        true
    }

    /// The host's answer to a source miss.
    pub(crate) fn answered(
        &mut self,
        env: &mut Env<S>,
        ports: &mut Ports<S>,
        (id, generation): (StagingId, Generation),
        answer: SourceAnswer,
    ) -> Answered {
        let counters = &mut env.counters;
        let Some(buffer) = self.table.get_mut(id.index()) else {
            counters.host_events_refused += 1;
            return Answered::Ignored;
        };
        if buffer.state != State::Missing || buffer.generation != generation.0 {
            counters.late_answers += 1;
            return Answered::Ignored;
        }
        buffer.state = State::Waiting;
        if let Payer::Port(port) = buffer.payer {
            self.missing = self.missing.saturating_sub(1);
            if let Some(port) = ports.get_mut(port) {
                port.has_page();
            }
        }
        match answer {
            SourceAnswer::Retry => {
                counters.source_retries += 1;
                buffer.attempts = buffer.attempts.saturating_add(1);
            }
            SourceAnswer::Copied => {
                counters.source_copies += 1;
                buffer.copied = true;
            }
            SourceAnswer::Failed(status) => {
                counters.source_failures += 1;
                return Answered::Failed(status);
            }
        }
        Answered::Again
    }
}
