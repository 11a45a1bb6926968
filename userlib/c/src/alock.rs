//! Asymmetric locks: local to the threads of one process, remote to others.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use netvm::sync::alock::{AsymmetricConfig, AsymmetricHandle, AsymmetricLock, OwnedAsymmetricGuard};

use crate::access::{access, netvm_access};
use crate::argument::{out, text};
use crate::call::call;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::hold::{Participant, Slot};
use crate::lock::Address;
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// An asymmetric lock, in the process that is its home.
pub struct netvm_alock_home;
/// A participant of an asymmetric lock. It serves one thread at a time.
pub struct netvm_alock;

handles! {
    netvm_alock_home = 16: AsymmetricLock;
    netvm_alock = 17: Arc<Participant<AsymmetricHandle, OwnedAsymmetricGuard>>;
}

fn participant(handle: AsymmetricHandle) -> crate::fault::Result<*mut netvm_alock> {
    handle::make(Participant::new(handle))
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
        let mut slot = slot.slot()?;
        let taken = slot.hold(|handle| {
            let taken = handle.own();
            taken.map_err(|(handle, error)| Box::new((handle, Fault::from(error))))
        });
        taken.map(drop)
    })
}

/// Begins what netvm_alock_acquire() does, and does not wait for it: as netvm_lock_begin_acquire(). It has no answer for netvm_pending_value() but 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_begin_acquire(
    alock: *mut netvm_alock,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (participant, lent) = handle::get(alock)?.lend()?;
        let under = Under::taking(participant.begin_acquire(), |guard| {
            lent.back(Slot::Held(guard));
            0
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// What the port writes to this node under the lock, too, is to be there for the next holder. The lock's own node needs no mention.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_alock_covers(alock: *mut netvm_alock, node: u16) -> c_int {
    call(|| {
        let slot = handle::get(alock)?;
        let mut slot = slot.slot()?;
        slot.held()?.covers(node.into());
        Ok(())
    })
}

/// Whether a participant of the same class waits for the lock that this one holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_alock_is_asked_for(alock: *mut netvm_alock, asked: *mut bool) -> c_int {
    call(|| {
        let place = out(asked, "asked")?;
        let slot = handle::get(alock)?;
        let mut slot = slot.slot()?;
        let is_asked = slot.held()?.is_asked_for()?;
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
        let mut slot = slot.slot()?;
        Ok(slot.let_go(OwnedAsymmetricGuard::release)??)
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
