//! Every counter is driven above zero: by the scenario that its row of the table names. A counter
//! without a row fails.

use netvm_abi::atomic::AtomicResult;
use netvm_abi::bar::port as bar_port;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{AtomicAnswer, HostEvent, NicEvent, SourceAnswer};
use netvm_abi::wire::{Body, Header, Kind, ReadTicket};
use netvm_abi::*;
use netvm_kit::nic::*;
use netvm_nic::platform::DmaId;
use netvm_nic::{Config, Counters};

type Scenario = fn() -> Vec<Counters>;

/// Scenario, and the counters that it must move.
const TABLE: &[(Scenario, &str)] = &[
    (
        traffic,
        "commands messages_sent bytes_sent inline_sent staged_sent reads_sent flushes_sent receipts_awaited frames \
         messages_received messages_landed bytes_received zero_copy bounced_not_found bounces_ended \
         ordered_parked reads_served read_replies flush_replies flushes_served source_misses \
         source_retries acks_sent acks_received notifications_delivered notifications_coalesced \
         one_shot_delivered port_interrupts driver_interrupts fences dma_started ports_opened hellos_sent \
         links_up peer_resets greetings control_sent control_received barriers ports_closed",
    ),
    (
        refusals,
        "commands_refused commands_failed broken_doorbells messages_failed refused_port \
         refused_capability refused_range refused_mode refused_expired refused_malformed errors_sent \
         errors_received error_records errors_lost streams_poisoned notifications_suppressed \
         bounced_read_only bounced_segment failed one_shot_refused",
    ),
    (leases, "leases_begun leases_extended"),
    (order_by_port, "links_held_up"),
    (slow_way, "windows_cut"),
    (
        atomics,
        "atomics_sent atomics_served atomics_queued atomics_missed atomic_replays atomics_by_host \
         atomic_replies atomics_in_place",
    ),
    (reached, "reached"),
    (
        shared_queue,
        "appends appends_refused appends_held ordered_held commands_held places_skipped",
    ),
    (stalls, "credit_stalls staging_stalls read_stalls dma_parked"),
    (
        links,
        "malformed stale_incarnation stale_greetings duplicates out_of_window acks_refused probes_sent \
         probes_received links_lost dropped hellos_refused late_replies late_answers",
    ),
    (losses, "retransmitted tail_probes put_off"),
    (
        few_windows,
        "window_stalls windows_refused windows_moved windows_called",
    ),
    (all_at_once, "answers_unkept"),
    (
        accidents,
        "dma_late dma_failed source_copies source_failures host_events_refused events_lost",
    ),
];

/// A queue of two places: one that cannot be filled, one that is, and no third. Then what asks for order behind the
/// refusal, and behind a write that never leaves.
fn shared_queue() -> Vec<Counters> {
    let mut world = World::connected(2, 0);
    let queue = Capability {
        modes: Modes::APPEND,
        end: VirtAddr(0x10000 + 1024),
        queue: netvm_abi::shared_queue::QueueShape { entry: 9, number: 5 },
        ..capability(0)
    };
    world.nodes[1].grant(3, &queue);
    for (op, epoch) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        let command = Command {
            flags: CommandFlags::INLINE | CommandFlags::APPEND,
            epoch: Epoch(epoch),
            ..write(op, 0, 0, 8)
        };
        assert!(world.nodes[0].post(1, &command, &[1; 8]));
        if op == 2 {
            let behind = Command {
                flags: CommandFlags::INLINE | CommandFlags::ORDERED,
                ..write(5, 0x12000, 0, 8)
            };
            post(&mut world, behind);
        }
        world.run();
        if let Some(NicEvent::Bounced { bounce, generation }) =
            world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
        {
            let status = if op == 1 { Status::NoMemory } else { Status::Ok };
            world.nodes[1].tell(HostEvent::BounceEnded {
                bounce,
                generation,
                status,
            });
            world.run();
        }
    }
    for (local, epoch) in [(1 << 60, 2), (0, 2)] {
        let mut command = Command {
            epoch: Epoch(epoch),
            ..write(5, 0x12000, local, 8)
        };
        if local == 0 {
            command.flags = CommandFlags::INLINE | CommandFlags::ORDERED;
        }
        post(&mut world, command);
        world.run();
    }
    counters(&world)
}

/// Five nodes that write to one another at once, each with one window besides its own.
fn few_windows() -> Vec<Counters> {
    let geometry = Geometry {
        windows: 2,
        ..geometry(5)
    };
    let mut world = World::connect(World::with(5, 1, geometry, |_| {}));
    for node in &mut world.nodes {
        for writer in 0..5 {
            node.grant(u32::from(writer), &capability(writer));
        }
        node.map(1, 0x12000, 5, true);
    }
    for op in 0..40 {
        for from in 0..5u16 {
            let command = Command {
                node: NodeId((from + 1 + op % 4) % 5),
                capability: CapabilitySlot(from.into()),
                ..inline(op.into(), 0x12000, 8)
            };
            assert!(world.nodes[usize::from(from)].post(1, &command, &[1; 8]));
        }
    }
    world.pass(Nanos::from_millis(5_000));
    counters(&world)
}

/// A write whose frame is lost, and failures whose word is lost so long that there are more than may be kept.
fn losses() -> Vec<Counters> {
    let mut world = World::connect(World::new(2, 0).lossy());
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    let mut first = true;
    world.lost = Box::new(move |_| std::mem::take(&mut first));
    post(
        &mut world,
        Command {
            flags: CommandFlags::INLINE,
            ..write(1, 0x12000, 0, 8)
        },
    );
    world.pass(Nanos::from_millis(50));
    world.lost = Box::new(|message| message.header.kind == netvm_abi::wire::Kind::Error);
    for op in 2..150 {
        let command = Command {
            flags: CommandFlags::INLINE,
            ..write(op, 0x90000, 0, 8)
        };
        // Some find the queue full at last.
        world.nodes[0].post(1, &command, &[1; 8]);
        world.run();
    }
    world.pass(Nanos::from_millis(5));
    counters(&world)
}

/// A way that takes long with one message, and no less with more.
fn slow_way() -> Vec<Counters> {
    let mut slow = Slow::new(2);
    for took in [10, 10, 400, 400] {
        slow.fill();
        slow.round(Nanos::from_micros(took));
    }
    counters(&slow.world)
}

/// Six nodes whose requests wait for a write of their port each and are then answered all at once: more answers than there are copies.
fn all_at_once() -> Vec<Counters> {
    let geometry = Geometry {
        window: 256,
        reads: 256,
        ..geometry(7)
    };
    let mut world = World::connect(World::with(7, 0, geometry, |_| {}).lossy());
    for sender in [0, 2, 3, 4, 5, 6] {
        let node = usize::from(sender);
        for port in 2..6 {
            let slot = u32::from(sender * 8 + port);
            let grant = Capability {
                holder_port: PortId(port),
                ..capability(sender)
            };
            world.nodes[1].grant(slot, &grant);
            world.nodes[node].open(port, 7);
            let to = |op| Command {
                capability: CapabilitySlot(slot),
                ..write(op, 0x12000, 0, 0)
            };
            let first = Command {
                flags: CommandFlags::INLINE,
                len: ByteLen(8),
                ..to(1)
            };
            assert!(world.nodes[node].post(port, &first, &[1; 8]));
            world.run();
            for op in 1..=50 {
                let flush = Command {
                    opcode: Opcode::FlushRemote,
                    reply: ReplySlot(op as u16),
                    ..to(op)
                };
                assert!(world.nodes[node].post(port, &flush, &[]));
                // Time for acknowledgements, which make room on the wire.
                world.pass(Nanos::from_micros(200));
            }
        }
    }
    world.lost = Box::new(|message| message.header.kind == Kind::Ack);
    world.hosts = true;
    world.pass(Nanos::from_millis(5));
    counters(&world)
}

/// A page that the table lacks, and that the platform reaches.
fn reached() -> Vec<Counters> {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    let vpn = Vpn::of(PortId(1), VirtAddr(0x12000));
    world.nodes[1].board.reached.insert(vpn.raw(), vec![0; PAGE]);
    post(&mut world, inline(1, 0x12000, 8));
    world.run();
    counters(&world)
}

fn counters(world: &World) -> Vec<Counters> {
    world.nodes.iter().map(Node::counters).collect()
}

fn linked() -> World {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world
}

fn post(world: &mut World, command: Command) {
    assert!(world.nodes[0].post(1, &command, &[5; 128]));
}

fn traffic() -> Vec<Counters> {
    let mut world = linked();
    world.nodes[1].set_bar_word(1, bar_port::INTERRUPT_ENABLE, 1 << 5);
    post(&mut world, notify(inline(1, 0x13000, 8), 5));
    let mut ordered = notify(inline(2, 0x12000, 8), 5);
    ordered.flags |= CommandFlags::ORDERED;
    post(&mut world, ordered);
    post(&mut world, notify(write(3, 0x12000, 0x5000, 100), 5000));
    post(
        &mut world,
        Command {
            opcode: Opcode::Read,
            ..write(4, 0x12000, 0x6000, 100)
        },
    );
    post(
        &mut world,
        Command {
            opcode: Opcode::FlushRemote,
            ..write(5, 0, 0, 0)
        },
    );
    post(
        &mut world,
        Command {
            opcode: Opcode::FlushReceived,
            ..write(6, 0, 0, 0)
        },
    );
    world.nodes[0].set_bar_word(1, bar_port::WRITE_FENCE, 3);
    world.run();
    world.hosts = true;
    world.nodes[0].tell(HostEvent::SendControl {
        peer: NodeId(1),
        slot: 0,
        token: Token(1),
    });
    world.nodes[0].tell(HostEvent::Barrier { token: Token(1) });
    world.run();
    world.pass(Nanos::from_millis(1));
    world.nodes[0].tell(HostEvent::PortClose {
        port: PortId(1),
        generation: Generation(7),
    });
    world.run();
    counters(&world)
}

fn order_by_port() -> Vec<Counters> {
    let mut world = linked();
    world.nodes[1].map(1, 0x12000, 5, true);
    post(&mut world, inline(1, 0x13000, 8));
    post(&mut world, inline(2, 0x12000, 8));
    world.run();
    counters(&world)
}

fn leases() -> Vec<Counters> {
    let mut world = linked();
    world.nodes[1].lend(6, &capability(0), 5, (1_000_000, 2_000_000));
    world.nodes[1].begin_lease(6, 5);
    world.run();
    let extension = Command {
        opcode: Opcode::ExtendLease,
        capability: CapabilitySlot(6),
        operand: 1_000_000,
        compare: 5,
        reply: ReplySlot(0),
        op: OpId(1),
        ..inline(1, 0x12000, 8)
    };
    let extension = Command {
        flags: CommandFlags::empty(),
        len: ByteLen(0),
        ..extension
    };
    post(&mut world, extension);
    world.run();
    counters(&world)
}

fn refusals() -> Vec<Counters> {
    let mut world = linked();
    world.nodes[1].map(1, 0x14000, 5, false);
    world.nodes[1].map(1, 0x15000, 6, true);
    world.nodes[1].grant(
        4,
        &Capability {
            modes: Modes::READ,
            ..capability(0)
        },
    );
    world.nodes[1].grant(
        5,
        &Capability {
            expires: Nanos(1),
            ..capability(0)
        },
    );
    let good = notify(inline(1, 0x12000, 8), 5);
    for command in [
        Command {
            port: PortId(3),
            ..good
        },
        Command { secret: 0, ..good },
        Command {
            remote: VirtAddr(0x30000),
            ..good
        },
        Command {
            capability: CapabilitySlot(4),
            ..good
        },
        Command {
            capability: CapabilitySlot(5),
            ..good
        },
        Command {
            opcode: Opcode::Swap,
            ..good
        },
        Command {
            remote: VirtAddr(0x14000),
            ..good
        },
        Command {
            remote: VirtAddr(0x15000),
            ..good
        },
        Command {
            remote: VirtAddr(0x16000),
            ..good
        },
        good,
    ] {
        post(&mut world, command);
        world.run();
    }
    // A bounced write that the host cannot finish, and a read that makes no sense at the other end.
    while let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    {
        world.nodes[1].tell(HostEvent::BounceEnded {
            bounce,
            generation,
            status: Status::NoMemory,
        });
    }
    world.run();
    for _ in 0..40 {
        post(
            &mut world,
            Command {
                node: NodeId(77),
                ..good
            },
        );
        world.run();
    }
    let body = Body::ReadRequest {
        ticket: ReadTicket::default(),
        len: 5000,
    };
    let ask = Header::of(body, NodeId(1), NodeId(0));
    forge(&mut world, ask);
    for id in 0..1030 {
        let mut command = notify(write(id, 0, 0, 0), 2000);
        command.epoch.0 = 1;
        post(&mut world, command);
        world.run();
    }
    world.nodes[0].set_bar_word(1, bar_port::DOORBELL, 0x7000_0000);
    world.run();
    counters(&world)
}

fn atomics() -> Vec<Counters> {
    let mut world = linked();
    let mut all = capability(0);
    all.modes |= Modes::ATOMIC;
    world.nodes[1].grant(3, &all);
    let add = |op, remote| Command {
        opcode: Opcode::FetchAdd,
        operand: 1,
        ..write(op, remote, 0, 0)
    };
    post(&mut world, add(1, 0x12000));
    post(&mut world, add(2, 0x12000));
    world.run();
    world.nodes[1].board.in_place = true;
    post(&mut world, add(5, 0x12000));
    world.run();
    world.nodes[1].board.in_place = false;
    post(&mut world, add(3, 0x17000));
    post(&mut world, add(4, 0x17000));
    world.run();
    for answer in [AtomicAnswer::Retry, AtomicAnswer::Done(AtomicResult::default())] {
        let Some(NicEvent::AtomicMiss {
            bounce, generation, ..
        }) = world.nodes[1].event(|event| matches!(event, NicEvent::AtomicMiss { .. }))
        else {
            panic!("no miss");
        };
        world.nodes[1].tell(HostEvent::AtomicAnswer {
            bounce,
            generation,
            answer,
        });
        world.run();
    }
    counters(&world)
}

/// A message from node 1 to node 0 in the present life of the link, with the next sequence number.
fn forge(world: &mut World, header: Header) {
    let mut probe = inline(1, 0x12000, 8);
    probe.node = NodeId(0);
    world.nodes[0].grant(3, &capability(1));
    assert!(world.nodes[1].post(1, &probe, &[0; 8]));
    world.nodes[1].poll(world.now);
    let honest = world.nodes[1].board.outbox.pop_back().unwrap().header;
    let mut header = header;
    header.source_incarnation = honest.source_incarnation;
    header.destination_incarnation = honest.destination_incarnation;
    header.seq = honest.seq;
    header.source_port = PortId(1);
    header.destination_port = PortId(1);
    let now = world.now;
    world.nodes[0].deliver(
        now,
        &Message {
            header,
            payload: Vec::new(),
        },
    );
    world.run();
}

fn stalls() -> Vec<Counters> {
    let mut world = World::connected(3, 0);
    world.auto_dma = false;
    for sender in [0u16, 2] {
        world.nodes[1].grant(3 + u32::from(sender), &capability(sender));
        for op in 0..33 {
            let mut command = inline(op, 0x12000, 8);
            command.capability.0 = 3 + u32::from(sender);
            assert!(world.nodes[usize::from(sender)].post(1, &command, &[1; 8]));
        }
        world.run();
    }
    world.nodes[2].open(2, 1);
    let mut other = capability(2);
    other.holder_port.0 = 2;
    world.nodes[1].grant(9, &other);
    let mut command = inline(1, 0x12000, 8);
    command.capability.0 = 9;
    assert!(world.nodes[2].post(2, &command, &[1; 8]));
    world.run();
    world.auto_dma = true;
    world.hosts = true;
    world.run();
    world.pass(Nanos::from_millis(1));
    world.hosts = false;
    for op in 0..10 {
        let at = 0x50000 + u64::from(op) * 0x1000;
        post(
            &mut world,
            Command {
                opcode: Opcode::Read,
                ..write(op, 0x13000, at, 8)
            },
        );
    }
    world.run();
    world.hosts = true;
    world.run();
    world.pass(Nanos::from_millis(1));
    world.hosts = false;
    for op in 0..10 {
        post(
            &mut world,
            write(op, 0x12000, 0x90000 + u64::from(op) * 0x1000, 8),
        );
    }
    world.run();
    counters(&world)
}

fn links() -> Vec<Counters> {
    let mut world = linked();
    post(&mut world, inline(1, 0x15000, 8));
    world.nodes[0].poll(world.now);
    let message = world.nodes[0].board.outbox[0].clone();
    world.run();
    let now = world.now;
    let mut wrong = message.clone();
    world.nodes[1].deliver(now, &message);
    wrong.header.seq = wrong.header.seq.plus(500);
    world.nodes[1].deliver(now, &wrong);
    wrong.header.kind = Kind::Ack;
    world.nodes[1].deliver(now, &wrong);
    wrong.header.kind = Kind::FlushReply;
    world.nodes[1].deliver(now, &wrong);
    world.nodes[1].deliver_bytes(now, b"no message");
    wrong.header.source_incarnation.0 ^= 1;
    world.nodes[1].deliver(now, &wrong);
    wrong.header.kind = Kind::Bye;
    world.nodes[1].deliver(now, &wrong);
    wrong.header.kind = Kind::Hello;
    world.nodes[1].deliver(now, &wrong);
    // The bounced write is not ended: the sender asks whether we live.
    world.run();
    world.pass(Nanos::from_millis(1000));
    let Some(NicEvent::Bounced { bounce, generation }) =
        world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. }))
    else {
        panic!("nothing bounced");
    };
    // A new life of node 0.
    let config = *world.nodes[0].nic.config();
    let before = world.nodes[0].counters();
    world.nodes[0] = Node::new(Config {
        incarnation_seed: 0xABCD,
        ..config
    });
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(1) });
    world.run();
    world.pass(Nanos::from_millis(100));
    for _ in 0..2 {
        world.nodes[1].tell(HostEvent::BounceEnded {
            bounce,
            generation,
            status: Status::Ok,
        });
    }
    world.run();
    let mut all = counters(&world);
    all.push(before);
    all
}

fn accidents() -> Vec<Counters> {
    let mut world = linked();
    world.auto_dma = false;
    post(&mut world, inline(1, 0x12000, 8));
    world.run();
    let now = world.now;
    world.nodes[1].end_dma(now, 0, false);
    let Node { nic, board, .. } = &mut world.nodes[1];
    nic.handle_dma_done(
        board,
        now,
        DmaId {
            slot: 3,
            generation: 9,
        },
        true,
    );
    world.auto_dma = true;
    for status in [None, Some(Status::Unmapped)] {
        post(&mut world, write(2, 0x12000, 0x9000, 8));
        world.run();
        let Some(NicEvent::SourceMiss {
            staging, generation, ..
        }) = world.nodes[0].event(|event| matches!(event, NicEvent::SourceMiss { .. }))
        else {
            panic!("no source miss");
        };
        let id = bounce::BounceUse::Source(staging).id(&world.nodes[0].board.geometry);
        world.nodes[0].board.bounce.insert(id.0, vec![1; 8]);
        let how = status.map_or(SourceAnswer::Copied, SourceAnswer::Failed);
        world.nodes[0].tell(answer(staging, generation, how));
        world.run();
    }
    // A host that does not look at its ring, and asks for more than it may.
    for token in 0..3000 {
        let node = &mut world.nodes[0];
        node.tell(HostEvent::SendControl {
            peer: NodeId(99),
            slot: 0,
            token: Token(token),
        });
        node.nic.handle_host_events(&mut node.board, now, 16);
    }
    world.nodes[0].tell(HostEvent::PeerReleased {
        peer: NodeId(99),
        incarnation: Incarnation(1),
    });
    world.run();
    counters(&world)
}

#[test]
fn every_counter_moves_where_the_table_says() {
    let mut named = Vec::new();
    for (scenario, names) in TABLE {
        let nodes = scenario();
        for name in names.split_whitespace() {
            named.push(name);
            let sum: u64 = nodes
                .iter()
                .flat_map(Counters::iter)
                .filter(|(found, _)| *found == name)
                .map(|(_, value)| value)
                .sum();
            assert!(sum > 0, "{name} stays at zero");
        }
    }
    for name in Counters::NAMES {
        let rows = named.iter().filter(|row| *row == name).count();
        assert_eq!(rows, 1, "rows for '{name}'");
    }
    assert_eq!(
        named.len(),
        Counters::NAMES.len(),
        "a row for a counter that is not there"
    );
}

#[test]
fn a_good_link_drops_nothing() {
    for node in traffic() {
        assert_eq!(node.dropped, 0);
        assert_eq!(node.retransmitted, 0);
        assert_eq!(node.events_lost, 0);
    }
}
