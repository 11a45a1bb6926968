//! Segments, exports, grants and their ends (promise P5).

use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::control::{Control, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::attach::HostConfig;
use netvm_host::exports::{Allow, ExportError, ExportSpec};
use netvm_host::imports::ImportSpec;
use netvm_host::ports::OpenPort;
use netvm_host::segments::SegmentError;
use netvm_kit::host::*;
use proptest::prelude::*;
use std::time::Instant;

const GIB: u64 = 1 << 30;

fn world() -> (Stand, OpenPort) {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 16, 16);
    stand.link_up(PEER);
    (stand, port)
}

fn spec<'a>(text: &str, start: u64, len: u64, allow: &'a [Allow]) -> ExportSpec<'a> {
    ExportSpec {
        name: name(text),
        start: VirtAddr(start),
        len,
        modes: Modes::all(),
        notify_first: NotificationId(1),
        notify_last: NotificationId(9),
        queue: shared_queue::QueueShape::NONE,
        allow,
    }
}

/// What the NIC sees in a slot.
fn published(stand: &Stand, slot: CapabilitySlot) -> Option<Capability> {
    let map = bar::BarMap::new(stand.host.geometry());
    Capability::load(&*stand.platform.bar, capability_at(map.capabilities, slot))
}

#[test]
pub(crate) fn a_range_is_refused_for_a_clear_reason() {
    let (mut stand, port) = world();
    let mut register = |port: PortId, start: u64, len: u64| stand.host.register(port, VirtAddr(start), len);
    let p = port.port;
    assert_eq!(register(PortId(4), 0, PAGE), Err(SegmentError::NoSuchPort));
    assert_eq!(register(PortId(0), 0, PAGE), Err(SegmentError::NoSuchPort));
    assert_eq!(register(PortId(999), 0, PAGE), Err(SegmentError::NoSuchPort));
    assert_eq!(register(p, 0, 0), Err(SegmentError::Empty));
    assert_eq!(register(p, 1, PAGE), Err(SegmentError::Unaligned));
    assert_eq!(register(p, 0, 100), Err(SegmentError::Unaligned));
    assert_eq!(register(p, 1 << 60, PAGE), Err(SegmentError::OutOfRange));
    assert_eq!(
        register(p, (1 << 60) - PAGE, 2 * PAGE),
        Err(SegmentError::OutOfRange)
    );
    assert_eq!(register(p, 0, !(PAGE - 1)), Err(SegmentError::OutOfRange));
    assert!(register(p, (1 << 60) - PAGE, PAGE).is_ok());
    for (start, pages) in [(16, 1), (15, 2), (31, 1), (31, 9), (0, 99), (16, 16)] {
        let overlap = register(p, start * PAGE, pages * PAGE);
        assert!(
            matches!(overlap, Err(SegmentError::Overlap(_))),
            "{start}+{pages}"
        );
    }
    assert!(register(p, 15 * PAGE, PAGE).is_ok());
    assert!(register(p, 32 * PAGE, PAGE).is_ok());
    // Of 16 places, six belong to the other ports.
    for page in 0..6 {
        assert!(register(p, (100 + 2 * page) * PAGE, PAGE).is_ok());
    }
    assert_eq!(register(p, 500 * PAGE, PAGE), Err(SegmentError::TableFull));
    let other = stand.open();
    let missing = stand.host.unregister_begin(other.port, SegmentId(1 << 16));
    assert!(matches!(missing, Err(SegmentError::NoSuchSegment)), "another's");
    let missing = stand.host.unregister_begin(p, SegmentId(u32::MAX));
    assert!(matches!(missing, Err(SegmentError::NoSuchSegment)));
}

proptest! {
    /// Look-up against a model that looks at every segment.
    #[test]
    fn an_address_has_the_segment_that_holds_it(
        ranges in proptest::collection::vec((0u64..3, 0u64..60, 1u64..9), 1..16),
        asked in proptest::collection::vec((0u64..4, 0u64..70 * PAGE), 20),
    ) {
        // Room for all of them in one port, beside what belongs to the others.
        let config = HostConfig {
            segments: 32,
            ..config()
        };
        let mut stand = Stand::with(&config, &geometry());
        let ports: Vec<_> = (0..3).map(|_| stand.open()).collect();
        let mut model: Vec<(PortId, u64, u64, SegmentId)> = Vec::new();
        for (port, first, pages) in ranges {
            let port = ports[port as usize].port;
            let overlap = model.iter().any(|s| s.0 == port && first < s.1 + s.2 && s.1 < first + pages);
            match stand.host.register(port, VirtAddr(first * PAGE), pages * PAGE) {
                Ok(id) => {
                    prop_assert!(!overlap);
                    model.push((port, first, pages, id));
                }
                Err(error) => prop_assert!(overlap && matches!(error, SegmentError::Overlap(_))),
            }
        }
        for (port, address) in asked {
            let port = PortId(port as u16 + 1);
            let page = address / PAGE;
            let expected = model.iter().find(|s| s.0 == port && s.1 <= page && page < s.1 + s.2);
            let found = stand.host.locate(port, VirtAddr(address));
            prop_assert_eq!(found, expected.map(|s| (s.3, address - s.1 * PAGE)));
        }
    }
}

#[test]
pub(crate) fn an_export_is_refused_for_a_clear_reason() {
    let (mut stand, port) = world();
    let p = port.port;
    let all = anyone(Modes::all());
    let at = 16 * PAGE;
    let mut export = |port, spec: &ExportSpec<'_>| stand.host.export(port, spec);
    assert_eq!(
        export(PortId(4), &spec("a", at, 1, &all)),
        Err(ExportError::NoSuchPort)
    );
    assert_eq!(export(p, &spec("a", at, 0, &all)), Err(ExportError::Empty));
    for (start, len) in [
        (at - 1, 1),
        (at - 1, 2),
        (at, 16 * PAGE + 1),
        (32 * PAGE, 1),
        (at, u64::MAX),
        (u64::MAX, 2),
    ] {
        assert_eq!(
            export(p, &spec("a", start, len, &all)),
            Err(ExportError::NotRegistered)
        );
    }
    let bad = ExportSpec {
        notify_first: NotificationId(0),
        ..spec("a", at, 1, &all)
    };
    assert_eq!(export(p, &bad), Err(ExportError::BadNotifications));
    let bad = ExportSpec {
        notify_first: NotificationId(10),
        ..spec("a", at, 1, &all)
    };
    assert_eq!(export(p, &bad), Err(ExportError::BadNotifications));
    let many = [all[0]; 17];
    assert_eq!(
        export(p, &spec("a", at, 1, &many)),
        Err(ExportError::TooManyAllowed)
    );
    let first = export(p, &spec("a", at + 3, 5, &all)).expect("byte granular");
    assert_eq!(
        export(p, &spec("a", at, 9, &all)),
        Err(ExportError::NameTaken(first))
    );
    // Of 16 places, six belong to the other ports.
    for i in 0..9 {
        assert!(
            export(p, &spec(&format!("b{i}"), at, 5, &all)).is_ok(),
            "several names a range"
        );
    }
    assert_eq!(export(p, &spec("c", at, 5, &all)), Err(ExportError::TableFull));
    let other = stand.open();
    assert!(matches!(
        stand.host.unexport_begin(other.port, first),
        Err(ExportError::NoSuchExport)
    ));
}

#[test]
pub(crate) fn an_importer_gets_what_root_list_and_request_all_give() {
    let (mut stand, port) = world();
    let allow = [
        Allow {
            node: Some(PEER),
            port: Some(PortId(2)),
            modes: Modes::READ | Modes::WRITE,
        },
        Allow {
            node: Some(PEER),
            port: None,
            modes: Modes::NOTIFY,
        },
    ];
    let narrow = ExportSpec {
        modes: Modes::READ | Modes::NOTIFY,
        ..spec("a", 16 * PAGE + 8, 100, &allow)
    };
    stand.host.export(port.port, &narrow).expect("exports");
    let mut ask =
        |from, importer, modes, token| stand.granted(from, PortId(importer), port, "a", modes, token);
    let refused = Err(Status::NotAllowed);
    assert_eq!(ask(PEER, 2, Modes::WRITE, 1), refused, "not in the root");
    assert_eq!(ask(PEER, 3, Modes::READ, 2), refused, "not for that port");
    assert_eq!(ask(PEER, 2, Modes::empty(), 3), refused);
    let less = ask(PEER, 2, Modes::ATOMIC | Modes::READ, 4).map(|grant| grant.modes);
    assert_eq!(less, Ok(Modes::READ), "what is allowed of it");
    let grant = ask(PEER, 2, Modes::all(), 5).expect("granted");
    assert_eq!((grant.start, grant.len), (VirtAddr(16 * PAGE + 8), 100));
    assert_eq!(grant.modes, Modes::READ | Modes::NOTIFY);
    assert_eq!((grant.notify_first.0, grant.notify_last.0), (1, 9));
    let second = ask(PEER, 3, Modes::NOTIFY, 6).expect("granted");
    assert_ne!(grant.secret, second.secret);
    let seen = published(&stand, grant.capability).expect("the NIC honours it");
    assert_eq!(seen.holder, PEER);
    assert_eq!(seen.holder_port, PortId(2));
    assert_eq!(seen.modes, grant.modes);
    assert_eq!((seen.start, seen.end), (grant.start, VirtAddr(16 * PAGE + 108)));
    assert_eq!(seen.secret, grant.secret);
    assert_eq!(
        stand.granted(NodeId(2), PortId(2), port, "a", Modes::READ, 7),
        refused
    );
    assert_eq!(
        stand.granted(PEER, PortId(2), port, "b", Modes::READ, 8),
        Err(Status::NoSuchExport)
    );
    let ghost = OpenPort {
        port: PortId(7),
        ..port
    };
    assert_eq!(
        stand.granted(PEER, PortId(2), ghost, "a", Modes::READ, 9),
        Err(Status::NoSuchPort)
    );
    assert_eq!(stand.count("imports_refused"), 6);
}

#[test]
pub(crate) fn a_request_made_twice_is_granted_once() {
    let (mut stand, port) = world();
    stand.export(port, "a", 16, 1, Modes::all());
    let first = stand.granted(PEER, PortId(2), port, "a", Modes::READ, 1);
    let again = stand.granted(PEER, PortId(2), port, "a", Modes::READ, 1);
    assert_eq!(first, again);
    let other = stand.granted(PEER, PortId(2), port, "a", Modes::READ, 2);
    assert_ne!(first, other);
    let another = stand.granted(PEER, PortId(3), port, "a", Modes::READ, 1);
    assert_ne!(first, another, "another port's request of that number");
    let node = stand.granted(NodeId(2), PortId(2), port, "a", Modes::READ, 1);
    assert_ne!(first, node, "another node's");
    assert_eq!((stand.count("grants"), stand.count("grants_repeated")), (4, 1));
}

#[test]
pub(crate) fn one_node_cannot_take_the_whole_capability_table() {
    let (mut stand, port) = world();
    stand.export(port, "a", 16, 1, Modes::all());
    for token in 0..8 {
        assert!(
            stand
                .granted(PEER, PortId(2), port, "a", Modes::READ, token)
                .is_ok()
        );
    }
    let full = stand.granted(PEER, PortId(2), port, "a", Modes::READ, 8);
    assert_eq!(full, Err(Status::TableFull));
    assert!(
        stand
            .granted(NodeId(2), PortId(2), port, "a", Modes::READ, 9)
            .is_ok()
    );
}

/// An importer that gave up while no slot for a farewell was free holds nothing, and this host does not know. Where grants are
/// short it tells what was granted again; what comes back makes room.
#[test]
pub(crate) fn grants_that_an_importer_has_lost_come_back_when_they_are_short() {
    let (mut stand, port) = world();
    stand.export(port, "a", 16, 1, Modes::all());
    let mut held = Vec::new();
    for token in 0..6 {
        let grant = stand.granted(PEER, PortId(2), port, "a", Modes::READ, token);
        held.push((Token(token), grant.expect("there is room")));
    }
    assert_eq!(stand.count("grants_told_again"), 0, "there is plenty");
    let mut full = Ok(());
    let mut told = Vec::new();
    for token in 6..30 {
        let ask = Control::Import {
            token: Token(token),
            port: port.port,
            importer: PortId(2),
            modes: Modes::READ,
            name: name("a"),
        };
        stand.control(PEER, 0, &ask);
        let before = stand.count("grants_told_again");
        let _ = stand.host.poll(&mut stand.platform, stand.now);
        let told_by_it = stand.count("grants_told_again") - before;
        assert!(told_by_it <= 2, "one poll does little (promise P7): {told_by_it}");
        stand.poll();
        for (to, message) in stand.sent() {
            assert_eq!(to, PEER);
            match message {
                Control::Refused { status, .. } => full = Err(status),
                Control::Granted { token: again, grant } if again != Token(token) => {
                    told.push((again, grant))
                }
                Control::Granted { token, grant } => held.push((token, grant)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(full, Err(Status::TableFull), "nothing was given back yet");
    told.sort_unstable_by_key(|(token, _)| token.0);
    told.dedup();
    assert_eq!(told, held, "each of them, as it was granted");
    let (_, lost) = told[0];
    let release = Control::Release {
        capability: lost.capability,
        secret: lost.secret,
    };
    stand.control(PEER, 0, &release);
    stand.poll();
    stand.sent();
    let granted = stand.granted(PEER, PortId(2), port, "a", Modes::READ, 40);
    assert!(granted.is_ok(), "{granted:?}");
}

#[test]
pub(crate) fn unexport_clears_then_waits_for_the_barrier_then_tells_the_importer() {
    let (mut stand, port) = world();
    let export = stand.export(port, "a", 16, 1, Modes::all());
    let grant = stand
        .granted(PEER, PortId(2), port, "a", Modes::READ, 1)
        .expect("granted");
    assert_eq!(stand.host.grants_of(export).count(), 1);
    stand.obliging = false;
    let mut unexport = stand.host.unexport_begin(port.port, export).expect("there");
    assert!(published(&stand, grant.capability).is_some(), "not yet");
    let step = stand
        .host
        .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    assert_eq!(step, Progress::Wait);
    assert!(published(&stand, grant.capability).is_none());
    let heard = stand.heard();
    let [HostEvent::Barrier { token }] = heard[..] else {
        panic!("{heard:?}");
    };
    let step = stand
        .host
        .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    assert_eq!(step, Progress::Wait);
    stand.say(NicEvent::BarrierDone { token });
    stand.say(NicEvent::BarrierDone { token });
    stand.poll();
    assert_eq!(stand.count("nic_events_bad"), 1, "once is enough");
    let step = stand
        .host
        .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    assert_eq!(step, Progress::Done);
    assert_eq!(
        stand.sent(),
        [(
            PEER,
            Control::Revoked {
                capability: grant.capability,
                exporter: NODE
            }
        )]
    );
    assert!(
        stand.host.unexport_begin(port.port, export).is_err(),
        "the id is spent"
    );
    assert_eq!(stand.host.grants_of(export).count(), 0);
    stand.export(port, "a", 16, 1, Modes::all());
}

#[test]
pub(crate) fn what_is_revoked_while_a_barrier_is_in_flight_waits_for_the_next() {
    let (mut stand, port) = world();
    let export = stand.export(port, "a", 16, 1, Modes::all());
    let one = stand
        .granted(PEER, PortId(2), port, "a", Modes::READ, 1)
        .expect("granted");
    stand
        .granted(PEER, PortId(3), port, "a", Modes::READ, 2)
        .expect("granted");
    stand.obliging = false;
    let grants: Vec<_> = stand.host.grants_of(export).collect();
    let mut first = stand
        .host
        .revoke_begin(&mut stand.platform, grants[0], stand.now)
        .expect("live");
    assert!(
        stand
            .host
            .revoke_begin(&mut stand.platform, grants[0], stand.now)
            .is_none()
    );
    assert!(published(&stand, one.capability).is_none());
    let mut second = stand
        .host
        .revoke_begin(&mut stand.platform, grants[1], stand.now)
        .expect("live");
    let barriers: Vec<_> = stand.heard();
    assert_eq!(barriers.len(), 1, "one at a time");
    let step =
        |stand: &mut Stand, revoke: &mut _| stand.host.revoke_step(&mut stand.platform, revoke, stand.now);
    let HostEvent::Barrier { token } = barriers[0] else {
        panic!("{barriers:?}");
    };
    stand.say(NicEvent::BarrierDone {
        token: Token(token.0 + 1),
    });
    stand.poll();
    assert_eq!(step(&mut stand, &mut first), Progress::Wait, "another's answer");
    stand.say(NicEvent::BarrierDone { token });
    stand.poll();
    assert_eq!(step(&mut stand, &mut first), Progress::Done);
    assert_eq!(step(&mut stand, &mut second), Progress::Wait);
    let next = stand.heard();
    let HostEvent::Barrier { token } = next[next.len() - 1] else {
        panic!("{next:?}");
    };
    stand.say(NicEvent::BarrierDone { token });
    stand.poll();
    assert_eq!(step(&mut stand, &mut second), Progress::Done);
}

#[test]
pub(crate) fn a_released_capability_is_free_again_but_only_for_its_holder() {
    let (mut stand, port) = world();
    stand.export(port, "a", 16, 1, Modes::all());
    let grant = stand
        .granted(PEER, PortId(2), port, "a", Modes::READ, 1)
        .expect("granted");
    let release = |secret| Control::Release {
        capability: grant.capability,
        secret,
    };
    stand.control(NodeId(2), 1, &release(grant.secret));
    stand.control(PEER, 2, &release(grant.secret ^ 1));
    stand.poll();
    assert!(published(&stand, grant.capability).is_some());
    assert_eq!(stand.count("control_bad"), 2);
    stand.control(PEER, 3, &release(grant.secret));
    stand.poll();
    assert!(published(&stand, grant.capability).is_none());
    assert_eq!(stand.count("grants_released"), 1);
    assert!(
        !stand
            .sent()
            .iter()
            .any(|(_, message)| matches!(message, Control::Revoked { .. }))
    );
    for token in 10..200 {
        let grant = stand
            .granted(PEER, PortId(2), port, "a", Modes::READ, token)
            .expect("free again");
        stand.control(
            PEER,
            3,
            &Control::Release {
                capability: grant.capability,
                secret: grant.secret,
            },
        );
        stand.poll();
    }
}

#[test]
pub(crate) fn the_end_of_a_segment_ends_its_exports_and_unmaps_it() {
    let (mut stand, port) = world();
    stand.export(port, "a", 16, 1, Modes::all());
    stand.export(port, "b", 16, 16, Modes::all());
    let grant = stand
        .granted(PEER, PortId(2), port, "b", Modes::READ, 1)
        .expect("granted");
    for page in 16..32 {
        stand.map(page_of(port, page), page, true).expect("maps");
    }
    let (segment, _) = stand.host.locate(port.port, VirtAddr(20 * PAGE)).expect("there");
    let mut end = stand.host.unregister_begin(port.port, segment).expect("there");
    let mut steps = 0;
    loop {
        stand.poll();
        let gone = &mut stand.gone;
        let step = stand
            .host
            .unregister_step(&mut stand.platform, &mut end, stand.now, 4, &mut |page| {
                gone.push(page)
            });
        if step == Progress::Done {
            break;
        }
        steps += 1;
        assert!(steps < 100);
    }
    assert!(published(&stand, grant.capability).is_none());
    assert!(stand.gone.len() >= 10 && stand.host.mapped_pages() == 0);
    assert_eq!(stand.host.locate(port.port, VirtAddr(20 * PAGE)), None);
    assert_eq!((stand.count("unexports"), stand.count("segments_ended")), (2, 1));
    stand.register(port, 16, 16);
    stand.export(port, "a", 16, 1, Modes::all());
}

#[test]
pub(crate) fn export_costs_the_same_for_any_size() {
    let all = anyone(Modes::all());
    let mut best = [u128::MAX; 3];
    for _ in 0..5 {
        let (mut stand, _) = world();
        let port = stand.open();
        for (i, len) in [1 << 20, 64 * GIB, 1 << 50].into_iter().enumerate() {
            let start = (i as u64) << 56;
            let before = Instant::now();
            stand
                .host
                .register(port.port, VirtAddr(start), len)
                .expect("registers");
            let spec = spec("abc".get(i..=i).expect("three"), start, len, &all);
            stand.host.export(port.port, &spec).expect("exports");
            best[i] = best[i].min(before.elapsed().as_nanos());
        }
        assert_eq!(stand.host.mapped_pages(), 0, "mapped when it is missed");
    }
    assert!(
        best.iter().all(|&time| time < 20 * best[0] + 100_000),
        "{best:?} ns"
    );
}

/// Half of each table is divided among the ports: what one takes leaves each other one its share.
#[test]
pub(crate) fn no_port_can_take_the_places_of_all() {
    let mut stand = Stand::new();
    let ports: Vec<OpenPort> = (0..7).map(|_| stand.open()).collect();
    let (greedy, others) = ports.split_first().expect("seven");
    let allow = anyone(Modes::all());
    let mut taken = [0; 3];
    for i in 0..64 {
        let start = VirtAddr((16 + 2 * i) * PAGE);
        taken[0] += u32::from(stand.host.register(greedy.port, start, PAGE).is_ok());
        let export = spec(&format!("e{i}"), 16 * PAGE, 5, &allow);
        taken[1] += u32::from(stand.host.export(greedy.port, &export).is_ok());
        let import = ImportSpec {
            node: PEER,
            port: PortId(3),
            name: name("x"),
            modes: Modes::WRITE,
            deadline: Nanos::MAX,
            wait: true,
        };
        let imported = stand
            .host
            .import(&mut stand.platform, greedy.port, &import, stand.now);
        taken[2] += u32::from(imported.is_ok());
    }
    assert_eq!(taken, [10; 3], "16 places, less one for each of six");
    for port in others {
        stand.register(*port, 16, 16);
        stand.export(*port, "mine", 16, 1, Modes::all());
        let _ = stand.import(*port, "x", true);
    }
    // What it gives back, others may have.
    stand.close(*greedy);
    let second = others.first().expect("six");
    for i in 0..9 {
        stand.register(*second, 100 + 2 * i, 1);
    }
}
