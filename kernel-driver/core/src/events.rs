//! What the NIC says, and what the platform hears of it.
//!
//! After an interrupt, and when [`Host::next_deadline`](crate::Host::next_deadline) has come, the platform calls
//! [`Host::poll`](crate::Host::poll) until it returns nothing.

use crate::card::CardFailure;
use netvm_abi::control::Grant;
use netvm_abi::{Incarnation, NodeId, PortId, Status, Token};

/// What the platform must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A port has work: wake its paging worker, which calls `work_next` until nothing is left.
    Work(PortId),
    /// An import has ended.
    Imported {
        /// The importing port.
        port: PortId,
        /// From [`Host::import`](crate::Host::import); names the import until `unimport` if it was granted.
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
    /// The card is dead: stop its bus mastering, then `card_stopped`. Said once, and not at all if the platform has
    /// stopped it already.
    CardDead(CardFailure),
}
