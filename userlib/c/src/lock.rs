//! Locks, and the homes of locks, semaphores and wait queues.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use netvm::sync::{Home, Lock, OwnedGuard};

use crate::access::{access, netvm_access};
use crate::argument::{out, set, text, timeout};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};
use crate::hold::{Participant, Slot};
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// The home of a lock, a semaphore, a wait queue, a monitor or a condition: what lives there ends with it.
pub struct netvm_home;
/// A participant of a lock. It serves one thread at a time.
pub struct netvm_lock;

handles! {
    netvm_home = 14: Home;
    netvm_lock = 15: Arc<Participant<Lock, OwnedGuard>>;
}

/// It is held by another one, and the call was not to wait.
pub(crate) const NOT_NOW: Fault = Fault::Argument(
    libc::EAGAIN,
    "another participant holds it, and the call was not to wait",
);

/// Makes a home by `create`, and gives it a handle.
///
/// # Safety
/// The arguments are as the header asks.
pub(crate) unsafe fn make_home(
    port: *mut netvm_port,
    name: *const c_char,
    list: *const netvm_access,
    home: *mut *mut netvm_home,
    create: impl FnOnce(&netvm::Port, &str, netvm::Access) -> netvm::Result<Home>,
) -> c_int {
    call(|| {
        let place = out(home, "home")?;
        // SAFETY: the caller's, here and below.
        let (name, list) = unsafe { (text(name, "name")?, access(list)?) };
        let made = create(&*handle::get(port)?, name, list)?;
        let made = handle::make(made)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// What a participant is joined by: all but its kind.
pub(crate) struct Address<'a> {
    pub(crate) node: netvm::NodeId,
    pub(crate) exporter: netvm::PortId,
    pub(crate) name: &'a str,
    pub(crate) timeout: netvm::Timeout,
}

impl Address<'_> {
    /// # Safety
    /// `name` is a text.
    pub(crate) unsafe fn new(node: u16, exporter: u16, name: *const c_char, timeout_ns: i64) -> Result<Self> {
        Ok(Self {
            node: node.into(),
            exporter: exporter.into(),
            // SAFETY: the caller's.
            name: unsafe { text(name, "name") }?,
            timeout: timeout(timeout_ns),
        })
    }
}

/// Ends what has its home there. Participants get an error, at the latest when they next need the home.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_home_close(home: *mut netvm_home) -> c_int {
    call(|| handle::close(home))
}

/// Makes a lock that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_lock_create(
    port: *mut netvm_port,
    name: *const c_char,
    access: *const netvm_access,
    home: *mut *mut netvm_home,
) -> c_int {
    // SAFETY: the header asks for such arguments.
    unsafe { make_home(port, name, access, home, Lock::create) }
}

/// Takes part in a lock: one participant, which holds it or waits for it once at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_lock_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    lock: *mut *mut netvm_lock,
) -> c_int {
    call(|| {
        let place = out(lock, "lock")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = Lock::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = handle::make(Participant::new(joined))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Takes the lock. NETVM_FOREVER: waits for it, first come first served. Otherwise it tries again and again, and those that wait come first;
/// -EAGAIN or -ETIMEDOUT if that was in vain. `owner_died` gets whether a process has died that may have held it, so that what it protects may
/// be half changed; it may be NULL. -EDEADLK: this participant holds it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_lock_acquire(
    lock: *mut netvm_lock,
    timeout_ns: i64,
    owner_died: *mut bool,
) -> c_int {
    call(|| {
        let slot = handle::get(lock)?;
        let mut slot = slot.slot()?;
        let guard = slot.hold(|lock| {
            let taken = lock.own(|lock| match timeout_ns {
                0 => lock.try_acquire(),
                ..0 => lock.acquire().map(Some),
                _ => lock.try_acquire_for(timeout(timeout_ns)).map(Some),
            });
            taken.map_err(|(lock, error)| Box::new((lock, error.map_or(NOT_NOW, Fault::from))))
        })?;
        let died = guard.owner_died();
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(owner_died, died) };
        Ok(())
    })
}

/// Begins to wait for the lock, as netvm_lock_acquire() does with NETVM_FOREVER, and does not wait for it. `lock` is away (-EBUSY) until
/// netvm_pending_wait() answers 0: then it is held. netvm_pending_value() tells whether a process has died that may have held it. After an error,
/// and when the pending call is closed before its end, this participant is gone (-EIO). It costs a thread while it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_lock_begin_acquire(
    lock: *mut netvm_lock,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (lock, lent) = handle::get(lock)?.lend()?;
        let under = Under::taking(lock.begin_acquire(), |guard| {
            let died = guard.owner_died();
            lent.back(Slot::Held(guard));
            died.into()
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Lets go of the lock. Everything that this port has written meanwhile has landed when the next holder gets it. A write that did not land is
/// told; the lock is free all the same. -EPERM: it is not held.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_lock_release(lock: *mut netvm_lock) -> c_int {
    call(|| {
        let slot = handle::get(lock)?;
        let mut slot = slot.slot()?;
        Ok(slot.let_go(OwnedGuard::release)??)
    })
}

/// Whether a participant waits for the lock that this one holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_lock_is_asked_for(lock: *mut netvm_lock, asked: *mut bool) -> c_int {
    call(|| {
        let place = out(asked, "asked")?;
        let slot = handle::get(lock)?;
        let mut slot = slot.slot()?;
        let is_asked = slot.held()?.is_asked_for()?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(is_asked) };
        Ok(())
    })
}

/// Leaves a lock, and lets go of it if it is held.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_lock_close(lock: *mut netvm_lock) -> c_int {
    call(|| handle::close(lock))
}
