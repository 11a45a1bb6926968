//! Bringing pages in: as many as application or card seem to go on to ([`super::ahead`]).

use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::evict;
use super::frames::Frame;
use super::pager::{Region, Shared, State, add_all};
use super::swap::Slot;
use super::uffd::Refusal;
use super::{FaultError, Intent, PAGE_SIZE, PageIndex, PageKey};

/// Why a step could not be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// An event waits to be read by the pager's thread.
    Again,
    /// All pages are held for a moment.
    Held,
    /// It will not work later either.
    Never(FaultError),
}

/// The user that a page is brought in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    App,
    Nic,
}

/// Pages that are only likely to be wanted may push out one page in this many.
const TURNED_OVER: usize = 64;

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
        let pages = &region.pages;
        region
            .card_ahead
            .pass(key.page, |page| pages.get(page).frame.is_some());
        // Free frames are the application's first: the card gets ahead only as far as others may have to go for it.
        let wish = region.card_ahead.wish(key.page).min(turned_over(shared).max(1));
        let came = bring_in(shared, state, key, wish, intent, For::Nic)?;
        add_all(&shared.counts.nic_page_ins, came as usize);
        let region = state.region(key.region).ok_or(gone)?;
        region.card_ahead.came(key.page, came);
        // The page itself is mapped when the worker has copied into it, or when the card may read it.
        tell_resident(shared, region, key, 1..came);
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

/// The card may have pages that have come in: those that stand so many behind `first`.
pub(super) fn tell_resident(shared: &Shared, region: &Region, first: PageKey, behind: Range<u64>) {
    for page in behind {
        let key = PageKey {
            region: first.region,
            page: PageIndex(first.page.0 + page),
        };
        let page = region.pages.get(key.page);
        if let Some(frame) = page.frame {
            shared.events.resident(key, frame, page.written);
        }
    }
}

pub(super) fn unpin(shared: &Shared, key: PageKey) {
    let mut state = shared.lock();
    if let Some(region) = state.region(key.region) {
        region
            .pages
            .change(key.page, |page| page.pins = page.pins.saturating_sub(1));
    }
    // A notification costs a system call even where no thread waits.
    if state.waiting > 0 {
        shared.unpinned.notify_all();
    }
}

/// Gives pages that have no frame frames, with their contents: `key`, and of the pages after it up to `wish` in all, until one is
/// not absent or there is no room for it. Returns how many, at least 1.
pub(super) fn bring_in(
    shared: &Shared,
    state: &mut State,
    key: PageKey,
    wish: usize,
    intent: Intent,
    whom: For,
) -> Result<u64, Stop> {
    let gone = Stop::Never(FaultError::Gone);
    let address = shared.maps().app_address(key).ok_or(gone)?;
    let run = absent(shared, state, key, address, wish.min(state.buffer.len()));
    let room = make_room(shared, state, run)?;
    let filled = fill(shared, state, key, room)?;
    // Only a write by the application opens its mapping for writing; the card's writes are told by its own dirty words.
    let writable = whom == For::App && intent == Intent::Write;
    let contents = state.buffer.get(..filled).unwrap_or_default();
    let (came, found) = match shared.uffd.copy_pages(address, contents, !writable) {
        Ok(pages) => (pages, false),
        // It is in the memfd already, left by an madvise: it may hold anything. The application's mapping does not show it.
        Err(Refusal::Exists) => (1, true),
        Err(Refusal::Again) => return Err(Stop::Again),
        Err(Refusal::Gone) => return Err(gone),
        Err(Refusal::Other(errno)) => return Err(Stop::Never(FaultError::Kernel(errno))),
    };
    for page in key.page.0..key.page.0 + came as u64 {
        let key = PageKey {
            region: key.region,
            page: PageIndex(page),
        };
        let frame = state.free.pop().ok_or(Stop::Held)?;
        let region = state.region(key.region).ok_or(gone)?;
        region.pages.change(key.page, |page| {
            page.frame = Some(frame);
            page.app_writable = writable && !found;
            page.dirty = writable || found;
            page.written |= intent == Intent::Write || page.slot.is_some() || page.dirty;
            page.referenced = false;
        });
        let alias = region.mapping.alias_of(key.page);
        shared.frames.assign(frame, key, alias);
        state.lru.insert(frame);
    }
    let resident = u64::from(shared.limit) - state.free.len() as u64;
    shared.counts.max_resident.fetch_max(resident, Ordering::Relaxed);
    Ok(came as u64)
}

/// How many pages from `key` on, seen from `address` on, are absent: at least 1, `key` itself, and at most `wish`.
fn absent(shared: &Shared, state: &mut State, key: PageKey, address: usize, wish: usize) -> usize {
    let maps = shared.maps();
    let Some(region) = state.region(key.region) else {
        return 1;
    };
    let usable = |ahead: &usize| {
        let next = PageKey {
            region: key.region,
            page: PageIndex(key.page.0 + *ahead as u64),
        };
        let page = region.pages.get(next.page);
        page.frame.is_none()
            && page.pins == 0
            && maps.app_page(address + ahead * PAGE_SIZE) == Some(next)
            && !maps.is_removed(next)
    };
    1 + (1..wish).take_while(usable).count()
}

/// How many pages may go at once for pages that are only likely to be wanted.
fn turned_over(shared: &Shared) -> usize {
    shared.limit as usize / TURNED_OVER
}

/// Sees to free frames for `run` pages and says how many there are, at least 1. Only the first may cost whatever it takes; for the
/// others a small part of all frames is turned over. That part goes at once, since pages that leave together cost less.
fn make_room(shared: &Shared, state: &mut State, run: usize) -> Result<usize, Stop> {
    let others = turned_over(shared);
    if state.free.is_empty() || state.free.len() < run.min(others) {
        let evicted = evict::evict(shared, state, others);
        if state.free.is_empty() {
            evicted?;
        }
    }
    match state.free.len().min(run) {
        0 => Err(Stop::Held),
        room => Ok(room),
    }
}

/// Reads the contents of `room` pages from `key` on into the buffer; stops at one that cannot be read, unless it is the first.
fn fill(shared: &Shared, state: &mut State, key: PageKey, room: usize) -> Result<usize, Stop> {
    let State {
        regions,
        buffer,
        swap,
        ..
    } = state;
    let region = regions.get(key.region.0 as usize).and_then(Option::as_ref);
    let region = region.ok_or(Stop::Never(FaultError::Gone))?;
    let slot = |at: usize| region.pages.get(PageIndex(key.page.0 + at as u64)).slot;
    let mut at = 0;
    let mut most = room;
    while let Some(rest) = buffer.get_mut(at..room).filter(|rest| !rest.is_empty()) {
        let Some(first) = slot(at) else {
            rest.first_mut().into_iter().for_each(|page| page.fill(0));
            at += 1;
            continue;
        };
        // Neighbours in memory are often neighbours in the swap file: one call reads them all.
        let follows = |next: &usize| slot(at + next) == first.0.checked_add(*next as u32).map(Slot);
        let run = 1 + (1..rest.len().min(most)).take_while(follows).count();
        match swap.read(first, rest.get_mut(..run).unwrap_or_default()) {
            Ok(()) => {
                add_all(&shared.counts.swap_reads, run);
                at += run;
            }
            Err(_) if at > 0 => return Ok(at),
            // Perhaps the first can be read alone.
            Err(_) if run > 1 => most = 1,
            Err(errno) => return Err(Stop::Never(FaultError::Swap(errno))),
        }
    }
    Ok(room)
}
