//! Streams of C on sockets, as `fdopen` makes them, and prints to a descriptor.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

use super::{both, connect_now, goes_on, listener};

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
}

/// A line of a stream, or nothing at its end.
fn line(file: *mut libc::FILE) -> Option<String> {
    let mut text = [0; 4096];
    // SAFETY: it is open, and there is so much room.
    let got = unsafe { libc::fgets(text.as_mut_ptr(), text.len() as i32, file) };
    let text = text.map(i8::cast_unsigned);
    (!got.is_null()).then(|| {
        CStr::from_bytes_until_nul(&text)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    })
}

fn open(fd: RawFd, mode: &CStr) -> *mut libc::FILE {
    // SAFETY: it is open, and the stream's from here on.
    let file = unsafe { libc::fdopen(fd, mode.as_ptr()) };
    assert!(!file.is_null());
    // SAFETY: it is one.
    assert_eq!(unsafe { libc::fileno(file) }, fd);
    file
}

fn close(file: *mut libc::FILE) {
    // SAFETY: it is open.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: as above, and nothing uses it any more.
    assert_eq!(unsafe { libc::fclose(file) }, 0);
    // SAFETY: it tells of any number.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "it is open still");
}

/// How many are asked for at least.
const LINES: i32 = 2000;

/// Answers each line by a stream, and by a print to the descriptor.
pub(crate) fn serve() {
    // A client that does not find it any more stays with TCP.
    let listener = listener();
    let (stream, _) = listener.accept().unwrap();
    // By TCP the second answer would wait until the first one is acknowledged.
    stream.set_nodelay(true).unwrap();
    let fd = stream.into_raw_fd();
    // SAFETY: it is open.
    let (read, write) = (open(fd, c"r"), open(unsafe { libc::dup(fd) }, c"w"));
    let mut lines = 0;
    while let Some(line) = line(read) {
        let text = CString::new(line).unwrap();
        // SAFETY: the stream is open, and these are strings of C, as the format says.
        unsafe {
            libc::fputs(text.as_ptr(), write);
            libc::fflush(write);
            dprintf(
                fd,
                c"%d %.2f %s".as_ptr(),
                lines,
                f64::from(lines) / 4.0,
                text.as_ptr(),
            );
        }
        lines += 1;
    }
    assert!(lines >= LINES);
    close(write);
    close(read);
}

pub(crate) fn ask() {
    let fd = connect_now().into_raw_fd();
    let file = open(fd, c"r");
    for number in (0..).take_while(|number| *number < LINES || !goes_on()) {
        // Longer than a buffer of the C library's now and then.
        let long = "x".repeat(number as usize % LINES as usize * 7 % 3000);
        let text = CString::new(format!("{number} {long}\n")).unwrap();
        // SAFETY: a string of C, as the format says.
        let wrote = unsafe { dprintf(fd, c"%s".as_ptr(), text.as_ptr()) };
        assert_eq!(wrote as usize, text.as_bytes().len());
        let text = text.to_str().unwrap();
        assert_eq!(line(file).unwrap(), text);
        let printed = format!("{number} {:.2} {text}", f64::from(number) / 4.0);
        assert_eq!(line(file).unwrap(), printed);
    }
    // SAFETY: it is a connection.
    assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_WR) }, 0);
    assert_eq!(line(file), None);
    // SAFETY: it is open.
    assert!(unsafe { libc::feof(file) != 0 && libc::ferror(file) == 0 });
    close(file);
    // One of the kernel's is as ever.
    let (here, there) = UnixStream::pair().unwrap();
    let file = open(here.into_raw_fd(), c"r");
    (&there).write_all(b"a line\n").unwrap();
    assert_eq!(line(file).unwrap(), "a line\n");
    close(file);
}

#[test]
fn streams_of_c_read_and_write_what_has_moved() {
    both(("streams serve", true), ("streams ask", true), 1);
    both(("streams serve", false), ("streams ask", true), 0);
    both(("streams serve", true), ("streams ask", false), 0);
}
