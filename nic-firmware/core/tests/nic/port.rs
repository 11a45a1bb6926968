//! Ports: opening, closing at any moment, generations; completion counters and fences;
//! notifications and the waiters that they wake.

use netvm_abi::bar::port as bar_port;
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::port_area;
use netvm_abi::*;
use netvm_kit::heap::looks;
use netvm_kit::nic::*;
use netvm_nic::Found;
use netvm_nic::platform::Interrupt;

fn linked() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world
}

fn close(port: u16, generation: u32) -> HostEvent {
    HostEvent::PortClose {
        port: PortId(port),
        generation: Generation(generation),
    }
}

fn closed(world: &mut World, node: usize) -> bool {
    let gone = |event: &NicEvent| matches!(event, NicEvent::PortClosed { port: PortId(1), .. });
    world.nodes[node].event(gone).is_some()
}

#[test]
fn a_receiving_port_closes_when_its_dmas_have_ended_and_refuses_from_then_on() {
    let mut world = linked();
    world.auto_dma = false;
    assert!(world.nodes[0].post(1, &notify(inline(1, 0x12000, 8), 2), &[1; 8]));
    world.run();
    world.nodes[1].tell(close(1, 7));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x12000, 8), 2), &[1; 8]));
    world.run();
    assert!(!closed(&mut world, 1), "a DMA still runs");
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::NoSuchPort);
    world.auto_dma = true;
    world.run();
    assert!(closed(&mut world, 1));
    assert_eq!(world.nodes[1].signals(1, 2), 0);
    // The next owner of the number gets nothing of it.
    world.nodes[1].open(1, 8);
    world.run();
    assert_eq!(world.nodes[1].counters().ports_opened, 2);
    assert_eq!(world.nodes[1].signals(1, 2), 0);
}

#[test]
fn a_notification_of_the_last_owner_does_not_reach_the_next_one() {
    let mut world = linked();
    // The first is with the host, so the second, landed, waits with its notification.
    assert!(world.nodes[0].post(1, &inline(1, 0x15000, 8), &[1; 8]));
    assert!(world.nodes[0].post(1, &notify(inline(2, 0x12000, 8), 2), &[1; 8]));
    world.run();
    world.nodes[1].tell(close(1, 7));
    world.run();
    world.nodes[1].open(1, 8);
    world.run();
    world.hosts = true;
    world.run();
    assert_eq!(world.nodes[1].signals(1, 2), 0);
    assert_eq!(world.nodes[1].counters().notifications_suppressed, 1);
}

#[test]
fn a_sending_port_closes_at_any_moment_without_a_trace() {
    for moment in 0..12 {
        let mut world = linked();
        world.auto_dma = false;
        world.nodes[0].map(1, 0x5000, 9, true);
        let read = netvm_abi::descriptor::Command {
            opcode: netvm_abi::descriptor::Opcode::Read,
            ..write(3, 0x12000, 0x5000, 64)
        };
        for command in [
            write(1, 0x12000, 0x5000, 64),
            write(2, 0x12000, 0x6000, 64),
            read,
            inline(4, 0x12000, 64),
        ] {
            assert!(world.nodes[0].post(1, &command, &[1; 64]));
        }
        world.run();
        for step in 0..moment {
            let now = world.now;
            let node = step % 2;
            if !world.nodes[node].board.dmas.is_empty() {
                world.nodes[node].end_dma(now, 0, true);
            }
            world.nodes[node].serve_host();
            world.run();
        }
        world.nodes[0].tell(close(1, 7));
        world.auto_dma = true;
        world.run();
        assert!(closed(&mut world, 0), "moment {moment}");
        // What the host still owes it answers late.
        world.hosts = true;
        world.run();
        while let Some(NicEvent::SourceMiss {
            staging, generation, ..
        }) = world.nodes[0].event(|event| matches!(event, NicEvent::SourceMiss { .. }))
        {
            world.nodes[0].tell(answer(staging, generation, SourceAnswer::Retry));
        }
        world.run();
        world.nodes[0].open(1, 8);
        world.nodes[0].map_if_missing(1, 0x5000, 9, true);
        world.nodes[0].fill(1, 0x5000, &[moment as u8; 64]);
        world.run();
        for op in 0..70 {
            assert!(world.nodes[0].post(1, &notify(write(op, 0x12000, 0x5000, 64), 3), &[]));
            world.run();
            world.pass(Nanos::from_millis(1));
        }
        assert_eq!(world.nodes[1].signals(1, 3), 70, "moment {moment}");
        assert_eq!(world.nodes[0].error(1), None);
        assert!(world.nodes[0].unmap_would_be_free(1, 0x5000));
    }
}

#[test]
fn wrong_host_events_are_refused() {
    let mut world = linked();
    let refused = world.nodes[0].counters().host_events_refused;
    let events = [
        close(1, 6),
        close(5, 7),
        close(500, 7),
        HostEvent::PortOpen {
            port: PortId(1),
            generation: Generation(9),
            counts_from: 0,
        },
        HostEvent::PortOpen {
            port: PortId(999),
            generation: Generation(9),
            counts_from: 0,
        },
        HostEvent::BounceEnded {
            bounce: BounceId(u32::MAX),
            generation: Generation(0),
            status: Status::Ok,
        },
        answer(StagingId(99), Generation(0), SourceAnswer::Retry),
        HostEvent::PeerReleased {
            peer: NodeId(50),
            incarnation: Incarnation(1),
        },
    ];
    for event in events {
        world.nodes[0].tell(event);
    }
    let nonsense = [77; 8];
    let node = &mut world.nodes[0];
    assert!(node.to_nic.push(&node.board.bar, &node.board.shared, &nonsense));
    world.run();
    assert_eq!(world.nodes[0].counters().host_events_refused - refused, 9);
}

#[test]
fn counters_are_told_every_32_and_at_fences() {
    let mut world = linked();
    for op in 0..40 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000, 8), &[1; 8]));
        world.run();
        let expected = if op >= 31 { 32 } else { 0 };
        assert_eq!(world.nodes[0].area_word(1, port_area::WRITES_DONE), expected);
        assert_eq!(world.nodes[0].area_word(1, port_area::TAKEN), expected);
    }
    world.nodes[0].board.interrupts.clear();
    // Reached already, not reached yet, and backwards.
    world.nodes[0].set_bar_word(1, bar_port::WRITE_FENCE, 38);
    assert!(
        world.nodes[0].nic.has_work(&world.nodes[0].board),
        "a fence is work"
    );
    world.run();
    assert_eq!(world.nodes[0].area_word(1, port_area::WRITES_DONE), 40);
    assert_eq!(world.nodes[0].board.interrupts, [Interrupt::Port(PortId(1))]);
    world.nodes[0].set_bar_word(1, bar_port::WRITE_FENCE, 42);
    world.run();
    assert_eq!(world.nodes[0].area_word(1, port_area::WRITES_DONE), 40);
    world.nodes[0].set_bar_word(1, bar_port::WRITE_FENCE, 41);
    world.run();
    assert!(world.nodes[0].post(1, &inline(50, 0x12000, 8), &[1; 8]));
    world.run();
    assert_eq!(world.nodes[0].area_word(1, port_area::WRITES_DONE), 41);
    world.nodes[0].set_bar_word(1, bar_port::TAKEN_FENCE, 41);
    world.run();
    assert_eq!(world.nodes[0].area_word(1, port_area::TAKEN), 41);
    assert!(!world.nodes[0].nic.has_work(&world.nodes[0].board));
}

/// An application looks at the shadow, asks, and sleeps. A shadow that was stored between may not have reached it when it
/// looked once more, so it is woken; and once, however often the card looks.
#[test]
fn a_fence_that_comes_too_late_wakes_all_the_same() {
    let mut world = linked();
    for op in 0..32 {
        assert!(world.nodes[0].post(1, &inline(op, 0x12000, 8), &[1; 8]));
    }
    world.run();
    let told = world.nodes[0].area_word(1, port_area::WRITES_DONE);
    assert_eq!(told, 32, "told, and not asked for");
    for (fence, wakes) in [(30, true), (30, false), (31, true), (40, false)] {
        let node = &mut world.nodes[0];
        node.board.interrupts.clear();
        node.set_bar_word(1, bar_port::WRITE_FENCE, fence);
        assert_eq!(
            node.nic.has_work(&node.board),
            wakes,
            "no sleep before it is seen"
        );
        world.run();
        let woken: &[Interrupt] = if wakes { &[Interrupt::Port(PortId(1))] } else { &[] };
        assert_eq!(world.nodes[0].board.interrupts, woken, "fence {fence}");
    }
}

/// The second look before a sleep goes by parts, each of which costs the same however many ports are open (promise P7).
#[test]
fn a_part_of_the_second_look_costs_the_same_among_ten_ports_and_among_six_hundred() {
    let longest = |ports: u16| {
        let wide = Geometry {
            ports: 1024,
            ..geometry(2)
        };
        let mut world = World::with(2, 0, wide, |_| {});
        let node = &mut world.nodes[0];
        for port in 1..=ports {
            node.open(port, 1);
            node.poll(Nanos(0));
        }
        node.poll(Nanos(0));
        let look = |node: &Node| {
            let (mut after, mut longest) = (None, 0);
            loop {
                let before = looks();
                let found = node.nic.find_work(&node.board, after, 4);
                longest = longest.max(looks() - before);
                match found {
                    Found::More(port) => after = Some(port),
                    found => return (found, longest),
                }
            }
        };
        let (found, longest) = look(node);
        assert_eq!(found, Found::Nothing);
        for port in [1, ports / 2, ports] {
            assert!(node.post(port, &inline(1, 0x12000, 8), &[1; 8]));
            assert_eq!(look(node).0, Found::Work, "port {port}");
            node.poll(Nanos(0));
        }
        longest
    };
    assert_eq!(longest(10), longest(600));
}

#[test]
fn event_counts_share_one_entry_until_it_is_taken() {
    let mut world = linked();
    let signal = |world: &mut World, id: u32| {
        assert!(world.nodes[0].post(1, &notify(write(1, 0, 0, 0), id), &[]));
        world.run();
        world.pass(Nanos::from_millis(1));
    };
    for _ in 0..3 {
        signal(&mut world, 5);
    }
    signal(&mut world, 1023);
    assert_eq!(world.nodes[1].signals(1, 5), 3);
    assert_eq!(world.nodes[1].bar_word(1, bar_port::SIGNALLED.plus(5)), 3);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE), 2);
    assert_eq!(world.nodes[1].counters().notifications_coalesced, 2);
    assert!(
        world.nodes[1]
            .board
            .interrupts
            .iter()
            .all(|&whom| whom == Interrupt::Driver)
    );
    world.nodes[1].set_bar_word(1, bar_port::NOTIFICATION_READ, 1);
    signal(&mut world, 5);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE), 3);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATIONS.plus(2)), 5);
    // Interrupts: for one number, for any entry.
    let port = Interrupt::Port(PortId(1));
    world.nodes[1].set_bar_word(1, bar_port::INTERRUPT_ENABLE, 1 << 5);
    signal(&mut world, 5);
    assert_eq!(
        world.nodes[1]
            .board
            .interrupts
            .iter()
            .filter(|&&w| w == port)
            .count(),
        1
    );
    world.nodes[1].set_bar_word(1, bar_port::WAKE_ON_QUEUE, 1);
    signal(&mut world, 1023);
    assert_eq!(
        world.nodes[1]
            .board
            .interrupts
            .iter()
            .filter(|&&w| w == port)
            .count(),
        1
    );
    signal(&mut world, 9);
    assert_eq!(
        world.nodes[1]
            .board
            .interrupts
            .iter()
            .filter(|&&w| w == port)
            .count(),
        2
    );
    // A read word that cannot be changes nothing.
    world.nodes[1].set_bar_word(1, bar_port::NOTIFICATION_READ, 5000);
    signal(&mut world, 9);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE), 4);
}

#[test]
fn one_shots_come_in_order_and_a_full_queue_refuses() {
    let mut world = linked();
    // Many event counts do not take the room of one-shot ones.
    for id in (1..1024).chain(2000..3024) {
        while !world.nodes[0].post(1, &notify(write(id, 0, 0, 0), id), &[]) {
            world.run();
            world.pass(Nanos::from_millis(1));
        }
    }
    world.run();
    world.pass(Nanos::from_millis(1));
    assert_eq!(
        world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE),
        1023 + 1024
    );
    for (at, id) in (2000..3024).enumerate() {
        let word = port_area::NOTIFICATIONS.plus(1023 + at as u32);
        assert_eq!(world.nodes[1].area_word(1, word), id);
    }
    assert_eq!(world.nodes[0].error(1), None);
    assert!(world.nodes[0].post(1, &notify(write(7, 0, 0, 0), 9999), &[]));
    world.run();
    assert_eq!(world.nodes[0].error(1).unwrap().status, Status::QueueFull);
    assert_eq!(world.nodes[1].counters().one_shot_refused, 1);
    // Room again, epoch raised.
    world.nodes[1].set_bar_word(1, bar_port::NOTIFICATION_READ, 1024);
    let mut command = notify(write(8, 0, 0, 0), 9999);
    command.epoch.0 = 1;
    assert!(world.nodes[0].post(1, &command, &[]));
    world.run();
    assert_eq!(world.nodes[1].counters().one_shot_delivered, 1025);
}
