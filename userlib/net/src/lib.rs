//! Thousands of byte streams over few queues of remote memory, with the calls of sockets.
//!
//! ```no_run
//! use netvm_net::{Address, Net, NetConfig};
//! use std::io::{Read, Write};
//!
//! fn server(node: &netvm::Node) -> std::io::Result<()> {
//!     let net = Net::open(node, NetConfig::at(7))?;
//!     let mut listener = net.listen(80)?;
//!     loop {
//!         let mut stream = listener.accept()?;
//!         let mut question = [0; 16];
//!         stream.read_exact(&mut question)?;
//!         stream.write_all(b"late")?;
//!     }
//! }
//!
//! fn client(node: &netvm::Node) -> std::io::Result<()> {
//!     let net = Net::open(node, NetConfig::default())?;
//!     let mut stream = net.connect(Address::new(0, 7, 80))?;
//!     stream.write_all(b"what time is it?")?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     Ok(())
//! }
//! ```
//!
//! | to | see |
//! |---|---|
//! | have a network at a port of a node | [`Net::open`], [`NetConfig`] |
//! | take connections, make them | [`Net::listen`], [`Listener::accept`], [`Net::connect`] |
//! | read and write | [`Stream`], as [`Read`](std::io::Read) and [`Write`](std::io::Write); [`Stream::split`] for two threads |
//! | not wait inside of a call | [`Stream::set_nonblocking`]; [`Listener::poll_accept`], [`Stream::poll_read`], [`Stream::poll_write`], [`Net::begin_connect`]; with the feature `tokio`, its traits |
//! | have bytes without a copy | [`Stream::recv_zero_copy`] |
//! | choose the way that bytes take | [`Stream::send`], [`Stream::set_way`], [`NetConfig::large`] |
//! | know what was chosen | [`Net::stats`] |
//!
//! # What it promises
//!
//! *Order.* The bytes of a connection arrive in the order in which they were written, each once, whichever [`Way`] they take. Or
//! the connection is reset.
//!
//! *Isolation.* A connection has a window of bytes ([`NetConfig::window`]). A reader that takes nothing holds up its own writer,
//! and no other connection. Peers have equal shares of the queue.
//!
//! *Ends.* A dropped stream closes both directions after what was written. One that is dropped with bytes unread resets the
//! connection. A process that dies, or a link that is lost, resets the connections over it: within twice
//! [`NetConfig::keepalive`], also where nothing was under way. What had arrived can still be read.
//!
//! *No lock.* No thread waits for another one to send or to receive: the state of a network is passed on between its threads
//! (`engine.rs`), and the crate names no lock. A test of it says so. The library below has locks of its own around a port's command queue
//! and its notifications. On the path of a message the thread that has the state takes them, and the port's dispatcher.
//!
//! # What it costs
//!
//! An idle connection is an entry in a table and a few words at each end, less than 256 bytes together with its [`Stream`]. A peer
//! costs a share of a queue of 4 MiB, of which only what is used takes memory, and 2 MiB where large transfers are made. A small
//! message costs what an append to a shared queue does.
//!
//! # Coming from RDMAvisor
//!
//! | RDMAvisor | here |
//! |---|---|
//! | a daemon of the machine, rings to it | none: the library in the process, no hop |
//! | a queue pair for each peer node, shared by connections | the shared queue of each peer port |
//! | vQPN in the immediate data, or in `wr_id` | the end's place and generation in the header |
//! | worker and poller threads | whichever thread is in a call, or the port's dispatcher |
//! | shared receive queue | [`netvm::SharedReceiver`] |
//! | `connect`, `listen`, `accept` | [`Net::connect`], [`Net::listen`], [`Listener::accept`] |
//! | `send` with flags | [`Stream::send`] with a [`Way`] |
//! | `recv`, `recv_zero_copy` | [`Stream::recv`], [`Stream::recv_zero_copy`] |
//! | SEND, WRITE, READ by size and load | [`Way::Auto`]: message, write, read |
//! | `memcpy` or register the source | always a copy: nothing is registered or pinned |
//! | pre-registered private memory | pieces from a pool that is made at first use, and no page of it is pinned |
//!
//! # Coming from sockets
//!
//! | sockets | here |
//! |---|---|
//! | `TcpListener::bind("0.0.0.0:80")` | [`Net::listen`]`(80)`; the node and the port are the [`Net`]'s |
//! | `TcpStream::connect(address)` | [`Net::connect`] with an [`Address`] |
//! | `SO_RCVBUF` | [`NetConfig::window`] |
//! | backlog | [`Net::listen_with`]; one more is refused at once |
//! | `SO_KEEPALIVE` | always; [`NetConfig::keepalive`] |
//! | `SO_LINGER` | [`NetConfig::linger`], of the whole network |
//! | `shutdown`, `set_nonblocking`, time-outs | the same names |
//! | `try_clone` for a second thread | [`Stream::split`] |
//! | `ECONNREFUSED`, `ECONNRESET`, `EPIPE`, `EADDRINUSE`, `EAGAIN` | [`ErrorKind`](std::io::ErrorKind) of the same name, with a sentence what to do |
//! | `TCP_NODELAY` | always: each write leaves at once |
//! | RST throws away what was not read | it can still be read |
#![forbid(unsafe_code)]

mod address;
mod config;
mod conn;
mod core;
mod engine;
mod error;
mod large;
mod listener;
mod net;
mod stats;
mod stream;
#[cfg(feature = "tokio")]
mod tokio_io;
mod wire;

pub use address::{Address, NotAnAddress};
pub use config::{NetConfig, Way};
pub use error::has_left;
pub use listener::Listener;
pub use net::Net;
pub use stats::NetStats;
pub use stream::{Reader, Received, Stream, Writer};

#[cfg(test)]
mod tests {
    /// No lock is named in the crate.
    #[test]
    fn the_crate_names_no_lock() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = vec![source];
        let mut read = 0;
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(
                    std::fs::read_dir(path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for lock in [
                concat!("Mut", "ex"),
                concat!("Rw", "Lock"),
                concat!("Cond", "var"),
                concat!("Once", "Lock"),
            ] {
                assert!(!text.contains(lock), "{} names {lock}", path.display());
            }
            read += 1;
        }
        assert!(read > 10);
    }
}
