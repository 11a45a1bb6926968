//! Leases: when one begins, that it ends by itself, and what extends it.

use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

const SLOT: CapabilitySlot = CapabilitySlot(6);
const GENERATION: Generation = Generation(5);
const MS: u64 = 1_000_000;

/// Node 1 lends node 0 its range for 10 ms, and for 100 ms at most.
fn lent() -> World {
    let mut world = World::connected(2, 0);
    let all = netvm_abi::capability::Capability {
        modes: Modes::all(),
        ..capability(0)
    };
    world.nodes[1].lend(SLOT.0, &all, GENERATION.0, (10 * MS, 100 * MS));
    world.nodes[1].begin_lease(SLOT.0, GENERATION.0);
    world.nodes[1].map(1, 0x12000, 5, true);
    world
}

fn under_lease(command: Command) -> Command {
    Command {
        capability: SLOT,
        ..command
    }
}

fn extension(op: u32, asked: u64) -> Command {
    Command {
        opcode: Opcode::ExtendLease,
        operand: asked,
        compare: GENERATION.0.into(),
        reply: ReplySlot(op as u16 % 64),
        ..under_lease(write(op, 0x12345, 0, 0))
    }
}

fn post(world: &mut World, command: Command) {
    assert!(world.nodes[0].post(1, &command, &[9; 8]));
    world.run();
}

/// The reply to an operation: status, value, second value.
fn reply(world: &World, op: u32) -> Option<(Status, u64, u64)> {
    let node = &world.nodes[0];
    let area = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, area, AREA_WORDS);
    let reply = Reply::load(&area, op as u16 % 64, OpId(op))?;
    Some((reply.status, reply.value, reply.second))
}

/// Moves the time past the lease's end, with all timers.
fn pass(world: &mut World, millis: u64) {
    world.pass(Nanos(millis * MS));
}

/// Posts a write; the status that it failed with, if it did.
fn write_fails(world: &mut World, op: u32, epoch: u16) -> Option<Status> {
    let mut command = under_lease(inline(op, 0x12000, 8));
    command.epoch.0 = epoch;
    post(world, command);
    world.nodes[0].error(1).map(|error| {
        assert_eq!(error.op, OpId(op));
        error.status
    })
}

#[test]
pub(crate) fn it_ends_by_the_cards_clock_alone() {
    let mut world = lent();
    world.run();
    assert_eq!(write_fails(&mut world, 1, 0), None);
    pass(&mut world, 9);
    assert_eq!(write_fails(&mut world, 2, 0), None);
    pass(&mut world, 1);
    let before = world.nodes[1].counters().dma_started;
    assert_eq!(write_fails(&mut world, 3, 0), Some(Status::Expired));
    for (op, opcode) in [(4, Opcode::Read), (5, Opcode::FetchAdd)] {
        let command = Command {
            opcode,
            reply: ReplySlot(op),
            local: VirtAddr(0x11000),
            len: ByteLen(if opcode == Opcode::Read { 8 } else { 0 }),
            ..under_lease(write(u32::from(op), 0x12000, 0, 0))
        };
        post(&mut world, command);
        assert_eq!(
            reply(&world, op.into()).map(|reply| reply.0),
            Some(Status::Expired),
            "{opcode:?}"
        );
    }
    assert_eq!(world.nodes[1].counters().dma_started, before, "nothing is moved");
    // An extension comes too late.
    post(&mut world, extension(6, 50 * MS));
    assert_eq!(reply(&world, 6).map(|reply| reply.0), Some(Status::Expired));
    // The victim hears nothing.
    assert_eq!(world.nodes[1].error(1), None);
    assert_eq!(world.nodes[1].counters().refused_expired, 4);
}

#[test]
fn it_begins_at_the_first_access_if_the_event_is_late() {
    let mut world = World::connected(2, 0);
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[1].lend(SLOT.0, &capability(0), GENERATION.0, (10 * MS, 100 * MS));
    assert_eq!(write_fails(&mut world, 1, 0), None);
    assert_eq!(world.nodes[1].counters().refused_expired, 0);
    // Told again, it does not begin again.
    pass(&mut world, 6);
    world.nodes[1].begin_lease(SLOT.0, GENERATION.0);
    world.run();
    pass(&mut world, 5);
    assert_eq!(write_fails(&mut world, 2, 0), Some(Status::Expired));
}

#[test]
fn an_extension_is_one_round_trip_and_asks_no_host() {
    let mut world = lent();
    world.run();
    pass(&mut world, 9);
    let (events, dmas) = (
        world.nodes[1].counters().driver_interrupts,
        world.nodes[1].counters().dma_started,
    );
    post(&mut world, extension(1, 50 * MS));
    let (status, left, most) = reply(&world, 1).unwrap();
    assert_eq!((status, left), (Status::Ok, 50 * MS));
    assert!(most > 90 * MS && most <= 91 * MS, "{most}");
    assert_eq!(
        world.nodes[1].counters().driver_interrupts,
        events,
        "the host hears nothing"
    );
    assert_eq!(world.nodes[1].counters().dma_started, dmas);
    assert_eq!(world.nodes[1].counters().leases_extended, 1);
    pass(&mut world, 49);
    assert_eq!(write_fails(&mut world, 2, 0), None);
    // Not past the longest life, however often.
    post(&mut world, extension(3, u64::MAX));
    let (_, left, most) = reply(&world, 3).unwrap();
    assert!(left == most && left < 42 * MS, "{left}");
    pass(&mut world, 42);
    assert_eq!(write_fails(&mut world, 4, 0), Some(Status::Expired));
}

#[test]
fn an_extension_proves_what_an_access_proves() {
    let mut world = lent();
    world.nodes[1].grant(7, &capability(0));
    world.run();
    let good = extension(0, MS);
    let cases = [
        (Command { secret: 1, ..good }, Status::CapabilityRefused),
        (
            Command {
                capability: CapabilitySlot(u32::MAX),
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                port: PortId(3),
                ..good
            },
            Status::NoSuchPort,
        ),
        (
            Command {
                capability: CapabilitySlot(7),
                ..good
            },
            Status::ModeRefused,
        ),
        (Command { compare: 4, ..good }, Status::Expired),
        (
            Command {
                compare: 5 | 1 << 32,
                ..good
            },
            Status::Expired,
        ),
        (
            Command {
                len: ByteLen(8),
                ..good
            },
            Status::Malformed,
        ),
    ];
    for (at, (command, status)) in cases.into_iter().enumerate() {
        let op = 10 + at as u32;
        let command = Command {
            op: OpId(op),
            reply: ReplySlot(op as u16),
            ..command
        };
        post(&mut world, command);
        assert_eq!(reply(&world, op).map(|reply| reply.0), Some(status), "case {at}");
    }
    world.nodes[1].revoke(SLOT.0);
    post(&mut world, extension(30, MS));
    assert_eq!(
        reply(&world, 30).map(|reply| reply.0),
        Some(Status::CapabilityRefused)
    );
    assert_eq!(world.nodes[1].counters().leases_extended, 0);
}

#[test]
fn the_host_is_told_what_is_left_of_which_lease() {
    let mut world = lent();
    world.run();
    let ask = |world: &mut World, slot, generation| {
        let (generation, token) = (Generation(generation), Token(77));
        world.nodes[1].tell(HostEvent::LeaseAsk {
            slot,
            generation,
            token,
        });
        world.run();
        let node = &mut world.nodes[1];
        match node.event(|event| matches!(event, NicEvent::LeaseLeft { .. })) {
            Some(NicEvent::LeaseLeft {
                slot: told,
                generation: of,
                token: told_token,
                left,
            }) => {
                assert_eq!((told, of, told_token), (slot, generation, token));
                left.0
            }
            other => panic!("no answer but {other:?}"),
        }
    };
    pass(&mut world, 4);
    let left = ask(&mut world, SLOT, 5);
    assert!(left > 5 * MS && left <= 6 * MS, "{left}");
    for (slot, generation) in [(SLOT, 4), (CapabilitySlot(7), 5), (CapabilitySlot(u32::MAX), 5)] {
        assert_eq!(ask(&mut world, slot, generation), 0);
    }
    pass(&mut world, 7);
    assert_eq!(ask(&mut world, SLOT, 5), 0);
}

/// The table is as large as the geometry says: 10^5 leases live, each with an end of its own.
#[test]
fn a_hundred_thousand_leases_live_at_once() {
    const LEASES: u32 = 100_000;
    let geometry = Geometry {
        capabilities: 1 << 17,
        ..geometry(2)
    };
    let mut world = World::connect(World::with(2, 0, geometry, |_| {}));
    world.nodes[1].map(1, 0x12000, 5, true);
    for slot in 0..LEASES {
        // One in a thousand is short.
        let duration = if slot % 1000 == 7 { MS } else { 1000 * MS };
        world.nodes[1].lend(slot, &capability(0), slot + 1, (duration, 2000 * MS));
        world.nodes[1].begin_lease(slot, slot + 1);
        if slot % 100 == 99 {
            world.run();
        }
    }
    world.run();
    assert_eq!(world.nodes[1].counters().leases_begun, LEASES.into());
    pass(&mut world, 2);
    let write = |op, slot| Command {
        capability: CapabilitySlot(slot),
        ..inline(op, 0x12000, 8)
    };
    for (op, slot) in [(1, 0), (2, 8), (3, LEASES - 1)] {
        post(&mut world, write(op, slot));
        assert_eq!(world.nodes[0].error(1), None, "lease {slot}");
        let extension = Command {
            capability: CapabilitySlot(slot),
            compare: u64::from(slot) + 1,
            ..extension(op, 1500 * MS)
        };
        post(&mut world, extension);
        assert_eq!(
            reply(&world, op).map(|reply| reply.0),
            Some(Status::Ok),
            "lease {slot}"
        );
    }
    post(&mut world, write(4, 7));
    assert_eq!(
        world.nodes[0].error(1).map(|error| error.status),
        Some(Status::Expired)
    );
}
