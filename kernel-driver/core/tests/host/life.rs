//! Ports and peers: how they come and go (promise P6).

use netvm_abi::bounce::BounceUse;
use netvm_abi::control::{Control, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock::Used;
use netvm_abi::shared_map::status_page;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_host::ports::{OpenPort, PortError};
use netvm_kit::host::*;

/// A port with an exported segment of which pages are mapped, with a holder, an import and a bounced
/// message that waits and one in a worker's hands.
pub(crate) fn busy() -> (Rig, OpenPort, control::Grant) {
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

pub(crate) fn statuses(rig: &mut Rig) -> Vec<(u32, Status)> {
    let heard = rig.heard();
    heard
        .iter()
        .filter_map(|event| match *event {
            HostEvent::BounceEnded { bounce, status, .. } => Some((bounce.0, status)),
            _ => None,
        })
        .collect()
}

pub(crate) fn step(rig: &mut Rig, close: &mut netvm_host::ports::PortClose) -> Progress {
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

/// Numbers that an allow-list may name are not given to a program that asks for any.
#[test]
pub(crate) fn reserved_numbers_are_given_only_by_name() {
    let config = HostConfig {
        reserved_ports: 3,
        ..config()
    };
    let mut rig = Rig::with(&config, &geometry());
    let mut open = |wanted: Option<u16>| rig.host.port_open(&mut rig.platform, wanted.map(PortId));
    let numbers: Vec<_> = (0..4).map(|_| open(None).expect("free").port.0).collect();
    assert_eq!(numbers, [4, 5, 6, 7]);
    assert_eq!(open(None), Err(PortError::AllInUse));
    assert_eq!(
        open(Some(2)).map(|open| open.port),
        Ok(PortId(2)),
        "the platform allows it"
    );
    let all = HostConfig {
        reserved_ports: u16::MAX,
        ..config
    };
    let mut rig = Rig::with(&all, &geometry());
    assert_eq!(
        rig.host.port_open(&mut rig.platform, None),
        Err(PortError::AllInUse)
    );
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
    let notices = rig.card_runs(11);
    assert_eq!(
        notices.last(),
        Some(&Notice::CardDead(CardFailure::AnswerDeadline))
    );
    assert_ne!(step(&mut rig, &mut close), Progress::Done, "it may still do DMA");
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
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
    rig.card_runs(9);
    assert_eq!(step(&mut rig, &mut close), Progress::Wait);
    assert_eq!(rig.host.card(), CardState::Alive);
    rig.card_runs(2);
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
pub(crate) fn a_peer_with_many_grants_is_let_go_in_slices() {
    let large = Geometry {
        capabilities: 600,
        ..geometry()
    };
    let config = netvm_host::attach::HostConfig {
        geometry: Some(large),
        ..config()
    };
    let mut rig = Rig::with(&config, &large);
    let port = rig.open();
    rig.register(port, 16, 1);
    rig.export(port, "a", 16, 1, Modes::all());
    for life in 0..4 {
        rig.link_up(PEER);
        for token in 0..300 {
            let grant = rig.granted(PEER, PortId(2), port, "a", Modes::READ, life * 1000 + token);
            assert!(grant.is_ok(), "{token}");
        }
        let incarnation = Incarnation(100 + life);
        rig.say(NicEvent::PeerReset {
            peer: PEER,
            incarnation,
        });
        let notices = rig.poll();
        let slices = notices
            .iter()
            .filter(|notice| **notice == Notice::Progress)
            .count();
        assert!(slices >= 3, "the lock is let go in between: {notices:?}");
        let released = HostEvent::PeerReleased {
            peer: PEER,
            incarnation,
        };
        assert!(rig.heard().contains(&released));
    }
    assert_eq!(rig.count("grants_revoked"), 1200);
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
    rig.host.connect(&mut rig.platform, NodeId(2));
    rig.heard();
    assert_eq!(rig.platform.wakes, 0, "it is awake");
    rig.platform.shared.store_release(status_page::SLEEPING, 1);
    rig.host.connect(&mut rig.platform, PEER);
    rig.host.connect(&mut rig.platform, PEER);
    rig.host.connect(&mut rig.platform, NodeId(99));
    assert_eq!((rig.platform.wakes, rig.count("nic_wakes")), (1, 1));
    assert_eq!(rig.heard(), [HostEvent::PeerConnect { peer: PEER }]);
    // A peer that never answered is greeted again at the next request.
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
