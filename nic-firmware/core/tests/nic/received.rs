//! What the other card has received can be waited for: that asks for no credit and no page, and a frame that is lost holds it
//! up until the frame has come.

use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::Kind;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

/// Messages that one port may have on a link of the usual window.
const SHARE: u32 = 32;

/// Two nodes whose wire may lose frames; no page is mapped, and no host answers: nothing lands.
fn lossy() -> World {
    stuck(World::new(2, 5).lossy())
}

fn stuck(world: World) -> World {
    let mut world = World::connect(world);
    world.nodes[1].grant(3, &capability(0));
    world
}

fn wait(op: u32, opcode: Opcode) -> Command {
    Command {
        opcode,
        reply: ReplySlot(op as u16 % 64),
        ..write(op, 0, 0, 0)
    }
}

fn post_write(world: &mut World, op: u32) {
    let command = inline(op, 0x10000 + u64::from(op) * 8, 8);
    assert!(world.nodes[0].post(1, &command, &[op as u8; 8]));
}

fn post_wait(world: &mut World, op: u32) {
    assert!(world.nodes[0].post(1, &wait(op, Opcode::FlushReceived), &[]));
}

fn ended(world: &World, op: u32) -> Option<Status> {
    let board = &world.nodes[0].board;
    let area = SharedMap::new(&board.geometry).port_area(PortId(1));
    let area = Part::new(&board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16 % 64, OpId(op)).map(|reply| reply.status)
}

#[test]
fn what_waits_for_its_page_has_been_received() {
    for mut world in [stuck(World::new(2, 5)), lossy()] {
        post_write(&mut world, 1);
        post_wait(&mut world, 2);
        assert!(world.nodes[0].post(1, &wait(3, Opcode::FlushRemote), &[]));
        world.pass(Nanos::from_micros(50));
        assert_eq!(world.nodes[1].counters().bounced_not_found, 1);
        assert_eq!(ended(&world, 2), Some(Status::Ok));
        assert_eq!(ended(&world, 3), None, "it has not landed");
    }
}

#[test]
fn it_needs_no_credit() {
    for mut world in [stuck(World::new(2, 5)), lossy()] {
        for op in 1..=SHARE {
            post_write(&mut world, op);
            world.pass(Nanos::from_micros(10));
        }
        assert_eq!(world.nodes[1].counters().messages_received, u64::from(SHARE));
        post_wait(&mut world, 40);
        post_write(&mut world, 41);
        world.pass(Nanos::from_micros(50));
        assert_eq!(ended(&world, 40), Some(Status::Ok));
        assert_eq!(
            world.nodes[0].counters().messages_sent,
            u64::from(SHARE),
            "the next one waits"
        );
    }
}

#[test]
fn where_nothing_is_on_its_way_nothing_is_asked() {
    let mut world = stuck(World::new(2, 5));
    let frames = world.nodes[1].counters().frames;
    post_wait(&mut world, 1);
    world.run();
    assert_eq!(ended(&world, 1), Some(Status::Ok));
    assert_eq!(world.nodes[1].counters().frames, frames);
}

#[test]
fn a_frame_that_is_lost_holds_it_up() {
    let mut world = lossy();
    world.lost = Box::new(|message| message.header.kind == Kind::Write && message.header.op == OpId(2));
    for op in 1..=3 {
        post_write(&mut world, op);
    }
    post_wait(&mut world, 4);
    world.pass(Nanos::from_millis(20));
    let counters = world.nodes[0].counters();
    assert!(counters.retransmitted > 0);
    assert_eq!(ended(&world, 4), None, "the second has not come");
    world.lost = Box::new(|_| false);
    world.pass(Nanos::from_millis(200));
    assert_eq!(ended(&world, 4), Some(Status::Ok));
    assert_eq!(world.nodes[1].counters().bounced_not_found, 3);
}

#[test]
fn a_question_or_an_answer_that_is_lost_comes_again() {
    for kind in [Kind::Probe, Kind::Ack] {
        let mut world = lossy();
        let mut left = 3;
        world.lost = Box::new(move |message| {
            let loses = message.header.kind == kind && left > 0;
            left -= u32::from(loses);
            loses
        });
        post_write(&mut world, 1);
        post_wait(&mut world, 2);
        world.pass(Nanos::from_millis(2_000));
        assert_eq!(ended(&world, 2), Some(Status::Ok), "{kind:?}");
        assert_eq!(world.nodes[0].counters().links_lost, 0);
    }
}

#[test]
fn it_ends_with_its_link() {
    let mut world = lossy();
    world.lost = Box::new(|message| message.header.source == NodeId(0));
    post_write(&mut world, 1);
    post_wait(&mut world, 2);
    world.pass(Nanos::from_millis(60_000));
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert_eq!(ended(&world, 2), Some(Status::LinkLost));
}

#[test]
fn many_at_once_leave_nothing_behind() {
    let mut world = lossy();
    let mut fates = 0u32;
    world.lost = Box::new(move |_| {
        fates += 1;
        fates.is_multiple_of(3)
    });
    world.nodes[0].set_bar_word(1, bar::port::READ_FENCE, 20);
    for op in 1..=20 {
        post_write(&mut world, 2 * op);
        post_wait(&mut world, 2 * op + 1);
        world.pass(Nanos::from_micros(10));
    }
    world.pass(Nanos::from_millis(2_000));
    for op in 1..=20 {
        assert_eq!(ended(&world, 2 * op + 1), Some(Status::Ok), "{op}");
    }
    assert_eq!(world.nodes[0].counters().receipts_awaited, 20);
    let mut held = world.nodes[0].nic.census().into_iter();
    assert_eq!(
        held.find(|(what, _)| *what == "read_slots"),
        Some(("read_slots", 0))
    );
    assert_eq!(world.nodes[0].area_word(1, port_area::READS_DONE), 20);
}

#[test]
fn the_next_owner_of_the_port_hears_nothing_of_it() {
    let mut world = lossy();
    world.lost = Box::new(|message| message.header.kind == Kind::Write);
    post_write(&mut world, 1);
    post_wait(&mut world, 2);
    world.pass(Nanos::from_micros(50));
    world.nodes[0].tell(HostEvent::PortClose {
        port: PortId(1),
        generation: Generation(7),
    });
    world.pass(Nanos::from_micros(50));
    let gone = |event: &NicEvent| matches!(event, NicEvent::PortClosed { port: PortId(1), .. });
    assert!(
        world.nodes[0].event(gone).is_some(),
        "what it waits for keeps no port open"
    );
    world.nodes[0].open(1, 8);
    world.nodes[0].set_bar_word(1, bar::port::READ_FENCE, 1);
    world.lost = Box::new(|_| false);
    world.pass(Nanos::from_millis(200));
    assert_eq!((ended(&world, 2), read_slots(&world)), (None, 0));
    assert_eq!(world.nodes[0].area_word(1, port_area::READS_DONE), 0);
}

/// Round trips that have not ended.
fn read_slots(world: &World) -> u32 {
    let mut held = world.nodes[0].nic.census().into_iter();
    held.find(|(what, _)| *what == "read_slots").expect("counted").1
}
