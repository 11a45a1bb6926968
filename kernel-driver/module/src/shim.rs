// SPDX-License-Identifier: GPL-2.0

//! The C half's functions (`../shim/shim.h`, same order), and nothing else. Where one has a promise
//! to keep, the file that calls it says why it does.

use core::ffi::{c_int, c_void};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name([u8; 0]);
    )*};
}

opaque! {
    /// A card, as C knows it.
    NvCard
    /// An event count.
    NvEvent
    /// The notifier of a chunk of an address space.
    NvInterval
    /// The notifier of an address space.
    NvWatch
    /// An address space.
    Mm
    /// A thread.
    Task
    /// A mapping of a process.
    Vma
    /// An eventfd.
    Eventfd
}

/// What ended a wait: the event.
pub(crate) const WAIT_NEWS: c_int = 0;
/// What ended a wait: its time.
pub(crate) const WAIT_TIME: c_int = 1;

/// Bits of a page frame number of `nv_pages_look`.
pub(crate) const PFN_VALID: usize = 1 << 63;
/// The page is writable.
pub(crate) const PFN_WRITE: usize = 1 << 62;

unsafe extern "C" {
    pub(crate) safe fn nv_deadline_ms() -> u32;
    pub(crate) safe fn nv_heartbeat_ms() -> u32;
    pub(crate) safe fn nv_page_ms() -> u32;

    pub(crate) fn nv_pci_register() -> c_int;
    pub(crate) fn nv_pci_unregister();
    pub(crate) fn nv_card_get(card: *mut NvCard);
    pub(crate) fn nv_card_put(card: *mut NvCard);
    pub(crate) fn nv_bar_words(card: *const NvCard) -> u32;
    pub(crate) fn nv_bar_load(card: *const NvCard, word: u32) -> u32;
    pub(crate) fn nv_bar_store(card: *mut NvCard, word: u32, value: u32);
    pub(crate) safe fn nv_barrier();
    pub(crate) fn nv_card_ring(card: *mut NvCard);
    pub(crate) fn nv_card_stop(card: *mut NvCard) -> bool;
    pub(crate) fn nv_card_start(card: *mut NvCard);
    pub(crate) fn nv_card_rests(card: *mut NvCard, silent: bool);
    pub(crate) fn nv_card_interrupt(card: *mut NvCard) -> *mut NvEvent;
    pub(crate) fn nv_memory_alloc(card: *mut NvCard, bytes: usize, bus: *mut u64) -> *mut c_void;
    pub(crate) fn nv_memory_unmap(card: *mut NvCard, bytes: usize, bus: u64);
    pub(crate) fn nv_memory_free(bytes: usize, at: *mut c_void);
    pub(crate) fn nv_page_map(card: *mut NvCard, pfn: usize, writable: bool) -> u64;
    pub(crate) fn nv_page_unmap(card: *mut NvCard, bus: u64, writable: bool);
    pub(crate) fn nv_page_mark(pfn: usize, dirty: bool, referenced: bool);
    pub(crate) fn nv_page_keep(pfn: usize);

    pub(crate) fn nv_event_new() -> *mut NvEvent;
    pub(crate) fn nv_event_free(event: *mut NvEvent);
    pub(crate) fn nv_event_count(event: *const NvEvent) -> u32;
    pub(crate) fn nv_event_signal(event: *mut NvEvent);
    pub(crate) fn nv_event_wait(event: *mut NvEvent, seen: u32, nanos: u64, interruptible: bool) -> c_int;
    pub(crate) fn nv_thread_wait(event: *mut NvEvent, seen: u32, nanos: u64) -> c_int;
    pub(crate) fn nv_thread_should_stop() -> bool;
    pub(crate) fn nv_thread_should_rest() -> bool;
    pub(crate) fn nv_thread_rest();
    pub(crate) safe fn nv_now() -> u64;
    pub(crate) safe fn nv_random() -> u64;
    pub(crate) fn nv_random_wait();
    pub(crate) fn nv_pause(may_sleep: bool);
    pub(crate) safe fn nv_may_log() -> bool;
    pub(crate) fn nv_eventfd_get(fd: c_int) -> *mut Eventfd;
    pub(crate) fn nv_eventfd_put(eventfd: *mut Eventfd);
    pub(crate) fn nv_eventfd_signal(eventfd: *mut Eventfd);

    pub(crate) fn nv_mm_grab_current() -> *mut Mm;
    pub(crate) fn nv_mm_is_current(mm: *const Mm) -> bool;
    pub(crate) fn nv_mm_drop(mm: *mut Mm);
    pub(crate) fn nv_mm_get(mm: *mut Mm) -> bool;
    pub(crate) fn nv_mm_put(mm: *mut Mm);
    pub(crate) fn nv_mm_use(mm: *mut Mm);
    pub(crate) fn nv_mm_unuse(mm: *mut Mm);
    pub(crate) fn nv_yield();
    pub(crate) safe fn nv_task_size() -> usize;
    pub(crate) fn nv_memory_fits(start: usize, end: usize) -> c_int;
    pub(crate) fn nv_mapped(mm: *mut Mm, address: usize) -> c_int;
    pub(crate) fn nv_watch_new(mm: *mut Mm, port: *mut c_void, err: *mut c_int) -> *mut NvWatch;
    pub(crate) fn nv_watch_free(watch: *mut NvWatch);
    pub(crate) fn nv_watch_look(watch: *mut NvWatch);
    pub(crate) fn nv_mm_users(mm: *mut Mm) -> u32;
    pub(crate) fn nv_interval_new(
        mm: *mut Mm,
        start: usize,
        len: usize,
        chunk: *mut c_void,
    ) -> *mut NvInterval;
    pub(crate) fn nv_interval_free(interval: *mut NvInterval);
    pub(crate) fn nv_interval_set(interval: *mut NvInterval, seq: usize);
    pub(crate) fn nv_interval_moved(interval: *mut NvInterval, seq: usize) -> bool;
    pub(crate) fn nv_pages_look(
        interval: *mut NvInterval,
        start: usize,
        count: usize,
        seq: *mut usize,
        pfns: *mut usize,
    ) -> c_int;
    pub(crate) fn nv_page_fault(mm: *mut Mm, address: usize, write: bool) -> c_int;
    pub(crate) fn nv_copy_in(to: usize, from: *const c_void, len: usize) -> c_int;
    pub(crate) fn nv_copy_out(to: *mut c_void, from: usize, len: usize) -> c_int;

    pub(crate) fn nv_servant_start(port: *mut c_void, number: u32) -> *mut Task;
    pub(crate) fn nv_servant_end(thread: *mut Task);

    pub(crate) safe fn nv_ports_per_user() -> u32;
    pub(crate) safe fn nv_reserved_ports() -> u32;
    pub(crate) safe fn nv_may_see_addresses() -> bool;
    pub(crate) safe fn nv_may_take_any_port() -> bool;
    pub(crate) safe fn nv_may_take_all_ports() -> bool;
    pub(crate) safe fn nv_user() -> u32;
    pub(crate) fn nv_device_add(card: *mut NvCard, rust: *mut c_void) -> c_int;
    pub(crate) fn nv_device_close(card: *mut NvCard);
    pub(crate) fn nv_device_revoke(card: *mut NvCard);
    pub(crate) fn nv_device_end_files(card: *mut NvCard);
    pub(crate) fn nv_device_number(card: *const NvCard) -> u32;
    pub(crate) fn nv_map_bar(card: *mut NvCard, vma: *mut Vma, offset: u64);
    pub(crate) fn nv_map_memory(vma: *mut Vma, at: *mut c_void, offset: u64);
    pub(crate) fn nv_vma_is_shared(vma: *const Vma) -> bool;
    pub(crate) fn nv_vma_wants_write(vma: *const Vma) -> bool;
}
