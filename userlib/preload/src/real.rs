//! The functions of the C library that this library stands before: the next ones of their names, in the order in which libraries were
//! loaded.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// The next function of this name, looked up once.
fn next(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // There is no call to go on with, and a program that is not linked to the C library makes none.
        std::process::abort();
    }
    place.store(found, Ordering::Release);
    found
}

macro_rules! real {
    ($($name:ident: $text:literal ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The C library's function of this name.
        ///
        /// # Safety
        /// As the function demands.
        pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let function = next(&NEXT, $text);
            // SAFETY: the C library's function of this name has this type.
            let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { core::mem::transmute(function) };
            // SAFETY: the caller's.
            unsafe { function($($arg),*) }
        }
    )*};
}

real! {
    accept4: c"accept4" (fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    close: c"close" (fd: c_int) -> c_int;
    close_range: c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom: c"closefrom" (first: c_int) -> ();
    connect: c"connect" (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    dup: c"dup" (fd: c_int) -> c_int;
    dup2: c"dup2" (fd: c_int, to: c_int) -> c_int;
    dup3: c"dup3" (fd: c_int, to: c_int, flags: c_int) -> c_int;
    epoll_ctl: c"epoll_ctl" (epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait: c"epoll_pwait" (epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2: c"epoll_pwait2" (epfd: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fdopen: c"fdopen" (fd: c_int, mode: *const c_char) -> *mut FILE;
    fileno: c"fileno" (file: *mut FILE) -> c_int;
    fileno_unlocked: c"fileno_unlocked" (file: *mut FILE) -> c_int;
    listen: c"listen" (fd: c_int, backlog: c_int) -> c_int;
    poll: c"poll" (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll: c"ppoll" (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    pselect: c"pselect" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    read: c"read" (fd: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    readv: c"readv" (fd: c_int, into: *const iovec, count: c_int) -> ssize_t;
    recvfrom: c"recvfrom" (fd: c_int, into: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmmsg: c"recvmmsg" (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    recvmsg: c"recvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    select: c"select" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    sendfile: c"sendfile" (to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendmmsg: c"sendmmsg" (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendmsg: c"sendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendto: c"sendto" (fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    shutdown: c"shutdown" (fd: c_int, how: c_int) -> c_int;
    splice: c"splice" (from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    write: c"write" (fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    writev: c"writev" (fd: c_int, bytes: *const iovec, count: c_int) -> ssize_t;
}

/// The C library's `fcntl`.
///
/// # Safety
/// As the function demands.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let function = next(&NEXT, c"fcntl");
    // SAFETY: the C library's function has this type.
    let function: unsafe extern "C" fn(c_int, c_int, ...) -> c_int =
        unsafe { core::mem::transmute(function) };
    // SAFETY: the caller's.
    unsafe { function(fd, command, argument) }
}

/// The C library's `ioctl`.
///
/// # Safety
/// As the function demands.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let function = next(&NEXT, c"ioctl");
    // SAFETY: the C library's function has this type.
    let function: unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int =
        unsafe { core::mem::transmute(function) };
    // SAFETY: the caller's.
    unsafe { function(fd, request, argument) }
}
