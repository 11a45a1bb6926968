//! How an endpoint is made.

use crate::error::{Error, Result};
use crate::ring::Shape;
use netvm::{NodeId, PortId, SharedConfig};
use std::time::Duration;

/// When calls leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// Each by a write of its own, at once.
    None,
    /// Packed: together when their bytes reach this many, when the first has waited so long (as the endpoint's own calls
    /// see it: it has no thread), on [`flush`](crate::Calls::flush), and before the endpoint waits for anything.
    Packed {
        /// Bytes of a batch.
        bytes: u32,
        /// The longest that the first waits while the endpoint is busy.
        delay: Duration,
    },
    /// Each by a write of its own while the receiver has room; packed up to so many bytes while it has none.
    Overflow {
        /// Bytes of a batch.
        bytes: u32,
    },
}

impl Default for Aggregation {
    /// Packed to 16 KiB, for 50 us at most. A batch costs something beside what its calls cost, and a page has too few calls to
    /// share that (`netvm bench calls` says how many leave in a write).
    fn default() -> Self {
        Self::Packed {
            bytes: 16 << 10,
            delay: Duration::from_micros(50),
        }
    }
}

/// What a call does for which there is no room at its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails, with [`Error::Full`].
    Fail,
    /// It waits (`Retry`), and runs what others call meanwhile. A called function cannot wait: its calls are queued.
    #[default]
    Wait,
    /// It is queued here, and sent in its order as soon as there is room (`RetryAsync`).
    Queue,
}

/// How to open an endpoint.
#[derive(Clone, Debug)]
#[must_use]
pub struct CallsConfig {
    pub(crate) shape: Shape,
    pub(crate) aggregation: Aggregation,
    pub(crate) when_full: WhenFull,
    pub(crate) queue_bytes: u64,
    pub(crate) most_open: u32,
    pub(crate) connect: Duration,
    pub(crate) door: SharedConfig,
}

impl Default for CallsConfig {
    /// Rings of 2 to 16 chunks of 64 KiB, calls packed to 16 KiB, calls that wait where there is no room, 16 MiB of queued
    /// calls and 65,536 unanswered ones for each link, 10 s for a link to come up, calls from every port.
    fn default() -> Self {
        Self {
            shape: Shape {
                chunk_bytes: 64 << 10,
                chunks: 16,
            },
            aggregation: Aggregation::default(),
            when_full: WhenFull::default(),
            queue_bytes: 16 << 20,
            most_open: 1 << 16,
            connect: Duration::from_secs(10),
            door: SharedConfig::default().message_bytes(64).capacity(256),
        }
    }
}

impl CallsConfig {
    /// Bytes of a chunk in the memory that each caller gets here: a call and its buffer must fit one. A multiple of 8, from
    /// 64.
    pub const fn chunk_bytes(mut self, bytes: u32) -> Self {
        self.shape.chunk_bytes = bytes;
        self
    }

    /// How many chunks a caller may come to use while this side is behind: 2 to 65,536, and 16 GiB in all. Chunks that were never
    /// used take no memory.
    pub const fn chunks(mut self, most: u32) -> Self {
        self.shape.chunks = most;
        self
    }

    /// When calls leave.
    pub const fn aggregation(mut self, aggregation: Aggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// What a call does for which there is no room.
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Bytes of calls that may be queued here for each link.
    pub const fn queue_bytes(mut self, bytes: u64) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Calls of each link that may wait for a result at a time. It bounds what the other side has to keep for this one.
    pub const fn most_unanswered(mut self, calls: u32) -> Self {
        self.most_open = calls;
        self
    }

    /// How long a link may take to come up.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect = timeout;
        self
    }

    /// Ports of this node may call. Without this and the next, any port may. There may be 16 of both together: with more,
    /// [`Calls::open`](crate::Calls::open) is refused as a table that is full.
    pub fn from_node(mut self, node: NodeId) -> Self {
        self.door = self.door.from_node(node);
        self
    }

    /// This port may call.
    pub fn from_port(mut self, node: NodeId, port: PortId) -> Self {
        self.door = self.door.from_port(node, port);
        self
    }

    pub(crate) const fn check(&self) -> Result<()> {
        if !self.shape.is_possible() {
            return Err(Error::Configuration(
                "a ring has 2 to 65,536 chunks, each a multiple of 8 bytes from 64 to 2 GiB, and at most 16 GiB in all",
            ));
        }
        if self.shape.bytes() > 1 << 40 {
            return Err(Error::Configuration("a ring has at most 1 TiB"));
        }
        if let Aggregation::Packed { bytes: 0, .. } | Aggregation::Overflow { bytes: 0 } = self.aggregation {
            return Err(Error::Configuration("a batch has at least one byte"));
        }
        Ok(())
    }
}
