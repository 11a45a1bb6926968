//! Monitors with conditions.

use std::ffi::{c_char, c_int};

use netvm::sync::{Condition, Inside, Monitor, Woken};
use parking_lot::Mutex;

use crate::access::netvm_access;
use crate::argument::{out, set};
use crate::call::call;
use crate::handle::{self, handles};
use crate::hold::{Slot, holds};
use crate::lock::{Address, make_home, netvm_home};
use crate::pending::BUSY;
use crate::port::netvm_port;

/// A participant of a monitor. It serves one thread at a time.
pub struct netvm_monitor;
/// A participant of a condition of a monitor. It serves one thread at a time.
pub struct netvm_condition;

/// Being inside, until it is left.
type Presence<'a> = Option<Inside<'a>>;

holds!(HeldMonitor: Presence of Monitor);

/// A participant.
pub struct MonitorSlot(Mutex<Slot<Monitor, HeldMonitor>>);

handles! {
    netvm_monitor = 20: MonitorSlot;
    netvm_condition = 21: Mutex<Condition>;
}

/// Makes a monitor that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_create(
    port: *mut netvm_port,
    name: *const c_char,
    access: *const netvm_access,
    home: *mut *mut netvm_home,
) -> c_int {
    // SAFETY: the header asks for such arguments.
    unsafe { make_home(port, name, access, home, Monitor::create) }
}

/// Makes a condition, as netvm_monitor_create() makes a monitor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_condition_create(
    port: *mut netvm_port,
    name: *const c_char,
    access: *const netvm_access,
    home: *mut *mut netvm_home,
) -> c_int {
    // SAFETY: the header asks for such arguments.
    unsafe { make_home(port, name, access, home, Condition::create) }
}

/// Takes part in a monitor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    monitor: *mut *mut netvm_monitor,
) -> c_int {
    call(|| {
        let place = out(monitor, "monitor")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = Monitor::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = handle::make(MonitorSlot(Mutex::new(Slot::Free(Box::new(joined)))))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Takes part in a condition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_condition_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    condition: *mut *mut netvm_condition,
) -> c_int {
    call(|| {
        let place = out(condition, "condition")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = Condition::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = handle::make(Mutex::new(joined))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Enters a monitor; waits while another process is inside. `owner_died` gets whether a process has died that may have been inside; it may be NULL.
/// -EDEADLK: this participant is inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_enter(monitor: *mut netvm_monitor, owner_died: *mut bool) -> c_int {
    call(|| {
        let slot = handle::get(monitor)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let held = slot.hold(|monitor| HeldMonitor::take(monitor, |monitor| Ok(Some(monitor.enter()?))))?;
        let died = held.with_dependent(|_, inside| inside.as_ref().is_some_and(Inside::owner_died));
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(owner_died, died) };
        Ok(())
    })
}

/// Leaves the monitor until the condition is signalled, and comes in again. Others may have been inside meanwhile, and the wait may end for no reason:
/// look at what is waited for in a loop. `reset` gets whether the condition has lost a waiter, and let all others out; it may be NULL. -EPERM: this
/// participant is not inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_wait(
    monitor: *mut netvm_monitor,
    condition: *mut netvm_condition,
    reset: *mut bool,
) -> c_int {
    call(|| {
        let (slot, condition) = (handle::get(monitor)?, handle::get(condition)?);
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let mut condition = condition.try_lock().ok_or(BUSY)?;
        let woken = slot.held()?.with_dependent_mut(|_, inside| match inside {
            Some(inside) => inside.wait(&mut condition),
            None => Ok(Woken::Reset),
        });
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(reset, woken? == Woken::Reset) };
        Ok(())
    })
}

/// Lets the first waiter of a condition come in when it can. `woken` gets whether there was one; it may be NULL. The caller is inside of the monitor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_condition_signal(condition: *mut netvm_condition, woken: *mut bool) -> c_int {
    call(|| {
        let condition = handle::get(condition)?;
        let one = condition.try_lock().ok_or(BUSY)?.signal()?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(woken, one) };
        Ok(())
    })
}

/// Leaves the monitor. -EPERM: this participant is not inside.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_monitor_leave(monitor: *mut netvm_monitor) -> c_int {
    call(|| {
        let slot = handle::get(monitor)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let left =
            slot.let_go(|held| held.with_dependent_mut(|_, inside| inside.take().map(Inside::leave)))?;
        Ok(left.unwrap_or(Ok(()))?)
    })
}

/// Takes no part in a monitor any more, and leaves it if it is inside.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_monitor_close(monitor: *mut netvm_monitor) -> c_int {
    call(|| handle::close(monitor))
}

/// Takes no part in a condition any more.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_condition_close(condition: *mut netvm_condition) -> c_int {
    call(|| handle::close(condition))
}
