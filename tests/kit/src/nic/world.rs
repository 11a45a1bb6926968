//! Several nodes and the wire between them, in one thread, one small step at a time.

use super::{Message, Node, geometry};
use netvm_abi::event::HostEvent;
use netvm_abi::*;
use netvm_nic::Config;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Nodes and the wire between them.
pub struct World {
    /// Hosts answer by themselves.
    pub hosts: bool,
    /// The nodes, by number.
    pub nodes: Vec<Node>,
    /// The time.
    pub now: Nanos,
    /// Messages on their way.
    pub wire: Vec<Message>,
    /// What is decided by chance.
    pub rng: ChaCha8Rng,
    /// Take messages and DMAs in any order.
    pub shuffle: bool,
    /// Let DMAs end by themselves.
    pub auto_dma: bool,
    /// Which messages the wire loses.
    pub lost: Box<dyn FnMut(&Message) -> bool>,
    /// Which messages of the others it delivers twice.
    pub doubled: Box<dyn FnMut(&Message) -> bool>,
}

impl World {
    /// Nodes that do not know each other yet. A seed of 0: everything happens in order.
    pub fn new(count: u16, seed: u64) -> Self {
        Self::with(count, seed, geometry(count), |_| {})
    }

    /// The same with tables and configurations of its own.
    ///
    /// # Panics
    /// A NIC refuses its configuration.
    pub fn with(count: u16, seed: u64, geometry: Geometry, change: impl Fn(&mut Config)) -> Self {
        let nodes = (0..count)
            .map(|id| {
                let mut config = Config {
                    node: NodeId(id),
                    geometry,
                    incarnation_seed: 0x1000 * u32::from(id + 1) + seed as u32,
                    ..Config::default()
                };
                change(&mut config);
                Node::new(config)
            })
            .collect();
        Self {
            nodes,
            now: Nanos(0),
            wire: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            shuffle: seed != 0,
            auto_dma: true,
            hosts: false,
            lost: Box::new(|_| false),
            doubled: Box::new(|_| false),
        }
    }

    /// One small step: something arrives or ends. False: nothing is left to happen.
    pub fn step(&mut self) -> bool {
        self.now.0 += 100;
        let mut moved = false;
        for node in &mut self.nodes {
            moved |= node.poll(self.now);
            if self.hosts {
                moved |= node.serve_host();
            }
            for message in node.board.outbox.drain(..) {
                if (self.lost)(&message) {
                    continue;
                }
                if (self.doubled)(&message) {
                    self.wire.push(message.clone());
                }
                self.wire.push(message);
            }
        }
        if self.auto_dma {
            let mut busy: Vec<usize> = (0..self.nodes.len())
                .filter(|&at| !self.nodes[at].board.dmas.is_empty())
                .collect();
            if self.shuffle && !self.wire.is_empty() && self.rng.random_bool(0.5) {
                busy.clear();
            }
            if let Some(&at) = busy.get(self.pick(busy.len())) {
                let index = self.pick(self.nodes[at].board.dmas.len());
                self.nodes[at].end_dma(self.now, index, true);
                return true;
            }
        }
        if !self.wire.is_empty() {
            let at = self.pick(self.wire.len());
            let message = self.wire.remove(at);
            let to = message.header.destination.index();
            self.nodes[to].deliver(self.now, &message);
            return true;
        }
        moved
    }

    fn pick(&mut self, len: usize) -> usize {
        if self.shuffle && len > 1 {
            self.rng.random_range(0..len)
        } else {
            0
        }
    }

    /// Steps until nothing is left to happen.
    ///
    /// # Panics
    /// That does not come.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// Lets time pass: timers run.
    pub fn pass(&mut self, span: Nanos) {
        let end = self.now.after(span);
        self.run();
        while self.next_deadline().is_some_and(|next| next <= end) {
            self.run_timers();
            self.run();
        }
        self.now = Nanos(self.now.0.max(end.0));
    }

    /// When the next timer of a node is due.
    fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = self.nodes.iter().filter_map(|node| node.nic.next_deadline());
        deadlines.min()
    }

    /// One small step, with the timers that are due by then; where nothing is left to happen, time passes until one is.
    pub fn step_in_time(&mut self) {
        let moved = self.step();
        if !moved || self.next_deadline().is_some_and(|next| next <= self.now) {
            self.run_timers();
        }
    }

    /// Lets time pass until the next timer is due, and runs it.
    fn run_timers(&mut self) {
        let next = self.next_deadline().unwrap_or_default();
        self.now = Nanos(self.now.0.max(next.0));
        for node in &mut self.nodes {
            while node.nic.handle_timers(&mut node.board, self.now) {}
        }
    }

    /// From now on the wires may lose frames, as far as the NICs know. Before the links come up.
    #[must_use]
    pub fn lossy(mut self) -> Self {
        self.nodes.iter_mut().for_each(|node| node.board.lossy = true);
        self
    }

    /// Two nodes with windows of these sizes, that are not linked yet.
    #[must_use]
    pub fn of_windows([first, second]: [u16; 2]) -> Self {
        let with = |window| Geometry {
            window,
            ..geometry(2)
        };
        let mut world = Self::with(2, 0, with(first), |_| {});
        world.nodes[1] = Node::new(Config {
            node: NodeId(1),
            geometry: with(second),
            ..Config::default()
        });
        world
    }

    /// Opens port 1 on every node, links all, and lets node 0 reach node 1's pages at `0x10000..`.
    pub fn connected(count: u16, seed: u64) -> Self {
        Self::connect(Self::new(count, seed))
    }

    /// Opens port 1 on every node and links all.
    ///
    /// # Panics
    /// A link does not come up.
    pub fn connect(mut world: Self) -> Self {
        let count = world.nodes.len() as u16;
        for at in 0..count {
            let node = &mut world.nodes[usize::from(at)];
            node.open(1, 7);
            for peer in 0..count {
                node.tell(HostEvent::PeerConnect { peer: NodeId(peer) });
            }
        }
        world.run();
        for node in &world.nodes {
            assert_eq!(node.nic.counters().links_up, u64::from(count), "node {}", node.id);
        }
        world
    }
}
