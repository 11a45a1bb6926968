//! Host memory and NIC memory with a bus between them that posts stores.
//!
//! Each side reaches its own memory at once. A store across the bus joins the other stores that go that way, and lands
//! later, in order: [`Bus::deliver`] runs in a thread of its own, so loom tries every lag. A full barrier does not wait
//! for it. A read across the bus does, as far as the [`Rules`] say. The barriers among processors have models of
//! their own ([`Words`](crate::Words)); here each access is one step that all see alike.

use loom::sync::Mutex;
use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;
use std::collections::{BTreeMap, VecDeque};

/// What a read across the bus does to posted stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The ordering rules of PCI: the request pushes the reader's stores ahead of it, and the answer those of the
    /// other side that were posted before it.
    Pci,
    /// The request pushes, but the answer overtakes stores that go the same way.
    AnswersOvertake,
}

/// What [`SharedWords::bus_barrier`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// A read across the bus.
    Read,
    /// A barrier among processors: the negative control.
    Processors,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The card, whose memory is NIC memory.
    Card,
    /// The host, whose memory the driver's is.
    Host,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Card => Self::Host,
            Self::Host => Self::Card,
        }
    }
}

/// Words that both sides store and load, by the side whose memory they are in.
#[derive(Debug, Default)]
struct Memory {
    words: [BTreeMap<u32, u32>; 2],
    /// By the side that stored: where to, and what.
    posted: [VecDeque<(u32, Vec<u32>)>; 2],
}

impl Memory {
    fn put(&mut self, of: Side, at: u32, values: &[u32]) {
        let words = &mut self.words[of as usize];
        words.extend((at..).zip(values.iter().copied()));
    }

    fn deliver(&mut self, from: Side) -> bool {
        let Some((at, values)) = self.posted[from as usize].pop_front() else {
            return false;
        };
        self.put(from.other(), at, &values);
        true
    }

    fn push(&mut self, from: Side) {
        while self.deliver(from) {}
    }

    /// A read of `side` across the bus.
    fn cross(&mut self, side: Side, rules: Rules) {
        self.push(side);
        if rules == Rules::Pci {
            self.push(side.other());
        }
    }
}

/// The bus and the memories at its ends. All words are zero.
#[derive(Debug)]
pub struct Bus {
    memory: Mutex<Memory>,
    rules: Rules,
    barrier: Barrier,
}

impl Bus {
    /// A bus on which nothing is under way.
    #[must_use]
    pub fn new(rules: Rules, barrier: Barrier) -> Self {
        Self {
            memory: Mutex::default(),
            rules,
            barrier,
        }
    }

    /// The memory of `of`, as `side` reaches it.
    #[must_use]
    pub const fn view(&self, side: Side, of: Side) -> View<'_> {
        View { bus: self, side, of }
    }

    /// The oldest store that `from` has posted lands, if there is one.
    pub fn deliver(&self, from: Side) {
        self.lock().deliver(from);
    }

    /// Every store lands: what is left under way when both sides have come to rest.
    pub fn rest(&self) {
        let mut memory = self.lock();
        memory.push(Side::Card);
        memory.push(Side::Host);
    }

    fn lock(&self) -> loom::sync::MutexGuard<'_, Memory> {
        self.memory
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// One side's way to a memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bus: &'a Bus,
    side: Side,
    of: Side,
}

impl SharedWords for View<'_> {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        let mut one = [0];
        self.load_slice(at, &mut one);
        one[0]
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.store_slice(at, &[value]);
    }

    // All stores keep their order, and each access is one step: there is nothing to order.
    fn full_barrier(&self) {}

    fn bus_barrier(&self) {
        if self.bus.barrier == Barrier::Read && self.side != self.of {
            self.bus.lock().cross(self.side, self.bus.rules);
        }
    }

    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        let mut memory = self.bus.lock();
        if self.side == self.of {
            memory.put(self.of, at.0, values);
        } else {
            memory.posted[self.side as usize].push_back((at.0, values.to_vec()));
        }
    }

    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        let mut memory = self.bus.lock();
        if self.side != self.of {
            memory.cross(self.side, self.bus.rules);
        }
        let words = &memory.words[self.of as usize];
        for (value, at) in into.iter_mut().zip(at.0..) {
            *value = words.get(&at).copied().unwrap_or(0);
        }
    }
}
