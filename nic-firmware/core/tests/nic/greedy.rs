//! Greedy ports together: what the others of their node still get (promise P5).
//!
//! Two to eight ports post as much as their queues hold to what does not answer: reads to a slow node, writes whose
//! source pages do not come, and anything behind such a write. A *victim* beside them works with a node that is well,
//! from pages that are there.
//!
//! **The bound.** With `P` greedy ports, and `ALONE` what an operation of the victim takes when it is alone, its
//! longest wait from post to completion is at most `ALONE * (1 + P * PIPELINE)`: before it comes at most a pipeline of
//! each greedy port, and each of those commands takes no longer than it does. It holds as long as
//!
//! - fewer than 12 nodes are slow, and fewer than 14 ports read into pages that do not come, of 64 read slots: each leaves a part of
//!   what it finds, and an eighth is kept for those that have none, one each;
//! - fewer than `staging / 4` ports have sources that do not come: they hold half of the staging buffers and one more
//!   each, of three quarters;
//! - fewer than `window * 3 / 4` such ports write to the victim's node: they hold a quarter of its window and one
//!   credit more each.
//!
//! What lies beyond is shown here, too.

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, Opcode};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::nic::*;

/// Commands of a port that its card works on at a time.
const PIPELINE: u64 = 8;
const VICTIM: u16 = 1;
/// Nodes: the ports' own, the one that is well, and the slow ones behind.
const HOME: usize = 0;
const WELL: u16 = 1;
const PAGE_AT: u64 = 0x12000;
const SOURCE: u64 = 0x30000;

/// What a greedy port posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greed {
    /// Reads to this node, whose host does not answer.
    Reads(u16),
    /// Reads to the victim's node, into pages that do not come.
    Targets,
    /// Writes to the victim's node from pages that do not come.
    Sources,
    /// One such write, and behind it writes that need no page.
    BehindSource,
}

struct Crowd {
    world: World,
    ops: u32,
}

impl Crowd {
    /// The greedy ports begin one after the other, so many steps apart.
    fn new(slow: u16, greedy: &[Greed], pause: u32) -> Self {
        let nodes = 2 + slow;
        let geometry = Geometry {
            nodes,
            ports: 16,
            page_rows: 256,
            capabilities: 64,
            ..Geometry::default()
        };
        let mut world = World::connect(World::with(nodes, 0, geometry, |_| {}));
        for port in 2..2 + greedy.len() as u16 {
            world.nodes[HOME].open(port, 7);
        }
        for node in 1..nodes {
            for port in 1..2 + greedy.len() as u16 {
                let grant = Capability {
                    modes: Modes::all(),
                    holder_port: PortId(port),
                    ..capability(HOME as u16)
                };
                world.nodes[usize::from(node)].grant(u32::from(port), &grant);
            }
        }
        world.nodes[usize::from(WELL)].map(1, PAGE_AT, 5, true);
        for port in 1..2 + greedy.len() as u16 {
            world.nodes[HOME].map(port, SOURCE, 5, true);
        }
        world.run();
        let mut crowd = Self { world, ops: 0 };
        for (port, &greed) in (2..).zip(greedy) {
            crowd.fill(port, greed);
            for _ in 0..pause {
                crowd.world.step();
            }
        }
        for _ in 0..2_000 {
            crowd.world.step();
        }
        crowd
    }

    fn command(&mut self, port: u16, node: u16, opcode: Opcode) -> Command {
        self.ops += 1;
        Command {
            opcode,
            node: NodeId(node),
            capability: CapabilitySlot(port.into()),
            reply: if opcode == Opcode::Write {
                ReplySlot::NONE
            } else {
                ReplySlot((self.ops % 64) as u16)
            },
            ..write(self.ops, PAGE_AT, SOURCE, 8)
        }
    }

    /// A greedy port's queue, as full as it gets.
    fn fill(&mut self, port: u16, greed: Greed) {
        for nth in 0..64 {
            let command = match greed {
                Greed::Reads(node) => self.command(port, node, Opcode::Read),
                Greed::Targets => Command {
                    local: VirtAddr(0x100_0000 + nth * 0x1000),
                    ..self.command(port, WELL, Opcode::Read)
                },
                Greed::BehindSource if nth > 0 => Command {
                    flags: netvm_abi::descriptor::CommandFlags::INLINE,
                    ..self.command(port, WELL, Opcode::Write)
                },
                Greed::Sources | Greed::BehindSource => Command {
                    local: VirtAddr(0x100_0000 + nth * 0x1000),
                    ..self.command(port, WELL, Opcode::Write)
                },
            };
            if !self.world.nodes[HOME].post(port, &command, &[1; 8]) {
                return;
            }
        }
    }

    fn answered(&self, op: OpId) -> Option<Reply> {
        let node = &self.world.nodes[HOME];
        let at = SharedMap::new(&node.board.geometry).port_area(PortId(VICTIM));
        let area = Part::new(&node.board.shared, at, AREA_WORDS);
        Reply::load(&area, (op.0 % 64) as u16, op)
    }

    /// Posts an operation of the victim; steps of the world until it has ended, a write when its notification is
    /// there. Nothing: not within the limit.
    fn victim(&mut self, opcode: Opcode, inline: bool, limit: u64) -> Option<u64> {
        let mut command = self.command(VICTIM, WELL, opcode);
        if opcode == Opcode::FlushRemote {
            command.len = ByteLen(0);
        }
        if inline {
            command.flags = netvm_abi::descriptor::CommandFlags::INLINE;
        }
        if opcode == Opcode::Write {
            command.notification = NotificationId(5);
        }
        let signals = self.world.nodes[usize::from(WELL)].signals(1, 5);
        assert!(
            self.world.nodes[HOME].post(VICTIM, &command, &[2; 8]),
            "its queue is empty"
        );
        for waited in 1..=limit {
            self.world.step();
            let ended = if opcode == Opcode::Write {
                self.world.nodes[usize::from(WELL)].signals(1, 5) != signals
            } else {
                let reply = self.answered(command.op);
                assert!(reply.is_none_or(|reply| reply.status == Status::Ok));
                reply.is_some()
            };
            if ended {
                // Acknowledgements: the next one begins with what it would have alone.
                self.world.pass(Nanos::from_millis(1));
                return Some(waited);
            }
        }
        None
    }
}

const OPERATIONS: [(Opcode, bool); 4] = [
    (Opcode::Write, true),
    (Opcode::Write, false),
    (Opcode::Read, false),
    (Opcode::FlushRemote, false),
];

/// The longest wait of the victim against what it is alone.
fn measure(greedy: &[Greed]) {
    // At once, or each with what those before it have left.
    for pause in [0, 200] {
        measure_apart(greedy, pause);
    }
}

fn measure_apart(greedy: &[Greed], pause: u32) {
    let mut alone = Crowd::new(1, &[], 0);
    let alone = OPERATIONS.map(|(opcode, inline)| alone.victim(opcode, inline, 10_000).expect("alone"));
    let factor = 1 + greedy.len() as u64 * PIPELINE;
    let slow = greedy.iter().map(|greed| match greed {
        Greed::Reads(node) => node - WELL,
        _ => 1,
    });
    let mut crowd = Crowd::new(slow.max().unwrap_or(1), greedy, pause);
    let mut longest = 0;
    for round in 0..8 {
        for ((opcode, inline), alone) in OPERATIONS.into_iter().zip(alone) {
            let bound = alone * factor;
            let waited = crowd.victim(opcode, inline, bound);
            let Some(waited) = waited else {
                panic!(
                    "{} of {greedy:?}: {opcode:?} of the victim (inline: {inline}) has not ended after {bound} steps in round \
                     {round}; alone it takes {alone}",
                    greedy.len()
                );
            };
            longest = longest.max(waited * 100 / alone);
        }
    }
    println!(
        "{} ports, {:?} first: at most {longest} % of what it takes alone, bound {} %",
        greedy.len(),
        greedy[0],
        factor * 100
    );
}

#[test]
fn ports_that_read_from_a_slow_node_together() {
    for count in 2..=8 {
        measure(&vec![Greed::Reads(2); count]);
    }
}

#[test]
fn ports_whose_sources_do_not_come_together() {
    for count in 2..=8 {
        measure(&vec![Greed::Sources; count]);
    }
}

#[test]
fn ports_that_write_behind_a_source_that_does_not_come_together() {
    for count in 2..=8 {
        measure(&vec![Greed::BehindSource; count]);
    }
}

#[test]
fn ports_of_every_kind_together() {
    measure(&[Greed::Targets]);
    let kinds = [Greed::Reads(2), Greed::Sources, Greed::BehindSource];
    for count in 2..=8 {
        for first in 0..3 {
            let greedy: Vec<Greed> = (first..first + count).map(|at| kinds[at % 3]).collect();
            measure(&greedy);
        }
    }
}

/// One port that asks for what does not come leaves others that ask the same node their share.
#[test]
fn one_port_does_not_take_what_others_ask_of_the_same_node() {
    let mut crowd = Crowd::new(1, &[Greed::Reads(2)], 0);
    let other = crowd.command(VICTIM, 2, Opcode::FlushRemote);
    let flush = Command {
        len: ByteLen(0),
        ..other
    };
    assert!(crowd.world.nodes[HOME].post(VICTIM, &flush, &[]));
    crowd.world.run();
    let sent = crowd.world.nodes[HOME].counters().flushes_sent;
    assert_eq!(sent, 1, "it left; when it is answered is the other node's affair");
}

/// However many they are, some read slots are left: for the nodes that answer, and for the ports whose pages are there.
#[test]
fn slow_nodes_and_ports_with_slow_targets_together() {
    measure(&[2, 2, 3, 3].map(Greed::Reads));
    measure(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12].map(Greed::Reads));
    for count in 2..=13 {
        measure(&vec![Greed::Targets; count]);
    }
    let all: Vec<Greed> = (2..=7)
        .flat_map(|node| [Greed::Reads(node), Greed::Targets])
        .collect();
    measure(&all);
}

/// What they hold ends, and so does what waits for it.
#[test]
fn a_port_beyond_its_share_goes_on_when_others_give_slots_back() {
    let mut crowd = Crowd::new(2, &[2, 2, 3, 3].map(Greed::Reads), 200);
    let held = crowd.world.nodes[HOME].counters().reads_sent;
    let reads = u64::from(Geometry::default().reads);
    assert!(held < reads, "{held} of {reads}: some are left");
    assert!(held > reads / 2, "{held} of {reads}: most are used");
    for _ in 0..20_000 {
        for node in [HOME, 2, 3] {
            crowd.world.nodes[node].serve_host();
        }
        crowd.world.step();
    }
    let sent = crowd.world.nodes[HOME].counters().reads_sent;
    assert_eq!(sent, u64::from(crowd.ops), "all that was posted has left");
}
