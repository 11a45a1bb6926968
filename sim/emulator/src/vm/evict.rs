//! Bringing pages in and taking them away.
//!
//! A page leaves in this order, and each step needs the one before it: the application's mapping is write-protected (no thread of
//! the application writes any more), the card lets go of it (no DMA runs any more), what changed is copied out through the alias
//! and written to the swap file, a hole is punched (no mapping shows it any more), the frame is free for the next page.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::frames::Frame;
use super::lru::Probe;
use super::pager::{Shared, State, UnmapOutcome, add};
use super::uffd::Refusal;
use super::{FaultError, Intent, PageIndex, PageKey, RegionId};
use crate::copy;
use crate::fatal::{self, Fatal};

/// Why a step could not be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// An event waits to be read by the pager's thread.
    Again,
    /// All pages are held by somebody for a moment.
    Held,
    /// It will not work later either.
    Never(FaultError),
}

/// For whom a page is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    App,
    Nic,
}

/// How long an eviction may find nothing but held pages before the fault is refused.
const HELD_LIMIT: u32 = 1000;

/// Makes a page resident for the card and pins it. Returns its frame, its alias address and whether the card may write it.
pub(super) fn fault_in(
    shared: &Shared,
    key: PageKey,
    intent: Intent,
) -> Result<(Frame, usize, bool), FaultError> {
    let mut state = shared.lock();
    let mut held = 0;
    loop {
        match try_fault_in(shared, &mut state, key, intent) {
            Ok(done) => return Ok(done),
            Err(Stop::Never(error)) => return Err(error),
            Err(Stop::Again) => {
                drop(state);
                std::thread::sleep(Duration::from_micros(20));
                state = shared.lock();
            }
            Err(Stop::Held) => {
                held += 1;
                if held > HELD_LIMIT {
                    return Err(FaultError::NoFrame);
                }
                state = shared.wait_unpinned(state);
            }
        }
    }
}

fn try_fault_in(
    shared: &Shared,
    state: &mut MutexGuard<'_, State>,
    key: PageKey,
    intent: Intent,
) -> Result<(Frame, usize, bool), Stop> {
    let gone = Stop::Never(FaultError::Gone);
    // A segment names addresses: a page that was moved is not there any more (it does not follow mremap).
    let home = shared.maps().app_address(key);
    let region = state.region(key.region).ok_or(gone)?;
    if key.page.0 >= region.mapping.pages() || home != Some(region.mapping_address(key.page)) {
        return Err(gone);
    }
    if region.pages.get(key.page).frame.is_none() {
        bring_in(shared, state, key, intent, For::Nic)?;
        add(&shared.counts.nic_page_ins);
    }
    let region = state.region(key.region).ok_or(gone)?;
    let alias = region.mapping.alias_of(key.page);
    let (frame, writable) = region.pages.change(key.page, |page| {
        page.pins += 1;
        page.written |= intent == Intent::Write;
        (page.frame, page.written)
    });
    frame.map(|frame| (frame, alias, writable)).ok_or(gone)
}

pub(super) fn unpin(shared: &Shared, key: PageKey) {
    if let Some(region) = shared.lock().region(key.region) {
        region
            .pages
            .change(key.page, |page| page.pins = page.pins.saturating_sub(1));
    }
    shared.unpinned.notify_all();
}

/// Gives a page that has no frame a frame, with its contents.
pub(super) fn bring_in(
    shared: &Shared,
    state: &mut State,
    key: PageKey,
    intent: Intent,
    whom: For,
) -> Result<Frame, Stop> {
    let Some(frame) = take_frame(shared, state)? else {
        return Err(Stop::Held);
    };
    let filled = fill_and_install(shared, state, key, intent, whom);
    let Some(region) = state.region(key.region).filter(|_| filled.is_ok()) else {
        state.free.push(frame);
        return Err(filled.err().unwrap_or(Stop::Never(FaultError::Gone)));
    };
    let alias = region.mapping.alias_of(key.page);
    region.pages.change(key.page, |page| {
        page.frame = Some(frame);
        // A page that was there already (left by an madvise) may hold anything and be mapped in any way.
        page.app_writable = filled != Ok(Protection::Protected);
        page.dirty = page.app_writable;
        page.written |= intent == Intent::Write || page.slot.is_some() || page.dirty;
        page.referenced = false;
    });
    shared.frames.assign(frame, key, alias);
    state.lru.insert(frame);
    let resident = u64::from(shared.limit) - state.free.len() as u64;
    shared.counts.max_resident.fetch_max(resident, Ordering::Relaxed);
    Ok(frame)
}

/// How the application sees a page that was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Protected,
    Writable,
    /// The page was in the memfd already.
    Found,
}

fn fill_and_install(
    shared: &Shared,
    state: &mut State,
    key: PageKey,
    intent: Intent,
    whom: For,
) -> Result<Protection, Stop> {
    let address = shared
        .maps()
        .app_address(key)
        .ok_or(Stop::Never(FaultError::Gone))?;
    let region = state.region(key.region).ok_or(Stop::Never(FaultError::Gone))?;
    match region.pages.get(key.page).slot {
        None => state.buffer.fill(0),
        Some(slot) => {
            state
                .swap
                .read(slot, &mut state.buffer)
                .map_err(|errno| Stop::Never(FaultError::Swap(errno)))?;
            add(&shared.counts.swap_reads);
        }
    }
    // Only a write by the application opens its mapping for writing; the card's writes are told by its own dirty words.
    let writable = whom == For::App && intent == Intent::Write;
    match shared.uffd.copy_page(address, &state.buffer, !writable) {
        Ok(()) if writable => Ok(Protection::Writable),
        Ok(()) => Ok(Protection::Protected),
        Err(Refusal::Exists) => Ok(Protection::Found),
        Err(Refusal::Again) => Err(Stop::Again),
        Err(Refusal::Gone) => Err(Stop::Never(FaultError::Gone)),
        Err(Refusal::Other(errno)) => Err(Stop::Never(FaultError::Kernel(errno))),
    }
}

fn take_frame(shared: &Shared, state: &mut State) -> Result<Option<Frame>, Stop> {
    if state.free.is_empty() {
        evict_one(shared, state)?;
    }
    Ok(state.free.pop())
}

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
    // Unmapped by the application: nobody can write there, and the event that says so is on its way.
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
fn evict_one(shared: &Shared, state: &mut State) -> Result<(), Stop> {
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
        // SAFETY: the page is resident, so its alias address is readable for a page; nobody but this thread can reach it now, and
        // the copy would tolerate it if somebody did.
        unsafe { copy::copy_out(alias, &mut state.buffer[..]) };
        let slot = state
            .swap
            .write(page.slot, &state.buffer)
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

/// Forgets pages `from..to` of a region and their contents. Stops at a page that somebody holds, and names it.
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
