//! Atomics: what they do, that they never mix, and what happens when a page is missing.

use netvm_abi::atomic::{Atomic, AtomicResult, QueueBlock};
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{AtomicAnswer, HostEvent, NicEvent};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

const WORD: u64 = 0x12008;

fn world(count: u16, seed: u64) -> World {
    let mut world = World::connected(count, seed);
    for holder in 0..count {
        let all = Capability {
            modes: Modes::all(),
            ..capability(holder)
        };
        world.nodes[1].grant(3 + u32::from(holder), &all);
    }
    world
}

fn atomic(op: u32, address: u64, atomic: Atomic) -> Command {
    let mut flags = CommandFlags::empty();
    flags.set(CommandFlags::WIDE, atomic.wide);
    Command {
        opcode: atomic.opcode,
        flags,
        operand: atomic.operand,
        compare: atomic.compare,
        reply: ReplySlot(op as u16 % 64),
        ..write(op, address, 0, 0)
    }
}

fn wide(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: true,
        operand,
        compare,
    }
}

fn post(world: &mut World, from: usize, command: Command) {
    let command = Command {
        capability: CapabilitySlot(3 + from as u32),
        ..command
    };
    assert!(world.nodes[from].post(1, &command, &[]));
}

fn reply(node: &Node, op: u32) -> Option<Reply> {
    let area = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16 % 64, OpId(op))
}

fn word(node: &Node, ppn: u64) -> u64 {
    u64::from_le_bytes(node.board.pages[&ppn][8..16].try_into().unwrap())
}

#[test]
fn the_answer_is_the_old_value_and_the_neighbours_stay() {
    let mut world = world(2, 0);
    let ppn = world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].board.pages.get_mut(&ppn).unwrap()[..32].fill(0xFF);
    let before = world.nodes[1].board.pages[&ppn].clone();
    for (op, opcode, operand, compare) in [
        (1, Opcode::FetchAdd, 2, 0),
        (2, Opcode::Swap, 77, 0),
        (3, Opcode::CompareSwap, 5, 76),
        (4, Opcode::CompareSwap, 0, 77),
        (5, Opcode::TestAndSet, 9, 0),
    ] {
        post(&mut world, 0, atomic(op, WORD, wide(opcode, operand, compare)));
        world.run();
    }
    let answers: Vec<u64> = (1..6)
        .map(|op| reply(&world.nodes[0], op).unwrap().value)
        .collect();
    assert_eq!(answers, [u64::MAX, 1, 77, 77, 0]);
    let page = &world.nodes[1].board.pages[&ppn];
    assert_eq!(word(&world.nodes[1], ppn), 9);
    assert_eq!((&page[..8], &page[16..]), (&before[..8], &before[16..]));
    let counters = world.nodes[1].counters();
    assert_eq!(
        (counters.atomics_served, counters.dma_started),
        (5, 9),
        "one has not changed its word"
    );
    assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
    assert_eq!(
        world.nodes[0].area_word(1, port_area::READS_DONE),
        0,
        "no step of 32"
    );
}

#[test]
fn operations_of_several_nodes_never_mix() {
    for seed in 1..40 {
        let mut world = world(3, seed);
        let ppn = world.nodes[1].map(1, 0x12000, 5, true);
        for op in 1..=20 {
            for from in 0..3 {
                // Words of one page, of 32 and of 64 bits.
                post(&mut world, from, atomic(op, WORD, wide(Opcode::FetchAdd, 1, 0)));
                let narrow = Atomic {
                    wide: false,
                    ..wide(Opcode::FetchAdd, 1, 0)
                };
                post(&mut world, from, atomic(op + 20, 0x12020, narrow));
            }
            world.run();
        }
        world.pass(Nanos::from_millis(5));
        assert_eq!(word(&world.nodes[1], ppn), 60, "seed {seed}");
        assert_eq!(world.nodes[1].board.pages[&ppn][0x20], 60);
        let mut seen: Vec<u64> = (0..3)
            .flat_map(|from| (1..=20).map(move |op| (from, op)))
            .map(|(from, op): (usize, u32)| reply(&world.nodes[from], op).unwrap().value)
            .collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..60), "each saw a value of its own");
    }
}

#[test]
fn a_queue_block_is_changed_in_one_piece() {
    let mut world = world(2, 0);
    let ppn = world.nodes[1].map(1, 0x12000, 5, true);
    let extended = |opcode, operand| Atomic {
        opcode,
        wide: false,
        operand,
        compare: 0,
    };
    let high = 0x8000_0000_0000_0001;
    for (op, opcode, operand) in [
        (1, Opcode::SemV, 0),
        (2, Opcode::SemP, high),
        (3, Opcode::SemP, high),
        (4, Opcode::SemP, 12),
        (5, Opcode::SemV, 0),
    ] {
        post(&mut world, 0, atomic(op, 0x12020, extended(opcode, operand)));
        world.run();
    }
    let answer =
        |op| reply(&world.nodes[0], op).map(|reply| (reply.status, reply.value, reply.second as u32));
    assert_eq!(answer(2), Some((Status::Ok, 0, 1)), "there was one");
    assert_eq!(answer(4), Some((Status::Ok, high, 0)));
    assert_eq!(
        answer(5),
        Some((Status::Ok, high, 1)),
        "the first, and one behind"
    );
    let mut operand = [0; 4];
    for (word, bytes) in operand
        .iter_mut()
        .zip(world.nodes[1].board.pages[&ppn][0x20..0x40].chunks(8))
    {
        *word = u64::from_le_bytes(bytes.try_into().unwrap());
    }
    let block = QueueBlock::decode(&operand);
    assert_eq!(
        (block.head, block.tail, block.count, block.pending),
        (0, 12, 1, 0)
    );
}

#[test]
fn what_may_not_be_is_refused_without_a_lock() {
    let mut world = world(2, 0);
    world.nodes[1].map(1, 0x12000, 5, true);
    let swap = wide(Opcode::Swap, 1, 0);
    let cases = [
        (Status::Malformed, atomic(1, 0x12004, swap)),
        (Status::Malformed, atomic(2, 0x12010, wide(Opcode::SemV, 0, 0))),
        (
            Status::Malformed,
            Command {
                len: ByteLen(8),
                ..atomic(3, WORD, swap)
            },
        ),
        (Status::OutOfRange, atomic(4, 0x30000, swap)),
        (
            Status::CapabilityRefused,
            Command {
                secret: 1,
                ..atomic(5, WORD, swap)
            },
        ),
        (
            Status::NoSuchPort,
            Command {
                port: PortId(3),
                ..atomic(6, WORD, swap)
            },
        ),
    ];
    for (status, command) in cases {
        post(&mut world, 0, command);
        world.run();
        assert_eq!(reply(&world.nodes[0], command.op.0).unwrap().status, status);
    }
    world.nodes[1].grant(3, &capability(0));
    post(&mut world, 0, atomic(7, WORD, swap));
    world.run();
    assert_eq!(reply(&world.nodes[0], 7).unwrap().status, Status::ModeRefused);
    assert_eq!(world.nodes[1].counters().dma_started, 0);
    assert_eq!(
        world.nodes[1].counters().streams_poisoned,
        0,
        "nothing is left undone"
    );
    assert_eq!(world.nodes[0].error(1), None, "each had its answer");
}

fn miss(world: &mut World) -> Option<(BounceId, Generation, u8)> {
    match world.nodes[1].event(|event| matches!(event, NicEvent::AtomicMiss { .. }))? {
        NicEvent::AtomicMiss {
            bounce,
            generation,
            attempt,
        } => Some((bounce, generation, attempt)),
        _ => None,
    }
}

#[test]
fn a_missing_page_is_asked_for_once_and_what_came_later_waits_behind() {
    let mut world = world(2, 0);
    for op in 1..=3 {
        post(&mut world, 0, atomic(op, WORD, wide(Opcode::FetchAdd, 1, 0)));
    }
    // Another page goes on.
    let other = world.nodes[1].map(1, 0x13000, 5, true);
    post(&mut world, 0, atomic(6, 0x13008, wide(Opcode::FetchAdd, 1, 0)));
    world.run();
    assert_eq!(word(&world.nodes[1], other), 1);
    let (bounce, generation, attempt) = miss(&mut world).unwrap();
    assert_eq!((attempt, miss(&mut world)), (0, None));
    // A late or wrong answer changes nothing.
    for wrong in [
        Generation(generation.0 + 1),
        Generation(generation.0.wrapping_sub(1)),
    ] {
        world.nodes[1].tell(HostEvent::AtomicAnswer {
            bounce,
            generation: wrong,
            answer: AtomicAnswer::Retry,
        });
    }
    world.run();
    assert_eq!(world.nodes[1].counters().late_answers, 2);
    let ppn = world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].tell(HostEvent::AtomicAnswer {
        bounce,
        generation,
        answer: AtomicAnswer::Retry,
    });
    world.run();
    assert_eq!(word(&world.nodes[1], ppn), 3);
    let answers: Vec<u64> = (1..4)
        .map(|op| reply(&world.nodes[0], op).unwrap().value)
        .collect();
    assert_eq!(answers, [0, 1, 2], "in the order of arrival");
}

#[test]
fn the_host_is_told_how_often_it_was_tried_and_may_do_it_itself() {
    let mut world = world(2, 0);
    // Mapped read-only: as good as missing.
    world.nodes[1].map(1, 0x12000, 5, false);
    post(&mut world, 0, atomic(1, WORD, wide(Opcode::Swap, 1, 0)));
    post(&mut world, 0, atomic(2, WORD, wide(Opcode::Swap, 2, 0)));
    world.run();
    for expected in 0..3 {
        let (bounce, generation, attempt) = miss(&mut world).unwrap();
        assert_eq!(attempt, expected);
        world.nodes[1].tell(HostEvent::AtomicAnswer {
            bounce,
            generation,
            answer: AtomicAnswer::Retry,
        });
        world.run();
    }
    let (bounce, generation, attempt) = miss(&mut world).unwrap();
    assert_eq!(attempt, 3);
    world.nodes[1].tell(HostEvent::AtomicAnswer {
        bounce,
        generation,
        answer: AtomicAnswer::Done(AtomicResult {
            value: 40,
            second: 41,
        }),
    });
    world.run();
    let done = reply(&world.nodes[0], 1).unwrap();
    assert_eq!((done.value, done.second), (40, 41));
    // The next one begins from the beginning; and a refusal is its answer.
    let (bounce, generation, attempt) = miss(&mut world).unwrap();
    assert_eq!(attempt, 0);
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::NoMemory,
    });
    world.run();
    assert_eq!(reply(&world.nodes[0], 2).unwrap().status, Status::NoMemory);
    assert_eq!(miss(&mut world), None);
}

#[test]
fn a_page_that_goes_between_fetch_and_store_makes_it_begin_again() {
    let mut world = world(2, 0);
    let ppn = world.nodes[1].map(1, 0x12000, 5, true);
    world.auto_dma = false;
    post(&mut world, 0, atomic(1, WORD, wide(Opcode::FetchAdd, 1, 0)));
    world.run();
    assert!(!world.nodes[1].unmap(1, 0x12000), "held while it is fetched");
    let now = world.now;
    world.nodes[1].end_dma(now, 0, true);
    world.run();
    assert!(
        world.nodes[1].board.dmas.is_empty(),
        "no store to a page that has gone"
    );
    world.auto_dma = true;
    world.hosts = true;
    world.run();
    assert_eq!(word(&world.nodes[1], ppn), 1, "once");
    assert_eq!(reply(&world.nodes[0], 1).unwrap().value, 0);
}

#[test]
fn a_revocation_reaches_what_is_parked() {
    let mut world = world(2, 0);
    post(&mut world, 0, atomic(1, WORD, wide(Opcode::Swap, 1, 0)));
    post(&mut world, 0, atomic(2, WORD, wide(Opcode::Swap, 1, 0)));
    world.run();
    world.nodes[1].revoke(3);
    let (bounce, generation, _) = miss(&mut world).unwrap();
    let ppn = world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].tell(HostEvent::AtomicAnswer {
        bounce,
        generation,
        answer: AtomicAnswer::Retry,
    });
    world.run();
    for op in [1, 2] {
        assert_eq!(
            reply(&world.nodes[0], op).unwrap().status,
            Status::CapabilityRefused
        );
    }
    assert_eq!(word(&world.nodes[1], ppn), 0);
}

#[test]
fn a_lost_link_frees_the_page_for_others() {
    let mut world = world(3, 0);
    for op in 1..=3 {
        post(&mut world, 0, atomic(op, WORD, wide(Opcode::FetchAdd, 1, 0)));
    }
    world.run();
    post(&mut world, 2, atomic(1, WORD, wide(Opcode::FetchAdd, 1, 0)));
    world.run();
    // Node 0 starts again: what it asked for is dropped, at the head of the line and in it.
    let config = *world.nodes[0].nic.config();
    world.nodes[0] = Node::new(netvm_nic::Config {
        incarnation_seed: 0xABCD,
        ..config
    });
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    world.pass(Nanos::from_millis(100));
    world.hosts = true;
    world.run();
    assert_eq!(
        reply(&world.nodes[2], 1).unwrap().value,
        0,
        "the first to be carried out"
    );
    world.nodes[0].open(1, 8);
    world.run();
    post(&mut world, 0, atomic(9, WORD, wide(Opcode::FetchAdd, 1, 0)));
    world.run();
    assert_eq!(reply(&world.nodes[0], 9).unwrap().value, 1);
}

#[test]
fn an_ordered_operation_acts_after_everything_before_it() {
    for seed in 0..20 {
        let mut world = world(2, seed);
        world.nodes[1].map(1, 0x12000, 5, true);
        for op in 1..=8 {
            post(&mut world, 0, write(op, 0x12000, 0x5000, 4096));
        }
        world.nodes[0].map(1, 0x5000, 5, true);
        let mut last = atomic(20, 0x13008, wide(Opcode::Swap, 1, 0));
        last.flags |= CommandFlags::ORDERED;
        world.nodes[1].map(1, 0x13000, 5, true);
        post(&mut world, 0, last);
        while reply(&world.nodes[0], 20).is_none() {
            assert!(world.step());
        }
        assert_eq!(world.nodes[1].counters().messages_landed, 9, "seed {seed}");
    }
}
