//! Reads and flushes (thesis 5.5): straight, over both bounce paths, refused, lost, too many.

use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::NicEvent;
use netvm_abi::port_area::Reply;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::Part;
use netvm_abi::{Nanos, PortId, ReplySlot, Status, port_area};
use netvm_kit::nic::*;

fn linked(seed: u64) -> World {
    let mut world = World::connected(2, seed);
    world.nodes[1].grant(3, &capability(0));
    world
}

fn read(op: u32, remote: u64, local: u64, len: u32) -> Command {
    Command {
        opcode: Opcode::Read,
        reply: ReplySlot(op as u16 % 64),
        ..write(op, remote, local, len)
    }
}

fn flush(op: u32) -> Command {
    Command {
        opcode: Opcode::FlushRemote,
        reply: ReplySlot(op as u16 % 64),
        ..write(op, 0, 0, 0)
    }
}

fn reply(world: &World, op: u32) -> Option<Reply> {
    let board = &world.nodes[0].board;
    let area = SharedMap::new(&board.geometry).port_area(PortId(1));
    let area = Part::new(&board.shared, area, port_area::AREA_WORDS);
    Reply::load(&area, op as u16 % 64, netvm_abi::OpId(op))
}

#[test]
fn a_read_brings_the_bytes_and_a_reply_record() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, false);
    world.nodes[1].fill(1, 0x12010, &[0x3C; 500]);
    world.nodes[0].map(1, 0x5000, 9, true);
    assert!(world.nodes[0].post(1, &read(1, 0x12010, 0x5007, 500), &[]));
    world.nodes[0].set_bar_word(1, netvm_abi::bar::port::READ_FENCE, 1);
    world.run();
    assert_eq!(world.nodes[0].memory(1, 0x5007, 500), [0x3C; 500]);
    assert_eq!(reply(&world, 1).unwrap().status, Status::Ok);
    assert_eq!(world.nodes[0].area_word(1, port_area::READS_DONE), 1);
    assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
    assert!(world.nodes[0].unmap_would_be_free(1, 0x5000));
}

#[test]
fn both_ends_may_be_missing() {
    let mut world = linked(3);
    world.hosts = true;
    world.nodes[1].fill(1, 0x12010, &[0x3C; 500]);
    assert!(world.nodes[0].post(1, &read(1, 0x12010, 0x5007, 500), &[]));
    world.run();
    assert_eq!(reply(&world, 1).unwrap().status, Status::Ok);
    assert_eq!(world.nodes[0].memory(1, 0x5007, 500), [0x3C; 500]);
    assert_eq!(world.nodes[1].counters().source_misses, 1);
    assert_eq!(world.nodes[0].counters().bounced_not_found, 1);
}

#[test]
fn a_bounced_reply_says_where_it_belongs() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].map(1, 0x5000, 9, false);
    assert!(world.nodes[0].post(1, &read(1, 0x12010, 0x5007, 50), &[]));
    world.run();
    let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[0].event(|event| matches!(event, NicEvent::Bounced { .. }))
    else {
        panic!("nothing bounced");
    };
    let record = world.nodes[0].record(bounce);
    assert_eq!(
        (record.destination_port.0, record.address.0, record.len),
        (1, 0x5007, 50)
    );
    assert_eq!(record.source.0, 1);
    assert_eq!(world.nodes[0].counters().bounced_read_only, 1);
    assert_eq!(reply(&world, 1), None);
    world.nodes[0].tell(netvm_abi::event::HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::Unmapped,
    });
    world.run();
    assert_eq!(reply(&world, 1).unwrap().status, Status::Unmapped);
    assert_eq!(world.nodes[0].error(1), None, "the reply record has said it");
}

#[test]
fn refused_and_impossible_reads_end_with_their_reason() {
    let mut world = linked(0);
    let mut write_only = capability(0);
    write_only.modes = Modes::WRITE;
    world.nodes[1].grant(4, &write_only);
    let cases = [
        (read(1, 0x30000, 0x5000, 8), Status::OutOfRange),
        (
            Command {
                capability: netvm_abi::CapabilitySlot(4),
                ..read(2, 0x12000, 0x5000, 8)
            },
            Status::ModeRefused,
        ),
        (read(3, 0x12FFC, 0x5000, 8), Status::Malformed),
        (read(4, 0x12000, 0x5FFC, 8), Status::LocalAddress),
        (
            Command {
                port: PortId(4000),
                ..read(5, 0x12000, 0x5000, 8)
            },
            Status::NoSuchPort,
        ),
    ];
    for (command, _) in &cases {
        assert!(world.nodes[0].post(1, command, &[]));
    }
    world.run();
    for (command, status) in &cases {
        assert_eq!(
            reply(&world, command.op.0).unwrap().status,
            *status,
            "{command:?}"
        );
    }
    // Without a reply slot the error ring is told.
    let quiet = Command {
        reply: ReplySlot::NONE,
        ..read(9, 0x30000, 0x5000, 8)
    };
    assert!(world.nodes[0].post(1, &quiet, &[]));
    world.run();
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::OutOfRange);
    world.nodes[0].set_bar_word(1, netvm_abi::bar::port::READ_FENCE, 6);
    world.run();
    assert_eq!(world.nodes[0].area_word(1, port_area::READS_DONE), 6);
}

#[test]
fn an_empty_read_needs_no_memory() {
    let mut world = linked(0);
    assert!(world.nodes[0].post(1, &read(1, 0x12000, 0x5000, 0), &[]));
    world.run();
    assert_eq!(reply(&world, 1).unwrap().status, Status::Ok);
}

#[test]
fn more_reads_than_slots_and_staging_wait_and_all_end() {
    for seed in 1..10 {
        let mut world = linked(seed);
        world.hosts = true;
        for page in 0..4 {
            world.nodes[1].fill(1, 0x12000 + page * 0x1000, &[page as u8 + 1; 4096]);
        }
        // The other node reads back at the same time.
        world.nodes[0].grant(3, &capability(1));
        for op in 1..=60u32 {
            let at = u64::from(op % 4) * 0x1000;
            let command = read(op, 0x12000 + at, 0x40000 + u64::from(op) * 0x1000, 4096);
            assert!(world.nodes[0].post(1, &command, &[]));
            let mut back = read(op, 0x18000, 0x40000 + u64::from(op) * 0x1000, 64);
            back.node.0 = 0;
            assert!(world.nodes[1].post(1, &back, &[]));
        }
        world.run();
        world.pass(Nanos::from_millis(5));
        for op in 1..=60u32 {
            assert_eq!(reply(&world, op).unwrap().status, Status::Ok);
            let bytes = world.nodes[0].memory(1, 0x40000 + u64::from(op) * 0x1000, 4096);
            assert!(bytes.iter().all(|&b| b == (op % 4) as u8 + 1));
        }
        assert!(world.nodes[0].counters().read_stalls > 0);
    }
}

#[test]
pub(crate) fn an_ordered_read_is_served_after_everything_before_it() {
    for seed in 0..20 {
        let mut world = linked(seed);
        world.hosts = true;
        for page in [0x12000, 0x13000] {
            world.nodes[1].map(1, page, 5, true);
        }
        world.nodes[0].map(1, 0x5000, 5, true);
        world.nodes[0].map(1, 0x6000, 5, true);
        for op in 1..=8 {
            assert!(world.nodes[0].post(1, &write(op, 0x12000, 0x5000, 4096), &[]));
        }
        let mut last = read(20, 0x13008, 0x6000, 8);
        last.flags |= CommandFlags::ORDERED;
        assert!(world.nodes[0].post(1, &last, &[]));
        while reply(&world, 20).is_none() {
            assert!(world.step());
        }
        assert_eq!(world.nodes[1].counters().messages_landed, 9, "seed {seed}");
    }
}

#[test]
fn a_flush_answers_when_everything_earlier_has_landed() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    assert!(world.nodes[0].post(1, &inline(1, 0x13000, 8), &[1; 8]));
    assert!(world.nodes[0].post(1, &flush(2), &[]));
    world.run();
    assert_eq!(reply(&world, 2), None, "the first write is with the host");
    assert_eq!(world.nodes[1].counters().ordered_parked, 1);
    world.hosts = true;
    world.run();
    assert_eq!(reply(&world, 2).unwrap().status, Status::Ok);
    assert!(world.nodes[0].post(1, &inline(3, 0x30000, 8), &[1; 8]));
    assert!(world.nodes[0].post(1, &inline(4, 0x12000, 8), &[1; 8]));
    assert!(world.nodes[0].post(1, &flush(5), &[]));
    world.run();
    let answer = reply(&world, 5).unwrap();
    assert_eq!((answer.status, answer.value), (Status::OutOfRange, 3));
    let mut next = flush(6);
    next.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &next, &[]));
    world.run();
    assert_eq!(reply(&world, 6).unwrap().status, Status::Ok);
}

#[test]
fn a_revoked_capability_refuses_a_read_that_waits_for_the_host() {
    let mut world = linked(0);
    assert!(world.nodes[0].post(1, &read(1, 0x12000, 0x5000, 8), &[]));
    world.run();
    world.nodes[1].revoke(3);
    world.nodes[1].serve_host();
    world.run();
    assert_eq!(reply(&world, 1).unwrap().status, Status::CapabilityRefused);
    assert_eq!(world.nodes[1].counters().dma_started, 0);
}

#[test]
fn unawaited_replies_are_ignored() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].map(1, 0x5000, 9, true);
    assert!(world.nodes[0].post(1, &read(1, 0x12000, 0x5000, 8), &[]));
    assert!(world.nodes[0].post(1, &flush(2), &[]));
    let mut copies = Vec::new();
    while world.step() {
        for message in &world.wire {
            if message.header.destination.0 == 0 && !message.header.kind.is_windowed() {
                copies.push(message.clone());
            }
        }
    }
    let before = world.nodes[0].counters().late_replies;
    let now = world.now;
    let replies: Vec<_> = copies
        .iter()
        .filter(|message| message.header.kind != netvm_abi::wire::Kind::Ack)
        .collect();
    assert!(replies.len() >= 2);
    for message in &replies {
        world.nodes[0].deliver(now, message);
    }
    assert_eq!(
        world.nodes[0].counters().late_replies - before,
        replies.len() as u64
    );
}
