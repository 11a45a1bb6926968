//! The pager's thread: faults of application threads, and what the application does to its mappings.
//!
//! Reading an event acknowledges it, so a change of mappings goes on while it is being handled here. That is safe because the card
//! and the pager work on the alias, which stays: unmapping or moving the application's mapping takes no memory away. Only
//! `madvise(MADV_REMOVE)` does, see [`super::watcher`].
//!
//! `madvise` may thus return before its pages are forgotten here, and what the application writes there then must stay. It
//! does: `madvise` takes the pages from the application's mapping, and no page appears there again but by this thread
//! (for writing) or write-protected (for the card's sake). So the first write after an `madvise` is a fault, and this thread
//! answers it after it has forgotten the pages. A page that is evicted before `madvise` reaches it keeps its old contents: the
//! kernel does not say when `madvise` ends.

use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::evict;
use super::page_in::{self, For, Stop};
use super::pager::{Shared, State, add};
use super::uffd::{Event, Lack, Refusal};
use super::{Intent, PAGE_SIZE, PageIndex, PageKey};
use crate::fatal::{self, Fatal};

/// Runs until `stop` is readable.
pub(super) fn run(shared: &Shared) {
    // What could not be answered because another event had to be read first.
    let mut postponed: Vec<Event> = Vec::new();
    loop {
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000,
        };
        let mut fds = [
            PollFd::new(&shared.uffd, PollFlags::IN),
            PollFd::new(&shared.stop, PollFlags::IN),
        ];
        match poll(&mut fds, (!postponed.is_empty()).then_some(&soon)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => fatal::abort(Fatal::Pager, format_args!("poll: {errno}")),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        let mut again = Vec::new();
        let mut answer = |event| {
            if handle(shared, event).is_err() {
                again.push(event);
            }
        };
        while let Some(event) = next(shared) {
            answer(event);
        }
        postponed.drain(..).for_each(answer);
        postponed = again;
    }
}

/// Reads the next event. `reading` is odd from before the read, which lets an `madvise` go on, until its pages are noted: the
/// alias' watcher can tell a DMA that met it half-way from a broken promise.
fn next(shared: &Shared) -> Option<Event> {
    shared.reading.fetch_add(1, Ordering::SeqCst);
    let event = match shared.uffd.read_event() {
        Ok(event) => event,
        Err(errno) => fatal::abort(Fatal::Pager, format_args!("reading faults: {errno}")),
    };
    if let Some(Event::Remove { start, end }) = event {
        shared.maps_mut().note_removed(start, end);
    }
    shared.reading.fetch_add(1, Ordering::SeqCst);
    event
}

/// An event that must be looked at again.
struct Postponed;

fn handle(shared: &Shared, event: Event) -> Result<(), Postponed> {
    match event {
        Event::Fault { addr, write, lack } => {
            add(match lack {
                Lack::Permission => &shared.counts.protect_faults,
                Lack::Page | Lack::Mapping => &shared.counts.app_faults,
            });
            let mut state = shared.lock();
            loop {
                match fault(shared, &mut state, addr, write, lack) {
                    Ok(()) => return Ok(()),
                    Err(Stop::Held) => state = shared.wait_unpinned(state),
                    Err(Stop::Again) => return Err(Postponed),
                    Err(Stop::Never(error)) => fatal::abort(
                        Fatal::Pager,
                        format_args!("a fault at {addr:#x} cannot be answered: {error}"),
                    ),
                }
            }
        }
        Event::Remove { start, end } => {
            let parts = shared.maps().app_parts(start, end);
            for part in parts {
                forget_contents(shared, part.region, part.first, part.first + part.pages);
            }
            Ok(())
        }
        Event::Unmap { start, end } => {
            let parts = shared.maps_mut().cut(start, end);
            for part in parts {
                let mut state = shared.lock();
                let mut at = part.first;
                while let Err(held) =
                    evict::drop_pages(shared, &mut state, part.region, at, part.first + part.pages)
                {
                    at = held.0;
                    state = shared.wait_unpinned(state);
                }
                shared.counts.unmapped.fetch_add(part.pages, Ordering::Relaxed);
            }
            Ok(())
        }
        Event::Remap { from, to, len } => {
            let parts = shared.maps_mut().moved(from, to, len);
            for part in parts {
                unmap_from_card(shared, part.region, part.first, part.first + part.pages);
                shared.counts.moved.fetch_add(part.pages, Ordering::Relaxed);
            }
            Ok(())
        }
    }
}

/// Answers one fault of an application thread. A fault may be stale: two threads fault on one page, or the page was evicted again
/// before its protection fault was read; the woken thread then simply faults anew.
fn fault(shared: &Shared, state: &mut State, addr: usize, write: bool, lack: Lack) -> Result<(), Stop> {
    let key = shared.maps().app_page(addr);
    let Some((key, region)) = key.and_then(|key| state.region(key.region).map(|region| (key, region))) else {
        // Not ours (any more): give the page back to the kernel, so that no thread sleeps on it for ever.
        let _ = shared.uffd.unregister(addr, PAGE_SIZE);
        let _ = shared.uffd.wake(addr);
        return Ok(());
    };
    let page = region.pages.get(key.page);
    let Some(frame) = page.frame else {
        let intent = if write { Intent::Write } else { Intent::Read };
        let pages = &region.pages;
        region
            .ahead
            .pass(key.page, |page| pages.get(page).frame.is_some());
        let wish = region.ahead.wish(key.page);
        let came = match page_in::bring_in(shared, state, key, wish, intent, For::App) {
            Err(Stop::Never(super::FaultError::Gone)) => return Err(Stop::Again),
            other => other?,
        };
        if let Some(region) = state.region(key.region) {
            region.ahead.came(key.page, came);
        }
        if at_home(state, key, addr)
            && let Some(region) = state.region(key.region)
        {
            page_in::tell_resident(shared, region, key, 0..came);
        }
        // A page that was there already wakes no thread.
        let _ = shared.uffd.wake(addr);
        return Ok(());
    };
    if lack == Lack::Mapping {
        match shared.uffd.show_page(addr) {
            Ok(true) | Err(Refusal::Exists) => {}
            Ok(false) => pages_change(state, key, |page| {
                page.app_writable = true;
                page.dirty = true;
            }),
            // Another madvise has taken it. The woken thread faults anew, for the page itself.
            Err(Refusal::Other(Errno::FAULT)) => {}
            Err(Refusal::Again | Refusal::Gone) => return Err(Stop::Again),
            Err(Refusal::Other(errno)) => return Err(Stop::Never(super::FaultError::Kernel(errno))),
        }
    } else if shared.maps().is_removed(key) {
        // After an madvise the memfd may have lost the page while its frame is still assigned: then it holds zeros now.
        state.buffer[0].fill(0);
        match shared.uffd.copy_pages(addr, &state.buffer[..1], true) {
            Ok(_) | Err(Refusal::Exists) => {}
            Err(Refusal::Again | Refusal::Gone) => return Err(Stop::Again),
            Err(Refusal::Other(errno)) => return Err(Stop::Never(super::FaultError::Kernel(errno))),
        }
    }
    if write {
        // The card learns first: when the application's write is done, the card may write as well.
        if let Some(region) = state.region(key.region) {
            region.pages.change(key.page, |page| {
                page.app_writable = true;
                page.dirty = true;
                page.written = true;
                page.referenced = true;
            });
        }
        state.lru.activate(frame);
        if !page.written && at_home(state, key, addr) {
            shared.events.resident(key, frame, true);
        }
        match shared.uffd.write_protect(addr, 1, false) {
            Ok(()) | Err(Refusal::Exists) => {}
            Err(Refusal::Again | Refusal::Gone) => return Err(Stop::Again),
            Err(Refusal::Other(errno)) => return Err(Stop::Never(super::FaultError::Kernel(errno))),
        }
    }
    let _ = shared.uffd.wake(addr);
    Ok(())
}

/// Whether the page is seen at the address that its segment names.
fn at_home(state: &mut State, key: PageKey, addr: usize) -> bool {
    state
        .region(key.region)
        .is_some_and(|region| region.mapping_address(key.page) == addr)
}

/// `madvise` has taken, or is about to take, these pages: the card must let go; swapped-out copies are void. A resident page keeps
/// its frame, because what the kernel leaves of it (all, after MADV_DONTNEED; nothing, after MADV_REMOVE) cannot be told apart.
fn forget_contents(shared: &Shared, region: super::RegionId, from: u64, to: u64) {
    unmap_from_card(shared, region, from, to);
    let mut state = shared.lock();
    let mut at = from;
    loop {
        let Some(pages) = state.region(region).map(|region| &mut region.pages) else {
            return;
        };
        let Some(index) = pages.next_used(at, to) else {
            return;
        };
        at = index.0 + 1;
        add(&shared.counts.removed);
        let slot = pages.change(index, |page| {
            if page.frame.is_some() {
                page.dirty = true;
            } else {
                page.written = false;
            }
            page.slot.take()
        });
        if let Some(slot) = slot {
            state.swap.free(slot);
        }
    }
}

/// Takes resident pages from the card and leaves them in memory.
fn unmap_from_card(shared: &Shared, region: super::RegionId, from: u64, to: u64) {
    let mut state = shared.lock();
    let mut at = from;
    loop {
        let Some(pages) = state.region(region).map(|region| &mut region.pages) else {
            return;
        };
        let Some(index) = pages.next_used(at, to) else {
            return;
        };
        let page = pages.get(index);
        if page.pins > 0 {
            // A worker is copying into it, and may be about to map it.
            at = index.0;
            state = shared.wait_unpinned(state);
            continue;
        }
        at = index.0 + 1;
        let key = PageKey {
            region,
            page: PageIndex(index.0),
        };
        if let Some(frame) = page.frame {
            shared.events.unmap(key, frame);
            shared.frames.clear_mapped(frame);
            let dirty = shared.frames.take_dirty(frame);
            pages_change(&mut state, key, |page| page.dirty |= dirty);
        }
    }
}

fn pages_change(state: &mut State, key: PageKey, change: impl FnOnce(&mut super::pages::Page)) {
    if let Some(region) = state.region(key.region) {
        region.pages.change(key.page, change);
    }
}
