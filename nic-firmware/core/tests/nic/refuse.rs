//! Isolation (promise P5): what is refused, why, and that only the culprit hears of it.

use netvm_abi::bar::port as bar_port;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::*;
use netvm_kit::nic::*;

fn linked() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world
}

/// Posts a command that must fail with `status`, and shows that nothing else happened.
fn refused(command: &Command, status: Status) {
    let mut world = linked();
    assert!(world.nodes[0].post(1, command, &[7; 128]));
    world.run();
    let error = world.nodes[0]
        .error(1)
        .unwrap_or_else(|| panic!("no error for {command:?}"));
    assert_eq!((error.status, error.op), (status, command.op), "{command:?}");
    assert_eq!(world.nodes[0].error(1), None);
    assert_eq!(world.nodes[1].error(1), None, "the victim hears nothing");
    assert_eq!(world.nodes[1].counters().dma_started, 0);
    assert_eq!(world.nodes[1].signals(1, 5), 0);
    // The port goes on.
    let mut good = notify(inline(99, 0x12000, 8), 6);
    good.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &good, &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 6), 1);
}

#[test]
fn every_kind_of_refusal_names_its_reason() {
    let good = notify(inline(1, 0x12000, 8), 5);
    let cases: Vec<(Command, Status)> = vec![
        (
            Command {
                secret: good.secret ^ (1 << 63),
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                secret: good.secret ^ 1,
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                capability: CapabilitySlot(4),
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                capability: CapabilitySlot(64),
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                capability: CapabilitySlot(u32::MAX),
                ..good
            },
            Status::CapabilityRefused,
        ),
        (
            Command {
                port: PortId(2),
                ..good
            },
            Status::NoSuchPort,
        ),
        (
            Command {
                port: PortId(u16::MAX),
                ..good
            },
            Status::NoSuchPort,
        ),
        (
            Command {
                node: NodeId(2),
                ..good
            },
            Status::NoSuchNode,
        ),
        (
            Command {
                remote: VirtAddr(0xFFF8),
                ..good
            },
            Status::OutOfRange,
        ),
        (
            Command {
                remote: VirtAddr(0x20000),
                ..good
            },
            Status::OutOfRange,
        ),
        (
            Command {
                remote: VirtAddr(u64::MAX - 4095),
                ..good
            },
            Status::OutOfRange,
        ),
        (
            Command {
                remote: VirtAddr(0x12FFC),
                ..good
            },
            Status::Malformed,
        ),
        (
            Command {
                len: ByteLen(129),
                ..good
            },
            Status::Malformed,
        ),
        (
            Command {
                reply: ReplySlot(64),
                ..good
            },
            Status::Malformed,
        ),
        (
            Command {
                flags: CommandFlags::empty(),
                local: VirtAddr(0xFFC),
                ..good
            },
            Status::LocalAddress,
        ),
        (
            Command {
                flags: CommandFlags::empty(),
                local: VirtAddr(1 << 60),
                ..good
            },
            Status::LocalAddress,
        ),
        (
            Command {
                flags: CommandFlags::empty(),
                len: ByteLen(4097),
                ..good
            },
            Status::Malformed,
        ),
        (
            Command {
                // An atomic moves no payload.
                opcode: Opcode::FetchAdd,
                ..good
            },
            Status::Malformed,
        ),
        (
            Command {
                opcode: Opcode::FlushRemote,
                ..good
            },
            Status::Malformed,
        ),
    ];
    for (command, status) in &cases {
        refused(command, *status);
    }
}

#[test]
fn a_capability_allows_what_it_says_and_no_more() {
    let all = capability(0);
    let good = notify(inline(1, 0x12000, 8), 5);
    let cases: Vec<(Capability, Status)> = vec![
        (
            Capability {
                modes: Modes::WRITE,
                ..all
            },
            Status::ModeRefused,
        ),
        (
            Capability {
                modes: Modes::NOTIFY | Modes::READ,
                ..all
            },
            Status::ModeRefused,
        ),
        (
            Capability {
                notify_first: NotificationId(6),
                ..all
            },
            Status::ModeRefused,
        ),
        (
            Capability {
                notify_last: NotificationId(4),
                ..all
            },
            Status::ModeRefused,
        ),
        (
            Capability {
                start: VirtAddr(0x12001),
                ..all
            },
            Status::OutOfRange,
        ),
        (
            Capability {
                end: VirtAddr(0x12007),
                ..all
            },
            Status::OutOfRange,
        ),
        (
            Capability {
                holder: NodeId(1),
                ..all
            },
            Status::CapabilityRefused,
        ),
        (
            Capability {
                holder_port: PortId(2),
                ..all
            },
            Status::CapabilityRefused,
        ),
        (
            Capability {
                port: PortId(2),
                ..all
            },
            Status::CapabilityRefused,
        ),
        (
            Capability {
                expires: Nanos(1),
                ..all
            },
            Status::Expired,
        ),
    ];
    for (grant, status) in &cases {
        let mut world = linked();
        world.nodes[1].grant(3, grant);
        assert!(world.nodes[0].post(1, &good, &[7; 8]));
        world.run();
        assert_eq!(
            world.nodes[0].error(1).map(|error| error.status),
            Some(*status),
            "{grant:?}"
        );
        assert_eq!(world.nodes[1].memory(1, 0x12000, 8), [0; 8]);
        assert_eq!(world.nodes[1].signals(1, 5), 0);
    }
    for grant in [
        Capability {
            start: VirtAddr(0x12000),
            end: VirtAddr(0x12008),
            ..all
        },
        Capability {
            notify_first: NotificationId(5),
            notify_last: NotificationId(5),
            ..all
        },
        Capability {
            expires: Nanos(u64::MAX - 1),
            ..all
        },
    ] {
        let mut world = linked();
        world.nodes[1].grant(3, &grant);
        assert!(world.nodes[0].post(1, &good, &[7; 8]));
        world.run();
        assert_eq!(world.nodes[0].error(1), None);
        assert_eq!(world.nodes[1].signals(1, 5), 1);
    }
}

#[test]
fn words_that_are_no_command_end_as_malformed() {
    let mut world = linked();
    let map = netvm_abi::bar::BarMap::new(&world.nodes[0].board.geometry);
    let block = map.port(PortId(1));
    use netvm_abi::words::SharedWords;
    for (at, word) in [(0u32, 0xFFu32), (1, 0xFF00 | 1)] {
        let entry = block.plus(bar_port::COMMANDS.0 + at * 48);
        world.nodes[0].board.bar.store_release(entry, word);
        world.nodes[0].board.bar.store_release(entry.plus(10), 77 + at);
    }
    world.nodes[0].set_bar_word(1, bar_port::DOORBELL, 2);
    world.run();
    for op in [77, 78] {
        let error = world.nodes[0].error(1).unwrap();
        assert_eq!((error.op.0, error.status), (op, Status::Malformed));
    }
}

#[test]
fn a_doorbell_that_lies_is_told_once_and_not_believed() {
    let mut world = linked();
    world.nodes[0].set_bar_word(1, bar_port::DOORBELL, 0x8000_0000);
    world.run();
    world.run();
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::Malformed);
    assert_eq!(world.nodes[0].error(1), None);
    assert_eq!(world.nodes[0].counters().broken_doorbells, 1);
    world.nodes[0].set_bar_word(1, bar_port::DOORBELL, 0);
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 5), &[1; 8]));
    world.run();
    assert_eq!(world.nodes[1].signals(1, 5), 1);
}

#[test]
fn a_full_error_ring_counts_what_it_cannot_hold() {
    let mut world = linked();
    for op in 0..40 {
        let command = Command {
            node: NodeId(9),
            ..inline(op, 0, 8)
        };
        assert!(world.nodes[0].post(1, &command, &[]));
        world.run();
    }
    assert_eq!(world.nodes[0].area_word(1, port_area::ERROR_WRITE), 32);
    assert_eq!(world.nodes[0].area_word(1, port_area::ERRORS_LOST), 8);
    for op in 0..32 {
        assert_eq!(world.nodes[0].error(1).unwrap().op.0, op);
    }
    assert!(world.nodes[0].post(
        1,
        &Command {
            node: NodeId(9),
            ..inline(50, 0, 8)
        },
        &[]
    ));
    world.run();
    assert_eq!(world.nodes[0].error(1).unwrap().op.0, 50);
}

#[test]
fn one_port_takes_at_most_half_of_a_window_and_of_staging() {
    let mut world = linked();
    world.auto_dma = false;
    world.nodes[0].open(2, 1);
    let mut other = capability(0);
    other.holder_port.0 = 2;
    world.nodes[1].grant(4, &other);
    for op in 0..50 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000 + u64::from(op) * 8, 8), &[1; 8]));
    }
    world.run();
    assert_eq!(world.nodes[1].nic.dmas_in_flight(), 32);
    assert_eq!(world.nodes[0].counters().credit_stalls, 1);
    let mut command = inline(1, 0x12800, 8);
    command.capability.0 = 4;
    assert!(world.nodes[0].post(2, &command, &[2; 8]));
    world.run();
    assert_eq!(
        world.nodes[1].nic.dmas_in_flight(),
        33,
        "the other port is not held up"
    );
    world.auto_dma = true;
    world.run();
    world.pass(Nanos::from_millis(1));
    assert_eq!(world.nodes[1].counters().zero_copy, 51);

    // Staging: eight buffers, sources that are never mapped.
    for op in 0..8 {
        let local = 0x50000 + u64::from(op) * 0x1000;
        assert!(world.nodes[0].post(1, &write(op, 0x12000, local, 8), &[]));
    }
    world.run();
    assert_eq!(world.nodes[0].counters().source_misses, 4);
    assert!(world.nodes[0].counters().staging_stalls > 0);
    let mut staged = write(1, 0x12000, 0x60000, 8);
    staged.capability.0 = 4;
    assert!(world.nodes[0].post(2, &staged, &[]));
    world.run();
    assert_eq!(world.nodes[0].counters().source_misses, 5);
}

#[test]
fn a_bounced_write_is_refused_after_revocation_only_by_the_host_and_a_parked_one_by_the_card() {
    let mut world = linked();
    let first = inline(1, 0x15000, 8);
    let mut ordered = inline(2, 0x12000, 8);
    ordered.flags |= CommandFlags::ORDERED;
    assert!(world.nodes[0].post(1, &first, &[1; 8]));
    assert!(world.nodes[0].post(1, &ordered, &[2; 8]));
    world.run();
    world.nodes[1].revoke(3);
    world.hosts = true;
    world.run();
    let error = world.nodes[0].error(1).unwrap();
    assert_eq!((error.op.0, error.status), (2, Status::CapabilityRefused));
    assert_eq!(world.nodes[1].memory(1, 0x12000, 8), [0; 8]);
}
