//! Building an emulator: nodes, cards, drivers, pagers, and the threads that run them.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_abi::frame::payload_for_mtu;
use netvm_abi::page_table::PageTable;
use netvm_abi::{Geometry, Nanos, NodeId, PortId};
use netvm_host::attach::HostConfig;
use netvm_nic::Timers;
use netvm_process::{NodeBackend, NodeParts, Threads, Whole, node};
use netvm_soft::Parts;
use netvm_soft::message::Pools;

use crate::capture::Capture;
use crate::dma::{DmaMode, Engine};
use crate::error::EmulatorError;
use crate::memory::EmulatedMemory;
use crate::network::{Core, Network};
use crate::places::EmulatedCard;
use crate::stats::NodeStats;
use crate::vm::pager::MIN_FRAMES;
use crate::vm::{FrameTable, Pager, PagerConfig};
use crate::wire::{Socket, Wires};

/// Most nodes in one emulator.
pub const MAX_NODES: u16 = 64;

/// Which threads run the cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicMode {
    /// The thread that posts a command, or otherwise has something for a card. The fast mode where cores are few.
    Inline,
    /// A thread per card.
    Threaded,
}

/// Chooses what an emulator is like, then [`start`](Self::start)s it.
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: u16,
    resident: u32,
    resident_of: HashMap<u16, u32>,
    mtu: u32,
    mtu_of: HashMap<u16, u32>,
    ports: u16,
    nic: NicMode,
    dma: DmaMode,
    inline_limit: u16,
    swap_directory: PathBuf,
    pcap: Option<PathBuf>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: 2,
            resident: 16_384,
            resident_of: HashMap::new(),
            mtu: 9000,
            mtu_of: HashMap::new(),
            ports: 64,
            nic: NicMode::Inline,
            dma: DmaMode::AtOnce,
            inline_limit: 128,
            swap_directory: std::env::temp_dir(),
            pcap: None,
        }
    }
}

impl Builder {
    /// The number of nodes, 1 to [`MAX_NODES`]; 2 if not set.
    #[must_use]
    pub fn nodes(mut self, nodes: u16) -> Self {
        self.nodes = nodes;
        self
    }

    /// How many pages of exported memory each node may keep resident; 16,384 (64 MiB) if not set.
    #[must_use]
    pub fn resident_pages(mut self, pages: u32) -> Self {
        self.resident = pages;
        self
    }

    /// The same for one node.
    #[must_use]
    pub fn resident_pages_of(mut self, node: u16, pages: u32) -> Self {
        self.resident_of.insert(node, pages);
        self
    }

    /// Largest IPv4 packet in bytes on every node's wire; 9000 if not set. Two nodes use the smaller of theirs.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }

    /// The same for one node.
    #[must_use]
    pub fn mtu_of(mut self, node: u16, bytes: u32) -> Self {
        self.mtu_of.insert(node, bytes);
        self
    }

    /// Ports of each node, the driver's included; 64 if not set.
    #[must_use]
    pub fn ports(mut self, ports: u16) -> Self {
        self.ports = ports;
        self
    }

    /// Which threads run the cards; inline if not set.
    #[must_use]
    pub fn nic(mut self, mode: NicMode) -> Self {
        self.nic = mode;
        self
    }

    /// When DMAs complete; at once if not set.
    #[must_use]
    pub fn dma(mut self, mode: DmaMode) -> Self {
        self.dma = mode;
        self
    }

    /// Writes of up to `bytes` bytes travel in their descriptor; 128 if not set, which is also the most.
    #[must_use]
    pub fn inline_limit(mut self, bytes: u16) -> Self {
        self.inline_limit = bytes;
        self
    }

    /// Where swap files are made; the system's directory for temporary files if not set.
    #[must_use]
    pub fn swap_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.swap_directory = directory.into();
        self
    }

    /// Writes what the wires carry to a pcap file.
    #[must_use]
    pub fn pcap(mut self, file: impl Into<PathBuf>) -> Self {
        self.pcap = Some(file.into());
        self
    }

    /// Starts the nodes, links them and waits until the links are up.
    ///
    /// # Errors
    /// [`EmulatorError`]; where [`EmulatorError::is_unsupported_here`] a setting of the machine must change.
    pub fn start(self) -> Result<Emulator, EmulatorError> {
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(EmulatorError::Config(format!(
                "{} nodes: an emulator has 1 to {MAX_NODES}",
                self.nodes
            )));
        }
        let capture = self
            .pcap
            .as_deref()
            .map(Capture::create)
            .transpose()?
            .map(Arc::new);
        let sockets: Arc<[Socket]> = (0..self.nodes).map(|_| Socket::default()).collect();
        let pools = Pools::default();
        let mut cores = Vec::new();
        let mut seeds = Vec::new();
        for node in 0..self.nodes {
            let seed = NodeSeed::new(&self, node)?;
            cores.push(self.core(&seed, &sockets, &pools, capture.as_ref())?);
            seeds.push(seed);
        }
        let network = Arc::new(Network::new(cores, sockets, self.nic == NicMode::Threaded));
        let mut inner = Inner {
            nodes: Vec::new(),
            network,
            threads: Threads::default(),
            inline_limit: usize::from(self.inline_limit),
        };
        for seed in seeds {
            inner.nodes.push(Arc::new(seed.finish(&self, &inner.network)?));
        }
        let inner = Arc::new(inner);
        inner.start_threads(self.nic)?;
        for parts in &inner.nodes {
            if self.nic == NicMode::Inline {
                // No card sleeps or wakes by itself: every doorbell calls.
                parts.host.set_sleeping();
            }
            for peer in 0..self.nodes {
                parts.host.with(|host, glue, _| host.connect(glue, NodeId(peer)));
            }
        }
        for parts in &inner.nodes {
            let peers: Vec<NodeId> = (0..self.nodes)
                .map(NodeId)
                .filter(|peer| *peer != parts.card.node)
                .collect();
            if !parts.host.wait_for_peers(&peers, Duration::from_secs(10)) {
                let text = format!(
                    "node {}: the links to its peers did not come up in 10 s",
                    parts.card.node
                );
                return Err(EmulatorError::Config(text));
            }
        }
        Ok(Emulator { inner })
    }

    fn core(
        &self,
        seed: &NodeSeed,
        sockets: &Arc<[Socket]>,
        pools: &Pools,
        capture: Option<&Arc<Capture>>,
    ) -> Result<Core, EmulatorError> {
        let table = (
            Arc::clone(&seed.card.bar),
            PageTable::of(&seed.card.geometry, seed.card.hash_key),
        );
        let node = seed.card.node;
        let engine = Engine::new(Arc::clone(&seed.frames), table, self.dma, node.0);
        let wires = Wires {
            node: node.index(),
            sockets: Arc::clone(sockets),
            arrived: VecDeque::new(),
            kicked: 0,
            threaded: self.nic == NicMode::Threaded,
            capture: capture.cloned(),
        };
        Core::new(&seed.card, (engine, wires), pools, timers(), self.inline_limit)
            .map_err(|error| EmulatorError::Config(format!("network card of node {node}: {error}")))
    }
}

/// In-memory wires lose nothing, and a thread may lose its processor for long: patience costs nothing here.
fn timers() -> Timers {
    Timers {
        probe_interval: Nanos::from_millis(2_000),
        gap_timeout: Nanos::from_millis(60_000),
        hello_interval: Nanos::from_millis(5),
        hello_limit: 250,
        ..Timers::default()
    }
}

/// What a node's card, driver and pager share, before they exist.
struct NodeSeed {
    card: Parts,
    frames: Arc<FrameTable>,
}

impl NodeSeed {
    fn new(builder: &Builder, node: u16) -> Result<Self, EmulatorError> {
        let resident = builder
            .resident_of
            .get(&node)
            .copied()
            .unwrap_or(builder.resident);
        if resident < MIN_FRAMES {
            let text =
                format!("node {node}: at least {MIN_FRAMES} resident pages are needed, not {resident}");
            return Err(EmulatorError::Config(text));
        }
        let mtu = builder.mtu_of.get(&node).copied().unwrap_or(builder.mtu);
        let payload = payload_for_mtu(mtu).ok_or_else(|| {
            EmulatorError::Config(format!("an MTU of {mtu} bytes is too small for a NetVM message"))
        })?;
        let geometry = Geometry {
            payload,
            ports: builder.ports,
            nodes: builder.nodes,
            // Room for every resident page twice over, so that rows seldom overflow.
            page_rows: resident.clamp(256, 1 << 23).next_power_of_two(),
            ..Geometry::default()
        };
        geometry
            .validate()
            .map_err(|error| EmulatorError::Config(error.to_string()))?;
        Ok(Self {
            card: Parts::new(NodeId(node), geometry).map_err(EmulatorError::os("memory of a card"))?,
            frames: Arc::new(FrameTable::new(resident)),
        })
    }

    /// Attaches the driver to the card and starts the pager.
    fn finish(self, builder: &Builder, network: &Arc<Network>) -> Result<EmulatedParts, EmulatorError> {
        let card = EmulatedCard {
            network: Arc::clone(network),
            node: self.card.node.index(),
            frames: Arc::clone(&self.frames),
            places: Arc::default(),
        };
        let places = Arc::clone(&card.places);
        let host = node::attach(&self.card, card, &HostConfig::default()).map_err(|error| {
            EmulatorError::Config(format!("driver of node {}: {error:?}", self.card.node))
        })?;
        let pager = PagerConfig {
            frames: self.frames.len(),
            swap_directory: builder.swap_directory.clone(),
        };
        let pager = Arc::new(Pager::with_table(&pager, self.frames, host.clone())?);
        Ok(NodeParts::new(self.card, host, EmulatedMemory { pager, places }))
    }
}

/// One node.
pub(crate) type EmulatedParts = NodeParts<EmulatedCard, EmulatedMemory>;

/// All of an emulator; ends its threads when the last user has gone.
pub(crate) struct Inner {
    nodes: Vec<Arc<EmulatedParts>>,
    network: Arc<Network>,
    threads: Threads,
    inline_limit: usize,
}

impl Inner {
    fn start_threads(&self, nic: NicMode) -> Result<(), EmulatorError> {
        match nic {
            NicMode::Inline => {
                let network = Arc::clone(&self.network);
                self.spawn("netvm-ticker", move || network.tick())?;
            }
            NicMode::Threaded => {
                for node in 0..self.nodes.len() {
                    let network = Arc::clone(&self.network);
                    self.spawn("netvm-nic", move || network.serve_alone(node))?;
                }
            }
        }
        for parts in &self.nodes {
            let host = Arc::clone(&parts.host);
            self.spawn("netvm-driver", move || host.listen())?;
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), EmulatorError> {
        let spawned = self.threads.spawn(name, body);
        spawned.map_err(|source| EmulatorError::Io {
            what: "thread",
            source,
        })
    }
}

impl Whole for Inner {
    fn keep(&self, thread: JoinHandle<()>) {
        self.threads.keep(thread);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for parts in &self.nodes {
            parts.host.shut_down();
        }
        self.network.shut_down();
        self.threads.join();
    }
}

/// An emulated network: nodes with cards, drivers and pagers, all in this process.
///
/// It lives as long as this value or any [`netvm::Node`], port or region made from it.
#[derive(Clone)]
pub struct Emulator {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Emulator {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Emulator({} nodes)", self.inner.nodes.len())
    }
}

impl Emulator {
    /// An emulator of `nodes` nodes with the [`Builder`]'s other choices.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn new(nodes: u16) -> Result<Self, EmulatorError> {
        Self::builder().nodes(nodes).start()
    }

    /// Chooses more.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.nodes.len()
    }

    /// Never: an emulator has a node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.nodes.is_empty()
    }

    /// A node, to open ports on.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn node(&self, node: usize) -> netvm::Node {
        assert!(node < self.len(), "node {node} of {}", self.len());
        netvm::Node::new(Arc::new(NodeBackend {
            whole: Arc::clone(&self.inner) as Arc<dyn Whole>,
            // `node` was just checked.
            parts: Arc::clone(&self.inner.nodes[node]),
            name: "emulator",
            inline_limit: self.inner.inline_limit,
        }))
    }

    /// What has happened on a node so far; `None` if there is no such node.
    #[must_use]
    pub fn stats(&self, node: usize) -> Option<NodeStats> {
        let parts = self.inner.nodes.get(node)?;
        Some(NodeStats::take(parts, &self.inner.network))
    }

    /// Ends a port as if its process had died at this instruction: no destructor of the library runs. Returns false if it is not
    /// open. The library's handles stay, and find the port dead.
    pub fn kill(&self, node: usize, port: PortId) -> bool {
        self.inner
            .nodes
            .get(node)
            .is_some_and(|parts| parts.close_port(port, None))
    }

    /// Bytes of memory that each node keeps for bounced payloads.
    #[must_use]
    pub fn bounce_bytes(&self, node: usize) -> u64 {
        let parts = self.inner.nodes.get(node);
        parts.map_or(0, |parts| parts.card.bounce.bytes())
    }
}
