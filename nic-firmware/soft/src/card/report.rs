//! What a card shows of its links.

use std::net::SocketAddr;

use netvm_abi::NodeId;
use netvm_nic::LinkReport;

use super::SoftCard;
use crate::shm::wires::Carrier;

/// A link, as the card sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// The other node; this one, for its link to itself.
    pub node: NodeId,
    /// What carries its messages.
    pub carrier: Carrier,
    /// Where its datagrams go to.
    pub address: Option<SocketAddr>,
    /// Whether its messages are encrypted.
    pub encrypted: bool,
    /// Messages that found no room in its ring.
    pub waiting: u32,
    /// Bytes of memory that its rings take.
    pub ring_bytes: u64,
    /// What the core says.
    pub report: LinkReport,
}

/// Node numbers that one look goes through: it has the card's turn meanwhile.
const LOOK: u16 = 1024;

impl SoftCard {
    /// Links to nodes from `from` on, at most so many, and the node to go on with.
    #[must_use]
    pub fn links(&self, from: NodeId, most: usize) -> (Vec<LinkStats>, Option<NodeId>) {
        let end = from.0.saturating_add(LOOK).min(self.nodes);
        self.visit(|core| {
            let mut found = Vec::with_capacity(most);
            for node in (from.0..end).map(NodeId) {
                let way = core.board.wire.way(node);
                let report = core.nic.link_report(node).unwrap_or_default();
                if way.carrier == Carrier::None && !report.up {
                    continue;
                }
                if found.len() == most {
                    return (found, Some(node));
                }
                found.push(LinkStats {
                    node,
                    carrier: way.carrier,
                    address: way.address,
                    encrypted: way.encrypted,
                    waiting: way.waiting,
                    ring_bytes: way.ring_bytes,
                    report,
                });
            }
            (found, (end < self.nodes).then_some(NodeId(end)))
        })
    }
}
