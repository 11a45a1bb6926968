//! What lies in the card's memory: its header, capabilities and page slots.

use crate::SECRET;
use crate::common::dump;
use crate::common::{Golden, shared};
use netvm_abi::attach::{CardHeader, DriverPlace};
use netvm_abi::bar::{BarMap, header};
use netvm_abi::capability::{CAPABILITY_WORDS, Capability};
use netvm_abi::control::Modes;
use netvm_abi::lease::{LEASE_WORDS, Lease, Terms, lease_at};
use netvm_abi::page_lock;
use netvm_abi::page_lock::{Clear, PageUse, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable, SLOT_WORDS};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use std::sync::atomic::AtomicU32;

#[test]
fn capabilities() {
    let mut golden = Golden::read("capability");
    let capability = Capability {
        port: PortId(7),
        modes: Modes::READ | Modes::WRITE | Modes::NOTIFY,
        segment: SegmentId(0x21),
        holder: NodeId(2),
        holder_port: PortId(3),
        start: VirtAddr(0x7f12_3456_0010),
        end: VirtAddr(0x7f12_3458_0001),
        secret: SECRET,
        notify_first: NotificationId(1),
        notify_last: NotificationId(1023),
        expires: Nanos(0x0102_0304_0506_0708),
        queue: QueueShape {
            entry: 9,
            number: 300,
        },
    };
    let bar = shared(3 * CAPABILITY_WORDS, 0);
    let bar = &bar[..];
    let at = netvm_abi::capability::capability_at(WordIndex(0), CapabilitySlot(1));
    capability.publish(bar, at);
    assert_eq!(
        dump::<CAPABILITY_WORDS>(bar, at.index()),
        golden.take_words("valid")
    );
    assert_eq!(Capability::load(bar, at), Some(capability));
    Capability::retract(bar, at);
    assert_eq!(
        dump::<CAPABILITY_WORDS>(bar, at.index()),
        golden.take_words("retracted")
    );
    assert_eq!(Capability::load(bar, at), None);
    golden.end();
}

#[test]
fn leases() {
    let mut golden = Golden::read("lease");
    let bar = shared(2 * CAPABILITY_WORDS + 2 * LEASE_WORDS, 0);
    let bar = &bar[..];
    let tables = (WordIndex(0), WordIndex(2 * CAPABILITY_WORDS as u32));
    let (slot, generation) = (CapabilitySlot(1), Generation(5));
    let row = lease_at(tables.1, slot);
    let terms = Terms {
        generation,
        duration: Nanos::from_millis(50),
        longest: Nanos::from_millis(1000),
    };
    terms.publish(bar, row);
    assert_eq!(dump::<LEASE_WORDS>(bar, row.index()), golden.take_words("given"));
    let entry = netvm_abi::capability::capability_at(tables.0, slot);
    let lease = Capability {
        expires: Nanos(0),
        ..Capability::NOTHING
    };
    lease.publish(bar, entry);
    let now = Nanos(1 << 32);
    assert!(Lease::of(bar, tables, slot).begin_generation(now, generation));
    assert_eq!(dump::<LEASE_WORDS>(bar, row.index()), golden.take_words("begun"));
    let end = Capability::load(bar, entry).map(|entry| entry.expires);
    assert_eq!(end, Some(now.after(terms.duration)));
    Capability::retract(bar, entry);
    Terms::none(bar, row);
    assert_eq!(dump::<LEASE_WORDS>(bar, row.index()), golden.take_words("none"));
    golden.end();
}

#[test]
fn page_slots() {
    let mut golden = Golden::read("page_slot");
    let table = PageTable::new(WordIndex(0), 1, HashKey::default());
    let bar = shared(
        table.rows() as usize * netvm_abi::page_table::ROW_WORDS as usize,
        0,
    );
    let bar = &bar[..];
    let slot = PageSlot::new(0, 1);
    let at = table.slot_at(slot).index();
    let mut expect = |section: &str| {
        assert_eq!(
            dump::<{ SLOT_WORDS as usize }>(bar, at),
            golden.take_words(section),
            "{section}"
        );
    };
    let entry = PageEntry {
        vpn: Vpn::new(PortId(7), 0x7_f123_4567),
        ppn: Ppn(0x1_2345_6789),
        segment: SegmentId(0x21),
        writable: true,
    };
    page_lock::publish(bar, &table, slot, &entry);
    expect("published");
    let locked = page_lock::lock_page(bar, &table, entry.vpn, true).unwrap();
    assert_eq!(
        (locked.slot, locked.ppn, locked.segment),
        (slot, entry.ppn, entry.segment)
    );
    expect("locked");
    page_lock::unlock_page(bar, &table, slot, Used::Written);
    expect("written");
    let both = PageUse {
        dirty: true,
        referenced: true,
        held: false,
    };
    assert_eq!(page_lock::take_use(bar, &table, slot, Clear::Both), both);
    expect("cleaned");
    assert_eq!(
        page_lock::take_use(bar, &table, slot, Clear::Both),
        PageUse::default()
    );
    let _locked = page_lock::lock_page(bar, &table, entry.vpn, false).unwrap();
    assert!(page_lock::take_use(bar, &table, slot, Clear::Both).held);
    page_lock::unlock_page(bar, &table, slot, Used::Read);
    expect("read");
    page_lock::retract(bar, &table, slot);
    expect("retracted");
    golden.end();
}

#[test]
fn the_cards_header() {
    let mut golden = Golden::read("bar_header");
    let card = CardHeader {
        geometry: Geometry {
            version: ABI_VERSION,
            page_size: 4096,
            payload: 4096,
            ports: 64,
            nodes: 4,
            window: 64,
            windows: 64,
            page_rows: 8192,
            capabilities: 1024,
            staging: 64,
            reads: 64,
            notification_queue: 2048,
        },
        node: NodeId(2),
        incarnation: Incarnation(0xa1a2_a3a4),
        key: HashKey([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]),
    };
    let bar = shared(BarMap::new(&card.geometry).host_events.index(), 0);
    let bar = &bar[..];
    card.publish(bar);
    assert_eq!(dump::<16>(bar, 0), golden.take_words("node_2_of_4"));
    assert_eq!(CardHeader::load(bar), Ok(card));
    golden.end();
}

#[test]
fn a_driver_says_where_its_memory_is() {
    let bar: [AtomicU32; 64] = core::array::from_fn(|_| AtomicU32::new(0));
    let bar = &bar[..];
    assert_eq!(DriverPlace::load(bar), None);
    let place = DriverPlace {
        memory: Ppn(0x1_2345_6789),
        bounce: Ppn(0x2_0000_0001),
    };
    place.publish(bar);
    let words: Vec<u32> = (40..45).map(|at| bar.load_acquire(WordIndex(at))).collect();
    assert_eq!(words, [0x2345_6789, 1, 1, 2, 1]);
    assert_eq!(DriverPlace::load(bar), Some(place));
}

#[test]
fn a_driver_gets_its_memory_back_when_the_card_has_let_go() {
    let bar: [AtomicU32; 64] = core::array::from_fn(|_| AtomicU32::new(0));
    let bar = &bar[..];
    assert!(!DriverPlace::is_in_use(bar));
    bar.store_release(header::MAGIC, header::MAGIC_VALUE);
    let place = DriverPlace {
        memory: Ppn(1),
        bounce: Ppn(2),
    };
    place.publish(bar);
    assert!(DriverPlace::is_in_use(bar) && !DriverPlace::is_withdrawn(bar));
    DriverPlace::withdraw(bar);
    // Asked, but not yet answered: the memory is still the card's, and not offered to it again.
    assert!(DriverPlace::is_in_use(bar) && DriverPlace::is_withdrawn(bar));
    assert_eq!(DriverPlace::load(bar), None);
    DriverPlace::let_go(bar);
    assert!(!DriverPlace::is_in_use(bar) && !DriverPlace::is_withdrawn(bar));
    // No driver attaches to a card that has not come up again.
    assert_ne!(bar.load_acquire(header::MAGIC), header::MAGIC_VALUE);
}
