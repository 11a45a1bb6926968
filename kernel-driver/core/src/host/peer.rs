//! Links: what a lost or restarted peer ends.

use super::Host;
use crate::events::Notice;
use crate::peers::Peer;
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

    /// Goes on with letting go of a peer's old incarnation.
    pub(crate) fn release_peer<P: Platform>(&mut self, platform: &mut P, peer: NodeId, now: Nanos) {
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
        if entry.orphans > 0 || (!entry.grants.is_empty() && peer != self.node) {
            return;
        }
        if let Some(incarnation) = entry.releasing.take() {
            self.releasing = self.releasing.saturating_sub(1);
            self.counters.peers_released += 1;
            self.post(platform, &HostEvent::PeerReleased { peer, incarnation });
        }
    }

    /// Goes on with all peers whose grants were too many for one go; true while there are more.
    pub(crate) fn release_peers<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> bool {
        let mut more = false;
        for peer in 0..self.peers.len() {
            if self.releasing == 0 {
                break;
            }
            let ready = |entry: &Peer| entry.releasing.is_some() && entry.orphans == 0;
            if self.peers.get(peer).is_some_and(ready) {
                self.release_peer(platform, NodeId(peer as u16), now);
                more |= self.peers.get(peer).is_some_and(ready);
            }
        }
        more
    }
}
