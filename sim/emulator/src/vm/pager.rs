//! The pager of one node: its interface, its locks and its threads.
//!
//! Lock order: pager -> (through [`PageEvents`]) host core -> the card's own words. A thread that holds the pager's lock never touches
//! application mappings, prints, or waits for anything but the card's page lock. `Maps` has a leaf lock of its own (`maps`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

use super::ahead::{self, Ahead};
use super::frames::{Frame, FrameTable};
use super::lru::Lru;
use super::maps::Maps;
use super::pages::PageTable;
use super::swap::Swap;
use super::uffd::{Purpose, Uffd};
use super::{
    FaultError, Intent, PAGE_SIZE, PageIndex, PageKey, RegionId, RegionMapping, events, evict, page_in,
    watcher,
};
use crate::error::EmulatorError;

/// The smallest resident limit, in frames: paging workers hold a page each while they copy into it.
pub const MIN_FRAMES: u32 = 8;

/// What the pager tells the keeper of the card's page table. Called with the pager's lock held.
pub trait PageEvents: Send + Sync {
    /// The application has faulted this page in, or made it writable. `writable` says whether the card may write it as well; a
    /// page that was never written is as good as the shared zero page and is not.
    fn resident(&self, key: PageKey, frame: Frame, writable: bool);

    /// Takes the page from the card, if the card has it. When this returns, no DMA to the page is running and none will start
    /// (promise P1), and what the card wrote is marked in the frame table ([`FrameTable::mark_dirty`]).
    fn unmap(&self, key: PageKey, frame: Frame);

    /// Has the card used the page since the last question?
    fn take_referenced(&self, key: PageKey, frame: Frame) -> bool;

    /// The last page of a region has left the card, and the region's number and addresses may go to another as soon as this
    /// returns: whatever is known under them must be forgotten now.
    fn region_removed(&self, region: RegionId);
}

/// How a pager is set up.
#[derive(Clone, Debug)]
pub struct PagerConfig {
    /// The resident limit: how many pages may be in memory at once.
    pub frames: u32,
    /// Where the swap file is made.
    pub swap_directory: PathBuf,
}

/// What a pager has done so far, all counts since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PagerStats {
    /// Pages in memory now.
    pub resident: u64,
    /// The most there ever were.
    pub max_resident: u64,
    /// Faults of application threads on missing pages.
    pub app_faults: u64,
    /// Faults of application threads on write-protected pages.
    pub protect_faults: u64,
    /// Pages brought in for the card's sake.
    pub nic_page_ins: u64,
    /// Pages taken away to make room.
    pub evictions: u64,
    /// Evicted pages that the card had written and the application had not.
    pub nic_dirty_evictions: u64,
    /// Pages written to the swap file.
    pub swap_writes: u64,
    /// Pages read from it.
    pub swap_reads: u64,
    /// Pages spared because they had been used.
    pub second_chances: u64,
    /// Pages that the application removed with `madvise`.
    pub removed: u64,
    /// Pages that the application unmapped.
    pub unmapped: u64,
    /// Pages that the application moved with `mremap`.
    pub moved: u64,
    /// DMAs that met an `madvise` half-way and got a page of zeros.
    pub refilled: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) max_resident: AtomicU64,
    pub(super) app_faults: AtomicU64,
    pub(super) protect_faults: AtomicU64,
    pub(super) nic_page_ins: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) nic_dirty_evictions: AtomicU64,
    pub(super) swap_writes: AtomicU64,
    pub(super) swap_reads: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) unmapped: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) refilled: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64) {
    add_all(counter, 1);
}

pub(super) fn add_all(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) mapping: RegionMapping,
    pub(super) pages: PageTable,
    /// How the application walks through it.
    pub(super) ahead: Ahead,
    /// How the card does.
    pub(super) card_ahead: Ahead,
    /// Where the application's mapping was made: the card knows pages by this address only.
    pub(super) base: usize,
}

impl Region {
    /// Where the application's mapping of a page was made.
    pub(super) fn mapping_address(&self, page: PageIndex) -> usize {
        self.base + page.0 as usize * PAGE_SIZE
    }
}

/// What the pager's lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) regions: Vec<Option<Region>>,
    pub(super) lru: Lru,
    pub(super) free: Vec<Frame>,
    pub(super) swap: Swap,
    /// Threads that wait until a page is unpinned.
    pub(super) waiting: u32,
    /// Pages under way between memory and swap file.
    pub(super) buffer: Box<[[u8; PAGE_SIZE]; ahead::MOST]>,
}

impl State {
    pub(super) fn region(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.get_mut(id.0 as usize)?.as_mut()
    }
}

/// What the pager's threads and its users share.
pub(super) struct Shared {
    pub(super) uffd: Uffd,
    pub(super) alias_uffd: Uffd,
    /// Readable when the threads shall end.
    pub(super) stop: OwnedFd,
    pub(super) frames: Arc<FrameTable>,
    pub(super) limit: u32,
    pub(super) events: Arc<dyn PageEvents>,
    pub(super) counts: Counts,
    state: Mutex<State>,
    pub(super) unpinned: Condvar,
    /// Odd while the pager's thread reads an event and has not noted it yet.
    pub(super) reading: AtomicU64,
    maps: RwLock<Maps>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn maps_mut(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the lock until a page was unpinned, or a millisecond has passed.
    pub(super) fn wait_unpinned<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let (mut state, _) = self
            .unpinned
            .wait_timeout(state, Duration::from_millis(1))
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }
}

/// The pager of one node. Dropping it stops its threads; regions must have been removed before.
pub struct Pager {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pager")
            .field("limit", &self.shared.limit)
            .finish_non_exhaustive()
    }
}

/// A resident page, as [`Pager::for_each_resident`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Which page.
    pub page: PageIndex,
    /// Where it lies.
    pub frame: Frame,
    /// Whether the card may be allowed to write it.
    pub writable: bool,
}

impl Pager {
    /// Starts a pager with its two threads and a frame table of its own.
    ///
    /// # Errors
    /// As [`Self::with_table`].
    pub fn new(config: &PagerConfig, events: Arc<dyn PageEvents>) -> Result<Self, EmulatorError> {
        Self::with_table(config, Arc::new(FrameTable::new(config.frames)), events)
    }

    /// Starts a pager with its two threads on a frame table of [`PagerConfig::frames`] frames that a card knows already.
    ///
    /// # Errors
    /// No userfaultfd, no swap file, no thread, a page size that is not 4096, or a limit below [`MIN_FRAMES`].
    pub fn with_table(
        config: &PagerConfig,
        frames: Arc<FrameTable>,
        events: Arc<dyn PageEvents>,
    ) -> Result<Self, EmulatorError> {
        if rustix::param::page_size() != PAGE_SIZE {
            return Err(EmulatorError::PageSize(rustix::param::page_size()));
        }
        if config.frames < MIN_FRAMES {
            let text = format!(
                "a node needs at least {MIN_FRAMES} resident pages, not {}",
                config.frames
            );
            return Err(EmulatorError::Config(text));
        }
        let swap = Swap::new(&config.swap_directory).map_err(EmulatorError::os("swap file"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(EmulatorError::os("eventfd"))?;
        let state = State {
            regions: Vec::new(),
            lru: Lru::new(config.frames),
            // Last freed, first used; the first frames go out in rising order.
            free: (0..config.frames).rev().map(Frame).collect(),
            swap,
            waiting: 0,
            buffer: Box::new([[0; PAGE_SIZE]; ahead::MOST]),
        };
        let shared = Arc::new(Shared {
            uffd: Uffd::open(Purpose::App)?,
            alias_uffd: Uffd::open(Purpose::Alias)?,
            stop,
            frames,
            limit: config.frames,
            events,
            counts: Counts::default(),
            state: Mutex::new(state),
            unpinned: Condvar::new(),
            reading: AtomicU64::new(0),
            maps: RwLock::default(),
        });
        let mut pager = Self {
            shared,
            threads: Vec::new(),
        };
        pager.spawn("netvm-alias", watcher::run)?;
        pager.spawn("netvm-pager", events::run)?;
        Ok(pager)
    }

    fn spawn(&mut self, name: &str, body: fn(&Shared)) -> Result<(), EmulatorError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || body(&shared));
        self.threads.push(thread.map_err(|source| EmulatorError::Io {
            what: "pager thread",
            source,
        })?);
        Ok(())
    }

    /// The frame table, which the card's DMA consults.
    #[must_use]
    pub fn frames(&self) -> &Arc<FrameTable> {
        &self.shared.frames
    }

    /// The resident limit in frames.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.limit
    }

    /// True where the kernel itself may read and write exported memory; see [`Uffd::serves_kernel_faults`].
    #[must_use]
    pub fn serves_kernel_faults(&self) -> bool {
        self.shared.uffd.serves_kernel_faults()
    }

    /// Makes a region of `pages` pages, all zero and none resident. Returns its number and the address of its first page.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add_region(&self, pages: u64) -> Result<(RegionId, *mut u8), EmulatorError> {
        let (mapping, base) = RegionMapping::new(pages).map_err(EmulatorError::os("region memory"))?;
        let (alias, bytes) = mapping.alias();
        let mut state = self.shared.lock();
        let index = state
            .regions
            .iter()
            .position(Option::is_none)
            .unwrap_or(state.regions.len());
        let id = RegionId(index as u32);
        let region = Region {
            mapping,
            pages: PageTable::new(pages),
            ahead: Ahead::up_to(ahead::FOR_APP),
            card_ahead: Ahead::up_to(ahead::FOR_NIC),
            base,
        };
        match state.regions.get_mut(index) {
            Some(place) => *place = Some(region),
            None => state.regions.push(Some(region)),
        }
        drop(state);
        self.shared.maps_mut().add_region(id, base, alias, pages);
        // SAFETY: both mappings were just made and are not in use yet, and the pager's threads answer their faults.
        let registered = unsafe {
            let app = self.shared.uffd.register(base, bytes, Purpose::App);
            app.and_then(|()| self.shared.alias_uffd.register(alias, bytes, Purpose::Alias))
        };
        if let Err(errno) = registered {
            self.remove_region(id);
            return Err(EmulatorError::Os {
                what: "registering a region with userfaultfd",
                errno,
            });
        }
        Ok((id, core::ptr::with_exposed_provenance_mut(base)))
    }

    /// Removes a region: takes its pages from the card, frees its frames and swap slots and unmaps it. The caller promises that
    /// no thread touches the region any more.
    pub fn remove_region(&self, id: RegionId) {
        let windows = self.shared.maps_mut().remove_windows(id);
        for window in &windows {
            // No event may be raised for our own munmap below: this thread would wait for the pager that it may hold up.
            let _ = self
                .shared
                .uffd
                .unregister(window.start, window.pages as usize * PAGE_SIZE);
        }
        let mut state = self.shared.lock();
        let Some(pages) = state.region(id).map(|region| region.mapping.pages()) else {
            return;
        };
        let mut at = 0;
        while let Err(held) = evict::drop_pages(&self.shared, &mut state, id, at, pages) {
            at = held.0;
            state = self.shared.wait_unpinned(state);
        }
        self.shared.maps_mut().remove_alias(id);
        // Before number and addresses are free: a thread that gets them next must not lose what it notes under them.
        self.shared.events.region_removed(id);
        let region = state.regions.get_mut(id.0 as usize).and_then(Option::take);
        drop(state);
        for window in &windows {
            let at = core::ptr::with_exposed_provenance_mut(window.start);
            // SAFETY: the window is what is left of the application mapping, which is out of use.
            let _ = unsafe { rustix::mm::munmap(at, window.pages as usize * PAGE_SIZE) };
        }
        drop(region);
    }

    /// Makes a page resident for the card's sake, without a fault of the application's, and holds it in its frame until the
    /// returned value is dropped. A caller holds one page at a time.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn fault_in(&self, key: PageKey, intent: Intent) -> Result<PinnedPage, FaultError> {
        let (frame, alias, writable) = page_in::fault_in(&self.shared, key, intent)?;
        Ok(PinnedPage {
            shared: Arc::clone(&self.shared),
            key,
            frame,
            alias,
            writable,
        })
    }

    /// Shows the resident pages among `pages` of a region; none of them goes away before this returns.
    pub fn for_each_resident(
        &self,
        id: RegionId,
        pages: std::ops::Range<u64>,
        mut each: impl FnMut(Resident),
    ) {
        let mut state = self.shared.lock();
        let Some(region) = state.region(id) else { return };
        let to = pages.end.min(region.mapping.pages());
        let mut at = pages.start;
        while let Some(page) = region.pages.next_used(at, to) {
            at = page.0 + 1;
            let known = region.pages.get(page);
            if let Some(frame) = known.frame {
                each(Resident {
                    page,
                    frame,
                    writable: known.written,
                });
            }
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        let state = self.shared.lock();
        let resident = u64::from(self.shared.limit) - state.free.len() as u64;
        let second_chances = state.lru.second_chances();
        drop(state);
        let counts = &self.shared.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PagerStats {
            resident,
            max_resident: read(&counts.max_resident),
            app_faults: read(&counts.app_faults),
            protect_faults: read(&counts.protect_faults),
            nic_page_ins: read(&counts.nic_page_ins),
            evictions: read(&counts.evictions),
            nic_dirty_evictions: read(&counts.nic_dirty_evictions),
            swap_writes: read(&counts.swap_writes),
            swap_reads: read(&counts.swap_reads),
            second_chances,
            removed: read(&counts.removed),
            unmapped: read(&counts.unmapped),
            moved: read(&counts.moved),
            refilled: read(&counts.refilled),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A page held in its frame.
pub struct PinnedPage {
    shared: Arc<Shared>,
    key: PageKey,
    frame: Frame,
    alias: usize,
    writable: bool,
}

impl PinnedPage {
    /// Where it lies.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// The page's address in the alias mapping; good for [`PAGE_SIZE`] bytes until this value is dropped.
    #[must_use]
    pub fn alias(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.alias)
    }

    /// Whether the card may be allowed to write it: always, if it was asked for with [`Intent::Write`].
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Marks the page as copied into.
    pub fn mark_dirty(&self) {
        self.shared.frames.mark_dirty(self.frame);
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        page_in::unpin(&self.shared, self.key);
    }
}
