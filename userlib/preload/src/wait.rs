//! How a thread waits for a connection, or for several and for other descriptors.

use std::io::{self, Error};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::errno;
use crate::process::process;
use crate::real;
use crate::socket::Socket;
use crate::watch::{Sleeper, Watcher};

/// How long a thread looks for what it waits for before it sleeps, where waits are so short. Each look lets other threads run.
const LONG: Duration = Duration::from_micros(300);
/// And where they are longer.
const SHORT: Duration = Duration::from_micros(20);
/// So many waits in a row are longer, then the next one is taken to be.
const IN_A_ROW: u32 = 8;

/// How long the waits of a thread, or of a set, are. To sleep and be woken costs two threads tens of
/// microseconds, and to look for long in vain costs a processor.
pub(crate) struct Habit {
    /// So many in a row were long.
    long: AtomicU32,
}

impl Habit {
    pub(crate) const fn new() -> Self {
        Self {
            long: AtomicU32::new(0),
        }
    }

    /// Looks for something for a moment, and drives the network meanwhile.
    pub(crate) fn spin<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        let span = if self.long.load(Ordering::Relaxed) < IN_A_ROW {
            LONG
        } else {
            SHORT
        };
        process().network.known()?.net.spin(span, look)
    }

    /// A wait that began then is over.
    pub(crate) fn learn(&self, began: Instant) {
        let long = match began.elapsed() <= LONG {
            true => 0,
            false => self.long.load(Ordering::Relaxed).saturating_add(1),
        };
        self.long.store(long, Ordering::Relaxed);
    }
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    pub(crate) const FOR_EVER: Self = Self(None);

    pub(crate) fn span(span: Option<Duration>) -> Self {
        Self(span.and_then(|span| Instant::now().checked_add(span)))
    }

    /// A time span as `ppoll` has it; for ever if there is none.
    ///
    /// # Safety
    /// It is none, or there is one.
    pub(crate) unsafe fn of(at: *const libc::timespec) -> Self {
        if at.is_null() {
            return Self::FOR_EVER;
        }
        // SAFETY: the caller's.
        let time = unsafe { at.read() };
        let seconds = Duration::from_secs(time.tv_sec.try_into().unwrap_or(0));
        Self::span(Some(
            seconds + Duration::from_nanos(time.tv_nsec.try_into().unwrap_or(0)),
        ))
    }

    /// Milliseconds, as `poll` has them.
    pub(crate) fn millis(timeout: i32) -> Self {
        Self::span(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// What is left, as `ppoll` has it.
    pub(crate) fn left(self) -> Option<libc::timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        Some(libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }
}

/// The real `ppoll`, with what is left of the patience.
pub(crate) fn poll(fds: &mut [libc::pollfd], patience: Patience, mask: *const libc::sigset_t) -> i32 {
    let left = patience.left();
    let timeout = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the slice and the time span are there; the mask is none, or the program's.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, mask) }
}

/// The event that a thread sleeps at, one for all of its calls.
///
/// # Errors
/// There are no descriptors left.
pub(crate) fn sleeper() -> io::Result<Arc<Sleeper>> {
    thread_local! {
        // And the process that it was made in: a child of `fork` has the same event as its parent.
        static SLEEPER: std::cell::RefCell<Option<(usize, Arc<Sleeper>)>> = const { std::cell::RefCell::new(None) };
    }
    let here = core::ptr::from_ref(process()).addr();
    let known = SLEEPER.try_with(|known| match &*known.borrow() {
        Some((process, sleeper)) if *process == here => Some(Arc::clone(sleeper)),
        _ => None,
    });
    if let Ok(Some(sleeper)) = known {
        return Ok(sleeper);
    }
    let sleeper = Arc::new(Sleeper::new()?);
    // A thread that ends has one for this call.
    let _ = SLEEPER.try_with(|known| known.borrow_mut().replace((here, Arc::clone(&sleeper))));
    Ok(sleeper)
}

/// Sleeps while the network's dispatcher takes what comes.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    match process().network.known() {
        Some(open) => open.net.asleep(sleep),
        None => sleep(),
    }
}

/// Attempts something until it can be done. `events`: what TCP says when it may, as long as the connection is there.
///
/// # Errors
/// The attempt's; `EAGAIN` when the patience is over; `EINTR`.
pub(crate) fn until<T>(
    socket: &Socket,
    fd: RawFd,
    events: i16,
    patience: Patience,
    mut attempt: impl FnMut() -> Poll<io::Result<T>>,
) -> io::Result<T> {
    if let Poll::Ready(done) = attempt() {
        return done;
    }
    let sleeper = sleeper()?;
    let began = Instant::now();
    if socket.has_moved() {
        let found = sleeper.habit.spin(|| match attempt() {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        });
        if let Some(done) = found {
            sleeper.habit.learn(began);
            return done;
        }
    }
    socket.watchers().add(Watcher::Thread(Arc::clone(&sleeper)));
    let done = loop {
        sleeper.begin();
        if let Poll::Ready(done) = attempt() {
            break done;
        }
        if patience.is_over() {
            break Err(Error::from_raw_os_error(libc::EAGAIN));
        }
        // What goes out goes by the stream once there is one, also while something may still come over TCP.
        let by_tcp = match events & libc::POLLOUT {
            0 => socket.awaits_tcp(),
            _ => !socket.has_moved(),
        };
        let slept = asleep(|| {
            sleeper.sleep(|event| {
                if !by_tcp && patience.left().is_none() {
                    return until_read(event.as_raw_fd());
                }
                let mut fds =
                    [(event.as_raw_fd(), libc::POLLIN), (fd, events)].map(|(fd, events)| libc::pollfd {
                        fd,
                        events,
                        revents: 0,
                    });
                let count = if by_tcp { 2 } else { 1 };
                match poll(&mut fds[..count], patience, core::ptr::null()) {
                    -1 => Err(errno::last()),
                    _ => Ok(()),
                }
            })
        });
        if let Some(Err(errno)) = slept {
            break Err(Error::from_raw_os_error(errno));
        }
    };
    socket.watchers().remove_thread(&sleeper);
    sleeper.habit.learn(began);
    done
}

/// Sleeps in a call that goes on after a signal whose handler says so (`SA_RESTART`), as a read of a socket does, and `poll` does not.
/// What it reads is put back: the sleeper takes it.
fn until_read(event: RawFd) -> Result<(), i32> {
    let mut count = [0_u8; 8];
    // SAFETY: the bytes are there.
    let read = unsafe { real::read(event, count.as_mut_ptr().cast(), count.len()) };
    if read == -1 {
        return Err(errno::last());
    }
    // SAFETY: the bytes are there. The count has room.
    let _ = unsafe { real::write(event, count.as_ptr().cast(), count.len()) };
    Ok(())
}
