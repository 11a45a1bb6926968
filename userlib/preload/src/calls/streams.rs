//! Streams of C on sockets, and calls that print to a descriptor.
//!
//! The C library's streams ask the kernel by themselves: no call of a library that was preloaded is between. So a stream on a TCP socket is
//! made with functions of its own (`fopencookie`), which are this library's. The C library knows no descriptor of such a stream, so
//! `fileno` is answered from here.
//!
//! The standard streams are the C library's, which has them from the start. Where a connection gets one's number (`dup2`, or before an
//! `exec`) the program's variable is made to name a stream of this library's, which reads and writes whatever has the number.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{bytes, life};
use crate::errno;
use crate::process;
use crate::real;

/// A stream on a socket: its cookie. Places of closed ones are used again, and never freed, and no lock is needed to find them: a
/// child of `fork` finds them in any state.
struct Stream {
    is_open: AtomicBool,
    fd: AtomicI32,
    file: AtomicPtr<FILE>,
    next: AtomicPtr<Stream>,
}

static FIRST: AtomicPtr<Stream> = AtomicPtr::new(ptr::null_mut());

fn all() -> impl Iterator<Item = &'static Stream> {
    let at = |place: &AtomicPtr<Stream>| {
        // SAFETY: what is in the list is never freed, and was whole before it came there.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    };
    core::iter::successors(at(&FIRST), move |stream| at(&stream.next))
}

impl Stream {
    /// A place for one on this descriptor.
    fn open(fd: RawFd) -> &'static Self {
        let is_free = |stream: &&Self| !stream.is_open.swap(true, Ordering::AcqRel);
        if let Some(free) = all().find(is_free) {
            free.fd.store(fd, Ordering::Release);
            return free;
        }
        let new: &'static Self = Box::leak(Box::new(Self {
            is_open: AtomicBool::new(true),
            fd: AtomicI32::new(fd),
            file: AtomicPtr::default(),
            next: AtomicPtr::default(),
        }));
        let mut next = FIRST.load(Ordering::Acquire);
        loop {
            new.next.store(next, Ordering::Relaxed);
            let place = ptr::from_ref(new).cast_mut();
            match FIRST.compare_exchange_weak(next, place, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return new,
                Err(other) => next = other,
            }
        }
    }

    /// Gives the place back, and tells which descriptor it was on.
    fn close(&self) -> RawFd {
        let fd = self.fd.load(Ordering::Acquire);
        self.file.store(ptr::null_mut(), Ordering::Release);
        self.is_open.store(false, Ordering::Release);
        fd
    }

    /// # Safety
    /// It is the cookie of an open stream.
    unsafe fn of<'a>(cookie: *mut c_void) -> &'a Self {
        // SAFETY: the caller's; it was made by `open`.
        unsafe { &*cookie.cast::<Self>() }
    }

    fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Acquire)
    }
}

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library gives the stream's cookie, and room for so many bytes.
    unsafe { bytes::read(Stream::of(cookie).fd(), into.cast(), len) }
}

/// Writes until an error, and tells how much: a stream takes less than all for an error.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library gives the stream's cookie.
    let fd = unsafe { Stream::of(cookie).fd() };
    let mut done = 0;
    while done < len {
        // SAFETY: the C library gives so many bytes.
        let wrote = unsafe { bytes::write(fd, from.add(done).cast(), len - done) };
        match usize::try_from(wrote) {
            Ok(count) => done += count,
            Err(_) => break,
        }
    }
    done as ssize_t
}

/// A socket has no places, but a standard stream may have another file later.
unsafe extern "C" fn seek(cookie: *mut c_void, at: *mut off64_t, from: c_int) -> c_int {
    // SAFETY: the C library gives the stream's cookie, and a place.
    unsafe {
        match libc::lseek64(Stream::of(cookie).fd(), at.read(), from) {
            -1 => -1,
            place => {
                at.write(place);
                0
            }
        }
    }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the C library gives the cookie of a stream, for the last time; the descriptor is the stream's.
    unsafe { life::close(Stream::of(cookie).close()) }
}

/// Whether it may move, or has: a TCP socket.
fn is_tcp(fd: RawFd) -> bool {
    let option = |name| {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: there is room for so many bytes.
        let asked =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
        (asked == 0).then_some(value)
    };
    process::socket(fd).is_some() || option(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// A stream with this library's functions. Null: as `fdopen` says.
///
/// # Safety
/// The mode is one of `fdopen`'s.
unsafe fn open(fd: RawFd, mode: *const c_char) -> *mut FILE {
    let stream = Stream::open(fd);
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: the cookie lives for ever, and the functions take it; the mode is the caller's.
    let file = unsafe { fopencookie(ptr::from_ref(stream).cast_mut().cast(), mode, functions) };
    if file.is_null() {
        stream.close();
    } else {
        stream.file.store(file, Ordering::Release);
    }
    file
}

/// The C library's `fdopen`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let before = errno::last();
    let is_tcp = is_tcp(fd);
    errno::set(before);
    match is_tcp {
        // SAFETY: the caller's.
        true => unsafe { open(fd, mode) },
        // SAFETY: the caller's.
        false => unsafe { real::fdopen(fd, mode) },
    }
}

/// The program's variables of these names.
#[allow(non_upper_case_globals, reason = "the C library's names")]
mod standard {
    use libc::FILE;

    unsafe extern "C" {
        pub(super) static mut stdin: *mut FILE;
        pub(super) static mut stdout: *mut FILE;
        pub(super) static mut stderr: *mut FILE;
    }
}

/// The variable of the standard stream that has this descriptor.
fn variable(fd: RawFd) -> Option<*mut *mut FILE> {
    match fd {
        libc::STDIN_FILENO => Some(&raw mut standard::stdin),
        libc::STDOUT_FILENO => Some(&raw mut standard::stdout),
        libc::STDERR_FILENO => Some(&raw mut standard::stderr),
        _ => None,
    }
}

/// A connection is about to have this descriptor: what the program has printed there goes to where it was to go.
pub(crate) fn flush(fd: RawFd) {
    if fd != libc::STDIN_FILENO
        && let Some(variable) = variable(fd)
    {
        // SAFETY: the C library's variable, which names a stream or nothing. An error is the program's to find.
        unsafe {
            let file = variable.read();
            if !file.is_null() {
                libc::fflush(file);
            }
        }
    }
}

/// A connection has this descriptor. If it is a standard stream's, that is one of this library's from now on.
pub(crate) fn stand_in(fd: RawFd) {
    let Some(variable) = variable(fd) else {
        return;
    };
    // SAFETY: the C library's variable, which names a stream or nothing.
    let old = unsafe { variable.read() };
    // SAFETY: it is a stream.
    let is_the_kernels = !old.is_null() && unsafe { real::fileno(old) } == fd;
    if !is_the_kernels {
        return;
    }
    let mode = match fd {
        libc::STDIN_FILENO => c"r",
        _ => c"w",
    };
    // SAFETY: it is a mode.
    let file = unsafe { open(fd, mode.as_ptr()) };
    if file.is_null() {
        return;
    }
    // SAFETY: the stream is new, and the program finds it where it looks for the old one, which stays as it is.
    unsafe {
        if fd == libc::STDERR_FILENO {
            libc::setvbuf(file, ptr::null_mut(), libc::_IONBF, 0);
        }
        variable.write(file);
    }
}

unsafe extern "C" {
    fn __fpending(file: *mut FILE) -> size_t;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
}

/// The process ends: what was printed leaves. The C library does that later, when connections have ended.
pub(super) fn flush_all() {
    for stream in all().filter(|stream| stream.is_open.load(Ordering::Acquire)) {
        let file = stream.file.load(Ordering::Acquire);
        // SAFETY: it is a stream. As the C library at the end of a process, it waits for no thread that may have it.
        unsafe {
            if !file.is_null() && __fpending(file) > 0 {
                fflush_unlocked(file);
            }
        }
    }
}

/// The descriptor of a stream, as `real` tells it, or of one of this library's.
fn descriptor(file: *mut FILE, real: c_int) -> c_int {
    if real != -1 {
        return real;
    }
    let is_it = |stream: &&Stream| stream.file.load(Ordering::Acquire) == file;
    all().find(is_it).map_or(real, Stream::fd)
}

/// The C library's `fileno`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fileno(file: *mut FILE) -> c_int {
    // SAFETY: the caller's.
    descriptor(file, unsafe { real::fileno(file) })
}

/// The C library's `fileno_unlocked`.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fileno_unlocked(file: *mut FILE) -> c_int {
    // SAFETY: the caller's.
    descriptor(file, unsafe { real::fileno_unlocked(file) })
}

unsafe extern "C" {
    fn netvm_preload_dprintf();
    fn netvm_preload_dprintf_chk();
    fn netvm_preload_vdprintf();
    fn netvm_preload_vdprintf_chk();
}

/// Functions with as many arguments as their caller likes, which only C can take: each goes on in `print.c`, with all that it was given.
macro_rules! printed_by_c {
    ($($name:ident => $in_c:ident;)*) => {$(
        /// The C library's function of this name.
        ///
        /// # Safety
        /// As that.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("jmp {}", sym $in_c);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b {}", sym $in_c);
        }
    )*};
}

printed_by_c! {
    dprintf => netvm_preload_dprintf;
    vdprintf => netvm_preload_vdprintf;
    __dprintf_chk => netvm_preload_dprintf_chk;
    __vdprintf_chk => netvm_preload_vdprintf_chk;
}
