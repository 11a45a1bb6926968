//! What a platform decides before it starts a NIC.

use crate::windows::WindowId;
use core::fmt;
use netvm_abi::geometry::GeometryError;
use netvm_abi::page_table::HashKey;
use netvm_abi::{BounceId, Geometry, Nanos, NodeId, PortId};

/// Time limits and intervals of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Delay of an acknowledgement that the sender has not asked for.
    pub ack_delay: Nanos,
    /// Time between two looks at a peer with which something is outstanding. A look sends a probe if the peer has been
    /// silent, or has acknowledged nothing new, since the look before.
    pub probe_interval: Nanos,
    /// Probes in a row without an acknowledgement that fail the link. Where three frames of ten are lost each way, a
    /// probe stays without answer half of the time: 31 of them do so once in 10^9.
    pub probe_limit: u8,
    /// Age at which a gap in a peer's sequence fails the link, counted from when the LSN has reached it, on a wire that
    /// loses nothing. An answer may be as late, counted from when its request was seen acknowledged.
    pub gap_timeout: Nanos,
    /// Time between repeated greetings.
    pub hello_interval: Nanos,
    /// Greetings without an answer that fail what waits for the link.
    pub hello_limit: u8,
    /// How long the messages of a link may wait in queues of the network, on their way there and back: what is longer is taken
    /// for congestion, if it is also longer than half of the way itself. [`Nanos::MAX`]: a network without queues; then all that the
    /// other card takes may be on the wire.
    pub queueing: Nanos,
    /// Probe also peers with which nothing is outstanding. Without it an idle NIC has no deadline.
    pub keepalive: bool,
}

impl Timers {
    /// Time within which an operation ends, or its port hears [`LinkLost`](netvm_abi::status::Status::LinkLost),
    /// whatever single frames the wire loses. It counts from when the operation leaves, or from when the peer has
    /// ended everything before it and the operation itself, if that comes later: how long a peer's host takes for
    /// its pages is not the wire's matter. A card that makes no pass for a while adds that while.
    ///
    /// With `I` for `probe_interval`, `L` for `probe_limit`, and `G` for `gap_timeout`, at most:
    ///
    /// - `(L + 1) I` until two looks have seen the same oldest number and one of `L` probes has got through; if none
    ///   is acknowledged, the next look ends the life;
    /// - `G + I` more until the peer, which knows of the number now, finds it missing; or until this side misses the
    ///   answer to a request that the peer has acknowledged;
    /// - `(L + 1) I` more for the peer's `Bye`, or for `L` probes that it answers with no `Ack`;
    /// - `I` for the flight of all these;
    /// - on a wire that loses frames, the time in which the operation and its answer are sent again
    ///   ([`resend_time`](Self::resend_time)), each.
    #[must_use]
    pub const fn loss_bound(&self) -> Nanos {
        let looks = 2 * self.probe_limit as u64 + 4;
        Nanos(looks * self.probe_interval.0 + self.gap_timeout.0 + 2 * self.resend_time().0)
    }

    /// How often a message is sent again before its link is lost.
    #[must_use]
    pub const fn resend_limit(&self) -> u8 {
        self.probe_limit.saturating_mul(2).saturating_add(10)
    }

    /// Time within which a message is received that is sent again, or its link is lost.
    #[must_use]
    pub const fn resend_time(&self) -> Nanos {
        Nanos(self.resend_limit() as u64 * self.probe_interval.0)
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            ack_delay: Nanos::from_micros(100),
            probe_interval: Nanos::from_millis(100),
            probe_limit: 31,
            gap_timeout: Nanos::from_millis(500),
            hello_interval: Nanos::from_millis(20),
            hello_limit: 50,
            queueing: Nanos::from_micros(25),
            keepalive: false,
        }
    }
}

/// What one NIC is told at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Sizes of all tables.
    pub geometry: Geometry,
    /// Key of the page hash, drawn anew at each start.
    pub hash_key: HashKey,
    /// Differs (with high probability) between any two starts of this node; the incarnations of its
    /// links are made from it.
    pub incarnation_seed: u32,
    /// Most bytes of inline payload that a descriptor may carry: measured per platform, at most
    /// [`INLINE_BYTES`](netvm_abi::descriptor::INLINE_BYTES).
    pub inline_bytes: u16,
    /// Time spans.
    pub timers: Timers,
}

/// Places in the tables.
impl Config {
    /// Index of a port and a window in the tables of streams.
    #[inline]
    pub(crate) const fn stream_index(&self, window: WindowId, port: PortId) -> usize {
        window.index() * self.geometry.ports as usize + port.index()
    }

    /// The name of a message in a receiving window: the number of its bounce page, which is also the
    /// index of its slot (and, on the sending side, of the note of what left in that slot).
    #[inline]
    pub(crate) const fn slot_id(&self, window: WindowId, slot: u16) -> BounceId {
        BounceId(window.index() as u32 * self.geometry.window as u32 + slot as u32)
    }

    /// The window of a slot.
    #[inline]
    pub(crate) const fn window_of(&self, at: BounceId) -> WindowId {
        WindowId::at((at.0 / self.geometry.window as u32) as u16)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: NodeId(0),
            geometry: Geometry::default(),
            hash_key: HashKey([0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03]),
            incarnation_seed: 1,
            inline_bytes: 128,
            timers: Timers::default(),
        }
    }
}

/// Why a NIC cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The geometry cannot be used.
    Geometry(GeometryError),
    /// The node is not below the number of nodes.
    Node(NodeId),
    /// More inline bytes than a descriptor has room for.
    InlineBytes(u16),
    /// A lent table has the wrong length.
    Table {
        /// The table.
        name: &'static str,
        /// Entries needed.
        needed: usize,
        /// Entries lent.
        lent: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::Node(node) => write!(f, "node {node} is not below the number of nodes"),
            Self::InlineBytes(bytes) => write!(f, "{bytes} inline bytes do not fit into a descriptor"),
            Self::Table { name, needed, lent } => {
                write!(f, "table '{name}' needs {needed} entries, {lent} were lent")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
