//! Ports, peers and cards: how they come and go (promise P6).

use crate::rig::*;
use netvm_abi::bar::header;
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::{Control, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::geometry::GeometryError;
use netvm_abi::page_lock::Used;
use netvm_abi::shared_map::status_page;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::attach::{AttachError, HostConfig};
use netvm_host::events::Notice;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_host::ports::{OpenPort, PortError};
use netvm_host::{Host, Progress};

/// A port with an exported segment of which pages are mapped, with a holder, an import and a bounced
/// message that waits and one in a worker's hands.
fn busy() -> (Rig, OpenPort, control::Grant) {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.register(port, 16, 16);
    rig.register(port, 64, 16);
    rig.export(port, "a", 16, 16, Modes::all());
    rig.link_up(PEER);
    let grant = rig
        .granted(PEER, PortId(2), port, "a", Modes::WRITE, 1)
        .expect("granted");
    for page in 0..8 {
        rig.map(page_of(port, 16 + page), page, true).expect("maps");
        rig.map(page_of(port, 64 + page), 50 + page, false).expect("maps");
    }
    rig.import(port, "x", true);
    (rig, port, grant)
}

fn statuses(rig: &mut Rig) -> Vec<(u32, Status)> {
    let heard = rig.heard();
    heard
        .iter()
        .filter_map(|event| match *event {
            HostEvent::BounceEnded { bounce, status, .. } => Some((bounce.0, status)),
            _ => None,
        })
        .collect()
}

fn step(rig: &mut Rig, close: &mut netvm_host::ports::PortClose) -> Progress {
    let gone = &mut rig.gone;
    rig.host
        .port_close_step(&mut rig.platform, close, rig.now, 100, &mut |page| {
            gone.push(page)
        })
}

#[test]
pub(crate) fn ports_are_numbered_from_one_and_refused_for_a_reason() {
    let mut rig = Rig::new();
    let mut open = |wanted: Option<u16>| rig.host.port_open(&mut rig.platform, wanted.map(PortId));
    assert_eq!(open(Some(0)), Err(PortError::NoSuchPort));
    assert_eq!(open(Some(8)), Err(PortError::NoSuchPort));
    let third = open(Some(3)).expect("free");
    assert_eq!(open(Some(3)), Err(PortError::InUse));
    let numbers: Vec<_> = (0..6).map(|_| open(None).expect("free").port.0).collect();
    assert_eq!(numbers, [1, 2, 4, 5, 6, 7]);
    assert_eq!(open(None), Err(PortError::AllInUse));
    let other = OpenPort {
        generation: Generation(9),
        ..third
    };
    assert!(matches!(
        rig.host.port_close_begin(&mut rig.platform, other),
        Err(PortError::NoSuchPort)
    ));
    let heard = rig.heard();
    assert!(heard.contains(&HostEvent::PortOpen {
        port: PortId(3),
        generation: third.generation
    }));
}

#[test]
pub(crate) fn an_open_port_finds_its_memory_clean() {
    let mut rig = Rig::new();
    let port = rig.open();
    let block = bar::BarMap::new(rig.host.geometry()).port(port.port);
    let area = rig.map.port_area(port.port);
    let stale = [
        block,
        block.plus(bar::port::SIGNALLED.0 + 5),
        block.plus(bar::port::BLOCK_WORDS - 1),
    ];
    for at in stale {
        rig.platform.bar.store_release(at, 77);
    }
    rig.platform
        .shared
        .store_release(area.plus(port_area::NOTIFICATION_WRITE.0), 77);
    rig.platform
        .shared
        .store_release(area.plus(port_area::AREA_WORDS - 1), 77);
    rig.close(port);
    let state = area.plus(port_area::PORT_STATE.0);
    assert_eq!(
        rig.platform.shared.load_acquire(state),
        u32::from(Status::NoSuchPort.code())
    );
    let again = rig.open();
    assert_eq!(again.port, port.port);
    assert_ne!(again.generation, port.generation);
    for at in stale {
        assert_eq!(rig.platform.bar.load_acquire(at), 0);
    }
    for word in 0..port_area::AREA_WORDS {
        let expected = if word == port_area::PORT_GENERATION.0 {
            again.generation.0
        } else {
            0
        };
        assert_eq!(rig.platform.shared.load_acquire(area.plus(word)), expected);
    }
}

#[test]
pub(crate) fn a_dead_process_leaves_nothing() {
    let (mut rig, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let in_hand = rig.bounce(Rig::window(PEER, 0), &header);
    rig.bounce(Rig::window(PEER, 1), &header);
    rig.source_miss(2, page_of(port, 30), 8, 0);
    rig.poll();
    assert!(matches!(rig.next(port), Some(WorkStep::PageIn { .. })));
    let held = rig.lock(page_of(port, 16), true).expect("mapped");
    rig.heard();
    let mut close = rig.host.port_close_begin(&mut rig.platform, port).expect("open");
    assert!(
        rig.host.port_close_begin(&mut rig.platform, port).is_err(),
        "once"
    );
    assert_eq!(
        rig.host.port_open(&mut rig.platform, Some(port.port)),
        Err(PortError::InUse)
    );
    assert!(rig.map(page_of(port, 31), 1, true).is_err(), "nothing new");
    for _ in 0..5 {
        assert_ne!(step(&mut rig, &mut close), Progress::Done, "the NIC holds a page");
        rig.poll();
    }
    rig.unlock(held, Used::Written);
    for _ in 0..10 {
        assert_ne!(
            step(&mut rig, &mut close),
            Progress::Done,
            "a worker has its work"
        );
        rig.poll();
    }
    assert_eq!(
        rig.paged(in_hand, Ok(1)),
        WorkStep::Ended {
            status: Status::NoSuchPort
        }
    );
    rig.poll();
    assert_eq!(step(&mut rig, &mut close), Progress::Done);
    assert_eq!(rig.host.mapped_pages(), 0);
    assert_eq!(rig.gone.len() as u64, rig.count("pages_unmapped"));
    assert!(
        rig.gone
            .iter()
            .any(|page| page.dirty && page.vpn == page_of(port, 16))
    );
    let ends = statuses(&mut rig);
    assert_eq!(ends.len(), 2, "each answered once: {ends:?}");
    assert!(ends.iter().all(|end| end.1 == Status::NoSuchPort));
    assert!(
        rig.granted(PEER, PortId(2), port, "a", Modes::WRITE, 2).is_err(),
        "its exports are gone"
    );
    // The next owner of the number has none of it.
    let next = rig.open();
    assert_eq!(next.port, port.port);
    rig.register(next, 16, 16);
    let late = rig.bounce(Rig::window(PEER, 3), &header);
    rig.poll();
    assert_eq!(rig.next(next), None);
    assert_eq!(statuses(&mut rig), [(late.bounce.0, Status::CapabilityRefused)]);
}

#[test]
pub(crate) fn a_port_that_the_nic_does_not_close_means_a_dead_card() {
    let (mut rig, port, _) = busy();
    rig.obliging = false;
    let mut close = rig.host.port_close_begin(&mut rig.platform, port).expect("open");
    // The barrier of its grants is not answered either.
    for _ in 0..50 {
        let _ = step(&mut rig, &mut close);
    }
    rig.now = Nanos::from_millis(10);
    assert_eq!(
        rig.poll().last(),
        Some(&Notice::CardDead(CardFailure::AnswerDeadline))
    );
    assert_ne!(step(&mut rig, &mut close), Progress::Done, "it may still do DMA");
    rig.host.card_stopped(&mut rig.platform, true);
    let mut steps = 0;
    while step(&mut rig, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(rig.host.mapped_pages(), 0);
    // A port without grants waits for its own answer only.
    let mut rig = Rig::new();
    let port = rig.open();
    rig.obliging = false;
    let mut close = rig.host.port_close_begin(&mut rig.platform, port).expect("open");
    assert_eq!(step(&mut rig, &mut close), Progress::Wait);
    rig.now = Nanos::from_millis(10);
    assert_eq!(step(&mut rig, &mut close), Progress::Wait);
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::AnswerDeadline));
}

#[test]
pub(crate) fn a_new_incarnation_comes_after_the_old_one_is_let_go() {
    let (mut rig, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let mut reply = Header::new(Kind::ReadReply, PEER, NODE);
    reply.destination_port = port.port;
    reply.address = VirtAddr(30 * PAGE);
    let paging = rig.bounce(Rig::window(PEER, 0), &header);
    rig.poll();
    rig.next(port);
    let copying = rig.bounce(Rig::window(PEER, 1), &header);
    rig.poll();
    rig.next(port);
    let _ = rig.paged(copying, Ok(1));
    rig.bounce(Rig::window(PEER, 2), &header);
    let waiting = rig.bounce(BounceUse::Reply(ReadSlot(0)), &reply);
    rig.poll();
    rig.heard();
    let incarnation = Incarnation(78);
    rig.say(NicEvent::PeerReset {
        peer: PEER,
        incarnation,
    });
    assert!(rig.poll().contains(&Notice::PeerDown { peer: PEER }));
    assert_eq!(rig.host.peer(PEER), None);
    assert_eq!(statuses(&mut rig), [(waiting.bounce.0, Status::LinkLost)]);
    let released = HostEvent::PeerReleased {
        peer: PEER,
        incarnation,
    };
    assert_eq!(rig.next(port), None, "what waited is dropped");
    assert_eq!(
        rig.paged(paging, Ok(1)),
        WorkStep::Ended {
            status: Status::StaleIncarnation
        }
    );
    rig.poll();
    assert!(
        !rig.heard().contains(&released),
        "a bounce page is still being copied"
    );
    let _ = rig.copied(copying, CopyEnd::Done);
    rig.poll();
    let heard = rig.heard();
    assert!(heard.contains(&released));
    assert!(
        !heard
            .iter()
            .any(|event| matches!(event, HostEvent::BounceEnded { .. }))
    );
    rig.link_up(PEER);
    let late = rig.bounce(Rig::window(PEER, 0), &header);
    rig.poll();
    assert_eq!(rig.next(port), None);
    let refused = (late.bounce.0, Status::CapabilityRefused);
    assert_eq!(statuses(&mut rig), [refused], "the old life's grant is void");
    assert_eq!(rig.count("bounce_dropped"), 4);
    assert_eq!((rig.count("peers_reset"), rig.count("peers_released")), (1, 1));
}

#[test]
pub(crate) fn a_lost_peer_is_answered_too() {
    let (mut rig, _, _) = busy();
    rig.heard();
    rig.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    rig.poll();
    assert!(rig.heard().contains(&HostEvent::PeerReleased {
        peer: PEER,
        incarnation: LINK
    }));
    assert_eq!(rig.count("peers_lost"), 1);
}

#[test]
pub(crate) fn a_sleeping_nic_is_woken_once_for_each_event() {
    let mut rig = Rig::new();
    rig.platform.shared.store_release(status_page::SLEEPING, 1);
    rig.host.connect(&mut rig.platform, PEER);
    rig.host.connect(&mut rig.platform, PEER);
    rig.host.connect(&mut rig.platform, NodeId(99));
    assert_eq!((rig.platform.wakes, rig.count("nic_wakes")), (1, 1));
    assert_eq!(rig.heard(), [HostEvent::PeerConnect { peer: PEER }]);
    // A peer that never answered is greeted again when somebody asks again.
    rig.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: Incarnation(0),
    });
    rig.poll();
    rig.heard();
    rig.host.connect(&mut rig.platform, PEER);
    assert_eq!(rig.heard(), [HostEvent::PeerConnect { peer: PEER }]);
}

#[test]
pub(crate) fn a_card_is_refused_for_a_clear_reason() {
    let attach = |spoil: &dyn Fn(&Fake), config: &HostConfig| {
        let mut platform = fake(&geometry());
        spoil(&platform);
        Host::attach(&mut platform, &mut Heap(0), config, Nanos(0))
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
        (header::VERSION, 1 | (3 << 16), Card::Node { node: NodeId(3) }),
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
    let host = Host::attach(&mut platform, &mut Heap(0), &any, Nanos(0)).expect("takes what there is");
    assert_eq!((host.geometry(), host.node()), (&geometry(), NODE));
}

#[test]
pub(crate) fn the_memory_it_takes_is_known_beforehand_and_linear() {
    let mut heap = Heap(0);
    let _ = Host::attach(&mut fake(&geometry()), &mut heap, &config(), Nanos(0)).expect("attaches");
    assert_eq!(config().table_bytes(&geometry()), heap.0);
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
pub(crate) fn a_heartbeat_that_stands_still_means_a_dead_card() {
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
    rig.now = rig.now.after(Nanos::from_millis(5000));
    rig.poll();
    assert_eq!(rig.host.card(), CardState::Alive, "it may sleep");
    rig.platform.shared.store_release(status_page::SLEEPING, 0);
    rig.now = rig.now.after(Nanos::from_millis(1000));
    let notices = rig.poll();
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
    let refused = rig.host.reattach(&mut rig.platform, rig.now);
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
    rig.host.card_stopped(&mut rig.platform, true);
    let mut close = rig
        .host
        .port_close_begin(&mut rig.platform, port)
        .expect("still there");
    let early = rig.host.reattach(&mut rig.platform, rig.now);
    assert_eq!(early, Err(AttachError::NotStopped), "pages are left");
    assert_ne!(step(&mut rig, &mut close), Progress::Done);
    let _ = rig.paged(in_hand, Ok(1));
    let mut steps = 0;
    while step(&mut rig, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 100);
    }
    assert!(rig.gone.iter().all(|page| page.dirty && !page.leaked));
    let gone = rig.host.reattach(&mut rig.platform, rig.now);
    assert!(matches!(gone, Err(AttachError::Card(_))), "not up yet");
    rig.reboot();
    let map = bar::BarMap::new(rig.host.geometry());
    rig.platform.bar.store_release(map.page_table, 1);
    rig.platform.bar.store_release(map.capabilities, 1);
    rig.host.reattach(&mut rig.platform, rig.now).expect("up again");
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

#[test]
pub(crate) fn a_reset_card_with_other_tables_or_node_is_refused() {
    let mut rig = Rig::new();
    rig.kill_card();
    let port = rig
        .host
        .port_open(&mut rig.platform, None)
        .expect("not noticed yet");
    rig.now = Nanos::from_millis(1000);
    rig.poll();
    rig.host.card_stopped(&mut rig.platform, false);
    rig.close(port);
    rig.reboot();
    rig.platform.bar.store_release(header::PAYLOAD, 1024);
    let other = rig.host.reattach(&mut rig.platform, rig.now);
    assert!(matches!(
        other,
        Err(AttachError::Mismatch { name: "payload", .. })
    ));
    rig.reboot();
    rig.platform.bar.store_release(header::VERSION, 1 | (2 << 16));
    let other = rig.host.reattach(&mut rig.platform, rig.now);
    assert_eq!(other, Err(AttachError::OtherNode(NodeId(2))));
}

#[test]
pub(crate) fn control_messages_for_a_closing_port_find_nothing() {
    let (mut rig, port, _) = busy();
    let _close = rig.host.port_close_begin(&mut rig.platform, port).expect("open");
    rig.control(
        PEER,
        5,
        &Control::Import {
            token: Token(8),
            port: port.port,
            importer: PortId(1),
            modes: Modes::READ,
            name: name("a"),
        },
    );
    rig.poll();
    let sent = rig.sent();
    assert!(matches!(
        sent.last(),
        Some((
            _,
            Control::Refused {
                status: Status::NoSuchPort,
                ..
            }
        ))
    ));
}
