//! Staging buffers are shared (promise P5): no port, no kind of transfer and no page that does not come takes those that
//! the others are to find.

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::*;
use netvm_kit::nic::*;

/// Commands of a port that its card works on at a time: each may hold a buffer.
const PIPELINE: u32 = 8;
/// Pages of node 0's ports that are there, and, above, that are not.
const THERE: u64 = 0x40000;
const NOT_THERE: u64 = 0x80000;

/// Node 0 has ports 1 to 4, which may write to node 1 and read from it, and has pages that any port of others may read.
fn world(staging: u16) -> World {
    let geometry = Geometry {
        staging,
        ..geometry(3)
    };
    let mut world = World::connect(World::with(3, 0, geometry, |_| {}));
    for port in 2..=4 {
        for node in &mut world.nodes {
            node.open(port, 7);
        }
    }
    for holder in 0..3u16 {
        for port in 1..=4u16 {
            let grant = Capability {
                modes: Modes::all(),
                holder_port: PortId(port),
                ..capability(holder)
            };
            for node in &mut world.nodes {
                node.grant(slot(holder, port).0, &grant);
            }
        }
    }
    for node in &mut world.nodes {
        node.map(1, 0x12000, 5, true);
    }
    for port in 1..=4 {
        for page in 0..u64::from(PIPELINE) {
            world.nodes[0].map(port, THERE + page * 0x1000, 5, true);
        }
    }
    world.run();
    world.auto_dma = false;
    world
}

/// The capability of a node's port.
fn slot(holder: u16, port: u16) -> CapabilitySlot {
    CapabilitySlot(u32::from(holder * 8 + port))
}

/// As many writes of whole pages as a port's pipeline holds, from pages at `source` on.
fn fill(world: &mut World, port: u16, source: u64) {
    for page in 0..PIPELINE {
        let command = Command {
            capability: slot(0, port),
            ..write(page + 1, 0x12000, source + u64::from(page) * 0x1000, 4096)
        };
        assert!(world.nodes[0].post(port, &command, &[]));
    }
    world.run();
}

/// Reads of a page of node 0, by a port of another node.
fn read_from_home(world: &mut World, node: u16, port: u16, address: u64, count: u32) {
    for op in 1..=count {
        let command = Command {
            opcode: Opcode::Read,
            node: NodeId(0),
            capability: slot(node, port),
            reply: ReplySlot(op as u16),
            ..write(op, address, THERE, 64)
        };
        assert!(world.nodes[usize::from(node)].post(port, &command, &[]));
    }
    world.run();
}

/// DMAs of node 0 that are under way: each fills a buffer.
fn filling(world: &World) -> usize {
    world.nodes[0].board.dmas.len()
}

#[test]
fn a_port_gets_half_of_the_buffers() {
    let mut world = world(8);
    fill(&mut world, 1, THERE);
    assert_eq!(filling(&world), 4);
    fill(&mut world, 2, THERE);
    assert_eq!(filling(&world), 6, "another port finds some");
}

#[test]
fn all_ports_together_leave_some_for_reads_of_others() {
    let mut world = world(8);
    for port in 1..=4 {
        fill(&mut world, port, THERE);
    }
    assert_eq!(filling(&world), 6);
    read_from_home(&mut world, 1, 1, 0x12000, 1);
    assert_eq!(filling(&world), 7, "the read of another node is served");
}

#[test]
fn reads_of_others_leave_some_for_ports() {
    let mut world = world(8);
    for node in [1, 2] {
        for port in [1, 2] {
            // Two ports leave six of the eight read slots of a node unanswered at most: twelve requests in all.
            read_from_home(&mut world, node, port, 0x12000, 4);
        }
    }
    assert_eq!(
        world.nodes[0].counters().staging_stalls,
        6,
        "twelve requests, six buffers"
    );
    assert_eq!(filling(&world), 6);
    fill(&mut world, 1, THERE);
    assert_eq!(filling(&world), 8);
}

#[test]
fn ports_whose_sources_do_not_come_leave_some_for_one_whose_pages_are_there() {
    // A quarter of the buffers is four: three ports may wait.
    let mut world = world(16);
    for port in 2..=4 {
        fill(&mut world, port, NOT_THERE);
    }
    assert_eq!(filling(&world), 0, "the host has been asked for each page");
    fill(&mut world, 1, THERE);
    assert!(filling(&world) > 0, "a port whose pages are there finds a buffer");
}

/// Past a message that the wire loses, a port has the place of each message back that has landed, up to the whole window.
/// What waits for its page holds its place: half of a window, and no more.
#[test]
fn a_lost_message_keeps_what_has_landed_from_no_port() {
    for (there, left) in [(true, 64), (false, 32)] {
        let mut world = World::connect(World::with(2, 0, geometry(2), |_| {}).lossy());
        world.nodes[1].grant(3, &capability(0));
        world.nodes[1].map(1, 0x10000, 5, true);
        let first = world.nodes[0].counters().messages_sent;
        world.lost =
            Box::new(|message| message.header.kind == wire::Kind::Write && message.header.op == OpId(1));
        let to = |op: u32| if there || op == 1 { 0x10000 } else { 0x11000 };
        for op in 1..=80 {
            while !world.nodes[0].post(1, &inline(op, to(op), 8), &[1; 8]) {
                if !world.step() {
                    break;
                }
            }
            world.run();
        }
        let counters = world.nodes[0].counters();
        assert_eq!(counters.messages_sent - first, left, "pages there: {there}");
        assert_eq!(counters.links_lost, 0);
    }
}
