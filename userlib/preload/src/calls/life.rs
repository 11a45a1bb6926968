//! Calls that make sockets, name them and close them.

use core::ffi::{c_int, c_uint, c_ulong};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use super::streams;
use crate::process::{self, Entry};
use crate::socket::Socket;
use crate::{directory, epoll, errno, network, real};

/// An address of the Internet.
///
/// # Safety
/// There are `len` bytes at `at`.
unsafe fn address(at: *const sockaddr, len: usize) -> Option<SocketAddr> {
    if at.is_null() || len < size_of::<sa_family_t>() {
        return None;
    }
    // SAFETY: the family comes first, and the place may be anywhere.
    let family = unsafe { at.cast::<sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: there are as many bytes.
            let found = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(found.sin_port)))
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: there are as many bytes.
            let found = unsafe { at.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(found.sin6_port)))
        }
        _ => None,
    }
}

/// The address of this end of a socket, if it is one of TCP.
fn local_address(fd: RawFd) -> Option<SocketAddr> {
    if option(fd, libc::SO_TYPE)? != libc::SOCK_STREAM || option(fd, libc::SO_PROTOCOL)? != libc::IPPROTO_TCP
    {
        return None;
    }
    // SAFETY: all noughts are an address.
    let mut place: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    let at = (&raw mut place).cast::<sockaddr>();
    // SAFETY: there is room for so many bytes.
    match unsafe { libc::getsockname(fd, at, &raw mut len) } {
        // SAFETY: so many were written.
        0 => unsafe { address(at, len as usize) },
        _ => None,
    }
}

fn is_connected(fd: RawFd) -> bool {
    // SAFETY: all noughts are an address.
    let mut place: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: there is room for so many bytes.
    unsafe { libc::getpeername(fd, (&raw mut place).cast(), &raw mut len) == 0 }
}

fn option(fd: RawFd, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: there is room for so many bytes.
    let asked =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (asked == 0).then_some(value)
}

fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: it takes no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags & libc::O_NONBLOCK != 0
}

/// Whether an address that this socket connects to is one of this machine.
fn is_here(fd: RawFd, to: SocketAddr) -> bool {
    let to = to.ip().to_canonical();
    let unspecified = |ip: IpAddr| ip.is_unspecified();
    // To its own addresses the kernel connects from the same one.
    to.is_loopback()
        || unspecified(to)
        || local_address(fd).is_some_and(|here| here.ip().to_canonical() == to)
}

/// The C library's `connect`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's.
    let connected = unsafe { real::connect(fd, to, len) };
    let error = errno::last();
    if connected == 0 || error == libc::EINPROGRESS {
        // SAFETY: the caller's.
        if let Some(to) = unsafe { address(to, len as usize) } {
            greet(fd, to);
        }
        errno::set(error);
    }
    connected
}

/// Lets a connection move, if the other end may take it over.
fn greet(fd: RawFd, to: SocketAddr) {
    // What is asked first costs least.
    if process::socket(fd).is_some()
        || local_address(fd).is_none()
        || !is_here(fd, to)
        || !directory::has_library(to)
    {
        return;
    }
    if let Some(socket) = Socket::greeting(is_nonblocking(fd))
        && enter(fd, &socket)
    {
        epoll::adopt(fd, &socket);
    }
}

/// From now on a descriptor is this connection. `false`: there are too many.
fn enter(fd: RawFd, socket: &Arc<Socket>) -> bool {
    let entered = process::enter(fd, Entry::Socket(Arc::clone(socket)));
    if entered {
        streams::stand_in(fd);
    }
    entered
}

/// The C library's `listen`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the caller's.
    let listens = unsafe { real::listen(fd, backlog) };
    if listens == 0 {
        announce(fd);
    }
    listens
}

/// A listener of TCP is to be found by others.
fn announce(fd: RawFd) {
    if process::is_listener(fd) {
        return;
    }
    let address =
        local_address(fd).map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
    if let Some(Ok(announced)) = address.map(directory::announce) {
        process::enter(fd, Entry::Listener(Arc::new(announced)));
    }
}

/// What a program has that another one had before it, by `exec`: listeners, and connections whose first bytes may be a hello.
pub(crate) fn inherit() {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // Before any is looked at: the folder itself is one of them.
    let fds: Vec<RawFd> = names.collect();
    // Several descriptors may be names of one connection.
    let mut known = HashMap::new();
    for fd in fds {
        if local_address(fd).is_none() {
            continue;
        }
        if option(fd, libc::SO_ACCEPTCONN) == Some(1) {
            announce(fd);
        } else if is_connected(fd) {
            let Ok(place) = std::fs::metadata(format!("/proc/self/fd/{fd}")) else {
                continue;
            };
            let new = || Socket::accepted(is_nonblocking(fd));
            let socket = known.entry(place.ino()).or_insert_with(new);
            enter(fd, socket);
        }
    }
}

/// The C library's `accept`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { accept4(fd, from, len, 0) }
}

/// The C library's `accept4`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's.
    let accepted = unsafe { real::accept4(fd, from, len, flags) };
    if accepted >= 0 && process::is_listener(fd) {
        let socket = Socket::accepted(flags & libc::SOCK_NONBLOCK != 0);
        enter(accepted, &socket);
    }
    accepted
}

/// The library lets go of a descriptor that is about to be closed.
fn let_go(fd: RawFd) {
    process::process().parent.forget(fd..=fd);
    if let Some(Entry::Socket(socket)) = process::leave(fd) {
        epoll::closed(fd, &socket);
        if socket.remove_name() {
            process::process().network.close(fd, socket);
        }
    }
}

/// The same for all of a range, whatever they are.
fn let_go_between(first: c_uint, last: c_uint) {
    process::known_between(first, last).for_each(let_go);
    let number = |fd| RawFd::try_from(fd).unwrap_or(RawFd::MAX);
    process::process().parent.forget(number(first)..=number(last));
}

/// The C library's `close`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    let_go(fd);
    // SAFETY: the caller's.
    unsafe { real::close(fd) }
}

/// The C library's `close_range`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_RANGE_CLOEXEC == 0 && first <= last {
        let_go_between(first, last);
    }
    // SAFETY: the caller's.
    unsafe { real::close_range(first, last, flags) }
}

/// The C library's `closefrom`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    let_go_between(first.max(0).cast_unsigned(), c_uint::MAX);
    // SAFETY: the caller's.
    unsafe { real::closefrom(first) }
}

/// `close_range` closes nothing yet.
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

/// A descriptor has become a second name of another one.
fn copied(from: RawFd, to: RawFd) {
    match process::entry(from) {
        Some(Entry::Socket(socket)) if to >= 0 => {
            enter(to, &socket);
        }
        Some(entry) if to >= 0 => {
            process::enter(to, entry);
        }
        _ => {}
    }
}

/// A descriptor is about to become a second name of another one.
fn replaced(from: RawFd, to: RawFd) {
    if process::socket(from).is_some() {
        streams::flush(to);
    }
    let_go(to);
}

/// The C library's `dup`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    let to = unsafe { real::dup(fd) };
    copied(fd, to);
    to
}

/// The C library's `dup2`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to {
        replaced(fd, to);
    }
    // SAFETY: the caller's.
    let to = unsafe { real::dup2(fd, to) };
    if fd != to {
        copied(fd, to);
    }
    to
}

/// The C library's `dup3`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to {
        replaced(fd, to);
    }
    // SAFETY: the caller's.
    let to = unsafe { real::dup3(fd, to, flags) };
    copied(fd, to);
    to
}

/// The C library's `fcntl`, whose argument is a word if there is one.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's.
    let done = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done),
        libc::F_SETFL if done != -1 => {
            if let Some(socket) = process::socket(fd) {
                socket.set_nonblocking(argument & libc::O_NONBLOCK as usize != 0);
            }
        }
        _ => {}
    }
    done
}

/// The C library's `fcntl64`: the same.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's.
    unsafe { fcntl(fd, command, argument) }
}

/// The C library's `ioctl`, whose argument is a word if there is one.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if let Some(socket) = process::socket(fd) {
        let value = core::ptr::with_exposed_provenance_mut::<c_int>(argument);
        if request == libc::FIONREAD
            && let Some(count) = socket.readable_bytes(fd)
        {
            // SAFETY: the caller's: there is a number.
            unsafe { value.write(c_int::try_from(count).unwrap_or(c_int::MAX)) };
            return 0;
        }
        if request == libc::FIONBIO {
            // SAFETY: the caller's: there is a number.
            socket.set_nonblocking(unsafe { value.read() } != 0);
        }
    }
    // SAFETY: the caller's.
    unsafe { real::ioctl(fd, request, argument) }
}

/// The C library's `_exit`. It calls nothing that the program has registered, but what was written to a socket of the kernel would leave.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _exit(status: c_int) -> ! {
    // A child of `vfork` ends nothing of its parent's.
    if process::is_this_process() {
        network::leave();
    }
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}

/// The C library's `_Exit`: the same.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// The C library's `shutdown`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let direction = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if let (Some(socket), Some(direction)) = (process::socket(fd), direction)
        && socket.shutdown(fd, direction)
    {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { real::shutdown(fd, how) }
}
