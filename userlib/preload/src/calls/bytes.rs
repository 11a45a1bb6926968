//! Calls that read and write.

use core::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::RawFd;
use std::task::Poll;
use std::time::Duration;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::errno::{self, fail};
use crate::process;
use crate::real;
use crate::socket::Socket;
use crate::wait::{Patience, until};

/// How much of a file is sent at once.
const CHUNK: usize = 64 << 10;

/// Places of the program's memory.
///
/// # Safety
/// `at` has `count` entries, each of which names memory that the program lets this call use.
unsafe fn places<'a>(at: *const iovec, count: usize) -> &'a [iovec] {
    match count {
        0 => &[],
        // SAFETY: the caller's.
        _ => unsafe { core::slice::from_raw_parts(at, count) },
    }
}

/// # Safety
/// As [`places`], and the bytes may be written.
unsafe fn bytes_mut<'a>(place: &iovec) -> &'a mut [u8] {
    match place.iov_len {
        0 => &mut [],
        // SAFETY: the caller's; bytes that were never written are bytes all the same.
        len => unsafe { core::slice::from_raw_parts_mut(place.iov_base.cast(), len) },
    }
}

/// # Safety
/// As [`places`].
unsafe fn bytes_of<'a>(place: &iovec) -> &'a [u8] {
    match place.iov_len {
        0 => &[],
        // SAFETY: the caller's.
        len => unsafe { core::slice::from_raw_parts(place.iov_base.cast(), len) },
    }
}

fn one(at: *const c_void, len: size_t) -> iovec {
    iovec {
        iov_base: at.cast_mut(),
        iov_len: len,
    }
}

/// How long calls of a socket wait, as the program has told the kernel.
fn patience(fd: RawFd, option: c_int) -> Patience {
    // SAFETY: all noughts are no time.
    let mut time: libc::timeval = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::timeval>() as socklen_t;
    // SAFETY: there is room for so many bytes.
    let asked =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut time).cast(), &raw mut len) };
    let span = Duration::from_secs(time.tv_sec.try_into().unwrap_or(0))
        + Duration::from_micros(time.tv_usec.try_into().unwrap_or(0));
    match asked {
        0 if !span.is_zero() => Patience::span(Some(span)),
        _ => Patience::FOR_EVER,
    }
}

/// What a call returns.
fn answer(done: io::Result<usize>) -> ssize_t {
    match done {
        Ok(count) => count as ssize_t,
        Err(error) => fail(errno::of(&error)),
    }
}

fn waits(socket: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking()
}

/// Reads into places.
///
/// # Safety
/// The places may be written.
unsafe fn receive(socket: &Socket, fd: RawFd, places: &[iovec], flags: c_int) -> io::Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let mut done = 0;
    for place in places {
        // SAFETY: the caller's.
        let into = unsafe { bytes_mut(place) };
        let mut at = 0;
        while at < into.len() {
            let attempt = |into: &mut [u8]| match peek {
                true => socket.peek(fd, into),
                false => socket.read(fd, into),
            };
            let rest = &mut into[at..];
            let whole = done == 0 || flags & libc::MSG_WAITALL != 0;
            let got = match attempt(rest) {
                Poll::Ready(got) => got,
                Poll::Pending if !waits(socket, flags) || !whole => Err(io::ErrorKind::WouldBlock.into()),
                Poll::Pending => {
                    let patience = patience(fd, libc::SO_RCVTIMEO);
                    until(socket, fd, libc::POLLIN | libc::POLLRDHUP, patience, || {
                        attempt(rest)
                    })
                }
            };
            match got {
                Ok(0) => return Ok(done),
                Ok(count) => {
                    (at, done) = (at + count, done + count);
                    if peek {
                        // What is looked at again begins with the same bytes.
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(done)
}

/// Writes what lies at places: all of it, if the socket blocks.
///
/// # Safety
/// The places may be read.
unsafe fn send(socket: &Socket, fd: RawFd, places: &[iovec], flags: c_int) -> io::Result<usize> {
    let mut done = 0;
    for place in places {
        // SAFETY: the caller's.
        let bytes = unsafe { bytes_of(place) };
        let mut at = 0;
        while at < bytes.len() {
            let attempt = || socket.write(fd, &bytes[at..], flags);
            let sent = match attempt() {
                Poll::Ready(sent) => sent,
                Poll::Pending if !waits(socket, flags) => Err(io::ErrorKind::WouldBlock.into()),
                Poll::Pending => until(
                    socket,
                    fd,
                    libc::POLLOUT,
                    patience(fd, libc::SO_SNDTIMEO),
                    attempt,
                ),
            };
            match sent {
                Ok(count) => (at, done) = (at + count, done + count),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => {
                    // TCP has raised it by itself.
                    if socket.has_moved()
                        && errno::of(&error) == libc::EPIPE
                        && flags & libc::MSG_NOSIGNAL == 0
                    {
                        // SAFETY: as a socket of the kernel does.
                        unsafe { libc::raise(libc::SIGPIPE) };
                    }
                    return Err(error);
                }
            }
        }
    }
    Ok(done)
}

/// The C library's `read`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    match process::socket(fd) {
        // SAFETY: the caller's.
        None => unsafe { real::read(fd, into, len) },
        // SAFETY: the caller's.
        Some(socket) => answer(unsafe { receive(&socket, fd, &[one(into, len)], 0) }),
    }
}

/// The C library's `read`, where the compiler knows how large the place is.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __read_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's.
    unsafe { read(fd, into, len) }
}

/// A program that reads more than there is room for is ended, as the C library does.
fn check(len: size_t, room: size_t) {
    if len > room {
        std::process::abort();
    }
}

/// The C library's `readv`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
    match (process::socket(fd), usize::try_from(count)) {
        // SAFETY: the caller's.
        (Some(socket), Ok(count)) => answer(unsafe { receive(&socket, fd, places(into, count), 0) }),
        // SAFETY: the caller's.
        _ => unsafe { real::readv(fd, into, count) },
    }
}

/// The C library's `recv`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's; no address is asked for.
    unsafe { recvfrom(fd, into, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) }
}

/// The C library's `recv`, where the compiler knows how large the place is.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's.
    unsafe { recv(fd, into, len, flags) }
}

/// The C library's `recvfrom`. The address of a stream's other end is not told, as the kernel does.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let Some(socket) = process::socket(fd) else {
        // SAFETY: the caller's.
        return unsafe { real::recvfrom(fd, into, len, flags, address, address_len) };
    };
    if !address_len.is_null() {
        // SAFETY: the caller's: there is a length.
        unsafe { address_len.write(0) };
    }
    // SAFETY: the caller's.
    answer(unsafe { receive(&socket, fd, &[one(into, len)], flags) })
}

/// The C library's `recvfrom`, where the compiler knows how large the place is.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's.
    unsafe { recvfrom(fd, into, len, flags, address, address_len) }
}

/// The C library's `recvmsg`. Nothing comes beside the bytes of a stream.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = process::socket(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0) else {
        // SAFETY: the caller's. News of errors are the TCP socket's.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    // SAFETY: the caller's.
    let message = unsafe { &mut *message };
    (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
    // SAFETY: the caller's.
    answer(unsafe { receive(&socket, fd, places(message.msg_iov, message.msg_iovlen), flags) })
}

/// What a call for several messages returns: how many were done, and an error only if none was.
fn messages(done: c_uint) -> c_int {
    match done {
        0 => -1,
        done => c_int::try_from(done).unwrap_or(c_int::MAX),
    }
}

/// The C library's `recvmmsg`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    at: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if process::socket(fd).is_none() || count == 0 {
        // SAFETY: the caller's.
        return unsafe { real::recvmmsg(fd, at, count, flags, timeout) };
    }
    // SAFETY: the caller's, if it is there. As the kernel does, it is looked at between two messages.
    let patience = unsafe { Patience::of(timeout) };
    let mut flags = flags;
    let mut done = 0;
    while done < count && (done == 0 || !patience.is_over()) {
        // SAFETY: the caller's: there are so many.
        let message = unsafe { &mut *at.add(done as usize) };
        // SAFETY: the caller's.
        let got = unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        let Ok(got) = c_uint::try_from(got) else { break };
        message.msg_len = got;
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    messages(done)
}

/// The C library's `write`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match process::socket(fd) {
        // SAFETY: the caller's.
        None => unsafe { real::write(fd, bytes, len) },
        // SAFETY: the caller's.
        Some(socket) => answer(unsafe { send(&socket, fd, &[one(bytes, len)], 0) }),
    }
}

/// The C library's `writev`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn writev(fd: c_int, bytes: *const iovec, count: c_int) -> ssize_t {
    match (process::socket(fd), usize::try_from(count)) {
        // SAFETY: the caller's.
        (Some(socket), Ok(count)) => answer(unsafe { send(&socket, fd, places(bytes, count), 0) }),
        // SAFETY: the caller's.
        _ => unsafe { real::writev(fd, bytes, count) },
    }
}

/// The C library's `send`.
///
/// # Safety
/// As that.
#[unsafe(export_name = "send")]
pub(crate) unsafe extern "C" fn send_with(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's; no address is given.
    unsafe { sendto(fd, bytes, len, flags, core::ptr::null(), 0) }
}

/// The C library's `sendto`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    match process::socket(fd) {
        // SAFETY: the caller's.
        None => unsafe { real::sendto(fd, bytes, len, flags, address, address_len) },
        // SAFETY: the caller's.
        Some(socket) => answer(unsafe { send(&socket, fd, &[one(bytes, len)], flags) }),
    }
}

/// The C library's `sendmsg`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = process::socket(fd) else {
        // SAFETY: the caller's.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    // SAFETY: the caller's.
    let message = unsafe { &*message };
    // SAFETY: the caller's.
    answer(unsafe { send(&socket, fd, places(message.msg_iov, message.msg_iovlen), flags) })
}

/// The C library's `sendfile`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let Some(socket) = process::socket(to) else {
        // SAFETY: the caller's.
        return unsafe { real::sendfile(to, from, offset, count) };
    };
    let mut chunk = vec![0; count.min(CHUNK)];
    let mut done = 0;
    while done < count {
        let most = chunk.len().min(count - done);
        // SAFETY: there is room for so many bytes; an offset is the caller's.
        let got = unsafe {
            match offset.is_null() {
                true => real::read(from, chunk.as_mut_ptr().cast(), most),
                false => libc::pread(from, chunk.as_mut_ptr().cast(), most, offset.read()),
            }
        };
        let Ok(got) = usize::try_from(got) else {
            return if done > 0 { done as ssize_t } else { -1 };
        };
        if got == 0 {
            break;
        }
        // SAFETY: the bytes are there.
        let sent = unsafe { send(&socket, to, &[one(chunk.as_ptr().cast(), got)], 0) };
        let taken = *sent.as_ref().unwrap_or(&0);
        // SAFETY: the caller's, if it is there.
        unsafe {
            if offset.is_null() {
                // What was not sent is read again.
                libc::lseek(from, taken as off_t - got as off_t, libc::SEEK_CUR);
            } else {
                *offset += taken as off_t;
            }
        }
        done += taken;
        match sent {
            Err(error) if done == 0 => return fail(errno::of(&error)),
            Ok(taken) if taken == got => {}
            _ => break,
        }
    }
    done as ssize_t
}

/// The C library's `sendfile64`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { sendfile(to, from, offset, count) }
}

/// The C library's `splice`. A connection that has moved has no pages of the kernel: programs read and write then.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    for fd in [from, to] {
        if process::socket(fd).is_some_and(|socket| !socket.is_plain()) {
            return fail(libc::EINVAL);
        }
    }
    // SAFETY: the caller's.
    unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }
}

/// The C library's `sendmmsg`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(fd: c_int, at: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if process::socket(fd).is_none() || count == 0 {
        // SAFETY: the caller's.
        return unsafe { real::sendmmsg(fd, at, count, flags) };
    }
    let mut done = 0;
    while done < count {
        // SAFETY: the caller's: there are so many.
        let message = unsafe { &mut *at.add(done as usize) };
        // SAFETY: the caller's.
        let sent = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        let Ok(sent) = c_uint::try_from(sent) else { break };
        message.msg_len = sent;
        done += 1;
    }
    messages(done)
}
