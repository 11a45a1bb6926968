//! DMAs in flight: 64 slots, generations against late completions, and barriers.
//!
//! A page is locked only from the start of a DMA to its end. An operation that finds no free slot waits *without* a
//! lock, in one line for all; a [`Ticket`] is taken before the lock, so that no lock is ever set that waits for a slot.

use crate::counters::Counters;
use crate::nic::Nic;
use crate::platform::{Dma, DmaId, Platform};
use crate::port::{Port, PortState};
use crate::queue::Fifo;
use heapless::Vec;
use netvm_abi::bounce::BounceUse;
use netvm_abi::event::NicEvent;
use netvm_abi::page_lock::{Used, unlock_page};
use netvm_abi::page_table::PageSlot;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, Nanos, PortId, Token};

/// DMAs that may be in flight.
pub(crate) const SLOTS: usize = crate::platform::DMA_SLOTS;
/// Barriers that may be outstanding; with this many the NIC takes no host event.
pub(crate) const BARRIERS: usize = 16;

/// The right to start one DMA.
#[must_use]
pub(crate) struct Ticket(u8);

impl Ticket {
    /// The slot that it is for.
    pub(crate) const fn slot(&self) -> u8 {
        self.0
    }
}

/// The page that a DMA holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPage {
    pub(crate) slot: PageSlot,
    pub(crate) used: Used,
    pub(crate) port: PortId,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    holder: BounceId,
    page: Option<HeldPage>,
}

/// All DMAs.
#[derive(Debug)]
pub(crate) struct DmaTable {
    active: u64,
    slots: [Slot; SLOTS],
    /// Operations that wait for a slot.
    pub(crate) waiting: Fifo,
    barriers: Vec<(Token, u64), BARRIERS>,
}

impl DmaTable {
    pub(crate) const fn new() -> Self {
        Self {
            active: 0,
            slots: [Slot {
                generation: 0,
                holder: BounceId(0),
                page: None,
            }; SLOTS],
            waiting: Fifo::new(),
            barriers: Vec::new(),
        }
    }

    /// A free slot, if there is one.
    #[inline]
    pub(crate) const fn ticket(&self) -> Option<Ticket> {
        let slot = (!self.active).trailing_zeros();
        if slot as usize == SLOTS {
            None
        } else {
            Some(Ticket(slot as u8))
        }
    }

    /// DMAs in flight.
    pub(crate) const fn in_flight(&self) -> u32 {
        self.active.count_ones()
    }

    /// Whether another barrier can be kept.
    #[inline]
    pub(crate) fn barrier_room(&self) -> bool {
        !self.barriers.is_full()
    }

    /// Starts a DMA for an operation, which is named as its bounce page is, with the page that it holds
    /// and the port whose page that is.
    #[inline(always)]
    pub(crate) fn start<P: Platform>(
        &mut self,
        p: &mut P,
        counters: &mut Counters,
        ticket: Ticket,
        holder: BounceId,
        page: Option<(HeldPage, &mut Port)>,
        dma: Dma,
    ) {
        counters.dma_started += 1;
        let page = page.map(|(page, port)| {
            port.dmas += 1;
            page
        });
        let id = self.begin(ticket, holder, page);
        p.start_dma(id, dma);
    }

    #[inline]
    fn begin(&mut self, ticket: Ticket, holder: BounceId, page: Option<HeldPage>) -> DmaId {
        let Ticket(index) = ticket;
        let mut generation = 0;
        // A ticket's number is below `SLOTS`: so the compiler knows it, too.
        if let Some(slot) = self.slots.get_mut(usize::from(index) % SLOTS) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.holder = holder;
            slot.page = page;
            generation = slot.generation;
            self.active |= 1 << index;
        }
        DmaId {
            slot: index,
            generation,
        }
    }

    /// Ends a DMA; nothing if it is not in flight.
    #[inline]
    fn end(&mut self, id: DmaId) -> Option<(BounceId, Option<HeldPage>)> {
        let slot = self.slots.get(usize::from(id.slot))?;
        if slot.generation != id.generation || self.active & (1 << id.slot) == 0 {
            return None;
        }
        self.active &= !(1 << id.slot);
        Some((slot.holder, slot.page))
    }
}

impl<S: Storage> Nic<S> {
    /// Starts a DMA for an operation, which is named as its bounce page is.
    pub(crate) fn start_dma<P: Platform>(
        &mut self,
        p: &mut P,
        ticket: Ticket,
        holder: BounceId,
        page: Option<HeldPage>,
        dma: Dma,
    ) {
        let page = page.and_then(|page| Some((page, self.ports.get_mut(page.port.index())?)));
        self.dma
            .start(p, &mut self.env.counters, ticket, holder, page, dma);
    }

    /// Lets an operation wait for a DMA slot, without any lock.
    pub(crate) fn park_for_dma(&mut self, holder: BounceId) {
        self.env.counters.dma_parked += 1;
        self.dma.waiting.push(&mut self.env.lines, holder.0);
    }

    pub(crate) fn dma_done<P: Platform>(&mut self, p: &mut P, now: Nanos, id: DmaId, ok: bool) {
        let Some((holder, page)) = self.dma.end(id) else {
            self.env.counters.dma_late += 1;
            return;
        };
        if !ok {
            self.env.counters.dma_failed += 1;
        }
        if let Some(page) = page {
            // A DMA that failed may have written a part.
            unlock_page(p.bar(), &self.env.page_table, page.slot, page.used);
            self.port_dma_ended(p, page.port);
        }
        if !self.dma.barriers.is_empty() {
            self.end_barriers(p, id.slot);
        }
        if holder.index() < self.slots.len() {
            self.moved(p, now, holder, ok);
        } else {
            match BounceUse::from_id(&self.env.config.geometry, holder) {
                Some(BounceUse::Reply(read)) => self.reply_moved(p, read, ok),
                Some(BounceUse::Source(staging)) => self.filled(p, now, staging, ok),
                Some(BounceUse::Window { .. }) | None => {}
            }
        }
        self.resume_parked(p, now);
    }

    /// Gives free slots to operations that wait. Called after each completion and once in every pass, so none is left
    /// behind when those before turn out not to need their slot any more.
    #[inline]
    pub(crate) fn resume_parked<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        if !self.dma.waiting.is_empty() {
            self.resume_some(p, now);
        }
    }

    #[cold]
    fn resume_some<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        for _ in 0..SLOTS {
            if self.dma.waiting.is_empty() || self.dma.in_flight() as usize == SLOTS {
                return;
            }
            let Some(holder) = self.dma.waiting.pop(&self.env.lines) else {
                return;
            };
            let holder = BounceId(holder);
            match BounceUse::from_id(&self.env.config.geometry, holder) {
                Some(BounceUse::Window { .. }) => self.resume(p, now, holder),
                Some(BounceUse::Reply(read)) => self.place_reply(p, read),
                Some(BounceUse::Source(staging)) => self.fill_again(p, now, staging),
                None => {}
            }
        }
    }

    /// Whether an operation waits for what is free: the next pass takes it up.
    pub(crate) fn parked_could_go(&self) -> bool {
        let dma = !self.dma.waiting.is_empty() && (self.dma.in_flight() as usize) < SLOTS;
        dma || (!self.waiting_reads.is_empty() && self.staging_for_reads()) || !self.ready_atomics.is_empty()
    }

    fn port_dma_ended<P: Platform>(&mut self, p: &mut P, port: PortId) {
        let Some(state) = self.ports.get_mut(port.index()) else {
            return;
        };
        state.dmas = state.dmas.saturating_sub(1);
        if state.state == PortState::Closing && state.dmas == 0 {
            self.port_closed(p, port);
        }
    }

    /// Remembers the DMAs that are active now; answers when the last has ended.
    pub(crate) fn barrier<P: Platform>(&mut self, p: &mut P, token: Token) {
        let active = self.dma.active;
        if active == 0 || self.dma.barriers.push((token, active)).is_err() {
            self.barrier_done(p, token);
        }
    }

    #[cold]
    fn end_barriers<P: Platform>(&mut self, p: &mut P, slot: u8) {
        let mut done: Vec<Token, BARRIERS> = Vec::new();
        self.dma.barriers.retain_mut(|(token, active)| {
            *active &= !(1 << slot);
            *active != 0 || done.push(*token).is_err()
        });
        for token in done {
            self.barrier_done(p, token);
        }
    }

    fn barrier_done<P: Platform>(&mut self, p: &mut P, token: Token) {
        self.env.counters.barriers += 1;
        self.env.tell_host(p, NicEvent::BarrierDone { token });
    }
}
