//! What a program waits with: a condition for calls that wait, a descriptor for its own `poll(2)`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::fi::{Answer, Errno, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD};

#[derive(Debug, Default)]
struct State {
    /// Counts what happened.
    events: u64,
    /// The descriptor is readable. It becomes so, and ceases to be so, with this: else it might stay readable for nothing.
    raised: bool,
}

/// A wait object.
#[derive(Debug)]
pub(crate) struct Wait {
    descriptor: Option<OwnedFd>,
    state: Mutex<State>,
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
            state: Mutex::default(),
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
        let mut state = self.state.lock();
        state.events += 1;
        self.happened.notify_all();
        if let Some(fd) = &self.descriptor
            && !std::mem::replace(&mut state.raised, true)
        {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: the buffer is as long as said. A counter that is full is readable as well.
            unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// All that happened was seen.
    pub(crate) fn clear(&self) {
        let Some(fd) = &self.descriptor else { return };
        let mut state = self.state.lock();
        if std::mem::take(&mut state.raised) {
            let mut count = [0_u8; 8];
            // SAFETY: the buffer is as long as said.
            unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
    }

    /// How much has happened, to be given to [`until`](Self::until).
    pub(crate) fn seen(&self) -> u64 {
        self.state.lock().events
    }

    /// Waits until more has happened, or until then.
    pub(crate) fn until(&self, seen: u64, end: Option<Instant>) {
        let mut state = self.state.lock();
        while state.events == seen {
            match end {
                Some(end) => {
                    if self.happened.wait_until(&mut state, end).timed_out() {
                        return;
                    }
                }
                None => self.happened.wait(&mut state),
            }
        }
    }
}

/// When a wait of libfabric's ends: milliseconds, or never.
pub(crate) fn end_of(timeout: i32) -> Option<Instant> {
    let millis = u64::try_from(timeout).ok()?;
    Some(Instant::now() + Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const ROUNDS: usize = 50_000;

    fn is_readable(wait: &Wait) -> bool {
        let mut polled = libc::pollfd {
            fd: wait.descriptor().unwrap(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, as said.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
    }

    #[test]
    fn a_descriptor_is_readable_from_a_raise_to_the_next_clear() {
        let wait = Wait::new(FI_WAIT_FD).unwrap();
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let until = |count: &AtomicUsize, round| {
            while count.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        };
        let mut for_nothing = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    until(&begun, round);
                    wait.raise();
                    ended.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::Release);
                // Between what a raise does, in one of the rounds.
                for _ in 0..round % 512 {
                    std::hint::spin_loop();
                }
                wait.clear();
                until(&ended, round);
                wait.clear();
                for_nothing += usize::from(is_readable(&wait));
            }
        });
        assert_eq!(for_nothing, 0, "it stays readable");
        assert_eq!(wait.seen(), ROUNDS as u64);
        wait.raise();
        assert!(is_readable(&wait));
        wait.clear();
        assert!(!is_readable(&wait));
    }
}
