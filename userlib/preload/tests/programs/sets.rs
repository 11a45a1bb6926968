//! Programs with sets of `epoll`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{PATIENCE, both};

pub(crate) fn ctl(set: i32, op: i32, fd: i32, events: i32) {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: fd as u64,
    };
    // SAFETY: the event is there.
    let done = unsafe { libc::epoll_ctl(set, op, fd, &raw mut event) };
    assert_eq!(done, 0);
}

/// No flag of `epoll`: its waits are told in nanoseconds.
pub(crate) const NANOSECONDS: i32 = 1 << 20;
const PATIENCE_OF_C: libc::timespec = libc::timespec {
    tv_sec: PATIENCE.as_secs() as i64,
    tv_nsec: 0,
};

unsafe extern "C" {
    fn epoll_pwait2(
        set: i32,
        events: *mut libc::epoll_event,
        most: i32,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> i32;
}

/// Writes to a stream that does not block.
fn write_when_there_is_room(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Serves so many connections by one set of `epoll`, with or without edges.
pub(crate) fn serve(listener: &TcpListener, flags: i32, connections: u32) {
    let is_fine = flags & NANOSECONDS != 0;
    let flags = flags & !NANOSECONDS;
    // SAFETY: no memory is touched.
    let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let set = set.as_raw_fd();
    let mut streams = std::collections::HashMap::new();
    let mut ended = 0;
    ctl(set, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN);
    while ended < connections {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: there is room for eight.
        let count = unsafe {
            match is_fine {
                false => libc::epoll_wait(set, events.as_mut_ptr(), 8, 30_000),
                true => epoll_pwait2(set, events.as_mut_ptr(), 8, &PATIENCE_OF_C, std::ptr::null()),
            }
        };
        assert!(count > 0, "nothing comes, and {ended} have ended");
        for event in &events[..count as usize] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                let (stream, _) = listener.accept().unwrap();
                stream.set_nonblocking(true).unwrap();
                ctl(
                    set,
                    libc::EPOLL_CTL_ADD,
                    stream.as_raw_fd(),
                    libc::EPOLLIN | flags,
                );
                streams.insert(stream.as_raw_fd(), stream);
                continue;
            }
            let mut bytes = [0; 16];
            let over = loop {
                let stream = streams.get_mut(&fd).unwrap();
                match stream.read(&mut bytes) {
                    Ok(0) => break true,
                    Ok(count) => write_when_there_is_room(stream, &bytes[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break false,
                    Err(error) => panic!("{error}"),
                }
                if flags == 0 {
                    // It is told again if there is more.
                    break false;
                }
            };
            if over {
                streams.remove(&fd);
                ended += 1;
            } else if flags & libc::EPOLLONESHOT != 0 {
                ctl(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN | flags);
            }
        }
    }
}

#[test]
fn sets_of_epoll_tell_what_the_kernel_would() {
    for server in ["epoll", "epoll, nanoseconds", "epoll, edges", "epoll, once"] {
        for preloaded in [true, false] {
            both((server, true), ("many", preloaded), 40);
        }
    }
}
