//! What these tests have in common.

#![allow(dead_code, reason = "each test program uses a part")]

use std::net::{SocketAddr, UdpSocket};

/// A name that no other test has.
pub(crate) fn name(of: &str) -> String {
    format!("guide-{of}-{}", std::process::id())
}

/// An address of this machine that no program has now.
pub(crate) fn free_port() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}
