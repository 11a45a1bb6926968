//! Notices: what the card says reaches its place in order, and a card that dies is stopped once.

use crate::desk::{Did, world};
use netvm_abi::control::Modes;
use netvm_abi::event::NicEvent;
use netvm_abi::{Incarnation, Nanos, NodeId};
use netvm_host::host::CardFailure;
use netvm_host::imports::ImportSpec;
use netvm_host::unmap::UnmapKind;
use netvm_host_platform::{notice, unmap};
use netvm_kit::host::{NODE, PAGE, PEER, Rig, name, page_of, write};

#[test]
fn everything_that_the_card_says_is_heard_in_its_order() {
    let (desk, port, grant) = world();
    let header = write(port, &grant, 17 * PAGE, 8);
    desk.with(|rig| {
        rig.say(NicEvent::PeerUp {
            peer: NodeId(2),
            incarnation: Incarnation(3),
        });
        rig.bounce(Rig::window(PEER, 3), &header);
        rig.say(NicEvent::PeerLost {
            peer: NodeId(2),
            incarnation: Incarnation(3),
        });
    });
    notice::hear(&desk);
    let did = desk.did();
    let told: Vec<_> = did.iter().filter(|did| **did != Did::Progress).collect();
    assert_eq!(
        told,
        [
            &Did::PeerUp(NodeId(2), Incarnation(3)),
            &Did::Work(port.port),
            &Did::PeerDown(NodeId(2)),
        ]
    );
}

#[test]
fn an_import_that_is_taken_back_is_released_and_then_forgotten() {
    let (desk, port, _) = world();
    let (token, export, other) = desk.with(|rig| {
        let other = rig.open();
        rig.register(other, 0, 4);
        let export = rig.export(other, "own", 0, 4, Modes::WRITE);
        let spec = ImportSpec {
            node: NODE,
            port: other.port,
            name: name("own"),
            modes: Modes::WRITE,
            deadline: Nanos::from_millis(50),
            wait: false,
        };
        let token = rig
            .host
            .import(&mut rig.platform, port.port, &spec, rig.now)
            .expect("begins");
        (token, export, other)
    });
    notice::hear(&desk);
    assert_eq!(desk.did(), [Did::Imported(token, None)]);
    desk.with(|rig| {
        let mut unexport = rig.host.unexport_begin(other.port, export).expect("there");
        let _ = rig.host.unexport_step(&mut rig.platform, &mut unexport, rig.now);
    });
    notice::hear(&desk);
    assert!(desk.did().contains(&Did::ImportOver(token)));
    desk.with(|rig| {
        let again = rig.host.unimport(&mut rig.platform, port.port, token, rig.now);
        assert!(again.is_err(), "the core has forgotten it");
    });
}

#[test]
fn a_dead_card_is_named_and_stopped_once() {
    let (desk, port, _) = world();
    let mut begun = desk.with(|rig| {
        rig.map(page_of(port, 17), 900, true).expect("maps");
        let begun = rig.host.unmap_begin(page_of(port, 17), 1, UnmapKind::Remove);
        rig.kill_card();
        begun
    });
    desk.with(|rig| {
        let _ = rig.step(&mut begun, 10);
    });
    notice::hear(&desk);
    let did = desk.did();
    assert_eq!(
        did.iter().filter(|did| **did == Did::Stopped).count(),
        1,
        "{did:?}"
    );
    assert!(
        matches!(did[..], [Did::CardDead(CardFailure::AllOnes), Did::Stopped, ..]),
        "{did:?}"
    );
    unmap::finish(&desk, begun, || unreachable!("a stopped card holds nothing"));
    assert!(matches!(desk.gone()[..], [page] if !page.leaked));
}
