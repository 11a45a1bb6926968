//! Calls that wait for several descriptors.

use core::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::epoll::Epoll;
use crate::errno::{self, fail};
use crate::process;
use crate::real;
use crate::socket::Socket;
use crate::wait::{self, Patience, asleep, sleeper};
use crate::watch::Watcher;

/// A descriptor that is waited for, and its connection if it is one of ours.
type Waited = (pollfd, Option<Arc<Socket>>);

/// Looks at all once, and tells how many have something.
fn look(all: &mut [Waited]) -> usize {
    let mut found = 0;
    // The kernel's: those of ours are passed over.
    let mut fds: Vec<pollfd> = all
        .iter()
        .map(|(one, socket)| pollfd {
            fd: if socket.is_some() { -1 } else { one.fd },
            ..*one
        })
        .collect();
    if all.iter().any(|(_, socket)| socket.is_none()) {
        // SAFETY: there are so many.
        unsafe { real::poll(fds.as_mut_ptr(), fds.len() as nfds_t, 0) };
    }
    for ((one, socket), kernel) in all.iter_mut().zip(fds) {
        one.revents = match socket {
            Some(socket) => {
                let wanted = u32::from(one.events.cast_unsigned());
                socket.events(one.fd, wanted) as i16
            }
            None => kernel.revents,
        };
        found += usize::from(one.revents != 0);
    }
    found
}

/// Waits for descriptors, of which some are ours.
///
/// # Errors
/// The kernel's, such as `EINTR`.
fn wait_for(all: &mut [Waited], patience: Patience, mask: *const sigset_t) -> Result<usize, c_int> {
    let found = look(all);
    if found > 0 || patience.is_over() {
        return Ok(found);
    }
    let sleeper = sleeper().map_err(|error| errno::of(&error))?;
    let began = Instant::now();
    if let Some(found) = sleeper.habit.spin(|| Some(look(all)).filter(|found| *found > 0)) {
        sleeper.habit.learn(began);
        return Ok(found);
    }
    for (_, socket) in all.iter() {
        if let Some(socket) = socket {
            socket.watchers().add(Watcher::Thread(Arc::clone(&sleeper)));
        }
    }
    let done = loop {
        sleeper.begin();
        let found = look(all);
        if found > 0 || patience.is_over() {
            break Ok(found);
        }
        let mut fds: Vec<pollfd> = all
            .iter()
            .map(|(one, socket)| match socket {
                Some(socket) if !socket.awaits_tcp() => pollfd { fd: -1, ..*one },
                // What goes out goes by the stream.
                Some(socket) if socket.has_moved() => pollfd {
                    events: one.events & !libc::POLLOUT,
                    ..*one
                },
                _ => *one,
            })
            .collect();
        let slept = asleep(|| {
            sleeper.sleep(|event| {
                fds.push(pollfd {
                    fd: std::os::fd::AsRawFd::as_raw_fd(&event),
                    events: libc::POLLIN,
                    revents: 0,
                });
                match wait::poll(&mut fds, patience, mask) {
                    -1 => Err(errno::last()),
                    _ => Ok(()),
                }
            })
        });
        if let Some(Err(errno)) = slept {
            break Err(errno);
        }
    };
    for (_, socket) in all.iter() {
        if let Some(socket) = socket {
            socket.watchers().remove_thread(&sleeper);
        }
    }
    sleeper.habit.learn(began);
    done
}

/// The connection of a descriptor, if the kernel does not tell all of it.
fn ours(fd: RawFd) -> Option<Arc<Socket>> {
    process::socket(fd).filter(|socket| !socket.is_plain())
}

/// Those that a call of `poll` waits for, if one of them is ours.
///
/// # Safety
/// There are `count` at `fds`.
unsafe fn waited(fds: *mut pollfd, count: nfds_t) -> Option<Vec<Waited>> {
    if count == 0 || fds.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    let fds = unsafe { core::slice::from_raw_parts(fds, count as usize) };
    let mut some = false;
    let all = fds.iter().map(|one| {
        let socket = ours(one.fd);
        some |= socket.is_some();
        (*one, socket)
    });
    let all: Vec<Waited> = all.collect();
    some.then_some(all)
}

/// Waits, and writes what was found.
///
/// # Safety
/// `fds` are those that `all` was made from, and may be written.
unsafe fn poll_all(
    fds: *mut pollfd,
    mut all: Vec<Waited>,
    patience: Patience,
    mask: *const sigset_t,
) -> c_int {
    match wait_for(&mut all, patience, mask) {
        Ok(found) => {
            for (at, (one, _)) in all.iter().enumerate() {
                // SAFETY: the caller's.
                unsafe { (*fds.add(at)).revents = one.revents };
            }
            found as c_int
        }
        Err(errno) => fail(errno),
    }
}

/// The C library's `poll`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        match waited(fds, count) {
            None => real::poll(fds, count, timeout),
            Some(all) => poll_all(fds, all, Patience::millis(timeout), core::ptr::null()),
        }
    }
}

/// The C library's `poll`, where the compiler knows how large the place is.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the caller's.
    unsafe { poll(fds, count, timeout) }
}

/// A program that waits for more than there are is ended, as the C library does.
fn check(count: nfds_t, room: size_t) {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
}

/// The C library's `ppoll`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        match waited(fds, count) {
            None => real::ppoll(fds, count, timeout, mask),
            Some(all) => poll_all(fds, all, Patience::of(timeout), mask),
        }
    }
}

/// The C library's `ppoll`, where the compiler knows how large the place is.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the caller's.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// What a set of `select` means for `poll`: what is waited for, and what puts a descriptor into the set.
const SETS: [(i16, i16); 3] = [
    (
        libc::POLLIN,
        libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP,
    ),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Those that a call of `select` waits for, if one of them is ours.
///
/// # Safety
/// Each set is none, or there is one.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3]) -> Option<Vec<Waited>> {
    let mut all: Vec<Waited> = Vec::new();
    let mut some = false;
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        let mut events = 0;
        for (set, (wanted, _)) in sets.iter().zip(SETS) {
            // SAFETY: the caller's.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                events |= wanted;
            }
        }
        if events != 0 {
            let socket = ours(fd);
            some |= socket.is_some();
            all.push((
                pollfd {
                    fd,
                    events,
                    revents: 0,
                },
                socket,
            ));
        }
    }
    some.then_some(all)
}

/// Waits, and writes what was found.
///
/// # Safety
/// As [`selected`]'s, and the sets may be written.
unsafe fn select_all(
    sets: [*mut fd_set; 3],
    mut all: Vec<Waited>,
    patience: Patience,
    mask: *const sigset_t,
) -> c_int {
    if let Err(errno) = wait_for(&mut all, patience, mask) {
        return fail(errno);
    }
    if all.iter().any(|(one, _)| one.revents & libc::POLLNVAL != 0) {
        return fail(libc::EBADF);
    }
    let mut found = 0;
    for (set, (wanted, told)) in sets.into_iter().zip(SETS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: the caller's.
        unsafe { libc::FD_ZERO(set) };
        for (one, _) in &all {
            if one.events & wanted != 0 && one.revents & told != 0 {
                // SAFETY: the caller's; the descriptor was in a set.
                unsafe { libc::FD_SET(one.fd, set) };
                found += 1;
            }
        }
    }
    found
}

/// The C library's `select`. It leaves the time span as it is, as the standard allows.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's.
    unsafe {
        let Some(all) = selected(count, sets) else {
            return real::select(count, read, write, except, timeout);
        };
        let patience = if timeout.is_null() {
            Patience::FOR_EVER
        } else {
            let time = timeout.read();
            let micros = Duration::from_micros(time.tv_usec.try_into().unwrap_or(0));
            Patience::span(Some(
                Duration::from_secs(time.tv_sec.try_into().unwrap_or(0)) + micros,
            ))
        };
        select_all(sets, all, patience, core::ptr::null())
    }
}

/// The C library's `pselect`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's.
    unsafe {
        match selected(count, sets) {
            None => real::pselect(count, read, write, except, timeout, mask),
            Some(all) => select_all(sets, all, Patience::of(timeout), mask),
        }
    }
}

/// The C library's `epoll_ctl`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's, if it is there.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let Some(socket) = ours(fd) else {
        // SAFETY: the caller's.
        let done = unsafe { real::epoll_ctl(set, op, fd, event) };
        if done == 0 {
            process::note_polled(set, fd, wanted.filter(|_| op != libc::EPOLL_CTL_DEL));
        }
        return done;
    };
    let done = Epoll::of(set).and_then(|set| match (op, wanted) {
        (libc::EPOLL_CTL_ADD, Some(event)) => set.add(fd, &socket, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => set.change(fd, &socket, event),
        (libc::EPOLL_CTL_DEL, _) => set.remove(fd),
        _ => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
    });
    match done {
        Ok(()) => 0,
        Err(error) => fail(errno::of(&error)),
    }
}

/// The C library's `epoll_wait`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { epoll_pwait(set, events, most, timeout, core::ptr::null()) }
}

/// The C library's `epoll_pwait`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let Some(epoll) = process::epoll(set) else {
        // SAFETY: the caller's.
        return unsafe { real::epoll_pwait(set, events, most, timeout, mask) };
    };
    // SAFETY: the caller's.
    unsafe { wait(&epoll, events, most, Patience::millis(timeout), mask) }
}

/// # Safety
/// There is room for `most` events.
unsafe fn wait(
    epoll: &Epoll,
    events: *mut epoll_event,
    most: c_int,
    patience: Patience,
    mask: *const sigset_t,
) -> c_int {
    let Ok(room @ 1..) = usize::try_from(most) else {
        return fail(libc::EINVAL);
    };
    // SAFETY: the caller's.
    let into = unsafe { core::slice::from_raw_parts_mut(events, room) };
    match epoll.wait(into, patience, mask) {
        Ok(found) => found as c_int,
        Err(errno) => fail(errno),
    }
}

/// The C library's `epoll_pwait2`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Some(epoll) = process::epoll(set) else {
        // SAFETY: the caller's.
        return unsafe { real::epoll_pwait2(set, events, most, timeout, mask) };
    };
    // SAFETY: the caller's.
    let patience = unsafe { Patience::of(timeout) };
    // SAFETY: the caller's.
    unsafe { wait(&epoll, events, most, patience, mask) }
}
