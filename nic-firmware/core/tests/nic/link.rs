//! Links (promise P6): greetings, new lives, silence, gaps, stale and repeated messages.

use netvm_abi::descriptor::Command;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_map::status_page;
use netvm_abi::wire::{Body, Greeting, Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::{Epoch, Geometry, Incarnation, Nanos, NodeId, Status, Token};
use netvm_kit::nic::*;
use netvm_nic::Config;
use std::cell::Cell;
use std::rc::Rc;

fn linked() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world
}

/// Starts a node anew, with the same host memory but another seed.
fn restart(world: &mut World, node: u16) {
    let old = &world.nodes[usize::from(node)];
    let config = Config {
        incarnation_seed: 0xBEEF,
        ..*old.nic.config()
    };
    world.nodes[usize::from(node)] = Node::new(config);
    world.nodes[usize::from(node)].open(1, 8);
}

#[test]
fn the_status_page_shows_the_link() {
    let world = linked();
    let page = &world.nodes[0].board.shared;
    assert_ne!(page.load_acquire(status_page::peer(NodeId(1))), 0);
    assert_eq!(page.load_acquire(status_page::peer_payload(NodeId(1))), 4096);
}

#[test]
fn a_card_that_leaves_says_so() {
    let mut world = linked();
    let Node { nic, board, .. } = &mut world.nodes[0];
    nic.leave(board);
    world.nodes.truncate(2);
    let farewell: Vec<_> = world.nodes[0].board.outbox.drain(..).collect();
    assert_eq!(farewell.len(), 1);
    let now = world.now;
    world.nodes[1].deliver(now, &farewell[0]);
    assert_eq!(world.nodes[1].counters().links_lost, 1);
}

#[test]
fn an_observer_sees_the_windows_move() {
    let mut world = linked();
    let windows = |world: &World, node: usize| {
        let Node { nic, board, .. } = &world.nodes[node];
        nic.publish_windows(board);
        let at = status_page::peer_windows(NodeId(1 - node as u16));
        [0, 1, 2].map(|word| board.shared.load_acquire(at.plus(word)))
    };
    let before = [windows(&world, 0), windows(&world, 1)];
    assert!(world.nodes[0].post(1, &inline(1, 0x12000, 8), &[1; 8]));
    world.nodes[0].poll(world.now);
    let [next, acknowledged, _] = windows(&world, 0);
    assert_eq!(next, before[0][0].wrapping_add(1));
    assert_eq!(acknowledged, before[0][1]);
    world.run();
    assert_eq!(windows(&world, 1)[2], before[1][2].wrapping_add(1));
}

#[test]
fn both_may_greet_at_once_in_any_order() {
    for seed in 0..60 {
        let world = World::connected(4, seed);
        for node in &world.nodes {
            assert_eq!(node.counters().links_lost, 0, "seed {seed}");
        }
    }
}

#[test]
fn a_restarted_peer_is_a_new_life_and_the_old_one_is_refused() {
    let mut world = linked();
    let command = notify(inline(1, 0x12000, 8), 2);
    assert!(world.nodes[0].post(1, &command, &[1; 8]));
    world.nodes[0].poll(world.now);
    let stale: Vec<_> = world.nodes[0].board.outbox.drain(..).collect();
    restart(&mut world, 1);
    let now = world.now;
    world.nodes[1].deliver(now, &stale[0]);
    assert_eq!(world.nodes[1].counters().stale_incarnation, 1);
    world.run();
    // The refusal has told node 0, which reports what is lost and greets again.
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::LinkLost);
    assert!(
        world.nodes[0]
            .event(|event| matches!(event, NicEvent::PeerLost { .. }))
            .is_some()
    );
    world.pass(Nanos::from_millis(100));
    assert_eq!(world.nodes[1].counters().links_up, 1);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    let mut again = command;
    assert!(world.nodes[0].post(1, &again, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 2), 0, "its epoch has lost a write");
    assert_eq!(world.nodes[0].counters().notifications_suppressed, 1);
    again.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &again, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 2), 1);
}

#[test]
fn a_new_greeting_resets_the_link_only_when_the_host_has_let_go() {
    let mut world = linked();
    assert!(world.nodes[0].post(1, &inline(1, 0x15000, 8), &[1; 8]));
    world.run();
    let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    else {
        panic!("nothing bounced");
    };
    world.nodes[1].obliging = false;
    world.nodes[1].inbox.clear();
    restart(&mut world, 0);
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    assert_eq!(
        world.nodes[1].counters().peer_resets,
        2,
        "the first greeting, and this one"
    );
    world.pass(Nanos::from_millis(100));
    assert_eq!(
        world.nodes[0].counters().links_up,
        0,
        "the old slot is still the host's"
    );
    let Some(NicEvent::PeerReset { peer, incarnation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::PeerReset { .. }))
    else {
        panic!("no reset");
    };
    // An answer to the old slot comes late, or not at all.
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::Ok,
    });
    world.nodes[1].tell(HostEvent::PeerReleased {
        peer,
        incarnation: Incarnation(1),
    });
    world.nodes[1].tell(HostEvent::PeerReleased { peer, incarnation });
    world.pass(Nanos::from_millis(100));
    assert_eq!(world.nodes[0].counters().links_up, 1);
    assert_eq!(world.nodes[1].counters().dropped, 1);
    assert_eq!(world.nodes[1].counters().late_answers, 1);
}

#[test]
fn dmas_of_the_old_life_are_waited_for() {
    let mut world = linked();
    world.auto_dma = false;
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 2), &[1; 8]));
    world.run();
    restart(&mut world, 0);
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    assert_eq!(world.nodes[0].counters().links_up, 0);
    world.auto_dma = true;
    world.pass(Nanos::from_millis(100));
    assert_eq!(world.nodes[0].counters().links_up, 1);
    assert_eq!(world.nodes[1].signals(1, 2), 0, "its sender is gone");
    assert!(world.nodes[1].board.receive.is_empty());
    assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
}

#[test]
fn a_silent_peer_fails_what_waits_for_it() {
    let mut world = linked();
    let flush = Command {
        opcode: netvm_abi::descriptor::Opcode::FlushRemote,
        ..write(1, 0, 0, 0)
    };
    assert!(world.nodes[0].post(1, &flush, &[]));
    world.nodes[0].poll(world.now);
    world.nodes[0].board.outbox.clear();
    // Nothing reaches node 1 any more.
    for _ in 0..50 {
        world.now.0 += 100_000_000;
        let now = world.now;
        let node = &mut world.nodes[0];
        while node.nic.handle_timers(&mut node.board, now) {}
        node.poll(now);
        node.board.outbox.clear();
    }
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert!(world.nodes[0].counters().probes_sent >= 5);
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::LinkLost);
    let mut codes = Vec::new();
    while let Some(error) = world.nodes[0].error(1) {
        codes.push(error.status);
    }
    assert!(codes.iter().all(|&status| status == Status::LinkLost));
    let page = &world.nodes[0].board.shared;
    assert_eq!(page.load_acquire(status_page::peer(NodeId(1))), 0);
}

/// The program has been told of the first message, and so has begun another epoch: what it posted since is lost, too.
#[test]
fn a_lost_link_is_told_in_each_epoch() {
    let mut world = linked();
    for (op, epoch) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)] {
        let command = Command {
            epoch: Epoch(epoch),
            ..inline(op, 0x12000, 8)
        };
        assert!(world.nodes[0].post(1, &command, &[1; 8]));
    }
    world.nodes[0].poll(world.now);
    world.nodes[0].board.outbox.clear();
    for _ in 0..50 {
        world.now.0 += 100_000_000;
        let now = world.now;
        let node = &mut world.nodes[0];
        while node.nic.handle_timers(&mut node.board, now) {}
        node.poll(now);
        node.board.outbox.clear();
    }
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    let told: Vec<_> = std::iter::from_fn(|| world.nodes[0].error(1))
        .inspect(|record| assert_eq!(record.status, Status::LinkLost))
        .map(|record| (record.op.0, record.epoch.0))
        .collect();
    assert_eq!(told, [(1, 0), (3, 1), (5, 2)]);
}

#[test]
fn an_answered_probe_keeps_the_link() {
    let mut world = linked();
    // A write that stays with the host for long.
    assert!(world.nodes[0].post(1, &inline(1, 0x15000, 8), &[1; 8]));
    world.run();
    world.pass(Nanos::from_millis(5000));
    assert_eq!(world.nodes[0].counters().links_lost, 0);
    assert!(world.nodes[0].counters().probes_sent > 10);
    assert!(world.nodes[1].counters().probes_received > 10);
    world.hosts = true;
    // The event was already taken; look at it now.
    world.run();
    world.pass(Nanos::from_millis(1000));
    assert_eq!(
        world.nodes[0].nic.next_deadline(),
        None,
        "an idle NIC has nothing to wait for"
    );
}

#[test]
fn a_gap_that_does_not_close_fails_the_link() {
    let mut world = linked();
    for op in 1..=2 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000 + u64::from(op) * 8, 8), &[1; 8]));
    }
    world.nodes[0].poll(world.now);
    world.nodes[0].board.outbox.pop_front();
    world.run();
    world.pass(Nanos::from_millis(1000));
    assert_eq!(world.nodes[1].counters().links_lost, 1);
    assert_eq!(world.nodes[0].counters().links_lost, 1, "the other side is told");
    assert_eq!(world.nodes[0].counters().links_up, 3, "and both greet again");
}

#[test]
fn messages_outside_of_the_window_and_repeated_ones_are_refused() {
    let mut world = linked();
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 2), &[1; 8]));
    world.nodes[0].poll(world.now);
    let message = world.nodes[0].board.outbox[0].clone();
    world.run();
    let now = world.now;
    world.nodes[1].deliver(now, &message);
    let mut beyond = message;
    beyond.header.seq = beyond.header.seq.plus(200);
    world.nodes[1].deliver(now, &beyond);
    let counters = world.nodes[1].counters();
    assert_eq!((counters.duplicates, counters.out_of_window), (1, 1));
    assert_eq!(world.nodes[1].signals(1, 2), 1);
    let mut ack = Header::new(Kind::Ack, NodeId(0), NodeId(1));
    ack.source_incarnation = beyond.header.source_incarnation;
    ack.destination_incarnation = beyond.header.destination_incarnation;
    ack.seq = netvm_abi::Seq(world.now.0 as u32 ^ 0x8000_0000);
    world.nodes[1].deliver(
        now,
        &Message {
            header: ack,
            payload: Vec::new(),
        },
    );
    assert_eq!(world.nodes[1].counters().acks_refused, 1);
}

#[test]
fn a_greeting_with_what_no_card_has_is_refused() {
    let mut world = World::new(2, 0);
    let good = Greeting {
        page_size: 4096,
        payload: 4096,
        window: 64,
        version: netvm_abi::ABI_VERSION,
        refuses: false,
    };
    let bad = [
        Greeting { window: 32, ..good },
        Greeting { window: 100, ..good },
        Greeting { window: 2048, ..good },
        Greeting { payload: 8, ..good },
        Greeting {
            page_size: 8192,
            ..good
        },
    ];
    for (refused, greeting) in (1..).zip(bad) {
        let mut hello = Header::of(Body::Hello { greeting }, NodeId(0), NodeId(1));
        hello.source_incarnation = Incarnation(refused as u32);
        world.nodes[1].deliver_bytes(world.now, &hello.encode());
        world.run();
        assert_eq!(world.nodes[1].counters().hellos_refused, refused, "{greeting:?}");
    }
    assert_eq!(world.nodes[1].counters().links_up, 0);
}

/// The wire may keep a greeting for as long as it likes, and anybody may make one up.
#[test]
fn a_greeting_of_another_life_ends_none_that_goes_on() {
    let mut world = linked();
    let greeting = Greeting {
        page_size: 4096,
        payload: 4096,
        window: 64,
        version: netvm_abi::ABI_VERSION,
        refuses: false,
    };
    let mut hello = Header::of(Body::Hello { greeting }, NodeId(0), NodeId(1));
    hello.source_incarnation = Incarnation(0x01D);
    let before = world.nodes[1].counters();
    for _ in 0..3 {
        world.nodes[1].deliver_bytes(world.now, &hello.encode());
        world.run();
    }
    let after = world.nodes[1].counters();
    assert_eq!(after.greetings, before.greetings + 3);
    assert_eq!((after.links_lost, after.peer_resets), (0, before.peer_resets));
    assert_eq!(after.acks_received, before.acks_received + 3, "asked each time");
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 2), &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 2), 1);
    // What was offered is forgotten: a farewell is one.
    let Node { nic, board, .. } = &mut world.nodes[0];
    nic.leave(board);
    world.run();
    let lost = world.nodes[1].event(|event| matches!(event, NicEvent::PeerLost { .. }));
    assert!(lost.is_some());
}

#[test]
fn a_refused_greeting_is_told_by_name() {
    let mut world = World::new(2, 0);
    let life = Rc::new(Cell::new(Incarnation(0)));
    let seen = Rc::clone(&life);
    world.lost = Box::new(move |message| {
        seen.set(message.header.source_incarnation);
        true
    });
    world.nodes[0].tell(HostEvent::SendControl {
        peer: NodeId(1),
        slot: 0,
        token: Token(7),
    });
    world.run();
    let body = Body::HelloAck {
        status: Status::VersionMismatch,
        greeting: Greeting::default(),
    };
    let mut refusal = Header::of(body, NodeId(1), NodeId(0));
    refusal.source_incarnation = Incarnation(u32::MAX);
    refusal.destination_incarnation = life.get();
    world.nodes[0].deliver_bytes(world.now, &refusal.encode());
    world.run();
    let sent = world.nodes[0].event(|event| matches!(event, NicEvent::ControlSent { .. }));
    let expected = NicEvent::ControlSent {
        token: Token(7),
        status: Status::VersionMismatch,
    };
    assert_eq!(sent, Some(expected));
    assert_eq!(world.nodes[0].counters().hellos_refused, 1);
}

/// As many messages are on their way as the smaller window has room for, a half of them of one port.
#[test]
fn of_two_windows_the_smaller_one_counts() {
    for (own, others) in [(256, 64), (64, 256)] {
        let mut world = World::connect(World::of_windows([own, others]));
        world.nodes[1].grant(3, &capability(0));
        world.nodes[1].map(1, 0x10000, 5, true);
        for port in 2..=3 {
            world.nodes[0].open(port, 7);
        }
        world.run();
        let before = world.nodes[0].counters().messages_sent;
        world.lost = Box::new(|message| message.header.kind == Kind::Ack);
        for (ports, left) in [(1..=1, 32), (2..=3, 64)] {
            for (port, op) in ports.flat_map(|port| (1..=40).map(move |op| (port, op))) {
                world.nodes[0].post(port, &inline(op, 0x10000, 8), &[1; 8]);
                world.run();
            }
            let sent = world.nodes[0].counters().messages_sent - before;
            assert_eq!(sent, left, "windows of {own} and {others}");
        }
    }
}

#[test]
fn a_path_that_takes_less_than_the_cards_has_a_smaller_payload() {
    for end in 0..2 {
        let mut world = World::new(2, 0);
        world.nodes[end].board.payload = 1368;
        let world = World::connect(world);
        for (node, peer) in [(0, NodeId(1)), (1, NodeId(0))] {
            let page = &world.nodes[node].board.shared;
            assert_eq!(page.load_acquire(status_page::peer_payload(peer)), 1368);
            // Within the node nothing is in the way.
            let own = status_page::peer_payload(NodeId(node as u16));
            assert_eq!(page.load_acquire(own), 4096);
        }
    }
}

#[test]
fn a_smaller_payload_is_agreed_on() {
    let mut small = World::new(2, 0);
    small.nodes[1] = Node::new(Config {
        node: NodeId(1),
        geometry: Geometry {
            payload: 1408,
            ..geometry(2)
        },
        ..Config::default()
    });
    let mut small = World::connect(small);
    let page = &small.nodes[0].board.shared;
    assert_eq!(page.load_acquire(status_page::peer_payload(NodeId(1))), 1408);
    small.nodes[0].map(1, 0x5000, 9, true);
    assert!(small.nodes[0].post(1, &write(1, 0x12000, 0x5000, 1409), &[]));
    small.run();
    assert_eq!(small.nodes[0].error(1).unwrap().status, Status::Malformed);
}

#[test]
fn control_messages_reach_the_driver_in_order_or_say_why_not() {
    let mut world = World::new(3, 0);
    let map = netvm_abi::shared_map::SharedMap::new(&world.nodes[0].board.geometry);
    for slot in 0..4u16 {
        let at = map.control_slot(slot);
        world.nodes[0]
            .board
            .shared
            .store_release(at, 100 + u32::from(slot));
        world.nodes[0].tell(HostEvent::SendControl {
            peer: NodeId(1),
            slot,
            token: Token(u32::from(slot)),
        });
    }
    for (peer, slot) in [(9, 0), (1, 64)] {
        world.nodes[0].tell(HostEvent::SendControl {
            peer: NodeId(peer),
            slot,
            token: Token(50 + u32::from(slot)),
        });
    }
    world.run();
    let mut first_words = Vec::new();
    while let Some(NicEvent::Bounced { bounce, .. }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    {
        first_words.push(world.nodes[1].board.bounce[&bounce.0][0]);
    }
    assert_eq!(first_words, [100, 101, 102, 103]);
    let sent = |status: Status| move |event: &NicEvent| matches!(event, NicEvent::ControlSent { status: s, .. } if *s == status);
    assert!(world.nodes[0].event(sent(Status::NoSuchNode)).is_some());
    assert!(world.nodes[0].event(sent(Status::TableFull)).is_some());
    assert!(world.nodes[0].event(sent(Status::Ok)).is_some());
    // Node 2 is not there: greetings go unanswered until they stop.
    world.nodes[0].tell(HostEvent::SendControl {
        peer: NodeId(2),
        slot: 5,
        token: Token(9),
    });
    for _ in 0..60 {
        world.now.0 += 20_000_000;
        let now = world.now;
        let node = &mut world.nodes[0];
        node.poll(now);
        while node.nic.handle_timers(&mut node.board, now) {}
        node.poll(now);
        node.board.outbox.clear();
    }
    assert!(world.nodes[0].event(sent(Status::LinkLost)).is_some());
    assert!(world.nodes[0].counters().hellos_sent > 50);
}

#[test]
fn a_last_message_that_is_lost_fails_the_link_as_any_gap_does() {
    let mut world = linked();
    assert!(world.nodes[0].post(1, &inline(1, 0x12000, 8), &[1; 8]));
    world.nodes[0].poll(world.now);
    world.nodes[0].board.outbox.clear();
    world.run();
    world.pass(Nanos::from_millis(2000));
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert_eq!(world.nodes[1].counters().links_lost, 1);
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::LinkLost);
}

#[test]
fn a_lost_answer_fails_the_link() {
    let mut world = linked();
    let flush = Command {
        opcode: netvm_abi::descriptor::Opcode::FlushRemote,
        ..write(1, 0, 0, 0)
    };
    assert!(world.nodes[0].post(1, &flush, &[]));
    for _ in 0..20 {
        world.step();
        let answers = &mut world.nodes[1].board.outbox;
        answers.retain(|message| message.header.kind != Kind::FlushReply);
    }
    world.pass(Nanos::from_millis(3000));
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::LinkLost);
}

/// A node that starts again gives its ports the generations and epochs of the life before; what
/// failed there is no reason to hold back notifications of its new owners.
#[test]
fn a_poison_ends_with_the_life_of_the_senders_node() {
    let mut world = linked();
    world.nodes[1].obliging = true;
    let mut outside = notify(inline(1, 0x12000, 8), 2);
    outside.remote.0 = 0x7000_0000;
    assert!(world.nodes[0].post(1, &outside, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].counters().streams_poisoned, 1);
    let config = Config {
        incarnation_seed: 0xBEEF,
        ..*world.nodes[0].nic.config()
    };
    world.nodes[0] = Node::new(config);
    world.nodes[0].open(1, 7);
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 2), &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 2), 1);
    assert_eq!(world.nodes[1].counters().notifications_suppressed, 1);
}

/// A window slot that was reserved in an earlier life of the link is not given back to a later one: it would let the
/// node send more than its peer has room for.
#[test]
fn a_reservation_ends_with_its_life() {
    let mut world = World::connected(2, 0);
    for port in 2..=4 {
        world.nodes[0].open(port, 7);
    }
    for port in 1..=2 {
        for page in 0..8 {
            world.nodes[0].map(port, 0x40000 + page * 0x1000, 5, true);
        }
    }
    world.auto_dma = false;
    // Each of these has a window slot, and waits for its payload.
    for page in 0..4 {
        let command = write(page, 0x12000, 0x40000 + u64::from(page) * 0x1000, 64);
        assert!(world.nodes[0].post(1, &command, &[]));
    }
    world.run();
    let earlier = world.nodes[0].board.dmas.len();
    assert_eq!(earlier, 4);
    restart(&mut world, 1);
    // The refusal of this one tells node 0.
    assert!(world.nodes[0].post(3, &inline(99, 0x12000, 8), &[1; 8]));
    world.pass(Nanos::from_millis(100));
    assert_eq!(world.nodes[1].counters().links_up, 1, "another life");
    // Those of the new life.
    for page in 0..2 {
        let command = write(page, 0x12000, 0x40000 + u64::from(page) * 0x1000, 64);
        assert!(world.nodes[0].post(2, &command, &[]));
    }
    world.run();
    assert_eq!(world.nodes[0].board.dmas.len(), earlier + 2);
    let before = world.nodes[0].counters().messages_sent;
    for _ in 0..earlier {
        let now = world.now;
        world.nodes[0].end_dma(now, 0, true);
    }
    world.run();
    // The peer acknowledges nothing: two other ports take all that is left of the window, a half of it at most each.
    world.lost = Box::new(|message| message.header.destination.0 == 0);
    for op in 0..40 {
        for port in 3..=4 {
            let command = notify(inline(op, 0x12000, 8), 2);
            world.nodes[0].post(port, &command, &[1; 8]);
            world.run();
        }
    }
    world.auto_dma = true;
    world.run();
    let window = u64::from(world.nodes[0].board.geometry.window);
    assert_eq!(world.nodes[0].counters().messages_sent - before, window);
    assert_eq!(world.nodes[1].counters().out_of_window, 0);
}
