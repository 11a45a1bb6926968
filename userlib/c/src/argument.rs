//! Arguments from C: pointers, lengths, names, time-outs, structures that begin with their size.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use netvm::{Error, Timeout};

use crate::fault::{Fault, Result};

/// Longest structure that a program may give.
const LONGEST: usize = 4096;

/// A place for a result.
pub(crate) struct Out<T>(*mut T);

/// A place for a result, which must be one.
#[inline]
pub(crate) const fn out<T>(place: *mut T, name: &'static str) -> Result<Out<T>> {
    if place.is_null() {
        Err(Fault::Null(name))
    } else {
        Ok(Out(place))
    }
}

impl<T> Out<T> {
    /// Fills it.
    ///
    /// # Safety
    /// The program gave a place for a `T`, as the header asks.
    #[inline]
    pub(crate) unsafe fn set(self, value: T) {
        // SAFETY: the caller's; an alignment is not asked for.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Fills a place for a result, if there is one.
///
/// # Safety
/// `place` is NULL or a place for a `T`.
#[inline]
pub(crate) unsafe fn set<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's; an alignment is not asked for.
        unsafe { place.write_unaligned(value) }
    }
}

const fn check_bytes(start: *const c_void, len: usize, name: &'static str) -> Result<()> {
    if start.is_null() && len > 0 {
        return Err(Fault::Null(name));
    }
    if len > isize::MAX as usize {
        return Err(Fault::argument(
            libc::EINVAL,
            "a length is larger than any memory",
        ));
    }
    Ok(())
}

/// Bytes of the program.
///
/// # Safety
/// `start` is NULL, or `len` bytes are there, which do not change during the call.
#[inline]
pub(crate) unsafe fn bytes<'a>(start: *const c_void, len: usize, name: &'static str) -> Result<&'a [u8]> {
    check_bytes(start, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Bytes of the program that the call fills. They may hold anything before.
///
/// # Safety
/// `start` is NULL, or there is memory for `len` bytes, which nothing else uses during the call.
#[inline]
pub(crate) unsafe fn bytes_mut<'a>(
    start: *mut c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a mut [u8]> {
    check_bytes(start, len, name)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's. The bytes of C's memory have values, though the program may not know them.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
}

/// A text of the program.
///
/// # Safety
/// `start` is NULL or begins a text that ends with a zero byte.
pub(crate) unsafe fn text<'a>(start: *const c_char, name: &'static str) -> Result<&'a str> {
    // SAFETY: the caller's.
    match unsafe { text_if_any(start) }? {
        Some(text) => Ok(text),
        None => Err(Fault::Null(name)),
    }
}

/// A text of the program, or NULL for none.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_if_any<'a>(start: *const c_char) -> Result<Option<&'a str>> {
    if start.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(start) };
    let text = text
        .to_str()
        .map_err(|_| Fault::argument(libc::EINVAL, "a text is not UTF-8"))?;
    Ok(Some(text))
}

/// Copies a text out, with a zero at its end.
///
/// # Safety
/// There is memory for `size` bytes at `place`.
pub(crate) unsafe fn copy_text(text: &str, place: *mut c_char, size: usize) -> Result<()> {
    // SAFETY: the caller's.
    let place = unsafe { bytes_mut(place.cast(), size, "the place for a text") }?;
    match place.split_at_mut_checked(text.len()) {
        Some((room, [end, ..])) => {
            room.copy_from_slice(text.as_bytes());
            *end = 0;
            Ok(())
        }
        _ => Err(Fault::argument(
            libc::ERANGE,
            "the text and its zero do not fit there",
        )),
    }
}

/// A time-out in nanoseconds: 0 is not to wait, anything negative to wait for ever.
#[inline]
pub(crate) const fn timeout(nanoseconds: i64) -> Timeout {
    match nanoseconds {
        0 => Timeout::Now,
        ..0 => Timeout::Never,
        more => Timeout::After(Duration::from_nanos(more as u64)),
    }
}

/// What a call with a time-out has come to: where it was not to wait, and would have had to, that is `EAGAIN`.
#[inline]
pub(crate) fn waited<T>(result: netvm::Result<T>, nanoseconds: i64) -> Result<T> {
    match result {
        Err(Error::TimedOut) if nanoseconds == 0 => Err(Fault::argument(
            libc::EAGAIN,
            "it is not there yet, and the call was not to wait",
        )),
        result => Ok(result?),
    }
}

/// A structure of the header that begins with its size.
///
/// # Safety
/// It is `repr(C)`, begins with a `usize`, and any bytes are a value of it.
pub(crate) unsafe trait Led: Copy {
    /// Its size in the first version of the library.
    const FIRST: usize;
    /// All zeroes: the defaults.
    const ZERO: Self;
}

/// The size that a structure says it has.
///
/// # Safety
/// A structure that begins with its size is there.
unsafe fn stated_size<T: Led>(from: *const T) -> Result<usize> {
    // SAFETY: the caller's; an alignment is not asked for.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if (T::FIRST..=LONGEST).contains(&size) {
        Ok(size)
    } else {
        Err(Fault::argument(
            libc::EINVAL,
            "the size at the beginning of a structure is not what it may be: set it to `sizeof` of the structure",
        ))
    }
}

/// Reads a structure; NULL stands for the defaults. One from a program that knows less is completed with defaults. One from a
/// program that knows more is taken if what is more is zero.
///
/// # Safety
/// `from` is NULL, or there are as many bytes as it begins with.
pub(crate) unsafe fn structure<T: Led>(from: *const T) -> Result<T> {
    let mut value = T::ZERO;
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the caller's, here and below; the bytes of a `Led` may be anything.
    let size = unsafe { stated_size(from) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: as above.
    let rest = unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known);
        std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known)
    };
    if rest.iter().all(|&byte| byte == 0) {
        Ok(value)
    } else {
        Err(Fault::argument(
            libc::E2BIG,
            "a structure asks for something that this version of the library does not know",
        ))
    }
}

/// Fills a structure as far as the program knows it. Its size stays.
///
/// # Safety
/// `into` is NULL, or there are as many bytes as it begins with.
pub(crate) unsafe fn fill<T: Led>(into: *mut T, value: &T, name: &'static str) -> Result<()> {
    if into.is_null() {
        return Err(Fault::Null(name));
    }
    // SAFETY: the caller's, here and below.
    let size = unsafe { stated_size(into) }?;
    let lead = size_of::<usize>();
    let known = size.min(size_of::<T>()).saturating_sub(lead);
    // SAFETY: as above; both are at least `lead + known` long.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.add(lead), into.cast::<u8>().add(lead), known);
        let rest = into.cast::<u8>().add(lead + known);
        std::ptr::write_bytes(rest, 0, size - lead - known);
    }
    Ok(())
}

/// Flags of which all are known.
pub(crate) fn flags(given: u32, known: u32) -> Result<u32> {
    if given & !known == 0 {
        Ok(given)
    } else {
        Err(Fault::argument(
            libc::EINVAL,
            "a flag is not one that this call has",
        ))
    }
}
