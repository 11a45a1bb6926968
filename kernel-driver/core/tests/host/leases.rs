//! Leases: how one is given, what the host knows of its end, and what a bounced message under one waits for.

use crate::paging::World;
use netvm_abi::bar::BarMap;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::control::Modes;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::lease::Lease;
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::events::Notice;
use netvm_host::leases::{LeaseId, LeaseSpec, Lent};
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_host::ports::OpenPort;
use netvm_kit::host::*;

const PAGE_17: u64 = 17 * PAGE;
const MS: u64 = 1_000_000;
const STALE: WorkStep = WorkStep::Ended {
    status: Status::Expired,
};

/// A port whose export lets no importer in, and what it lends of it.
fn exporter(geometry: Geometry) -> (Stand, OpenPort, LeaseSpec) {
    let config = netvm_host::attach::HostConfig {
        geometry: Some(geometry),
        ..config()
    };
    let mut stand = Stand::with(&config, &geometry);
    let port = stand.open();
    stand.register(port, 16, 16);
    let export = stand.export(port, "data", 16, 16, Modes::READ | Modes::WRITE | Modes::ATOMIC);
    stand.link_up(PEER);
    let spec = LeaseSpec {
        export,
        start: VirtAddr(PAGE_17),
        len: PAGE,
        modes: Modes::READ | Modes::WRITE,
        node: PEER,
        port: PortId(2),
        duration: Nanos(10 * MS),
        longest: Nanos(100 * MS),
    };
    stand.heard();
    (stand, port, spec)
}

fn lend(stand: &mut Stand, port: OpenPort, spec: &LeaseSpec) -> Result<Option<Lent>, Status> {
    stand.host.lend(&mut stand.platform, port.port, spec, stand.now)
}

fn lent() -> (World, Lent) {
    let (mut stand, port, spec) = exporter(geometry());
    let lent = lend(&mut stand, port, &spec).unwrap().expect("room");
    let grant = lent.grant;
    (World { stand, port, grant }, lent)
}

/// What the card does with a lease.
fn card(stand: &Stand, lease: LeaseId) -> Lease<'_, impl SharedWords + ?Sized> {
    let map = BarMap::new(stand.host.geometry());
    Lease::of(&*stand.platform.bar, (map.capabilities, map.leases), lease.slot)
}

/// The questions that the host has asked: their tokens.
fn questions(stand: &mut Stand, lease: LeaseId) -> Vec<Token> {
    let heard = stand.heard();
    heard
        .into_iter()
        .filter_map(|event| match event {
            HostEvent::LeaseAsk {
                slot,
                generation,
                token,
            } => {
                assert_eq!(LeaseId { slot, generation }, lease);
                Some(token)
            }
            _ => None,
        })
        .collect()
}

fn answer(stand: &mut Stand, lease: LeaseId, token: Token, left: u64) -> Vec<Notice> {
    stand.say(NicEvent::LeaseLeft {
        slot: lease.slot,
        generation: lease.generation,
        token,
        left: Nanos(left),
    });
    stand.poll()
}

fn recall(stand: &mut Stand, port: PortId, lease: LeaseId) -> bool {
    let Some(mut revoke) = stand
        .host
        .recall_begin(&mut stand.platform, port, lease, stand.now)
    else {
        return false;
    };
    loop {
        stand.poll();
        if stand
            .host
            .revoke_step(&mut stand.platform, &mut revoke, stand.now)
            == Progress::Done
        {
            return true;
        }
    }
}

#[test]
pub(crate) fn the_card_gets_terms_and_the_end_is_its_own() {
    let (mut w, lent) = lent();
    let LeaseId { slot, generation } = lent.lease;
    assert_eq!(w.stand.heard(), [HostEvent::LeaseBegin { slot, generation }]);
    let map = BarMap::new(w.stand.host.geometry());
    let entry = Capability::load(&*w.stand.platform.bar, capability_at(map.capabilities, slot)).unwrap();
    assert_eq!((entry.start, entry.end), (VirtAddr(PAGE_17), VirtAddr(18 * PAGE)));
    assert_eq!(
        (entry.modes, entry.expires),
        (Modes::READ | Modes::WRITE, Nanos(0))
    );
    assert_eq!((entry.holder, entry.holder_port), (PEER, PortId(2)));
    assert_eq!((entry.secret, lent.grant.capability), (lent.grant.secret, slot));
    assert!(card(&w.stand, lent.lease).begin(Nanos(7)));
    assert_eq!(
        card(&w.stand, lent.lease).left(Nanos(7), generation),
        Nanos(10 * MS)
    );
}

#[test]
pub(crate) fn what_cannot_be_lent_is_refused_by_its_reason() {
    let (mut stand, port, good) = exporter(geometry());
    let cases = [
        (
            LeaseSpec {
                export: ExportId(7),
                ..good
            },
            Status::NoSuchExport,
        ),
        (
            LeaseSpec {
                duration: Nanos(0),
                ..good
            },
            Status::Malformed,
        ),
        (
            LeaseSpec {
                longest: Nanos(1),
                ..good
            },
            Status::Malformed,
        ),
        (LeaseSpec { len: 0, ..good }, Status::OutOfRange),
        (
            LeaseSpec {
                len: 16 * PAGE,
                ..good
            },
            Status::OutOfRange,
        ),
        (
            LeaseSpec {
                len: u64::MAX,
                ..good
            },
            Status::OutOfRange,
        ),
        (
            LeaseSpec {
                start: VirtAddr(15 * PAGE),
                ..good
            },
            Status::OutOfRange,
        ),
        (
            LeaseSpec {
                modes: Modes::empty(),
                ..good
            },
            Status::NotAllowed,
        ),
        (
            LeaseSpec {
                modes: Modes::NOTIFY,
                ..good
            },
            Status::NotAllowed,
        ),
        (
            LeaseSpec {
                modes: Modes::APPEND,
                ..good
            },
            Status::NotAllowed,
        ),
        (
            LeaseSpec {
                node: NodeId(3),
                ..good
            },
            Status::NoSuchNode,
        ),
    ];
    for (spec, status) in cases {
        assert_eq!(lend(&mut stand, port, &spec), Err(status), "{spec:?}");
    }
    let other = stand.open();
    assert_eq!(
        lend(&mut stand, other, &good),
        Err(Status::NoSuchExport),
        "another port's"
    );
    assert_eq!(stand.count("leases"), 0);
}

/// No port takes all, and imports find room; what is taken back is free again, under another generation.
#[test]
pub(crate) fn leases_leave_room_and_come_back() {
    let (mut stand, port, spec) = exporter(geometry());
    let mut leases = Vec::new();
    while let Ok(Some(lent)) = lend(&mut stand, port, &spec) {
        leases.push(lent);
        stand.heard();
    }
    // 16 entries: 2 for imports; of 14 each of 7 ports has its share of 1.
    assert_eq!(leases.len(), 14 - 6);
    assert_eq!(lend(&mut stand, port, &spec), Err(Status::TableFull));
    for lent in &leases {
        assert!(recall(&mut stand, port.port, lent.lease));
        assert!(!recall(&mut stand, port.port, lent.lease), "once");
    }
    assert_eq!(stand.count("leases_recalled"), 8);
    assert!(stand.sent().is_empty(), "the holder is not told");
    let again = (0..16).find_map(|_| {
        let lent = lend(&mut stand, port, &spec).unwrap().unwrap();
        stand.heard();
        let Some(old) = leases.iter().find(|old| old.lease.slot == lent.lease.slot) else {
            assert!(recall(&mut stand, port.port, lent.lease));
            return None;
        };
        assert_ne!(old.lease.generation, lent.lease.generation);
        // A late recall of the old one takes nothing from the new one.
        assert!(!recall(&mut stand, port.port, old.lease));
        Some(lent)
    });
    let again = again.expect("a slot is used again");
    let other = stand.open();
    assert!(!recall(&mut stand, other.port, again.lease), "another port's");
    stand.close(port);
    assert_eq!(
        stand
            .host
            .census()
            .into_iter()
            .find(|(what, _)| *what == "grants"),
        Some(("grants", 0))
    );
}

/// A lost link ends imports of the peer, and no lease.
#[test]
pub(crate) fn a_lease_outlives_a_link() {
    let (mut w, lent) = lent();
    w.stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    w.stand.poll();
    let map = BarMap::new(w.stand.host.geometry());
    let at = capability_at(map.capabilities, lent.lease.slot);
    assert!(Capability::load(&*w.stand.platform.bar, at).is_some());
}

/// Leases are not bounded by anything outstanding: the ring of events must not overflow.
#[test]
pub(crate) fn a_card_that_takes_no_events_is_given_no_more_leases() {
    let geometry = Geometry {
        capabilities: 4096,
        ..geometry()
    };
    let (mut stand, port, spec) = exporter(geometry);
    let mut given = 0;
    while lend(&mut stand, port, &spec).unwrap().is_some() {
        given += 1;
        assert!(given < 1000);
    }
    assert_eq!(given, 128);
    stand.heard();
    assert!(lend(&mut stand, port, &spec).unwrap().is_some());
}

#[test]
pub(crate) fn the_card_is_asked_what_is_left() {
    let (mut w, lent) = lent();
    let (stand, port, lease) = (&mut w.stand, w.port.port, lent.lease);
    stand.heard();
    let question = stand.host.lease_left_begin(port, lease);
    let step = |stand: &mut Stand, question| {
        let now = stand.now;
        stand
            .host
            .lease_left_step(&mut stand.platform, port, question, now)
    };
    stand.now = Nanos(20 * MS);
    assert_eq!(step(stand, &question), Ok(None));
    assert_eq!(step(stand, &question), Ok(None), "it is asked once");
    let asked = questions(stand, lease);
    assert_eq!(asked.len(), 1);
    // What is left counts from the question on, and a little less for clocks that differ.
    stand.now = Nanos(23 * MS);
    assert_eq!(answer(stand, lease, asked[0], 50 * MS), [Notice::Progress]);
    let left = step(stand, &question).unwrap().unwrap();
    assert!(left.0 > 46 * MS && left.0 < 47 * MS, "{left:?}");
    // Over, for good.
    let question = stand.host.lease_left_begin(port, lease);
    assert_eq!(step(stand, &question), Ok(None));
    let asked = questions(stand, lease);
    answer(stand, lease, asked[0], 0);
    assert_eq!(step(stand, &question), Ok(Some(Nanos(0))));
    let question = stand.host.lease_left_begin(port, lease);
    assert_eq!(step(stand, &question), Ok(Some(Nanos(0))), "not asked again");
    // An answer that was not asked for.
    let bad = stand.count("nic_events_bad");
    answer(stand, lease, asked[0], 7);
    assert_eq!(stand.count("nic_events_bad"), bad + 1);
}

/// Pages in what a bounced message is for; the step after that.
fn page_in(w: &mut World) -> WorkStep {
    let id = w.page_in();
    w.stand.paged(id, Ok(900))
}

#[test]
pub(crate) fn a_bounced_message_is_copied_while_its_lease_is_surely_not_over() {
    let (mut w, _) = lent();
    w.bounce(0, PAGE_17, 8);
    w.stand.now = Nanos(9 * MS);
    w.stand.poll();
    assert!(matches!(page_in(&mut w), WorkStep::Copy { .. }));
    assert_eq!(w.stand.count("leases_asked"), 0);
}

#[test]
pub(crate) fn later_the_card_is_asked_before_the_copy() {
    let (mut w, lent) = lent();
    w.stand.heard();
    let first = w.bounce(0, PAGE_17, 8);
    let second = w.bounce(1, PAGE_17 + 8, 8);
    w.stand.poll();
    // The page comes after the lease may be over.
    let id = w.page_in();
    w.stand.now = Nanos(11 * MS);
    assert_eq!(w.stand.paged(id, Ok(900)), STALE);
    assert_eq!(w.stand.take(w.port), Some(STALE), "before the page in, too");
    assert_eq!(w.stand.take(w.port), None);
    let asked = questions(&mut w.stand, lent.lease);
    assert_eq!(asked, [Token(first.bounce.0), Token(second.bounce.0)]);
    assert!(w.ended().is_empty(), "neither is answered yet");
    // It was extended.
    assert_eq!(
        answer(&mut w.stand, lent.lease, asked[0], 5 * MS),
        [Notice::Work(w.port.port)]
    );
    let WorkStep::Copy { id, .. } = page_in(&mut w) else {
        panic!("no copy");
    };
    assert_eq!(
        w.stand.copied(id, CopyEnd::Done),
        WorkStep::Ended { status: Status::Ok }
    );
    assert_eq!(w.ended(), [(first.bounce, first.generation, Status::Ok)]);
    // The other one hears that it is over.
    assert_eq!(
        answer(&mut w.stand, lent.lease, asked[1], 0),
        [Notice::Work(w.port.port)]
    );
    assert_eq!(w.stand.take(w.port), Some(STALE));
    assert_eq!(w.ended(), [(second.bounce, second.generation, Status::Expired)]);
    // And so does what comes later, without a question.
    let third = w.bounce(2, PAGE_17, 8);
    w.stand.poll();
    assert_eq!(w.stand.take(w.port), Some(STALE));
    assert_eq!(w.ended(), [(third.bounce, third.generation, Status::Expired)]);
    assert_eq!(w.stand.count("leases_asked"), 2);
}

/// What waits for an answer of the card is let go of with its port, its link, and the card.
#[test]
pub(crate) fn what_waits_for_the_card_is_not_forgotten() {
    let put_aside = || {
        let (mut w, lent) = lent();
        w.bounce(0, PAGE_17, 8);
        w.stand.poll();
        w.stand.heard();
        w.stand.now = Nanos(11 * MS);
        assert_eq!(w.stand.take(w.port), Some(STALE));
        let asked = questions(&mut w.stand, lent.lease);
        (w, lent.lease, asked[0])
    };
    let held = |stand: &Stand| {
        let census = stand.host.census().into_iter();
        census
            .filter(|(what, _)| *what == "bounce_pages")
            .map(|(_, held)| held)
            .sum::<u32>()
    };
    let (mut w, lease, token) = put_aside();
    w.stand.close(w.port);
    assert_eq!(answer(&mut w.stand, lease, token, MS), []);
    let ended: Vec<_> = w.ended().iter().map(|end| end.2).collect();
    assert_eq!((ended, held(&w.stand)), (vec![Status::NoSuchPort], 0));

    let (mut w, lease, token) = put_aside();
    w.stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    w.stand.poll();
    assert_eq!(held(&w.stand), 0);
    assert_eq!(answer(&mut w.stand, lease, token, MS), []);
    assert_eq!((w.stand.take(w.port), held(&w.stand)), (None, 0));

    let (mut w, _, _) = put_aside();
    w.stand.host.card_gone();
    w.stand.poll();
    assert_eq!(held(&w.stand), 0);
}

/// The next use of a slot that was a lease's is none.
#[test]
pub(crate) fn an_import_gets_no_lease() {
    let (mut w, lent) = lent();
    assert!(recall(&mut w.stand, w.port.port, lent.lease));
    w.stand.export(w.port, "free", 16, 16, Modes::READ);
    for token in 0..16 {
        let grant = w.stand.granted(
            [PEER, NodeId(2)][token as usize % 2],
            PortId(2),
            w.port,
            "free",
            Modes::READ,
            token,
        );
        let Ok(grant) = grant else { break };
        let slot = grant.capability;
        let map = BarMap::new(w.stand.host.geometry());
        let lease = Lease::of(&*w.stand.platform.bar, (map.capabilities, map.leases), slot);
        assert!(!lease.begin(Nanos(0)), "{slot:?}");
        let at = capability_at(map.capabilities, slot);
        let entry = Capability::load(&*w.stand.platform.bar, at).unwrap();
        assert_eq!(entry.expires, Nanos::MAX);
        if slot == lent.lease.slot {
            return;
        }
    }
    panic!("the slot is not used again");
}

/// The table is as large as the geometry says: a port has 10^5 leases at once, and all come back.
#[test]
pub(crate) fn a_port_gives_a_hundred_thousand_leases() {
    const LEASES: u32 = 100_000;
    let geometry = Geometry {
        capabilities: 1 << 18,
        ..geometry()
    };
    let (mut stand, port, spec) = exporter(geometry);
    let mut leases = Vec::new();
    for at in 0..LEASES {
        let lent = lend(&mut stand, port, &spec).expect("given").expect("room");
        leases.push(lent.lease);
        if at % 64 == 63 {
            stand.heard();
        }
    }
    stand.heard();
    assert_eq!(stand.count("leases"), LEASES.into());
    let mut ending: Vec<_> = leases
        .iter()
        .filter_map(|lease| {
            stand
                .host
                .recall_begin(&mut stand.platform, port.port, *lease, stand.now)
        })
        .collect();
    assert_eq!(ending.len(), leases.len());
    while let Some(mut last) = ending.pop() {
        while stand.host.revoke_step(&mut stand.platform, &mut last, stand.now) != Progress::Done {
            stand.poll();
        }
    }
    assert!(stand.count("barriers") < 2000, "one barrier serves many");
    stand.close(port);
    assert_eq!(
        stand
            .host
            .census()
            .into_iter()
            .find(|(what, _)| *what == "grants"),
        Some(("grants", 0))
    );
}
