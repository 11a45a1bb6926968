//! How a network is opened, and which way bytes take.

use netvm::{NodeId, PortId};
use std::time::Duration;

/// How to open a [`Net`](crate::Net).
#[derive(Clone, Debug)]
#[must_use]
pub struct NetConfig {
    pub(crate) port: Option<PortId>,
    pub(crate) peers: u16,
    pub(crate) window: u32,
    pub(crate) spin: Duration,
    pub(crate) keepalive: Duration,
    pub(crate) linger: Duration,
    pub(crate) large: u32,
    pub(crate) pieces: u16,
    pub(crate) piece_bytes: u32,
    pub(crate) way: Way,
    pub(crate) background: bool,
    pub(crate) gather: bool,
    pub(crate) nodes: Vec<NodeId>,
}

/// Messages that the shared queue has room for.
pub(crate) const PLACES: u32 = 1024;

impl Default for NetConfig {
    /// Any port, 15 peers, 1 MiB for each connection, large from 32 KiB on, in 16 pieces of 128 KiB.
    fn default() -> Self {
        Self {
            port: None,
            peers: 15,
            window: 1 << 20,
            spin: Duration::from_micros(50),
            keepalive: Duration::from_secs(1),
            linger: Duration::from_secs(1),
            large: 32 << 10,
            pieces: 16,
            piece_bytes: 128 << 10,
            way: Way::Auto,
            background: true,
            gather: false,
            nodes: Vec::new(),
        }
    }
}

impl NetConfig {
    /// The defaults at this port of the node, which others name to connect.
    pub fn at(port: impl Into<PortId>) -> Self {
        Self {
            port: Some(port.into()),
            ..Self::default()
        }
    }

    /// How many peers (ports of other processes) may have connections at once: 1 to 60. They share 1,024 places of the queue
    /// equally, so fewer peers have more messages on their way. One more is refused.
    pub fn peers(mut self, peers: u16) -> Self {
        self.peers = peers.clamp(1, 60);
        self
    }

    /// How many bytes a connection takes that its program has not read, at least 4 KiB. What is not there takes no memory.
    pub fn window(mut self, bytes: u32) -> Self {
        self.window = bytes.clamp(4 << 10, 1 << 30);
        self
    }

    /// How long a call that waits spins before it sleeps; four times as long in the midst of large transfers. It costs a processor for so
    /// long.
    pub const fn spin(mut self, span: Duration) -> Self {
        self.spin = span;
        self
    }

    /// After so long without a word from a peer that has connections, it is asked for a sign of life. A peer that is gone is
    /// found within about twice that, and its connections are reset.
    pub fn keepalive(mut self, span: Duration) -> Self {
        self.keepalive = span.max(Duration::from_millis(1));
        self
    }

    /// How long the last handle that goes waits for bytes that have not left yet.
    pub const fn linger(mut self, span: Duration) -> Self {
        self.linger = span;
        self
    }

    /// From so many bytes in one call on bytes go as large ones, at least 4 KiB: by a write or a read, and not in messages. A
    /// connection that has begun with that goes on with it down to half as many.
    pub fn large(mut self, bytes: u32) -> Self {
        self.large = bytes.max(4 << 10);
        self
    }

    /// The memory for large transfers of each peer and direction, made at its first use: so many pieces of so many bytes.
    pub fn large_memory(mut self, pieces: u16, bytes: u32) -> Self {
        self.pieces = pieces.clamp(1, 256);
        self.piece_bytes = bytes.clamp(4 << 10, 16 << 20).next_multiple_of(4 << 10);
        self
    }

    /// The way that bytes take where a stream says nothing else.
    pub const fn way(mut self, way: Way) -> Self {
        self.way = way;
        self
    }

    /// Whether what comes is taken also while no thread of the program is in a call; it is, if not set. Without this a peer's
    /// connect, for one, is answered by the program's next call; nothing is lost, and no thread is woken beside the program's.
    pub const fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Whether small writes on several connections to one peer go in one message: they leave when the program waits, reads in vain or calls
    /// [`progress`](crate::Net::progress), and after a millisecond at most. It is for event loops, which write on many connections and
    /// then wait; where there was only one write between two waits the next one leaves at once, as without this. 1 MiB for each peer is taken also where
    /// it has no place for it yet, as a socket does.
    pub const fn gather(mut self, gather: bool) -> Self {
        self.gather = gather;
        self
    }

    /// Processes on this node may connect. Without this any may.
    pub fn from_node(mut self, node: NodeId) -> Self {
        self.nodes.push(node);
        self
    }
}

/// Which way bytes take to the other end. It is a matter of speed: they arrive in the order in which they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// Small ones in messages, large ones as the two ends' load says.
    #[default]
    Auto,
    /// In messages through the shared queue.
    Message,
    /// Large ones by a write into memory that the receiver offers. What is under 4 KiB goes in messages all the same, and so
    /// does what is written before the offer has come.
    Write,
    /// Large ones by a read of the receiver's. What is under 4 KiB goes in messages all the same.
    Read,
}
