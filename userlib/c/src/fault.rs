//! What went wrong, as C is told: an `errno`, and details that the thread keeps until its next error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};

use netvm::{Error, Failure, Status};
use netvm_process::{OpenError, SoftError};
use rustix::io::Errno;

use crate::errno;

/// Result inside of the library.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// Why a call did not do its work. Made without an allocation where that may happen on a path that carries data.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The library of Rust says so.
    Library(Error),
    /// The call was given something that makes no sense.
    Argument(c_int, &'static str),
    /// A handle that is none.
    Stale(&'static str),
    /// A pointer that may not be NULL.
    Null(&'static str),
    /// The kernel says so.
    System(Errno),
    /// A node could not be opened or linked; in words.
    Node(c_int, String),
}

impl Fault {
    pub(crate) const fn argument(errno: c_int, why: &'static str) -> Self {
        Self::Argument(errno, why)
    }

    pub(crate) const fn stale(kind: &'static str) -> Self {
        Self::Stale(kind)
    }

    pub(crate) const fn null(what: &'static str) -> Self {
        Self::Null(what)
    }

    /// What the call returns, without the sign.
    fn errno(&self) -> c_int {
        match self {
            Self::Library(error) => errno::of(error),
            Self::Argument(errno, _) | Self::Node(errno, _) => *errno,
            Self::Stale(_) => libc::EBADF,
            Self::Null(_) => libc::EINVAL,
            Self::System(errno) => errno.raw_os_error(),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Library(error) => error.to_string(),
            Self::Argument(_, why) => (*why).into(),
            Self::Stale(kind) => format!("this is no {kind}, or it has been closed"),
            Self::Null(what) => format!("{what} is NULL"),
            Self::System(errno) => errno.to_string(),
            Self::Node(_, why) => why.clone(),
        }
    }
}

impl From<Error> for Fault {
    #[inline]
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl From<SoftError> for Fault {
    fn from(error: SoftError) -> Self {
        Self::Node(errno::of_node(&error), error.to_string())
    }
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        Self::Node(errno::of_choice(&error), error.to_string())
    }
}

/// The last error of a thread.
struct Last {
    fault: Fault,
    /// In words, once it was asked for.
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Keeps the fault for the thread; gives what the call returns.
#[cold]
pub(crate) fn note(fault: Fault) -> c_int {
    let errno = fault.errno();
    // At the end of a thread its last error is gone: then nothing is kept.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Last { fault, text: None });
        }
    });
    -errno
}

/// Looks at the error of the library behind the last error, if there is one.
pub(crate) fn last_error() -> Option<Error> {
    let looked = LAST.try_with(|last| match &last.try_borrow().ok()?.as_ref()?.fault {
        Fault::Library(error) => Some(*error),
        _ => None,
    });
    looked.ok().flatten()
}

/// The status behind the last error.
pub(crate) fn last_status() -> Status {
    last_error()
        .and_then(|error| error.status())
        .unwrap_or(Status::Ok)
}

/// The failed operation behind the last error.
pub(crate) fn last_failure() -> Option<Failure> {
    match last_error() {
        Some(Error::Failed(failure)) => Some(failure),
        _ => None,
    }
}

/// The last error in words. Valid until the thread's next error.
pub(crate) fn last_text() -> *const std::ffi::c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.try_borrow_mut().ok()?;
        let last = last.as_mut()?;
        let Last { fault, text } = last;
        let text = text.get_or_insert_with(|| {
            let mut bytes = fault.message().into_bytes();
            bytes.retain(|&byte| byte != 0);
            CString::new(bytes).unwrap_or_default()
        });
        Some(text.as_ptr())
    });
    text.ok().flatten().unwrap_or(NONE.as_ptr())
}

const NONE: &CStr = c"no error";
