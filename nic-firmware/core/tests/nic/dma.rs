//! DMAs: several in flight, ending late, out of order, twice, or not at all well; barriers; and no
//! page lock without a DMA (promise P1).

use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::{Nanos, Status, Token};
use netvm_kit::nic::*;
use netvm_nic::platform::DmaId;

/// Node 1 has pages 0x12000.. mapped; DMAs end only when the test says so.
fn held(pages: u64) -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    for page in 0..pages {
        world.nodes[1].map(1, 0x12000 + page * 0x1000, 5, true);
    }
    world.auto_dma = false;
    world
}

fn post_inline(world: &mut World, count: u32) {
    for op in 0..count {
        let at = 0x12000 + u64::from(op % 4) * 0x1000 + u64::from(op) * 8;
        let command = notify(inline(op, at, 8), 1);
        while !world.nodes[0].post(1, &command, &[op as u8 + 1; 8]) {
            world.step();
        }
        world.run();
    }
}

#[test]
fn two_in_flight_end_out_of_order_and_notifications_wait() {
    let mut world = held(4);
    post_inline(&mut world, 2);
    let now = world.now;
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 2);
    world.nodes[1].end_dma(now, 1, true);
    assert_eq!(
        world.nodes[1].memory(1, 0x13008, 8),
        [2; 8],
        "the second landed first"
    );
    assert_eq!(world.nodes[1].signals(1, 1), 0);
    world.nodes[1].end_dma(now, 0, true);
    assert_eq!(world.nodes[1].signals(1, 1), 2);
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 0);
}

#[test]
fn staging_overlaps_too_and_commands_leave_in_order() {
    let mut world = held(1);
    for page in [0x5000, 0x6000, 0x7000] {
        world.nodes[0].map(1, page, 9, true);
        world.nodes[0].fill(1, page, &[(page >> 12) as u8; 64]);
    }
    for (op, page) in [(1, 0x5000), (2, 0x6000), (3, 0x7000)] {
        let command = write(op, 0x12000 + u64::from(op) * 64, page, 64);
        assert!(world.nodes[0].post(1, &command, &[]));
    }
    world.run();
    assert_eq!(world.nodes[0].nic.dmas_in_flight(), 3);
    let now = world.now;
    world.nodes[0].end_dma(now, 2, true);
    world.nodes[0].end_dma(now, 1, true);
    assert!(
        world.nodes[0].board.outbox.is_empty(),
        "the first is still being staged"
    );
    world.nodes[0].end_dma(now, 0, true);
    let ops: Vec<u32> = world.nodes[0]
        .board
        .outbox
        .iter()
        .map(|m| m.header.op.0)
        .collect();
    assert_eq!(ops, [1, 2, 3]);
    assert_eq!(world.nodes[0].board.outbox[2].payload, [7; 64]);
}

#[test]
fn late_and_repeated_completions_are_ignored() {
    let mut world = held(4);
    post_inline(&mut world, 1);
    let now = world.now;
    let (id, _) = world.nodes[1].board.dmas[0];
    world.nodes[1].end_dma(now, 0, true);
    post_inline(&mut world, 1);
    let wrong = [
        id,
        DmaId {
            slot: 63,
            generation: 0,
        },
        DmaId {
            slot: 64,
            generation: 1,
        },
        DmaId {
            slot: id.slot,
            generation: id.generation.wrapping_add(7),
        },
    ];
    for id in wrong {
        let Node { nic, board, .. } = &mut world.nodes[1];
        nic.handle_dma_done(board, now, id, true);
    }
    assert_eq!(world.nodes[1].counters().dma_late, 4);
    assert_eq!(
        world.nodes[1].nic.dmas_in_flight(),
        1,
        "the one in flight is untouched"
    );
}

#[test]
fn a_failed_dma_fails_its_write_and_leaves_the_page_dirty_and_unlocked() {
    let mut world = held(1);
    post_inline(&mut world, 1);
    let now = world.now;
    assert!(
        !world.nodes[1].unmap_would_be_free(1, 0x12000),
        "locked while the DMA runs"
    );
    world.nodes[1].end_dma(now, 0, false);
    world.run();
    assert!(world.nodes[1].unmap_would_be_free(1, 0x12000));
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::BusError);
    assert_eq!(world.nodes[1].signals(1, 1), 0);
    let counters = world.nodes[1].counters();
    assert_eq!((counters.dma_failed, counters.failed), (1, 1));
}

#[test]
fn a_failed_staging_dma_and_a_failed_bounce_dma_are_reported() {
    let mut world = held(0);
    world.nodes[0].map(1, 0x5000, 9, true);
    assert!(world.nodes[0].post(1, &write(1, 0x12000, 0x5000, 64), &[]));
    world.run();
    let now = world.now;
    world.nodes[0].end_dma(now, 0, false);
    world.run();
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::BusError);
    assert!(world.nodes[0].post(1, &inline(2, 0x12000, 8), &[1; 8]));
    world.run();
    world.nodes[1].end_dma(now, 0, false);
    world.run();
    let error = world.nodes[0].error(1).unwrap();
    assert_eq!((error.op.0, error.status), (2, Status::BusError));
}

#[test]
fn without_a_free_slot_an_operation_waits_without_a_lock() {
    // Two senders fill all 64 slots; what comes then holds nothing.
    let mut world = World::connected(3, 0);
    world.auto_dma = false;
    for holder in [0, 2] {
        world.nodes[1].grant(3 + u32::from(holder), &capability(holder));
    }
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].map(1, 0x13000, 5, true);
    for sender in [0u16, 2] {
        for op in 0..32 {
            let mut command = inline(op, 0x12000 + u64::from(op) * 8 + u64::from(sender) * 256, 8);
            command.capability.0 = 3 + u32::from(sender);
            assert!(world.nodes[usize::from(sender)].post(1, &command, &[1; 8]));
        }
        world.run();
    }
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 64);
    // The windows are half full for each port; acknowledge nothing, use another port.
    world.nodes[0].open(2, 1);
    let mut other = capability(0);
    other.holder_port.0 = 2;
    world.nodes[1].grant(9, &other);
    let mut command = notify(inline(99, 0x13000, 8), 2);
    command.capability.0 = 9;
    assert!(world.nodes[0].post(2, &command, &[9; 8]));
    world.run();
    assert_eq!(world.nodes[1].counters().dma_parked, 1);
    assert!(
        world.nodes[1].unmap_would_be_free(1, 0x13000),
        "a parked write holds no lock"
    );
    // It is checked again when its turn comes.
    let now = world.now;
    world.nodes[1].end_dma(now, 5, true);
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 64);
    assert!(!world.nodes[1].unmap_would_be_free(1, 0x13000), "now it runs");
    world.auto_dma = true;
    world.run();
    assert_eq!(world.nodes[1].memory(1, 0x13000, 8), [9; 8]);
}

#[test]
fn a_barrier_waits_for_the_dmas_of_its_moment_and_no_others() {
    let mut world = held(4);
    post_inline(&mut world, 2);
    world.nodes[1].tell(HostEvent::Barrier { token: Token(5) });
    world.run();
    post_inline(&mut world, 1);
    let now = world.now;
    let done = |world: &mut World| {
        world.nodes[1].take_events();
        world.nodes[1].event(|event| matches!(event, NicEvent::BarrierDone { token: Token(5) }))
    };
    assert_eq!(done(&mut world), None);
    world.nodes[1].end_dma(now, 1, true);
    assert_eq!(done(&mut world), None);
    world.nodes[1].end_dma(now, 0, true);
    assert!(done(&mut world).is_some(), "the third began later");
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 1);
    world.auto_dma = true;
    world.run();
    world.nodes[1].tell(HostEvent::Barrier { token: Token(5) });
    world.run();
    assert!(done(&mut world).is_some(), "nothing is active");
    assert_eq!(world.nodes[1].counters().barriers, 2);
}

#[test]
fn more_barriers_than_the_card_remembers_wait_in_the_ring() {
    let mut world = held(4);
    post_inline(&mut world, 1);
    for token in 0..40 {
        world.nodes[1].tell(HostEvent::Barrier { token: Token(token) });
    }
    world.run();
    assert_eq!(world.nodes[1].counters().barriers, 0);
    world.auto_dma = true;
    world.run();
    assert_eq!(world.nodes[1].counters().barriers, 40);
    world.pass(Nanos::from_millis(1));
}
