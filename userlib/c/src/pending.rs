//! Operations under way.

use std::ffi::{c_int, c_void};

use netvm::{Error, Operation, Pending, PendingAtomic, PendingCall, PendingImport, RemoteSegment, Timeout};
use parking_lot::Mutex;

use crate::access::netvm_remote;
use crate::argument::{out, timeout, waited};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};

/// An operation under way, with a word of the program.
pub struct netvm_pending;

/// An operation and the program's word.
pub struct Begun {
    /// The word. It is never followed.
    context: usize,
    op: u32,
    under: Mutex<Under>,
}

handles! {
    netvm_pending = 6: Begun;
}

/// What is under way.
pub(crate) enum Under {
    /// A write, a read, or a flush.
    Plain(Pending),
    /// An atomic, with an answer.
    Atomic(PendingAtomic),
    /// An import.
    Import(PendingImport),
    /// An import that has ended: what it gives, until that is taken.
    Imported(netvm::Result<Option<RemoteSegment>>),
    /// A call that has taken participants with it.
    Taking(Box<dyn Taking>),
    /// How such a call has ended.
    Taken(netvm::Result<u64>),
    /// A completion queue has it now.
    Moved,
}

/// A call that has taken participants with it, and puts them back when it has ended well.
pub(crate) trait Taking: Send {
    /// Its answer. Nothing: it is still under way.
    fn wait(&mut self, timeout: Timeout) -> Option<netvm::Result<u64>>;
}

/// Such a call, and what puts its participants back and gives its answer.
struct Takes<T: Send + 'static, B> {
    call: PendingCall<T>,
    back: Option<B>,
}

impl<T: Send, B: FnOnce(T) -> u64 + Send> Taking for Takes<T, B> {
    fn wait(&mut self, timeout: Timeout) -> Option<netvm::Result<u64>> {
        let ended = ended(&mut self.call, timeout)?;
        Some(match (ended, self.back.take()) {
            (Ok(taken), Some(back)) => Ok(back(taken)),
            (Ok(_), None) => Err(Error::Released),
            (Err(error), _) => Err(error),
        })
    }
}

/// How a call has ended. Nothing: it is still under way.
fn ended<T: Send>(call: &mut PendingCall<T>, timeout: Timeout) -> Option<netvm::Result<T>> {
    match call.wait_for(timeout) {
        Err(Error::TimedOut) if !call.is_done() => None,
        // It has ended in this very moment, or has run out of a time of its own.
        Err(Error::TimedOut) => Some(call.end().unwrap_or(Err(Error::TimedOut))),
        ended => Some(ended),
    }
}

impl Under {
    /// A call that has taken participants with it: `back` puts them back, and gives its answer.
    pub(crate) fn taking<T: Send>(
        call: PendingCall<T>,
        back: impl FnOnce(T) -> u64 + Send + 'static,
    ) -> Self {
        let back = Some(back);
        Self::Taking(Box::new(Takes { call, back }))
    }

    /// Gives it a handle.
    pub(crate) fn handle(self, context: *mut c_void) -> Result<*mut netvm_pending> {
        let op = match &self {
            Self::Plain(pending) => pending.op().0,
            Self::Atomic(pending) => pending.op().0,
            // These are no operations of the card.
            Self::Import(_) | Self::Imported(_) | Self::Taking(_) | Self::Taken(_) | Self::Moved => 0,
        };
        handle::make(Begun {
            context: context.expose_provenance(),
            op,
            under: Mutex::new(self),
        })
    }

    /// Waits for its end; gives its answer, if it has one.
    fn wait(&mut self, timeout: Timeout) -> netvm::Result<Option<u64>> {
        match self {
            Self::Plain(pending) => pending.wait_for(timeout).map(|()| None),
            Self::Atomic(pending) => pending.wait_for(timeout).map(|answer| Some(answer.value)),
            Self::Import(pending) => {
                let ended = ended(pending, timeout).ok_or(Error::TimedOut)?;
                let told = ended.as_ref().map(|_| None).map_err(|error| *error);
                *self = Self::Imported(ended.map(Some));
                told
            }
            Self::Imported(end) => end.as_ref().map(|_| None).map_err(|error| *error),
            Self::Taking(call) => {
                let end = call.wait(timeout).ok_or(Error::TimedOut)?;
                *self = Self::Taken(end);
                end.map(Some)
            }
            Self::Taken(end) => end.map(Some),
            Self::Moved => Err(Error::Released),
        }
    }
}

/// Takes an operation out of its handle, which ends, for a completion queue. Gives the program's word, too.
pub(crate) fn take(pending: *mut netvm_pending) -> Result<(Operation, usize)> {
    let begun = handle::get(pending)?;
    let mut under = begun.under.try_lock().ok_or(BUSY)?;
    let operation = match std::mem::replace(&mut *under, Under::Moved) {
        Under::Plain(plain) => plain.into(),
        Under::Atomic(atomic) => atomic.into(),
        other => {
            *under = other;
            return Err(Fault::argument(
                libc::EINVAL,
                "only operations of the card go into a completion queue: wait for it",
            ));
        }
    };
    let context = begun.context;
    drop(under);
    drop(begun);
    handle::close(pending)?;
    Ok((operation, context))
}

/// Waits for the end of an operation; how that was is what the call returns. -EAGAIN (for a time-out of 0) or -ETIMEDOUT: it is still under
/// way. An operation that has ended answers the same again.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_pending_wait(pending: *mut netvm_pending, timeout_ns: i64) -> c_int {
    call(|| {
        let begun = handle::get(pending)?;
        let mut under = begun.under.try_lock().ok_or(BUSY)?;
        waited(under.wait(timeout(timeout_ns)), timeout_ns).map(drop)
    })
}

/// Another thread is in a call with the same handle.
pub(crate) const BUSY: Fault = Fault::Argument(
    libc::EBUSY,
    "another thread is in a call with this handle, which serves one at a time",
);

/// The answer of what has ended well. Of an atomic: the old value of its word. Of what was begun with a lock or a monitor: 1 if a process has died
/// that may have held it. Of a semaphore: the value that was found. Of a wait queue or a condition: 1 if it was reset. -EAGAIN while it is under
/// way, -ENODATA of another operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_pending_value(pending: *mut netvm_pending, value: *mut u64) -> c_int {
    call(|| {
        let place = out(value, "value")?;
        let begun = handle::get(pending)?;
        let mut under = begun.under.try_lock().ok_or(BUSY)?;
        let answer = waited(under.wait(Timeout::Now), 0)?;
        let answer = answer.ok_or(Fault::argument(libc::ENODATA, "what was begun has no answer"))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(answer) };
        Ok(())
    })
}

/// What an import that has ended well has bound to, once. -EAGAIN while it is under way, -ENODATA if it was taken before, or of another
/// operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_pending_remote(
    pending: *mut netvm_pending,
    remote: *mut *mut netvm_remote,
) -> c_int {
    call(|| {
        let place = out(remote, "remote")?;
        let begun = handle::get(pending)?;
        let mut under = begun.under.try_lock().ok_or(BUSY)?;
        waited(under.wait(Timeout::Now), 0)?;
        let none = Fault::argument(
            libc::ENODATA,
            "there is no import, or what it gave was taken before",
        );
        let bound = match &mut *under {
            Under::Imported(Ok(bound)) => bound.take().ok_or(none)?,
            _ => return Err(none),
        };
        let made = handle::make(bound)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
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

/// The operation's number, by which struct netvm_failure names it; 0 of what is no operation of the card: an import, or what takes a lock.
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

/// Lets go of an operation. That takes nothing back: it goes on, and if it fails, the next call to the same node says so. An import is
/// given up. What takes a lock, a token or a monitor is given up with its participant, which is to be closed: what it still gets it gives to the
/// next.
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
