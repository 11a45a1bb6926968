//! What follows a refused append: the other traffic of its port goes on, and the appends of its stream wait until one
//! names the refusal (`docs/decisions/0023-refused-append.md`).

use netvm_abi::bar::port as bar_port;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::HostEvent;
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::{QueueShape, Record};
use netvm_abi::wire::Kind;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;
use netvm_nic::Config;

/// A page of node 1 that is mapped.
const PAGE_AT: u64 = 0x12000;
/// The queue of port 1 there, of one entry, in a mapped page of its own.
const QUEUE: u64 = 0x14000;
/// That of port 2.
const OTHER: u64 = 0x15000;
/// Event count that an entry raises.
const RAISES: u32 = 9;
/// Event count that other operations name.
const BELL: u32 = 6;
/// Capability slots.
const ALL: u32 = 3;
const APPEND: u32 = 4;
const APPEND_OTHER: u32 = 5;

fn queue(port: u16, start: u64) -> Capability {
    Capability {
        modes: Modes::APPEND,
        port: PortId(port),
        start: VirtAddr(start),
        end: VirtAddr(start + 512),
        queue: QueueShape {
            entry: 9,
            number: RAISES as u16,
        },
        ..capability(0)
    }
}

/// Two nodes with a full queue.
fn full() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].open(2, 3);
    world.run();
    let all = Capability {
        modes: Modes::all(),
        ..capability(0)
    };
    world.nodes[1].grant(ALL, &all);
    world.nodes[1].grant(APPEND, &queue(1, QUEUE));
    world.nodes[1].grant(APPEND_OTHER, &queue(2, OTHER));
    world.nodes[1].map(1, PAGE_AT, 5, true);
    world.nodes[1].map(1, QUEUE, 5, true);
    world.nodes[1].map(2, OTHER, 5, true);
    post(&mut world, append(1, 0));
    world.run();
    assert_eq!(world.nodes[1].counters().appends, 1);
    world
}

fn append(op: u32, refusal: u32) -> Command {
    Command {
        flags: CommandFlags::INLINE | CommandFlags::APPEND,
        capability: CapabilitySlot(APPEND),
        operand: refusal.into(),
        ..write(op, 0, 0, 8)
    }
}

fn flush(op: u32) -> Command {
    Command {
        opcode: Opcode::FlushRemote,
        reply: ReplySlot(op as u16),
        ..write(op, 0, 0, 0)
    }
}

/// The payload of a write is its number.
fn post(world: &mut World, command: Command) {
    assert!(world.nodes[0].post(1, &command, &[command.op.0 as u8; 8]));
}

fn post_all(world: &mut World, commands: impl IntoIterator<Item = Command>) {
    for command in commands {
        post(world, command);
    }
    world.run();
}

fn free(world: &World, freed: u32) {
    world.nodes[1].set_bar_word(1, bar_port::QUEUE_FREED, freed);
}

fn record(world: &World, port: u16, place: u32) -> Option<Status> {
    let node = &world.nodes[1];
    let at = SharedMap::new(&node.board.geometry).port_area(PortId(port));
    let record = Record::load(&Part::new(&node.board.shared, at, AREA_WORDS), place);
    record.map(|record| record.status)
}

/// What is in the one place of the queue, as the number of its append.
fn in_place(world: &mut World) -> u8 {
    world.nodes[1].memory(1, QUEUE, 1)[0]
}

fn reply(world: &World, op: u32) -> Reply {
    let node = &world.nodes[0];
    let at = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, at, AREA_WORDS);
    Reply::load(&area, op as u16, OpId(op)).expect("it has been answered")
}

/// Which appends port 1 of node 0 was told of.
fn refusals(world: &mut World) -> Vec<u32> {
    std::iter::from_fn(|| {
        let error = world.nodes[0].error(1)?;
        assert_eq!(error.status, Status::NoPlace);
        Some(error.op.0)
    })
    .collect()
}

#[test]
fn other_operations_of_its_stream_go_on() {
    let mut world = full();
    let ordered = |command: Command| Command {
        flags: command.flags | CommandFlags::ORDERED,
        ..command
    };
    let add = Command {
        opcode: Opcode::FetchAdd,
        flags: CommandFlags::ORDERED | CommandFlags::WIDE,
        operand: 5,
        reply: ReplySlot(7),
        ..write(7, PAGE_AT + 8, 0, 0)
    };
    post_all(
        &mut world,
        [
            append(2, 0),
            notify(inline(3, PAGE_AT + 0x100, 8), BELL),
            notify(inline(4, PAGE_AT, 0), 2000),
            notify(ordered(inline(5, PAGE_AT + 0x200, 8)), BELL),
            inline(6, PAGE_AT + 0x300, 8),
            add,
        ],
    );
    assert_eq!(refusals(&mut world), [2]);
    for (op, at) in [(3, 0x100), (5, 0x200), (6, 0x300)] {
        assert_eq!(world.nodes[1].memory(1, PAGE_AT + at, 1), [op], "{op}");
    }
    assert_eq!(world.nodes[1].signals(1, BELL), 2);
    assert_eq!(reply(&world, 7).status, Status::Ok);
    let counters = world.nodes[1].counters();
    assert_eq!(
        (
            counters.one_shot_delivered,
            counters.notifications_suppressed,
            counters.streams_poisoned
        ),
        (1, 0, 0)
    );
    assert!(world.nodes[1].board.receive.is_empty());
}

#[test]
fn later_appends_wait_for_one_that_names_it() {
    let mut world = full();
    // The place comes back while later ones are under way: they must not overtake the refused one.
    post_all(&mut world, [append(2, 0)]);
    free(&world, 1);
    post_all(&mut world, [append(3, 0), append(4, 1), append(5, 0)]);
    assert_eq!(refusals(&mut world), [2], "nothing is said of the others");
    let counters = world.nodes[1].counters();
    assert_eq!((counters.appends, counters.appends_held), (1, 3));
    assert_eq!(record(&world, 1, 1), None);
    assert_eq!(world.nodes[1].signals(1, RAISES), 1);

    // The refused one again, and the next behind it: that finds the queue full.
    post_all(&mut world, [append(6, 2), append(7, 2), append(8, 2)]);
    assert_eq!(record(&world, 1, 1), Some(Status::Ok));
    assert_eq!(in_place(&mut world), 6);
    assert_eq!(refusals(&mut world), [7]);
    free(&world, 2);
    post_all(&mut world, [append(9, 2), append(10, 7)]);
    assert_eq!(in_place(&mut world), 10);
    assert_eq!(world.nodes[1].counters().appends_held, 5);
    assert_eq!(refusals(&mut world), []);
}

#[test]
fn it_holds_back_the_appends_of_its_stream_to_every_queue_and_of_no_other() {
    let mut world = full();
    world.nodes[0].open(2, 7);
    let mut stranger = queue(1, QUEUE);
    stranger.holder_port = PortId(2);
    world.nodes[1].grant(6, &stranger);
    let to_other = |op, refusal| Command {
        capability: CapabilitySlot(APPEND_OTHER),
        port: PortId(2),
        ..append(op, refusal)
    };
    post_all(&mut world, [append(2, 0), to_other(3, 0)]);
    assert_eq!(record(&world, 2, 0), None);
    post_all(&mut world, [to_other(4, 2)]);
    assert_eq!(record(&world, 2, 0), Some(Status::Ok));
    // Another port of the node.
    free(&world, 1);
    let theirs = Command {
        capability: CapabilitySlot(6),
        ..append(5, 0)
    };
    assert!(world.nodes[0].post(2, &theirs, &[5; 8]));
    world.run();
    assert_eq!(in_place(&mut world), 5);
}

#[test]
fn a_flush_names_it_when_its_error_is_lost() {
    let mut world = full();
    world.lost = Box::new(|message| message.header.kind == Kind::Error);
    post_all(&mut world, [flush(2), append(3, 0), append(4, 0), flush(5)]);
    assert_eq!(refusals(&mut world), [], "the wire has lost it");
    let told = |world: &World, op| (reply(world, op).status, reply(world, op).value);
    assert_eq!(told(&world, 2), (Status::Ok, 0));
    assert_eq!(told(&world, 5), (Status::Ok, 3 << 32));
    free(&world, 1);
    post_all(&mut world, [append(6, 3), flush(7)]);
    assert_eq!(in_place(&mut world), 6);
    assert_eq!(told(&world, 7), (Status::Ok, 3 << 32), "which its sender knows");

    // A failure is a thing of its own.
    let outside = Command {
        capability: CapabilitySlot(60),
        ..inline(8, PAGE_AT, 8)
    };
    post_all(&mut world, [append(9, 3), outside, flush(10)]);
    assert_eq!(told(&world, 10), (Status::CapabilityRefused, 9 << 32 | 8));
}

#[test]
fn the_next_owner_of_the_port_is_not_held_back() {
    let mut world = full();
    post_all(&mut world, [append(2, 0)]);
    assert_eq!(refusals(&mut world), [2]);
    world.nodes[0].tell(HostEvent::PortClose {
        port: PortId(1),
        generation: Generation(7),
    });
    world.run();
    world.nodes[0].open(1, 8);
    world.run();
    free(&world, 1);
    post_all(&mut world, [append(3, 0), flush(4)]);
    assert_eq!(in_place(&mut world), 3);
    assert_eq!(reply(&world, 4).value, 0, "it hears nothing of the last one's");
}

#[test]
fn a_node_that_starts_again_is_not_held_back() {
    let mut world = full();
    world.nodes[1].obliging = true;
    post_all(&mut world, [append(2, 0)]);
    let config = Config {
        incarnation_seed: 0xBEEF,
        ..*world.nodes[0].nic.config()
    };
    world.nodes[0] = Node::new(config);
    world.nodes[0].open(1, 7);
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    free(&world, 1);
    post_all(&mut world, [append(3, 0)]);
    assert_eq!(in_place(&mut world), 3);
}

/// Its sender has heard nothing: whether the refused message arrived, "link lost" leaves open.
#[test]
fn the_next_life_of_the_link_remembers_it() {
    let mut world = full();
    for node in &mut world.nodes {
        node.obliging = true;
    }
    // The append before is acknowledged.
    world.pass(Nanos::from_millis(5));
    world.lost = Box::new(|message| matches!(message.header.kind, Kind::Error | Kind::Ack));
    post_all(&mut world, [append(2, 0)]);
    world.pass(Nanos::from_millis(5000));
    let lost = world.nodes[0].error(1).expect("the link has failed");
    assert_eq!((lost.op, lost.status), (OpId(2), Status::LinkLost));
    world.lost = Box::new(|_| false);
    for (node, peer) in [(0, 1), (1, 0)] {
        world.nodes[node].tell(HostEvent::PeerConnect { peer: NodeId(peer) });
    }
    world.pass(Nanos::from_millis(1000));
    free(&world, 1);
    let later = |command| Command {
        epoch: Epoch(1),
        ..command
    };
    post_all(&mut world, [append(3, 0), flush(4)].map(later));
    assert_eq!(reply(&world, 4).value, 2 << 32);
    assert_eq!(record(&world, 1, 1), None);
    post_all(&mut world, [later(append(5, 2))]);
    assert_eq!(in_place(&mut world), 5);
}
