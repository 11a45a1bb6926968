//! Map of NIC memory as the host sees it (its BAR), in 32-bit words.
//!
//! ```text
//! header | host event ring | port blocks | capability table | lease table | page table | counters
//! ```
//!
//! Each part starts on a page, so that a driver can map exactly one port's block (and nothing of
//! its neighbours) into one process.

use crate::capability::CAPABILITY_WORDS;
use crate::counter_table::TABLE_WORDS;
use crate::descriptor::{DESCRIPTOR_WORDS, QUEUE_ENTRIES};
use crate::event::EVENT_WORDS;
use crate::geometry::Geometry;
use crate::lease::LEASE_WORDS;
use crate::page_table::ROW_WORDS;
use crate::units::{PortId, WordIndex};
use static_assertions::const_assert;

/// Words in a page.
pub const PAGE_WORDS: u32 = crate::PAGE_SIZE / 4;

/// Words of the header page.
pub mod header {
    use crate::units::WordIndex;

    /// `"NVM1"`: the firmware is up. Written last.
    pub const MAGIC: WordIndex = WordIndex(0);
    /// The value of [`MAGIC`].
    pub const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"NVM1");
    /// ABI version (low half) and node (high half).
    pub const VERSION: WordIndex = WordIndex(1);
    /// Page size in bytes.
    pub const PAGE_SIZE: WordIndex = WordIndex(2);
    /// Largest payload in bytes.
    pub const PAYLOAD: WordIndex = WordIndex(3);
    /// Ports (low half), nodes (high half).
    pub const PORTS_NODES: WordIndex = WordIndex(4);
    /// Window (low half), staging buffers (high half).
    pub const WINDOW_STAGING: WordIndex = WordIndex(5);
    /// Rows of the page table.
    pub const PAGE_ROWS: WordIndex = WordIndex(6);
    /// Entries of the capability table.
    pub const CAPABILITIES: WordIndex = WordIndex(7);
    /// Round trips in flight (low half), windows in each direction (high half).
    pub const READS_WINDOWS: WordIndex = WordIndex(8);
    /// Entries of each notification queue.
    pub const NOTIFICATION_QUEUE: WordIndex = WordIndex(9);
    /// Incarnation of this NIC, from which link incarnations are made.
    pub const INCARNATION: WordIndex = WordIndex(10);
    /// Key of the page hash, four words; the host hashes for inserts, the NIC for look-ups.
    pub const HASH_KEY: WordIndex = WordIndex(12);
    /// Tail of the host event ring: entries written. Host-owned.
    pub const HOST_EVENT_TAIL: WordIndex = WordIndex(32);
    /// Head of the NIC event ring: entries that the host has taken. Host-owned.
    pub const NIC_EVENT_HEAD: WordIndex = WordIndex(33);
    /// Bus page number of the driver's memory ([`shared_map`](crate::shared_map)), two words. Host-owned.
    pub const DRIVER_MEMORY: WordIndex = WordIndex(40);
    /// Bus page number of the first bounce page, two words; the others follow it. Host-owned.
    pub const BOUNCE_PAGES: WordIndex = WordIndex(42);
    /// [`DRIVER_HERE`]: the driver has said where its memory is; written last. [`DRIVER_GOES`]: it wants that memory
    /// back. The NIC writes 0 alone, when it has let go ([`DriverPlace`](crate::attach::DriverPlace)).
    pub const DRIVER_READY: WordIndex = WordIndex(44);
    /// A value of [`DRIVER_READY`].
    pub const DRIVER_HERE: u32 = 1;
    /// A value of [`DRIVER_READY`].
    pub const DRIVER_GOES: u32 = 2;
}

/// Words of a port block, relative to its start.
pub mod port {
    use crate::units::WordIndex;

    /// Doorbell: commands posted so far, modulo 2^32. App-owned.
    pub const DOORBELL: WordIndex = WordIndex(0);
    /// The number of writes of which the app wants to hear exactly. App-owned.
    pub const WRITE_FENCE: WordIndex = WordIndex(1);
    /// The same for reads, flushes and atomics. App-owned.
    pub const READ_FENCE: WordIndex = WordIndex(2);
    /// Notification queue entries that the app has taken. App-owned.
    pub const NOTIFICATION_READ: WordIndex = WordIndex(3);
    /// Error records that the app has taken. App-owned.
    pub const ERROR_READ: WordIndex = WordIndex(4);
    /// Commands taken of which the app wants to hear exactly (a full queue). App-owned.
    pub const TAKEN_FENCE: WordIndex = WordIndex(5);
    /// 1: interrupt for every new entry of the notification queue and every error. App-owned.
    pub const WAKE_ON_QUEUE: WordIndex = WordIndex(6);
    /// Places of the port's [shared queue](crate::shared_queue) given back. App-owned.
    pub const QUEUE_FREED: WordIndex = WordIndex(7);
    /// Interrupt enable bits of notifications 0..1024, 32 a word. App-owned.
    pub const INTERRUPT_ENABLE: WordIndex = WordIndex(32);
    /// Acknowledge counts of notifications 0..1024 (thesis 6.1.2). App-owned.
    pub const ACKNOWLEDGED: WordIndex = WordIndex(1024);
    /// Signal counts of notifications 0..1024. NIC-owned, readable by the app.
    pub const SIGNALLED: WordIndex = WordIndex(2048);
    /// The command queue. App-owned.
    pub const COMMANDS: WordIndex = WordIndex(3072);
    /// Words of a port block: 8 pages.
    pub const BLOCK_WORDS: u32 = 8 * super::PAGE_WORDS;
}

const_assert!(port::COMMANDS.0 + QUEUE_ENTRIES * DESCRIPTOR_WORDS as u32 <= port::BLOCK_WORDS);
const_assert!(DESCRIPTOR_WORDS as u32 * QUEUE_ENTRIES == 3 * PAGE_WORDS);

const fn pages(words: u32) -> u32 {
    words.next_multiple_of(PAGE_WORDS)
}

/// Where the parts of one NIC's memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarMap {
    /// Entries of the host event ring.
    pub host_events: WordIndex,
    /// First port block.
    pub ports: WordIndex,
    /// Capability table.
    pub capabilities: WordIndex,
    /// Lease table: a row for each capability.
    pub leases: WordIndex,
    /// Page table.
    pub page_table: WordIndex,
    /// What the NIC has counted ([`counter_table`](crate::counter_table)).
    pub counters: WordIndex,
    /// Words in all.
    pub words: u32,
}

impl BarMap {
    /// The map that follows from a (validated) geometry.
    #[must_use]
    pub const fn new(geometry: &Geometry) -> Self {
        let host_events = PAGE_WORDS;
        let ports = host_events + pages(geometry.ring_entries() * EVENT_WORDS as u32);
        let capabilities = ports + geometry.ports as u32 * port::BLOCK_WORDS;
        let leases = capabilities + pages(geometry.capabilities * CAPABILITY_WORDS as u32);
        let page_table = leases + pages(geometry.capabilities * LEASE_WORDS as u32);
        let counters = page_table + pages(geometry.page_rows * ROW_WORDS);
        Self {
            host_events: WordIndex(host_events),
            ports: WordIndex(ports),
            capabilities: WordIndex(capabilities),
            leases: WordIndex(leases),
            page_table: WordIndex(page_table),
            counters: WordIndex(counters),
            words: counters + TABLE_WORDS,
        }
    }

    /// Start of a port's block.
    #[must_use]
    pub const fn port(&self, port: PortId) -> WordIndex {
        self.ports.plus(port.0 as u32 * port::BLOCK_WORDS)
    }
}
