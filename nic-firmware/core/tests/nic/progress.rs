//! Frames that a wire loses that says that it loses none, one by one, beside traffic that goes on: what they held up goes
//! on, or ends with `LinkLost` within the stated time. Wires that may lose frames: `loss.rs`.

use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_map::status_page;
use netvm_abi::wire::Kind;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NodeId, Status};
use netvm_kit::nic::*;
use netvm_nic::config::Timers;

/// How often the other port sends: more often than probes go out.
const OFTEN: Nanos = Nanos::from_millis(20);

/// Two nodes; port 1 of each may write to port 1 of the other, and page `0x12000` is there at both ends.
fn linked() -> World {
    let mut world = World::connected(2, 0);
    for node in 0..2 {
        world.nodes[node].grant(3, &capability(1 - node as u16));
        world.nodes[node].map(1, 0x12000, 5, true);
    }
    world
}

fn bound() -> Nanos {
    Timers::default().loss_bound()
}

/// Port 1 of node 1 writes to node 0 every [`OFTEN`] for `span`. Returns when node 0 first had a record of an error,
/// and its status.
fn beside_traffic(world: &mut World, span: Nanos) -> Option<(Nanos, Status)> {
    let begin = world.now;
    while world.now.0 - begin.0 < span.0 {
        let back = Command {
            node: NodeId(0),
            ..notify(inline(9, 0x12000, 8), 2)
        };
        world.nodes[1].post(1, &back, &[9; 8]);
        world.pass(OFTEN);
        if let Some(error) = world.nodes[0].error(1) {
            return Some((Nanos(world.now.0 - begin.0), error.status));
        }
    }
    None
}

/// Node 0 posts; the first frame that leaves is lost.
fn post_lost(world: &mut World, command: &Command) {
    assert!(world.nodes[0].post(1, command, &[1; 8]));
    world.nodes[0].poll(world.now);
    assert!(world.nodes[0].board.outbox.pop_back().is_some());
}

#[test]
pub(crate) fn a_last_message_that_is_lost_beside_traffic_fails_the_link() {
    let mut world = linked();
    post_lost(&mut world, &inline(1, 0x12000, 8));
    let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
    assert_eq!(status, Status::LinkLost);
    assert!(after <= bound(), "{after}");
}

#[test]
fn a_last_message_that_is_lost_behind_a_slow_page_fails_the_link() {
    let mut world = linked();
    // The page of the first is not there: it stays with the host.
    assert!(world.nodes[0].post(1, &inline(1, 0x15000, 8), &[1; 8]));
    world.run();
    let event = world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }));
    let Some(NicEvent::Bounced { bounce, generation }) = event else {
        panic!("nothing bounced");
    };
    post_lost(&mut world, &inline(2, 0x12000, 8));
    let slow = Nanos::from_millis(3_000);
    assert_eq!(beside_traffic(&mut world, slow), None);
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::Ok,
    });
    let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
    assert_eq!(status, Status::LinkLost);
    assert!(after <= bound(), "{after}");
}

#[test]
fn a_slow_page_is_no_dead_link_and_nothing_waits_for_a_lost_acknowledgement() {
    let mut world = linked();
    assert!(world.nodes[0].post(1, &inline(1, 0x15000, 8), &[1; 8]));
    for op in 2..=20 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000, 8), &[1; 8]));
    }
    world.run();
    let event = world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }));
    let Some(NicEvent::Bounced { bounce, generation }) = event else {
        panic!("nothing bounced");
    };
    assert_eq!(beside_traffic(&mut world, Nanos::from_millis(5_000)), None);
    assert!(world.nodes[0].counters().probes_sent >= 40, "asked all the time");
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::Ok,
    });
    // The LSN jumps, and what says so is lost.
    world.lost = Box::new(|message| message.header.kind == Kind::Ack && message.header.source == NodeId(1));
    assert_eq!(beside_traffic(&mut world, OFTEN), None);
    world.lost = Box::new(|_| false);
    // Nothing but a probe brings another: until then the window of node 0 stands still.
    let two_looks = Nanos(2 * Timers::default().probe_interval.0 + 2 * OFTEN.0);
    assert_eq!(beside_traffic(&mut world, two_looks), None);
    let Node { nic, board, .. } = &mut world.nodes[0];
    nic.publish_windows(board);
    let at = status_page::peer_windows(NodeId(1));
    let word = |word| board.shared.load_acquire(at.plus(word));
    assert_eq!(word(0), word(1), "every number is acknowledged");
    for node in &world.nodes {
        assert_eq!(node.counters().links_lost, 0);
    }
}

#[test]
fn a_lost_request_and_a_lost_answer_beside_traffic_fail_the_link() {
    let flush = Command {
        opcode: Opcode::FlushRemote,
        ..write(1, 0, 0, 0)
    };
    let mut world = linked();
    post_lost(&mut world, &flush);
    let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
    assert_eq!(status, Status::LinkLost);
    assert!(after <= bound(), "{after}");

    let mut world = linked();
    assert!(world.nodes[0].post(1, &flush, &[]));
    world.lost = Box::new(|message| message.header.kind == Kind::FlushReply);
    let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
    assert_eq!(status, Status::LinkLost);
    assert!(after <= bound(), "{after}");
}

#[test]
fn a_wire_that_is_dead_in_one_direction_fails_the_link_beside_traffic() {
    for source in [0, 1] {
        let mut world = linked();
        assert!(world.nodes[0].post(1, &inline(1, 0x12000, 8), &[1; 8]));
        world.lost = Box::new(move |message| message.header.source == NodeId(source));
        let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
        assert_eq!(status, Status::LinkLost);
        assert!(after <= bound(), "{after}");
    }
}

#[test]
fn a_lost_farewell_costs_no_more_than_the_bound() {
    let mut world = linked();
    post_lost(&mut world, &inline(1, 0x12000, 8));
    world.lost = Box::new(|message| {
        let header = &message.header;
        header.kind == Kind::Bye || (header.kind == Kind::Hello && header.source == NodeId(1))
    });
    let (after, status) = beside_traffic(&mut world, bound()).expect("it ends");
    assert_eq!(status, Status::LinkLost);
    assert!(after <= bound(), "{after}");
}
