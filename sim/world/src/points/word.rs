//! Kinds of shared words.

use crate::words::Space;
use netvm_abi::bar::{BarMap, header, port as block};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::{Geometry, PortId, WordIndex, port_area as area};
use std::fmt;

/// A word, as far as points tell words apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Word {
    /// The port that it belongs to, if it belongs to one.
    pub(crate) port: Option<PortId>,
    /// What is kept there.
    pub(crate) kind: &'static str,
}

/// The first word of each kind in a port's block, in order.
const BLOCK: [(WordIndex, &str); 12] = [
    (block::DOORBELL, "doorbell"),
    (block::WRITE_FENCE, "write fence"),
    (block::READ_FENCE, "read fence"),
    (block::NOTIFICATION_READ, "notifications read"),
    (block::ERROR_READ, "errors read"),
    (block::TAKEN_FENCE, "taken fence"),
    (block::WAKE_ON_QUEUE, "wake on queue"),
    (block::QUEUE_FREED, "queue freed"),
    (block::INTERRUPT_ENABLE, "interrupt enable"),
    (block::ACKNOWLEDGED, "acknowledged"),
    (block::SIGNALLED, "signalled"),
    (block::COMMANDS, "command"),
];

/// The same in a port's area.
const AREA: [(WordIndex, &str); 14] = [
    (area::TAKEN, "taken"),
    (area::WRITES_DONE, "writes done"),
    (area::READS_DONE, "reads done"),
    (area::NOTIFICATION_WRITE, "notifications written"),
    (area::ERROR_WRITE, "errors written"),
    (area::ERRORS_LOST, "errors lost"),
    (area::PORT_STATE, "port state"),
    (area::PORT_GENERATION, "port generation"),
    (area::PORT_EVENTS, "port events"),
    (area::ERRORS, "error"),
    (area::REPLIES, "reply"),
    (area::SHADOW_SIGNALS, "shadow signals"),
    (area::NOTIFICATIONS, "notification"),
    (area::QUEUE_RECORDS, "queue record"),
];

/// The last kind that begins at or before a word.
fn kind(table: &[(WordIndex, &'static str)], at: WordIndex) -> &'static str {
    let past = table.iter().rev().find(|(first, _)| first.0 <= at.0);
    past.map_or("word", |&(_, kind)| kind)
}

/// The port whose part of a space a word is in, if each has `each` words from `first` on.
fn in_port(geometry: &Geometry, first: WordIndex, each: u32, at: WordIndex) -> Option<(PortId, WordIndex)> {
    let past = at.0.checked_sub(first.0)?;
    let port = u16::try_from(past / each).ok()?;
    (port < geometry.ports).then_some((PortId(port), WordIndex(past % each)))
}

impl Word {
    /// What a node of this geometry keeps there.
    pub(crate) fn find(
        geometry: &Geometry,
        (bar, shared): (&BarMap, &SharedMap),
        (space, at): (Space, WordIndex),
    ) -> Self {
        let (first, each) = match space {
            Space::Bar => (bar.ports, block::BLOCK_WORDS),
            Space::Shared => (shared.port_areas, area::AREA_WORDS),
        };
        if let Some((port, word)) = in_port(geometry, first, each, at) {
            let kind = match space {
                Space::Bar => kind(&BLOCK, word),
                Space::Shared => kind(&AREA, word),
            };
            return Self {
                port: Some(port),
                kind,
            };
        }
        let mut table = match space {
            Space::Bar => vec![
                (WordIndex(0), "header"),
                (header::HOST_EVENT_TAIL, "tail of host events"),
                (header::NIC_EVENT_HEAD, "head of card events"),
                (header::DRIVER_MEMORY, "driver"),
                (bar.host_events, "host event"),
                (bar.capabilities, "capability"),
                (bar.page_table, "page table"),
                (bar.counters, "counter"),
            ],
            Space::Shared => vec![
                (status_page::SLEEPING, "sleeping"),
                (status_page::HEARTBEAT, "heartbeat"),
                (status_page::HOST_EVENT_HEAD, "head of host events"),
                (status_page::NIC_EVENT_TAIL, "tail of card events"),
                (status_page::PEERS, "link state"),
                (shared.nic_events, "card event"),
                (shared.control, "control message"),
                (shared.bounce_records, "bounce record"),
            ],
        };
        table.sort_by_key(|(first, _)| first.0);
        Self {
            port: None,
            kind: kind(&table, at),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "\"{}\" of port {port}", self.kind),
            None => write!(f, "\"{}\"", self.kind),
        }
    }
}
