//! Errors as the C library has them.

use std::io::{self, ErrorKind};

use libc::c_int;

/// The error of the last call.
pub(crate) fn last() -> c_int {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set(errno: c_int) {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// What a call of the C library says with this error.
pub(crate) fn of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::NotConnected => libc::ENOTCONN,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        _ => libc::ECONNRESET,
    })
}

/// Fails a call.
pub(crate) fn fail<T: From<i8>>(errno: c_int) -> T {
    set(errno);
    T::from(-1)
}
