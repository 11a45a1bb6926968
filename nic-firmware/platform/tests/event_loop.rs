//! The one loop: it brings a write from doorbell to notification, sleeps when nothing is left, and
//! loses no wake-up.

use netvm_abi::event::HostEvent;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NodeId, ReceiveId, StagingId};
use netvm_kit::Words;
use netvm_kit::nic::*;
use netvm_platform::{Device, DmaEnd, EventLoop, Frame};
use std::collections::VecDeque;

/// A board whose inputs the loop polls.
struct Polled<'a> {
    board: &'a mut Board,
    frames: &'a mut VecDeque<Message>,
    now: Nanos,
}

impl netvm_nic::platform::Platform for Polled<'_> {
    type Bar = Words;
    type Shared = Words;
    fn bar(&self) -> &Words {
        self.board.bar()
    }
    fn shared(&self) -> &Words {
        self.board.shared()
    }
    fn start_dma(&mut self, id: netvm_nic::platform::DmaId, dma: netvm_nic::platform::Dma) {
        self.board.start_dma(id, dma);
    }
    fn operand(&self, slot: u8) -> netvm_abi::atomic::Operand {
        self.board.operand(slot)
    }
    fn set_operand(&mut self, slot: u8, operand: &netvm_abi::atomic::Operand) {
        self.board.set_operand(slot, operand);
    }
    fn transmit(&mut self, header: &netvm_abi::wire::OwnHeader, payload: netvm_nic::platform::Payload<'_>) {
        self.board.transmit(header, payload);
    }
    fn release_receive(&mut self, receive: ReceiveId) {
        self.board.release_receive(receive);
    }
    fn interrupt(&mut self, whom: netvm_nic::platform::Interrupt) {
        self.board.interrupt(whom);
    }
}

impl Device for Polled<'_> {
    fn now(&mut self) -> Nanos {
        self.now
    }
    fn poll_frame(&mut self) -> Option<Frame> {
        let message = self.frames.pop_front()?;
        let mut bytes = message.header.encode().to_vec();
        bytes.extend_from_slice(&message.payload);
        let receive = self.board.receive(message.payload);
        Some(Frame::new(receive, &bytes, bytes.len()))
    }
    fn poll_dma(&mut self) -> Option<DmaEnd> {
        let (id, dma) = self.board.dmas.pop()?;
        self.board.do_dma(id, dma);
        Some(DmaEnd { id, ok: true })
    }
    fn poll_sent(&mut self) -> Option<StagingId> {
        self.board.sent.pop_front()
    }
    fn has_input(&mut self) -> bool {
        !self.frames.is_empty() || !self.board.dmas.is_empty() || !self.board.sent.is_empty()
    }
}

/// Passes until no loop has anything to do.
fn run(world: &mut World, loops: &mut [EventLoop], queues: &mut [VecDeque<Message>]) {
    let mut idle = 0;
    while idle < 3 {
        idle += 1;
        world.now.0 += 1000;
        for at in 0..loops.len() {
            let now = world.now;
            let Node { nic, board, .. } = &mut world.nodes[at];
            let mut device = Polled {
                board,
                frames: &mut queues[at],
                now,
            };
            let progress = loops[at].poll_once(nic, &mut device);
            if progress.worked || progress.more {
                idle = 0;
            }
            world.nodes[at].take_events();
            let out: Vec<Message> = world.nodes[at].board.outbox.drain(..).collect();
            for message in out {
                queues[message.header.destination.index()].push_back(message);
                idle = 0;
            }
        }
    }
}

#[test]
fn a_write_goes_through_the_loop_and_sleep_loses_no_doorbell() {
    let mut world = World::new(2, 0);
    let mut loops = [EventLoop::new(), EventLoop::new()];
    let mut queues = [VecDeque::new(), VecDeque::new()];
    for node in 0..2 {
        world.nodes[node].open(1, 7);
        world.nodes[node].tell(HostEvent::PeerConnect {
            peer: NodeId(1 - node as u16),
        });
    }
    run(&mut world, &mut loops, &mut queues);
    world.nodes[1].grant(3, &capability(0));
    world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].map(1, 0x5000, 5, true);
    world.nodes[0].fill(1, 0x5000, &[0x77; 300]);
    let sleeping = |world: &World| world.nodes[0].board.shared.load_acquire(status_page::SLEEPING);
    let try_sleep = |world: &mut World, loops: &mut [EventLoop], queues: &mut [VecDeque<Message>]| {
        let now = world.now;
        let Node { nic, board, .. } = &mut world.nodes[0];
        let mut device = Polled {
            board,
            frames: &mut queues[0],
            now,
        };
        loops[0].try_sleep(nic, &mut device)
    };
    assert!(try_sleep(&mut world, &mut loops, &mut queues));
    assert_eq!(sleeping(&world), 1);
    // A doorbell that was rung before the flag was seen is found by the second look.
    assert!(world.nodes[0].post(1, &notify(write(1, 0x12000, 0x5000, 300), 9), &[]));
    assert!(!try_sleep(&mut world, &mut loops, &mut queues));
    assert_eq!(sleeping(&world), 0);
    run(&mut world, &mut loops, &mut queues);
    assert_eq!(world.nodes[1].memory(1, 0x12000, 300), [0x77; 300]);
    assert_eq!(world.nodes[1].signals(1, 9), 1);
    // So is an event of the driver, and a frame.
    assert!(try_sleep(&mut world, &mut loops, &mut queues));
    world.nodes[0].tell(HostEvent::PeerConnect { peer: NodeId(0) });
    assert!(!try_sleep(&mut world, &mut loops, &mut queues));
    run(&mut world, &mut loops, &mut queues);
    let beats = world.nodes[0].board.shared.load_acquire(status_page::HEARTBEAT);
    assert!(beats > 10, "the heart beats with every pass");
}
