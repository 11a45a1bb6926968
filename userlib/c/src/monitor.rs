//! Monitors with conditions.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use netvm::sync::{Condition, Monitor, OwnedInside, Woken};

use crate::access::netvm_access;
use crate::argument::{out, set};
use crate::call::call;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::hold::{Participant, Slot};
use crate::lock::{Address, NOT_NOW, make_home, netvm_home};
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// A participant of a monitor. It serves one thread at a time.
pub struct netvm_monitor;
/// A participant of a condition of a monitor. It serves one thread at a time.
pub struct netvm_condition;

handles! {
    netvm_monitor = 20: Arc<Participant<Monitor, OwnedInside>>;
    netvm_condition = 21: Arc<Participant<Condition>>;
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
        let made = handle::make(Participant::new(joined))?;
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
        let made = handle::make(Participant::new(joined))?;
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
        let mut slot = slot.slot()?;
        let inside = slot.hold(|monitor| {
            let entered = monitor.own();
            entered.map_err(|(monitor, error)| Box::new((monitor, error.map_or(NOT_NOW, Fault::from))))
        })?;
        let died = inside.owner_died();
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(owner_died, died) };
        Ok(())
    })
}

/// Begins what netvm_monitor_enter() does, and does not wait for it. `monitor` is away (-EBUSY) until netvm_pending_wait() answers 0: then the process
/// is inside. netvm_pending_value() tells whether a process has died that may have been inside. After an error, and when the pending call is closed
/// before its end, this participant is gone (-EIO). It costs a thread while it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_begin_enter(
    monitor: *mut netvm_monitor,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (monitor, lent) = handle::get(monitor)?.lend()?;
        let under = Under::taking(monitor.begin_enter(), |inside| {
            let died = inside.owner_died();
            lent.back(Slot::Held(inside));
            died.into()
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Begins what netvm_monitor_wait() does, and does not wait for it. `monitor` and `condition` are away (-EBUSY) until netvm_pending_wait() answers 0:
/// then the process is inside again. netvm_pending_value() tells whether the condition was reset. After an error the process is not inside, and both
/// participants are gone (-EIO), as when the pending call is closed before its end. -EPERM: this participant is not inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_monitor_begin_wait(
    monitor: *mut netvm_monitor,
    condition: *mut netvm_condition,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (monitor, condition) = (handle::get(monitor)?, handle::get(condition)?);
        let (inside, place_inside) = monitor.lend_held()?;
        let (condition, lent) = match condition.lend() {
            Ok(lent) => lent,
            Err(fault) => {
                place_inside.back(Slot::Held(inside));
                return Err(fault);
            }
        };
        let under = Under::taking(inside.begin_wait(condition), |(inside, condition, woken)| {
            lent.back(Slot::Free(condition));
            place_inside.back(Slot::Held(inside));
            (woken == Woken::Reset).into()
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
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
        let (mut slot, mut condition) = (slot.slot()?, condition.slot()?);
        let woken = slot.held()?.wait(condition.free()?);
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
        let one = condition.slot()?.free()?.signal()?;
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
        let mut slot = slot.slot()?;
        Ok(slot.let_go(OwnedInside::leave)??)
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
