// SPDX-License-Identifier: GPL-2.0

//! What C calls (`../shim/shim.h`, last part).

use crate::calls::{self, File};
use crate::host_card::{self, HostCard};
use crate::pages::{self, Chunk};
use crate::port::Port;
use crate::shim;
use crate::worker;
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

/// The body of a card's thread.
///
/// # Safety
/// `card` is C's card, and outlives the thread.
#[no_mangle]
unsafe extern "C" fn nv_rs_card_body(card: *mut c_void) -> c_int {
    if let Some(card) = NonNull::new(card) {
        // SAFETY: as promised.
        unsafe { host_card::body(card.cast()) };
    }
    0
}

/// A file of the device is opened; null: no memory.
///
/// # Safety
/// `rust` is what the card's thread gave to `nv_device_add`, which it has not taken back.
#[no_mangle]
unsafe extern "C" fn nv_rs_open(rust: *mut c_void, writable: bool) -> *mut c_void {
    // SAFETY: it came from `Arc::into_raw`, and that reference is not given back before the device has
    // been removed, which waits for this.
    let card = unsafe { ArcBorrow::<'_, HostCard>::from_raw(rust.cast()) };
    match File::new(card.into(), writable) {
        Ok(file) => KBox::into_raw(file).cast(),
        Err(_) => core::ptr::null_mut(),
    }
}

/// The card goes, and a file of it is still open.
///
/// # Safety
/// `file` is from `nv_rs_open`, and is not released before this returns.
#[no_mangle]
unsafe extern "C" fn nv_rs_end(file: *mut c_void) {
    // SAFETY: as promised.
    let file = unsafe { &*file.cast::<File>() };
    file.end();
}

/// The last user of a file has gone.
///
/// # Safety
/// `file` is from `nv_rs_open`, and not used again.
#[no_mangle]
unsafe extern "C" fn nv_rs_release(file: *mut c_void) {
    // SAFETY: from `KBox::into_raw`.
    let file = unsafe { KBox::from_raw(file.cast::<File>()) };
    file.close();
}

/// A call.
///
/// # Safety
/// `file` is from `nv_rs_open`; `argument` is what the process gave.
#[no_mangle]
unsafe extern "C" fn nv_rs_ioctl(file: *mut c_void, number: c_uint, argument: c_ulong) -> c_long {
    // SAFETY: it is shared until the release, which comes after all calls.
    let file = unsafe { &*file.cast::<File>() };
    calls::call(file, number, argument as usize)
}

/// The process maps a part of the device.
///
/// # Safety
/// `file` is from `nv_rs_open`; `vma` is being mapped.
#[no_mangle]
unsafe extern "C" fn nv_rs_mmap(file: *mut c_void, vma: *mut shim::Vma, offset: u64, len: u64) -> c_int {
    // SAFETY: as for `nv_rs_ioctl`.
    let file = unsafe { &*file.cast::<File>() };
    // SAFETY: as promised.
    unsafe { file.map(vma, offset, len) }
}

/// Pages of a chunk are taken away.
///
/// # Safety
/// Called by the notifier of the chunk.
#[no_mangle]
unsafe extern "C" fn nv_rs_invalidate(
    chunk: *mut c_void,
    interval: *mut shim::NvInterval,
    start: c_ulong,
    end: c_ulong,
    seq: c_ulong,
    may_sleep: bool,
) {
    // SAFETY: the notifier goes before its chunk does.
    let chunk = unsafe { &*chunk.cast::<Chunk>() };
    // SAFETY: as promised.
    unsafe {
        pages::invalidate(
            chunk,
            interval,
            start as usize,
            end as usize,
            seq as usize,
            may_sleep,
        )
    }
}

/// Whether the card uses pages.
///
/// # Safety
/// Called by the port's notifier.
#[no_mangle]
unsafe extern "C" fn nv_rs_young(port: *mut c_void, start: c_ulong, end: c_ulong, clear: bool) -> c_int {
    // SAFETY: the notifier goes before its port does.
    let port = unsafe { &*port.cast::<Port>() };
    pages::young(port, start as usize, end as usize, clear).into()
}

/// The port's process has no memory any more, but another process keeps its file open.
///
/// # Safety
/// Called by the port's notifier, from a work queue.
#[no_mangle]
unsafe extern "C" fn nv_rs_orphaned(port: *mut c_void) {
    // SAFETY: as above.
    let port = unsafe { &*port.cast::<Port>() };
    port.end();
}

/// A thread serves a port until that ends.
///
/// # Safety
/// `port` is from `Arc::into_raw`, and the caller gives that reference away.
#[no_mangle]
unsafe extern "C" fn nv_rs_serve(port: *mut c_void) {
    // SAFETY: as promised.
    let port = unsafe { Arc::from_raw(port.cast::<Port>().cast_const()) };
    worker::body(&port);
}

/// Whether only the port's worker, which waits for a page, keeps the address space.
///
/// # Safety
/// Called by the port's notifier, from a work queue.
#[no_mangle]
unsafe extern "C" fn nv_rs_is_orphan(port: *mut c_void) -> bool {
    // SAFETY: the notifier goes before its port does.
    let port = unsafe { &*port.cast::<Port>() };
    port.is_orphan()
}

/// Whether the port's worker waits for a page.
///
/// # Safety
/// As for `nv_rs_is_orphan`.
#[no_mangle]
unsafe extern "C" fn nv_rs_is_paging(port: *mut c_void) -> bool {
    // SAFETY: as above.
    let port = unsafe { &*port.cast::<Port>() };
    port.is_paging()
}
