//! Order (promise P4, thesis 6.2) under everything that can disturb it: a wire that reorders, DMAs
//! that end in any order, source misses, pages that come and go, full windows.

use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::{CapabilitySlot, Epoch, Nanos, NodeId, OpId, PortId, ReplySlot, Status, VirtAddr};
use netvm_kit::nic::*;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};

/// One write of a sender: where, what, and how.
#[derive(Clone, Debug)]
struct Op {
    address: u64,
    value: [u8; 8],
    notifies: bool,
    ordered: bool,
}

struct Sender {
    port: u16,
    posted: Vec<Op>,
    to_post: usize,
    /// How many leading writes are known to have landed.
    landed: usize,
}

const SENDERS: u64 = 3;

fn landed(world: &mut World, op: &Op) -> bool {
    world.nodes[1].memory(1, op.address, 8) == op.value
}

/// What the receiver may believe: a signal, and an ordered write, come after everything earlier.
fn check(world: &mut World, sender: &mut Sender) {
    let signals = world.nodes[1].signals(1, 10 + u32::from(sender.port)) as usize;
    let mut notified = 0;
    for at in 0..sender.posted.len() {
        let op = sender.posted[at].clone();
        if notified < signals || (op.ordered && landed(world, &op)) {
            for earlier in sender.landed..=at {
                let op = sender.posted[earlier].clone();
                assert!(landed(world, &op), "port {}: {op:?} is missing", sender.port);
            }
            sender.landed = sender.landed.max(at + 1);
        }
        notified += usize::from(op.notifies);
    }
    assert!(signals <= notified, "more signals than notifying writes");
}

/// How often a link was held up.
fn run(seed: u64, count: usize) -> u64 {
    let mut world = World::connected(2, seed);
    world.hosts = true;
    let mut senders = Vec::new();
    for port in 1..=SENDERS as u16 {
        if port > 1 {
            world.nodes[0].open(port, 3);
        }
        let mut grant = capability(0);
        grant.holder_port = PortId(port);
        world.nodes[1].grant(u32::from(port), &grant);
        senders.push(Sender {
            port,
            posted: Vec::new(),
            to_post: count,
            landed: 0,
        });
    }
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed ^ 0xABCD);
    let mut next_cell = 0u64;
    let mut quiet = 0;
    while quiet < 3 {
        for sender in &mut senders {
            if sender.to_post > 0 && rng.random_bool(0.3) {
                let op = Op {
                    address: 0x10000 + next_cell * 8,
                    value: (next_cell + 1).to_le_bytes(),
                    notifies: rng.random_bool(0.4),
                    ordered: rng.random_bool(0.1),
                };
                let mut command = if rng.random_bool(0.5) {
                    inline(next_cell as u32, op.address, 8)
                } else {
                    let local = 0x40000 + next_cell * 8;
                    world.nodes[0].fill(sender.port, local, &op.value);
                    write(next_cell as u32, op.address, local, 8)
                };
                command.capability = CapabilitySlot(u32::from(sender.port));
                command.epoch = Epoch(0);
                if op.notifies {
                    command.notification.0 = 10 + u32::from(sender.port);
                }
                if op.ordered {
                    command.flags |= CommandFlags::ORDERED;
                }
                if world.nodes[0].post(sender.port, &command, &op.value) {
                    sender.posted.push(op);
                    sender.to_post -= 1;
                    next_cell += 1;
                }
            }
        }
        // Pages come and go, at both ends; what is locked stays.
        for node in 0..2 {
            if rng.random_bool(0.05) {
                let pages: Vec<u64> = world.nodes[node].slots.keys().copied().collect();
                for raw in pages {
                    let vpn = netvm_abi::Vpn::from_raw(raw);
                    if rng.random_bool(0.3) {
                        world.nodes[node].evict(vpn);
                    }
                }
            }
            if rng.random_bool(0.05) {
                let page = 0x10000 + rng.random_range(0..4) * 0x1000;
                if node == 1 {
                    world.nodes[1].map_if_missing(1, page, 5, rng.random_bool(0.8));
                }
            }
        }
        if world.step() {
            quiet = 0;
        } else if senders.iter().all(|sender| sender.to_post == 0) {
            world.pass(Nanos::from_millis(1));
            quiet += 1;
        }
        for sender in &mut senders {
            check(&mut world, sender);
        }
    }
    for sender in &mut senders {
        let notifying = sender.posted.iter().filter(|op| op.notifies).count();
        let signals = world.nodes[1].signals(1, 10 + u32::from(sender.port));
        assert_eq!(signals as usize, notifying, "exactly once");
        for op in sender.posted.clone() {
            assert!(landed(&mut world, &op));
        }
        assert_eq!(world.nodes[0].error(sender.port), None);
    }
    let counters = world.nodes[1].counters();
    assert_eq!(counters.dropped, 0);
    assert_eq!(counters.duplicates, 0, "nothing is sent twice");
    for node in &world.nodes {
        assert!(
            node.board.receive.is_empty(),
            "every receive buffer has been given back"
        );
        assert_eq!(node.nic.dmas_in_flight(), 0);
    }
    counters.links_held_up
}

#[test]
fn notifications_follow_all_earlier_data_in_many_worlds() {
    let held_up: u64 = (1..=40).map(|seed| run(seed, 60)).sum();
    assert!(held_up > 40, "links were held up {held_up} times");
}

/// Two ports of node 0 may use memory of node 1: page 0x12000 is not there, 0x13000 is.
fn two_ports() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[0].open(2, 3);
    for port in [1, 2] {
        let mut grant = capability(0);
        grant.holder_port = PortId(port);
        grant.modes = Modes::all();
        world.nodes[1].grant(u32::from(port), &grant);
    }
    world.nodes[1].map(1, 0x13000, 5, true);
    world
}

fn of(port: u16, mut command: Command) -> Command {
    command.capability = CapabilitySlot(u32::from(port));
    command
}

fn bell(op: u32, address: u64, id: u32) -> Command {
    let mut bell = notify(inline(op, address, 8), id);
    bell.flags |= CommandFlags::ORDERED;
    bell
}

/// What waits for a page: a write, a read and an atomic.
fn slow() -> [Command; 3] {
    let read = Command {
        opcode: Opcode::Read,
        local: VirtAddr(0x40000),
        reply: ReplySlot(0),
        ..inline(1, 0x12000, 8)
    };
    let add = Command {
        opcode: Opcode::FetchAdd,
        flags: CommandFlags::WIDE,
        operand: 1,
        reply: ReplySlot(0),
        ..write(1, 0x12000, 0, 0)
    };
    [inline(1, 0x12000, 8), read, add]
}

#[test]
fn a_port_does_not_wait_for_the_page_of_another_one() {
    for slow in slow() {
        let what = slow.opcode;
        let mut world = two_ports();
        assert!(world.nodes[0].post(1, &of(1, slow), &[9; 8]));
        world.run();
        // One port goes on, by every operation that asks for order; the other one waits.
        for round in 0..5 {
            assert!(world.nodes[0].post(2, &of(2, bell(2 + round, 0x13000, 5)), &[round as u8; 8]));
            assert!(world.nodes[0].post(2, &of(2, notify(inline(9, 0x13010, 8), 6)), &[1; 8]));
            world.run();
            assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [round as u8; 8], "{what:?}");
            let signals = [5, 6].map(|id| world.nodes[1].signals(1, id));
            assert_eq!(signals, [round + 1; 2], "{what:?}");
        }
        assert!(world.nodes[0].post(1, &of(1, bell(20, 0x13020, 7)), &[3; 8]));
        assert!(world.nodes[0].post(1, &of(1, notify(inline(21, 0x13030, 8), 8)), &[4; 8]));
        world.run();
        assert_eq!(world.nodes[1].memory(1, 0x13020, 8), [0; 8], "{what:?}");
        assert_eq!(
            world.nodes[1].memory(1, 0x13030, 8),
            [4; 8],
            "plain data waits for nothing"
        );
        assert_eq!([7, 8].map(|id| world.nodes[1].signals(1, id)), [0; 2], "{what:?}");
        assert_eq!(world.nodes[1].counters().links_held_up, 1);

        world.hosts = true;
        world.run();
        assert_eq!(world.nodes[1].memory(1, 0x13020, 8), [3; 8], "{what:?}");
        assert_eq!([7, 8].map(|id| world.nodes[1].signals(1, id)), [1; 2], "{what:?}");
        // The link goes on as ever.
        for op in 30..200 {
            assert!(world.nodes[0].post(1, &of(1, bell(op, 0x13000, 9)), &[1; 8]));
            world.run();
        }
        assert_eq!(world.nodes[1].signals(1, 9), 170);
        assert_eq!(world.nodes[1].counters().links_held_up, 1, "{what:?}");
    }
}

/// The stream of the port that waits is poisoned, and no other one.
#[test]
fn a_page_that_does_not_come_fails_its_own_stream() {
    let mut world = two_ports();
    assert!(world.nodes[0].post(1, &of(1, inline(1, 0x12000, 8)), &[9; 8]));
    assert!(world.nodes[0].post(1, &of(1, bell(2, 0x13000, 5)), &[1; 8]));
    assert!(world.nodes[0].post(2, &of(2, bell(3, 0x13010, 6)), &[2; 8]));
    world.run();
    let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    else {
        panic!("nothing bounced");
    };
    let status = Status::TimedOut;
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status,
    });
    world.run();
    assert!(world.nodes[0].post(2, &of(2, bell(4, 0x13010, 6)), &[3; 8]));
    world.run();
    assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [0; 8]);
    assert_eq!(world.nodes[1].memory(1, 0x13010, 8), [3; 8]);
    assert_eq!([5, 6].map(|id| world.nodes[1].signals(1, id)), [0, 2]);
    let error = world.nodes[0].error(1).expect("it is told");
    assert_eq!((error.op, error.status), (OpId(1), status));
    assert_eq!(world.nodes[0].error(2), None);
}

/// A link is lost while it is held up. In its next life nothing waits for what was in the last one.
#[test]
fn nothing_waits_for_a_message_of_a_life_that_is_over() {
    let mut world = two_ports();
    assert!(world.nodes[0].post(1, &of(1, inline(1, 0x12000, 8)), &[9; 8]));
    for port in [1, 2, 1, 2] {
        assert!(world.nodes[0].post(port, &of(port, bell(2, 0x13000, 5)), &[1; 8]));
    }
    world.run();
    assert_eq!(world.nodes[1].counters().links_held_up, 1);
    assert_eq!(world.nodes[1].signals(1, 5), 2);
    let Node { nic, board, .. } = &mut world.nodes[0];
    nic.leave(board);
    world.run();
    world.nodes[1].tell(HostEvent::PeerConnect { peer: NodeId(0) });
    for _ in 0..4 {
        world.run();
        for node in &mut world.nodes {
            node.take_events();
            for event in std::mem::take(&mut node.inbox) {
                if let NicEvent::PeerLost { peer, incarnation } | NicEvent::PeerReset { peer, incarnation } =
                    event
                {
                    node.tell(HostEvent::PeerReleased { peer, incarnation });
                }
            }
        }
    }
    assert_eq!(
        [0, 1].map(|at: usize| world.nodes[at].counters().links_lost),
        [1, 1]
    );
    let before = world.nodes[1].signals(1, 5);
    for port in [1, 2] {
        let mut again = of(port, bell(10, 0x13000, 5));
        again.epoch = Epoch(1);
        assert!(world.nodes[0].post(port, &again, &[port as u8; 8]));
        world.run();
        assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [port as u8; 8]);
    }
    assert_eq!(world.nodes[1].signals(1, 5), before + 2);
}

/// A whole window of ordered messages that wait for one write: each ends in the moment in which the
/// LSN reaches it, and none may be left there.
#[test]
fn a_window_full_of_ordered_messages_goes_when_the_first_lands() {
    let mut world = World::connected(2, 0);
    world.auto_dma = false;
    world.nodes[0].open(2, 3);
    for port in [1, 2] {
        let mut grant = capability(0);
        grant.holder_port = PortId(port);
        world.nodes[1].grant(u32::from(port), &grant);
    }
    world.nodes[1].map(1, 0x12000, 5, true);
    let mut first = inline(1, 0x12000, 8);
    first.capability = CapabilitySlot(1);
    assert!(world.nodes[0].post(1, &first, &[7; 8]));
    world.run();
    let window = u32::from(world.nodes[0].nic.config().geometry.window);
    for op in 2..=window {
        // Each port gets its half of the window.
        let port = 1 + ((op + 1) % 2) as u16;
        let mut bell = notify(inline(op, 0x12000, 0), 6);
        bell.capability = CapabilitySlot(u32::from(port));
        bell.flags |= CommandFlags::ORDERED;
        assert!(world.nodes[0].post(port, &bell, &[]), "room for operation {op}");
        world.run();
    }
    assert_eq!(world.nodes[1].counters().ordered_parked, u64::from(window) - 1);
    assert_eq!(world.nodes[1].signals(1, 6), 0, "the first has not landed");
    world.auto_dma = true;
    world.run();
    assert_eq!(world.nodes[1].signals(1, 6), window - 1);
    assert_eq!(world.nodes[1].counters().messages_landed, u64::from(window));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn notifications_follow_all_earlier_data(seed in 1u64.., count in 1usize..120) {
        run(seed, count);
    }
}
