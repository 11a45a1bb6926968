//! A machine on the path between two nodes, which passes on what they send and adds what it likes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};

/// How often a tap looks whether it shall end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the address behind the tap.
    There,
    /// To the node that sent to the tap.
    Back,
}

/// What is added beside a datagram that passes. It stands before that on the wire.
pub(crate) trait Attack: Send + 'static {
    /// Gives each datagram to be added to `send`.
    fn add(&mut self, way: Way, passes: &[u8], send: &mut dyn FnMut(&[u8]));
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    armed: AtomicBool,
    added: AtomicU64,
    bytes: AtomicU64,
}

/// For one node, and one address behind it. It ends when this is dropped.
pub(crate) struct Tap {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Tap {
    pub(crate) fn start(target: SocketAddr, attack: impl Attack) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = front.local_addr().unwrap();
        let behind = UdpSocket::bind("127.0.0.1:0").unwrap();
        behind.connect(target).unwrap();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || run(&front, &behind, attack, &theirs));
        Self {
            address,
            shared,
            thread: Some(thread),
        }
    }

    /// The name by which a node is reached through it.
    pub(crate) fn name(&self) -> String {
        format!("udp://{}", self.address)
    }

    /// From now on something is added.
    pub(crate) fn arm(&self) {
        self.shared.armed.store(true, Ordering::Relaxed);
    }

    /// Datagrams that were added so far, and their bytes.
    pub(crate) fn added(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.shared.added), get(&self.shared.bytes))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(front: &UdpSocket, behind: &UdpSocket, mut attack: impl Attack, shared: &Shared) {
    let mut node: Option<SocketAddr> = None;
    let mut bytes = [0; 1 << 16];
    for socket in [front, behind] {
        socket.set_nonblocking(true).unwrap();
    }
    while !shared.stop.load(Ordering::Relaxed) {
        let mut fds = [front, behind].map(|socket| PollFd::new(socket, PollFlags::IN));
        let _ = rustix::event::poll(&mut fds, Some(&LOOK));
        for way in [Way::There, Way::Back] {
            let from = if way == Way::There { front } else { behind };
            // The kernel drops what it has no room for, as a network does.
            while let Ok((len, sender)) = from.recv_from(&mut bytes) {
                if way == Way::There {
                    node = Some(sender);
                }
                let Some(node) = node else { continue };
                let send = |datagram: &[u8]| match way {
                    Way::There => behind.send(datagram),
                    Way::Back => front.send_to(datagram, node),
                };
                let datagram = &bytes[..len];
                if shared.armed.load(Ordering::Relaxed) {
                    attack.add(way, datagram, &mut |added| {
                        shared.added.fetch_add(1, Ordering::Relaxed);
                        shared.bytes.fetch_add(added.len() as u64, Ordering::Relaxed);
                        let _ = send(added);
                    });
                }
                let _ = send(datagram);
            }
        }
    }
}
