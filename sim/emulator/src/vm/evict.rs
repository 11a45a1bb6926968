//! Taking pages away.
//!
//! A page leaves in this order, and each step needs the one before it: the application's mapping is write-protected (no thread of
//! the application writes any more), the card lets go of it (no DMA runs any more), what changed is copied out through the alias
//! and written to the swap file, a hole is punched (no mapping shows it any more), the frame is free for the next page.
//!
//! Protecting and punching interrupt every processor that runs a thread of this process, which costs more than all the rest. So
//! a few pages leave together: pages that lie side by side are protected, written and punched with one call each.

use netvm_abi::mutant::{self, Mutant};
use rustix::io::Errno;

use super::frames::Frame;
use super::lru::Probe;
use super::page_in::Stop;
use super::pager::{Shared, State, add, add_all};
use super::uffd::Refusal;
use super::{FaultError, PAGE_SIZE, PageIndex, PageKey, RegionId, ahead};
use crate::copy;
use crate::fatal::{self, Fatal};

/// The most pages that leave together.
pub(super) const MOST: usize = ahead::MOST;

/// What the LRU asks, answered from page table and card.
struct Asking<'a> {
    shared: &'a Shared,
    regions: &'a mut [Option<super::pager::Region>],
    /// Inactive pages that the application can write.
    open: Vec<PageKey>,
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
        self.page(frame, |page| page.pins == 0)
            .is_some_and(|(_, free)| free)
    }

    /// Has an inactive page protected, so that the application's next write to it is seen as a use.
    fn deactivated(&mut self, frame: Frame) {
        if let Some((key, true)) = self.page(frame, |page| page.app_writable) {
            self.open.push(key);
        }
    }
}

/// Write-protects pages, side by side ones together.
fn protect_all(shared: &Shared, state: &mut State, mut pages: Vec<PageKey>) -> Result<(), Stop> {
    pages.sort_unstable();
    pages.dedup();
    let mut seen: Vec<(PageKey, usize)> = Vec::with_capacity(pages.len());
    let maps = shared.maps();
    for &key in &pages {
        // Unmapped by the application: no thread can write there, and the event that says so is on its way.
        if let Some(address) = maps.app_address(key) {
            seen.push((key, address));
        }
    }
    drop(maps);
    let side_by_side = |a: &(PageKey, usize), b: &(PageKey, usize)| {
        is_next(a.0, b.0) && a.1.checked_add(PAGE_SIZE) == Some(b.1)
    };
    for run in seen.chunk_by(side_by_side) {
        let Some((_, address)) = run.first() else { continue };
        protect(shared, *address, run.len())?;
    }
    for key in pages {
        if let Some(region) = state.region(key.region) {
            region.pages.change(key.page, |page| page.app_writable = false);
        }
    }
    Ok(())
}

fn protect(shared: &Shared, address: usize, pages: usize) -> Result<(), Stop> {
    match shared.uffd.write_protect(address, pages, true) {
        Ok(()) => Ok(()),
        // Older kernels want one mapping, and the application may have split it.
        Err(Refusal::Gone) if pages > 1 => {
            (0..pages).try_for_each(|page| protect(shared, address + page * PAGE_SIZE, 1))
        }
        Err(Refusal::Again | Refusal::Gone | Refusal::Exists) => Err(Stop::Again),
        Err(Refusal::Other(errno)) => Err(Stop::Never(FaultError::Kernel(errno))),
    }
}

/// A page that leaves, and the frame that it lies in.
#[derive(Clone, Copy)]
struct Victim {
    key: PageKey,
    frame: Frame,
}

fn is_next(a: PageKey, b: PageKey) -> bool {
    a.region == b.region && a.page.0 + 1 == b.page.0
}

/// Frees up to `wish` frames, at most [`MOST`], and at least one.
pub(super) fn evict(shared: &Shared, state: &mut State, wish: usize) -> Result<(), Stop> {
    loop {
        let mut victims = choose(shared, state, wish.clamp(1, MOST))?;
        victims.sort_unstable_by_key(|victim| victim.key);
        let before = state.free.len();
        let mut stop = None;
        for neighbours in victims.chunk_by(|a, b| is_next(a.key, b.key)) {
            if stop.is_none() {
                stop = evict_run(shared, state, neighbours).err();
            }
        }
        for victim in victims {
            // A page that stays goes to the end of the queue.
            if shared.frames.owner(victim.frame) == Some(victim.key) {
                state.lru.insert(victim.frame);
            }
        }
        match stop {
            _ if state.free.len() > before => return Ok(()),
            Some(stop) => return Err(stop),
            // The card has let go of none of them: others must go.
            None => {}
        }
    }
}

/// Takes up to `wish` pages out of the queue, at least one, all of them protected against writes of the application.
fn choose(shared: &Shared, state: &mut State, wish: usize) -> Result<Vec<Victim>, Stop> {
    let mut asking = Asking {
        shared,
        regions: &mut state.regions,
        open: Vec::new(),
    };
    let mut victims = Vec::with_capacity(wish);
    while victims.len() < wish
        && let Some(frame) = state.lru.victim(&mut asking)
    {
        state.lru.remove(frame);
        // A page was found in the frame when it was asked whether it may go.
        victims.extend(shared.frames.owner(frame).map(|key| Victim { key, frame }));
    }
    let mut open = asking.open;
    for victim in &victims {
        let region = state.region(victim.key.region);
        if region.is_some_and(|region| region.pages.get(victim.key.page).app_writable) {
            open.push(victim.key);
        }
    }
    let protected = protect_all(shared, state, open);
    if protected.is_err() {
        victims.iter().for_each(|victim| state.lru.insert(victim.frame));
    }
    protected?;
    if victims.is_empty() {
        return Err(Stop::Held);
    }
    Ok(victims)
}

/// Takes a run of pages away that lie side by side, at most as many as the buffer holds. Pages that the swap file does not take
/// stay.
fn evict_run(shared: &Shared, state: &mut State, run: &[Victim]) -> Result<(), Stop> {
    let mut released = Vec::with_capacity(run.len());
    for &victim in run {
        let Some(region) = state.region(victim.key.region) else {
            continue;
        };
        shared.events.unmap(victim.key, victim.frame);
        shared.frames.clear_mapped(victim.frame);
        let by_card = shared.frames.take_dirty(victim.frame);
        let dirty = region.pages.change(victim.key.page, |page| {
            if by_card && !page.dirty {
                add(&shared.counts.nic_dirty_evictions);
            }
            page.dirty |= by_card && !mutant::is(Mutant::PagerForgetsDirty);
            page.dirty
        });
        released.push((victim, dirty));
    }
    let mut leaving = Vec::with_capacity(run.len());
    let mut failed = Ok(());
    for part in released.chunk_by(|a, b| is_next(a.0.key, b.0.key) && a.1 == b.1) {
        let pages = part.iter().map(|(victim, _)| *victim);
        if part.first().is_some_and(|(_, dirty)| *dirty)
            && let Err(errno) = write_out(shared, state, pages.clone())
        {
            failed = Err(Stop::Never(FaultError::Swap(errno)));
            continue;
        }
        leaving.extend(pages);
    }
    for part in leaving.chunk_by(|a, b| is_next(a.key, b.key)) {
        add_all(&shared.counts.evictions, part.len());
        free_frames(shared, state, part);
    }
    failed
}

/// Writes pages that lie side by side, at most as many as the buffer holds, to the swap file. The application cannot write them,
/// and the card has let go of them.
fn write_out(
    shared: &Shared,
    state: &mut State,
    pages: impl Iterator<Item = Victim> + Clone,
) -> Result<(), Errno> {
    let State {
        regions,
        buffer,
        swap,
        ..
    } = state;
    let mut slots = Vec::with_capacity(buffer.len());
    for (victim, contents) in pages.clone().zip(buffer.iter_mut()) {
        let region = regions.get(victim.key.region.0 as usize).and_then(Option::as_ref);
        let region = region.ok_or(Errno::NOENT)?;
        let alias: *const u8 = core::ptr::with_exposed_provenance(region.mapping.alias_of(victim.key.page));
        // SAFETY: the page is resident, so its alias address is readable for a page; only this thread can reach it now, and
        // the copy would tolerate another.
        unsafe { copy::copy_out(alias, contents) };
        slots.push(region.pages.get(victim.key.page).slot);
    }
    let contents = buffer.get(..slots.len()).unwrap_or_default();
    let written = swap.write(&slots, contents)?;
    add_all(&shared.counts.swap_writes, written.len());
    for (victim, slot) in pages.zip(written) {
        if let Some(region) = state.region(victim.key.region) {
            region.pages.change(victim.key.page, |page| {
                page.slot = Some(slot);
                page.dirty = false;
            });
        }
    }
    Ok(())
}

/// Removes the memory of pages that lie side by side and gives their frames back. The card must have let go of them.
fn free_frames(shared: &Shared, state: &mut State, pages: &[Victim]) {
    for victim in pages {
        shared.frames.release(victim.frame);
        state.lru.remove(victim.frame);
    }
    let Some(first) = pages.first() else { return };
    if let Some(region) = state.region(first.key.region) {
        if let Err(errno) = region.mapping.punch(first.key.page, pages.len() as u64) {
            fatal::abort(Fatal::Pager, format_args!("punching a hole: {errno}"));
        }
        for victim in pages {
            region.pages.change(victim.key.page, |page| {
                page.frame = None;
                page.app_writable = false;
                page.dirty = false;
                page.referenced = false;
            });
        }
    }
    state.free.extend(pages.iter().map(|victim| victim.frame));
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
        if region.pages.get(index).pins > 0 {
            return Err(index);
        }
        let known = |page: u64| {
            let index = PageIndex(page);
            (
                PageKey {
                    region: id,
                    page: index,
                },
                region.pages.get(index),
            )
        };
        let used = |(_, page): &(_, super::pages::Page)| {
            page.pins == 0 && (page.frame.is_some() || page.slot.is_some())
        };
        let run: Vec<_> = (index.0..to).map(known).take_while(used).take(MOST).collect();
        let mut leaving = Vec::with_capacity(run.len());
        for &(key, page) in &run {
            if let Some(frame) = page.frame {
                shared.events.unmap(key, frame);
                leaving.push(Victim { key, frame });
            }
            if let Some(slot) = page.slot {
                state.swap.free(slot);
            }
        }
        for part in leaving.chunk_by(|a, b| is_next(a.key, b.key)) {
            free_frames(shared, state, part);
        }
        if let Some(region) = state.region(id) {
            for (key, _) in &run {
                region
                    .pages
                    .change(key.page, |page| *page = super::pages::Page::default());
            }
        }
        at = index.0 + run.len() as u64;
    }
}
