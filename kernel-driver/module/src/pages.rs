// SPDX-License-Identifier: GPL-2.0

//! Page events (promises P1 and P3).
//!
//! A port's address space is watched in *chunks* of 2 MiB, each by one interval notifier, made when
//! the first page of it is wanted: so exporting costs nothing for what is never used. A chunk in which
//! nothing is registered any more is retired, under the card's lock: nothing is published with it from
//! then on, so the notifier may go. A port has at most [`CHUNKS`] of them: for one more, another is given up and its pages
//! leave the card. Chunks are charged to the memory cgroup of the process, and made only where something is mapped.
//!
//! **A page leaves.** The kernel calls before it changes its page table. Under the card's lock the
//! interval's sequence is set and the pages are zapped; then one full barrier, a look at the lock
//! words, and, without the lock, a wait of at most the core's deadline. What the card wrote is marked
//! dirty before the call returns. Callers that must not sleep are served the same way, spinning.
//!
//! **A page comes.** The worker notes the interval's sequence, has HMM look (or fault), and publishes
//! under the lock only if the sequence has not moved. Both sides hold the same lock: either the
//! publication sees the new sequence and does not happen, or the zap comes after it and finds the page.

use crate::errno::{self, Errno};
use crate::host_card::{Glue, HostCard};
use crate::port::Port;
use crate::shim;
use crate::tables::Tables;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use kernel::prelude::*;
use kernel::sync::Arc;
use netvm_abi::page_lock::Clear;
use netvm_abi::{Nanos, VirtAddr, Vpn};
use netvm_host::platform::PageGone;
use netvm_host::unmap::UnmapKind;
use netvm_host::Host;
use netvm_host_platform::{unmap, System};

/// Pages of a chunk: what one page-table page maps, so that a huge page is in one chunk.
pub(crate) const CHUNK_PAGES: u64 = 512;
/// Chunks of a port at most: 16 GiB that are watched at once.
pub(crate) const CHUNKS: usize = 8192;
const PAGE_SHIFT: u32 = 12;

/// A piece of an address space that is watched.
pub(crate) struct Chunk {
    port: NonNull<Port>,
    /// Null while it is being made.
    interval: AtomicPtr<shim::NvInterval>,
    /// Nothing is published with it any more. Changed under the card's lock.
    retired: AtomicBool,
}

// SAFETY: the port outlives its chunks; what they point to may be used by any thread.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Watches the chunk that begins with a page.
    ///
    /// # Safety
    /// The port outlives it, and its process lives now.
    pub(crate) unsafe fn new(port: &Port, page: u64) -> Result<Arc<Self>, Errno> {
        let chunk = Self {
            port: NonNull::from(port),
            interval: AtomicPtr::new(core::ptr::null_mut()),
            retired: AtomicBool::new(false),
        };
        let chunk = Arc::new(chunk, GFP_KERNEL_ACCOUNT).map_err(|_| errno::NOMEM)?;
        let at: *const Self = &*chunk;
        // SAFETY: the process lives; the chunk stays where it is until its notifier has gone (`drop`).
        let interval = unsafe {
            shim::nv_interval_new(
                port.mm(),
                (page as usize) << PAGE_SHIFT,
                (CHUNK_PAGES as usize) << PAGE_SHIFT,
                at.cast_mut().cast::<c_void>(),
            )
        };
        if interval.is_null() {
            return Err(errno::NOMEM);
        }
        chunk.interval.store(interval, Ordering::Relaxed);
        Ok(chunk)
    }

    /// Its notifier.
    pub(crate) fn interval(&self) -> *mut shim::NvInterval {
        self.interval.load(Ordering::Relaxed)
    }

    /// From now on nothing is published with it. Under the card's lock.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether pages were taken away since the sequence was read, or would be without a call. Under the
    /// card's lock.
    pub(crate) fn has_moved(&self, seq: usize) -> bool {
        // SAFETY: the notifier lives as long as the chunk.
        self.retired.load(Ordering::Relaxed) || unsafe { shim::nv_interval_moved(self.interval(), seq) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let interval = self.interval();
        if !interval.is_null() {
            // SAFETY: made in `new`. When it returns no callback with this chunk runs.
            unsafe { shim::nv_interval_free(interval) }
        }
    }
}

/// A page frame, as the core keeps it with an entry.
#[derive(Clone, Copy)]
pub(crate) struct Frame(u64);

impl Frame {
    /// The card may write it: the rest is the frame's number.
    const WRITABLE: u64 = 1 << 63;

    pub(crate) const fn new(pfn: usize, writable: bool) -> Self {
        let writable = if writable { Self::WRITABLE } else { 0 };
        Self(pfn as u64 | writable)
    }

    /// As the core has it.
    pub(crate) const fn of(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn pfn(self) -> usize {
        (self.0 & !Self::WRITABLE) as usize
    }

    pub(crate) const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }
}

impl System for HostCard {
    type Storage = Tables;
    type Platform = Glue;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Tables>, &mut Glue, Nanos) -> R) -> Option<R> {
        Some(self.with(call))
    }

    /// Marks a page that has left the card's table, and gives its bus address back.
    fn page_gone(&self, gone: PageGone) {
        page_gone(self, gone);
    }

    fn stop_card(&self) {
        self.stop();
    }
}

/// Marks a page that has left the card's table, and gives its bus address back. Under the card's lock.
pub(crate) fn page_gone(card: &HostCard, gone: PageGone) {
    let bus = gone.ppn.0 << PAGE_SHIFT;
    let frame = Frame::of(gone.frame);
    let shim = card.shim.as_ptr();
    if gone.dirty || gone.referenced {
        // SAFETY: the card lives. The page is mapped by its process until the invalidation that took it
        // away, if there is one, has returned: so it is a page still.
        unsafe { shim::nv_page_mark(frame.pfn(), gone.dirty, gone.referenced) }
    }
    if gone.leaked {
        // SAFETY: as above.
        unsafe { shim::nv_page_keep(frame.pfn()) }
        if shim::nv_may_log() {
            pr_err!(
                "page {:#x} of port {} is kept for ever: a dead card may still use it\n",
                gone.vpn.address().0,
                gone.vpn.port()
            );
        }
    }
    if !gone.still_readable {
        // A dead card that may still use the page loses its mapping all the same: it gets no other one under this address
        // before it was reset.
        // SAFETY: mapped for the entry that has just gone.
        unsafe { shim::nv_page_unmap(shim, bus, frame.is_writable()) }
    }
}

/// The kernel takes pages away: `start..end`, inside of the chunk.
///
/// # Safety
/// Called by the chunk's notifier.
pub(crate) unsafe fn invalidate(
    chunk: &Chunk,
    interval: *mut shim::NvInterval,
    start: usize,
    end: usize,
    seq: usize,
    may_sleep: bool,
) {
    // SAFETY: the port outlives its chunks.
    let port = unsafe { chunk.port.as_ref() };
    let card = &*port.card;
    let first = Vpn::of(port.number(), VirtAddr(start as u64));
    let pages = (end - start) as u64 >> PAGE_SHIFT;
    let unmap = {
        let mut core = card.lock();
        // SAFETY: the notifier's own, under the lock under which pages are published.
        unsafe { shim::nv_interval_set(interval, seq) };
        if port.is_closed() {
            return;
        }
        core.host.unmap_begin(first, pages, UnmapKind::Remove)
    };
    // SAFETY: the caller says whether it may sleep; no lock of the module is held.
    unmap::finish(card, unmap, || unsafe { shim::nv_pause(may_sleep) });
}

/// Takes a chunk's pages from the card, so that it need not be watched any more. Sleeps.
pub(crate) fn withdraw(port: &Port, chunk: &Chunk, first: u64) {
    let unmap = {
        let mut core = port.card.lock();
        // Under one lock: no page is published with it between the two.
        chunk.retire();
        if port.is_closed() {
            return;
        }
        core.host
            .unmap_begin(Vpn::new(port.number(), first), CHUNK_PAGES, UnmapKind::Remove)
    };
    // SAFETY: called by a port's thread, without a lock.
    unmap::finish(&*port.card, unmap, || unsafe { shim::nv_pause(true) });
}

/// Whether the card has used a page of `start..end` since it was last asked; `clear`: from now on.
/// Called with locks of page tables held.
pub(crate) fn young(port: &Port, start: usize, end: usize, clear: bool) -> bool {
    let mut core = port.card.lock();
    if port.is_closed() {
        return false;
    }
    let core = &mut *core;
    let clear = if clear { Clear::Referenced } else { Clear::Nothing };
    let first = start as u64 >> PAGE_SHIFT;
    let pages = (end as u64).div_ceil(1 << PAGE_SHIFT) - first;
    let used = core
        .host
        .take_use_of(&mut core.glue, Vpn::new(port.number(), first), pages, clear);
    used.referenced
}
