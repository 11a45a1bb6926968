//! Taking pages away.
//!
//! A page leaves in this order, and each step needs the one before it: the application's mapping is write-protected (no thread of
//! the application writes any more), the card lets go of it (no DMA runs any more), what changed is copied out through the alias
//! and written to the swap file, a hole is punched (no mapping shows it any more), the frame is free for the next page.

use super::frames::Frame;
use super::lru::Probe;
use super::page_in::Stop;
use super::pager::{Shared, State, UnmapOutcome, add};
use super::uffd::Refusal;
use super::{FaultError, PageIndex, PageKey, RegionId};
use crate::copy;
use crate::fatal::{self, Fatal};

/// What the LRU asks, answered from page table and card.
struct Asking<'a> {
    shared: &'a Shared,
    regions: &'a mut [Option<super::pager::Region>],
    protect_failed: bool,
}

impl Asking<'_> {
    fn page<R>(
        &mut self,
        frame: Frame,
        change: impl FnOnce(&mut super::pages::Page) -> R,
    ) -> Option<(PageKey, R)> {
        let key = self.shared.frames.owner(frame)?;
        let region = self.regions.get_mut(key.region.0 as usize)?.as_mut()?;
        Some((key, region.pages.change(key.page, change)))
    }
}

impl Probe for Asking<'_> {
    fn take_referenced(&mut self, frame: Frame) -> bool {
        let by_app = self.page(frame, |page| std::mem::take(&mut page.referenced));
        let Some((key, by_app)) = by_app else { return false };
        let told = self.shared.frames.take_referenced(frame);
        // Ask the card in any case: asking clears its mark.
        let by_card = self.shared.events.take_referenced(key, frame);
        by_app | told | by_card
    }

    fn evictable(&mut self, frame: Frame) -> bool {
        self.page(frame, |page| page.pins == 0 && !page.stuck)
            .is_some_and(|(_, free)| free)
    }

    /// Protects an inactive page, so that the application's next write to it is seen as a use.
    fn deactivated(&mut self, frame: Frame) {
        let Some((key, true)) = self.page(frame, |page| page.app_writable) else {
            return;
        };
        match protect(self.shared, key) {
            Ok(()) => {
                self.page(frame, |page| page.app_writable = false);
            }
            Err(_) => self.protect_failed = true,
        }
    }
}

fn protect(shared: &Shared, key: PageKey) -> Result<(), Stop> {
    // Unmapped by the application: no thread can write there, and the event that says so is on its way.
    let Some(address) = shared.maps().app_address(key) else {
        return Ok(());
    };
    match shared.uffd.write_protect(address, true) {
        Ok(()) => Ok(()),
        Err(Refusal::Again | Refusal::Gone | Refusal::Exists) => Err(Stop::Again),
        Err(Refusal::Other(errno)) => Err(Stop::Never(FaultError::Kernel(errno))),
    }
}

/// Frees one frame.
pub(super) fn evict_one(shared: &Shared, state: &mut State) -> Result<(), Stop> {
    loop {
        let mut asking = Asking {
            shared,
            regions: &mut state.regions,
            protect_failed: false,
        };
        let victim = state.lru.victim(&mut asking);
        if asking.protect_failed {
            return Err(Stop::Again);
        }
        let Some(frame) = victim else {
            return Err(Stop::Held);
        };
        if evict(shared, state, frame)? {
            return Ok(());
        }
    }
}

/// Takes the page in `frame` away. False if the card does not let go of it: then it stays for good.
fn evict(shared: &Shared, state: &mut State, frame: Frame) -> Result<bool, Stop> {
    let Some(key) = shared.frames.owner(frame) else {
        return Err(Stop::Held);
    };
    let gone = Stop::Never(FaultError::Gone);
    let region = state.region(key.region).ok_or(gone)?;
    // What madvise has touched may be mapped for writing without the pager's knowledge.
    if region.pages.get(key.page).app_writable || shared.maps().is_removed(key) {
        protect(shared, key)?;
        region.pages.change(key.page, |page| page.app_writable = false);
    }
    let UnmapOutcome::Done { dirty } = shared.events.unmap(key, frame) else {
        region.pages.change(key.page, |page| page.stuck = true);
        add(&shared.counts.stuck);
        return Ok(false);
    };
    shared.frames.clear_mapped(frame);
    let by_card = dirty | shared.frames.take_dirty(frame);
    let page = region.pages.change(key.page, |page| {
        if by_card && !page.dirty {
            add(&shared.counts.nic_dirty_evictions);
        }
        page.dirty |= by_card;
        *page
    });
    if page.dirty {
        let alias: *const u8 = core::ptr::with_exposed_provenance(region.mapping.alias_of(key.page));
        // SAFETY: the page is resident, so its alias address is readable for a page; only this thread can reach it now, and
        // the copy would tolerate another.
        unsafe { copy::copy_out(alias, &mut state.buffer[0][..]) };
        let slot = state
            .swap
            .write(page.slot, &state.buffer[0])
            .map_err(|errno| Stop::Never(FaultError::Swap(errno)))?;
        add(&shared.counts.swap_writes);
        if let Some(region) = state.region(key.region) {
            region.pages.change(key.page, |page| {
                page.slot = Some(slot);
                page.dirty = false;
            });
        }
    }
    add(&shared.counts.evictions);
    free_frame(shared, state, key, frame);
    Ok(true)
}

/// Removes a page's memory and gives its frame back. The card must have let go of it.
fn free_frame(shared: &Shared, state: &mut State, key: PageKey, frame: Frame) {
    shared.frames.release(frame);
    state.lru.remove(frame);
    if let Some(region) = state.region(key.region) {
        if let Err(errno) = region.mapping.punch(key.page) {
            fatal::abort(Fatal::Pager, format_args!("punching a hole: {errno}"));
        }
        region.pages.change(key.page, |page| {
            page.frame = None;
            page.app_writable = false;
            page.dirty = false;
            page.referenced = false;
        });
    }
    state.free.push(frame);
}

/// Forgets pages `from..to` of a region and their contents. Stops at a held page, and names it.
pub(super) fn drop_pages(
    shared: &Shared,
    state: &mut State,
    id: RegionId,
    from: u64,
    to: u64,
) -> Result<(), PageIndex> {
    let mut at = from;
    loop {
        let Some(region) = state.region(id) else {
            return Ok(());
        };
        let Some(index) = region.pages.next_used(at, to.min(region.mapping.pages())) else {
            return Ok(());
        };
        let page = region.pages.get(index);
        if page.pins > 0 {
            return Err(index);
        }
        let key = PageKey {
            region: id,
            page: index,
        };
        if let Some(frame) = page.frame {
            match shared.events.unmap(key, frame) {
                UnmapOutcome::Done { .. } => free_frame(shared, state, key, frame),
                UnmapOutcome::Stuck => {
                    // The frame is lost, and its memory stays until the process ends.
                    add(&shared.counts.stuck);
                    state.lru.remove(frame);
                }
            }
        }
        if let Some(slot) = page.slot {
            state.swap.free(slot);
        }
        if let Some(region) = state.region(id) {
            region
                .pages
                .change(index, |page| *page = super::pages::Page::default());
        }
        at = index.0 + 1;
    }
}
