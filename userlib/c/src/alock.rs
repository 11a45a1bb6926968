//! Asymmetric locks: local to the threads of one process, remote to others.

use std::ffi::{c_char, c_int};

use netvm::sync::alock::{AsymmetricConfig, AsymmetricGuard, AsymmetricHandle, AsymmetricLock};
use parking_lot::Mutex;

use crate::access::{access, netvm_access};
use crate::argument::{out, text};
use crate::call::call;
use crate::handle::{self, handles};
use crate::hold::{Slot, holds};
use crate::lock::Address;
use crate::pending::BUSY;
use crate::port::netvm_port;

/// An asymmetric lock, in the process that is its home.
pub struct netvm_alock_home;
/// A participant of an asymmetric lock. It serves one thread at a time.
pub struct netvm_alock;

/// A guard, until it is released.
type AlockGuard<'a> = Option<AsymmetricGuard<'a>>;

holds!(HeldAlock: AlockGuard of AsymmetricHandle);

/// A participant.
pub struct AlockSlot(Mutex<Slot<AsymmetricHandle, HeldAlock>>);

handles! {
    netvm_alock_home = 16: AsymmetricLock;
    netvm_alock = 17: AlockSlot;
}

fn participant(handle: AsymmetricHandle) -> crate::fault::Result<*mut netvm_alock> {
    handle::make(AlockSlot(Mutex::new(Slot::Free(Box::new(handle)))))
}

/// Makes an asymmetric lock that has its home at this port, under this name. Remote participants need to read and do atomics; `access` NULL: all
/// ports may. `local_budget`, `remote_budget`: how many of each class may follow one another while the other waits; 0: 5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_create(
    port: *mut netvm_port,
    name: *const c_char,
    access: *const netvm_access,
    local_budget: u32,
    remote_budget: u32,
    home: *mut *mut netvm_alock_home,
) -> c_int {
    call(|| {
        let place = out(home, "home")?;
        // SAFETY: the header asks for such arguments, here and below.
        let (name, list) = unsafe { (text(name, "name")?, self::access(access)?) };
        let or_five = |budget: u32| if budget == 0 { 5 } else { budget };
        let config = AsymmetricConfig::new(list).budgets(or_five(local_budget), or_five(remote_budget));
        let made = AsymmetricLock::create(&*handle::get(port)?, name, config)?;
        let made = handle::make(made)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// A participant for a thread of the process that is the lock's home.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_local(
    home: *mut netvm_alock_home,
    alock: *mut *mut netvm_alock,
) -> c_int {
    call(|| {
        let place = out(alock, "alock")?;
        let made = participant(handle::get(home)?.handle()?)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// A participant that reaches the lock through its card.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    alock: *mut *mut netvm_alock,
) -> c_int {
    call(|| {
        let place = out(alock, "alock")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = AsymmetricLock::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = participant(joined)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Takes the lock; waits for it as long as it takes. -EDEADLK: this participant holds it. -ENOTRECOVERABLE: a member has died, and the lock is
/// lost.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_acquire(alock: *mut netvm_alock) -> c_int {
    call(|| {
        let slot = handle::get(alock)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let held = slot.hold(|handle| HeldAlock::take(handle, |handle| Ok(Some(handle.acquire()?))));
        held.map(drop)
    })
}

/// What the port writes to this node under the lock, too, is to be there for the next holder. The lock's own node needs no mention.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_covers(alock: *mut netvm_alock, node: u16) -> c_int {
    call(|| {
        let slot = handle::get(alock)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        slot.held()?.with_dependent_mut(|_, guard| {
            if let Some(guard) = guard {
                guard.covers(node.into());
            }
        });
        Ok(())
    })
}

/// Whether a participant of the same class waits for the lock that this one holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_is_asked_for(alock: *mut netvm_alock, asked: *mut bool) -> c_int {
    call(|| {
        let place = out(asked, "asked")?;
        let slot = handle::get(alock)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let asks = |guard: &AlockGuard<'_>| guard.as_ref().map_or(Ok(false), AsymmetricGuard::is_asked_for);
        let is_asked = slot.held()?.with_dependent(|_, guard| asks(guard))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(is_asked) };
        Ok(())
    })
}

/// Lets go of the lock. -EPERM: it is not held.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_release(alock: *mut netvm_alock) -> c_int {
    call(|| {
        let slot = handle::get(alock)?;
        let mut slot = slot.0.try_lock().ok_or(BUSY)?;
        let released = slot
            .let_go(|held| held.with_dependent_mut(|_, guard| guard.take().map(AsymmetricGuard::release)))?;
        Ok(released.unwrap_or(Ok(()))?)
    })
}

/// Leaves an asymmetric lock, and lets go of it if it is held.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_close(alock: *mut netvm_alock) -> c_int {
    call(|| handle::close(alock))
}

/// Ends an asymmetric lock, once its local participants are closed.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_home_close(home: *mut netvm_alock_home) -> c_int {
    call(|| handle::close(home))
}
