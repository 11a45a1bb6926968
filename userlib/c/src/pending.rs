//! Operations under way.

use std::ffi::{c_int, c_void};

use netvm::{Error, Pending, PendingAtomic};
use parking_lot::Mutex;

use crate::argument::{out, timeout, waited};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};

/// An operation under way, with a word of the program.
pub struct netvm_pending;

/// An operation and the program's word.
pub struct Operation {
    /// The word. It is never followed.
    context: usize,
    op: u32,
    under: Mutex<Under>,
}

handles! {
    netvm_pending = 6: Operation;
}

/// What is under way.
pub(crate) enum Under {
    /// A write, a read, or a flush.
    Plain(Pending),
    /// An atomic, with an answer.
    Atomic(PendingAtomic),
}

impl Under {
    /// Gives it a handle.
    pub(crate) fn handle(self, context: *mut c_void) -> Result<*mut netvm_pending> {
        let op = match &self {
            Self::Plain(pending) => pending.op().0,
            Self::Atomic(pending) => pending.op().0,
        };
        handle::make(Operation {
            context: context.expose_provenance(),
            op,
            under: Mutex::new(self),
        })
    }

    /// Waits for its end; gives its answer, if it has one.
    fn wait(&mut self, timeout: netvm::Timeout) -> netvm::Result<Option<u64>> {
        match self {
            Self::Plain(pending) => pending.wait_for(timeout).map(|()| None),
            Self::Atomic(pending) => pending.wait_for(timeout).map(|answer| Some(answer.value)),
        }
    }
}

/// Waits for the end of an operation; how that was is what the call returns. -EAGAIN (for a time-out of 0) or -ETIMEDOUT: it is still under
/// way. An operation that has ended answers the same again.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_pending_wait(pending: *mut netvm_pending, timeout_ns: i64) -> c_int {
    call(|| {
        let operation = handle::get(pending)?;
        let mut under = operation.under.try_lock().ok_or(BUSY)?;
        waited(under.wait(timeout(timeout_ns)), timeout_ns).map(drop)
    })
}

/// Another thread is in a call with the same handle.
pub(crate) const BUSY: Fault = Fault::Argument(
    libc::EBUSY,
    "another thread is in a call with this handle, which serves one at a time",
);

/// The answer of an atomic that has ended well: the old value of its word. -EAGAIN while it is under way, -ENODATA of another operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_pending_value(pending: *mut netvm_pending, value: *mut u64) -> c_int {
    call(|| {
        let place = out(value, "value")?;
        let operation = handle::get(pending)?;
        let mut under = operation.under.try_lock().ok_or(BUSY)?;
        let answer = waited(under.wait(netvm::Timeout::Now), 0)?;
        let answer = answer.ok_or(Fault::argument(libc::ENODATA, "only an atomic has an answer"))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(answer) };
        Ok(())
    })
}

/// The word that the program gave with the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_pending_context(
    pending: *mut netvm_pending,
    context: *mut *mut c_void,
) -> c_int {
    call(|| {
        let place = out(context, "context")?;
        let word = handle::get(pending)?.context;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(std::ptr::with_exposed_provenance_mut(word)) };
        Ok(())
    })
}

/// The operation's number, by which struct netvm_failure names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_pending_op(pending: *mut netvm_pending, op: *mut u32) -> c_int {
    call(|| {
        let place = out(op, "op")?;
        let number = handle::get(pending)?.op;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(number) };
        Ok(())
    })
}

/// Lets go of an operation. That takes nothing back: it goes on, and if it fails, the next call to the same node says so.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_pending_close(pending: *mut netvm_pending) -> c_int {
    call(|| handle::close(pending))
}

/// Room, as far as the last error of this thread tells what there was too little of.
pub(crate) const fn lack(error: Option<Error>) -> Option<netvm::Lack> {
    match error {
        Some(Error::NoRoom { lacks }) => Some(lacks),
        _ => None,
    }
}
