//! How failures come back to the program.

use netvm::{Error, Failure, PortConfig, PortId, Status};
use netvm_abi::bar::port::ERROR_READ;
use netvm_abi::descriptor::Opcode;
use netvm_abi::port_area::ERRORS_LOST;
use netvm_abi::{Epoch, NodeId, OpId};
use netvm_kit::port::{Card, op};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn failed(result: netvm::Result<impl std::fmt::Debug>) -> Failure {
    match result {
        Err(Error::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn the_next_call_to_that_node_names_the_operation_and_raises_the_epoch() {
    let card = Card::new();
    let (port, one, two) = card.open(PortConfig::default());
    let first = one.write(0, &[1; 8]).post().unwrap();
    let commands = card.carry_out(Status::Ok);
    card.fail(&commands[0].0, Status::OutOfRange);
    // Another node's stream goes on as if nothing had happened.
    two.write(0, &[1]).post().unwrap();
    let failure = failed(one.write(0, &[2; 8]).post());
    assert_eq!(
        (failure.op, failure.status, failure.node, failure.port),
        (first, Status::OutOfRange, NodeId(1), PortId(2))
    );
    assert_eq!(card.block.get(ERROR_READ), 1);
    // Nothing was posted by the call that told; the next one is in a new epoch.
    one.write(0, &[3; 8]).post().unwrap();
    two.write(0, &[1]).post().unwrap();
    let commands = card.carry_out(Status::Ok);
    let seen: Vec<_> = commands.iter().map(|c| (c.0.node.0, c.0.epoch.0)).collect();
    assert_eq!(seen, [(2, 0), (1, 1), (2, 0)]);
    assert_eq!(port.flush(), Ok(()));
    assert_eq!(port.stats().failures, 1);
}

#[test]
fn several_failures_of_one_call_are_one_and_of_several_calls_are_counted() {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    let region = port.alloc(3 * 4096).unwrap();
    let first = one.write(0, &region).post().unwrap();
    one.write(0, &[1]).post().unwrap();
    for (command, _) in card.carry_out(Status::Ok) {
        card.fail(&command, Status::Revoked);
    }
    let failure = failed(port.flush_writes());
    assert_eq!((failure.op, failure.others), (first, 1));
    assert_eq!(port.flush_writes(), Ok(()));
}

#[test]
fn a_fenced_write_tells_its_own_failure() {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    card.relax_with(|card| {
        for command in card.carry_out(Status::Ok) {
            card.fail(&command.0, Status::Unmapped);
        }
    });
    let failure = failed(one.write(0, &[1; 100]).fenced().post());
    assert_eq!((failure.status, failure.op), (Status::Unmapped, OpId(1)));
    assert_eq!(port.flush(), Ok(()));
}

#[test]
fn a_call_that_is_cut_off_by_an_epoch_sends_no_notification() {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    let region = port.alloc(80 * 4096).unwrap();
    one.write(0, &[1]).post().unwrap();
    let commands = card.carry_out(Status::Ok);
    let later = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&later);
    let other = one.clone();
    // The queue fills; meanwhile another thread is told of the failure.
    card.relax_with(move |card| {
        if taken.lock().unwrap().is_empty() {
            card.fail(&commands[0].0, Status::Revoked);
            assert!(matches!(other.write(0, &[1]).post(), Err(Error::Failed(_))));
        }
        taken.lock().unwrap().extend(card.take());
    });
    let cut = one.write(0, &region).notify(7).post();
    assert_eq!(cut, Err(Error::StreamFailed { node: NodeId(1) }));
    let seen = later.lock().unwrap();
    assert_eq!(seen.len(), 64);
    assert!(
        seen.iter()
            .all(|c| !c.0.notification.is_some() && c.0.epoch == Epoch(0))
    );
}

#[test]
fn failures_that_the_card_could_not_record_are_counted_and_free_every_stream() {
    let card = Card::new();
    let (port, one, two) = card.open(PortConfig::default());
    one.write(0, &[1]).post().unwrap();
    for (command, _) in card.carry_out(Status::Ok) {
        card.fail(&command, Status::Revoked);
    }
    card.area.set(ERRORS_LOST, 3);
    assert_eq!(failed(port.flush()).others, 0);
    assert_eq!(port.flush(), Err(Error::FailuresLost { count: 3 }));
    two.write(0, &[1]).post().unwrap();
    assert_eq!(card.carry_out(Status::Ok)[0].0.epoch, Epoch(1));
}

#[test]
fn reads_use_a_reply_slot_each_and_wait_when_all_are_busy() {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    let region = port.alloc(70 * 4096).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&seen);
    card.relax_with(move |card| {
        // Answers come backwards.
        let mut commands = card.take();
        commands.reverse();
        for command in &commands {
            card.answer(&command.0, Status::Ok, 0);
        }
        taken.lock().unwrap().extend(commands);
    });
    one.read(0, &region).fenced().post().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 70);
    let mut ops: Vec<_> = seen.iter().map(op).collect();
    ops.sort_unstable();
    ops.dedup();
    assert_eq!(ops.len(), 70, "every message has a number of its own");
    assert!(
        seen.iter()
            .all(|c| c.0.opcode == Opcode::Read && c.0.reply.0 < 64)
    );
    let stats = port.stats();
    assert_eq!((stats.reads, stats.read_messages), (1, 70));
}

#[test]
fn a_read_that_failed_is_told_by_its_own_fence_or_the_next_flush() {
    let card = Card::new();
    let (port, one, two) = card.open(PortConfig::default());
    let region = port.alloc(2 * 4096).unwrap();
    card.relax_with(|card| {
        card.carry_out(Status::Unmapped);
    });
    let failure = failed(one.read(0, &mut [0; 5000]).call());
    assert_eq!((failure.status, failure.node), (Status::Unmapped, NodeId(1)));
    let unfenced = two.read(0, &region).post().unwrap();
    assert_eq!(failed(port.flush_reads()).op, unfenced);
    assert_eq!(port.flush_reads(), Ok(()));
    // Once the region is no longer in flight it can go.
    drop(region);
    assert_eq!(card.freed.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_remote_flush_names_the_operation_whatever_arrives_first() {
    for error_first in [true, false] {
        let card = Card::new();
        let (port, one, _) = card.open(PortConfig::default());
        let first = one.write(0, &[1; 8]).post().unwrap();
        card.relax_with(move |card| {
            for (command, _) in card.take() {
                if command.opcode == Opcode::FlushRemote {
                    assert_eq!(command.node, NodeId(1));
                    card.answer(&command, Status::Revoked, u64::from(first.0));
                } else if error_first {
                    card.fail(&command, Status::Revoked);
                }
            }
        });
        let failure = failed(port.flush_remote(NodeId(1)));
        assert_eq!((failure.op, failure.status), (first, Status::Revoked));
        if !error_first {
            // Comes later: told before.
            let late = netvm_abi::descriptor::Command {
                op: first,
                node: NodeId(1),
                ..Default::default()
            };
            card.fail(&late, Status::Revoked);
        }
        card.relax_with(|card| {
            card.carry_out(Status::Ok);
        });
        assert_eq!(port.flush_remote(NodeId(1)), Ok(()));
        assert_eq!(port.stats().failures, 1);
    }
}

#[test]
fn a_flush_without_answer_is_its_own_failure() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    card.relax_with(|card| {
        card.carry_out(Status::LinkLost);
    });
    let failure = failed(port.flush_remote(NodeId(3)));
    assert_eq!((failure.status, failure.node), (Status::LinkLost, NodeId(3)));
    assert!(matches!(
        port.flush_remote(NodeId(4)),
        Err(Error::NoSuchNode { last: 3, .. })
    ));
}

#[test]
fn a_flush_waits_for_no_read_of_another_node() {
    let card = Card::new();
    let (port, _, two) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    let answered = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&answered);
    let (mut read, mut relaxed) = (None, 0);
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            if command.opcode == Opcode::FlushRemote {
                card.answer(&command, Status::Ok, 0);
            } else {
                read = Some(command);
            }
        }
        // It ends in the end, so that a flush that waits for it fails this test instead of hanging.
        relaxed += 1;
        if relaxed == 1000
            && let Some(read) = read.take()
        {
            late.store(true, Ordering::Release);
            card.answer(&read, Status::Ok, 0);
        }
    });
    two.read(0, region.slice(..8).unwrap()).post().unwrap();
    assert_eq!(port.flush_remote(NodeId(1)), Ok(()));
    assert!(!answered.load(Ordering::Acquire), "it waited for the read");
    assert_eq!(port.flush_reads(), Ok(()));
    assert!(answered.load(Ordering::Acquire));
}

#[test]
fn a_read_into_bytes_waits_for_no_other_read() {
    let card = Card::new();
    let (port, one, two) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    let answered = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&answered);
    let (mut other, mut relaxed) = (None, 0);
    card.relax_with(move |card| {
        // The parts of a call end in any order.
        for (command, _) in card.take().into_iter().rev() {
            if command.node == NodeId(1) {
                card.answer(&command, Status::Ok, 0);
            } else {
                other = Some(command);
            }
        }
        // It ends in the end, so that a read that waits for it fails this test instead of hanging.
        relaxed += 1;
        if relaxed == 1000
            && let Some(other) = other.take()
        {
            late.store(true, Ordering::Release);
            card.answer(&other, Status::Ok, 0);
        }
    });
    two.read(0, region.slice(..8).unwrap()).post().unwrap();
    one.read(0, &mut [0; 8]).call().unwrap();
    one.read(4000, &mut [0; 30_000]).call().unwrap();
    assert!(!answered.load(Ordering::Acquire), "it waited for the other read");
    assert_eq!(port.flush_reads(), Ok(()));
    assert!(answered.load(Ordering::Acquire));
}
