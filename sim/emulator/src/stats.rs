//! What happened on a node, as numbers that can be printed and compared.

use std::collections::BTreeMap;

use netvm_nic::Counters;
use serde::Serialize;

use crate::emulator::EmulatedParts;
use crate::network::Network;
use crate::vm::PagerStats;

/// One node's counters, all since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStats {
    /// The node.
    pub node: usize,
    /// Payloads that went straight into an application page.
    pub zero_copy: u64,
    /// Payloads that were bounced: page not there, read-only, or of another segment.
    pub bounced: u64,
    /// Notifications delivered, of both kinds.
    pub notifications: u64,
    /// Messages thrown away; only a failed link does that.
    pub dropped: u64,
    /// Messages sent again; this card never does.
    pub retransmitted: u64,
    /// Pages taken away to make room.
    pub evictions: u64,
    /// Bytes of bounce pages.
    pub bounce_bytes: u64,
    /// How many pages may be resident.
    pub resident_limit: u64,
    /// Pages in the card's table now.
    pub mapped_pages: u64,
    /// Frames this node has put on the wire.
    pub frames_sent: u64,
    /// Their bytes, without Ethernet, IP and UDP headers.
    pub bytes_sent: u64,
    /// Bytes that DMA moved to and from application pages.
    pub dma_page_bytes: u64,
    /// The pager.
    pub pager: PagerStats,
    /// Every counter of the NIC core.
    pub nic: BTreeMap<String, u64>,
    /// Every counter of the host core.
    pub host: BTreeMap<String, u64>,
}

impl NodeStats {
    pub(crate) fn take(parts: &EmulatedParts, network: &Network) -> Self {
        let node = parts.card.node.index();
        let card = network.stats(node);
        let counters: &Counters = &card.counters;
        let pager = parts.memory.pager.stats();
        let (mapped, host) = parts
            .host
            .with(|host, _, _| (host.mapped_pages(), *host.counters()));
        Self {
            node,
            zero_copy: counters.zero_copy,
            bounced: counters.bounced_not_found + counters.bounced_read_only + counters.bounced_segment,
            notifications: counters.notifications_delivered + counters.one_shot_delivered,
            dropped: counters.dropped,
            retransmitted: counters.retransmitted,
            evictions: pager.evictions,
            bounce_bytes: parts.card.bounce.bytes(),
            resident_limit: u64::from(parts.memory.pager.limit()),
            mapped_pages: u64::from(mapped),
            frames_sent: card.frames_sent,
            bytes_sent: card.bytes_sent,
            dma_page_bytes: card.page_bytes,
            pager,
            nic: counters
                .iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            host: host
                .iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }
}
