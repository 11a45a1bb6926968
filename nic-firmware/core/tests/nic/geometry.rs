//! Nodes whose tables are of different sizes: what one has more of than the other harms no link.

use netvm_abi::capability::Capability;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use netvm_kit::nic::*;
use netvm_nic::config::Timers;

/// A port of the large node that the small one has none of.
const HIGH: u16 = 12;

/// Node 0 has 16 ports, the others 8.
fn different(nodes: u16) -> World {
    let world = World::with(nodes, 0, geometry(nodes), |config| {
        if config.node == NodeId(0) {
            config.geometry.ports = 16;
        }
    });
    let mut world = World::connect(world);
    world.nodes[0].open(HIGH, 7);
    world.nodes[1].map(1, 0x12000, 5, true);
    for (slot, holder_port) in [(3, 1), (4, HIGH)] {
        world.nodes[1].grant(
            slot,
            &Capability {
                holder_port: PortId(holder_port),
                ..capability(0)
            },
        );
    }
    world
}

fn everything() -> Vec<Command> {
    let of = |opcode, op| Command {
        opcode,
        capability: CapabilitySlot(4),
        reply: ReplySlot(op as u16),
        ..write(op, 0x12000, 0x5000, 0)
    };
    let sent = |command: Command| Command {
        reply: ReplySlot::NONE,
        capability: CapabilitySlot(4),
        ..command
    };
    vec![
        sent(notify(inline(1, 0x12000, 8), 5)),
        sent(notify(inline(2, 0x12000, 0), 5)),
        Command {
            flags: CommandFlags::ORDERED | CommandFlags::INLINE,
            ..sent(inline(3, 0x12000, 8))
        },
        Command {
            flags: CommandFlags::APPEND | CommandFlags::INLINE,
            ..sent(inline(4, 0x12000, 8))
        },
        Command {
            flags: CommandFlags::REGARDLESS | CommandFlags::INLINE,
            ..sent(notify(inline(5, 0x12000, 8), 5))
        },
        Command {
            len: ByteLen(8),
            ..of(Opcode::Read, 6)
        },
        of(Opcode::FetchAdd, 7),
        of(Opcode::FlushRemote, 8),
    ]
}

fn reply(node: &Node, port: u16, op: u32) -> Option<Reply> {
    let area = SharedMap::new(&node.board.geometry).port_area(PortId(port));
    let area = Part::new(&node.board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16, OpId(op))
}

#[test]
fn what_a_port_past_the_others_last_one_sends_is_refused_by_name_and_harms_no_link() {
    let mut world = different(3);
    for (op, command) in (1..).zip(everything()) {
        assert!(world.nodes[0].post(HIGH, &command, &[7; 8]));
        world.run();
        let alone = command.flags.contains(CommandFlags::REGARDLESS);
        if command.reply != ReplySlot::NONE {
            let reply = reply(&world.nodes[0], HIGH, op).expect("a reply");
            assert_eq!(reply.status, Status::NoSuchPort, "{command:?}");
        } else if !alone {
            let error = world.nodes[0].error(HIGH).expect("an error");
            assert_eq!((error.status, error.op), (Status::NoSuchPort, OpId(op)));
        }
        assert_eq!(world.nodes[0].error(HIGH), None, "told once: {command:?}");
    }
    assert_eq!(world.nodes[1].signals(1, 5), 0);
    assert_eq!(world.nodes[1].counters().dma_started, 0);
    // Port 1 of the same node goes on, and nothing is left that would end the link later.
    assert!(world.nodes[0].post(1, &notify(inline(9, 0x12000, 8), 6), &[1; 8]));
    world.pass(Timers::default().loss_bound());
    assert_eq!(world.nodes[1].signals(1, 6), 1);
    for node in &world.nodes {
        assert_eq!((node.counters().links_lost, node.counters().malformed), (0, 0));
    }
}

/// The stream of a number that is too high is one of another node: port 12 of node 0 would be port 4 of node 1.
#[test]
fn it_neither_poisons_nor_mends_the_stream_of_another_port() {
    let mut world = different(2);
    let own = Command {
        capability: CapabilitySlot(5),
        epoch: Epoch(3),
        ..notify(inline(1, 0x12000, 8), 6)
    };
    world.nodes[1].open(HIGH - 8, 7);
    world.nodes[1].grant(
        5,
        &Capability {
            holder_port: PortId(HIGH - 8),
            ..capability(1)
        },
    );
    let high = Command {
        capability: CapabilitySlot(4),
        epoch: Epoch(3),
        ..inline(1, 0x12000, 8)
    };
    assert!(world.nodes[0].post(HIGH, &high, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].counters().streams_poisoned, 0);
    let outside = Command {
        remote: VirtAddr(0x7000_0000),
        ..own
    };
    assert!(world.nodes[1].post(HIGH - 8, &outside, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].counters().streams_poisoned, 1);
    assert!(world.nodes[0].post(
        HIGH,
        &Command {
            epoch: Epoch(4),
            ..high
        },
        &[1; 8]
    ));
    world.run();
    assert!(world.nodes[1].post(HIGH - 8, &own, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 6), 0, "its stream is still poisoned");
}

#[test]
fn nodes_with_other_tables_agree_on_the_smaller_payload_and_reach_each_other() {
    let world = World::with(2, 0, geometry(2), |config| {
        if config.node == NodeId(0) {
            config.geometry = Geometry {
                payload: 1408,
                ports: 32,
                page_rows: 16,
                capabilities: 8,
                staging: 4,
                reads: 1,
                ..config.geometry
            };
        }
    });
    let mut world = World::connect(world);
    for node in 0..2 {
        world.nodes[node].grant(3, &capability(1 - node as u16));
        world.nodes[node].map(1, 0x12000, 5, true);
        let payload = status_page::peer_payload(NodeId(1 - node as u16));
        assert_eq!(world.nodes[node].board.shared.load_acquire(payload), 1408);
    }
    for node in 0..2u16 {
        let command = Command {
            node: NodeId(1 - node),
            ..notify(inline(1, 0x12000, 8), 6)
        };
        assert!(world.nodes[usize::from(node)].post(1, &command, &[1; 8]));
        world.run();
        assert_eq!(world.nodes[usize::from(1 - node)].signals(1, 6), 1);
    }
}

/// A node that is not in the other's tables gets no link, and says so to its own host: it disturbs nothing.
#[test]
fn a_node_with_a_number_past_the_others_last_one_gets_no_link() {
    let mut world = World::with(3, 0, geometry(3), |config| {
        if config.node == NodeId(1) {
            config.geometry.nodes = 2;
        }
    });
    world.nodes[2].tell(HostEvent::SendControl {
        peer: NodeId(1),
        slot: 0,
        token: Token(7),
    });
    let timers = Timers::default();
    world.pass(Nanos(
        timers.hello_interval.0 * (u64::from(timers.hello_limit) + 2),
    ));
    let sent = world.nodes[2].event(|event| matches!(event, NicEvent::ControlSent { .. }));
    let expected = NicEvent::ControlSent {
        token: Token(7),
        status: Status::LinkLost,
    };
    assert_eq!(sent, Some(expected));
    assert_eq!(world.nodes[1].counters().links_up, 0);
}
