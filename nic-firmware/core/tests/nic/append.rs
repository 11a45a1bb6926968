//! The shared receive queue: places that the NIC gives out, in worlds that reorder, evict and fail.

use netvm_abi::bar::port as bar_port;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::{QueueShape, Record};
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};

const START: u64 = 0x10000;
const RAISES: u32 = 9;

/// A queue of so many entries of 512 bytes at [`START`], for port `from` of node `holder`.
fn queue(holder: u16, from: u16, capacity: u64) -> Capability {
    Capability {
        modes: Modes::APPEND,
        holder_port: PortId(from),
        start: VirtAddr(START),
        end: VirtAddr(START + capacity * 512),
        queue: QueueShape {
            entry: 9,
            number: RAISES as u16,
        },
        ..capability(holder)
    }
}

fn append(op: u32, slot: u32, len: u32) -> Command {
    Command {
        flags: CommandFlags::INLINE | CommandFlags::APPEND,
        capability: CapabilitySlot(slot),
        ..write(op, 0, 0, len)
    }
}

/// What port 1 of node 1 finds at a place.
fn record(world: &World, place: u32) -> Option<Record> {
    let node = &world.nodes[1];
    let at = SharedMap::new(&node.board.geometry).port_area(PortId(1));
    let area = Part::new(&node.board.shared, at, port_area::AREA_WORDS);
    Record::load(&area, place)
}

fn free(world: &World, freed: u32) {
    world.nodes[1].set_bar_word(1, bar_port::QUEUE_FREED, freed);
}

fn linked(capacity: u64) -> World {
    let mut world = World::connected(2, 0);
    world.hosts = true;
    world.nodes[1].grant(3, &queue(0, 1, capacity));
    world
}

#[test]
fn appends_get_consecutive_places_and_the_cards_word_for_their_sender() {
    let mut world = World::connected(3, 0);
    world.hosts = true;
    world.nodes[0].open(2, 7);
    world.run();
    for (slot, (node, port)) in [(0, 1), (0, 2), (2, 1)].into_iter().enumerate() {
        world.nodes[1].grant(slot as u32, &queue(node, port, 4));
    }
    for (place, (slot, node, port)) in [(0, 0, 1), (2, 2, 1), (1, 0, 2), (0, 0, 1)]
        .into_iter()
        .enumerate()
    {
        let text = [place as u8 + 1; 11];
        assert!(world.nodes[node].post(port, &append(place as u32, slot, 11), &text));
        world.run();
        let expected = Record {
            status: Status::Ok,
            len: 11,
            node: NodeId(node as u16),
            port: PortId(port),
        };
        assert_eq!(record(&world, place as u32), Some(expected));
        let at = START + place as u64 * 512;
        assert_eq!(world.nodes[1].memory(1, at, 11), text);
        assert_eq!(world.nodes[1].signals(1, RAISES), place as u32 + 1);
    }
    assert_eq!(record(&world, 4), None);
    assert_eq!(world.nodes[1].counters().appends, 4);
}

#[test]
fn a_full_queue_refuses_only_its_sender_and_holds_its_later_appends_back() {
    let mut world = linked(2);
    world.nodes[0].open(2, 7);
    world.run();
    let mut plain = capability(0);
    plain.holder_port = PortId(2);
    world.nodes[1].grant(4, &plain);
    for op in 0..5 {
        assert!(world.nodes[0].post(1, &append(op, 3, 8), &[op as u8; 8]));
    }
    let mut other = inline(77, START + 0x4000, 8);
    other.capability = CapabilitySlot(4);
    assert!(world.nodes[0].post(2, &other, &[7; 8]));
    world.run();
    let error = world.nodes[0].error(1).expect("the third is refused");
    assert_eq!((error.op, error.status), (OpId(2), Status::NoPlace));
    assert_eq!(
        world.nodes[0].error(1),
        None,
        "and nothing is said of what is held back"
    );
    assert_eq!(world.nodes[0].error(2), None);
    assert_eq!(
        world.nodes[1].memory(1, START + 0x4000, 8),
        [7; 8],
        "another port goes on"
    );
    let counters = world.nodes[1].counters();
    assert_eq!(
        (counters.appends, counters.appends_refused, counters.appends_held),
        (2, 1, 2)
    );
    assert_eq!(record(&world, 2), None);

    // One place comes back; the library has heard, and sends again.
    free(&world, 1);
    for op in 5..7 {
        let again = Command {
            operand: 2,
            ..append(op, 3, 8)
        };
        assert!(world.nodes[0].post(1, &again, &[op as u8; 8]));
    }
    world.run();
    assert_eq!(record(&world, 2).map(|record| record.status), Some(Status::Ok));
    assert_eq!(
        world.nodes[1].memory(1, START, 8),
        [5; 8],
        "the first place again"
    );
    assert_eq!(
        world.nodes[1].memory(1, START + 512, 8),
        [1; 8],
        "which was not given back"
    );
    let error = world.nodes[0].error(1).expect("full again");
    assert_eq!((error.op, error.status), (OpId(6), Status::NoPlace));
}

#[test]
fn append_mode_allows_appends_only_and_appends_need_the_mode() {
    type Change = fn(&mut Command);
    let cases: [(&str, Change, Status); 7] = [
        (
            "a plain write",
            |c| c.flags.remove(CommandFlags::APPEND),
            Status::ModeRefused,
        ),
        (
            "a plain write into the queue",
            |c| {
                c.flags.remove(CommandFlags::APPEND);
                c.remote = VirtAddr(START);
            },
            Status::ModeRefused,
        ),
        (
            "too long for an entry",
            |c| c.flags.remove(CommandFlags::INLINE),
            Status::OutOfRange,
        ),
        (
            "an event count of its own choice",
            |c| c.notification = NotificationId(8),
            Status::Malformed,
        ),
        (
            "that of the queue",
            |c| c.notification = NotificationId(RAISES),
            Status::Malformed,
        ),
        (
            "without the mode",
            |c| c.capability = CapabilitySlot(4),
            Status::ModeRefused,
        ),
        (
            "where no queue is",
            |c| c.capability = CapabilitySlot(5),
            Status::OutOfRange,
        ),
    ];
    for (what, change, status) in cases {
        let mut world = linked(4);
        world.nodes[1].grant(4, &capability(0));
        let mut unshaped = queue(0, 1, 4);
        unshaped.end = VirtAddr(START + 3 * 512);
        world.nodes[1].grant(5, &unshaped);
        let mut command = append(1, 3, 8);
        change(&mut command);
        if !command.flags.contains(CommandFlags::INLINE) {
            if command.flags.contains(CommandFlags::APPEND) {
                command.len = ByteLen(513);
            }
            command.local = VirtAddr(0x40000);
        }
        assert!(world.nodes[0].post(1, &command, &[1; 8]), "{what}");
        world.run();
        let error = world.nodes[0].error(1).expect(what);
        assert_eq!(error.status, status, "{what}");
        assert_eq!(record(&world, 0), None, "{what}");
        assert_eq!(world.nodes[1].counters().appends, 0, "{what}");
        assert_eq!(world.nodes[1].memory(1, START, 8), [0; 8], "{what}");
    }
}

#[test]
fn an_append_of_nothing_that_stands_alone_or_is_no_write_does_not_leave() {
    for change in [
        |c: &mut Command| c.len = ByteLen(0),
        |c: &mut Command| c.flags |= CommandFlags::REGARDLESS,
        |c: &mut Command| c.opcode = descriptor::Opcode::FlushRemote,
    ] {
        let mut world = linked(4);
        let mut command = append(1, 3, 8);
        change(&mut command);
        let before = world.nodes[0].counters().messages_sent;
        assert!(world.nodes[0].post(1, &command, &[1; 8]));
        world.run();
        assert_eq!(
            world.nodes[0].error(1).map(|error| error.status),
            Some(Status::Malformed)
        );
        assert_eq!(world.nodes[0].counters().messages_sent, before);
    }
}

/// A bounced append that waits for the host, and what names it.
fn bounced(world: &mut World) -> (BounceId, Generation) {
    match world.nodes[1].event(|event| matches!(event, NicEvent::Bounced { .. })) {
        Some(NicEvent::Bounced { bounce, generation }) => (bounce, generation),
        _ => panic!("nothing is bounced"),
    }
}

#[test]
fn a_place_that_cannot_be_filled_is_one_to_skip_and_the_receiver_is_woken() {
    let mut world = linked(4);
    world.hosts = false;
    for op in 0..2 {
        assert!(world.nodes[0].post(1, &append(op, 3, 8), &[op as u8; 8]));
    }
    world.run();
    let (bounce, generation) = bounced(&mut world);
    let header = world.nodes[1].record(bounce);
    assert_eq!(header.address, VirtAddr(START), "the host is told where it goes");
    assert_eq!(record(&world, 0), None);
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::NoMemory,
    });
    world.run();
    assert_eq!(
        record(&world, 0).map(|record| record.status),
        Some(Status::NoMemory)
    );
    assert_eq!(world.nodes[1].signals(1, RAISES), 1);
    assert_eq!(world.nodes[0].error(1).map(|error| error.op), Some(OpId(0)));
    assert_eq!(record(&world, 1), None, "the second is held back");

    world.hosts = true;
    let again = Command {
        epoch: Epoch(1),
        ..append(2, 3, 8)
    };
    assert!(world.nodes[0].post(1, &again, &[9; 8]));
    world.run();
    assert_eq!(record(&world, 1).map(|record| record.status), Some(Status::Ok));
    assert_eq!(world.nodes[1].memory(1, START + 512, 8), [9; 8]);
}

/// Its link fails while the host has it: the place has a record only when the host has let go.
#[test]
fn a_place_outlives_its_link_until_nothing_writes_there() {
    let mut world = linked(4);
    world.hosts = false;
    assert!(world.nodes[0].post(1, &append(0, 3, 8), &[5; 8]));
    world.run();
    let (bounce, generation) = bounced(&mut world);
    world.nodes[1].obliging = false;
    let stop = Nanos::from_millis(10_000);
    // Node 0 falls silent while node 1 waits for what it has sent out of order.
    let mut gap = append(1, 3, 8);
    gap.flags.remove(CommandFlags::APPEND);
    assert!(world.nodes[0].post(1, &gap, &[6; 8]));
    world.nodes[0].poll(world.now);
    world.nodes[0].board.outbox.clear();
    assert!(world.nodes[0].post(1, &append(2, 3, 8), &[7; 8]));
    world.run();
    silence(&mut world, stop);
    let lost = world.nodes[1].event(|event| matches!(event, NicEvent::PeerLost { .. }));
    let Some(NicEvent::PeerLost { peer, incarnation }) = lost else {
        panic!("the link has not failed");
    };
    assert_eq!(record(&world, 0), None, "the host may still copy");
    world.nodes[1].tell(HostEvent::PeerReleased { peer, incarnation });
    world.nodes[1].poll(world.now);
    assert_eq!(
        record(&world, 0).map(|record| record.status),
        Some(Status::LinkLost)
    );
    assert_eq!(world.nodes[1].signals(1, RAISES), 1);
    // Too late.
    world.nodes[1].tell(HostEvent::BounceEnded {
        bounce,
        generation,
        status: Status::Ok,
    });
    world.nodes[1].poll(world.now);
    assert_eq!(
        record(&world, 0).map(|record| record.status),
        Some(Status::LinkLost)
    );
    assert_eq!(world.nodes[1].counters().places_skipped, 1);
}

/// Node 1 alone, while its timers run.
fn silence(world: &mut World, span: Nanos) {
    let end = world.now.after(span);
    while world.now < end {
        world.now = world.now.after(Nanos::from_millis(50));
        let node = &mut world.nodes[1];
        while node.nic.handle_timers(&mut node.board, world.now) {}
        node.poll(world.now);
        node.board.outbox.clear();
    }
}

#[test]
fn a_new_life_of_the_port_begins_at_the_first_place() {
    let mut world = linked(4);
    for op in 0..3 {
        assert!(world.nodes[0].post(1, &append(op, 3, 8), &[op as u8; 8]));
    }
    world.run();
    world.nodes[1].tell(HostEvent::PortClose {
        port: PortId(1),
        generation: Generation(7),
    });
    world.run();
    assert!(world.nodes[0].post(1, &append(3, 3, 8), &[3; 8]));
    world.run();
    assert_eq!(
        world.nodes[0].error(1).map(|error| error.status),
        Some(Status::NoSuchPort)
    );
    world.nodes[1].open(1, 8);
    world.run();
    let again = Command {
        epoch: Epoch(1),
        ..append(4, 3, 8)
    };
    assert!(world.nodes[0].post(1, &again, &[4; 8]));
    world.run();
    assert_eq!(world.nodes[1].memory(1, START, 8), [4; 8]);
}

#[test]
fn a_receiver_that_lies_about_what_it_freed_harms_its_own_queue_alone() {
    for lie in [1000, u32::MAX, 1 << 31, 3] {
        let mut world = linked(2);
        world.nodes[1].fill(1, START + 1024, &[0xEE; 64]);
        free(&world, lie);
        let mut refusal = OpId(0);
        for op in 0..20 {
            let command = Command {
                operand: refusal.0.into(),
                ..append(op + 1, 3, 8)
            };
            assert!(world.nodes[0].post(1, &command, &[op as u8 + 1; 8]));
            world.run();
            if let Some(error) = world.nodes[0].error(1) {
                refusal = error.op;
            }
            free(&world, lie.wrapping_mul(op + 1));
        }
        assert_eq!(world.nodes[1].memory(1, START + 1024, 64), [0xEE; 64]);
    }
}

/// A sender that says each of its messages until it has a place: what its library does.
struct Sender {
    node: u16,
    port: u16,
    slot: u32,
    /// Which message was posted as which operation, from 1 on.
    posted: Vec<u32>,
    /// The latest refusal that it knows of, and that each operation named.
    refusal: u32,
    named: Vec<u32>,
    next: u32,
}

impl Sender {
    fn text(&self, message: u32) -> [u8; 8] {
        (u64::from(self.slot) << 32 | u64::from(message)).to_le_bytes()
    }

    fn step(&mut self, world: &mut World, count: u32, post: bool) {
        while let Some(error) = world.nodes[usize::from(self.node)].error(self.port) {
            let at = error.op.0 as usize - 1;
            // One that named an older refusal was held back.
            assert_eq!(self.named[at], self.refusal, "told once");
            assert_eq!(error.status, Status::NoPlace);
            self.next = self.posted[at];
            self.refusal = error.op.0;
        }
        if post && self.next < count {
            let command = Command {
                operand: self.refusal.into(),
                ..append(self.posted.len() as u32 + 1, self.slot, 8)
            };
            let text = self.text(self.next);
            if world.nodes[usize::from(self.node)].post(self.port, &command, &text) {
                self.posted.push(self.next);
                self.named.push(self.refusal);
                self.next += 1;
            }
        }
    }
}

fn run(seed: u64, capacity: u64, count: u32) {
    let mut world = World::connected(3, seed);
    world.hosts = true;
    let mut senders = Vec::new();
    for (slot, (node, port)) in [(0, 1), (0, 2), (2, 1)].into_iter().enumerate() {
        if port > 1 {
            world.nodes[usize::from(node)].open(port, 3);
        }
        world.nodes[1].grant(slot as u32, &queue(node, port, capacity));
        senders.push(Sender {
            node,
            port,
            slot: slot as u32,
            posted: Vec::new(),
            refusal: 0,
            named: Vec::new(),
            next: 0,
        });
    }
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed ^ 0x5151);
    let mut cursor = 0;
    let mut got = [0; 3];
    let mut quiet = 0;
    while got != [count; 3] {
        for sender in &mut senders {
            let post = rng.random_bool(0.3);
            sender.step(&mut world, count, post);
        }
        if rng.random_bool(0.05) {
            for raw in world.nodes[1].slots.keys().copied().collect::<Vec<_>>() {
                world.nodes[1].evict(Vpn::from_raw(raw));
            }
        }
        if rng.random_bool(0.05) {
            let page = START + rng.random_range(0..2) * 0x1000;
            world.nodes[1].map_if_missing(1, page, 5, true);
        }
        if rng.random_bool(0.3)
            && let Some(record) = record(&world, cursor)
        {
            assert_eq!(record.status, Status::Ok);
            let sender = senders
                .iter()
                .position(|s| (NodeId(s.node), PortId(s.port)) == (record.node, record.port));
            let sender = sender.expect("one of them");
            let at = START + u64::from(cursor) % capacity * 512;
            assert_eq!(
                world.nodes[1].memory(1, at, 8),
                senders[sender].text(got[sender]),
                "each once, in order"
            );
            got[sender] += 1;
            cursor += 1;
            free(&world, cursor);
        }
        if world.step() {
            quiet = 0;
        } else {
            world.pass(Nanos::from_millis(1));
            quiet += 1;
            assert!(quiet < 10_000, "nothing moves any more: {got:?}");
        }
    }
    world.run();
    assert_eq!(record(&world, cursor), None);
    assert_eq!(world.nodes[1].counters().appends, u64::from(cursor));
    for node in &world.nodes {
        assert!(
            node.board.receive.is_empty(),
            "every receive buffer has been given back"
        );
        assert_eq!(node.nic.dmas_in_flight(), 0);
    }
}

#[test]
fn every_message_of_many_senders_arrives_once_and_in_order_in_many_worlds() {
    for seed in 1..=30 {
        run(seed, 1 << (seed % 5), 40);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_once_and_in_order(seed in 1u64.., log in 0u64..5, count in 1u32..60) {
        run(seed, 1 << log, count);
    }
}
