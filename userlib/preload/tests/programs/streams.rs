//! Streams of C on sockets, as `fdopen` makes them, and prints to a descriptor.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::{Program, both, connect, connect_now, goes_on, listener};

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

/// Starts a program whose standard streams are a connection, as `inetd` does.
pub(crate) fn serve_by_sed(options: &[&str]) {
    let listener = listener();
    let (stream, _) = listener.accept().unwrap();
    let output = OwnedFd::from(stream);
    let input = output.try_clone().unwrap();
    let mut sed = Command::new("sed");
    let sed = sed.args(options).arg("s/^/said: /").stdin(input).stdout(output);
    let mut sed = sed.spawn().unwrap();
    assert!(sed.wait().unwrap().success());
}

/// Asks line by line, and then for many lines at once.
pub(crate) fn ask_sed() {
    let mut stream = BufReader::new(connect_now());
    while !goes_on() {
        stream.get_mut().write_all(b"a question\n").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert_eq!(answer, "said: a question\n");
    }
    tell_sed(stream);
}

/// Has its answers when it has said all.
pub(crate) fn tell_sed(mut stream: BufReader<TcpStream>) {
    let lines: Vec<String> = (0..5000).map(|number| format!("line {number}\n")).collect();
    stream.get_mut().write_all(lines.concat().as_bytes()).unwrap();
    stream.get_mut().shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let expected: String = lines.iter().map(|line| format!("said: {line}")).collect();
    assert!(answer == expected, "{} of {} bytes", answer.len(), expected.len());
}

#[test]
fn a_program_has_a_connection_as_its_standard_streams() {
    both(("is sed, unbuffered", true), ("asks sed", true), 1);
    both(("is sed, unbuffered", true), ("asks sed", false), 0);
    // Its output leaves when it ends.
    for client in [true, false] {
        let mut server = Program::start("is sed", true, None);
        let mut client = Program::start("tells sed", client, Some(server.address()));
        client.go_on();
        client.end();
        server.end();
    }
}

/// Has a connection as its standard output and input for a while.
pub(crate) fn redirected() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    echo_until_asked(&mut stream);
    let fd = stream.as_raw_fd();
    // SAFETY: the descriptors are open, and the strings are of C.
    unsafe {
        libc::printf(c"this is the program's own output ".as_ptr());
        let before = libc::dup(1);
        assert_eq!(libc::dup2(fd, 1), 1);
        libc::printf(c"%d lines\n".as_ptr(), 2);
        libc::puts(c"the second one".as_ptr());
        libc::fflush(std::ptr::null_mut());
        assert_eq!(libc::dup2(before, 1), 1);
        libc::puts(c"and this is so again".as_ptr());
        libc::fflush(std::ptr::null_mut());
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

fn echo_until_asked(stream: &mut TcpStream) {
    let mut bytes = [0];
    while stream.read(&mut bytes).unwrap() == 1 && bytes != *b"!" {
        stream.write_all(&bytes).unwrap();
    }
}

/// Ends with words in a stream that nothing has flushed.
pub(crate) fn last_words() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    echo_until_asked(&mut stream);
    let file = open(stream.into_raw_fd(), c"w");
    // SAFETY: it is open, and a string of C.
    unsafe { libc::fputs(c"last words".as_ptr(), file) };
}

pub(crate) fn reads_last_words() {
    let mut stream = connect();
    stream.write_all(b"!").unwrap();
    let mut words = String::new();
    stream.read_to_string(&mut words).unwrap();
    assert_eq!(words, "last words");
}

#[test]
fn a_process_that_ends_has_said_what_it_has_printed() {
    both(("says last words", true), ("reads last words", true), 1);
    both(("says last words", true), ("reads last words", false), 0);
}

pub(crate) fn reads_redirected() {
    let mut stream = connect();
    stream.write_all(b"!").unwrap();
    let mut answer = vec![0; b"2 lines\nthe second one\n".len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, b"2 lines\nthe second one\n");
}

#[test]
fn the_standard_output_is_a_connection_for_a_while() {
    let mut server = Program::start("is redirected", true, None);
    let mut client = Program::start("reads what is redirected", true, Some(server.address()));
    client.wait_moved(1);
    server.wait_moved(1);
    client.go_on();
    server.wait_for_output("this is the program's own output and this is so again");
    assert_eq!((client.end(), server.end()), (1, 1));
}
