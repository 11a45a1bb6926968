//! Notices: what the card says reaches its place in order, and a card that dies is stopped once.

use crate::desk::{Did, world};
use netvm_abi::control::Modes;
use netvm_abi::event::NicEvent;
use netvm_abi::{Incarnation, Nanos, NodeId};
use netvm_host::host::CardFailure;
use netvm_host::imports::ImportSpec;
use netvm_host::unmap::UnmapKind;
use netvm_host_platform::{notice, unmap};
use netvm_kit::host::{NODE, PAGE, PEER, Stand, name, page_of, write};

#[test]
fn everything_that_the_card_says_is_heard_in_its_order() {
    let (desk, port, grant) = world();
    let header = write(port, &grant, 17 * PAGE, 8);
    desk.with(|stand| {
        stand.say(NicEvent::PeerUp {
            peer: NodeId(2),
            incarnation: Incarnation(3),
        });
        stand.bounce(Stand::window(PEER, 3), &header);
        stand.say(NicEvent::PeerLost {
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
    let (token, export, other) = desk.with(|stand| {
        stand.say(NicEvent::PeerUp {
            peer: NODE,
            incarnation: Incarnation(4),
        });
        let other = stand.open();
        stand.register(other, 0, 4);
        let export = stand.export(other, "own", 0, 4, Modes::WRITE);
        let spec = ImportSpec {
            node: NODE,
            port: other.port,
            name: name("own"),
            modes: Modes::WRITE,
            deadline: Nanos::from_millis(50),
            wait: false,
        };
        let token = stand
            .host
            .import(&mut stand.platform, port.port, &spec, stand.now)
            .expect("begins");
        (token, export, other)
    });
    notice::hear(&desk);
    assert!(desk.did().contains(&Did::Imported(token, None)));
    desk.with(|stand| {
        let mut unexport = stand.host.unexport_begin(other.port, export).expect("there");
        let _ = stand
            .host
            .unexport_step(&mut stand.platform, &mut unexport, stand.now);
    });
    notice::hear(&desk);
    assert!(desk.did().contains(&Did::ImportOver(token)));
    desk.with(|stand| {
        let again = stand
            .host
            .unimport(&mut stand.platform, port.port, token, stand.now);
        assert!(again.is_err(), "the core has forgotten it");
    });
}

#[test]
fn a_dead_card_is_named_and_stopped_once() {
    let (desk, port, _) = world();
    let mut begun = desk.with(|stand| {
        stand.map(page_of(port, 17), 900, true).expect("maps");
        let begun = stand.host.unmap_begin(page_of(port, 17), 1, UnmapKind::Remove);
        stand.kill_card();
        begun
    });
    desk.with(|stand| {
        let _ = stand.step(&mut begun, 10);
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
