//! Mapping pages: a mirror of the NIC's table in host memory (thesis 4.3).
//!
//! The mirror says what every slot holds, and what the host's own word of it is, so that an insert finds its place, and an
//! unmap its entry, without reading NIC memory. What is left is one look at the NIC's word for each page that goes or whose
//! marks are taken, and one read across the bus behind marks that are reset. Each slot is in a list of its segment's mapped pages (or of
//! those that are zapped: invalid, but perhaps still locked), so that the end of a segment costs
//! as much as it has pages mapped, whatever its size.
//!
//! **Full rows.** A page may be in either of two rows ([`netvm_abi::page_table`]). When both are full,
//! one of the pages there moves to its own other row, if that has room. Otherwise one is displaced:
//! if the new page's port holds half of the places or more, one of its own, else one of the port that
//! holds most; so no port can crowd another port's rows. A page that the NIC holds at this moment neither moves nor
//! goes. Both are a full unmap: invalidate, full barrier, look at the lock, take the marks.
//!
//! Several VPNs may have the same frame: locks, marks and lists belong to slots.

use crate::lists::{Links, List, linked};
use crate::own::Own;
use crate::platform::PageGone;
use crate::races::Look;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::page_lock::{self, Clear, Marks, PageUse, Retracted, Turn};
use netvm_abi::page_table::{PLACES, PageEntry, PageSlot, PageTable, ROW_SLOTS};
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, Ppn, SegmentId, Vpn};

/// A look at the page events before a page is paged in; [`Host::map_commit`](crate::Host::map_commit) publishes only if none
/// of them concerned the page meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapTicket {
    /// The page.
    pub vpn: Vpn,
    /// Its segment.
    pub segment: SegmentId,
    pub(crate) look: Look,
}

/// Why a page was not mapped. None of these is an error of the application but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The page is in no registered range of an open port.
    NotRegistered,
    /// It is being unmapped, or was since the ticket: page in again.
    Raced,
    /// Its row is full and the NIC uses every page that might be displaced, or the page itself is
    /// mapped differently and in use: copy this time.
    Busy,
    /// The card is dead.
    CardGone,
}

/// A page was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what happened to a displaced page must be marked"]
pub struct Mapped {
    /// What the entry displaced: another page of full rows, which is out or in its other row
    /// ([`PageGone::still_readable`]), or an earlier entry of the same page.
    pub displaced: Option<PageGone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Empty,
    Mapped,
    /// Invalid in the NIC's table; its lock has not been seen free since.
    Zapped,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) vpn: Vpn,
    pub(crate) ppn: Ppn,
    pub(crate) frame: u64,
    pub(crate) segment: SegmentId,
    pub(crate) state: SlotState,
    pub(crate) writable: bool,
    /// While the slot is empty: the NIC's marks ([`Marks`]). Otherwise the host's word, as it was stored last.
    word: u32,
    /// While the slot is zapped: the NIC's turn when its lock was first found set.
    met: Option<Turn>,
    links: Links,
}

linked!(Slot: 0 => links);

/// Pages of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPages {
    pub(crate) mapped: List<0>,
    pub(crate) zapped: List<0>,
}

pub(crate) struct Shadow<S: Storage> {
    pub(crate) table: PageTable,
    pub(crate) slots: S::Table<Slot>,
    segments: S::Table<SegmentPages>,
    mapped: u32,
    turn: u32,
    /// Raised when a zapped slot becomes valid again: scans of its range must be repeated.
    pub(crate) revived: u32,
}

/// What became of a zapped slot.
pub(crate) enum Out {
    Gone(PageGone, Met),
    InUse(Met),
    CardGone,
}

/// What a look at a zapped slot has to tell of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Nothing new.
    Nothing,
    /// The lock is set, for the first time since the zap.
    Locked,
    /// It was set, and the NIC has backed off.
    Neither,
}

impl<S: MakeTable> Shadow<S> {
    pub(crate) fn new(tables: &mut S, table: PageTable, segments: u32) -> Self {
        let empty = Slot {
            vpn: Vpn::from_raw(0),
            ppn: Ppn(0),
            frame: 0,
            segment: SegmentId(0),
            state: SlotState::Empty,
            writable: false,
            word: 0,
            met: None,
            links: Links::NONE,
        };
        let pages = SegmentPages {
            mapped: List::EMPTY,
            zapped: List::EMPTY,
        };
        Self {
            table,
            slots: tables.table((table.rows() * ROW_SLOTS) as usize, |_| empty),
            segments: tables.table(segments as usize, |_| pages),
            mapped: 0,
            turn: 0,
            revived: 0,
        }
    }
}

impl<S: Storage> Shadow<S> {
    /// The slots in which a page may be.
    fn places(&self, vpn: Vpn) -> impl Iterator<Item = (PageSlot, &Slot)> {
        let places = self.table.places(vpn).into_iter();
        places.filter_map(|at| Some((at, self.slots.get(at.0 as usize)?)))
    }

    fn free_place(&self, vpn: Vpn) -> Option<PageSlot> {
        let mut places = self.places(vpn);
        places.find_map(|(at, slot)| (slot.state == SlotState::Empty).then_some(at))
    }

    pub(crate) fn find(&self, vpn: Vpn) -> Option<(PageSlot, &Slot)> {
        self.places(vpn)
            .find(|(_, slot)| slot.state != SlotState::Empty && slot.vpn == vpn)
    }

    pub(crate) fn pages(&self, segment: SegmentId) -> Option<&SegmentPages> {
        self.segments.get(crate::segments::index_of(segment) as usize)
    }

    pub(crate) const fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Takes a step of the page lock, without reading what the host itself has stored.
    fn step<W: SharedWords + ?Sized, R>(
        &mut self,
        bar: &W,
        at: PageSlot,
        step: impl FnOnce(&Own<'_, W>, &PageTable) -> R,
    ) -> R {
        let before = self.slots.get(at.0 as usize).map_or(0, |slot| slot.word);
        let own = Own::new(bar, self.table.slot_at(at), before);
        let result = step(&own, &self.table);
        if let Some(slot) = self.slots.get_mut(at.0 as usize) {
            slot.word = own.word();
        }
        result
    }

    fn relist(&mut self, at: PageSlot, state: SlotState) {
        let Some(slot) = self.slots.get_mut(at.0 as usize) else {
            return;
        };
        let segment = crate::segments::index_of(slot.segment) as usize;
        let before = core::mem::replace(&mut slot.state, state);
        let Some(pages) = self.segments.get_mut(segment) else {
            return;
        };
        match before {
            SlotState::Mapped => {
                pages.mapped.remove(&mut self.slots, at.0);
                self.mapped -= 1;
            }
            SlotState::Zapped => {
                pages.zapped.remove(&mut self.slots, at.0);
            }
            SlotState::Empty => {}
        }
        match state {
            SlotState::Mapped => {
                pages.mapped.push_back(&mut self.slots, at.0);
                self.mapped += 1;
            }
            SlotState::Zapped => pages.zapped.push_back(&mut self.slots, at.0),
            SlotState::Empty => {}
        }
    }

    /// Begins to take a mapped slot out.
    pub(crate) fn zap<W: SharedWords + ?Sized>(&mut self, bar: &W, at: PageSlot) {
        self.step(bar, at, |bar, table| page_lock::retract(bar, table, at));
        self.relist(at, SlotState::Zapped);
        if let Some(slot) = self.slots.get_mut(at.0 as usize) {
            slot.met = None;
        }
    }

    /// Takes back a zap; the entry was not rewritten.
    pub(crate) fn restore<W: SharedWords + ?Sized>(&mut self, bar: &W, at: PageSlot) {
        self.relist(at, SlotState::Mapped);
        self.step(bar, at, |bar, table| page_lock::restore(bar, table, at));
        self.revived = self.revived.wrapping_add(1);
    }

    /// Looks whether a zapped slot is free, and empties it. A full barrier must stand between the
    /// zap and this.
    pub(crate) fn take_out<W: SharedWords + ?Sized>(&mut self, bar: &W, at: PageSlot) -> Out {
        match self.step(bar, at, |bar, table| page_lock::look_at_retracted(bar, table, at)) {
            Retracted::Locked { turn } => {
                let met = self.slots.get_mut(at.0 as usize).map(|slot| &mut slot.met);
                Out::InUse(match met {
                    Some(met @ None) => {
                        *met = Some(turn);
                        Met::Locked
                    }
                    _ => Met::Nothing,
                })
            }
            Retracted::CardGone => Out::CardGone,
            Retracted::Free { used, marks, turn } => {
                let mut met = Met::Nothing;
                if let Some(slot) = self.slots.get_mut(at.0 as usize) {
                    slot.word = marks.raw();
                    if slot.met.is_some_and(|before| before != turn) {
                        met = Met::Neither;
                    }
                }
                Out::Gone(self.forget(at, used, false), met)
            }
        }
    }

    /// Empties a slot of the mirror without looking at the card. A page that the entry did not let the card write is never
    /// dirty, whatever a broken card's words say: its file system expects no write.
    pub(crate) fn forget(&mut self, at: PageSlot, used: PageUse, leaked: bool) -> PageGone {
        let slot = self.slots.get(at.0 as usize);
        let (vpn, ppn, frame, writable) = slot.map_or((Vpn::from_raw(0), Ppn(0), 0, false), |slot| {
            (slot.vpn, slot.ppn, slot.frame, slot.writable)
        });
        self.relist(at, SlotState::Empty);
        PageGone {
            vpn,
            ppn,
            frame,
            dirty: used.dirty && writable && !mutant::is(Mutant::HostForgetsDirty),
            referenced: used.referenced,
            still_readable: false,
            leaked,
        }
    }

    /// Makes an entry of the NIC's table invalid, and learns its marks: at attach.
    pub(crate) fn empty<W: SharedWords + ?Sized>(&mut self, bar: &W, at: PageSlot) {
        let word = self.table.slot_at(at);
        if let Some(slot) = self.slots.get_mut(at.0 as usize) {
            bar.store_release(word, 0);
            slot.word = page_lock::marks_of(bar, &self.table, at).raw();
        }
    }

    /// Resets marks of a slot; whether a read across the bus must come before the answer is used.
    pub(crate) fn ask<W: SharedWords + ?Sized>(
        &mut self,
        bar: &W,
        at: PageSlot,
        clear: Clear,
    ) -> (PageUse, bool) {
        let (used, posted) = self.step(bar, at, |bar, table| {
            page_lock::post_take_use(bar, table, at, clear)
        });
        let referenced = used.referenced || used.held;
        (PageUse { referenced, ..used }, posted)
    }

    /// Fills an empty slot with an entry for a frame of the host, without reading NIC memory.
    pub(crate) fn fill<W: SharedWords + ?Sized>(
        &mut self,
        bar: &W,
        at: PageSlot,
        entry: &PageEntry,
        frame: u64,
    ) {
        let Some(slot) = self.slots.get_mut(at.0 as usize) else {
            return;
        };
        let marks = Marks::from_raw(slot.word);
        slot.vpn = entry.vpn;
        slot.ppn = entry.ppn;
        slot.frame = frame;
        slot.segment = entry.segment;
        slot.writable = entry.writable;
        self.relist(at, SlotState::Mapped);
        self.step(bar, at, |bar, table| {
            page_lock::publish_over(bar, table, at, entry, marks);
        });
    }

    /// Takes out a mapped slot at once if the NIC does not hold it; otherwise leaves it as it was.
    pub(crate) fn take_out_now<W: SharedWords + ?Sized>(&mut self, bar: &W, at: PageSlot) -> Out {
        self.zap(bar, at);
        bar.full_barrier();
        let out = self.take_out(bar, at);
        if matches!(out, Out::InUse(_)) {
            self.relist(at, SlotState::Mapped);
            self.step(bar, at, |bar, table| page_lock::restore(bar, table, at));
        }
        out
    }

    /// The port that gives a page away for a new one of `port` where all places are full.
    fn yielding_port(&self, vpn: Vpn) -> PortId {
        let held = |port: PortId| {
            self.places(vpn)
                .filter(|(_, slot)| slot.state != SlotState::Empty && slot.vpn.port() == port)
                .count()
        };
        if held(vpn.port()) * 2 >= PLACES as usize {
            return vpn.port();
        }
        self.places(vpn)
            .map(|(_, slot)| slot.vpn.port())
            .max_by_key(|&port| held(port))
            .unwrap_or(vpn.port())
    }

    /// Moves one of the pages that stand in a page's places to its own other row.
    fn move_one<W: SharedWords + ?Sized>(
        &mut self,
        bar: &W,
        vpn: Vpn,
    ) -> Result<Option<(PageSlot, PageGone)>, MapError> {
        for at in self.table.places(vpn) {
            let Some(slot) = self.slots.get(at.0 as usize).copied() else {
                continue;
            };
            if slot.state != SlotState::Mapped {
                continue;
            }
            let Some(to) = self.free_place(slot.vpn) else {
                continue;
            };
            match self.take_out_now(bar, at) {
                Out::InUse(_) => {}
                Out::CardGone => return Err(MapError::CardGone),
                Out::Gone(page, _) => {
                    let entry = PageEntry {
                        vpn: slot.vpn,
                        ppn: slot.ppn,
                        segment: slot.segment,
                        writable: slot.writable,
                    };
                    self.fill(bar, to, &entry, slot.frame);
                    let moved = PageGone {
                        still_readable: true,
                        ..page
                    };
                    return Ok(Some((at, moved)));
                }
            }
        }
        Ok(None)
    }

    /// Makes room for a page in its rows.
    pub(crate) fn make_room<W: SharedWords + ?Sized>(
        &mut self,
        bar: &W,
        vpn: Vpn,
    ) -> Result<(PageSlot, Option<PageGone>), MapError> {
        if let Some(at) = self.free_place(vpn) {
            return Ok((at, None));
        }
        if let Some((at, moved)) = self.move_one(bar, vpn)? {
            return Ok((at, Some(moved)));
        }
        let port = self.yielding_port(vpn);
        self.turn = self.turn.wrapping_add(1);
        let places = self.table.places(vpn);
        for step in 0..PLACES {
            let turn = self.turn.wrapping_add(step) % PLACES;
            let Some(&at) = places.get(turn as usize) else {
                continue;
            };
            let candidate = self.slots.get(at.0 as usize);
            if !candidate.is_some_and(|slot| slot.state == SlotState::Mapped && slot.vpn.port() == port) {
                continue;
            }
            match self.take_out_now(bar, at) {
                Out::Gone(page, _) => return Ok((at, Some(page))),
                Out::CardGone => return Err(MapError::CardGone),
                Out::InUse(_) => {}
            }
        }
        Err(MapError::Busy)
    }
}
