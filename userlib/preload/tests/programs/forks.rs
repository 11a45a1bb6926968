//! Programs that fork: before the first byte, and once their connection has moved.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::sets::ctl;
use super::{Program, SERVER, connect, copy_back, goes_on, listener, many_small, pattern, reads_an_end};

/// Takes connections and leaves each to a child.
pub(crate) fn first() {
    let listener = listener();
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().unwrap();
        // SAFETY: the only thread that the program knows of; the child does what any program may.
        match unsafe { libc::fork() } {
            0 => {
                copy_back(&mut stream);
                drop(stream);
                // As servers do whose children are to run nothing of the parent's.
                // SAFETY: the child has nothing that is to be dropped.
                unsafe { libc::_exit(0) };
            }
            child => {
                drop(stream);
                wait_for(child);
            }
        }
    }
}

#[test]
fn a_child_of_fork_has_a_card_of_its_own() {
    let mut server = Program::start("forks", true, None);
    let address = server.address();
    for number in 1..=2 {
        let mut client = Program::start("asks", true, Some(address));
        client.wait_moved(1);
        server.wait_moved(number);
        assert_eq!(client.end(), 1);
    }
    assert_eq!(server.end(), 2);
}

/// Leaves a part of a program to a child, and waits until it has done that.
fn in_child(part: impl FnOnce()) {
    wait_for(spawn(part));
}

fn wait_for(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: there is room for a number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has failed");
}

/// A child that does a part of a program, and ends.
fn spawn(part: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the only thread that the program knows of that does anything; the child does what any program may.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(part));
            // SAFETY: the child has nothing that is to be dropped.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        child => child,
    }
}

/// How many bytes can be read at once.
fn available(stream: &TcpStream) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: there is room for a number.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    assert_eq!(asked, 0);
    count as usize
}

/// Forks once its connection has moved, with an answer that nothing has read. The child reads it and goes on, and then the parent does.
pub(crate) fn later() {
    let mut stream = connect();
    let set = Set::of(&stream);
    let question = pattern(30_000);
    stream.write_all(&question).unwrap();
    while available(&stream) < question.len() {
        std::thread::yield_now();
    }
    let mut first = [0; 100];
    assert_eq!(stream.peek(&mut first).unwrap(), 100);
    let mut answer = vec![0; 10_000];
    stream.read_exact(&mut answer[..1000]).unwrap();
    in_child(|| {
        stream.read_exact(&mut answer[1000..]).unwrap();
        assert!(answer == question[..answer.len()]);
        many_small_behind(&mut stream, &question[answer.len()..]);
    });
    many_small(&mut stream, 10);
    // Another child has no more to ask for.
    in_child(|| many_small(&mut stream, 10));
    assert!(!set.is_told(0));
    stream.write_all(&[7]).unwrap();
    assert!(set.is_told(30_000));
    stream.read_exact(&mut first[..1]).unwrap();
    assert!(!set.is_told(0));
    many_small(&mut stream, 10);
}

/// A set of `epoll` with a connection.
struct Set(OwnedFd);

impl Set {
    fn of(stream: &TcpStream) -> Self {
        // SAFETY: no memory is touched, and the descriptor is new.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        ctl(
            set.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            stream.as_raw_fd(),
            libc::EPOLLIN,
        );
        Self(set)
    }

    /// Whether it can be read within so many milliseconds.
    fn is_told(&self, patience: libc::c_int) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, patience) == 1 }
    }
}

/// Reads what is left, and asks small questions.
fn many_small_behind(stream: &mut TcpStream, left: &[u8]) {
    let mut rest = vec![0; left.len()];
    stream.read_exact(&mut rest).unwrap();
    assert!(rest == left);
    many_small(stream, 10);
}

/// One reads what the other one writes: as clients do that send and receive in two processes.
pub(crate) fn halves() {
    let mut stream = connect();
    let much = pattern(2_000_000);
    let child = spawn(|| {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == much);
    });
    stream.write_all(&much).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut status = 0;
    // SAFETY: there is room for a number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has failed");
}

/// What that server says then.
const HANDS_OVER: &str = "the rest is the child's";

/// A server that serves by itself until the test has seen enough, and leaves the rest to a child. It has nothing more to do with it.
pub(crate) fn hands_over() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 100];
    while !goes_on() {
        let count = stream.read(&mut bytes).unwrap();
        stream.write_all(&bytes[..count]).unwrap();
    }
    let child = spawn(|| copy_back(&mut stream));
    drop(stream);
    eprintln!("{HANDS_OVER}");
    wait_for(child);
}

/// Leaves the rest to a grandchild, whose parent has not asked for the connection.
pub(crate) fn grandchild() {
    let mut stream = connect();
    in_child(|| in_child(|| many_small(&mut stream, 10)));
    many_small(&mut stream, 10);
}

/// Leaves its connection to a child, and ends before it.
pub(crate) fn orphan() {
    let mut stream = connect();
    let parent = std::process::id();
    spawn(|| {
        while std::os::unix::process::parent_id() == parent {
            std::thread::yield_now();
        }
        let end = stream.write(&[0]).map_err(|error| error.kind());
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    });
}

/// Leaves its connection to a child, whose other end makes no call any more.
pub(crate) fn is_left() {
    let mut stream = connect();
    stream.write_all(b"?").unwrap();
    in_child(|| reads_an_end(&mut stream));
    reads_an_end(&mut stream);
}

/// Closes its connection, as a child that lives on has done before.
pub(crate) fn closes() {
    let mut stream = Some(connect());
    let (mut from_child, to_parent) = std::io::pipe().unwrap();
    let (mut from_parent, to_child) = std::io::pipe().unwrap();
    let mut to_child = Some(to_child);
    let child = spawn(|| {
        drop((stream.take(), to_child.take()));
        (&to_parent).write_all(&[0]).unwrap();
        let _ = from_parent.read(&mut [0]);
    });
    assert_eq!(from_child.read(&mut [0]).unwrap(), 1);
    drop(stream);
    // Until the server has read the end, and has ended.
    let server: SocketAddr = std::env::var(SERVER).unwrap().parse().unwrap();
    while TcpStream::connect(server).is_ok() {
        std::thread::yield_now();
    }
    drop(to_child);
    wait_for(child);
}

/// Plays a server and a client whose connection goes back to TCP, and tells what each has said.
fn go_back(server: &str, client: &str) {
    let hands_over = server == "forks and hands over";
    let mut server = Program::start(server, true, None);
    let mut client = Program::start(client, true, Some(server.address()));
    client.wait_moved(1);
    server.wait_moved(1);
    server.go_on();
    if hands_over {
        server.wait_for(HANDS_OVER);
    }
    client.go_on();
    client.wait_for("goes back to TCP");
    server.wait_for("goes back to TCP");
    assert_eq!((client.end(), server.end()), (1, 1));
}

#[test]
fn a_parent_and_its_child_go_on_with_a_connection_that_has_moved() {
    go_back("echo", "forks later");
}

#[test]
fn a_connection_goes_back_under_a_set_of_epoll() {
    for server in ["epoll for one", "epoll for one, edges", "epoll for one, once"] {
        go_back(server, "forks later");
    }
}

#[test]
fn one_process_reads_what_another_one_writes() {
    go_back("echo", "forks in halves");
}

#[test]
fn a_server_hands_a_connection_over_and_closes_it() {
    go_back("forks and hands over", "asks");
}

#[test]
fn both_ends_hand_a_connection_over() {
    go_back("forks and hands over", "forks later");
    go_back("forks and hands over", "forks in halves");
}

#[test]
fn a_grandchild_goes_on_with_a_connection() {
    go_back("echo", "forks twice");
}

#[test]
fn a_connection_ends_when_a_parent_and_its_child_have_closed_it() {
    let mut server = Program::start("echo", true, None);
    let mut client = Program::start("forks, and both close", true, Some(server.address()));
    client.wait_moved(1);
    server.wait_moved(1);
    client.go_on();
    assert_eq!((server.end(), client.end()), (1, 1));
}

#[test]
fn a_child_whose_parent_has_ended_reads_a_reset() {
    let mut server = Program::start("echo", true, None);
    let mut client = Program::start("forks, and ends", true, Some(server.address()));
    client.wait_moved(1);
    client.go_on();
    client.wait_for("cannot go back to TCP: its parent has ended");
    assert_eq!(client.end(), 1);
    server.end();
}

#[test]
fn a_child_hears_of_the_end_of_a_process_that_it_waits_for() {
    let mut server = Program::start("dies", true, None);
    let mut client = Program::start("forks, and is left", true, Some(server.address()));
    client.wait_moved(1);
    server.wait_moved(1);
    assert_eq!(client.end(), 1);
    let _ = server.child.wait();
}
