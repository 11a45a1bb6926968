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
            u32::from(ABI_VERSION + 1),
            Card::Geometry(GeometryError::Version {
                theirs: ABI_VERSION + 1,
            }),
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
            windows: 4096,
            ..geometry()
        })
    };
    let per_peer = bytes(3, 64) - bytes(2, 64);
    assert_eq!(bytes(256, 64) - bytes(2, 64), 254 * per_peer);
    assert!(per_peer < 64 * 256, "{per_peer} bytes for a window of 64");
    let shared = |nodes| {
        config().table_bytes(&Geometry {
            nodes,
            windows: 64,
            ..geometry()
        })
    };
    let at_rest = (shared(4096) - shared(64)) / 4032;
    assert!(at_rest <= 256, "{at_rest} bytes for a peer without a window");
    let per_slot = (bytes(2, 128) - bytes(2, 64)) / 128;
    assert_eq!(bytes(2, 1 << 20), bytes(2, 64) + per_slot * 2 * ((1 << 20) - 64));
    assert!(per_slot <= 48, "{per_slot} bytes for a page slot");
}

#[test]
pub(crate) fn a_heartbeat_that_stands_still_means_a_dead_card_asleep_or_not() {
    let (mut stand, port, _) = busy();
    let mut beat = 0;
    for _ in 0..10 {
        beat += 1;
        stand.platform.shared.store_release(status_page::HEARTBEAT, beat);
        let due = stand.host.next_deadline();
        stand.now = stand.now.max(due.min(stand.now.after(Nanos::from_millis(900))));
        stand.poll();
    }
    assert_eq!(stand.host.card(), CardState::Alive);
    stand.platform.shared.store_release(status_page::SLEEPING, 1);
    for round in 1..5 {
        stand.now = stand.now.after(Nanos::from_millis(5000));
        let calls = stand.platform.wakes;
        stand.poll();
        assert_eq!(stand.platform.wakes, calls + 1, "it is called once");
        // It wakes, beats, and sleeps again.
        stand
            .platform
            .shared
            .store_release(status_page::HEARTBEAT, beat + round);
        stand.now = stand.now.after(Nanos::from_millis(5000));
        stand.poll();
        assert_eq!(stand.host.card(), CardState::Alive, "it may sleep");
    }
    stand.now = stand.now.after(Nanos::from_millis(5000));
    stand.poll();
    assert_eq!(
        stand.host.card(),
        CardState::Alive,
        "it has only just been called"
    );
    assert_eq!(stand.card_stands_still(900), []);
    let notices = stand.card_stands_still(600);
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::Heartbeat)),
        "{notices:?}"
    );
    let state = stand.map.port_area(port.port).plus(port_area::PORT_STATE.0);
    let code = u32::from(Status::CardGone.code());
    assert_eq!(stand.platform.shared.load_acquire(state), code, "apps hear of it");
    assert_eq!(stand.host.next_deadline(), Nanos::MAX);
    assert_eq!(
        stand.host.port_open(&mut stand.platform, None),
        Err(PortError::CardGone)
    );
}

/// A look that comes late finds a beat of long ago: that alone says nothing.
#[test]
pub(crate) fn an_unwatched_card_gets_a_deadline_of_its_own() {
    let mut stand = Stand::new();
    stand.poll();
    assert_eq!(stand.host.next_deadline(), Nanos::MAX, "no port, no look");
    stand.now = Nanos::from_millis(60_000);
    let _port = stand.open();
    // It slept, wakes up for that, and has not come to its next beat yet.
    assert!(stand.host.next_deadline() <= stand.now, "watched from now on");
    stand.poll();
    assert_eq!(stand.host.card(), CardState::Alive);
    // The beat never comes. The first look counts for an eighth of the deadline.
    assert_eq!(stand.card_stands_still(850), []);
    let notices = stand.card_stands_still(600);
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::Heartbeat)),
        "{notices:?}"
    );
}

#[test]
pub(crate) fn a_card_that_takes_no_events_is_dead() {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 0, 8);
    let entries = stand.host.geometry().ring_entries();
    // One event after the other, none taken.
    for i in 0..=entries {
        let vpn = Vpn::new(PortId(5), u64::from(i));
        stand.source_miss(1, vpn, 8, 0);
        while let Some(notice) = stand.host.poll(&mut stand.platform, stand.now) {
            assert_eq!(notice, Notice::CardDead(CardFailure::EventRingFull));
        }
    }
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::EventRingFull));
    assert_eq!(stand.count("cards_dead"), 1);
}

#[test]
pub(crate) fn after_a_reset_the_card_is_attached_again() {
    let (mut stand, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let in_hand = stand.bounce(Stand::window(PEER, 0), &header);
    stand.poll();
    stand.next(port);
    stand.bounce(Stand::window(PEER, 1), &header);
    stand.poll();
    let refused = stand.host.reattach(&mut stand.platform, stand.now, u32::MAX);
    assert_eq!(refused, Err(AttachError::NotStopped));
    stand.kill_card();
    stand.now = Nanos::from_millis(1000);
    let notices = stand.poll();
    assert!(
        notices.contains(&Notice::CardDead(CardFailure::AllOnes)),
        "{notices:?}"
    );
    let failed = notices
        .iter()
        .any(|n| matches!(n, Notice::Imported { result: Err(_), .. }));
    assert!(failed, "imports fail: {notices:?}");
    assert!(
        stand
            .host
            .import(&mut stand.platform, port.port, &unwanted(), stand.now)
            .is_err()
    );
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("still there");
    let early = stand.host.reattach(&mut stand.platform, stand.now, u32::MAX);
    assert_eq!(early, Err(AttachError::NotStopped), "pages are left");
    assert_ne!(step(&mut stand, &mut close), Progress::Done);
    let _ = stand.paged(in_hand, Ok(1));
    let mut steps = 0;
    while step(&mut stand, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 100);
    }
    // From page 64 on they were mapped for reading only (`busy`).
    assert!(
        stand
            .gone
            .iter()
            .all(|page| page.dirty == (page.vpn.page_number() < 64) && !page.leaked)
    );
    let gone = stand.host.reattach(&mut stand.platform, stand.now, u32::MAX);
    assert!(matches!(gone, Err(AttachError::Card(_))), "not up yet");
    stand.reboot();
    let map = bar::BarMap::new(stand.host.geometry());
    stand.platform.bar.store_release(map.page_table, 1);
    stand.platform.bar.store_release(map.capabilities, 1);
    stand.reattach();
    assert_eq!(
        stand.platform.bar.load_acquire(map.page_table),
        0,
        "tables emptied"
    );
    assert_eq!(stand.platform.bar.load_acquire(map.capabilities), 0);
    // Everything works as on the first day.
    stand.poll();
    let port = stand.open();
    stand.register(port, 16, 16);
    stand.export(port, "a", 16, 16, Modes::all());
    stand.link_up(PEER);
    let grant = stand
        .granted(PEER, PortId(2), port, "a", Modes::WRITE, 1)
        .expect("granted");
    let id = stand.bounce(Stand::window(PEER, 0), &write(port, &grant, 20 * PAGE, 8));
    stand.poll();
    stand.next(port);
    let _ = stand.paged(id, Ok(3));
    let _ = stand.copied(id, CopyEnd::Done);
    assert!(statuses(&mut stand).contains(&(id.bounce.0, Status::Ok)));
    assert!(stand.lock(page_of(port, 20), true).is_ok());
    assert_eq!(stand.count("reattached"), 1);
}

/// A caller that stops a card because an unmap said that it is dead does so before the driver polls.
#[test]
pub(crate) fn a_card_stopped_by_an_unmap_ends_ports_and_imports_too() {
    let (mut stand, port, grant) = busy();
    stand.bounce(Stand::window(PEER, 0), &write(port, &grant, 30 * PAGE, 8));
    stand.poll();
    let _held = stand.lock(page_of(port, 16), true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(page_of(port, 16), 1, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
    assert_eq!(stand.unmap_while_it_runs(&mut unmap, 10, 11), UnmapStep::CardDead);
    assert_eq!(stand.host.next_deadline(), Nanos(0), "the driver must hear of it");
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    let state = stand.map.port_area(port.port).plus(port_area::PORT_STATE.0);
    let code = u32::from(Status::CardGone.code());
    assert_eq!(stand.platform.shared.load_acquire(state), code, "apps hear of it");
    assert_eq!(stand.next(port), None, "queued work is refused");
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert_eq!(stand.host.next_deadline(), Nanos(0), "imports have failed");
    let notices = stand.poll();
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
    assert_eq!(stand.host.next_deadline(), Nanos::MAX);
    stand.close(port);
    stand.reboot();
    stand.reattach();
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
    let mut stand = Stand::new();
    let first = stand.open();
    stand.close(first);
    stand.platform.bar.store_release(header::INCARNATION, 0x4321);
    let opened = stand.host.port_open(&mut stand.platform, None);
    assert_eq!(opened, Err(PortError::CardGone));
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::Restarted));
    assert_eq!(stand.poll(), [Notice::CardDead(CardFailure::Restarted)]);
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    stand.reattach();
    stand.open();
    // And with a port open, by the next look.
    stand.platform.bar.store_release(header::INCARNATION, 0x4322);
    stand.now = Nanos::from_millis(1000);
    assert!(stand.poll().contains(&Notice::CardDead(CardFailure::Restarted)));
}

/// What was emptied in the card's earlier life has to be emptied once more.
#[test]
pub(crate) fn a_reset_between_two_parts_of_attaching_begins_it_anew() {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.kill_card();
    stand.now = Nanos::from_millis(1000);
    stand.poll();
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    stand.close(port);
    stand.reboot();
    let part = stand.host.reattach(&mut stand.platform, stand.now, 5);
    assert_eq!(part, Ok(Progress::Again));
    stand.reboot();
    stand.platform.bar.store_release(header::INCARNATION, 0x4321);
    let first = bar::BarMap::new(stand.host.geometry()).page_table;
    stand.platform.bar.store_release(first, 1);
    stand.reattach();
    assert_eq!(
        stand.platform.bar.load_acquire(first),
        0,
        "an entry of the first part"
    );
}

#[test]
pub(crate) fn a_reset_card_with_other_tables_or_node_is_refused() {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.kill_card();
    stand.now = Nanos::from_millis(1000);
    stand.poll();
    stand.host.card_stopped(&mut stand.platform, false, stand.now);
    stand.close(port);
    stand.reboot();
    stand.platform.bar.store_release(header::PAYLOAD, 1024);
    let other = stand.host.reattach(&mut stand.platform, stand.now, u32::MAX);
    assert!(matches!(
        other,
        Err(AttachError::Mismatch { name: "payload", .. })
    ));
    stand.reboot();
    stand
        .platform
        .bar
        .store_release(header::VERSION, u32::from(ABI_VERSION) | (2 << 16));
    let other = stand.host.reattach(&mut stand.platform, stand.now, u32::MAX);
    assert_eq!(other, Err(AttachError::OtherNode(NodeId(2))));
}
