//! Unmapping ranges: zap, one barrier, look at the locks, take out.

use super::Host;
use crate::card::{CardFailure, CardState};
use crate::lists::List;
use crate::platform::{PageGone, Platform};
use crate::shadow::{Met, Out, Slot, SlotState};
use crate::unmap::{Range, Unmap, UnmapKind, UnmapStep};
use netvm_abi::page_lock::PageUse;
use netvm_abi::page_table::{PageEntry, PageSlot};
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, PortId, SegmentId, Vpn};

impl<S: Storage> Host<S> {
    /// Begins to unmap `pages` pages from `first` on, of one port. From now on none of them can be
    /// mapped.
    pub fn unmap_begin(&mut self, first: Vpn, pages: u64, kind: UnmapKind) -> Unmap {
        self.races.begin(first, pages);
        Unmap {
            range: Range {
                port: first.port(),
                first: first.page_number(),
                pages,
            },
            kind,
            waiting_since: None,
            waited_since: None,
            scanned: None,
        }
    }

    /// Goes on: zaps the range, one full barrier, then looks at the locks. Deals with at most
    /// `budget` pages of whole segments; a part of a segment is dealt with at once. Inside an
    /// invalidation, which must not be cut up, pass `u32::MAX`. Every page that is out is told to
    /// `gone`, under the lock.
    pub fn unmap_step<P: Platform>(
        &mut self,
        platform: &mut P,
        unmap: &mut Unmap,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> UnmapStep {
        match self.card {
            CardState::Alive => {}
            CardState::Dead(_) => return self.step_dead(unmap),
            CardState::Stopped { proven, .. } => {
                self.abandon(unmap.range, !proven, gone);
                return UnmapStep::Done;
            }
        }
        let mut left = budget;
        if unmap.scanned != Some(self.shadow.revived) {
            if !self.zap(platform, unmap, &mut left) {
                return UnmapStep::Again;
            }
            unmap.scanned = Some(self.shadow.revived);
        }
        platform.bar().full_barrier();
        match self.collect(platform, unmap, &mut left, gone) {
            Ok(UnmapStep::InUse) => {
                self.counters.unmap_waits += 1;
                unmap.waited_since.get_or_insert(now);
                let since = *unmap.waiting_since.get_or_insert(self.wait_for_card());
                match self.is_overdue(platform, since, CardFailure::UnmapDeadline, now) {
                    None => UnmapStep::InUse,
                    Some(cause) => {
                        self.fail(cause);
                        UnmapStep::CardDead
                    }
                }
            }
            Ok(step) => {
                if let (UnmapStep::Done, Some(since)) = (step, unmap.waited_since.take()) {
                    self.counters.unmap_waited(Nanos(now.0.saturating_sub(since.0)));
                }
                step
            }
            Err(cause) => {
                self.fail(cause);
                UnmapStep::CardDead
            }
        }
    }

    /// Ends a finished unmap, after the platform has changed its own page tables.
    pub fn unmap_end(&mut self, unmap: Unmap) {
        self.races.end(unmap.range.vpn(), unmap.range.pages);
    }

    /// Gives an unmap up: pages of the range that are still in use stay mapped. Pages that `gone`
    /// was told of stay out. On a dead card nothing comes back.
    pub fn unmap_restore<P: Platform>(&mut self, platform: &mut P, unmap: Unmap) {
        let mut segment = self.segments.first_in(unmap.range.port, unmap.range.first);
        while let Some((at, id, first, _)) = segment {
            if !self.is_alive() || first >= unmap.range.first.saturating_add(unmap.range.pages) {
                break;
            }
            let mut slot = self.zapped(id);
            while let Some(index) = slot {
                slot = List::<0>::after(&self.shadow.slots, index);
                if self.slot_in(index, unmap.range).is_some() {
                    self.shadow.restore(platform.bar(), PageSlot(index));
                    self.counters.pages_restored += 1;
                }
            }
            segment = self.segments.next_in(unmap.range.port, at);
        }
        self.unmap_end(unmap);
    }

    fn zapped(&self, segment: SegmentId) -> Option<u32> {
        self.shadow.pages(segment)?.zapped.first()
    }

    fn slot_in(&self, index: u32, range: Range) -> Option<Slot> {
        let slot = *self.shadow.slots.get(index as usize)?;
        range.covers(slot.vpn).then_some(slot)
    }

    /// Zaps what is mapped in the range; false when the budget ends first.
    fn zap<P: Platform>(&mut self, platform: &mut P, unmap: &mut Unmap, left: &mut u32) -> bool {
        let range = unmap.range;
        let end = range.first.saturating_add(range.pages);
        let protect = unmap.kind == UnmapKind::WriteProtect;
        let bar = platform.bar();
        let mut segment = self.segments.first_in(range.port, range.first);
        while let Some((at, id, first, pages)) = segment {
            if first >= end {
                break;
            }
            let mapped = self.shadow.pages(id).map_or(0, |pages| pages.mapped.len());
            let from = first.max(range.first);
            let until = first.saturating_add(pages).min(end);
            if !protect && from == first && until == first + pages {
                while let Some(index) = self.shadow.pages(id).and_then(|pages| pages.mapped.first()) {
                    if *left == 0 {
                        return false;
                    }
                    *left -= 1;
                    self.shadow.zap(bar, PageSlot(index));
                    unmap.waiting_since = None;
                }
            } else if until - from <= u64::from(mapped) {
                for page in from..until {
                    let found = self.shadow.find(Vpn::new(range.port, page));
                    let Some((at, slot)) = found else { continue };
                    if slot.state == SlotState::Mapped && (slot.writable || !protect) {
                        self.shadow.zap(bar, at);
                        unmap.waiting_since = None;
                    }
                }
            } else {
                let mut next = self.shadow.pages(id).and_then(|pages| pages.mapped.first());
                while let Some(index) = next {
                    next = List::<0>::after(&self.shadow.slots, index);
                    if let Some(slot) = self.slot_in(index, range)
                        && (slot.writable || !protect)
                    {
                        self.shadow.zap(bar, PageSlot(index));
                        unmap.waiting_since = None;
                    }
                }
            }
            segment = self.segments.next_in(range.port, at);
        }
        true
    }

    /// Takes out what is zapped in the range and free.
    fn collect<P: Platform>(
        &mut self,
        platform: &mut P,
        unmap: &Unmap,
        left: &mut u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Result<UnmapStep, CardFailure> {
        let range = unmap.range;
        let end = range.first.saturating_add(range.pages);
        let protect = unmap.kind == UnmapKind::WriteProtect;
        let mut in_use = false;
        let mut segment = self.segments.first_in(range.port, range.first);
        while let Some((at, id, first, _)) = segment {
            if first >= end {
                break;
            }
            let mut next = self.zapped(id);
            while let Some(index) = next {
                next = List::<0>::after(&self.shadow.slots, index);
                let Some(slot) = self.slot_in(index, range) else {
                    continue;
                };
                // A removal took it out of the table, and the NIC cannot hold it for writing: to a write protection it is
                // not there, and neither its readers nor its removal have to wait.
                if protect && !slot.writable {
                    continue;
                }
                match self.shadow.take_out(platform.bar(), PageSlot(index)) {
                    // Does not count against the budget: there are no more of these than DMAs.
                    Out::InUse(met) => {
                        self.counters.unmap_found_locked += u64::from(met == Met::Locked);
                        in_use = true;
                        continue;
                    }
                    Out::CardGone => return Err(CardFailure::AllOnes),
                    Out::Gone(mut page, met) => {
                        self.counters.unmap_neither += u64::from(met == Met::Neither);
                        self.counters.pages_dirty += u64::from(page.dirty);
                        if protect {
                            self.counters.pages_protected += 1;
                            page.still_readable = true;
                            let entry = PageEntry {
                                vpn: slot.vpn,
                                ppn: slot.ppn,
                                segment: slot.segment,
                                writable: false,
                            };
                            self.shadow
                                .fill(platform.bar(), PageSlot(index), &entry, slot.frame);
                            // An overlapping removal must look again.
                            self.shadow.revived = self.shadow.revived.wrapping_add(1);
                        } else {
                            self.counters.pages_unmapped += 1;
                        }
                        gone(page);
                    }
                }
                *left = left.saturating_sub(1);
                if *left == 0 && next.is_some() {
                    return Ok(UnmapStep::Again);
                }
            }
            segment = self.segments.next_in(range.port, at);
        }
        Ok(if in_use { UnmapStep::InUse } else { UnmapStep::Done })
    }

    /// A dead card: an unmap is over only if nothing of the range is left.
    fn step_dead(&mut self, unmap: &Unmap) -> UnmapStep {
        let range = unmap.range;
        let mut segment = self.segments.first_in(range.port, range.first);
        while let Some((at, id, first, _)) = segment {
            if first >= range.first.saturating_add(range.pages) {
                break;
            }
            if let Some(pages) = self.shadow.pages(id) {
                for list in [pages.mapped, pages.zapped] {
                    let mut next = list.first();
                    while let Some(index) = next {
                        if self.slot_in(index, range).is_some() {
                            return UnmapStep::CardDead;
                        }
                        next = List::<0>::after(&self.shadow.slots, index);
                    }
                }
            }
            segment = self.segments.next_in(range.port, at);
        }
        UnmapStep::Done
    }

    /// A stopped card: what is left of the range goes, as if the card had used all of it and written what it could.
    fn abandon(&mut self, range: Range, leaked: bool, gone: &mut impl FnMut(PageGone)) {
        let used = PageUse {
            dirty: true,
            referenced: true,
            held: false,
        };
        let mut segment = self.segments.first_in(range.port, range.first);
        while let Some((at, id, first, _)) = segment {
            if first >= range.first.saturating_add(range.pages) {
                break;
            }
            if let Some(&pages) = self.shadow.pages(id) {
                for list in [pages.mapped, pages.zapped] {
                    let mut next = list.first();
                    while let Some(index) = next {
                        next = List::<0>::after(&self.shadow.slots, index);
                        if self.slot_in(index, range).is_some() {
                            let page = self.shadow.forget(PageSlot(index), used, leaked);
                            self.counters.pages_unmapped += 1;
                            self.counters.pages_dirty += u64::from(page.dirty);
                            self.counters.pages_leaked += u64::from(leaked);
                            gone(page);
                        }
                    }
                }
            }
            segment = self.segments.next_in(range.port, at);
        }
    }

    /// Forgets a page of a port without telling the NIC: what the mutant `DeadPageStaysMapped` does.
    pub(crate) fn lose_a_page(&mut self, port: PortId) {
        let mut segment = self.segments.first_in(port, 0);
        while let Some((at, id, _, _)) = segment {
            if let Some(index) = self.shadow.pages(id).and_then(|pages| pages.mapped.first()) {
                let _ = self.shadow.forget(PageSlot(index), PageUse::default(), false);
                return;
            }
            segment = self.segments.next_in(port, at);
        }
    }
}
