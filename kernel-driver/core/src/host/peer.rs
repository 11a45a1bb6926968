//! Links: what a lost or restarted peer ends.

use super::Host;
use crate::events::Notice;
use crate::platform::Platform;
use netvm_abi::event::HostEvent;
use netvm_abi::storage::Storage;
use netvm_abi::{Incarnation, Nanos, NodeId};

/// Grants taken back in one go.
const SLICE: u32 = 64;
/// Incarnation in a `PeerLost` whose peer has never answered.
const UNANSWERED: Incarnation = Incarnation(0);

impl<S: Storage> Host<S> {
    /// Asks the NIC to keep a link to a peer, or to this node itself; asking twice does no harm.
    pub fn connect<P: Platform>(&mut self, platform: &mut P, peer: NodeId) {
        let Some(entry) = self.peers.get_mut(peer.index()) else {
            return;
        };
        if !entry.connected {
            entry.connected = true;
            self.post(platform, &HostEvent::PeerConnect { peer });
        }
    }

    /// The incarnation of a peer's link, if it is up.
    #[must_use]
    pub fn peer(&self, peer: NodeId) -> Option<Incarnation> {
        self.peers.get(peer.index())?.up
    }

    pub(crate) fn peer_up(&mut self, peer: NodeId, incarnation: Incarnation, now: Nanos) -> Option<Notice> {
        let entry = self.peers.get_mut(peer.index())?;
        entry.up = Some(incarnation);
        self.counters.peers_up += 1;
        // Imports that wait for the link ask at once.
        self.peer_imports_ask(peer, now);
        Some(Notice::PeerUp { peer, incarnation })
    }

    /// A peer's old incarnation is over, because of a new one (`lost`: or because the link failed).
    pub(crate) fn peer_over<P: Platform>(
        &mut self,
        platform: &mut P,
        peer: NodeId,
        incarnation: Incarnation,
        lost: bool,
        now: Nanos,
    ) -> Option<Notice> {
        let entry = self.peers.get_mut(peer.index())?;
        entry.up = None;
        if incarnation == UNANSWERED {
            // The NIC has given up greeting; the next import that needs the link asks again.
            entry.connected = false;
        }
        self.releasing += u32::from(entry.releasing.replace(incarnation).is_none());
        if lost {
            self.counters.peers_lost += 1;
        } else {
            self.counters.peers_reset += 1;
        }
        self.drop_work_of(platform, peer, now);
        if peer != self.node {
            self.peer_imports_lost(peer, now);
        }
        self.release_peer(platform, peer, now);
        Some(Notice::PeerDown { peer })
    }

    /// Goes on with letting go of a peer's old incarnation. What is left waits for a worker, or for its next turn.
    fn release_peer<P: Platform>(&mut self, platform: &mut P, peer: NodeId, now: Nanos) {
        self.ready.remove(&mut self.peers, peer.0.into());
        // This node's own ports live on when the link to itself begins anew, and so do their grants.
        let slice = if peer == self.node { 0 } else { SLICE };
        for _ in 0..slice {
            let Some(entry) = self.peers.get(peer.index()) else {
                return;
            };
            if entry.releasing.is_none() {
                return;
            }
            let Some(grant) = entry.grants.first() else {
                break;
            };
            self.retract_grant(platform, grant, true);
        }
        self.request_barrier(platform, now);
        let Some(entry) = self.peers.get_mut(peer.index()) else {
            return;
        };
        if entry.orphans > 0 {
            return;
        }
        if !entry.grants.is_empty() && peer != self.node {
            self.ready.push_back(&mut self.peers, peer.0.into());
            return;
        }
        if let Some(incarnation) = entry.releasing.take() {
            self.releasing = self.releasing.saturating_sub(1);
            self.counters.peers_released += 1;
            self.post(platform, &HostEvent::PeerReleased { peer, incarnation });
        }
    }

    /// A worker has put down a message of a peer's old incarnation. After the last one it goes on with letting go of that
    /// itself: no event of the card may come any more, so no poll would. Where grants are left, a slice of them has just been
    /// taken back, and the answer to its barrier makes the driver poll.
    pub(crate) fn orphan_ends<P: Platform>(&mut self, platform: &mut P, peer: NodeId, now: Nanos) {
        let Some(entry) = self.peers.get_mut(peer.index()) else {
            return;
        };
        entry.orphans = entry.orphans.saturating_sub(1);
        if entry.orphans == 0 && entry.releasing.is_some() {
            self.release_peer(platform, peer, now);
        }
    }

    /// Lets go of a slice of the peer whose turn it is; true while there is more to do.
    pub(crate) fn release_first<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> bool {
        let Some(peer) = self.ready.first() else {
            return false;
        };
        self.release_peer(platform, NodeId(peer as u16), now);
        !self.ready.is_empty()
    }
}
