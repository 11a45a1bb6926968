//! Links and incarnations (promise P6).
//!
//! A peer that restarts has a new incarnation. Before the NIC greets it, the host lets go of the old
//! one: bounced messages that wait are dropped, those in a worker's hands are waited for (their
//! bounce pages must not be written again while they are copied), grants are taken back, imports are
//! void; then `PeerReleased`. Read replies of the peer that wait in bounce pages belong to reads of
//! this node; they are ended one by one.

use crate::lists::{Links, List, linked};
use crate::tally::WorkTally;
use netvm_abi::Incarnation;

#[derive(Debug)]
pub(crate) struct Peer {
    /// Its incarnation, while the link is up.
    pub(crate) up: Option<Incarnation>,
    /// The NIC was asked to keep a link.
    pub(crate) connected: bool,
    /// The incarnation whose `PeerReset` or `PeerLost` is not answered yet.
    pub(crate) releasing: Option<Incarnation>,
    /// The window that its last bounced message stood in. The card takes no window from a link whose message is here, so all of the
    /// node's messages that are here stand in it.
    pub(crate) window: u16,
    /// Dropped messages of it in workers' hands.
    pub(crate) orphans: u32,
    /// Grants that it holds.
    pub(crate) grants: List<1>,
    /// Imports from it.
    pub(crate) imports: List<1>,
    pub(crate) tally: WorkTally,
    /// Its place among the peers that may be let go of.
    of_ready: Links,
}

linked!(Peer: 0 => of_ready);

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            up: None,
            connected: false,
            releasing: None,
            window: 0,
            orphans: 0,
            grants: List::EMPTY,
            imports: List::EMPTY,
            tally: WorkTally::default(),
            of_ready: Links::NONE,
        }
    }

    /// After a reset of this node's own card.
    pub(crate) const fn forget(&mut self) {
        self.up = None;
        self.connected = false;
        self.releasing = None;
        self.of_ready = Links::NONE;
    }
}
