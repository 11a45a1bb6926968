//! DMAs in flight: 64 slots, generations against late completions, and barriers.
//!
//! A page is locked only from the start of a DMA to its end. An operation that finds no free slot waits *without* a
//! lock, in one line for all; a [`Ticket`] is taken before the lock, so that no lock is ever set that waits for a slot.

use crate::authorise::covers;
use crate::env::Env;
use crate::platform::{Dma, DmaId, PageRange, Place, Platform};
use crate::ports::Port;
use crate::queue::Fifo;
use heapless::Vec;
use netvm_abi::bounce::BounceUse;
use netvm_abi::event::NicEvent;
use netvm_abi::page_lock::{LockedPage, Miss, Used, lock_page, unlock_page};
use netvm_abi::page_table::PageSlot;
use netvm_abi::storage::Storage;
use netvm_abi::{
    BounceId, ByteLen, Geometry, PageOffset, PortId, Ppn, ReadSlot, SegmentId, StagingId, Token, Vpn,
};

/// DMAs that may be in flight.
pub(crate) const SLOTS: usize = crate::platform::DMA_SLOTS;
/// Barriers that may be outstanding; with this many the NIC takes no host event.
pub(crate) const BARRIERS: usize = 16;

/// The operation that a DMA belongs to, or a place in the line for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A message in a receiving window.
    Window(BounceId),
    /// The reply to a read of this node.
    Reply(ReadSlot),
    /// A staging buffer that is being filled.
    Source(StagingId),
}

impl Holder {
    /// Its bounce page, whose number is also its link in the waiting lines.
    pub(crate) const fn bounce(self, geometry: &Geometry) -> BounceId {
        match self {
            Self::Window(at) => at,
            Self::Reply(read) => BounceUse::Reply(read).id(geometry),
            Self::Source(staging) => BounceUse::Source(staging).id(geometry),
        }
    }

    /// The holder of a bounce page.
    fn of(geometry: &Geometry, bounce: BounceId) -> Option<Self> {
        Some(match BounceUse::from_id(geometry, bounce)? {
            BounceUse::Window { .. } => Self::Window(bounce),
            BounceUse::Reply(read) => Self::Reply(read),
            BounceUse::Source(staging) => Self::Source(staging),
        })
    }
}

/// The right to start one DMA.
#[must_use]
pub(crate) struct Ticket(u8);

impl Ticket {
    /// The slot that it is for.
    pub(crate) const fn slot(&self) -> u8 {
        self.0
    }
}

/// What is done with a page while it is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read now and written later: a page that may not be written is of no use.
    ReadForWrite,
}

impl Access {
    const fn needs_write(self) -> bool {
        matches!(self, Self::Write | Self::ReadForWrite)
    }

    const fn used(self) -> Used {
        match self {
            Self::Write => Used::Written,
            Self::Read | Self::ReadForWrite => Used::Read,
        }
    }
}

/// The part of an application's page that a DMA is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageWanted {
    pub(crate) vpn: Vpn,
    pub(crate) offset: PageOffset,
    pub(crate) len: ByteLen,
    /// The segment that the page must belong to; nothing for a port's own page.
    pub(crate) segment: Option<SegmentId>,
    pub(crate) access: Access,
}

/// Why a page cannot be used: the host, which is asked, knows what belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPage {
    /// It is not in the table, or may not be written.
    Miss(Miss),
    /// It is left over from another segment.
    Foreign,
}

impl PageWanted {
    const fn place(&self) -> Place {
        Place {
            vpn: self.vpn,
            offset: self.offset,
            len: self.len,
        }
    }

    #[inline(always)]
    const fn range(&self, ppn: Ppn) -> PageRange {
        PageRange {
            ppn,
            vpn: self.vpn,
            offset: self.offset,
            len: self.len,
        }
    }
}

impl<S: Storage> Env<S> {
    #[inline(always)]
    fn lock_page<P: Platform>(&self, p: &P, wanted: &PageWanted) -> Result<LockedPage, NoPage> {
        let page = match lock_page(p.bar(), &self.page_table, wanted.vpn, wanted.access.needs_write()) {
            Ok(page) => page,
            Err(miss) => return Err(NoPage::Miss(miss)),
        };
        if let Some(segment) = wanted.segment
            && !covers(segment, page.segment)
        {
            unlock_page(p.bar(), &self.page_table, page.slot, Used::Not);
            return Err(NoPage::Foreign);
        }
        Ok(page)
    }

    /// Lets the platform change a page while it is locked: all in this call. What `change` answers is nothing if it has not
    /// touched the page.
    ///
    /// # Errors
    /// Why the page cannot be used.
    pub(crate) fn change_page<P: Platform, R>(
        &self,
        p: &mut P,
        wanted: &PageWanted,
        change: impl FnOnce(&mut P, &PageRange) -> Option<R>,
    ) -> Result<Option<R>, NoPage> {
        let page = self.lock_page(p, wanted)?;
        let changed = change(p, &wanted.range(page.ppn));
        let used = match changed {
            Some(_) => wanted.access.used(),
            None => Used::Not,
        };
        unlock_page(p.bar(), &self.page_table, page.slot, used);
        Ok(changed)
    }

    /// Lets the platform reach a page of another node's request that the table lacks, if it can: all in this call. The request's
    /// capability says that the place belongs to a segment. A port's own commands have none: the driver knows its memory.
    #[inline(always)]
    pub(crate) fn reach<P: Platform, R>(
        &mut self,
        p: &mut P,
        wanted: &PageWanted,
        cause: NoPage,
        reach: impl FnOnce(&mut P, &Place) -> Option<R>,
    ) -> Option<R> {
        if !p.reaches() || cause != NoPage::Miss(Miss::NotFound) || wanted.segment.is_none() {
            return None;
        }
        let reached = reach(p, &wanted.place());
        self.counters.reached += u64::from(reached.is_some());
        reached
    }

    /// Counts what is bounced, by its cause.
    #[inline]
    pub(crate) fn count_bounce(&mut self, cause: NoPage) {
        *match cause {
            NoPage::Miss(Miss::NotFound) => &mut self.counters.bounced_not_found,
            NoPage::Miss(Miss::NotWritable) => &mut self.counters.bounced_read_only,
            NoPage::Foreign => &mut self.counters.bounced_segment,
        } += 1;
    }
}

/// The page that a DMA holds.
#[derive(Clone, Copy, Debug)]
struct HeldPage {
    slot: PageSlot,
    used: Used,
    port: PortId,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    holder: Holder,
    page: Option<HeldPage>,
}

/// A DMA that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) holder: Holder,
    /// The port whose page it held.
    pub(crate) page_of: Option<PortId>,
}

/// All DMAs.
#[derive(Debug)]
pub(crate) struct Dmas {
    active: u64,
    slots: [Slot; SLOTS],
    /// Operations that wait for a slot.
    waiting: Fifo,
    barriers: Vec<(Token, u64), BARRIERS>,
}

impl Dmas {
    pub(crate) const fn new() -> Self {
        Self {
            active: 0,
            slots: [Slot {
                generation: 0,
                holder: Holder::Window(BounceId(0)),
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

    /// Locks a page and starts a DMA of it.
    ///
    /// # Errors
    /// Why the page cannot be used. Nothing has happened, so the ticket still counts.
    #[inline(always)]
    pub(crate) fn start_with_page<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        port: &mut Port,
        (ticket, holder): (Ticket, Holder),
        wanted: &PageWanted,
        dma: impl FnOnce(PageRange) -> Dma,
    ) -> Result<(), (Ticket, NoPage)> {
        let page = match env.lock_page(p, wanted) {
            Ok(page) => page,
            Err(cause) => return Err((ticket, cause)),
        };
        port.dma_begins();
        let held = HeldPage {
            slot: page.slot,
            used: wanted.access.used(),
            port: wanted.vpn.port(),
        };
        let range = wanted.range(page.ppn);
        env.counters.dma_started += 1;
        let id = self.begin(ticket, holder, Some(held));
        p.start_dma(id, dma(range));
        Ok(())
    }

    /// Barriers that have not ended, and operations that wait for a slot, as one of them.
    pub(crate) fn barriers_held(&self) -> u32 {
        self.barriers.len() as u32 + self.anything_parked() as u32
    }

    /// Starts a DMA that needs no page of an application.
    pub(crate) fn start<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        (ticket, holder): (Ticket, Holder),
        dma: Dma,
    ) {
        env.counters.dma_started += 1;
        let id = self.begin(ticket, holder, None);
        p.start_dma(id, dma);
    }

    #[inline]
    fn begin(&mut self, ticket: Ticket, holder: Holder, page: Option<HeldPage>) -> DmaId {
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

    /// Ends a DMA and lets go of its page; nothing if it is not in flight.
    #[inline]
    pub(crate) fn end<P: Platform, S: Storage>(
        &mut self,
        p: &P,
        env: &mut Env<S>,
        id: DmaId,
        ok: bool,
    ) -> Option<Ended> {
        let slot = self.slots.get(usize::from(id.slot));
        let in_flight = |slot: &&Slot| slot.generation == id.generation && self.active & (1 << id.slot) != 0;
        let Some(slot) = slot.filter(in_flight) else {
            env.counters.dma_late += 1;
            return None;
        };
        if !ok {
            env.counters.dma_failed += 1;
        }
        self.active &= !(1 << id.slot);
        if let Some(page) = slot.page {
            // A DMA that failed may have written a part.
            unlock_page(p.bar(), &env.page_table, page.slot, page.used);
        }
        Some(Ended {
            holder: slot.holder,
            page_of: slot.page.map(|page| page.port),
        })
    }

    /// Lets an operation wait for a slot, without any lock.
    pub(crate) fn park<S: Storage>(&mut self, env: &mut Env<S>, holder: Holder) {
        env.counters.dma_parked += 1;
        self.waiting
            .push(&mut env.lines, holder.bounce(&env.config.geometry).0);
    }

    /// Whether an operation waits for a slot.
    #[inline]
    pub(crate) const fn anything_parked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether an operation waits for a slot, and one is free.
    pub(crate) const fn parked_could_go(&self) -> bool {
        self.anything_parked() && (self.in_flight() as usize) < SLOTS
    }

    /// Takes the first operation that waits for a slot, if one is free.
    pub(crate) fn next_parked<S: Storage>(&mut self, env: &Env<S>) -> Option<Holder> {
        if !self.parked_could_go() {
            return None;
        }
        let link = self.waiting.pop(&env.lines)?;
        Holder::of(&env.config.geometry, BounceId(link))
    }

    /// Whether another barrier can be kept.
    #[inline]
    pub(crate) fn barrier_room(&self) -> bool {
        !self.barriers.is_full()
    }

    /// Remembers the DMAs that are active now; answers when the last has ended.
    pub(crate) fn barrier<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, token: Token) {
        if self.active == 0 || self.barriers.push((token, self.active)).is_err() {
            barrier_done(p, env, token);
        }
    }

    /// A DMA has ended: answers the barriers that wait for it alone.
    #[inline]
    pub(crate) fn end_barriers<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, id: DmaId) {
        if !self.barriers.is_empty() {
            self.end_some_barriers(p, env, id.slot);
        }
    }

    #[cold]
    fn end_some_barriers<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, slot: u8) {
        let mut done: Vec<Token, BARRIERS> = Vec::new();
        self.barriers.retain_mut(|(token, active)| {
            *active &= !(1 << slot);
            *active != 0 || done.push(*token).is_err()
        });
        for token in done {
            barrier_done(p, env, token);
        }
    }
}

fn barrier_done<P: Platform, S: Storage>(p: &mut P, env: &mut Env<S>, token: Token) {
    env.counters.barriers += 1;
    env.tell_host(p, NicEvent::BarrierDone { token });
}
