//! Semaphores.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use netvm::sync::Semaphore;

use crate::access::netvm_access;
use crate::argument::{out, set, timeout};
use crate::call::call;
use crate::fault::Fault;
use crate::handle::{self, handles};
use crate::hold::{Participant, Slot};
use crate::lock::{Address, make_home, netvm_home};
use crate::pending::{Under, netvm_pending};
use crate::port::netvm_port;

/// A participant of a semaphore. It serves one thread at a time.
pub struct netvm_semaphore;

handles! {
    netvm_semaphore = 18: Arc<Participant<Semaphore>>;
}

/// Makes a semaphore of this value that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all
/// ports may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_semaphore_create(
    port: *mut netvm_port,
    name: *const c_char,
    value: u32,
    access: *const netvm_access,
    home: *mut *mut netvm_home,
) -> c_int {
    // SAFETY: the header asks for such arguments.
    unsafe {
        make_home(port, name, access, home, |port, name, access| {
            Semaphore::create(port, name, value, access)
        })
    }
}

/// Takes part in a semaphore: one participant, which waits once at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_semaphore_join(
    port: *mut netvm_port,
    node: u16,
    exporter: u16,
    name: *const c_char,
    timeout_ns: i64,
    semaphore: *mut *mut netvm_semaphore,
) -> c_int {
    call(|| {
        let place = out(semaphore, "semaphore")?;
        // SAFETY: the header asks for such arguments, here and below.
        let at = unsafe { Address::new(node, exporter, name, timeout_ns) }?;
        let joined = Semaphore::join(&*handle::get(port)?, at.node, at.exporter, at.name, at.timeout)?;
        let made = handle::make(Participant::new(joined))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Takes a token. NETVM_FOREVER: waits for one. Otherwise it tries again and again, and those that wait come first; -EAGAIN or -ETIMEDOUT if that
/// was in vain.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_semaphore_wait(semaphore: *mut netvm_semaphore, timeout_ns: i64) -> c_int {
    call(|| {
        let slot = handle::get(semaphore)?;
        let mut slot = slot.slot()?;
        let semaphore = slot.free()?;
        match timeout_ns {
            0 if semaphore.try_wait()? == 0 => Err(Fault::argument(
                libc::EAGAIN,
                "there is no token, and the call was not to wait",
            )),
            0 => Ok(()),
            ..0 => Ok(semaphore.wait().map(drop)?),
            _ => Ok(semaphore.try_wait_for(timeout(timeout_ns)).map(drop)?),
        }
    })
}

/// Begins to wait for a token, as netvm_semaphore_wait() does with NETVM_FOREVER, and does not wait for it. `semaphore` is away (-EBUSY) until
/// netvm_pending_wait() answers 0: then the token is there. netvm_pending_value() gives the value that it found. After an error, and when the pending
/// call is closed before its end, this participant is gone (-EIO). It costs a thread while it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_semaphore_begin_wait(
    semaphore: *mut netvm_semaphore,
    context: *mut c_void,
    pending: *mut *mut netvm_pending,
) -> c_int {
    call(|| {
        let place = out(pending, "pending")?;
        let (semaphore, lent) = handle::get(semaphore)?.lend()?;
        let under = Under::taking(semaphore.begin_wait(), |(semaphore, found)| {
            lent.back(Slot::Free(semaphore));
            found.into()
        });
        let made = under.handle(context)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Gives a token: to the first waiter, or to the count. `value` gets the value after that; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_semaphore_signal(semaphore: *mut netvm_semaphore, value: *mut u32) -> c_int {
    call(|| {
        let slot = handle::get(semaphore)?;
        let after = slot.slot()?.free()?.signal()?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { set(value, after) };
        Ok(())
    })
}

/// Leaves a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_semaphore_close(semaphore: *mut netvm_semaphore) -> c_int {
    call(|| handle::close(semaphore))
}
