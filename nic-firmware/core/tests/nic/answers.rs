//! What comes back reaches the port that it is for, in its present life, from the node that was asked, and wakes it.

use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::event::HostEvent;
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::Kind;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;
use netvm_nic::platform::Interrupt;
use std::cell::RefCell;
use std::rc::Rc;

fn read(op: u32) -> Command {
    Command {
        opcode: Opcode::Read,
        reply: ReplySlot(op as u16),
        ..write(op, 0x12000, 0x5000, 8)
    }
}

fn reply(world: &World, op: u32) -> Option<Reply> {
    let board = &world.nodes[0].board;
    let area = SharedMap::new(&board.geometry).port_area(PortId(1));
    let area = Part::new(&board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16, OpId(op))
}

/// Runs the world and takes the messages of a kind to node 0 off the wire.
fn held(world: &mut World, kind: Kind) -> Vec<Message> {
    let held = Rc::new(RefCell::new(Vec::new()));
    let taken = Rc::clone(&held);
    world.lost = Box::new(move |message| {
        let takes = message.header.destination.0 == 0 && message.header.kind == kind;
        if takes {
            taken.borrow_mut().push(message.clone());
        }
        takes
    });
    world.run();
    world.lost = Box::new(|_| false);
    held.take()
}

#[test]
fn an_answer_counts_from_the_node_that_was_asked_alone() {
    let mut world = World::connected(3, 0);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].fill(1, 0x12000, &[0x3C; 8]);
    world.nodes[0].map(1, 0x5000, 9, true);
    assert!(world.nodes[0].post(1, &read(1), &[]));
    let genuine = held(&mut world, Kind::ReadReply);
    assert_eq!(genuine.len(), 1);
    // Another node, whose link is as good as any, gives the same answer with other bytes.
    let flush = Command {
        opcode: Opcode::FlushRemote,
        node: NodeId(2),
        reply: ReplySlot(2),
        ..write(2, 0, 0, 0)
    };
    assert!(world.nodes[0].post(1, &flush, &[]));
    let theirs = held(&mut world, Kind::FlushReply);
    let mut forged = genuine[0].clone();
    forged.header.source = NodeId(2);
    forged.header.source_incarnation = theirs[0].header.source_incarnation;
    forged.header.destination_incarnation = theirs[0].header.destination_incarnation;
    forged.payload = vec![0xEE; 8];
    let (now, before) = (world.now, world.nodes[0].counters().late_replies);
    world.nodes[0].deliver(now, &forged);
    world.run();
    assert_eq!(world.nodes[0].counters().late_replies, before + 1);
    assert_eq!(reply(&world, 1), None);
    assert_eq!(world.nodes[0].memory(1, 0x5000, 8), [0; 8]);
    world.nodes[0].deliver(now, &genuine[0]);
    world.run();
    assert_eq!(reply(&world, 1).map(|reply| reply.status), Some(Status::Ok));
    assert_eq!(world.nodes[0].memory(1, 0x5000, 8), [0x3C; 8]);
}

/// Posts a write that node 1 refuses. Gives the message that says so.
fn refused(world: &mut World) -> Message {
    assert!(world.nodes[0].post(1, &inline(1, 0x30000, 8), &[1; 8]));
    let mut told = held(world, Kind::Error);
    assert_eq!(told.len(), 1);
    told.remove(0)
}

#[test]
fn an_error_wakes_its_port() {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    let told = refused(&mut world);
    world.nodes[0].board.interrupts.clear();
    let now = world.now;
    world.nodes[0].deliver(now, &told);
    assert_eq!(world.nodes[0].board.interrupts, [Interrupt::Port(PortId(1))]);
    let record = world.nodes[0].error(1).expect("a record");
    assert_eq!((record.op, record.status), (OpId(1), Status::OutOfRange));
}

#[test]
fn an_error_of_the_last_owner_does_not_reach_the_next_one() {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    let told = refused(&mut world);
    world.nodes[0].tell(HostEvent::PortClose {
        port: PortId(1),
        generation: Generation(7),
    });
    world.run();
    world.nodes[0].open(1, 8);
    world.run();
    world.nodes[0].board.interrupts.clear();
    let now = world.now;
    world.nodes[0].deliver(now, &told);
    world.run();
    assert_eq!(world.nodes[0].error(1), None);
    assert!(world.nodes[0].board.interrupts.is_empty());
}
