//! What a platform decides before it starts a NIC.

use core::fmt;
use netvm_abi::geometry::GeometryError;
use netvm_abi::page_table::HashKey;
use netvm_abi::{BounceId, Geometry, Nanos, NodeId, PortId};

/// How long the NIC waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// An acknowledgement that nobody asked for goes out so long after the message.
    pub ack_delay: Nanos,
    /// A peer that has been silent so long is probed while something is outstanding.
    pub probe_interval: Nanos,
    /// So many probes without any answer fail the link.
    pub probe_limit: u8,
    /// A gap in a peer's sequence that stays open so long fails the link.
    pub gap_timeout: Nanos,
    /// Greetings are repeated so often.
    pub hello_interval: Nanos,
    /// So many greetings without an answer fail what waits for the link.
    pub hello_limit: u8,
    /// Probe also peers with which nothing is outstanding. Without it an idle NIC has no deadline.
    pub keepalive: bool,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            ack_delay: Nanos::from_micros(100),
            probe_interval: Nanos::from_millis(100),
            probe_limit: 5,
            gap_timeout: Nanos::from_millis(500),
            hello_interval: Nanos::from_millis(20),
            hello_limit: 50,
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
    /// Index of a port and a node in the tables of streams.
    #[inline]
    pub(crate) const fn stream_index(&self, node: NodeId, port: PortId) -> usize {
        node.index() * self.geometry.ports as usize + port.index()
    }

    /// The name of a message in a receiving window: the number of its bounce page, which is also the
    /// index of its slot (and, on the sending side, of the note of what left in that slot).
    #[inline]
    pub(crate) const fn slot_id(&self, node: NodeId, slot: u16) -> BounceId {
        BounceId(node.0 as u32 * self.geometry.window as u32 + slot as u32)
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
