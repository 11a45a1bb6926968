//! Fewer windows than nodes: links at rest lose theirs, and nothing else (`docs/decisions/0033-windows.md`).

use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::Kind;
use netvm_abi::{
    ByteLen, CapabilitySlot, Epoch, Geometry, Nanos, NodeId, OpId, ReplySlot, Status, Token, VirtAddr,
};
use netvm_kit::nic::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const PAGE: u64 = 0x12000;
/// A page that is not mapped.
const AWAY: u64 = 0x15000;

/// Nodes with so many windows each, the own one included. Each may write to each, by a capability in the slot with the writer's
/// number, and each write has a place of its own.
struct Crowd {
    world: World,
    /// What was written to each node by each, and how often.
    written: Vec<Vec<u32>>,
}

impl Crowd {
    fn new(nodes: u16, windows: u16, seed: u64) -> Self {
        let geometry = Geometry {
            windows,
            ..geometry(nodes)
        };
        let mut world = World::connect(World::with(nodes, seed, geometry, |_| {}));
        for node in &mut world.nodes {
            for writer in 0..nodes {
                node.grant(u32::from(writer), &capability(writer));
            }
            node.map(1, PAGE, 5, true);
        }
        let written = vec![vec![0; usize::from(nodes)]; usize::from(nodes)];
        Self { world, written }
    }

    fn command(from: u16, to: u16, op: u32, address: u64) -> Command {
        Command {
            node: NodeId(to),
            capability: CapabilitySlot(from.into()),
            ..inline(op, address, 4)
        }
    }

    /// `from` writes to `to` how often it has, and notifies it. False: its queue is full.
    fn write(&mut self, from: u16, to: u16) -> bool {
        let times = self.written[usize::from(to)][usize::from(from)] + 1;
        let address = PAGE + u64::from(from) * 4;
        let command = notify(Self::command(from, to, times, address), 100 + u32::from(from));
        let posted = self.world.nodes[usize::from(from)].post(1, &command, &times.to_le_bytes());
        if posted {
            self.written[usize::from(to)][usize::from(from)] = times;
        }
        posted
    }

    /// Everything has landed once.
    fn check(&mut self) {
        for (to, from) in self.pairs() {
            let times = self.written[to][from];
            let value = self.world.nodes[to].memory(1, PAGE + from as u64 * 4, 4);
            // Writes that ask for no order land in any.
            assert!(
                self.world.shuffle || value == times.to_le_bytes(),
                "from {from} to {to}"
            );
            let heard = self.world.nodes[to].signals(1, 100 + from as u32);
            assert_eq!(heard, times, "from {from} to {to}");
        }
        for node in &self.world.nodes {
            assert_eq!(node.counters().links_lost, 0);
        }
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let count = self.world.nodes.len();
        (0..count)
            .flat_map(|to| (0..count).map(move |from| (to, from)))
            .collect()
    }

    fn sum(&self, of: impl Fn(&netvm_nic::Counters) -> u64) -> u64 {
        self.world.nodes.iter().map(|node| of(&node.counters())).sum()
    }

    /// All others write to a node, so that the links of this one lose their windows.
    fn crowds_out(&mut self, at: u16, of: u16) {
        for other in (0..self.world.nodes.len() as u16).filter(|&other| other != at && other != of) {
            assert!(self.write(other, at) && self.write(of, other));
            self.world.pass(Nanos::from_millis(50));
        }
    }
}

#[test]
fn where_there_are_as_many_windows_as_nodes_none_moves() {
    let mut crowd = Crowd::new(4, 4, 0);
    for round in 0..40 {
        for from in 0..4 {
            assert!(crowd.write(from, (from + round) % 4));
        }
        crowd.world.pass(Nanos::from_millis(1));
    }
    crowd.check();
    assert_eq!(
        crowd.sum(|c| c.windows_moved + c.windows_refused + c.window_stalls),
        0
    );
    assert_eq!(crowd.sum(|c| c.retransmitted), 0, "and no message needs a copy");
}

#[test]
fn many_write_to_one_and_one_to_many() {
    for windows in [2, 3, 5] {
        let mut crowd = Crowd::new(9, windows, 0);
        for _ in 0..20 {
            for other in 1..9 {
                assert!(crowd.write(other, 0) && crowd.write(0, other));
            }
            crowd.world.pass(Nanos::from_millis(500));
        }
        crowd.world.pass(Nanos::from_millis(10_000));
        crowd.check();
        assert!(crowd.sum(|c| c.windows_moved) > 50, "{windows} windows");
        assert!(crowd.sum(|c| c.window_stalls) > 0, "{windows} windows");
    }
}

/// Cycles of nodes that wait for one another: each direction has windows of its own.
#[test]
fn all_write_to_all_over_a_wire_that_loses_and_reorders() {
    for seed in 1..=6 {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let mut crowd = Crowd::new(6, 2 + (seed % 2) as u16, seed);
        // What a node sends to itself takes no wire.
        crowd.world.lost =
            Box::new(move |m| m.header.source != m.header.destination && dice.random_bool(0.05));
        for _ in 0..30 {
            for (to, from) in crowd.pairs() {
                crowd.write(from as u16, to as u16);
            }
            crowd.world.pass(Nanos::from_millis(300));
        }
        crowd.world.lost = Box::new(|_| false);
        crowd.world.pass(Nanos::from_millis(20_000));
        crowd.check();
    }
}

/// None of the writers ever stops by itself.
#[test]
fn each_of_many_busy_writers_gets_its_turn() {
    let mut crowd = Crowd::new(8, 3, 1);
    for _ in 0..600 {
        for from in 1..8 {
            while crowd.write(from, 0) {}
        }
        crowd.world.pass(Nanos::from_millis(5));
    }
    for from in 1..8 {
        let heard = crowd.world.nodes[0].signals(1, 100 + from);
        assert!(heard > 500, "{heard} writes of node {from}");
    }
    assert!(crowd.sum(|c| c.windows_called) > 0);
    crowd.world.pass(Nanos::from_millis(60_000));
    crowd.check();
}

/// One port writes to many nodes, each of which is kept busy.
#[test]
fn each_of_many_busy_ways_gets_its_turn() {
    let mut crowd = Crowd::new(8, 3, 0);
    for port in 2..8 {
        crowd.world.nodes[0].open(port, 7);
    }
    for to in 1..8u16 {
        let grant = Capability {
            holder_port: netvm_abi::PortId(to),
            ..capability(0)
        };
        crowd.world.nodes[usize::from(to)].grant(20, &grant);
    }
    let mut posted = [0u32; 8];
    for _ in 0..600 {
        for to in 1..8u16 {
            let times = &mut posted[usize::from(to)];
            let command = Command {
                capability: CapabilitySlot(20),
                ..notify(Crowd::command(0, to, *times, PAGE), 9)
            };
            while crowd.world.nodes[0].post(to, &command, &[1; 4]) {
                *times += 1;
            }
        }
        crowd.world.pass(Nanos::from_millis(5));
    }
    for to in 1..8 {
        let heard = crowd.world.nodes[to].signals(1, 9);
        assert!(heard > 500, "{heard} writes to node {to}");
    }
    crowd.world.pass(Nanos::from_millis(60_000));
    let heard = crowd.world.nodes.iter().map(|node| node.signals(1, 9));
    assert!(heard.eq(posted), "each write is heard once");
}

/// Control messages to all nodes wait all the time. They are offered first, and still each port has its turn.
#[test]
fn ports_get_windows_beside_control_messages_that_always_wait() {
    for windows in [2, 3] {
        let mut crowd = Crowd::new(6, windows, 0);
        crowd.world.hosts = true;
        let mut posted = 0;
        for _ in 0..30_000 {
            crowd.write(0, 5);
            while posted < crowd.world.nodes[0].counters().control_sent + 24 {
                crowd.world.nodes[0].tell(HostEvent::SendControl {
                    peer: NodeId(1 + posted as u16 % 4),
                    slot: posted as u16 % 24,
                    token: Token(0),
                });
                posted += 1;
            }
            crowd.world.step_in_time();
        }
        let (heard, sent) = (
            crowd.world.nodes[5].signals(1, 100),
            crowd.world.nodes[0].counters().control_sent,
        );
        assert!(sent > 100, "{sent} control messages with {windows} windows");
        assert!(
            heard > 100,
            "{heard} writes and {sent} control messages with {windows} windows"
        );
        crowd.world.pass(Nanos::from_millis(5_000));
        crowd.check();
    }
}

#[test]
fn a_page_that_does_not_come_keeps_one_window() {
    let mut crowd = Crowd::new(7, 3, 0);
    let stuck = Crowd::command(1, 0, 1, AWAY);
    assert!(crowd.world.nodes[1].post(1, &stuck, &[9; 4]));
    crowd.world.pass(Nanos::from_millis(10));
    for _ in 0..10 {
        for other in 2..7 {
            assert!(crowd.write(other, 0) && crowd.write(1, other));
        }
        crowd.world.pass(Nanos::from_millis(1_000));
    }
    crowd.check();
    // Its host brings the page at last.
    crowd.world.hosts = true;
    crowd.world.nodes[0].take_events();
    crowd.world.pass(Nanos::from_millis(1_000));
    assert!(crowd.write(1, 0));
    crowd.world.pass(Nanos::from_millis(1_000));
    crowd.check();
}

/// The only window waits for a page, far longer than a message may be sent again.
#[test]
fn a_link_that_is_refused_for_long_is_not_lost() {
    let mut crowd = Crowd::new(4, 2, 0);
    let stuck = Crowd::command(1, 0, 1, AWAY);
    assert!(crowd.world.nodes[1].post(1, &stuck, &[9; 4]));
    crowd.world.pass(Nanos::from_millis(10));
    assert!(crowd.write(2, 0) && crowd.write(3, 0));
    crowd.world.pass(Nanos::from_millis(60_000));
    let refused = crowd.sum(|c| c.windows_refused);
    assert!(
        (1_000..60_000).contains(&refused),
        "{refused}: again, but not all the time"
    );
    assert_eq!(crowd.sum(|c| c.links_lost), 0);
    crowd.world.hosts = true;
    crowd.world.nodes[0].take_events();
    crowd.world.pass(Nanos::from_millis(5_000));
    crowd.check();
}

/// A message is refused. Then there is a window, but the wire loses the message each time, and nothing else.
#[test]
fn a_link_that_was_refused_and_loses_its_message_is_lost() {
    let mut crowd = Crowd::new(4, 2, 0);
    let stuck = Crowd::command(1, 0, 1, AWAY);
    assert!(crowd.world.nodes[1].post(1, &stuck, &[9; 4]));
    crowd.world.pass(Nanos::from_millis(10));
    assert!(crowd.write(2, 0) && crowd.write(3, 0));
    crowd.world.pass(Nanos::from_millis(10));
    assert!(crowd.sum(|c| c.windows_refused) > 0);
    crowd.world.lost =
        Box::new(|message| message.header.kind == Kind::Write && message.header.source == NodeId(2));
    crowd.world.hosts = true;
    crowd.world.nodes[0].take_events();
    crowd.world.pass(Nanos::from_millis(5_000));
    assert!(crowd.world.nodes[2].nic.counters().links_lost > 0);
    assert_eq!(crowd.world.nodes[3].nic.counters().links_lost, 0);
}

/// A stream that has failed stays so while its link has no window, at either end.
#[test]
fn a_failure_is_remembered_without_a_window() {
    // Refused by the receiver; and a source that the sender does not have.
    let refused = Command {
        capability: CapabilitySlot(40),
        ..Crowd::command(1, 0, 1, PAGE)
    };
    let no_source = Command {
        flags: CommandFlags::empty(),
        local: VirtAddr(1 << 60),
        ..Crowd::command(1, 0, 1, PAGE)
    };
    for first in [refused, no_source] {
        let mut crowd = Crowd::new(7, 2, 0);
        assert!(crowd.world.nodes[1].post(1, &first, &[1; 4]));
        crowd.world.pass(Nanos::from_millis(50));
        assert_eq!(crowd.world.nodes[1].error(1).map(|error| error.op), Some(OpId(1)));
        let moved = crowd.sum(|c| c.windows_moved);
        crowd.crowds_out(0, 1);
        assert!(crowd.sum(|c| c.windows_moved) > moved + 6);
        // In the same epoch, as by a program that has not looked; then in the next.
        for (epoch, heard) in [(0, 0), (1, 1)] {
            let command = Command {
                epoch: Epoch(epoch),
                ..notify(Crowd::command(1, 0, 2, PAGE), 50)
            };
            assert!(crowd.world.nodes[1].post(1, &command, &[2; 4]));
            crowd.world.pass(Nanos::from_millis(1_000));
            assert_eq!(crowd.world.nodes[0].signals(1, 50), heard, "{first:?}");
        }
        crowd.crowds_out(0, 1);
        crowd.world.pass(Nanos::from_millis(1_000));
        assert!(
            crowd.world.nodes[0]
                .event(|event| matches!(event, NicEvent::PeerLost { .. }))
                .is_none()
        );
    }
}

/// So does an append that was refused: none behind it gets a place before it.
#[test]
fn a_refused_append_is_remembered_without_a_window() {
    let mut crowd = Crowd::new(7, 2, 0);
    let queue = Capability {
        modes: Modes::APPEND,
        end: VirtAddr(0x10000 + 512),
        queue: QueueShape { entry: 9, number: 5 },
        ..capability(1)
    };
    crowd.world.nodes[0].grant(30, &queue);
    crowd.world.nodes[0].map(1, 0x10000, 5, true);
    let append = |op, refusal| Command {
        flags: CommandFlags::INLINE | CommandFlags::APPEND,
        capability: CapabilitySlot(30),
        operand: refusal,
        ..Crowd::command(1, 0, op, 0)
    };
    for op in 1..=2 {
        assert!(crowd.world.nodes[1].post(1, &append(op, 0), &[1; 4]));
        crowd.world.pass(Nanos::from_millis(50));
    }
    let counters = crowd.world.nodes[0].counters();
    assert_eq!((counters.appends, counters.appends_refused), (1, 1));
    crowd.crowds_out(0, 1);
    assert!(crowd.world.nodes[1].post(1, &append(3, 0), &[1; 4]));
    crowd.world.pass(Nanos::from_millis(1_000));
    assert_eq!(crowd.world.nodes[0].counters().appends_held, 1);
    assert!(crowd.world.nodes[1].post(1, &append(4, 2), &[1; 4]));
    crowd.world.pass(Nanos::from_millis(1_000));
    assert_eq!(crowd.world.nodes[0].counters().appends_refused, 2, "it asks anew");
}

/// Reads and flushes: what asks keeps its window until the answer is here.
#[test]
fn answers_come_over_windows_that_are_asked_for() {
    let mut crowd = Crowd::new(7, 2, 0);
    for round in 0..8u32 {
        for from in 1..7u16 {
            let to = 1 + (from + round as u16) % 6;
            let opcode = if round % 2 == 0 {
                Opcode::FlushRemote
            } else {
                Opcode::Read
            };
            let command = Command {
                flags: CommandFlags::empty(),
                opcode,
                local: VirtAddr(PAGE + 64),
                len: ByteLen(if round % 2 == 0 { 0 } else { 8 }),
                reply: ReplySlot(round as u16),
                ..Crowd::command(from, to, round + 1, PAGE)
            };
            assert!(crowd.world.nodes[usize::from(from)].post(1, &command, &[]));
        }
    }
    crowd.world.lost = {
        let mut dice = ChaCha8Rng::seed_from_u64(1);
        Box::new(move |m| m.header.source != m.header.destination && dice.random_bool(0.1))
    };
    crowd.world.pass(Nanos::from_millis(20_000));
    for node in 1..7 {
        let counters = crowd.world.nodes[node].counters();
        let (reads, flushes) = (counters.read_replies, counters.flush_replies);
        assert_eq!((reads, flushes), (4, 4), "node {node}");
        assert_eq!(
            crowd.world.nodes[node].error(1).map(|error| error.status),
            None::<Status>
        );
    }
}
