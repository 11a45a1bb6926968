//! A way that takes as long as a test likes.

use super::{Message, World, capability, inline};
use netvm_abi::wire::Kind;
use netvm_abi::{Nanos, NodeId};
use std::cell::RefCell;
use std::rc::Rc;

/// Nodes whose way from node 0 to node 1 and back can be made slow: what is on it is held.
pub struct Slow {
    /// The nodes. Node 0 writes to page `0x10000` of the others.
    pub world: World,
    held: Rc<RefCell<Vec<Message>>>,
    /// Writes that have been posted to node 1.
    pub posted: u32,
}

impl Slow {
    /// Linked, and nothing is on the way.
    pub fn new(nodes: u16) -> Self {
        let mut world = World::connect(World::new(nodes, 0).lossy());
        for node in 1..usize::from(nodes) {
            world.nodes[node].grant(3, &capability(0));
            world.nodes[node].map(1, 0x10000, 5, true);
        }
        let held = Rc::new(RefCell::new(Vec::new()));
        let hold = held.clone();
        world.lost = Box::new(move |message| {
            let slow = [message.header.source, message.header.destination].contains(&NodeId(1));
            if slow {
                hold.borrow_mut().push(message.clone());
            }
            slow
        });
        Self {
            world,
            held,
            posted: 0,
        }
    }

    /// Posts a write to node 1, if the queue has room.
    fn post(&mut self) -> bool {
        let command = inline(self.posted + 1, 0x10000 + u64::from(self.posted % 512) * 8, 8);
        let value = u64::from(self.posted).to_le_bytes();
        let room = self.world.nodes[0].post(1, &command, &value);
        self.posted += u32::from(room);
        room
    }

    /// Posts as many as the queue takes, and lets all cards act.
    pub fn fill(&mut self) {
        loop {
            self.world.run();
            if !self.post() {
                return;
            }
        }
    }

    /// Writes on the slow way.
    pub fn on_wire(&self) -> usize {
        let held = self.held.borrow();
        held.iter()
            .filter(|message| message.header.kind == Kind::Write)
            .count()
    }

    /// What is on the way arrives after a while.
    fn arrives_after(&mut self, span: Nanos) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        self.world.now = self.world.now.after(span);
        self.world.wire.extend(held);
        self.world.run();
    }

    /// A round trip that takes this long.
    pub fn round(&mut self, took: Nanos) {
        self.arrives_after(Nanos(took.0 / 2));
        self.arrives_after(Nanos(took.0 / 2));
    }

    /// Times that node 0 has cut a window.
    pub fn cuts(&self) -> u64 {
        self.world.nodes[0].counters().windows_cut
    }
}
