//! Atomics on values: each operation on each type, by two DMAs and by the platform's processor.

use netvm_abi::atomic::Atomic;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{AtomicAnswer, HostEvent, NicEvent};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::value::{ValueCode, ValueOp, ValueType};
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

fn world(in_place: bool) -> World {
    let mut world = World::connected(2, 0);
    let all = Capability {
        modes: Modes::all(),
        ..capability(0)
    };
    world.nodes[1].grant(3, &all);
    world.nodes[1].board.in_place = in_place;
    world
}

fn command(op: u32, address: u64, atomic: Atomic) -> Command {
    let mut flags = CommandFlags::empty();
    flags.set(CommandFlags::WIDE, atomic.wide);
    Command {
        opcode: atomic.opcode,
        flags,
        operand: atomic.operand,
        compare: atomic.compare,
        capability: CapabilitySlot(3),
        reply: ReplySlot(op as u16 % 64),
        ..write(op, address, 0, 0)
    }
}

fn reply(node: &Node, op: u32) -> Option<Reply> {
    let area = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16 % 64, OpId(op))
}

#[test]
fn each_operation_changes_the_bytes_of_its_type_alone() {
    for in_place in [false, true] {
        let mut world = world(in_place);
        let ppn = world.nodes[1].map(1, 0x12000, 5, true);
        let mut dmas = world.nodes[1].counters().dma_started;
        let mut op = 0;
        for (code, on) in ValueCode::all() {
            let len = on.bytes() as usize;
            // The last place of the page for this type, and one whose address has as few zeros as it may.
            for offset in [4096 - len, 8 + len] {
                op += 1;
                let page = world.nodes[1].board.pages.get_mut(&ppn).unwrap();
                page.fill(0x43);
                let before = page.clone();
                let old = 0x4343_4343_4343_4343 & (u64::MAX >> (64 - 8 * len));
                // Greater than the old value in each type, as is the value to compare with.
                let (operand, compare) = (0x4444_4444_4444_4444, 0x4545_4545_4545_4545);
                let atomic = Atomic::on_value(code.op(), on, operand, compare).unwrap();
                let command = command(op, 0x12000 + offset as u64, atomic);
                assert!(world.nodes[0].post(1, &command, &[]));
                world.run();
                let answer = reply(&world.nodes[0], op).unwrap();
                let what = format!("{:?} on {on:?} in place: {in_place}", code.op());
                assert_eq!(
                    (answer.status, answer.value, answer.second),
                    (Status::Ok, old, 0),
                    "{what}"
                );
                let page = &world.nodes[1].board.pages[&ppn];
                let new = on.apply(code.op(), old, operand, compare);
                assert_eq!(page[offset..offset + len], new.to_le_bytes()[..len], "{what}");
                assert_eq!(page[..offset], before[..offset], "{what}");
                assert_eq!(page[offset + len..], before[offset + len..], "{what}");
                let counters = world.nodes[1].counters();
                let moves = match (in_place, new == old) {
                    (true, _) => 0,
                    (false, true) => 1,
                    (false, false) => 2,
                };
                assert_eq!(counters.dma_started - dmas, moves, "{what}");
                dmas = counters.dma_started;
            }
        }
        let counters = world.nodes[1].counters();
        let expected = if in_place { u64::from(op) } else { 0 };
        assert_eq!(counters.atomics_in_place, expected);
        assert_eq!(counters.atomics_served, u64::from(op));
        assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
    }
}

#[test]
fn what_is_not_aligned_or_not_defined_is_refused() {
    for in_place in [false, true] {
        let mut world = world(in_place);
        let ppn = world.nodes[1].map(1, 0x12000, 5, true);
        let before = world.nodes[1].board.pages[&ppn].clone();
        let mut op = 0;
        for on in ValueType::ALL {
            let write = Atomic::on_value(ValueOp::Write, *on, 1, 0).unwrap();
            for offset in 1..u64::from(on.bytes()) {
                op += 1;
                let command = command(op, 0x12000 + offset, write);
                assert!(world.nodes[0].post(1, &command, &[]));
                world.run();
                let status = reply(&world.nodes[0], op).unwrap().status;
                assert_eq!(status, Status::Malformed, "{on:?} at {offset}");
            }
        }
        // There is no complex number of 4 bytes.
        let complex = Atomic {
            wide: false,
            ..Atomic::on_value(ValueOp::Sum, ValueType::Complex32, 1, 0).unwrap()
        };
        assert!(world.nodes[0].post(1, &command(40, 0x12000, complex), &[]));
        world.run();
        assert_eq!(reply(&world.nodes[0], 40).unwrap().status, Status::Malformed);
        // A queue block is no value: it takes two DMAs in any case.
        let block = Atomic {
            opcode: Opcode::SemV,
            ..complex
        };
        assert!(world.nodes[0].post(1, &command(41, 0x12020, block), &[]));
        world.run();
        assert_eq!(reply(&world.nodes[0], 41).unwrap().status, Status::Ok);
        assert_eq!(world.nodes[1].counters().dma_started, 2);
        assert_eq!(world.nodes[1].board.pages[&ppn][..0x20], before[..0x20]);
    }
}

#[test]
fn an_atomic_in_place_waits_for_its_page_and_is_done_once() {
    let mut world = world(true);
    let sum = Atomic::on_value(ValueOp::Sum, ValueType::U16, 3, 0).unwrap();
    for op in 1..=2 {
        assert!(world.nodes[0].post(1, &command(op, 0x12006, sum), &[]));
    }
    world.run();
    assert_eq!(reply(&world.nodes[0], 1), None);
    for read_only in [true, false] {
        let Some(NicEvent::AtomicMiss {
            bounce, generation, ..
        }) = world.nodes[1].event(|event| matches!(event, NicEvent::AtomicMiss { .. }))
        else {
            panic!("no miss");
        };
        // A page that may only be read is a miss, too.
        world.nodes[1].map(1, 0x12000, 5, !read_only);
        world.nodes[1].tell(HostEvent::AtomicAnswer {
            bounce,
            generation,
            answer: AtomicAnswer::Retry,
        });
        world.run();
        if read_only {
            assert_eq!(reply(&world.nodes[0], 1), None);
            world.nodes[1].unmap(1, 0x12000);
        }
    }
    let answers = [1, 2].map(|op| reply(&world.nodes[0], op).unwrap().value);
    assert_eq!(answers, [0, 3]);
    let counters = world.nodes[1].counters();
    assert_eq!((counters.atomics_in_place, counters.atomics_missed), (2, 2));
    assert_eq!(counters.dma_started, 0);
    assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
}
