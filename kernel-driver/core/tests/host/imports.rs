//! Imports of this node's ports, and control messages that make no sense.

use netvm_abi::control::{CONTROL_BYTES, Control, Grant, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::events::Notice;
use netvm_host::imports::{ImportError, ImportSpec};
use netvm_host::ports::OpenPort;
use netvm_kit::host::*;
use proptest::prelude::*;

fn world() -> (Rig, OpenPort) {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.link_up(PEER);
    rig.heard();
    (rig, port)
}

pub(crate) fn some_grant() -> Grant {
    Grant {
        start: VirtAddr(0x1000),
        len: 64,
        capability: CapabilitySlot(4),
        secret: 99,
        modes: Modes::WRITE,
        notify_first: NotificationId::NONE,
        notify_last: NotificationId::NONE,
        queue: QueueShape::NONE,
    }
}

fn ended(notices: &[Notice]) -> Vec<Result<Grant, Status>> {
    notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::Imported { result, .. } => Some(*result),
            _ => None,
        })
        .collect()
}

#[test]
pub(crate) fn an_import_asks_and_is_granted() {
    let (mut rig, port) = world();
    let token = rig.import(port, "x", false);
    let asked = Control::Import {
        token,
        port: PortId(3),
        importer: port.port,
        modes: Modes::WRITE,
        name: name("x"),
    };
    assert_eq!(rig.sent(), [(PEER, asked)]);
    let granted = Control::Granted {
        token,
        grant: some_grant(),
    };
    rig.control(NodeId(2), 0, &granted);
    assert_eq!(ended(&rig.poll()), [], "another node cannot answer");
    assert_eq!(rig.count("stray_grants"), 1);
    rig.control(PEER, 1, &granted);
    let notices = rig.poll();
    let imported = Notice::Imported {
        port: port.port,
        import: token,
        result: Ok(some_grant()),
    };
    assert!(notices.contains(&imported), "{notices:?}");
    rig.sent();
    // The same answer again is no stray one, another is, and is given back.
    rig.control(PEER, 2, &granted);
    rig.poll();
    assert_eq!(rig.sent(), []);
    let other = Grant {
        capability: CapabilitySlot(5),
        ..some_grant()
    };
    rig.control(PEER, 3, &Control::Granted { token, grant: other });
    rig.poll();
    let release = |grant: Grant| Control::Release {
        capability: grant.capability,
        secret: grant.secret,
    };
    assert_eq!(rig.sent(), [(PEER, release(other))]);
    rig.host
        .unimport(&mut rig.platform, port.port, token, rig.now)
        .expect("live");
    assert_eq!(rig.sent(), [(PEER, release(some_grant()))]);
    let spent = rig.host.unimport(&mut rig.platform, port.port, token, rig.now);
    assert_eq!(spent, Err(ImportError::NoSuchImport));
}

#[test]
pub(crate) fn a_refusal_ends_it_unless_it_waits_for_the_export() {
    let (mut rig, port) = world();
    for (status, wait, again) in [
        (Status::NoSuchExport, false, false),
        (Status::NoSuchExport, true, true),
        (Status::NoSuchPort, true, true),
        (Status::NotAllowed, true, false),
    ] {
        let token = rig.import(port, "x", wait);
        rig.sent();
        rig.control(PEER, 0, &Control::Refused { token, status });
        let notices = ended(&rig.poll());
        if again {
            assert_eq!(notices, []);
            assert!(rig.host.next_deadline() <= rig.now.after(Nanos::from_millis(2)));
            rig.now = rig.now.after(Nanos::from_millis(2));
            rig.poll();
            assert_eq!(rig.sent().len(), 1, "asks again");
            rig.now = rig.now.after(Nanos::from_millis(200));
            assert_eq!(ended(&rig.poll()), [Err(Status::TimedOut)]);
        } else {
            assert_eq!(notices, [Err(status)]);
        }
    }
    assert_eq!(rig.count("imports_failed"), 4);
    assert!(rig.count("imports_retried") >= 2);
}

#[test]
pub(crate) fn a_lost_answer_is_asked_for_again_until_the_deadline() {
    let (mut rig, port) = world();
    rig.import(port, "x", false);
    let mut asked = 0;
    loop {
        asked += rig.sent().len();
        let due = rig.host.next_deadline();
        assert!(due < Nanos::MAX);
        rig.now = rig.now.max(due);
        if let [end] = ended(&rig.poll())[..] {
            assert_eq!(end, Err(Status::TimedOut));
            break;
        }
    }
    assert!((2..50).contains(&asked), "{asked} requests in 100 ms");
    assert_eq!(rig.now, Nanos::from_millis(100));
}

#[test]
pub(crate) fn without_a_link_it_fails_or_waits_for_it() {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.heard();
    rig.import(port, "x", false);
    assert_eq!(ended(&rig.poll()), [Err(Status::LinkLost)]);
    assert_eq!(
        rig.heard(),
        [HostEvent::PeerConnect { peer: PEER }],
        "connects by itself"
    );
    rig.import(port, "x", true);
    assert_eq!(ended(&rig.poll()), []);
    assert_eq!(rig.heard(), []);
    rig.link_up(PEER);
    assert_eq!(rig.sent().len(), 1);
    // A link that fails under way, and a request that the NIC cannot send.
    rig.import(port, "y", false);
    rig.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    assert_eq!(ended(&rig.poll()), [Err(Status::LinkLost)]);
    rig.link_up(PEER);
    rig.heard();
    rig.obliging = false;
    rig.import(port, "z", false);
    let heard = rig.heard();
    let Some(HostEvent::SendControl { token, .. }) = heard.last() else {
        panic!("{heard:?}");
    };
    rig.say(NicEvent::ControlSent {
        token: *token,
        status: Status::LinkLost,
    });
    assert_eq!(ended(&rig.poll()), [Err(Status::LinkLost)]);
    assert_eq!(rig.count("control_failed"), 1);
}

#[test]
pub(crate) fn a_revocation_and_a_lost_node_void_an_import() {
    let (mut rig, port) = world();
    let grant = |rig: &mut Rig, slot| {
        let token = rig.import(port, "x", false);
        let grant = Grant {
            capability: CapabilitySlot(slot),
            ..some_grant()
        };
        rig.control(PEER, 0, &Control::Granted { token, grant });
        token
    };
    let first = grant(&mut rig, 4);
    rig.poll();
    let second = grant(&mut rig, 5);
    rig.poll();
    let revoked = |slot, exporter| Control::Revoked {
        capability: CapabilitySlot(slot),
        exporter,
    };
    rig.control(PEER, 0, &revoked(9, PEER));
    rig.control(PEER, 1, &revoked(4, NodeId(2)));
    rig.control(NodeId(2), 0, &revoked(4, NodeId(2)));
    assert!(
        !rig.poll()
            .iter()
            .any(|n| matches!(n, Notice::ImportRevoked { .. }))
    );
    rig.control(PEER, 0, &revoked(4, PEER));
    let notices = rig.poll();
    let lost = |import| Notice::ImportRevoked {
        port: port.port,
        import,
    };
    assert!(notices.contains(&lost(first)), "{notices:?}");
    rig.say(NicEvent::PeerReset {
        peer: PEER,
        incarnation: Incarnation(78),
    });
    assert!(rig.poll().contains(&lost(second)));
    rig.sent();
    for token in [first, second] {
        rig.host
            .unimport(&mut rig.platform, port.port, token, rig.now)
            .expect("there");
    }
    assert_eq!(rig.sent(), [], "nothing to release");
    // Revoked before the platform heard of the grant: it never was.
    rig.link_up(PEER);
    let third = rig.import(port, "x", false);
    rig.control(
        PEER,
        0,
        &Control::Granted {
            token: third,
            grant: some_grant(),
        },
    );
    rig.control(PEER, 1, &revoked(4, PEER));
    let mut heard = Vec::new();
    // Both messages before the news.
    rig.now = rig.now.after(Nanos(1));
    while let Some(notice) = rig.host.poll(&mut rig.platform, rig.now) {
        heard.push(notice);
    }
    assert!(heard.iter().any(|n| matches!(n, Notice::Imported { .. })));
}

#[test]
pub(crate) fn an_import_given_up_before_its_news_is_never_heard_of() {
    let (mut rig, port) = world();
    let token = rig.import(port, "x", false);
    rig.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    rig.control(
        PEER,
        1,
        &Control::Granted {
            token: Token(9),
            grant: some_grant(),
        },
    );
    // One poll takes both messages and says the first news.
    let first = rig.host.poll(&mut rig.platform, rig.now);
    assert!(matches!(first, Some(Notice::Imported { .. })));
    let token = rig.import(port, "y", false);
    rig.host
        .unimport(&mut rig.platform, port.port, token, rig.now)
        .expect("pending");
    rig.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    assert_eq!(ended(&rig.poll()), []);
    assert_eq!(rig.count("stray_grants"), 2);
    // One that failed, unheard of, when its port is closed.
    let closing = rig.open();
    let spec = ImportSpec {
        node: NodeId(2),
        port: PortId(1),
        name: name("x"),
        modes: Modes::READ,
        deadline: Nanos::MAX,
        wait: false,
    };
    rig.host
        .import(&mut rig.platform, closing.port, &spec, rig.now)
        .expect("begins");
    let mut close = rig
        .host
        .port_close_begin(&mut rig.platform, closing)
        .expect("open");
    let _ = rig
        .host
        .port_close_step(&mut rig.platform, &mut close, rig.now, 9, &mut |_| {});
    assert_eq!(ended(&rig.poll()), []);
}

#[test]
pub(crate) fn the_end_of_an_earlier_control_message_frees_no_slot() {
    let (mut rig, port) = world();
    rig.obliging = false;
    let mut tokens = Vec::new();
    for i in 0..2 {
        let import = rig.import(port, "x", false);
        let heard = rig.heard();
        let Some(&HostEvent::SendControl { token, slot, .. }) = heard.last() else {
            panic!("{heard:?}");
        };
        tokens.push((token, slot));
        if i == 0 {
            rig.say(NicEvent::ControlSent {
                token,
                status: Status::Ok,
            });
            rig.poll();
            rig.host
                .unimport(&mut rig.platform, port.port, import, rig.now)
                .expect("pending");
        }
    }
    assert_eq!(tokens[0].1, tokens[1].1, "the same slot again");
    rig.say(NicEvent::ControlSent {
        token: tokens[0].0,
        status: Status::LinkLost,
    });
    assert_eq!(ended(&rig.poll()), []);
    assert_eq!((rig.count("nic_events_bad"), rig.count("control_failed")), (1, 0));
}

#[test]
pub(crate) fn a_port_imports_from_its_own_node_without_a_message() {
    let (mut rig, port) = world();
    let other = rig.open();
    rig.register(other, 0, 4);
    let own = ImportSpec {
        node: NODE,
        port: other.port,
        name: name("own"),
        modes: Modes::WRITE,
        deadline: Nanos::from_millis(50),
        wait: true,
    };
    let token = rig
        .host
        .import(&mut rig.platform, port.port, &own, rig.now)
        .expect("begins");
    assert_eq!(ended(&rig.poll()), []);
    let export = rig.export(other, "own", 0, 4, Modes::WRITE);
    rig.now = Nanos::from_millis(2);
    let notices = ended(&rig.poll());
    assert!(
        matches!(notices[..], [Ok(grant)] if grant.len == 4 * PAGE),
        "{notices:?}"
    );
    let mut unexport = rig.host.unexport_begin(other.port, export).expect("there");
    let _ = rig.host.unexport_step(&mut rig.platform, &mut unexport, rig.now);
    let lost = Notice::ImportRevoked {
        port: port.port,
        import: token,
    };
    assert!(rig.poll().contains(&lost));
    rig.host
        .unimport(&mut rig.platform, port.port, token, rig.now)
        .expect("there");
    // And one that is released.
    let _ = rig.host.unexport_step(&mut rig.platform, &mut unexport, rig.now);
    rig.export(other, "own", 0, 4, Modes::WRITE);
    let token = rig
        .host
        .import(&mut rig.platform, port.port, &own, rig.now)
        .expect("begins");
    rig.poll();
    rig.host
        .unimport(&mut rig.platform, port.port, token, rig.now)
        .expect("there");
    assert_eq!(rig.count("grants_released"), 1);
    assert_eq!(rig.sent(), []);
}

#[test]
pub(crate) fn an_import_is_refused_for_a_clear_reason() {
    let (mut rig, port) = world();
    let spec = ImportSpec {
        node: PEER,
        port: PortId(3),
        name: name("x"),
        modes: Modes::WRITE,
        deadline: Nanos::from_millis(1),
        wait: true,
    };
    let mut import = |port, spec: &ImportSpec| rig.host.import(&mut rig.platform, port, spec, Nanos(0));
    assert_eq!(import(PortId(7), &spec), Err(ImportError::NoSuchPort));
    let nowhere = ImportSpec {
        node: NodeId(3),
        ..spec
    };
    assert_eq!(import(port.port, &nowhere), Err(ImportError::NoSuchNode));
    // Of 16 places, six belong to the other ports.
    for _ in 0..10 {
        assert!(import(port.port, &spec).is_ok());
    }
    assert_eq!(import(port.port, &spec), Err(ImportError::TableFull));
    rig.now = Nanos::from_millis(1);
    assert_eq!(ended(&rig.poll()).len(), 10, "and all places come back");
    assert!(
        rig.host
            .import(&mut rig.platform, port.port, &spec, rig.now)
            .is_ok()
    );
}

#[test]
pub(crate) fn a_request_that_cannot_be_answered_now_is_dropped_without_a_grant() {
    let (mut rig, port) = world();
    rig.register(port, 0, 1);
    rig.export(port, "a", 0, 1, Modes::all());
    rig.obliging = false;
    for token in 0..30 {
        rig.control(
            PEER,
            0,
            &Control::Import {
                token: Token(token),
                port: port.port,
                importer: PortId(1),
                modes: Modes::READ,
                name: name("none"),
            },
        );
        rig.poll();
    }
    let answers = rig.heard();
    let sent = answers
        .iter()
        .filter(|e| matches!(e, HostEvent::SendControl { .. }))
        .count();
    let ended = answers
        .iter()
        .filter(|e| matches!(e, HostEvent::BounceEnded { .. }))
        .count();
    assert_eq!((sent, ended), (24, 30), "no request keeps its slot");
    assert_eq!(rig.count("import_requests_dropped"), 6);
    // A farewell finds its own slots.
    let token = rig.import(port, "x", false);
    rig.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    rig.poll();
    for _ in 0..16 {
        rig.control(
            PEER,
            0,
            &Control::Granted {
                token: Token(9),
                grant: some_grant(),
            },
        );
        rig.poll();
    }
    let left = rig.host.unimport(&mut rig.platform, port.port, token, rig.now);
    assert_eq!(left, Ok(()), "it is told later");
    let left = rig.host.unimport(&mut rig.platform, port.port, token, rig.now);
    assert_eq!(left, Err(ImportError::NoSuchImport), "its token is over");
    // Nor can the port be closed before its import is released.
    let mut close = rig.host.port_close_begin(&mut rig.platform, port).expect("open");
    let step = |rig: &mut Rig, close: &mut _| {
        let now = rig.now;
        rig.host
            .port_close_step(&mut rig.platform, close, now, 99, &mut |_| {})
    };
    let mut heard = Vec::new();
    for _ in 0..20 {
        for event in rig.heard() {
            match event {
                HostEvent::Barrier { token } => rig.say(NicEvent::BarrierDone { token }),
                HostEvent::PortClose { port, generation } => {
                    rig.say(NicEvent::PortClosed { port, generation })
                }
                event => heard.push(event),
            }
        }
        rig.poll();
        assert_ne!(step(&mut rig, &mut close), Progress::Done);
    }
    for event in heard {
        if let HostEvent::SendControl { token, .. } = event {
            rig.say(NicEvent::ControlSent {
                token,
                status: Status::Ok,
            });
        }
    }
    rig.poll();
    assert_eq!(step(&mut rig, &mut close), Progress::Done);
    let release = Control::Release {
        capability: some_grant().capability,
        secret: some_grant().secret,
    };
    assert!(rig.sent().contains(&(PEER, release)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any words from any node, in any place: an answer to the sender at most, and its slot ends.
    #[test]
    fn hostile_control_messages_are_harmless(
        messages in proptest::collection::vec(
            (1u16..3, 0u16..64, proptest::array::uniform32(any::<u32>()), 0u32..8, any::<u16>(), any::<bool>()),
            1..40,
        ),
    ) {
        let (mut rig, port) = world();
        rig.register(port, 0, 8);
        rig.export(port, "a", 0, 8, Modes::all());
        let live = rig.granted(PEER, PortId(2), port, "a", Modes::WRITE, 1).expect("granted");
        let mut expected = 0;
        for (from, slot, mut words, kind, len, driver) in messages {
            if kind < 6 {
                words[0] = kind;
                words[1] %= 32;
            }
            let place = Rig::window(NodeId(from), slot);
            rig.platform.bounce.insert(place.id(rig.host.geometry()), words.to_vec());
            let mut header = Header::new(Kind::Control, NodeId(from), NODE);
            header.len = if driver { CONTROL_BYTES as u16 } else { len };
            header.source_port = PortId(u16::from(!driver) * 3);
            rig.bounce(place, &header);
            rig.poll();
            expected += 1;
        }
        let heard = rig.heard();
        let ends = heard.iter().filter(|e| matches!(e, HostEvent::BounceEnded { .. })).count();
        prop_assert_eq!(ends, expected);
        let _ = live;
        // The driver still works.
        let grant = rig.granted(NodeId(2), PortId(2), port, "a", Modes::WRITE, 12345);
        prop_assert!(matches!(grant, Ok(_) | Err(Status::TableFull)));
    }

    /// Any record in any bounce page: each event is answered once, whatever the workers are told.
    #[test]
    fn hostile_bounce_records_are_answered_once(
        records in proptest::collection::vec(
            (0u32..230, proptest::array::uniform20(any::<u32>()), any::<bool>(), 0u8..4),
            1..40,
        ),
    ) {
        use netvm_host::paging::WorkStep;
        use netvm_host::platform::CopyEnd;
        use std::collections::BTreeMap;
        let (mut rig, port) = world();
        rig.register(port, 0, 8);
        rig.export(port, "a", 0, 8, Modes::all());
        let grant = rig.granted(PEER, PortId(2), port, "a", Modes::WRITE, 1).expect("granted");
        rig.heard();
        let mut open: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut generation = 1000;
        let slots = rig.host.geometry().bounce_slots();
        let sources = slots - u32::from(rig.host.geometry().staging);
        for (place, words, sane, end) in records {
            generation += 1;
            let id = BounceId(place);
            let header = if sane { write(port, &grant, 0x100, 8).encode_words() } else { words };
            let at = rig.map.bounce_record(id);
            use netvm_abi::words::SharedWords;
            rig.platform.shared.store_slice(at, &header);
            rig.say(NicEvent::Bounced { bounce: id, generation: Generation(generation) });
            if place < sources {
                open.insert((place, generation), 0);
            }
            rig.poll();
            while let Some(step) = rig.next(port) {
                let mut step = step;
                loop {
                    step = match step {
                        WorkStep::PageIn { id, .. } if end == 0 => rig.paged(id, Err(Status::Unmapped)),
                        WorkStep::PageIn { id, .. } => rig.paged(id, Ok(3)),
                        WorkStep::Copy { id, job } => {
                            prop_assert!(u32::from(job.offset.0) + job.len.0 <= PAGE_SIZE);
                            rig.copied(id, if end == 1 { CopyEnd::Evicted } else { CopyEnd::Done })
                        }
                        WorkStep::Ended { .. } => break,
                    };
                }
            }
        }
        for event in rig.heard() {
            if let HostEvent::BounceEnded { bounce, generation, .. } = event {
                let count = open.get_mut(&(bounce.0, generation.0)).expect("was asked");
                *count += 1;
            }
        }
        prop_assert!(open.values().all(|&count| count == 1), "{:?}", open);
    }
}
