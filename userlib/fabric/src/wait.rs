//! What a program waits with: a condition for calls that wait, a descriptor for its own `poll(2)`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::fi::{Answer, Errno, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD};

/// A wait object.
#[derive(Debug)]
pub(crate) struct Wait {
    descriptor: Option<OwnedFd>,
    /// The descriptor is readable.
    raised: AtomicBool,
    /// Counts what happened.
    events: Mutex<u64>,
    happened: Condvar,
    /// `FI_WAIT_NONE`: no call waits.
    waits: bool,
}

impl Wait {
    /// A wait object of this kind.
    ///
    /// # Errors
    /// It is not offered, or the kernel gives no descriptor.
    pub(crate) fn new(kind: u32) -> Answer<Self> {
        let descriptor = match kind {
            FI_WAIT_NONE | FI_WAIT_YIELD => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => {
                // SAFETY: a call without pointers.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                if fd < 0 {
                    return Err(Errno(
                        std::io::Error::last_os_error()
                            .raw_os_error()
                            .unwrap_or(libc::EMFILE),
                    ));
                }
                // SAFETY: the descriptor is new, and this value's own.
                Some(unsafe { OwnedFd::from_raw_fd(fd) })
            }
            _ => return Err(Errno::NOSYS),
        };
        Ok(Self {
            descriptor,
            raised: AtomicBool::new(false),
            events: Mutex::new(0),
            happened: Condvar::new(),
            waits: kind != FI_WAIT_NONE,
        })
    }

    /// Whether calls may wait with it.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Its descriptor.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.descriptor.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Something happened.
    pub(crate) fn raise(&self) {
        if !self.waits {
            return;
        }
        *self.events.lock() += 1;
        self.happened.notify_all();
        if let Some(fd) = &self.descriptor
            && !self.raised.swap(true, Ordering::AcqRel)
        {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: the buffer is as long as said. A counter that is full is readable as well.
            unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// All that happened was seen.
    pub(crate) fn clear(&self) {
        if let Some(fd) = &self.descriptor
            && self.raised.swap(false, Ordering::AcqRel)
        {
            let mut count = [0_u8; 8];
            // SAFETY: the buffer is as long as said.
            unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
    }

    /// How much has happened, to be given to [`until`](Self::until).
    pub(crate) fn seen(&self) -> u64 {
        *self.events.lock()
    }

    /// Waits until more has happened, or until then.
    pub(crate) fn until(&self, seen: u64, end: Option<Instant>) {
        let mut events = self.events.lock();
        while *events == seen {
            match end {
                Some(end) => {
                    if self.happened.wait_until(&mut events, end).timed_out() {
                        return;
                    }
                }
                None => self.happened.wait(&mut events),
            }
        }
    }
}

/// When a wait of libfabric's ends: milliseconds, or never.
pub(crate) fn end_of(timeout: i32) -> Option<Instant> {
    let millis = u64::try_from(timeout).ok()?;
    Some(Instant::now() + Duration::from_millis(millis))
}
