//! Every size and offset of this version, asserted at compile time: a change of layout cannot happen by accident.
//! A change of a number here also changes [`ABI_VERSION`](crate::ABI_VERSION), `docs/ABI.md` and the golden vectors.

use crate::bar::{BarMap, PAGE_WORDS, header, port};
use crate::geometry::Geometry;
use crate::notification::EVENT_COUNTS;
use crate::shared_map::{SharedMap, status_page};
use crate::units::*;
use crate::{
    bounce, capability, control, descriptor, event, ioctl, page_table, port_area, shared_queue, wire,
};
use static_assertions::{assert_eq_align, assert_eq_size, const_assert, const_assert_eq};

macro_rules! at {
    ($($word:expr => $index:literal),* $(,)?) => { $(const_assert_eq!($word.0, $index);)* };
}

// Units are their numbers.
assert_eq_size!(Vpn, u64);
assert_eq_align!(Vpn, u64);
assert_eq_size!(Ppn, u64);
assert_eq_size!(NodeId, u16);
assert_eq_size!(PortId, u16);
assert_eq_size!(Seq, u32);
assert_eq_size!(WordIndex, u32);

// Sizes, in words.
const_assert_eq!(PAGE_WORDS, 1024);
const_assert_eq!(descriptor::HEAD_WORDS, 16);
const_assert_eq!(descriptor::DESCRIPTOR_WORDS, 48);
const_assert_eq!(descriptor::QUEUE_ENTRIES, 64);
const_assert_eq!(wire::HEADER_WORDS, 20);
const_assert_eq!(event::EVENT_WORDS, 8);
const_assert_eq!(control::CONTROL_WORDS, 32);
const_assert_eq!(capability::CAPABILITY_WORDS, 16);
const_assert_eq!(bounce::RECORD_WORDS, 32);
const_assert_eq!(page_table::SLOT_WORDS, 8);
const_assert_eq!(port_area::AREA_WORDS, 6144);
const_assert_eq!(port_area::ERROR_WORDS, 8);
const_assert_eq!(port_area::REPLY_WORDS, 8);
const_assert_eq!(port::BLOCK_WORDS, 8192);
const_assert!(wire::HEADER_WORDS <= bounce::RECORD_WORDS);

at! {
    header::MAGIC => 0,
    header::VERSION => 1,
    header::PAGE_SIZE => 2,
    header::PAYLOAD => 3,
    header::PORTS_NODES => 4,
    header::WINDOW_STAGING => 5,
    header::PAGE_ROWS => 6,
    header::CAPABILITIES => 7,
    header::READS_WINDOWS => 8,
    header::NOTIFICATION_QUEUE => 9,
    header::INCARNATION => 10,
    header::HASH_KEY => 12,
    header::HOST_EVENT_TAIL => 32,
    header::NIC_EVENT_HEAD => 33,
    header::DRIVER_MEMORY => 40,
    header::BOUNCE_PAGES => 42,
    header::DRIVER_READY => 44,
}
const_assert_eq!(header::MAGIC_VALUE, 0x314D_564E);

at! {
    port::DOORBELL => 0,
    port::WRITE_FENCE => 1,
    port::READ_FENCE => 2,
    port::NOTIFICATION_READ => 3,
    port::ERROR_READ => 4,
    port::TAKEN_FENCE => 5,
    port::WAKE_ON_QUEUE => 6,
    port::QUEUE_FREED => 7,
    port::INTERRUPT_ENABLE => 32,
    port::ACKNOWLEDGED => 1024,
    port::SIGNALLED => 2048,
    port::COMMANDS => 3072,
}
const_assert!(port::INTERRUPT_ENABLE.0 + EVENT_COUNTS / 32 <= port::ACKNOWLEDGED.0);
const_assert!(port::ACKNOWLEDGED.0 + EVENT_COUNTS <= port::SIGNALLED.0);
const_assert!(port::SIGNALLED.0 + EVENT_COUNTS <= port::COMMANDS.0);

at! {
    status_page::SLEEPING => 0,
    status_page::HEARTBEAT => 16,
    status_page::HOST_EVENT_HEAD => 32,
    status_page::NIC_EVENT_TAIL => 33,
    status_page::PEERS => 64,
    status_page::peer(NodeId(3)) => 88,
    status_page::peer_payload(NodeId(3)) => 89,
    status_page::peer_windows(NodeId(3)) => 90,
}

at! {
    port_area::TAKEN => 0,
    port_area::WRITES_DONE => 1,
    port_area::READS_DONE => 2,
    port_area::NOTIFICATION_WRITE => 16,
    port_area::ERROR_WRITE => 17,
    port_area::ERRORS_LOST => 18,
    port_area::PORT_STATE => 32,
    port_area::PORT_GENERATION => 33,
    port_area::PORT_EVENTS => 34,
    port_area::ERRORS => 256,
    port_area::REPLIES => 512,
    port_area::SHADOW_SIGNALS => 1024,
    port_area::NOTIFICATIONS => 2048,
    port_area::QUEUE_RECORDS => 4096,
}
const_assert!(
    port_area::ERRORS.0 + port_area::ERROR_RECORDS * port_area::ERROR_WORDS as u32 <= port_area::REPLIES.0
);
const_assert!(
    port_area::REPLIES.0 + port_area::REPLY_SLOTS as u32 * port_area::REPLY_WORDS as u32
        <= port_area::SHADOW_SIGNALS.0
);
const_assert!(port_area::SHADOW_SIGNALS.0 + EVENT_COUNTS <= port_area::NOTIFICATIONS.0);

// The maps of one geometry, in words (`docs/ABI.md` shows it): the default with four nodes.
const FOUR: Geometry = Geometry {
    version: crate::ABI_VERSION,
    page_size: crate::PAGE_SIZE,
    payload: crate::PAGE_SIZE,
    ports: 64,
    nodes: 4,
    window: 64,
    windows: 64,
    page_rows: 4096,
    capabilities: 1024,
    staging: 64,
    reads: 64,
    notification_queue: 2048,
};
const_assert!(FOUR.validate().is_ok());
const_assert_eq!(FOUR.bounce_slots(), 384);
const_assert_eq!(FOUR.ring_entries(), 1024);
const_assert!(port_area::NOTIFICATIONS.0 + FOUR.notification_queue <= port_area::QUEUE_RECORDS.0);
const_assert!(
    port_area::QUEUE_RECORDS.0 + port_area::RECORDS_OF_QUEUE * shared_queue::RECORD_WORDS
        <= port_area::AREA_WORDS
);
const BAR: BarMap = BarMap::new(&FOUR);
at! {
    BAR.host_events => 1024,
    BAR.ports => 9216,
    BAR.port(PortId(1)) => 17_408,
    BAR.capabilities => 533_504,
    BAR.leases => 549_888,
    BAR.page_table => 558_080,
    BAR.counters => 623_616,
}
const_assert_eq!(BAR.words, 623_616 + 2048);
const SHARED: SharedMap = SharedMap::new(&FOUR);
at! {
    SHARED.nic_events => 1024,
    SHARED.control => 9216,
    SHARED.control_slot(1) => 9248,
    SHARED.bounce_records => 11_264,
    SHARED.bounce_record(BounceId(1)) => 11_296,
    SHARED.port_areas => 23_552,
    SHARED.port_area(PortId(1)) => 29_696,
}
const_assert_eq!(SHARED.words, 23_552 + 64 * 6144);

// Calls: direction, size, letter, number.
const_assert_eq!(ioctl::QUERY, 0xC040_F500);
const_assert_eq!(ioctl::REGISTER, 0xC040_F501);
const_assert_eq!(ioctl::ADOPT, 0xC020_F502);
const_assert_eq!(ioctl::DISOWN, 0xC010_F503);
const_assert_eq!(ioctl::EXPORT, 0xC088_F504);
const_assert_eq!(ioctl::UNEXPORT, 0xC010_F505);
const_assert_eq!(ioctl::IMPORT, 0xC088_F506);
const_assert_eq!(ioctl::UNIMPORT, 0xC018_F507);
const_assert_eq!(ioctl::WAIT, 0xC020_F508);
const_assert_eq!(ioctl::STAT, 0xC018_F509);
const_assert_eq!(ioctl::WAKE, 0x0000_F50A);
const_assert_eq!(ioctl::NUDGE, 0x0000_F50B);
