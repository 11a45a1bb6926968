//! Pages of requests that the table lacks, where the platform reaches them without it: no DMA, no bounce page, no question to the host.

use netvm_abi::atomic::Atomic;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::value::{ValueOp, ValueType};
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

const PAGE_AT: u64 = 0x12000;

fn world(modes: Modes) -> World {
    let mut world = World::connected(2, 0);
    let grant = Capability {
        modes,
        ..capability(0)
    };
    world.nodes[1].grant(3, &grant);
    let vpn = Vpn::of(PortId(1), VirtAddr(PAGE_AT));
    world.nodes[1].board.in_place = true;
    let page = (0..PAGE).map(|at| at as u8).collect();
    world.nodes[1].board.reached.insert(vpn.raw(), page);
    world
}

fn reached(world: &World) -> &[u8] {
    world.nodes[1].board.reached.values().next().unwrap()
}

fn reply(world: &World, op: u32) -> Option<Reply> {
    let board = &world.nodes[0].board;
    let area = SharedMap::new(&board.geometry).port_area(PortId(1));
    Reply::load(&Part::new(&board.shared, area, AREA_WORDS), op as u16, OpId(op))
}

fn read(op: u32, at: u64, len: u32) -> Command {
    Command {
        opcode: Opcode::Read,
        reply: ReplySlot(op as u16),
        ..write(op, at, 0x60000, len)
    }
}

fn sum(op: u32, at: u64) -> Command {
    let atomic = Atomic::on_value(ValueOp::Sum, ValueType::U32, 5, 0).unwrap();
    let mut flags = CommandFlags::empty();
    flags.set(CommandFlags::WIDE, atomic.wide);
    Command {
        opcode: atomic.opcode,
        flags,
        operand: atomic.operand,
        compare: atomic.compare,
        reply: ReplySlot(op as u16),
        ..write(op, at, 0, 0)
    }
}

#[test]
fn writes_reads_and_atomics_reach_the_page_at_once() {
    let mut world = world(Modes::all());
    world.nodes[0].map(1, 0x60000, 6, true);
    assert!(world.nodes[0].post(1, &inline(1, PAGE_AT + 8, 8), &[7; 8]));
    assert!(world.nodes[0].post(1, &read(2, PAGE_AT + 4, 16), &[]));
    assert!(world.nodes[0].post(1, &sum(3, PAGE_AT + 20), &[]));
    world.run();
    assert_eq!(reached(&world)[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(reached(&world)[8..20], [7, 7, 7, 7, 7, 7, 7, 7, 16, 17, 18, 19]);
    assert_eq!(reached(&world)[20..24], (0x1716_1514_u32 + 5).to_le_bytes());
    assert_eq!(reply(&world, 2).unwrap().status, Status::Ok);
    assert_eq!(reply(&world, 3).unwrap().value, 0x1716_1514);
    let counters = world.nodes[1].counters();
    assert_eq!((counters.reached, counters.atomics_in_place), (3, 1));
    let asked = counters.bounced_not_found + counters.source_misses + counters.atomics_missed;
    assert_eq!((counters.dma_started, asked), (0, 0));
    assert_eq!((counters.messages_landed, counters.reads_served), (3, 1));
}

/// Without a right to it, outside of it, or where the platform has no such page, all is as without the platform's help.
#[test]
fn a_page_is_reached_by_those_alone_that_may_use_it() {
    let cases = [
        (Modes::READ, PAGE_AT, Some(Status::ModeRefused)),
        (Modes::all(), PAGE_AT - 0x4000, Some(Status::OutOfRange)),
        (Modes::all(), PAGE_AT + 0x1000, None),
    ];
    for (modes, at, refused) in cases {
        let mut world = world(modes);
        assert!(world.nodes[0].post(1, &sum(1, at), &[]));
        assert!(world.nodes[0].post(1, &inline(2, at, 8), &[7; 8]));
        world.run();
        assert!(
            reached(&world)
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == at as u8)
        );
        let counters = world.nodes[1].counters();
        assert_eq!(counters.reached, 0, "{at:#x}");
        match refused {
            Some(status) => assert_eq!(reply(&world, 1).unwrap().status, status),
            None => assert_eq!((counters.atomics_missed, counters.bounced_not_found), (1, 1)),
        }
    }
}

/// A page in the table is the table's, and a page that may only be read is the host's to judge.
#[test]
fn a_page_of_the_table_is_used_by_its_entry() {
    for writable in [true, false] {
        let mut world = world(Modes::all());
        world.nodes[1].map(1, PAGE_AT, 5, writable);
        assert!(world.nodes[0].post(1, &inline(1, PAGE_AT, 8), &[7; 8]));
        world.run();
        let counters = world.nodes[1].counters();
        assert_eq!(counters.reached, 0);
        let ways = (counters.zero_copy, counters.bounced_read_only);
        assert_eq!(ways, if writable { (1, 0) } else { (0, 1) });
        assert_eq!(reached(&world)[..4], [0, 1, 2, 3]);
    }
}

/// A port's own commands name memory that its driver has to know.
#[test]
fn a_port_reaches_no_memory_of_its_own() {
    let mut world = world(Modes::all());
    let own = Vpn::of(PortId(1), VirtAddr(0x60000));
    world.nodes[0].board.reached.insert(own.raw(), vec![1; PAGE]);
    assert!(world.nodes[0].post(1, &write(1, PAGE_AT, 0x60000, 64), &[]));
    assert!(world.nodes[0].post(1, &read(2, PAGE_AT, 64), &[]));
    world.run();
    let counters = world.nodes[0].counters();
    assert_eq!((counters.reached, counters.source_misses), (0, 1));
    assert!(
        world.nodes[0].board.reached[&own.raw()]
            .iter()
            .all(|byte| *byte == 1)
    );
}
