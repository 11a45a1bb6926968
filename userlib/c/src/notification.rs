//! Being told: notifications of a port.

use std::ffi::c_int;

use netvm::Notification;

use crate::argument::{out, set, timeout, waited};
use crate::call::call;
use crate::fault::Result;
use crate::handle;
use crate::port::netvm_port;

/// A notification of a port, which is not kept from closing by it.
fn notification(port: *mut netvm_port, number: u32) -> Result<Notification> {
    Ok(handle::get(port)?.notification(number)?)
}

/// Waits until a signal of an event-count notification (1 to 895) is pending. `pending` gets how many are; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_notification_wait(
    port: *mut netvm_port,
    number: u32,
    timeout_ns: i64,
    pending: *mut u32,
) -> c_int {
    call(|| {
        let count = waited(notification(port, number)?.wait(timeout(timeout_ns)), timeout_ns)?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(pending, count) };
        Ok(())
    })
}

/// How many signals are pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_notification_pending(
    port: *mut netvm_port,
    number: u32,
    pending: *mut u32,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let count = notification(port, number)?.pending();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(count) };
        Ok(())
    })
}

/// Acknowledges one signal: it has been handled. -ENOMSG if none is pending.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_notification_ack(port: *mut netvm_port, number: u32) -> c_int {
    call(|| Ok(notification(port, number)?.ack()?))
}

/// Acknowledges the signals that are pending, at most `most`. `acknowledged` gets how many these were; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_notification_ack_up_to(
    port: *mut netvm_port,
    number: u32,
    most: u32,
    acknowledged: *mut u32,
) -> c_int {
    call(|| {
        let count = notification(port, number)?.ack_up_to(most)?;
        if !acknowledged.is_null() {
            let place = out(acknowledged, "acknowledged")?;
            // SAFETY: the header asks for such a place.
            unsafe { place.set(count) };
        }
        Ok(())
    })
}

/// Waits for the next number of the port's notification queue: one-shot notifications (from 1024 up) in the order in which they were sent,
/// and event-count ones that have pending signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_notification_next(
    port: *mut netvm_port,
    timeout_ns: i64,
    number: *mut u32,
) -> c_int {
    call(|| {
        let place = out(number, "number")?;
        let queue = handle::get(port)?.notifications();
        let next = waited(queue.wait(timeout(timeout_ns)), timeout_ns)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(next.0) };
        Ok(())
    })
}
