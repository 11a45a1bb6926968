//! What the NIC says, and what the platform hears of it.
use crate::attach::{CardFailure, Host};
use crate::platform::Platform;
use netvm_abi::control::Grant;
use netvm_abi::storage::Storage;
use netvm_abi::{Incarnation, Nanos, NodeId, PortId, Status, Token};

/// What the platform must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A port has work: wake its paging worker, which calls `work_next` until nothing is left.
    Work(PortId),
    /// An import has ended.
    Imported {
        /// The importing port.
        port: PortId,
        /// From [`Host::import`]; names the import until `unimport` if it was granted.
        import: Token,
        /// The grant, or why there is none.
        result: Result<Grant, Status>,
    },
    /// The exporter has revoked an import, or its node is gone. `unimport` it.
    ImportRevoked {
        /// The importing port.
        port: PortId,
        /// The import.
        import: Token,
    },
    /// Something that a `*_step` may wait for has happened: step them.
    Progress,
    /// The link to a peer is up.
    PeerUp {
        /// The peer.
        peer: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// The link to a peer is down.
    PeerDown {
        /// The peer.
        peer: NodeId,
    },
    /// The card is dead (said once): stop its bus mastering, then `card_stopped`.
    CardDead(CardFailure),
}

impl<S: Storage> Host<S> {
    /// Takes the NIC's events until one concerns the platform. Call it after an interrupt (and
    /// after [`Self::next_deadline`]) until it returns nothing.
    pub fn poll<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> Option<Notice> {
        let _ = (platform.bar(), now);
        None
    }

    /// When `poll` must be called again even if no interrupt comes; [`Nanos::MAX`]: never.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Asks the NIC to keep a link to a peer.
    pub fn connect<P: Platform>(&mut self, platform: &mut P, peer: NodeId) {
        let _ = (platform.bar(), peer);
    }

    /// The incarnation of a peer's link, if it is up.
    #[must_use]
    pub fn peer(&self, peer: NodeId) -> Option<Incarnation> {
        let _ = peer;
        None
    }
}
