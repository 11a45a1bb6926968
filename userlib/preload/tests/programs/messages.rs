//! Several messages by one call.

use std::os::fd::AsRawFd;

use super::{both, connect, pattern};

/// Of each length one.
const LENS: [usize; 4] = [1, 700, 20_000, 300];

/// So many messages, each of one place.
fn messages(places: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    let message = |place: &mut libc::iovec| {
        // SAFETY: all noughts are a message of nothing.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&raw mut *place, 1);
        message
    };
    places.iter_mut().map(message).collect()
}

fn places(bytes: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let place = |bytes: &mut Vec<u8>| libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    bytes.iter_mut().map(place).collect()
}

/// Asks a server that sends back what comes.
pub(crate) fn ask() {
    let stream = connect();
    let fd = stream.as_raw_fd();
    for _ in 0..50 {
        let mut sent = LENS.map(pattern);
        let mut of_sent = places(&mut sent);
        let mut out = messages(&mut of_sent);
        // SAFETY: the messages are there, and so are their places.
        let count = unsafe { libc::sendmmsg(fd, out.as_mut_ptr(), out.len() as u32, 0) };
        assert_eq!(count, LENS.len() as i32);
        assert_eq!(
            out.iter()
                .map(|message| message.msg_len as usize)
                .collect::<Vec<_>>(),
            LENS
        );

        let whole = sent.concat();
        let mut back = Vec::new();
        while back.len() < whole.len() {
            let mut got = [0; 3].map(|_| vec![0; 5000]);
            let mut of_got = places(&mut got);
            let mut into = messages(&mut of_got);
            let flags = libc::MSG_WAITFORONE;
            let none = std::ptr::null_mut();
            // SAFETY: the messages are there, and so are their places.
            let count = unsafe { libc::recvmmsg(fd, into.as_mut_ptr(), into.len() as u32, flags, none) };
            assert!(count > 0);
            for (message, bytes) in into.iter().zip(&got).take(count as usize) {
                back.extend_from_slice(&bytes[..message.msg_len as usize]);
            }
        }
        assert_eq!(back, whole);
    }
    // Nothing comes any more.
    let mut got = [vec![0; 1]];
    let mut of_got = places(&mut got);
    let mut into = messages(&mut of_got);
    // SAFETY: as above.
    let count = unsafe { libc::recvmmsg(fd, into.as_mut_ptr(), 1, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
    let error = std::io::Error::last_os_error();
    assert_eq!((count, error.kind()), (-1, std::io::ErrorKind::WouldBlock));
}

#[test]
fn several_messages_by_one_call_arrive() {
    for preloaded in [true, false] {
        both(("echo", true), ("messages", preloaded), 1);
    }
}
