//! Writes (thesis 5.4): inline and staged, straight to the page and through the bounce page.

use netvm_abi::bar::port as bar_port;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::port_area;
use netvm_abi::wire::Kind;
use netvm_abi::{Nanos, NodeId, SegmentId, Status};
use netvm_kit::nic::*;

fn linked(seed: u64) -> World {
    let mut world = World::connected(2, seed);
    world.nodes[1].grant(3, &capability(0));
    world
}

#[test]
fn a_staged_write_with_a_notification_lands_and_is_acknowledged() {
    let mut world = linked(0);
    world.nodes[0].map(1, 0x5000, 9, false);
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].fill(1, 0x5064, &[0xA7; 1000]);
    let command = notify(write(1, 0x12010, 0x5064, 1000), 17);
    assert!(world.nodes[0].post(1, &command, &[]));
    world.run();
    let page = world.nodes[1].memory(1, 0x12000, PAGE);
    assert!(page[0x10..0x10 + 1000].iter().all(|&b| b == 0xA7));
    assert!(page[..0x10].iter().chain(&page[0x10 + 1000..]).all(|&b| b == 0));
    assert_eq!(world.nodes[1].signals(1, 17), 1);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE), 1);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATIONS), 17);
    world.pass(Nanos::from_millis(1));
    assert_eq!(world.nodes[0].counters().staged_sent, 1);
    assert!(world.nodes[0].counters().acks_received > 0);
    assert_eq!(world.nodes[1].counters().zero_copy, 1);
}

#[test]
fn an_inline_write_needs_no_dma_at_the_source() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    for (len, op) in [1u32, 2, 3, 4, 7, 8, 64, 127, 128].into_iter().zip(1..) {
        let bytes: Vec<u8> = (0..len as u8).map(|b| b.wrapping_mul(3) ^ op as u8).collect();
        let at = 0x12000 + u64::from(op) * 256;
        assert!(world.nodes[0].post(1, &inline(op, at, len), &bytes));
        world.run();
        assert_eq!(world.nodes[1].memory(1, at, bytes.len()), bytes);
    }
    assert_eq!(world.nodes[0].counters().dma_started, 0);
    assert_eq!(world.nodes[0].counters().inline_sent, 9);
}

#[test]
fn a_missing_page_bounces_and_the_notification_waits_for_the_host() {
    let mut world = linked(0);
    let command = notify(inline(1, 0x12000, 8), 4);
    assert!(world.nodes[0].post(1, &command, &[9; 8]));
    // A second of the same port, to a page that is there: its notification may not overtake.
    world.nodes[1].map(1, 0x13000, 5, true);
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x13000, 8), 5), &[8; 8]));
    world.run();
    assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [8; 8]);
    assert_eq!(world.nodes[1].signals(1, 4), 0);
    assert_eq!(world.nodes[1].signals(1, 5), 0);
    assert_eq!(world.nodes[1].counters().bounced_not_found, 1);
    world.hosts = true;
    world.run();
    assert_eq!(world.nodes[1].memory(1, 0x12000, 8), [9; 8]);
    assert_eq!(world.nodes[1].signals(1, 4), 1);
    assert_eq!(world.nodes[1].signals(1, 5), 1);
    assert_eq!(world.nodes[1].counters().bounces_ended, 1);
}

#[test]
fn a_read_only_page_and_a_page_of_another_segment_bounce() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, false);
    world.nodes[1].map(1, 0x13000, 6, true);
    assert!(world.nodes[0].post(1, &inline(1, 0x12000, 8), &[1; 8]));
    assert!(world.nodes[0].post(1, &inline(2, 0x13000, 8), &[1; 8]));
    world.run();
    let counters = world.nodes[1].counters();
    assert_eq!((counters.bounced_read_only, counters.bounced_segment), (1, 1));
    assert_eq!(world.nodes[1].memory(1, 0x12000, 8), [0; 8]);
    assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [0; 8]);
    assert!(world.nodes[1].unmap(1, 0x12000), "no lock is left behind");
    assert!(world.nodes[1].unmap(1, 0x13000), "no lock is left behind");
}

#[test]
fn a_bounce_that_fails_is_reported_and_poisons_the_stream_until_its_epoch_changes() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x13000, 5, true);
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 4), &[9; 8]));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x13000, 8), 4), &[9; 8]));
    world.run();
    let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    else {
        panic!("nothing bounced");
    };
    let record = world.nodes[1].record(bounce);
    assert_eq!((record.kind, record.op.0, record.len), (Kind::Write, 1, 8));
    let ended = HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::ReadOnly,
    };
    world.nodes[1].tell(ended);
    world.nodes[1].tell(ended);
    world.run();
    let error = world.nodes[0].error(1).unwrap();
    assert_eq!(
        (error.op.0, error.status, error.node),
        (1, Status::ReadOnly, NodeId(1))
    );
    assert_eq!(error.address.0, 0x12000);
    assert_eq!(world.nodes[0].error(1), None);
    let counters = world.nodes[1].counters();
    assert_eq!(world.nodes[1].signals(1, 4), 0, "both are suppressed");
    assert_eq!(
        (counters.notifications_suppressed, counters.streams_poisoned),
        (2, 1)
    );
    assert_eq!(counters.late_answers, 1, "the second answer to one slot");
    // The same epoch stays poisoned, the next one is free.
    assert!(world.nodes[0].post(1, &notify(inline(3, 0x13000, 8), 4), &[9; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 4), 0);
    let mut command = notify(inline(4, 0x13000, 8), 4);
    command.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &command, &[9; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 4), 1);
}

#[test]
fn a_regardless_write_stands_alone() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    let regardless = |mut command: Command| {
        command.flags |= CommandFlags::REGARDLESS;
        command
    };
    // It fails: no error is reported, and what follows is notified.
    assert!(world.nodes[0].post(1, &regardless(notify(inline(1, 0x30000, 8), 4)), &[9; 8]));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x12000, 8), 5), &[9; 8]));
    world.run();
    assert_eq!(world.nodes[0].error(1), None);
    assert_eq!(
        (world.nodes[1].signals(1, 4), world.nodes[1].signals(1, 5)),
        (0, 1)
    );
    let counters = world.nodes[1].counters();
    assert_eq!((counters.messages_failed, counters.streams_poisoned), (1, 0));
    // Another fails: it is notified all the same, while others are held back.
    assert!(world.nodes[0].post(1, &inline(3, 0x30000, 8), &[9; 8]));
    assert!(world.nodes[0].post(1, &notify(inline(4, 0x12000, 8), 6), &[9; 8]));
    assert!(world.nodes[0].post(1, &regardless(notify(inline(5, 0x12000, 8), 7)), &[9; 8]));
    world.run();
    assert_eq!(world.nodes[0].error(1).map(|error| error.op.0), Some(3));
    assert_eq!(
        (world.nodes[1].signals(1, 6), world.nodes[1].signals(1, 7)),
        (0, 1)
    );
}

#[test]
fn a_notification_alone_needs_neither_page_nor_write_mode() {
    let mut world = linked(0);
    let mut only_notify = capability(0);
    only_notify.modes = Modes::NOTIFY;
    only_notify.segment = SegmentId(0);
    world.nodes[1].grant(3, &only_notify);
    assert!(world.nodes[0].post(1, &notify(write(1, 0, 0, 0), 9), &[]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 9), 1);
    assert_eq!(world.nodes[1].counters().dma_started, 0);
}

#[test]
fn self_addressed_writes_work_too() {
    let mut world = World::connected(1, 0);
    world.nodes[0].grant(3, &capability(0));
    world.nodes[0].map(1, 0x12000, 5, true);
    let mut command = notify(inline(1, 0x12000, 4), 2);
    command.node = NodeId(0);
    assert!(world.nodes[0].post(1, &command, &[1, 2, 3, 4]));
    world.run();
    assert_eq!(world.nodes[0].memory(1, 0x12000, 4), [1, 2, 3, 4]);
    assert_eq!(world.nodes[0].signals(1, 2), 1);
}

#[test]
fn a_source_miss_stalls_only_its_own_port() {
    let mut world = linked(0);
    world.nodes[0].open(2, 1);
    let mut other = capability(0);
    other.holder_port.0 = 2;
    world.nodes[1].grant(4, &other);
    world.nodes[1].map(1, 0x12000, 5, true);
    assert!(world.nodes[0].post(1, &notify(write(1, 0x12000, 0x5000, 100), 3), &[]));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x12800, 8), 3), &[7; 8]));
    let mut command = notify(inline(3, 0x12900, 8), 4);
    command.capability.0 = 4;
    assert!(world.nodes[0].post(2, &command, &[6; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 4), 1, "the other port goes on");
    assert_eq!(world.nodes[1].signals(1, 3), 0);
    assert_eq!(world.nodes[0].counters().source_misses, 1);
    world.hosts = true;
    world.run();
    assert_eq!(world.nodes[1].signals(1, 3), 2);
    assert_eq!(world.nodes[0].counters().source_retries, 1);
}

#[test]
fn a_page_that_is_stolen_each_time_is_copied_by_the_host() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].fill(1, 0x5000, &[0x5A; 64]);
    assert!(world.nodes[0].post(1, &write(1, 0x12000, 0x5000, 64), &[]));
    world.run();
    for attempt in 0..4 {
        let event = world.nodes[0].event(|event| matches!(event, NicEvent::SourceMiss { .. }));
        let Some(NicEvent::SourceMiss {
            staging,
            generation,
            attempt: said,
            ..
        }) = event
        else {
            panic!("no source miss");
        };
        assert_eq!(said, attempt);
        if attempt == 3 {
            world.nodes[0].inbox.push_back(event.unwrap());
            world.hosts = true;
        } else {
            let retry = answer(staging, generation, netvm_abi::event::SourceAnswer::Retry);
            world.nodes[0].tell(retry);
        }
        world.run();
    }
    assert_eq!(world.nodes[1].memory(1, 0x12000, 64), [0x5A; 64]);
    let counters = world.nodes[0].counters();
    assert_eq!((counters.source_retries, counters.source_copies), (3, 1));
}

#[test]
fn a_source_that_cannot_be_had_fails_its_write_and_holds_back_later_notifications() {
    let mut world = linked(0);
    world.nodes[1].map(1, 0x12000, 5, true);
    assert!(world.nodes[0].post(1, &write(1, 0x12000, 0x5000, 64), &[]));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x12100, 8), 3), &[7; 8]));
    world.run();
    let Some(NicEvent::SourceMiss {
        staging, generation, ..
    }) = world.nodes[0].event(|event| matches!(event, NicEvent::SourceMiss { .. }))
    else {
        panic!("no source miss");
    };
    let failed = netvm_abi::event::SourceAnswer::Failed(Status::Unmapped);
    world.nodes[0].tell(answer(staging, generation, failed));
    world.nodes[0].set_bar_word(1, bar_port::WRITE_FENCE, 2);
    world.run();
    let error = world.nodes[0].error(1).unwrap();
    assert_eq!((error.op.0, error.status), (1, Status::Unmapped));
    assert_eq!(
        world.nodes[1].signals(1, 3),
        0,
        "it would announce data that never left"
    );
    assert_eq!(world.nodes[1].memory(1, 0x12100, 8), [7; 8]);
    assert_eq!(world.nodes[0].area_word(1, port_area::WRITES_DONE), 2);
    let mut command = notify(inline(3, 0x12100, 8), 3);
    command.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &command, &[7; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 3), 1);
}
