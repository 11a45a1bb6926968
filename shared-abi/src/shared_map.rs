//! Map of the driver's memory that the NIC writes to, in 32-bit words.
//!
//! ```text
//! status page(s) | NIC event ring | control slots | bounce records | port areas
//! ```
//!
//! This and the bounce pages are all the memory that NetVM keeps resident; no application page
//! is. Part of it (the status pages, one port's area) is mapped into applications, read-only but
//! for nothing: applications write only to the BAR.

use crate::bar::PAGE_WORDS;
use crate::bounce::RECORD_WORDS;
use crate::control::{CONTROL_SLOTS, CONTROL_WORDS};
use crate::event::EVENT_WORDS;
use crate::geometry::Geometry;
use crate::port_area::AREA_WORDS;
use crate::units::{BounceId, NodeId, PortId, WordIndex};

/// Words of the status pages.
pub mod status_page {
    use crate::units::{NodeId, WordIndex};

    /// NIC-owned: 1 while the NIC sleeps and wants a wake-up call after a doorbell.
    pub const SLEEPING: WordIndex = WordIndex(0);
    /// NIC-owned: counts passes of the NIC's loop; stands still when the card hangs.
    pub const HEARTBEAT: WordIndex = WordIndex(16);
    /// NIC-owned: host events that the NIC has taken.
    pub const HOST_EVENT_HEAD: WordIndex = WordIndex(32);
    /// NIC-owned: entries of the NIC event ring written.
    pub const NIC_EVENT_TAIL: WordIndex = WordIndex(33);
    /// NIC-owned: [`PEER_WORDS`] a node; see [`peer`].
    pub const PEERS: WordIndex = WordIndex(64);
    /// Words of a node.
    pub const PEER_WORDS: u32 = 8;

    /// The words of a node. First: the incarnation of the link (0: down).
    #[must_use]
    pub const fn peer(node: NodeId) -> WordIndex {
        PEERS.plus(PEER_WORDS * node.0 as u32)
    }

    /// Payload of the path to a node in bytes.
    #[must_use]
    pub const fn peer_payload(node: NodeId) -> WordIndex {
        peer(node).plus(1)
    }

    /// Where the windows of a link stood when the NIC last had time to say so, for an observer: the next
    /// sequence number to be sent, the lowest that the other side has not acknowledged, and the lowest that this
    /// side has not finished with.
    #[must_use]
    pub const fn peer_windows(node: NodeId) -> WordIndex {
        peer(node).plus(2)
    }
}

/// Where the parts of one driver's shared memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMap {
    /// Entries of the NIC event ring.
    pub nic_events: WordIndex,
    /// Slots with the text of outgoing control messages.
    pub control: WordIndex,
    /// Bounce records.
    pub bounce_records: WordIndex,
    /// First port area.
    pub port_areas: WordIndex,
    /// Words in all.
    pub words: u32,
}

const fn pages(words: u32) -> u32 {
    words.next_multiple_of(PAGE_WORDS)
}

impl SharedMap {
    /// The map that follows from a (validated) geometry.
    #[must_use]
    pub const fn new(geometry: &Geometry) -> Self {
        let nic_events = pages(status_page::peer(NodeId(geometry.nodes)).0);
        let control = nic_events + pages(geometry.ring_entries() * EVENT_WORDS as u32);
        let bounce_records = control + pages(CONTROL_SLOTS as u32 * CONTROL_WORDS as u32);
        let port_areas = bounce_records + pages(geometry.bounce_slots() * RECORD_WORDS as u32);
        Self {
            nic_events: WordIndex(nic_events),
            control: WordIndex(control),
            bounce_records: WordIndex(bounce_records),
            port_areas: WordIndex(port_areas),
            words: port_areas + geometry.ports as u32 * AREA_WORDS,
        }
    }

    /// Start of a port's area.
    #[must_use]
    pub const fn port_area(&self, port: PortId) -> WordIndex {
        self.port_areas.plus(port.0 as u32 * AREA_WORDS)
    }

    /// Start of a bounce record.
    #[must_use]
    pub const fn bounce_record(&self, bounce: BounceId) -> WordIndex {
        self.bounce_records.plus(bounce.0 * RECORD_WORDS as u32)
    }

    /// Start of a slot for an outgoing control message.
    #[must_use]
    pub const fn control_slot(&self, slot: u16) -> WordIndex {
        self.control.plus(slot as u32 * CONTROL_WORDS as u32)
    }
}
