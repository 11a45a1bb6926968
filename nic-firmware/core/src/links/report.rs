//! What a link shows of itself, for a program that displays the state of a card. No path of the NIC asks.

use super::{Links, State};
use netvm_abi::storage::Storage;
use netvm_abi::{NodeId, Stamp};

/// A link at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// It works.
    pub up: bool,
    /// Frames between the nodes may be lost, and are sent again.
    pub lossy: bool,
    /// Slots of the other node's window that messages have, sent or about to be.
    pub window_used: u32,
    /// Messages that may be on their way to the other node: the smaller one of both nodes' windows.
    pub window: u32,
    /// Sequence number of the next message to the other node.
    pub next_seq: u32,
    /// Lowest sequence number from it that has not landed here.
    pub waits_for_seq: u32,
    /// Requests and answers that have left and are not known to have been received. 0 where nothing is lost.
    pub unconfirmed: u32,
    /// Requests that may be on the wire at once. 0 where nothing is lost: as many as the window.
    pub congestion_window: u32,
    /// Read slots that wait for answers of the other node.
    pub reads: u16,
    /// Messages and answers that were sent again in this life of the link.
    pub retransmitted: u32,
    /// The smoothed round trip in nanoseconds; measured where frames may be lost.
    pub round_trip: Option<u64>,
}

impl<S: Storage> Links<S> {
    /// What a link shows of itself; nothing of a node that there cannot be.
    pub(crate) fn report(&self, id: NodeId) -> Option<LinkReport> {
        let peer = self.get(id)?;
        if peer.state == State::Down {
            return Some(LinkReport {
                window: peer.window(),
                ..LinkReport::default()
            });
        }
        let resend = &peer.resend;
        let unconfirmed = resend.answers_out() + peer.credits.next().since(resend.requests);
        Some(LinkReport {
            up: peer.is_up(),
            lossy: peer.lossy,
            window_used: peer.credits.in_flight() + peer.credits.reserved(),
            window: peer.window(),
            next_seq: peer.credits.next().0,
            waits_for_seq: peer.sequence.lsn().0,
            unconfirmed: if peer.lossy { unconfirmed } else { 0 },
            congestion_window: if peer.lossy { resend.congestion.window() } else { 0 },
            reads: peer.reads,
            retransmitted: resend.resent,
            round_trip: resend.round_trip().map(|ticks| u64::from(ticks) * Stamp::TICK),
        })
    }
}
