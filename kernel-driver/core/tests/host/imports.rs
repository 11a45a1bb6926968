//! Imports of this node's ports.

use netvm_abi::control::{Control, Grant, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::imports::{ImportError, ImportSpec};
use netvm_host::ports::OpenPort;
use netvm_kit::host::*;

pub(crate) fn world() -> (Stand, OpenPort) {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.link_up(PEER);
    stand.heard();
    (stand, port)
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
    let (mut stand, port) = world();
    let token = stand.import(port, "x", false);
    let asked = Control::Import {
        token,
        port: PortId(3),
        importer: port.port,
        modes: Modes::WRITE,
        name: name("x"),
    };
    assert_eq!(stand.sent(), [(PEER, asked)]);
    let granted = Control::Granted {
        token,
        grant: some_grant(),
    };
    stand.control(NodeId(2), 0, &granted);
    assert_eq!(ended(&stand.poll()), [], "another node cannot answer");
    assert_eq!(stand.count("stray_grants"), 1);
    stand.control(PEER, 1, &granted);
    let notices = stand.poll();
    let imported = Notice::Imported {
        port: port.port,
        import: token,
        result: Ok(some_grant()),
    };
    assert!(notices.contains(&imported), "{notices:?}");
    stand.sent();
    // The same answer again is no stray one, another is, and is given back.
    stand.control(PEER, 2, &granted);
    stand.poll();
    assert_eq!(stand.sent(), []);
    let other = Grant {
        capability: CapabilitySlot(5),
        ..some_grant()
    };
    stand.control(PEER, 3, &Control::Granted { token, grant: other });
    stand.poll();
    let release = |grant: Grant| Control::Release {
        capability: grant.capability,
        secret: grant.secret,
    };
    assert_eq!(stand.sent(), [(PEER, release(other))]);
    stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now)
        .expect("live");
    assert_eq!(stand.sent(), [(PEER, release(some_grant()))]);
    let spent = stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now);
    assert_eq!(spent, Err(ImportError::NoSuchImport));
}

#[test]
pub(crate) fn a_refusal_ends_it_unless_it_waits_for_the_export() {
    let (mut stand, port) = world();
    for (status, wait, again) in [
        (Status::NoSuchExport, false, false),
        (Status::NoSuchExport, true, true),
        (Status::NoSuchPort, true, true),
        (Status::NotAllowed, true, false),
    ] {
        let token = stand.import(port, "x", wait);
        stand.sent();
        stand.control(PEER, 0, &Control::Refused { token, status });
        let notices = ended(&stand.poll());
        if again {
            assert_eq!(notices, []);
            assert!(stand.host.next_deadline() <= stand.now.after(Nanos::from_millis(2)));
            stand.now = stand.now.after(Nanos::from_millis(2));
            stand.poll();
            assert_eq!(stand.sent().len(), 1, "asks again");
            stand.now = stand.now.after(Nanos::from_millis(200));
            assert_eq!(ended(&stand.poll()), [Err(Status::TimedOut)]);
        } else {
            assert_eq!(notices, [Err(status)]);
        }
    }
    assert_eq!(stand.count("imports_failed"), 4);
    assert!(stand.count("imports_retried") >= 2);
}

#[test]
pub(crate) fn a_lost_answer_is_asked_for_again_until_the_deadline() {
    let (mut stand, port) = world();
    stand.import(port, "x", false);
    let mut asked = 0;
    loop {
        asked += stand.sent().len();
        let due = stand.host.next_deadline();
        assert!(due < Nanos::MAX);
        stand.now = stand.now.max(due);
        if let [end] = ended(&stand.poll())[..] {
            assert_eq!(end, Err(Status::TimedOut));
            break;
        }
    }
    assert!((2..50).contains(&asked), "{asked} requests in 100 ms");
    assert_eq!(stand.now, Nanos::from_millis(100));
}

#[test]
pub(crate) fn without_a_link_it_fails_or_waits_for_it() {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.heard();
    stand.import(port, "x", false);
    assert_eq!(ended(&stand.poll()), [Err(Status::LinkLost)]);
    assert_eq!(
        stand.heard(),
        [HostEvent::PeerConnect { peer: PEER }],
        "connects by itself"
    );
    stand.import(port, "x", true);
    assert_eq!(ended(&stand.poll()), []);
    assert_eq!(stand.heard(), []);
    stand.link_up(PEER);
    assert_eq!(stand.sent().len(), 1);
    // A link that fails under way, and a request that the NIC cannot send.
    stand.import(port, "y", false);
    stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    assert_eq!(ended(&stand.poll()), [Err(Status::LinkLost)]);
    stand.link_up(PEER);
    stand.heard();
    stand.obliging = false;
    stand.import(port, "z", false);
    let heard = stand.heard();
    let Some(HostEvent::SendControl { token, .. }) = heard.last() else {
        panic!("{heard:?}");
    };
    stand.say(NicEvent::ControlSent {
        token: *token,
        status: Status::LinkLost,
    });
    assert_eq!(ended(&stand.poll()), [Err(Status::LinkLost)]);
    assert_eq!(stand.count("control_failed"), 1);
}

#[test]
pub(crate) fn a_revocation_and_a_lost_node_void_an_import() {
    let (mut stand, port) = world();
    let grant = |stand: &mut Stand, slot| {
        let token = stand.import(port, "x", false);
        let grant = Grant {
            capability: CapabilitySlot(slot),
            ..some_grant()
        };
        stand.control(PEER, 0, &Control::Granted { token, grant });
        token
    };
    let first = grant(&mut stand, 4);
    stand.poll();
    let second = grant(&mut stand, 5);
    stand.poll();
    let revoked = |slot, exporter| Control::Revoked {
        capability: CapabilitySlot(slot),
        exporter,
    };
    stand.control(PEER, 0, &revoked(9, PEER));
    stand.control(PEER, 1, &revoked(4, NodeId(2)));
    stand.control(NodeId(2), 0, &revoked(4, NodeId(2)));
    assert!(
        !stand
            .poll()
            .iter()
            .any(|n| matches!(n, Notice::ImportRevoked { .. }))
    );
    stand.control(PEER, 0, &revoked(4, PEER));
    let notices = stand.poll();
    let lost = |import| Notice::ImportRevoked {
        port: port.port,
        import,
    };
    assert!(notices.contains(&lost(first)), "{notices:?}");
    stand.say(NicEvent::PeerReset {
        peer: PEER,
        incarnation: Incarnation(78),
    });
    assert!(stand.poll().contains(&lost(second)));
    stand.sent();
    for token in [first, second] {
        stand
            .host
            .unimport(&mut stand.platform, port.port, token, stand.now)
            .expect("there");
    }
    assert_eq!(stand.sent(), [], "nothing to release");
    // Revoked before the platform heard of the grant: it never was.
    stand.link_up(PEER);
    let third = stand.import(port, "x", false);
    stand.control(
        PEER,
        0,
        &Control::Granted {
            token: third,
            grant: some_grant(),
        },
    );
    stand.control(PEER, 1, &revoked(4, PEER));
    let mut heard = Vec::new();
    // Both messages before the news.
    stand.now = stand.now.after(Nanos(1));
    while let Some(notice) = stand.host.poll(&mut stand.platform, stand.now) {
        heard.push(notice);
    }
    assert!(heard.iter().any(|n| matches!(n, Notice::Imported { .. })));
}

#[test]
pub(crate) fn an_import_given_up_before_its_news_is_never_heard_of() {
    let (mut stand, port) = world();
    let token = stand.import(port, "x", false);
    stand.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    stand.control(
        PEER,
        1,
        &Control::Granted {
            token: Token(9),
            grant: some_grant(),
        },
    );
    // One poll takes both messages and says the first news.
    let first = stand.host.poll(&mut stand.platform, stand.now);
    assert!(matches!(first, Some(Notice::Imported { .. })));
    let token = stand.import(port, "y", false);
    stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now)
        .expect("pending");
    stand.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    assert_eq!(ended(&stand.poll()), []);
    assert_eq!(stand.count("stray_grants"), 2);
    // One that failed, unheard of, when its port is closed.
    let closing = stand.open();
    let spec = ImportSpec {
        node: NodeId(2),
        port: PortId(1),
        name: name("x"),
        modes: Modes::READ,
        deadline: Nanos::MAX,
        wait: false,
    };
    stand
        .host
        .import(&mut stand.platform, closing.port, &spec, stand.now)
        .expect("begins");
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, closing)
        .expect("open");
    let _ = stand
        .host
        .port_close_step(&mut stand.platform, &mut close, stand.now, 9, &mut |_| {});
    assert_eq!(ended(&stand.poll()), []);
}

#[test]
pub(crate) fn the_end_of_an_earlier_control_message_frees_no_slot() {
    let (mut stand, port) = world();
    stand.obliging = false;
    let mut tokens = Vec::new();
    for i in 0..2 {
        let import = stand.import(port, "x", false);
        let heard = stand.heard();
        let Some(&HostEvent::SendControl { token, slot, .. }) = heard.last() else {
            panic!("{heard:?}");
        };
        tokens.push((token, slot));
        if i == 0 {
            stand.say(NicEvent::ControlSent {
                token,
                status: Status::Ok,
            });
            stand.poll();
            stand
                .host
                .unimport(&mut stand.platform, port.port, import, stand.now)
                .expect("pending");
        }
    }
    assert_eq!(tokens[0].1, tokens[1].1, "the same slot again");
    stand.say(NicEvent::ControlSent {
        token: tokens[0].0,
        status: Status::LinkLost,
    });
    assert_eq!(ended(&stand.poll()), []);
    assert_eq!(
        (stand.count("nic_events_bad"), stand.count("control_failed")),
        (1, 0)
    );
}

#[test]
pub(crate) fn a_port_imports_from_its_own_node_without_a_message() {
    let (mut stand, port) = world();
    let other = stand.open();
    stand.register(other, 0, 4);
    let own = ImportSpec {
        node: NODE,
        port: other.port,
        name: name("own"),
        modes: Modes::WRITE,
        deadline: Nanos::from_millis(50),
        wait: true,
    };
    let token = stand
        .host
        .import(&mut stand.platform, port.port, &own, stand.now)
        .expect("begins");
    assert_eq!(ended(&stand.poll()), []);
    let export = stand.export(other, "own", 0, 4, Modes::WRITE);
    stand.now = Nanos::from_millis(2);
    // The card would refuse a write to a node that it knows no link to.
    assert_eq!(
        ended(&stand.poll()),
        [],
        "before the card has a link to its own node"
    );
    stand.say(NicEvent::PeerUp {
        peer: NODE,
        incarnation: LINK,
    });
    let notices = ended(&stand.poll());
    assert!(
        matches!(notices[..], [Ok(grant)] if grant.len == 4 * PAGE),
        "{notices:?}"
    );
    let mut unexport = stand.host.unexport_begin(other.port, export).expect("there");
    let _ = stand
        .host
        .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    let lost = Notice::ImportRevoked {
        port: port.port,
        import: token,
    };
    assert!(stand.poll().contains(&lost));
    stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now)
        .expect("there");
    // And one that is released.
    let _ = stand
        .host
        .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    stand.export(other, "own", 0, 4, Modes::WRITE);
    let token = stand
        .host
        .import(&mut stand.platform, port.port, &own, stand.now)
        .expect("begins");
    stand.poll();
    stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now)
        .expect("there");
    assert_eq!(stand.count("grants_released"), 1);
    assert_eq!(stand.sent(), []);
}

#[test]
pub(crate) fn an_import_is_refused_for_a_clear_reason() {
    let (mut stand, port) = world();
    let spec = ImportSpec {
        node: PEER,
        port: PortId(3),
        name: name("x"),
        modes: Modes::WRITE,
        deadline: Nanos::from_millis(1),
        wait: true,
    };
    let mut import = |port, spec: &ImportSpec| stand.host.import(&mut stand.platform, port, spec, Nanos(0));
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
    stand.now = Nanos::from_millis(1);
    assert_eq!(ended(&stand.poll()).len(), 10, "and all places come back");
    assert!(
        stand
            .host
            .import(&mut stand.platform, port.port, &spec, stand.now)
            .is_ok()
    );
}

#[test]
pub(crate) fn a_request_that_cannot_be_answered_now_is_dropped_without_a_grant() {
    let (mut stand, port) = world();
    stand.register(port, 0, 1);
    stand.export(port, "a", 0, 1, Modes::all());
    stand.obliging = false;
    for token in 0..30 {
        stand.control(
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
        stand.poll();
    }
    let answers = stand.heard();
    let sent = answers
        .iter()
        .filter(|e| matches!(e, HostEvent::SendControl { .. }))
        .count();
    let ended = answers
        .iter()
        .filter(|e| matches!(e, HostEvent::BounceEnded { .. }))
        .count();
    assert_eq!((sent, ended), (24, 30), "no request keeps its slot");
    assert_eq!(stand.count("import_requests_dropped"), 6);
    // A farewell finds its own slots.
    let token = stand.import(port, "x", false);
    stand.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: some_grant(),
        },
    );
    stand.poll();
    for _ in 0..16 {
        stand.control(
            PEER,
            0,
            &Control::Granted {
                token: Token(9),
                grant: some_grant(),
            },
        );
        stand.poll();
    }
    let left = stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now);
    assert_eq!(left, Ok(()), "it is told later");
    let left = stand
        .host
        .unimport(&mut stand.platform, port.port, token, stand.now);
    assert_eq!(left, Err(ImportError::NoSuchImport), "its token is over");
    // Nor can the port be closed before its import is released.
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    let step = |stand: &mut Stand, close: &mut _| {
        let now = stand.now;
        stand
            .host
            .port_close_step(&mut stand.platform, close, now, 99, &mut |_| {})
    };
    let mut heard = Vec::new();
    for _ in 0..20 {
        for event in stand.heard() {
            match event {
                HostEvent::Barrier { token } => stand.say(NicEvent::BarrierDone { token }),
                HostEvent::PortClose { port, generation } => {
                    stand.say(NicEvent::PortClosed { port, generation })
                }
                event => heard.push(event),
            }
        }
        stand.poll();
        assert_ne!(step(&mut stand, &mut close), Progress::Done);
    }
    for event in heard {
        if let HostEvent::SendControl { token, .. } = event {
            stand.say(NicEvent::ControlSent {
                token,
                status: Status::Ok,
            });
        }
    }
    stand.poll();
    assert_eq!(step(&mut stand, &mut close), Progress::Done);
    let release = Control::Release {
        capability: some_grant().capability,
        secret: some_grant().secret,
    };
    assert!(stand.sent().contains(&(PEER, release)));
}

/// Many programs wait for the same name, as all of a job do when it begins.
#[test]
pub(crate) fn imports_that_are_due_together_are_asked_for_in_slices() {
    const WAITING: u64 = 40;
    const AT_A_TIME: u64 = 16;
    let config = HostConfig {
        imports: 128,
        ..config()
    };
    let mut stand = Stand::with(&config, &geometry());
    let port = stand.open();
    stand.link_up(PEER);
    stand.heard();
    for _ in 0..WAITING {
        let token = stand.import(port, "x", true);
        let status = Status::NoSuchExport;
        stand.control(PEER, 0, &Control::Refused { token, status });
        assert_eq!(ended(&stand.poll()), []);
        stand.sent();
    }
    let before = stand.count("imports_retried");
    stand.now = stand.now.after(Nanos::from_millis(2));
    let mut steps = 0;
    while stand.count("imports_retried") < before + WAITING {
        let asked = stand.count("imports_retried");
        assert!(stand.host.next_deadline() <= stand.now, "{asked} of them asked");
        let notice = stand.host.poll(&mut stand.platform, stand.now);
        assert!(stand.count("imports_retried") <= asked + AT_A_TIME, "in one step");
        assert!(notice.is_some() || stand.count("imports_retried") == before + WAITING);
        steps += 1;
        assert!(steps < 100, "they are not asked for");
    }
    assert!(steps >= 3, "{steps} steps");
}
