//! A write that lacks nothing leaves at once, and no other way tells it apart: behind an entry that still waits, the
//! same write goes through the pipeline, in its turn, and makes the same message.

use netvm_abi::Seq;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::port_area::{TAKEN, WRITES_DONE};
use netvm_kit::nic::*;

const STAGED: u64 = 0x5000;

/// What leaves when `command` is posted alone, and when it is posted behind a write whose source is not there yet.
fn both_ways(command: &Command, payload: &[u8]) -> [Message; 2] {
    [false, true].map(|behind| {
        let mut world = World::connected(2, 7);
        world.nodes[0].map(1, STAGED, 0, false);
        if behind {
            assert!(world.nodes[0].post(1, &write(8, 0x12000, STAGED, 256), &[]));
        }
        assert!(world.nodes[0].post(1, command, payload));
        let now = world.now;
        while world.nodes[0].poll(now) {}
        if behind {
            assert!(
                world.nodes[0].board.outbox.is_empty(),
                "it overtook the one before it"
            );
            world.nodes[0].end_dma(now, 0, true);
            assert!(world.nodes[0].board.outbox.pop_front().is_some());
        }
        assert_eq!(world.nodes[0].board.outbox.len(), 1);
        let counters = world.nodes[0].counters();
        let posted = 1 + u64::from(behind);
        assert_eq!(counters.commands, posted);
        assert_eq!(counters.messages_sent, posted);
        assert_eq!(counters.inline_sent, u64::from(!payload.is_empty()));
        world.nodes[0].board.outbox.pop_front().unwrap()
    })
}

#[test]
fn both_ways_make_the_same_message() {
    let bytes: Vec<u8> = (1..=128).collect();
    for len in [0, 1, 4, 7, 8, 100, 128] {
        for flags in [
            CommandFlags::empty(),
            CommandFlags::ORDERED,
            CommandFlags::REGARDLESS,
            CommandFlags::APPEND,
        ] {
            if len == 0 && flags == CommandFlags::APPEND {
                continue;
            }
            let mut command = notify(inline(9, 0x12340, len as u32), 5);
            command.flags |= flags;
            let [straight, queued] = both_ways(&command, &bytes[..len]);
            assert_eq!(straight.payload, bytes[..len]);
            assert_eq!(straight.payload, queued.payload);
            let mut expected = queued.header;
            expected.seq = Seq(expected.seq.0.wrapping_sub(1));
            assert_eq!(straight.header, expected, "{len} bytes, {flags:?}");
        }
    }
}

#[test]
fn the_counts_are_told_as_of_any_write() {
    let mut world = World::connected(2, 7);
    for op in 0..200 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000, 8), &[op as u8; 8]));
        world.run();
    }
    let [taken, done] = [TAKEN, WRITES_DONE].map(|word| world.nodes[0].area_word(1, word));
    assert_eq!([taken, done], [192, 192], "a shadow each 32");
    assert_eq!(world.nodes[0].counters().commands, 200);
}

#[test]
fn a_full_window_sends_it_into_the_pipeline() {
    let mut world = World::connected(2, 7);
    let window = u32::from(world.nodes[0].nic.config().geometry.window);
    let now = world.now;
    for op in 0..window {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000, 8), &[op as u8; 8]));
        while world.nodes[0].poll(now) {}
    }
    // A port gets half of a window.
    assert_eq!(world.nodes[0].board.outbox.len() as u32, window / 2);
    assert_eq!(world.nodes[0].counters().credit_stalls, 1);
    world.run();
    assert_eq!(world.nodes[0].counters().messages_sent, u64::from(window));
    assert!(world.nodes[0].counters().credit_stalls >= 1);
}
