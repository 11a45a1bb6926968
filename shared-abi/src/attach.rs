//! The header page of NIC memory as one value: the firmware publishes it when it is up, the host driver reads and
//! checks it before anything else. A mismatch of version, page size or any table size is an error that names both
//! sides' numbers.

use crate::bar::header;
use crate::geometry::{Geometry, GeometryError};
use crate::page_table::HashKey;
use crate::units::{Incarnation, NodeId, Ppn, WordIndex};
use crate::words::{SharedWords, split};
use core::fmt;

/// What a card says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardHeader {
    /// Sizes of its tables.
    pub geometry: Geometry,
    /// The node it is.
    pub node: NodeId,
    /// Its incarnation, from which link incarnations are made.
    pub incarnation: Incarnation,
    /// Key of the page hash of this boot.
    pub key: HashKey,
}

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The firmware is not up (yet): the magic word is not there.
    NotUp {
        /// What is there.
        found: u32,
    },
    /// Every word reads as all ones: the card is gone.
    CardGone,
    /// It does not fit this driver.
    Geometry(GeometryError),
    /// The node is not one of the network's.
    Node {
        /// What the card says it is.
        node: NodeId,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUp { found } => write!(f, "the card's firmware is not up (magic word {found:#010x})"),
            Self::CardGone => write!(f, "the card is gone: its memory reads as all ones"),
            Self::Geometry(error) => error.fmt(f),
            Self::Node { node } => write!(
                f,
                "the card says it is node {node}, which the network does not have"
            ),
        }
    }
}

impl core::error::Error for AttachError {}

impl From<GeometryError> for AttachError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

const fn halves(low: u16, high: u16) -> u32 {
    low as u32 | ((high as u32) << 16)
}

const fn low(word: u32) -> u16 {
    word as u16
}

const fn high(word: u32) -> u16 {
    (word >> 16) as u16
}

impl CardHeader {
    /// Writes the header (NIC), the magic word last: everything else of NIC memory must be in its first state by
    /// then.
    pub fn publish<W: SharedWords + ?Sized>(&self, bar: &W) {
        let g = &self.geometry;
        bar.store_slice(
            header::VERSION,
            &[
                halves(g.version, self.node.0),
                g.page_size,
                g.payload,
                halves(g.ports, g.nodes),
                halves(g.window, g.staging),
                g.page_rows,
                g.capabilities,
                halves(g.reads, g.windows),
                g.notification_queue,
                self.incarnation.0,
            ],
        );
        let [first, second] = self.key.0;
        bar.store_slice(header::HASH_KEY, &split(first));
        bar.store_slice(header::HASH_KEY.plus(2), &split(second));
        bar.store_release(header::MAGIC, header::MAGIC_VALUE);
    }

    /// Reads and checks the header (host driver).
    ///
    /// # Errors
    /// The first thing that this driver cannot work with.
    pub fn load<W: SharedWords + ?Sized>(bar: &W) -> Result<Self, AttachError> {
        match bar.load_acquire(header::MAGIC) {
            header::MAGIC_VALUE => {}
            u32::MAX => return Err(AttachError::CardGone),
            found => return Err(AttachError::NotUp { found }),
        }
        let word = |at: WordIndex| bar.load_acquire(at);
        let version = word(header::VERSION);
        let ports_nodes = word(header::PORTS_NODES);
        let window_staging = word(header::WINDOW_STAGING);
        let reads_windows = word(header::READS_WINDOWS);
        let geometry = Geometry {
            version: low(version),
            page_size: word(header::PAGE_SIZE),
            payload: word(header::PAYLOAD),
            ports: low(ports_nodes),
            nodes: high(ports_nodes),
            window: low(window_staging),
            windows: high(reads_windows),
            page_rows: word(header::PAGE_ROWS),
            capabilities: word(header::CAPABILITIES),
            staging: high(window_staging),
            reads: low(reads_windows),
            notification_queue: word(header::NOTIFICATION_QUEUE),
        };
        geometry.validate()?;
        let node = NodeId(high(version));
        if node.0 >= geometry.nodes {
            return Err(AttachError::Node { node });
        }
        Ok(Self {
            geometry,
            node,
            incarnation: Incarnation(word(header::INCARNATION)),
            key: HashKey([
                bar.load_pair(header::HASH_KEY),
                bar.load_pair(header::HASH_KEY.plus(2)),
            ]),
        })
    }
}

/// Where a driver's memory is, as it tells a card that reaches it over a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverPlace {
    /// Bus page number of the first page of the [shared map](crate::shared_map).
    pub memory: Ppn,
    /// Bus page number of the first bounce page.
    pub bounce: Ppn,
}

impl DriverPlace {
    /// Tells the card (host driver), once the memory is zeroed.
    pub fn publish<W: SharedWords + ?Sized>(&self, bar: &W) {
        bar.store_slice(header::DRIVER_MEMORY, &split(self.memory.0));
        bar.store_slice(header::BOUNCE_PAGES, &split(self.bounce.0));
        bar.store_release(header::DRIVER_READY, header::DRIVER_HERE);
    }

    /// What the driver has said, if it has (NIC). Whether there is such memory the NIC must check.
    pub fn load<W: SharedWords + ?Sized>(bar: &W) -> Option<Self> {
        (bar.load_acquire(header::DRIVER_READY) == header::DRIVER_HERE).then(|| Self {
            memory: Ppn(bar.load_pair(header::DRIVER_MEMORY)),
            bounce: Ppn(bar.load_pair(header::BOUNCE_PAGES)),
        })
    }

    /// Whether a card still uses, or may use, the memory of a driver (host driver).
    pub fn is_in_use<W: SharedWords + ?Sized>(bar: &W) -> bool {
        bar.load_acquire(header::DRIVER_READY) != 0
    }

    /// Asks the card to let go of all host memory and to begin anew (host driver that goes, or that finds what an
    /// earlier one has left). The memory may be freed once it is not [in use](Self::is_in_use) any more.
    pub fn withdraw<W: SharedWords + ?Sized>(bar: &W) {
        bar.store_release(header::DRIVER_READY, header::DRIVER_GOES);
    }

    /// Whether the driver wants its memory back (NIC).
    pub fn is_withdrawn<W: SharedWords + ?Sized>(bar: &W) -> bool {
        bar.load_acquire(header::DRIVER_READY) == header::DRIVER_GOES
    }

    /// Says that every access to host memory is over and that there will be none (NIC, which then begins anew).
    ///
    /// The last access comes before the release store of 0, whose reader frees the memory. The header goes first: a driver
    /// that reads 0 here finds no card to attach to before the next firmware has published its own.
    pub fn let_go<W: SharedWords + ?Sized>(bar: &W) {
        bar.store_release(header::MAGIC, 0);
        bar.store_release(header::DRIVER_READY, 0);
    }
}

const _: () = {
    assert!(header::PAGE_SIZE.0 == header::VERSION.0 + 1);
    assert!(header::PAYLOAD.0 == header::VERSION.0 + 2);
    assert!(header::PORTS_NODES.0 == header::VERSION.0 + 3);
    assert!(header::WINDOW_STAGING.0 == header::VERSION.0 + 4);
    assert!(header::PAGE_ROWS.0 == header::VERSION.0 + 5);
    assert!(header::CAPABILITIES.0 == header::VERSION.0 + 6);
    assert!(header::READS_WINDOWS.0 == header::VERSION.0 + 7);
    assert!(header::NOTIFICATION_QUEUE.0 == header::VERSION.0 + 8);
    assert!(header::INCARNATION.0 == header::VERSION.0 + 9);
};
