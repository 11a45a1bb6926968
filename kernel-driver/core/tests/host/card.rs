//! Cards: negotiating, watching, resetting (promise P1's deadline, P7).

use crate::life::{busy, statuses, step};
use netvm_abi::bar::header;
use netvm_abi::control::Modes;
use netvm_abi::geometry::GeometryError;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::attach::{AttachError, HostConfig};
use netvm_host::events::Notice;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::platform::CopyEnd;
use netvm_host::ports::PortError;
use netvm_host::unmap::{UnmapKind, UnmapStep};
use netvm_host::{Host, Progress};
use netvm_kit::Heap;
use netvm_kit::host::*;

#[test]
pub(crate) fn a_card_is_refused_for_a_clear_reason() {
    let attach = |spoil: &dyn Fn(&Fake), config: &HostConfig| {
        let mut platform = fake(&geometry());
        spoil(&platform);
        Host::attach(&mut platform, &mut Heap::default(), config, Nanos(0))
            .map(|_| ())
            .expect_err("refused")
    };
    let store = |at: WordIndex, value: u32| move |fake: &Fake| fake.bar.store_release(at, value);
    use netvm_abi::attach::AttachError as Card;
    let cases = [
        (header::MAGIC, 0, Card::NotUp { found: 0 }),
        (header::MAGIC, u32::MAX, Card::CardGone),
        (
            header::VERSION,
            9,
            Card::Geometry(GeometryError::Version { theirs: 9 }),
        ),
        (
            header::PAGE_SIZE,
            65536,
            Card::Geometry(GeometryError::PageSize { asked: 65536 }),
        ),
        (
            header::PAYLOAD,
            100,
            Card::Geometry(GeometryError::Payload { asked: 100 }),
        ),
        (
            header::VERSION,
            u32::from(ABI_VERSION) | (3 << 16),
            Card::Node { node: NodeId(3) },
        ),
    ];
    for (at, value, error) in cases {
        assert_eq!(attach(&store(at, value), &config()), AttachError::Card(error));
    }
    let other = AttachError::Mismatch {
        name: "payload",
        card: 1024,
        host: 4096,
    };
    assert_eq!(attach(&store(header::PAYLOAD, 1024), &config()), other);
    assert!(other.to_string().contains("1024"));
    for entries in [0, 70_000] {
        let bad = HostConfig {
            exports: entries,
            ..config()
        };
        assert_eq!(attach(&|_| (), &bad), AttachError::Config { name: "exports" });
    }
    let any = HostConfig {
        geometry: None,
        ..config()
    };
    let mut platform = fake(&geometry());
    let host =
        Host::attach(&mut platform, &mut Heap::default(), &any, Nanos(0)).expect("takes what there is");
    assert_eq!((host.geometry(), host.node()), (&geometry(), NODE));
}

#[test]
pub(crate) fn the_memory_it_takes_is_known_beforehand_and_linear() {
    let mut heap = Heap::default();
    let _ = Host::attach(&mut fake(&geometry()), &mut heap, &config(), Nanos(0)).expect("attaches");
    assert_eq!(config().table_bytes(&geometry()), heap.bytes);
    let bytes = |nodes, page_rows| {
        config().table_bytes(&Geometry {
            nodes,
            page_rows,
            ..geometry()
        })
    };
    let per_peer = bytes(3, 64) - bytes(2, 64);
    assert_eq!(bytes(256, 64) - bytes(2, 64), 254 * per_peer);
    assert!(per_peer < 64 * 256, "{per_peer} bytes for a window of 64");
    let per_slot = (bytes(2, 128) - bytes(2, 64)) / 128;
    assert_eq!(bytes(2, 1 << 20), bytes(2, 64) + per_slot * 2 * ((1 << 20) - 64));
    assert!(per_slot <= 48, "{per_slot} bytes for a page slot");
}

#[test]
pub(crate) fn a_heartbeat_that_stands_still_means_a_dead_card_asleep_or_not() {
    let (mut rig, port, _) = busy();
    let mut beat = 0;
    for _ in 0..10 {
        beat += 1;
        rig.platform.shared.store_release(status_page::HEARTBEAT, beat);
        let due = rig.host.next_deadline();
        rig.now = rig.now.max(due.min(rig.now.after(Nanos::from_millis(900))));
        rig.poll();
    }
    assert_eq!(rig.host.card(), CardState::Alive);
    rig.platform.shared.store_release(status_page::SLEEPING, 1);
    for round in 1..5 {
        rig.now = rig.now.after(Nanos::from_millis(5000));
        let calls = rig.platform.wakes;
        rig.poll();
        assert_eq!(rig.platform.wakes, calls + 1, "it is called once");
        // It wakes, beats, and sleeps again.
        rig.platform
            .shared
            .store_release(status_page::HEARTBEAT, beat + round);
        rig.now = rig.now.after(Nanos::from_millis(5000));
        rig.poll();
        assert_eq!(rig.host.card(), CardState::Alive, "it may sleep");
    }
    rig.now = rig.now.after(Nanos::from_millis(5000));
    rig.poll();
    assert_eq!(rig.host.card(), CardState::Alive, "it has only just been called");
    assert_eq!(rig.card_stands_still(900), []);
    let notices = rig.card_stands_still(600);
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::Heartbeat)),
        "{notices:?}"
    );
    let state = rig.map.port_area(port.port).plus(port_area::PORT_STATE.0);
    let code = u32::from(Status::CardGone.code());
    assert_eq!(rig.platform.shared.load_acquire(state), code, "apps hear of it");
    assert_eq!(rig.host.next_deadline(), Nanos::MAX);
    assert_eq!(
        rig.host.port_open(&mut rig.platform, None),
        Err(PortError::CardGone)
    );
}

/// A look that comes late finds a beat of long ago: that alone says nothing.
#[test]
pub(crate) fn an_unwatched_card_gets_a_deadline_of_its_own() {
    let mut rig = Rig::new();
    rig.poll();
    assert_eq!(rig.host.next_deadline(), Nanos::MAX, "no port, no look");
    rig.now = Nanos::from_millis(60_000);
    let _port = rig.open();
    // It slept, wakes up for that, and has not come to its next beat yet.
    assert!(rig.host.next_deadline() <= rig.now, "watched from now on");
    rig.poll();
    assert_eq!(rig.host.card(), CardState::Alive);
    // The beat never comes. The first look counts for an eighth of the deadline.
    assert_eq!(rig.card_stands_still(850), []);
    let notices = rig.card_stands_still(600);
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::Heartbeat)),
        "{notices:?}"
    );
}

#[test]
pub(crate) fn a_card_that_takes_no_events_is_dead() {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.register(port, 0, 8);
    let entries = rig.host.geometry().ring_entries();
    // One event after the other, none taken.
    for i in 0..=entries {
        let vpn = Vpn::new(PortId(5), u64::from(i));
        rig.source_miss(1, vpn, 8, 0);
        while let Some(notice) = rig.host.poll(&mut rig.platform, rig.now) {
            assert_eq!(notice, Notice::CardDead(CardFailure::EventRingFull));
        }
    }
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::EventRingFull));
    assert_eq!(rig.count("cards_dead"), 1);
}

#[test]
pub(crate) fn after_a_reset_the_card_is_attached_again() {
    let (mut rig, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let in_hand = rig.bounce(Rig::window(PEER, 0), &header);
    rig.poll();
    rig.next(port);
    rig.bounce(Rig::window(PEER, 1), &header);
    rig.poll();
    let refused = rig.host.reattach(&mut rig.platform, rig.now, u32::MAX);
    assert_eq!(refused, Err(AttachError::NotStopped));
    rig.kill_card();
    rig.now = Nanos::from_millis(1000);
    let notices = rig.poll();
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::AllOnes)),
        "{notices:?}"
    );
    let failed = notices
        .iter()
        .any(|n| matches!(n, Notice::Imported { result: Err(_), .. }));
    assert!(failed, "imports fail: {notices:?}");
    assert!(
        rig.host
            .import(&mut rig.platform, port.port, &unwanted(), rig.now)
            .is_err()
    );
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
    let mut close = rig
        .host
        .port_close_begin(&mut rig.platform, port)
        .expect("still there");
    let early = rig.host.reattach(&mut rig.platform, rig.now, u32::MAX);
    assert_eq!(early, Err(AttachError::NotStopped), "pages are left");
    assert_ne!(step(&mut rig, &mut close), Progress::Done);
    let _ = rig.paged(in_hand, Ok(1));
    let mut steps = 0;
    while step(&mut rig, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 100);
    }
    // From page 64 on they were mapped for reading only (`busy`).
    assert!(
        rig.gone
            .iter()
            .all(|page| page.dirty == (page.vpn.page_number() < 64) && !page.leaked)
    );
    let gone = rig.host.reattach(&mut rig.platform, rig.now, u32::MAX);
    assert!(matches!(gone, Err(AttachError::Card(_))), "not up yet");
    rig.reboot();
    let map = bar::BarMap::new(rig.host.geometry());
    rig.platform.bar.store_release(map.page_table, 1);
    rig.platform.bar.store_release(map.capabilities, 1);
    rig.reattach();
    assert_eq!(rig.platform.bar.load_acquire(map.page_table), 0, "tables emptied");
    assert_eq!(rig.platform.bar.load_acquire(map.capabilities), 0);
    // Everything works as on the first day.
    rig.poll();
    let port = rig.open();
    rig.register(port, 16, 16);
    rig.export(port, "a", 16, 16, Modes::all());
    rig.link_up(PEER);
    let grant = rig
        .granted(PEER, PortId(2), port, "a", Modes::WRITE, 1)
        .expect("granted");
    let id = rig.bounce(Rig::window(PEER, 0), &write(port, &grant, 20 * PAGE, 8));
    rig.poll();
    rig.next(port);
    let _ = rig.paged(id, Ok(3));
    let _ = rig.copied(id, CopyEnd::Done);
    assert!(statuses(&mut rig).contains(&(id.bounce.0, Status::Ok)));
    assert!(rig.lock(page_of(port, 20), true).is_ok());
    assert_eq!(rig.count("reattached"), 1);
}

/// A caller that stops a card because an unmap said that it is dead does so before the driver polls.
#[test]
pub(crate) fn a_card_stopped_by_an_unmap_ends_ports_and_imports_too() {
    let (mut rig, port, grant) = busy();
    rig.bounce(Rig::window(PEER, 0), &write(port, &grant, 30 * PAGE, 8));
    rig.poll();
    let _held = rig.lock(page_of(port, 16), true).expect("mapped");
    let mut unmap = rig.host.unmap_begin(page_of(port, 16), 1, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
    assert_eq!(rig.unmap_while_it_runs(&mut unmap, 10, 11), UnmapStep::CardDead);
    assert_eq!(rig.host.next_deadline(), Nanos(0), "the driver must hear of it");
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
    let state = rig.map.port_area(port.port).plus(port_area::PORT_STATE.0);
    let code = u32::from(Status::CardGone.code());
    assert_eq!(rig.platform.shared.load_acquire(state), code, "apps hear of it");
    assert_eq!(rig.next(port), None, "queued work is refused");
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert_eq!(rig.host.next_deadline(), Nanos(0), "imports have failed");
    let notices = rig.poll();
    assert!(
        matches!(
            notices[..],
            [Notice::Imported {
                result: Err(Status::CardGone),
                ..
            }]
        ),
        "{notices:?}"
    );
    assert_eq!(rig.host.next_deadline(), Nanos::MAX);
    rig.close(port);
    rig.reboot();
    rig.reattach();
}

fn unwanted() -> netvm_host::imports::ImportSpec {
    netvm_host::imports::ImportSpec {
        node: PEER,
        port: PortId(1),
        name: name("n"),
        modes: Modes::READ,
        deadline: Nanos::MAX,
        wait: false,
    }
}

/// While no port is open, the driver does not look at the card: opening the first one does.
#[test]
pub(crate) fn opening_a_port_notices_a_card_that_was_reset_unseen() {
    let mut rig = Rig::new();
    let first = rig.open();
    rig.close(first);
    rig.platform.bar.store_release(header::INCARNATION, 0x4321);
    let opened = rig.host.port_open(&mut rig.platform, None);
    assert_eq!(opened, Err(PortError::CardGone));
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::Restarted));
    assert_eq!(rig.poll(), [Notice::CardDead(CardFailure::Restarted)]);
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
    rig.reattach();
    rig.open();
    // And with a port open, by the next look.
    rig.platform.bar.store_release(header::INCARNATION, 0x4322);
    rig.now = Nanos::from_millis(1000);
    assert!(rig.poll().contains(&Notice::CardDead(CardFailure::Restarted)));
}

/// What was emptied in the card's earlier life has to be emptied once more.
#[test]
pub(crate) fn a_reset_between_two_parts_of_attaching_begins_it_anew() {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.kill_card();
    rig.now = Nanos::from_millis(1000);
    rig.poll();
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
    rig.close(port);
    rig.reboot();
    let part = rig.host.reattach(&mut rig.platform, rig.now, 5);
    assert_eq!(part, Ok(Progress::Again));
    rig.reboot();
    rig.platform.bar.store_release(header::INCARNATION, 0x4321);
    let first = bar::BarMap::new(rig.host.geometry()).page_table;
    rig.platform.bar.store_release(first, 1);
    rig.reattach();
    assert_eq!(
        rig.platform.bar.load_acquire(first),
        0,
        "an entry of the first part"
    );
}

#[test]
pub(crate) fn a_reset_card_with_other_tables_or_node_is_refused() {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.kill_card();
    rig.now = Nanos::from_millis(1000);
    rig.poll();
    rig.host.card_stopped(&mut rig.platform, false, rig.now);
    rig.close(port);
    rig.reboot();
    rig.platform.bar.store_release(header::PAYLOAD, 1024);
    let other = rig.host.reattach(&mut rig.platform, rig.now, u32::MAX);
    assert!(matches!(
        other,
        Err(AttachError::Mismatch { name: "payload", .. })
    ));
    rig.reboot();
    rig.platform
        .bar
        .store_release(header::VERSION, u32::from(ABI_VERSION) | (2 << 16));
    let other = rig.host.reattach(&mut rig.platform, rig.now, u32::MAX);
    assert_eq!(other, Err(AttachError::OtherNode(NodeId(2))));
}
