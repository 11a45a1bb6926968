//! What each kind of operation does behind one of its stream that has failed, before its sender knows (promise
//! P4): at its source, where no message has left, and at the receiver.

use netvm_abi::atomic::QueueBlock;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::port_area::{AREA_WORDS, Reply};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::{QueueShape, Record};
use netvm_abi::words::Part;
use netvm_abi::*;
use netvm_kit::heap::looks;
use netvm_kit::nic::*;

/// A page of node 1 that is mapped, and where the operations go.
const PAGE_AT: u64 = 0x12000;
/// The shared queue, in a mapped page of its own.
const QUEUE: u64 = 0x14000;
/// Event count that an entry of the queue raises.
const RAISES: u32 = 9;
/// Event count that operations name.
const BELL: u32 = 6;
/// Capability slots.
const ALL: u32 = 3;
const APPEND: u32 = 4;
const NOTHING: u32 = 5;

/// How the first operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The host cannot have its source page.
    SourceGone,
    /// Its local address cannot be.
    BadAddress,
    /// The receiver refuses it.
    Refused,
}

const FAILURES: [Failure; 3] = [Failure::SourceGone, Failure::BadAddress, Failure::Refused];

struct Scene {
    world: World,
    ppn: u64,
}

impl Scene {
    /// Operation 1 fails, and these follow it in its epoch.
    fn behind(failure: Failure, commands: &[Command]) -> Self {
        let mut world = World::connected(2, 0);
        let all = Capability {
            modes: Modes::all(),
            ..capability(0)
        };
        let queue = Capability {
            modes: Modes::APPEND,
            start: VirtAddr(QUEUE),
            end: VirtAddr(QUEUE + 4 * 512),
            queue: QueueShape {
                entry: 9,
                number: RAISES as u16,
            },
            ..capability(0)
        };
        world.nodes[1].grant(ALL, &all);
        world.nodes[1].grant(APPEND, &queue);
        let ppn = world.nodes[1].map(1, PAGE_AT, 5, true);
        world.nodes[1].map(1, QUEUE, 5, true);
        let mut scene = Self { world, ppn };
        let first = match failure {
            Failure::SourceGone => write(1, PAGE_AT, 0x40000, 100),
            Failure::BadAddress => write(1, PAGE_AT, 1 << 60, 100),
            Failure::Refused => Command {
                capability: CapabilitySlot(NOTHING),
                ..inline(1, PAGE_AT, 100)
            },
        };
        scene.post(first);
        for &command in commands {
            scene.post(command);
        }
        scene.world.run();
        if failure == Failure::SourceGone {
            let Some(NicEvent::SourceMiss {
                staging, generation, ..
            }) = scene.world.nodes[0].event(|event| matches!(event, NicEvent::SourceMiss { .. }))
            else {
                panic!("the source page was not asked for");
            };
            let gone = SourceAnswer::Failed(Status::Unmapped);
            scene.world.nodes[0].tell(answer(staging, generation, gone));
        }
        // What a page-in of a later source needs.
        scene.world.hosts = true;
        scene.world.run();
        let error = scene.world.nodes[0].error(1).expect("the first has failed");
        assert_eq!(error.op, OpId(1), "{failure:?}");
        scene
    }

    fn post(&mut self, command: Command) {
        assert!(self.world.nodes[0].post(1, &command, &[7; 128]));
    }

    /// The program has heard of the failure; its library posts in another epoch.
    fn goes_on(&mut self, command: Command) {
        self.post(Command {
            epoch: Epoch(command.epoch.0.max(1)),
            ..command
        });
        self.world.run();
    }

    fn byte(&self) -> u8 {
        self.world.nodes[1].board.pages[&self.ppn][0x100]
    }

    fn word(&self) -> u64 {
        let page = &self.world.nodes[1].board.pages[&self.ppn];
        u64::from_le_bytes(page[8..16].try_into().unwrap())
    }

    fn rings(&self) -> u32 {
        self.world.nodes[1].signals(1, BELL)
    }

    fn reply(&self, op: u32) -> Option<Reply> {
        let node = &self.world.nodes[0];
        let at = SharedMap::new(&node.board.geometry).port_area(PortId(1));
        let area = Part::new(&node.board.shared, at, AREA_WORDS);
        Reply::load(&area, op as u16, OpId(op))
    }

    fn record(&self, place: u32) -> Option<Record> {
        let node = &self.world.nodes[1];
        let at = SharedMap::new(&node.board.geometry).port_area(PortId(1));
        Record::load(&Part::new(&node.board.shared, at, AREA_WORDS), place)
    }

    /// Nothing is under way, nothing is held, and nothing more was said.
    fn at_rest(&mut self) {
        self.world.pass(Nanos::from_millis(5));
        let node = &mut self.world.nodes[0];
        assert_eq!(node.error(1), None, "told once");
        let window = node.nic.config().geometry.window / 2;
        // Everything is back if half a window and all that a port may stage can be had anew.
        for op in 100..100 + u32::from(window) {
            let command = Command {
                epoch: Epoch(2),
                ..write(op, PAGE_AT, 0x50000, 8)
            };
            while !self.world.nodes[0].post(1, &command, &[]) {
                self.world.run();
            }
        }
        self.world.pass(Nanos::from_millis(5));
        assert_eq!(self.world.nodes[0].error(1), None);
        assert!(self.world.nodes[1].board.receive.is_empty());
    }
}

fn word_op(op: u32, opcode: Opcode, flags: CommandFlags, operand: u64) -> Command {
    Command {
        opcode,
        flags: flags | CommandFlags::WIDE,
        operand,
        reply: ReplySlot(op as u16),
        ..write(op, PAGE_AT + 8, 0, 0)
    }
}

fn flagged(command: Command, flags: CommandFlags) -> Command {
    Command {
        flags: command.flags | flags,
        ..command
    }
}

#[test]
fn a_write_without_notification_lands() {
    for failure in FAILURES {
        for second in [
            inline(2, PAGE_AT + 0x100, 8),
            write(2, PAGE_AT + 0x100, 0x50100, 8),
        ] {
            let mut scene = Scene::behind(failure, &[second]);
            let expected = if second.flags.contains(CommandFlags::INLINE) {
                7
            } else {
                0
            };
            assert_eq!(scene.byte(), expected, "{failure:?}");
            assert_eq!(scene.world.nodes[1].counters().messages_landed, 1);
            scene.at_rest();
        }
    }
}

#[test]
fn a_notifying_write_lands_and_signals_nothing() {
    for failure in FAILURES {
        for id in [BELL, 2000] {
            let mut scene = Scene::behind(failure, &[notify(inline(2, PAGE_AT + 0x100, 8), id)]);
            assert_eq!((scene.byte(), scene.rings()), (7, 0), "{failure:?}");
            assert_eq!(scene.world.nodes[1].counters().one_shot_delivered, 0);
            scene.goes_on(notify(inline(3, PAGE_AT, 8), BELL));
            assert_eq!(scene.rings(), 1);
            scene.at_rest();
        }
    }
}

#[test]
fn a_notification_of_no_bytes_is_not_delivered() {
    for failure in FAILURES {
        let mut scene = Scene::behind(failure, &[notify(inline(2, PAGE_AT, 0), BELL)]);
        assert_eq!(scene.rings(), 0, "{failure:?}");
        scene.goes_on(notify(inline(3, PAGE_AT, 0), BELL));
        assert_eq!(scene.rings(), 1);
        scene.at_rest();
    }
}

#[test]
fn an_ordered_write_does_not_land() {
    for failure in FAILURES {
        for second in [
            inline(2, PAGE_AT + 0x100, 8),
            write(2, PAGE_AT + 0x100, 0x50100, 8),
        ] {
            let second = notify(flagged(second, CommandFlags::ORDERED), BELL);
            let mut scene = Scene::behind(failure, &[second]);
            assert_eq!((scene.byte(), scene.rings()), (0, 0), "{failure:?}");
            let third = inline(3, PAGE_AT + 0x100, 8);
            scene.goes_on(notify(flagged(third, CommandFlags::ORDERED), BELL));
            assert_eq!((scene.byte(), scene.rings()), (7, 1), "{failure:?}");
            scene.at_rest();
        }
    }
}

#[test]
fn an_append_gets_no_place_and_raises_nothing() {
    for failure in FAILURES {
        for flags in [CommandFlags::INLINE, CommandFlags::empty()] {
            let append = |op| Command {
                flags: flags | CommandFlags::APPEND,
                capability: CapabilitySlot(APPEND),
                ..write(op, 0, 0x50000, 8)
            };
            let mut scene = Scene::behind(failure, &[append(2), append(3)]);
            assert_eq!(scene.record(0), None, "{failure:?}");
            assert_eq!(scene.world.nodes[1].signals(1, RAISES), 0);
            scene.goes_on(append(4));
            assert_eq!(scene.record(0).map(|record| record.status), Some(Status::Ok));
            assert_eq!(scene.world.nodes[1].signals(1, RAISES), 1);
            let held = |node: &Node| node.counters().appends_held + node.counters().commands_held;
            assert_eq!(scene.world.nodes.iter().map(held).sum::<u64>(), 2);
            scene.at_rest();
        }
    }
}

#[test]
fn an_ordered_atomic_is_not_carried_out_and_its_caller_is_told() {
    let queue = [
        (Opcode::FetchAdd, 5),
        (Opcode::SemV, 0),
        (Opcode::SemP, 8),
        (Opcode::Enqueue, 8),
        (Opcode::Dequeue, 0),
    ];
    for failure in FAILURES {
        for (opcode, operand) in queue {
            let ordered = |op| {
                let command = word_op(op, opcode, CommandFlags::ORDERED, operand);
                Command {
                    remote: VirtAddr(if opcode.operand_bytes(true) == 32 {
                        PAGE_AT
                    } else {
                        PAGE_AT + 8
                    }),
                    ..command
                }
            };
            let mut scene = Scene::behind(failure, &[ordered(2)]);
            let page = &scene.world.nodes[1].board.pages[&scene.ppn];
            assert!(page[..64].iter().all(|&byte| byte == 0), "{failure:?} {opcode:?}");
            let reply = scene.reply(2).expect("an answer");
            assert_eq!((reply.status, reply.value), (Status::HeldBack, 0), "{failure:?}");
            scene.goes_on(ordered(3));
            assert_eq!(scene.reply(3).map(|reply| reply.status), Some(Status::Ok));
            scene.at_rest();
        }
    }
}

#[test]
fn an_atomic_that_asks_for_no_order_is_carried_out() {
    for failure in FAILURES {
        let add = word_op(2, Opcode::FetchAdd, CommandFlags::empty(), 5);
        let mut scene = Scene::behind(failure, &[add]);
        assert_eq!(scene.word(), 5, "{failure:?}");
        assert_eq!(scene.reply(2).map(|reply| reply.status), Some(Status::Ok));
        scene.at_rest();
    }
}

#[test]
fn reads_are_answered_ordered_or_not() {
    for failure in FAILURES {
        for flags in [CommandFlags::empty(), CommandFlags::ORDERED] {
            let read = Command {
                opcode: Opcode::Read,
                flags,
                reply: ReplySlot(2),
                ..write(2, PAGE_AT, 0x60000, 8)
            };
            let mut scene = Scene::behind(failure, &[read]);
            let status = scene.reply(2).map(|reply| reply.status);
            assert_eq!(status, Some(Status::Ok), "{failure:?}");
            scene.at_rest();
        }
    }
}

/// It says what the receiver knows; a failure at the source is in the error ring before its answer.
#[test]
fn a_flush_is_answered_after_the_failure_was_told() {
    for failure in FAILURES {
        let flush = Command {
            opcode: Opcode::FlushRemote,
            reply: ReplySlot(2),
            ..write(2, 0, 0, 0)
        };
        let mut scene = Scene::behind(failure, &[flush]);
        let reply = scene.reply(2).expect("an answer");
        if failure == Failure::Refused {
            assert_eq!((reply.status, reply.value), (Status::CapabilityRefused, 1));
        } else {
            assert_eq!(reply.status, Status::Ok);
        }
        scene.at_rest();
    }
}

#[test]
fn what_stands_alone_lands_and_signals() {
    for failure in FAILURES {
        let alone = CommandFlags::REGARDLESS | CommandFlags::ORDERED;
        let write = notify(flagged(inline(2, PAGE_AT + 0x100, 8), alone), BELL);
        let add = word_op(3, Opcode::FetchAdd, alone, 5);
        let mut scene = Scene::behind(failure, &[write, add]);
        assert_eq!(
            (scene.byte(), scene.rings(), scene.word()),
            (7, 1, 5),
            "{failure:?}"
        );
        assert_eq!(scene.reply(3).map(|reply| reply.status), Some(Status::Ok));
        scene.at_rest();
    }
}

/// The drivers' messages belong to no port.
#[test]
fn control_messages_go_on() {
    for failure in FAILURES {
        let mut scene = Scene::behind(failure, &[]);
        scene.world.nodes[0].tell(HostEvent::SendControl {
            peer: NodeId(1),
            slot: 0,
            token: Token(1),
        });
        scene.world.run();
        assert_eq!(scene.world.nodes[1].counters().control_received, 1);
        scene.at_rest();
    }
}

/// A stream is a port and a node: neither another port nor another node waits.
#[test]
fn other_streams_go_on() {
    for failure in FAILURES {
        let mut scene = Scene::behind(failure, &[]);
        scene.world.nodes[0].open(2, 7);
        let other = Capability {
            modes: Modes::all(),
            holder_port: PortId(2),
            ..capability(0)
        };
        scene.world.nodes[1].grant(6, &other);
        let bell = Command {
            capability: CapabilitySlot(6),
            ..notify(inline(2, PAGE_AT + 0x100, 8), BELL)
        };
        let ordered = flagged(bell, CommandFlags::ORDERED);
        assert!(scene.world.nodes[0].post(2, &ordered, &[7; 8]));
        scene.world.run();
        assert_eq!((scene.byte(), scene.rings()), (7, 1), "{failure:?}");
        scene.at_rest();
    }
}

/// A queue block is what it was.
#[test]
fn what_is_held_back_leaves_a_queue_block_as_it_was() {
    let block = QueueBlock {
        value: 3,
        ..QueueBlock::default()
    };
    for failure in FAILURES {
        let give = Command {
            remote: VirtAddr(PAGE_AT),
            ..word_op(2, Opcode::SemV, CommandFlags::ORDERED, 0)
        };
        let take = Command {
            remote: VirtAddr(PAGE_AT),
            ..word_op(3, Opcode::SemP, CommandFlags::empty(), 0)
        };
        let mut scene = Scene::behind(failure, &[]);
        let page = scene.world.nodes[1].board.pages.get_mut(&scene.ppn).unwrap();
        for (bytes, word) in page.chunks_mut(8).zip(block.encode()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        scene.post(give);
        scene.post(take);
        scene.world.run();
        let found = scene.reply(3).expect("an answer");
        assert_eq!(found.second as u32, 3, "no token was added: {failure:?}");
        scene.at_rest();
    }
}

/// What was under way when its link was lost holds back its own port, and not the next one of the same number, in
/// whatever order port and link go.
#[test]
fn a_lost_link_holds_back_the_port_that_used_it_and_not_its_heir() {
    for (reopened, first) in [(false, false), (true, false), (true, true)] {
        let mut scene = Scene::behind(Failure::BadAddress, &[]);
        let epoch = Epoch(1);
        scene.post(Command {
            epoch,
            ..inline(2, PAGE_AT, 8)
        });
        // It has left, and is never acknowledged.
        let now = scene.world.now;
        scene.world.nodes[0].poll(now);
        scene.world.nodes[0].board.outbox.clear();
        let reopen = |world: &mut World| {
            world.nodes[0].tell(HostEvent::PortClose {
                port: PortId(1),
                generation: Generation(7),
            });
            world.nodes[0].poll(world.now);
            world.nodes[0].open(1, 8);
            world.nodes[0].poll(world.now);
        };
        if reopened && first {
            reopen(&mut scene.world);
        }
        scene.world.pass(Nanos::from_millis(2000));
        assert_eq!(scene.world.nodes[0].counters().links_lost, 1);
        for node in &mut scene.world.nodes {
            let peer = NodeId(1 - node.id.0);
            node.tell(HostEvent::PeerConnect { peer });
        }
        scene.world.pass(Nanos::from_millis(200));
        if reopened && !first {
            reopen(&mut scene.world);
        }
        let bell = notify(inline(3, PAGE_AT, 0), BELL);
        assert!(scene.world.nodes[0].post(1, &Command { epoch, ..bell }, &[]));
        scene.world.run();
        assert_eq!(scene.rings(), u32::from(reopened), "{reopened} {first}");
    }
}

/// What a card does when a port is opened does not grow with the number of nodes (promise P7).
#[test]
fn to_open_a_port_costs_the_same_among_two_nodes_and_among_sixty() {
    let cost = |nodes| {
        let mut world = World::new(nodes, 0);
        let node = &mut world.nodes[0];
        node.open(1, 7);
        let before = looks();
        node.poll(Nanos(0));
        looks() - before
    };
    assert_eq!(cost(2), cost(60));
}

/// A message that was refused has not landed, whatever kind it is; what is on its way has not, either.
#[test]
fn landed_counts_what_has_landed() {
    let refused = |command: Command| Command {
        capability: CapabilitySlot(NOTHING),
        ..command
    };
    let read = Command {
        opcode: Opcode::Read,
        reply: ReplySlot(2),
        ..write(2, PAGE_AT, 0x60000, 8)
    };
    let add = word_op(3, Opcode::FetchAdd, CommandFlags::empty(), 5);
    let mut scene = Scene::behind(Failure::BadAddress, &[]);
    for command in [read, add, inline(4, PAGE_AT, 8)] {
        scene.goes_on(refused(command));
    }
    let counters = scene.world.nodes[1].counters();
    assert_eq!((counters.messages_landed, counters.messages_failed), (0, 3));
    assert_eq!(
        scene.reply(2).map(|reply| reply.status),
        Some(Status::CapabilityRefused)
    );
    assert_eq!(
        scene.reply(3).map(|reply| reply.status),
        Some(Status::CapabilityRefused)
    );

    scene.world.auto_dma = false;
    scene.goes_on(Command {
        epoch: Epoch(2),
        ..inline(5, PAGE_AT, 8)
    });
    let dma = scene.world.nodes[1].board.dmas.len();
    assert_eq!((dma, scene.world.nodes[1].counters().zero_copy), (1, 0));
    let now = scene.world.now;
    scene.world.nodes[1].end_dma(now, 0, false);
    assert_eq!(scene.world.nodes[1].counters().zero_copy, 0, "it failed");
    scene.world.auto_dma = true;
    scene.goes_on(Command {
        epoch: Epoch(3),
        ..inline(6, PAGE_AT, 8)
    });
    assert_eq!(scene.world.nodes[1].counters().zero_copy, 1);
}
