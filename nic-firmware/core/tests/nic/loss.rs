//! Frames are lost, repeated and reordered: whatever was posted happens once, in its order, and no link is lost.

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::{Kind, RawHeader, Received};
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;
use netvm_nic::{Config, Timers};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const COUNTER: u64 = 0x12008;

/// Two linked nodes over wires that may lose frames; node 0 may do anything to a page of node 1.
fn linked(seed: u64) -> World {
    streaming(World::new(2, seed))
}

fn streaming(world: World) -> World {
    let mut world = World::connect(world.lossy());
    let all = Capability {
        modes: Modes::all(),
        ..capability(0)
    };
    world.nodes[1].grant(3, &all);
    for page in 0..4 {
        world.nodes[1].map(1, 0x10000 + page * 0x1000, 5, true);
    }
    world.hosts = true;
    world
}

fn round_trip(opcode: Opcode, op: u32) -> Command {
    Command {
        opcode,
        reply: ReplySlot(op as u16 % 64),
        ..write(op, COUNTER, 0, 0)
    }
}

fn reply(node: &Node, op: u32) -> Option<Reply> {
    let area = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, area, AREA_WORDS);
    Reply::load(&area, op as u16 % 64, OpId(op))
}

/// What a run has posted, by operation.
#[derive(Default)]
struct Posted {
    writes: Vec<(u64, [u8; 8])>,
    signals: u32,
    adds: u64,
    round_trips: Vec<u32>,
}

/// Traffic of all kinds over wires that lose `loss` of 1,000 frames and double as many.
fn run(seed: u64, loss: u32) {
    let mut world = linked(seed);
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let mut fates = ChaCha8Rng::seed_from_u64(seed ^ 0x1055);
    world.lost = Box::new(move |_| fates.random_range(0..1000) < loss);
    let mut doubles = ChaCha8Rng::seed_from_u64(seed ^ 0xD0B1);
    world.doubled = Box::new(move |_| doubles.random_range(0..1000) < loss);
    let mut posted = Posted::default();
    for op in 1..=300u32 {
        let cell = u64::from(op) * 8;
        let value = (u64::from(op) << 32 | seed).to_le_bytes();
        let (address, local) = (0x10000 + cell, 0x40000 + cell);
        let command = match dice.random_range(0..10) {
            0..=3 => {
                posted.writes.push((address, value));
                inline(op, address, 8)
            }
            4..=6 => {
                posted.writes.push((address, value));
                world.nodes[0].fill(1, local, &value);
                write(op, address, local, 8)
            }
            7 => {
                posted.adds += 1;
                posted.round_trips.push(op);
                Command {
                    operand: 1,
                    ..round_trip(Opcode::FetchAdd, op)
                }
            }
            8 => {
                posted.round_trips.push(op);
                Command {
                    opcode: Opcode::Read,
                    reply: ReplySlot(op as u16 % 64),
                    ..write(op, 0x13000, 0x60000, 64)
                }
            }
            _ => {
                posted.round_trips.push(op);
                round_trip(Opcode::FlushRemote, op)
            }
        };
        let command = if command.opcode == Opcode::Write && dice.random_bool(0.4) {
            posted.signals += 1;
            notify(command, 10)
        } else {
            command
        };
        let mut tries = 0;
        while !world.nodes[0].post(1, &command, &value) {
            world.pass(Nanos::from_micros(100));
            tries += 1;
            assert!(tries < 100_000, "op {op} finds no room");
        }
        for _ in 0..dice.random_range(0..6) {
            world.step();
        }
        if command.opcode != Opcode::Write && dice.random_bool(0.2) {
            let mut waits = 0;
            while reply(&world.nodes[0], op).is_none() {
                world.pass(Nanos::from_micros(100));
                waits += 1;
                assert!(waits < 100_000, "op {op} has no answer");
            }
        }
    }
    world.pass(Nanos::from_millis(3_000));
    for (address, value) in &posted.writes {
        assert_eq!(world.nodes[1].memory(1, *address, 8), value, "at {address:#x}");
    }
    let counter = world.nodes[1].memory(1, COUNTER, 4);
    assert_eq!(
        u32::from_le_bytes(counter.try_into().unwrap()),
        posted.adds as u32,
        "each add once"
    );
    assert_eq!(world.nodes[1].signals(1, 10), posted.signals, "each signal once");
    // A reply slot keeps its last answer.
    for op in posted.round_trips.iter().filter(|&&op| op > 300 - 64) {
        let reply = reply(&world.nodes[0], *op);
        assert!(
            reply.is_some_and(|reply| reply.status == Status::Ok),
            "{op}: {reply:?}"
        );
    }
    assert_eq!(world.nodes[0].error(1), None);
    let mut sent_again = 0;
    for node in &world.nodes {
        let counters = node.counters();
        assert_eq!((counters.links_lost, counters.dropped), (0, 0));
        sent_again += counters.retransmitted;
        for (what, count) in node.nic.census() {
            let allowed = u32::from(what == "open_ports");
            assert_eq!(count, allowed, "node {} still holds {what}", node.id);
        }
        assert!(node.board.receive.is_empty() && node.board.dmas.is_empty());
    }
    assert!(loss == 0 || sent_again > 0, "nothing was sent again");
}

#[test]
fn whatever_is_lost_happens_once_and_in_order() {
    for (loss, seeds) in [(1, 10), (10, 15), (50, 20), (300, 20)] {
        for seed in 1..=seeds {
            run(seed, loss);
        }
    }
}

#[test]
fn where_nothing_is_lost_nothing_is_sent_again() {
    let mut world = linked(0);
    for op in 1..=200 {
        while !world.nodes[0].post(1, &inline(op, 0x10000, 8), &[7; 8]) {
            world.run();
        }
    }
    world.pass(Nanos::from_millis(500));
    for node in &world.nodes {
        assert_eq!(
            (node.counters().retransmitted, node.counters().duplicates),
            (0, 0)
        );
    }
}

/// One message is lost, others follow: the acknowledgement of those that follow tells. No timer has to.
#[test]
fn a_loss_is_found_by_what_follows() {
    let mut world = linked(0);
    // The round trip is known.
    for op in 1..=4 {
        assert!(world.nodes[0].post(1, &inline(op, 0x10000, 8), &[7; 8]));
        world.pass(Nanos::from_millis(1));
    }
    let asked = world.nodes[0].counters().tail_probes;
    let mut first = true;
    world.lost = Box::new(move |message| message.header.kind == Kind::Write && std::mem::take(&mut first));
    assert!(world.nodes[0].post(1, &inline(5, 0x10008, 8), &[8; 8]));
    world.run();
    let lost_at = world.now;
    world.now = world.now.after(Nanos::from_micros(20));
    assert!(world.nodes[0].post(1, &inline(6, 0x10010, 8), &[9; 8]));
    world.run();
    assert_eq!(world.nodes[1].memory(1, 0x10008, 8), [8; 8]);
    assert!(world.now < lost_at.after(Nanos::from_micros(100)));
    assert_eq!(world.nodes[0].counters().tail_probes, asked);
    assert_eq!(world.nodes[0].counters().retransmitted, 1);
}

/// Nothing follows the message that is lost, and round trips are short: its sender asks, instead of waiting for an
/// acknowledgement that may only be delayed. Where one is only delayed, nothing leaves twice.
#[test]
fn a_lost_tail_is_found_before_an_acknowledgement_is_due() {
    let mut world = linked(0);
    for op in 1..=4 {
        assert!(world.nodes[0].post(1, &inline(op, 0x10000, 8), &[7; 8]));
        world.pass(Nanos::from_millis(1));
    }
    assert_eq!(world.nodes[0].counters().retransmitted, 0);
    let mut first = true;
    world.lost = Box::new(move |message| message.header.kind == Kind::Write && std::mem::take(&mut first));
    assert!(world.nodes[0].post(1, &inline(5, 0x10008, 8), &[8; 8]));
    world.run();
    let delay = world.nodes[0].nic.config().timers.ack_delay;
    world.pass(Nanos(delay.0 / 2));
    assert_eq!(world.nodes[1].memory(1, 0x10008, 8), [8; 8]);
    assert_eq!(world.nodes[0].counters().retransmitted, 1);
    world.pass(Nanos::from_millis(500));
    assert_eq!(world.nodes[1].counters().duplicates, 0);
}

/// Everything has been received, and the one acknowledgement that gives the credits back is lost: they are asked for in
/// time, and not only when the card looks whether its peer lives.
#[test]
fn credits_whose_word_is_lost_are_asked_for() {
    let mut world = linked(0);
    for op in 1..=4 {
        assert!(world.nodes[0].post(1, &inline(op, 0x10000, 8), &[7; 8]));
        world.pass(Nanos::from_millis(1));
    }
    let begin = world.now;
    world.hosts = false;
    // The page is not there: what is received has not landed.
    assert!(world.nodes[0].post(1, &inline(5, 0x15000, 8), &[7; 8]));
    world.pass(Nanos::from_millis(1));
    let mut acks = 1;
    world.lost = Box::new(move |message| {
        let lost = message.header.kind == Kind::Ack && message.header.source == NodeId(1) && acks > 0;
        acks -= i32::from(lost);
        lost
    });
    world.hosts = true;
    world.pass(Nanos::from_millis(10));
    assert!(world.now < begin.after(Timers::default().probe_interval));
    let Node { nic, board, .. } = &mut world.nodes[0];
    nic.publish_windows(board);
    let at = netvm_abi::shared_map::status_page::peer_windows(NodeId(1));
    let word = |word| netvm_abi::words::SharedWords::load_acquire(&*board.shared, at.plus(word));
    assert_eq!(word(0), word(1), "every number is acknowledged");
}

#[test]
fn a_lost_tail_is_found_by_time() {
    let mut world = linked(0);
    let mut first = true;
    world.lost = Box::new(move |message| message.header.kind == Kind::Write && std::mem::take(&mut first));
    assert!(world.nodes[0].post(1, &inline(1, 0x10008, 8), &[8; 8]));
    world.pass(Nanos::from_millis(5));
    assert_eq!(world.nodes[1].memory(1, 0x10008, 8), [8; 8]);
    assert_eq!(world.nodes[0].counters().tail_probes, 1);
}

/// A wire that takes everything: the link is lost, in time, and nothing is left.
#[test]
fn a_peer_that_hears_nothing_is_lost() {
    let mut world = linked(0);
    world.lost = Box::new(|_| true);
    world.nodes[0].fill(1, 0x40000, &[1; 64]);
    assert!(world.nodes[0].post(1, &write(1, 0x10000, 0x40000, 64), &[]));
    assert!(world.nodes[0].post(1, &round_trip(Opcode::FlushRemote, 2), &[]));
    world.pass(Timers::default().loss_bound());
    assert_eq!(world.nodes[0].counters().links_lost, 1);
    assert_eq!(
        world.nodes[0].error(1).map(|error| error.status),
        Some(Status::LinkLost)
    );
    assert_eq!(
        reply(&world.nodes[0], 2).map(|reply| reply.status),
        Some(Status::LinkLost)
    );
    for (what, count) in world.nodes[0].nic.census() {
        assert_eq!(count, u32::from(what == "open_ports"), "{what}");
    }
}

/// Word of a failure is lost as often as the wire likes: its port hears of it once.
#[test]
fn word_of_a_failure_comes_through() {
    let mut world = linked(0);
    let mut left = 3;
    world.lost = Box::new(move |message| {
        let lost = message.header.kind == Kind::Error && left > 0;
        left -= i32::from(lost);
        lost
    });
    world.doubled = Box::new(|message| message.header.kind == Kind::Error);
    assert!(world.nodes[0].post(1, &inline(1, 0x90000, 8), &[8; 8]));
    world.pass(Nanos::from_millis(200));
    let error = world.nodes[0].error(1).expect("its port hears");
    assert_eq!((error.status, error.op), (Status::OutOfRange, OpId(1)));
    assert_eq!(world.nodes[0].error(1), None, "once");
}

/// An acknowledgement of what was never sent, of nonsense, or of another time changes nothing.
#[test]
fn receipts_that_no_honest_card_sends_are_ignored() {
    use netvm_abi::wire::{Body, Header, Receipt, Received};
    let mut world = linked(0);
    world.lost = Box::new(|message| message.header.kind == Kind::Write);
    assert!(world.nodes[0].post(1, &inline(1, 0x10000, 8), &[8; 8]));
    world.run();
    let sent = *world.nodes[0].nic.counters();
    let of_link = world.nodes[1].board.outbox.front().map(|message| message.header);
    assert_eq!(of_link.map(|header| header.kind), None);
    let numbers = [5u32, 1 << 31, u32::MAX];
    for (next, from) in numbers
        .into_iter()
        .flat_map(|next| numbers.map(|from| (next, from)))
    {
        for beyond in [0, u64::MAX] {
            let received = Received {
                next: Seq(next),
                from: Seq(from),
                beyond,
            };
            let mut ack = Header::of(Body::Ack, NodeId(1), NodeId(0));
            (ack.source_incarnation, ack.destination_incarnation) = (Incarnation(1), Incarnation(2));
            ack.set_receipt(&Receipt {
                requests: received,
                ended: next as u16,
                answers: received,
                echo: Stamp(next),
                held: next,
                repeats: next,
            });
            world.nodes[0].deliver_bytes(world.now, &ack.encode());
        }
    }
    world.lost = Box::new(|_| false);
    world.pass(Nanos::from_millis(20));
    assert_eq!(world.nodes[1].memory(1, 0x10000, 8), [8; 8]);
    assert_eq!(world.nodes[0].counters().links_lost, sent.links_lost);
}

/// As many reads under way as a card has slots, all the time: each lost answer is followed by many. One that is lost again
/// and again must not have later ones leave without a copy.
#[test]
fn a_stream_of_reads_loses_no_link() {
    let geometry = Geometry {
        reads: 64,
        staging: 64,
        ..geometry(2)
    };
    let mut put_off = 0;
    for (loss, seeds) in [(10, 6), (50, 6), (300, 6)] {
        for seed in 1..=seeds {
            let mut world = streaming(World::with(2, seed, geometry, |_| {}));
            let mut fates = ChaCha8Rng::seed_from_u64(seed ^ 0x1055);
            world.lost = Box::new(move |_| fates.random_range(0..1000) < loss);
            for op in 1..=3_000u32 {
                let read = Command {
                    opcode: Opcode::Read,
                    reply: ReplySlot(op as u16 % 64),
                    ..write(op, 0x13000, 0x60000, 64)
                };
                let mut tries = 0;
                while !world.nodes[0].post(1, &read, &[]) {
                    if !world.step() {
                        world.pass(Nanos::from_micros(20));
                    }
                    for node in &mut world.nodes {
                        while node.nic.handle_timers(&mut node.board, world.now) {}
                    }
                    tries += 1;
                    assert!(tries < 1_000_000, "op {op} finds no room");
                }
                world.step();
            }
            world.pass(Nanos::from_millis(30_000));
            let [reader, server] = [0, 1].map(|node: usize| world.nodes[node].counters());
            assert_eq!(
                (reader.links_lost, server.links_lost, server.answers_unkept),
                (0, 0, 0),
                "loss {loss}, seed {seed}"
            );
            assert_eq!(reader.read_replies, 3_000, "loss {loss}, seed {seed}");
            put_off += server.put_off;
        }
    }
    assert!(put_off > 0, "that tries too little");
}

/// Windows of more messages than an acknowledgement speaks of one by one, and more staging buffers than bits of a word. The
/// receiver's window may be the smaller one, or the larger one.
#[test]
fn a_wide_window_loses_nothing() {
    for (window, others, staging) in [(256, 256, 100), (1024, 1024, 512), (256, 64, 100), (64, 512, 64)] {
        let geometry = Geometry {
            window,
            staging,
            ..geometry(2)
        };
        for (loss, seed) in [(10, 1u64), (50, 2), (300, 3)] {
            let mut world = World::with(2, seed, geometry, |_| {});
            world.nodes[1] = Node::new(Config {
                node: NodeId(1),
                geometry: Geometry {
                    window: others,
                    ..geometry
                },
                ..Config::default()
            });
            let mut world = streaming(world);
            let mut fates = ChaCha8Rng::seed_from_u64(seed ^ 0x1055);
            world.lost = Box::new(move |_| fates.random_range(0..1000) < loss);
            let value = |op: u32| (u64::from(op) << 32 | seed).to_le_bytes();
            for op in 1..=6_000u32 {
                let (cell, local) = (u64::from(op % 2048) * 8, 0x40000 + u64::from(op % 512) * 8);
                let command = if op % 2 == 0 {
                    inline(op, 0x10000 + cell, 8)
                } else {
                    world.nodes[0].fill(1, local, &value(op));
                    write(op, 0x10000 + cell, local, 8)
                };
                let mut tries = 0;
                while !world.nodes[0].post(1, &command, &value(op)) {
                    if !world.step() {
                        world.pass(Nanos::from_micros(20));
                    }
                    tries += 1;
                    assert!(tries < 1_000_000, "op {op} finds no room");
                }
                world.step();
            }
            world.pass(Nanos::from_millis(30_000));
            let [sender, receiver] = [0, 1].map(|node: usize| world.nodes[node].counters());
            let which = format!("windows {window} and {others}, loss {loss}");
            assert_eq!((sender.links_lost, receiver.links_lost), (0, 0), "{which}");
            assert_eq!(receiver.messages_received, sender.messages_sent, "{which}");
            for op in 6_000 - 2_047..=6_000u32 {
                let at = 0x10000 + u64::from(op % 2048) * 8;
                assert_eq!(world.nodes[1].memory(1, at, 8), value(op), "{which}, op {op}");
            }
            let held = world.nodes[0].nic.census().into_iter();
            let held: Vec<_> = held
                .filter(|(name, count)| *count != 0 && *name != "open_ports")
                .collect();
            assert_eq!(held, [], "{which}");
        }
    }
}

/// What has been received past a lost frame is known as that, whichever end has the larger window: while a page does not come
/// the credits stand still, and the sender would send everything again until it gives the link up.
#[test]
fn windows_that_differ_do_not_hide_what_has_been_received() {
    for (own, others) in [(64, 512), (512, 64), (64, 64)] {
        let mut world = streaming(World::of_windows([own, others]));
        // The numbers of a window, twice: the second time the slots of the larger one begin anew.
        for round in 0..3u8 {
            let missing = 0x14000 + u64::from(round) * 0x1000;
            let mut first = true;
            world.lost = Box::new(move |message| {
                let is_second = message.header.kind == Kind::Write && message.header.address.0 == 0x10008;
                is_second && core::mem::take(&mut first)
            });
            let before = world.nodes[0].counters().retransmitted;
            world.hosts = false;
            assert!(world.nodes[0].post(1, &inline(1, missing, 8), &[1; 8]));
            for op in 1..30u32 {
                assert!(world.nodes[0].post(1, &inline(op, 0x10000 + u64::from(op) * 8, 8), &[2; 8]));
                world.run();
            }
            world.pass(Nanos::from_millis(5_000));
            let again = world.nodes[0].counters().retransmitted - before;
            assert!(
                (1..=4).contains(&again),
                "windows {own} and {others}: {again} left again"
            );
            world.hosts = true;
            world.pass(Nanos::from_millis(50));
            assert_eq!(world.nodes[1].memory(1, missing, 8), [1; 8]);
        }
        assert_eq!(world.nodes[0].counters().links_lost, 0);
    }
}

/// Of a wide window an acknowledgement speaks of a part. What arrived ahead of all others since the last one is spoken of
/// before one about lower numbers goes out: its time would have the sender take these for lost.
#[test]
fn of_a_wide_window_nothing_that_arrived_stays_unsaid() {
    let geometry = Geometry {
        window: 256,
        ..geometry(2)
    };
    let mut world = streaming(World::with(2, 0, geometry, |config| {
        // All of them are on the wire at once.
        config.timers.queueing = Nanos::MAX;
    }));
    let (writes, said) = (
        Rc::new(RefCell::new(Vec::new())),
        Rc::new(RefCell::new(BTreeSet::new())),
    );
    let (left, spoken_of) = (Rc::clone(&writes), Rc::clone(&said));
    world.lost = Box::new(move |message| {
        match message.header.kind {
            Kind::Write => left.borrow_mut().push(message.clone()),
            Kind::Ack => {
                let words = message.header.encode_words();
                let Received { from, beyond, .. } = RawHeader::of(&words).unwrap().receipt().requests;
                let bits = (0..64).filter(|bit| beyond >> bit & 1 != 0);
                spoken_of.borrow_mut().extend(bits.map(|bit| from.plus(bit).0));
            }
            _ => {}
        }
        true
    });
    for op in 1..=128 {
        assert!(world.nodes[0].post(1, &inline(op, 0x10000, 8), &[1; 8]));
        world.run();
    }
    let writes = writes.borrow();
    assert_eq!(writes.len(), 128);
    let now = world.now;
    // The first and the tenth are late; then the first comes.
    let early = (1..128).filter(|&at| at != 9);
    for at in early.clone().chain([0]) {
        world.nodes[1].deliver(now, &writes[at]);
        world.run();
    }
    let said = said.borrow();
    let unsaid: Vec<_> = early
        .filter(|&at| at > 9 && !said.contains(&writes[at].header.seq.0))
        .collect();
    assert_eq!(unsaid, [0; 0]);
}
