//! The border to C: handles, answers, and no panic beyond it.

use core::ffi::{CStr, c_char, c_int};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use netvm_process::Life;
use parking_lot::Mutex;

use crate::fi::{
    Answer, Errno, fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr, fid_poll,
};

/// Runs a call from C that counts something: bytes, entries.
pub(crate) fn count(body: impl FnOnce() -> Answer<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count.cast_signed(),
        Ok(Err(errno)) => -(errno.0 as isize),
        Err(_) => -(Errno::OTHER.0 as isize),
    }
}

/// Runs a call from C that answers with 0.
pub(crate) fn call(body: impl FnOnce() -> Answer) -> c_int {
    number(|| body().map(|()| 0))
}

/// Runs a call from C that answers with a number.
pub(crate) fn number(body: impl FnOnce() -> Answer<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(number)) => number,
        Ok(Err(errno)) => -errno.0,
        Err(_) => -Errno::OTHER.0,
    }
}

/// What the structures that C knows have in common: they begin with a [`fid`].
///
/// # Safety
/// The type is `repr(C)` and begins with a [`fid`].
pub(crate) unsafe trait Face: Copy + 'static {}

// SAFETY: libfabric's headers say so.
unsafe impl Face for fid_fabric {}
// SAFETY: as above.
unsafe impl Face for fid_domain {}
// SAFETY: as above.
unsafe impl Face for fid_ep {}
// SAFETY: as above.
unsafe impl Face for fid_cq {}
// SAFETY: as above.
unsafe impl Face for fid_cntr {}
// SAFETY: as above.
unsafe impl Face for fid_eq {}
// SAFETY: as above.
unsafe impl Face for fid_av {}
// SAFETY: as above.
unsafe impl Face for fid_mr {}
// SAFETY: as above.
unsafe impl Face for fid_poll {}

/// An object as C holds it.
#[repr(C)]
pub(crate) struct Handle<F: Face, T> {
    face: F,
    class: usize,
    /// A child of `fork` has a copy of the handle, and no part in what is behind it: threads, links, shared memory.
    life: Life,
    object: Option<Arc<T>>,
}

// SAFETY: the pointers of a face are C's context and tables that never change; only C follows the context.
unsafe impl<F: Face, T: Send + Sync> Send for Handle<F, T> {}

/// Handles that were closed lately. A program that uses one of these gets an error instead of memory that is another's.
static CLOSED: Mutex<VecDeque<Box<dyn Any + Send>>> = Mutex::new(VecDeque::new());
/// How many of them.
const REMEMBERED: usize = 512;

impl<F: Face, T: Send + Sync + 'static> Handle<F, T> {
    /// Hands an object to C.
    ///
    /// # Errors
    /// There is no memory to tell this process from its children.
    pub(crate) fn give(face: F, class: u32, object: Arc<T>) -> Answer<*mut F> {
        let handle = Box::new(Self {
            face,
            class: class as usize,
            life: Life::present().map_err(|_| Errno::NOMEM)?,
            object: Some(object),
        });
        Ok(Box::into_raw(handle).cast())
    }

    /// The object behind a handle.
    ///
    /// # Safety
    /// `face` is null, or a handle that [`give`](Self::give) made, open or closed lately, or begins with a [`fid`].
    pub(crate) unsafe fn of<'a, P>(face: *mut P, class: u32) -> Answer<&'a Arc<T>> {
        // SAFETY: the caller's promise; each object of C begins with a `fid`.
        let found = unsafe { face.cast::<fid>().as_ref() }.ok_or(Errno::INVAL)?;
        if found.fclass != class as usize {
            return Err(if found.fclass == 0 {
                Errno::BADF
            } else {
                Errno::INVAL
            });
        }
        // SAFETY: a `fid` of this class is this provider's, as the domain that it came from is.
        let handle = unsafe { &*face.cast::<Self>() };
        if handle.class != class as usize {
            return Err(Errno::INVAL);
        }
        if !handle.life.is_present() {
            return Err(Errno::BADF);
        }
        handle.object.as_ref().ok_or(Errno::BADF)
    }

    /// Takes the object back from C.
    ///
    /// # Safety
    /// As [`of`](Self::of), and no other call uses the handle at this time.
    pub(crate) unsafe fn take(face: *mut fid, class: u32) -> Answer<Arc<T>> {
        // SAFETY: the caller's promise.
        unsafe { Self::of(face, class)? };
        // SAFETY: `give` made it of a box, and it was not closed before, or its class would be another one.
        let mut handle = unsafe { Box::from_raw(face.cast::<Self>()) };
        let object = handle.object.take();
        // SAFETY: the face begins with a `fid`.
        unsafe { (*(&raw mut handle.face).cast::<fid>()).fclass = 0 };
        let mut closed = CLOSED.lock();
        closed.push_back(handle);
        let old = (closed.len() > REMEMBERED).then(|| closed.pop_front());
        drop(closed);
        drop(old);
        object.ok_or(Errno::BADF)
    }
}

/// Forgets the handles that were closed.
pub(crate) fn forget_closed() {
    let closed = std::mem::take(&mut *CLOSED.lock());
    drop(closed);
}

/// A table of calls, as C holds it.
pub(crate) const fn table<T>(table: &'static T) -> *mut T {
    core::ptr::from_ref(table).cast_mut()
}

/// What C points to, if it does.
///
/// # Safety
/// The pointer is null or valid for reads.
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }
}

/// An array of C's.
///
/// # Safety
/// The pointer is null, or valid for reads of `count` elements.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize) -> Answer<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if pointer.is_null() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { core::slice::from_raw_parts(pointer, count) }),
    }
}

/// A string of C's, if there is one.
///
/// # Safety
/// The pointer is null, or that of a string.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
