//! Ports and peers: how they come and go (promise P6).

use netvm_abi::bar::BarMap;
use netvm_abi::bar::port::{BLOCK_WORDS, DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::{Control, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock::Used;
use netvm_abi::port_area::{AREA_WORDS, PORT_GENERATION, READS_DONE, TAKEN, WRITES_DONE};
use netvm_abi::shared_map::status_page;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_host::ports::{OpenPort, PortError};
use netvm_host::{Host, Progress};
use netvm_kit::Heap;
use netvm_kit::host::*;
use std::collections::BTreeSet;

/// A port with an exported segment of which pages are mapped, with a holder, an import and a bounced
/// message that waits and one in a worker's hands.
pub(crate) fn busy() -> (Stand, OpenPort, control::Grant) {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 16, 16);
    stand.register(port, 64, 16);
    stand.export(port, "a", 16, 16, Modes::all());
    stand.link_up(PEER);
    let grant = stand
        .granted(PEER, PortId(2), port, "a", Modes::WRITE, 1)
        .expect("granted");
    for page in 0..8 {
        stand.map(page_of(port, 16 + page), page, true).expect("maps");
        stand
            .map(page_of(port, 64 + page), 50 + page, false)
            .expect("maps");
    }
    stand.import(port, "x", true);
    (stand, port, grant)
}

pub(crate) fn statuses(stand: &mut Stand) -> Vec<(u32, Status)> {
    let heard = stand.heard();
    heard
        .iter()
        .filter_map(|event| match *event {
            HostEvent::BounceEnded { bounce, status, .. } => Some((bounce.0, status)),
            _ => None,
        })
        .collect()
}

pub(crate) fn step(stand: &mut Stand, close: &mut netvm_host::ports::PortClose) -> Progress {
    let gone = &mut stand.gone;
    stand
        .host
        .port_close_step(&mut stand.platform, close, stand.now, 100, &mut |page| {
            gone.push(page)
        })
}

/// Words of a port that its next owner finds: those that count commands as the driver was told, nothing else.
#[test]
fn a_ports_counts_begin_where_the_driver_was_told() {
    let counts_from = u32::MAX - 15;
    let config = HostConfig {
        counts_from,
        ..config()
    };
    let mut stand = Stand::with(&config, &geometry());
    let port = PortId(3);
    let block = BarMap::new(&geometry()).port(port);
    let area = stand.map.port_area(port);
    for word in 0..BLOCK_WORDS {
        stand.platform.bar.store_release(block.plus(word), 7);
    }
    for word in 0..AREA_WORDS {
        stand.platform.shared.store_release(area.plus(word), 7);
    }
    let open = stand
        .host
        .port_open(&mut stand.platform, Some(port))
        .expect("free");
    for word in 0..BLOCK_WORDS {
        let counts = [DOORBELL, WRITE_FENCE, READ_FENCE, TAKEN_FENCE].contains(&WordIndex(word));
        let wanted = if counts { counts_from } else { 0 };
        assert_eq!(
            stand.platform.bar.load_acquire(block.plus(word)),
            wanted,
            "{word}"
        );
    }
    for word in (0..AREA_WORDS).filter(|&word| word != PORT_GENERATION.0) {
        let counts = [TAKEN, WRITES_DONE, READS_DONE].contains(&WordIndex(word));
        let wanted = if counts { counts_from } else { 0 };
        assert_eq!(
            stand.platform.shared.load_acquire(area.plus(word)),
            wanted,
            "{word}"
        );
    }
    assert!(stand.heard().contains(&HostEvent::PortOpen {
        port,
        generation: open.generation,
        counts_from,
    }));
}

#[test]
pub(crate) fn ports_are_numbered_from_one_and_refused_for_a_reason() {
    let mut stand = Stand::new();
    let mut open = |wanted: Option<u16>| stand.host.port_open(&mut stand.platform, wanted.map(PortId));
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
        stand.host.port_close_begin(&mut stand.platform, other),
        Err(PortError::NoSuchPort)
    ));
    let heard = stand.heard();
    assert!(heard.contains(&HostEvent::PortOpen {
        port: PortId(3),
        generation: third.generation,
        counts_from: 0,
    }));
}

/// Numbers that an allow-list may name are not given to a program that asks for any.
#[test]
pub(crate) fn reserved_numbers_are_given_only_by_name() {
    let config = HostConfig {
        reserved_ports: 3,
        ..config()
    };
    let mut stand = Stand::with(&config, &geometry());
    let mut open = |wanted: Option<u16>| stand.host.port_open(&mut stand.platform, wanted.map(PortId));
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
    let mut stand = Stand::with(&all, &geometry());
    assert_eq!(
        stand.host.port_open(&mut stand.platform, None),
        Err(PortError::AllInUse)
    );
}

#[test]
pub(crate) fn an_open_port_finds_its_memory_clean() {
    let mut stand = Stand::new();
    let port = stand.open();
    let block = bar::BarMap::new(stand.host.geometry()).port(port.port);
    let area = stand.map.port_area(port.port);
    let stale = [
        block,
        block.plus(bar::port::SIGNALLED.0 + 5),
        block.plus(bar::port::BLOCK_WORDS - 1),
    ];
    for at in stale {
        stand.platform.bar.store_release(at, 77);
    }
    stand
        .platform
        .shared
        .store_release(area.plus(port_area::NOTIFICATION_WRITE.0), 77);
    stand
        .platform
        .shared
        .store_release(area.plus(port_area::AREA_WORDS - 1), 77);
    stand.close(port);
    let state = area.plus(port_area::PORT_STATE.0);
    assert_eq!(
        stand.platform.shared.load_acquire(state),
        u32::from(Status::NoSuchPort.code())
    );
    let again = stand.open();
    assert_eq!(again.port, port.port);
    assert_ne!(again.generation, port.generation);
    for at in stale {
        assert_eq!(stand.platform.bar.load_acquire(at), 0);
    }
    for word in 0..port_area::AREA_WORDS {
        let expected = if word == port_area::PORT_GENERATION.0 {
            again.generation.0
        } else {
            0
        };
        assert_eq!(stand.platform.shared.load_acquire(area.plus(word)), expected);
    }
}

#[test]
pub(crate) fn a_dead_process_leaves_nothing() {
    let (mut stand, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let in_hand = stand.bounce(Stand::window(PEER, 0), &header);
    stand.bounce(Stand::window(PEER, 1), &header);
    stand.source_miss(2, page_of(port, 30), 8, 0);
    stand.poll();
    assert!(matches!(stand.next(port), Some(WorkStep::PageIn { .. })));
    let held = stand.lock(page_of(port, 16), true).expect("mapped");
    stand.heard();
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    assert!(
        stand.host.port_close_begin(&mut stand.platform, port).is_err(),
        "once"
    );
    assert_eq!(
        stand.host.port_open(&mut stand.platform, Some(port.port)),
        Err(PortError::InUse)
    );
    assert!(stand.map(page_of(port, 31), 1, true).is_err(), "nothing new");
    for _ in 0..5 {
        assert_ne!(
            step(&mut stand, &mut close),
            Progress::Done,
            "the NIC holds a page"
        );
        stand.poll();
    }
    stand.unlock(held, Used::Written);
    for _ in 0..10 {
        assert_ne!(
            step(&mut stand, &mut close),
            Progress::Done,
            "a worker has its work"
        );
        stand.poll();
    }
    assert_eq!(
        stand.paged(in_hand, Ok(1)),
        WorkStep::Ended {
            status: Status::NoSuchPort
        }
    );
    stand.poll();
    assert_eq!(step(&mut stand, &mut close), Progress::Done);
    assert_eq!(stand.host.mapped_pages(), 0);
    assert_eq!(stand.gone.len() as u64, stand.count("pages_unmapped"));
    assert!(
        stand
            .gone
            .iter()
            .any(|page| page.dirty && page.vpn == page_of(port, 16))
    );
    let ends = statuses(&mut stand);
    assert_eq!(ends.len(), 2, "each answered once: {ends:?}");
    assert!(ends.iter().all(|end| end.1 == Status::NoSuchPort));
    assert!(
        stand
            .granted(PEER, PortId(2), port, "a", Modes::WRITE, 2)
            .is_err(),
        "its exports are gone"
    );
    // The next owner of the number has none of it.
    let next = stand.open();
    assert_eq!(next.port, port.port);
    stand.register(next, 16, 16);
    let late = stand.bounce(Stand::window(PEER, 3), &header);
    stand.poll();
    assert_eq!(stand.next(next), None);
    assert_eq!(statuses(&mut stand), [(late.bounce.0, Status::CapabilityRefused)]);
}

#[test]
pub(crate) fn a_port_that_the_nic_does_not_close_means_a_dead_card() {
    let (mut stand, port, _) = busy();
    stand.obliging = false;
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    // The barrier of its grants is not answered either.
    for _ in 0..50 {
        let _ = step(&mut stand, &mut close);
    }
    let notices = stand.card_runs(11);
    assert_eq!(
        notices.last(),
        Some(&Notice::CardDead(CardFailure::AnswerDeadline))
    );
    assert_ne!(
        step(&mut stand, &mut close),
        Progress::Done,
        "it may still do DMA"
    );
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    let mut steps = 0;
    while step(&mut stand, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(stand.host.mapped_pages(), 0);
    // A port without grants waits for its own answer only.
    let mut stand = Stand::new();
    let port = stand.open();
    stand.obliging = false;
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    assert_eq!(step(&mut stand, &mut close), Progress::Wait);
    stand.card_runs(9);
    assert_eq!(step(&mut stand, &mut close), Progress::Wait);
    assert_eq!(stand.host.card(), CardState::Alive);
    stand.card_runs(2);
    assert_eq!(step(&mut stand, &mut close), Progress::Wait);
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::AnswerDeadline));
}

#[test]
pub(crate) fn a_new_incarnation_comes_after_the_old_one_is_let_go() {
    let (mut stand, port, grant) = busy();
    let header = write(port, &grant, 30 * PAGE, 8);
    let mut reply = Header::new(Kind::ReadReply, PEER, NODE);
    reply.destination_port = port.port;
    reply.address = VirtAddr(30 * PAGE);
    let paging = stand.bounce(Stand::window(PEER, 0), &header);
    stand.poll();
    stand.next(port);
    let copying = stand.bounce(Stand::window(PEER, 1), &header);
    stand.poll();
    stand.next(port);
    let _ = stand.paged(copying, Ok(1));
    stand.bounce(Stand::window(PEER, 2), &header);
    let waiting = stand.bounce(BounceUse::Reply(ReadSlot(0)), &reply);
    stand.poll();
    stand.heard();
    let incarnation = Incarnation(78);
    stand.say(NicEvent::PeerReset {
        peer: PEER,
        incarnation,
    });
    assert!(stand.poll().contains(&Notice::PeerDown { peer: PEER }));
    assert_eq!(stand.host.peer(PEER), None);
    assert_eq!(statuses(&mut stand), [(waiting.bounce.0, Status::LinkLost)]);
    let released = HostEvent::PeerReleased {
        peer: PEER,
        incarnation,
    };
    assert_eq!(stand.next(port), None, "what waited is dropped");
    assert_eq!(
        stand.paged(paging, Ok(1)),
        WorkStep::Ended {
            status: Status::StaleIncarnation
        }
    );
    stand.poll();
    assert!(
        !stand.heard().contains(&released),
        "a bounce page is still being copied"
    );
    // The card has no more to say, so the driver does not poll: the worker's end of its copy is all there is.
    let _ = stand.copied(copying, CopyEnd::Done);
    let heard = stand.heard();
    assert!(heard.contains(&released));
    assert!(
        !heard
            .iter()
            .any(|event| matches!(event, HostEvent::BounceEnded { .. }))
    );
    stand.link_up(PEER);
    let late = stand.bounce(Stand::window(PEER, 0), &header);
    stand.poll();
    assert_eq!(stand.next(port), None);
    let refused = (late.bounce.0, Status::CapabilityRefused);
    assert_eq!(statuses(&mut stand), [refused], "the old life's grant is void");
    assert_eq!(stand.count("bounce_dropped"), 4);
    assert_eq!(
        (stand.count("peers_reset"), stand.count("peers_released")),
        (1, 1)
    );
}

/// A lock's members, say, are known by the lower half of it.
#[test]
pub(crate) fn a_node_that_restarts_gives_its_ports_other_generations() {
    let first = |start: u32| {
        let mut platform = fake(&geometry());
        platform.bar.store_release(bar::header::INCARNATION, start);
        let host = Host::attach(&mut platform, &mut Heap::default(), &config(), Nanos(0));
        let mut host = host.expect("attaches");
        let port = host.port_open(&mut platform, None).expect("a port");
        port.generation.0 as u16
    };
    for step in [1, 0x1_0000] {
        let firsts: BTreeSet<_> = (1..=100).map(|start| first(start * step)).collect();
        assert_eq!(firsts.len(), 100, "starts whose numbers differ by {step:#x}");
    }
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
    let mut stand = Stand::with(&config, &large);
    let port = stand.open();
    stand.register(port, 16, 1);
    stand.export(port, "a", 16, 1, Modes::all());
    for life in 0..4 {
        stand.link_up(PEER);
        for token in 0..300 {
            let grant = stand.granted(PEER, PortId(2), port, "a", Modes::READ, life * 1000 + token);
            assert!(grant.is_ok(), "{token}");
        }
        let incarnation = Incarnation(100 + life);
        stand.say(NicEvent::PeerReset {
            peer: PEER,
            incarnation,
        });
        let notices = stand.poll();
        let slices = notices
            .iter()
            .filter(|notice| **notice == Notice::Progress)
            .count();
        assert!(slices >= 3, "the lock is let go in between: {notices:?}");
        let released = HostEvent::PeerReleased {
            peer: PEER,
            incarnation,
        };
        assert!(stand.heard().contains(&released));
    }
    assert_eq!(stand.count("grants_revoked"), 1200);
}

/// A worker copies a message of the first one until the second one is lost, too: then both may be let go of.
#[test]
pub(crate) fn of_two_lost_peers_a_look_lets_go_of_one_slice() {
    let large = Geometry {
        capabilities: 600,
        ..geometry()
    };
    let config = netvm_host::attach::HostConfig {
        geometry: Some(large),
        ..config()
    };
    let mut stand = Stand::with(&config, &large);
    let port = stand.open();
    stand.register(port, 16, 1);
    stand.export(port, "a", 16, 1, Modes::all());
    let peers = [PEER, NodeId(2)];
    let mut grants = Vec::new();
    for peer in peers {
        stand.link_up(peer);
        for token in 0..200 {
            let grant = stand.granted(peer, PortId(2), port, "a", Modes::WRITE, token);
            grants.push(grant.expect("a grant"));
        }
    }
    let held = stand.bounce(Stand::window(PEER, 0), &write(port, &grants[0], 16 * PAGE, 8));
    stand.poll();
    assert!(stand.next(port).is_some());
    let (_, _) = job(stand.paged(held, Ok(1)));
    for peer in peers {
        stand.say(NicEvent::PeerReset {
            peer,
            incarnation: Incarnation(100),
        });
        assert_eq!(
            stand.host.poll(&mut stand.platform, stand.now),
            Some(Notice::PeerDown { peer })
        );
    }
    assert_eq!(stand.count("grants_revoked"), 2 * 64);
    assert!(matches!(
        stand.copied(held, CopyEnd::Done),
        WorkStep::Ended { .. }
    ));
    let mut before = stand.count("grants_revoked");
    while stand.host.poll(&mut stand.platform, stand.now).is_some() {
        let after = stand.count("grants_revoked");
        assert!(after - before <= 64, "{} grants in one look", after - before);
        before = after;
    }
    stand.poll();
    assert_eq!(stand.count("grants_revoked"), 400);
    assert_eq!(stand.count("peers_released"), 2);
}

#[test]
pub(crate) fn a_lost_peer_is_answered_too() {
    let (mut stand, _, _) = busy();
    stand.heard();
    stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    stand.poll();
    assert!(stand.heard().contains(&HostEvent::PeerReleased {
        peer: PEER,
        incarnation: LINK
    }));
    assert_eq!(stand.count("peers_lost"), 1);
}

#[test]
pub(crate) fn a_sleeping_nic_is_woken_once_for_each_event() {
    let mut stand = Stand::new();
    stand.host.connect(&mut stand.platform, NodeId(2));
    stand.heard();
    assert_eq!(stand.platform.wakes, 0, "it is awake");
    stand.platform.shared.store_release(status_page::SLEEPING, 1);
    stand.host.connect(&mut stand.platform, PEER);
    stand.host.connect(&mut stand.platform, PEER);
    stand.host.connect(&mut stand.platform, NodeId(99));
    assert_eq!((stand.platform.wakes, stand.count("nic_wakes")), (1, 1));
    assert_eq!(stand.heard(), [HostEvent::PeerConnect { peer: PEER }]);
    // A peer that never answered is greeted again at the next request.
    stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: Incarnation(0),
    });
    stand.poll();
    stand.heard();
    stand.host.connect(&mut stand.platform, PEER);
    assert_eq!(stand.heard(), [HostEvent::PeerConnect { peer: PEER }]);
}

#[test]
pub(crate) fn control_messages_for_a_closing_port_find_nothing() {
    let (mut stand, port, _) = busy();
    let _close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    stand.control(
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
    stand.poll();
    let sent = stand.sent();
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
