//! Programs that fork: before the first byte, and once their connection has moved.

use std::io::Write;

use super::{Program, connect, copy_back, listener, many_small};

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
                let mut status = 0;
                // SAFETY: there is room for a number.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
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

/// Forks once its connection has moved, and uses it in both.
pub(crate) fn later() {
    let mut stream = connect();
    // SAFETY: as in `first`.
    match unsafe { libc::fork() } {
        0 => {
            let end = stream.write(&[0]).map_err(|error| error.kind());
            let is_reset = end == Err(std::io::ErrorKind::ConnectionReset);
            // SAFETY: as in `first`.
            unsafe { libc::_exit(i32::from(!is_reset)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: there is room for a number.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child has not read a reset");
        }
    }
    many_small(&mut stream, 10);
}

#[test]
fn what_has_moved_stays_the_parents_and_the_child_says_so() {
    let mut server = Program::start("echo", true, None);
    let address = server.address();
    let mut client = Program::start("forks later", true, Some(address));
    client.wait_moved(1);
    client.go_on();
    client.wait_for("stays its parent's");
    assert_eq!(client.end(), 1);
    server.end();
}
