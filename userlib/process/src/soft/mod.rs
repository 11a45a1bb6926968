//! A node of the software card: this process as a node, linked to other processes of the machine by shared memory, and to
//! processes anywhere by UDP.
//!
//! ```no_run
//! use netvm::Timeout;
//! use netvm_process::SoftNode;
//!
//! // In one process:
//! let server = SoftNode::builder().name("store").start()?;
//! // In another:
//! let node = SoftNode::builder().start()?;
//! let store = node.connect("store", std::time::Duration::from_secs(5))?;
//! let port = netvm::Port::open(&node.node(), netvm::PortConfig::default())?;
//! let inbox = port.import(store, 7.into(), "inbox", Timeout::Never)?;
//! # let _ = (server, inbox);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod card;
mod exit;
mod memory;
mod page_map;
pub mod report;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netvm_abi::{Geometry, Nanos, NodeId};
use netvm_host::attach::HostConfig;
use netvm_soft::Parts;
use netvm_soft::card::{CardStats, Core, SoftCard};
use netvm_soft::direct::Direct;
pub use netvm_soft::link_error::LinkError;
use netvm_soft::link_error::advice;
use netvm_soft::memory::has_room;
use netvm_soft::message::Pools;
use netvm_soft::shm::introduce;
pub use netvm_soft::shm::running::{Running, running};
use netvm_soft::shm::wires::Wires;
use netvm_soft::udp::Udp;
pub use netvm_soft::udp::{ClusterKey, KeyFileError, UdpStats};
use rustix::io::Errno;
use tracing::info;

use crate::backend::NodeBackend;
use crate::life::Life;
use crate::machine::{Threads, Whole};
use crate::node::{self, NodeParts};

use card::ProcessCard;
use memory::ProcessMemory;

/// The most nodes that know each other, if a program does not say.
pub const DEFAULT_NODES: u16 = 64;

/// Messages that may be on their way to each peer of a node that has UDP, if nothing else is said ([`SoftBuilder::window`]). A
/// datagram comes back acknowledged only when the other process has had a processor, so a stream needs more of them under way than
/// over shared memory, whose rings a wider window would only make the cache forget.
pub const DEFAULT_UDP_WINDOW: u16 = 256;
/// Bytes that a write may carry in its descriptor.
const INLINE_BYTES: u16 = 128;
/// How long a peer may be silent before its link is lost ([`SoftBuilder::peer_timeout`]), in milliseconds.
pub const PEER_TIMEOUT_MILLIS: std::ops::RangeInclusive<u64> = 200..=600_000;

/// How long a page may take to come before its operation fails ([`SoftBuilder::page_timeout`]), in milliseconds.
pub const PAGE_TIMEOUT_MILLIS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
/// How a name begins that is an address for UDP ([`SoftNode::connect`]).
pub const UDP_SCHEME: &str = "udp://";
/// Address space that must be free when a node starts: for tables, threads, links and ports. What is missing later may end the process:
/// allocations of Rust do not fail.
const ROOM: usize = 64 << 20;
/// Rows of the card's page table: room for 256 MiB of pages that were used, before the least used ones go.
const PAGE_ROWS: u32 = 1 << 15;
/// How long a look at a link that is being greeted takes.
const GREETING: Duration = Duration::from_millis(20);
/// How long a number may be taken by a node that has ended, at another one that has not heard its farewell.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long the first of several addresses is asked before the next one is.
const TURN: Duration = Duration::from_millis(250);
/// How long a port or a node that ends waits for what was posted: until it has left, is in its peers' rings, or, over UDP, has been
/// received.
const LINGER: Duration = Duration::from_secs(1);

/// Why a node could not be started, or could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SoftError {
    /// There is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A number makes no sense.
    #[error("{0}")]
    Config(String),
    /// The link does not come up.
    #[error("the other process has made a link, but its card does not answer")]
    Silent,
    /// The call came from a child of the process that opened the node.
    #[error("a child of fork has no part in its parent's node: open a node of its own")]
    Forked,
    /// An address for UDP is none, or cannot be bound.
    #[error("{address}: {source}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// UDP that other machines reach was not asked for by name.
    #[error(
        "{0} is reached by other machines, and this node has no key that encrypts UDP: a machine that sees the traffic can read and \
         write what the nodes export. Give it a `key`, bind to 127.0.0.1, or allow it with `insecure`"
    )]
    Insecure(SocketAddr),
    /// The kernel refused.
    #[error("{}: {}{}", .0, .1, advice(*.1))]
    System(&'static str, Errno),
    /// There is no thread.
    #[error(
        "a thread: {0}. A limit of threads or of address space is reached: raise it (`ulimit -u`, `ulimit -v`, or the container's)"
    )]
    Thread(std::io::Error),
}

/// Chooses what a node is like, then [`start`](Self::start)s it.
#[derive(Clone, Debug)]
pub struct SoftBuilder {
    name: Option<String>,
    number: Option<NodeId>,
    nodes: u16,
    ports: u16,
    payload: Option<u32>,
    window: Option<u16>,
    windows: Option<u16>,
    capabilities: Option<u32>,
    names: Option<u16>,
    udp: Option<String>,
    insecure: bool,
    key: Option<ClusterKey>,
    peer_timeout: Option<Duration>,
    page_timeout: Option<Duration>,
}

impl SoftBuilder {
    /// A name that others find this node by, as long as the process lives.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The node's number; the lowest that no other node of this user has, if not set.
    #[must_use]
    pub fn number(mut self, number: u16) -> Self {
        self.number = Some(NodeId(number));
        self
    }

    /// Node numbers are below this; [`DEFAULT_NODES`] if not set.
    #[must_use]
    pub fn nodes(mut self, nodes: u16) -> Self {
        self.nodes = nodes;
        self
    }

    /// Ports of the node, the driver's included; 64 if not set.
    #[must_use]
    pub fn ports(mut self, ports: u16) -> Self {
        self.ports = ports;
        self
    }

    /// The largest payload of a message, in bytes. If not set, a page. The smaller one of both ends counts. A path over UDP that takes
    /// no such datagrams has smaller messages: which ones it takes is found out while the link is made.
    #[must_use]
    pub fn payload(mut self, bytes: u32) -> Self {
        self.payload = Some(bytes);
        self
    }

    /// With how many nodes messages may be under way at once, in each direction, this one included: with all [`nodes`](Self::nodes) if
    /// not set. If fewer, links share them: one that is at rest has none. Each takes memory for its messages; a node at rest takes half
    /// a KiB.
    #[must_use]
    pub fn windows(mut self, windows: u16) -> Self {
        self.windows = Some(windows);
        self
    }

    /// How many messages may be on their way to each peer: a power of two from 64 to 1,024. The smaller one of both ends counts. If not
    /// set, 64, and [`DEFAULT_UDP_WINDOW`] at a node that has UDP.
    ///
    /// A port has a half of it, so one stream of writes moves half a window of [payloads](Self::payload) in a round trip. With 64
    /// and 1,024 bytes those are 32 KiB: 320 MB/s where a round trip takes 100 us, 3 MB/s where it takes 10 ms. A wide window
    /// also keeps a stream going where the network loses much. It costs memory: half a KiB for each message of each
    /// window, so 26 MiB more for 1,024 messages and [`DEFAULT_NODES`].
    #[must_use]
    pub fn window(mut self, messages: u16) -> Self {
        self.window = Some(messages);
        self
    }

    /// How many rights to this node's memory the card keeps at once, imports by other ports and leases together: up to 1,048,576;
    /// 1,024 if not set. One port can give nearly half of them away as leases, and one node can import half of them.
    ///
    /// Each takes 96 bytes of the card's memory, and some 200 of the driver's.
    #[must_use]
    pub fn capabilities(mut self, rights: u32) -> Self {
        self.capabilities = Some(rights);
        self
    }

    /// How many names the node's ports may have given to memory at once (exports), and how many of other nodes' they may hold (imports),
    /// each: 1 to 65,535; 1,024 if not set. One port may have half of them, and a part of the other half.
    #[must_use]
    pub fn names(mut self, names: u16) -> Self {
        self.names = Some(names);
        self
    }

    /// Links by UDP as well, bound to this address, such as `127.0.0.1:4800`; with port 0 the kernel chooses one
    /// ([`SoftNode::udp_address`]).
    ///
    /// Both ends must have different [numbers](Self::number): a number means the same node to all that it is linked to.
    #[must_use]
    pub fn udp(mut self, address: impl Into<String>) -> Self {
        self.udp = Some(address.into());
        self
    }

    /// The key of a cluster. Everything that goes over UDP is then encrypted and authenticated by it, and nothing else is taken:
    /// nodes with other keys, or with none, get no link. Links over shared memory stay as they are.
    #[must_use]
    pub fn key(mut self, key: ClusterKey) -> Self {
        self.key = Some(key);
        self
    }

    /// How long a peer of a node with UDP may be silent while something is outstanding, before its link is lost and operations fail
    /// with [`LinkLost`](netvm::Status::LinkLost); 3.2 s if not set. 200 ms to 10 minutes ([`PEER_TIMEOUT_MILLIS`]).
    ///
    /// A short time finds a machine that is gone earlier, and takes one that is only slow, or a network that fails for a moment, for
    /// gone. It holds for the node's links over shared memory, too. For as long a node that is silent keeps its number: then another
    /// address may have it. The other side has a time of its own.
    #[must_use]
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.peer_timeout = Some(timeout);
        self
    }

    /// How long one page of this node's memory may take to come before the operation that waits for it fails with
    /// [`TimedOut`](netvm::Status::TimedOut); 30 s if not set. 100 ms to an hour ([`PAGE_TIMEOUT_MILLIS`]).
    ///
    /// Most memory comes within milliseconds. A file's server may be silent, and so may a handler of `userfaultfd`. What waits
    /// behind such a page in the same port fails after as long again; a page that comes late is used by the next operation.
    #[must_use]
    pub fn page_timeout(mut self, timeout: Duration) -> Self {
        self.page_timeout = Some(timeout);
        self
    }

    /// UDP may be bound to an address that other machines reach, though there is no [key](Self::key) and nothing is encrypted.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Starts the node.
    ///
    /// # Errors
    /// [`SoftError`].
    pub fn start(self) -> Result<SoftNode, SoftError> {
        if self.number.is_some_and(|number| number.0 >= self.nodes) {
            return Err(SoftError::Config(format!(
                "node numbers are below {}: `nodes` sets another limit",
                self.nodes
            )));
        }
        self.check_peer_timeout()?;
        let page_deadline = self.page_deadline()?;
        let (number, listener) = introduce::claim(self.number, self.nodes)?;
        let mut listeners = vec![listener];
        if let Some(name) = &self.name {
            listeners.push(introduce::listen_as(name)?);
        }
        let at = self.udp.as_deref().map(address::first_of).transpose()?;
        let payload = self.payload.unwrap_or(netvm_abi::PAGE_SIZE);
        let udp = match (at, &self.udp) {
            (Some(at), Some(address)) => Some(self.bind((at, address), number, payload)?),
            _ => None,
        };
        let timers = card::timers(udp.is_some(), self.peer_timeout);
        let usual = Geometry::default();
        let unasked = if udp.is_some() {
            DEFAULT_UDP_WINDOW
        } else {
            usual.window
        };
        let window = self.window.unwrap_or(unasked);
        let geometry = Geometry {
            payload,
            ports: self.ports,
            nodes: self.nodes,
            page_rows: PAGE_ROWS,
            window,
            windows: self.windows.unwrap_or(self.nodes).max(2),
            // What is on its way stands in one each, until the other end has it.
            staging: usual.staging.max(window),
            reads: usual.reads.max(window),
            capabilities: self.capabilities.unwrap_or(usual.capabilities),
            ..usual
        };
        geometry
            .validate()
            .map_err(|error| SoftError::Config(error.to_string()))?;
        let parts =
            Parts::new(number, geometry).map_err(|errno| SoftError::System("memory of a card", errno))?;
        has_room(ROOM).map_err(|errno| SoftError::System("room for threads, links and ports", errno))?;
        let wires = Wires::new(number, self.nodes).with_udp(udp);
        let devices = (Direct::default(), wires);
        let core = Core::new(&parts, devices, &Pools::default(), timers, INLINE_BYTES)
            .map_err(|error| SoftError::Config(error.to_string()))?;
        let soft = SoftCard::new((number, self.nodes), core, listeners)
            .map_err(|errno| SoftError::System("an eventfd", errno))?;
        let soft = Arc::new(soft);
        let life = Life::present().map_err(|errno| SoftError::System("memory of a card", errno))?;
        let machine = ProcessCard::new(Arc::clone(&soft), life, &parts);
        let usual = HostConfig::default();
        let names = self.names.map_or(usual.exports, u32::from);
        let config = HostConfig {
            page_deadline,
            exports: names,
            imports: names,
            ..usual
        };
        let host = node::attach(&parts, machine, &config)
            .map_err(|error| SoftError::Config(format!("driver: {error}")))?;
        let node = Arc::new(NodeParts::new(parts, host, ProcessMemory::new()));
        let inner = Arc::new(Inner {
            node,
            card: soft,
            threads: Threads::default(),
        });
        inner.start()?;
        exit::remember(&inner);
        Ok(SoftNode { inner })
    }

    fn bind(
        &self,
        (at, address): (SocketAddr, &str),
        number: NodeId,
        payload: u32,
    ) -> Result<Udp, SoftError> {
        if !at.ip().is_loopback() && !self.insecure && self.key.is_none() {
            return Err(SoftError::Insecure(at));
        }
        let bound = Udp::bind(at, (number, self.nodes), payload).map_err(|source| SoftError::Address {
            address: address.into(),
            source,
        });
        let bound = bound?.with_key(self.key.clone());
        Ok(match self.peer_timeout {
            Some(timeout) => bound.with_silence(Nanos(timeout.as_nanos() as u64)),
            None => bound,
        })
    }

    fn page_deadline(&self) -> Result<Nanos, SoftError> {
        let Some(timeout) = self.page_timeout else {
            return Ok(HostConfig::default().page_deadline);
        };
        let (least, most) = (*PAGE_TIMEOUT_MILLIS.start(), *PAGE_TIMEOUT_MILLIS.end());
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        if PAGE_TIMEOUT_MILLIS.contains(&millis) {
            return Ok(Nanos::from_millis(millis));
        }
        Err(SoftError::Config(format!(
            "`page_timeout` is {least} to {most} milliseconds, not {timeout:?}"
        )))
    }

    fn check_peer_timeout(&self) -> Result<(), SoftError> {
        let (least, most) = (*PEER_TIMEOUT_MILLIS.start(), *PEER_TIMEOUT_MILLIS.end());
        let limits = Duration::from_millis(least)..=Duration::from_millis(most);
        match self.peer_timeout {
            Some(timeout) if !limits.contains(&timeout) => Err(SoftError::Config(format!(
                "`peer_timeout` is {least} to {most} milliseconds, not {timeout:?}"
            ))),
            Some(_) if self.udp.is_none() => Err(SoftError::Config(
                "`peer_timeout` is for nodes with `udp`: over shared memory the kernel tells when a peer has ended".into(),
            )),
            _ => Ok(()),
        }
    }
}

/// All of a node; ends its threads when the last user has gone.
struct Inner {
    node: Arc<NodeParts<ProcessCard, ProcessMemory>>,
    card: Arc<SoftCard>,
    threads: Threads,
}

impl Inner {
    fn start(&self) -> Result<(), SoftError> {
        let host = Arc::downgrade(&self.node.host);
        self.card.on_link(Box::new(move |peer| {
            if let Some(host) = host.upgrade() {
                host.with(|core, glue, _| core.connect(glue, peer));
            }
        }));
        let (node, card) = (Arc::downgrade(&self.node), Arc::downgrade(&self.card));
        self.card.on_question(Box::new(move |question| {
            report::give(&*node.upgrade()?, &*card.upgrade()?, question)
        }));
        let node = Arc::downgrade(&self.node);
        self.card.reach_by(self.node.memory.reachable());
        self.card.on_interrupt(Box::new(move || {
            if let Some(node) = node.upgrade() {
                node.attend();
            }
        }));
        let card = Arc::clone(&self.card);
        let spawned = self.threads.spawn("netvm-card", move || card.help());
        spawned.map_err(SoftError::Thread)?;
        let host = Arc::clone(&self.node.host);
        let spawned = self.threads.spawn("netvm-driver", move || host.listen());
        spawned.map_err(SoftError::Thread)?;
        // No card sleeps or wakes by itself: every doorbell calls.
        self.node.host.set_sleeping();
        let me = self.node.card.node;
        self.node.host.with(|core, glue, _| core.connect(glue, me));
        Ok(())
    }
}

impl Inner {
    /// The process ends, by a call that runs no destructor: what was posted leaves, and peers hear a farewell.
    fn leave(&self) {
        if !self.node.host.machine.is_this_process() {
            return;
        }
        let begin = Instant::now();
        let left = || LINGER.saturating_sub(begin.elapsed());
        for port in self.node.ports() {
            self.card.drain(port, left());
        }
        self.card.leave(left());
    }
}

impl Whole for Inner {
    fn keep(&self, thread: JoinHandle<()>) {
        self.threads.keep(thread);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.node.host.machine.is_this_process() {
            return;
        }
        self.card.leave(LINGER);
        self.node.host.shut_down();
        self.card.shut_down();
        self.threads.join();
    }
}

/// This process as a node. Cheap to clone.
///
/// It lives as long as this value or any [`netvm::Node`], port or region made from it. A child of `fork` has no part in it.
#[derive(Clone)]
pub struct SoftNode {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for SoftNode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SoftNode({})", self.number())
    }
}

impl SoftNode {
    /// Chooses what a node is like.
    #[must_use]
    pub fn builder() -> SoftBuilder {
        SoftBuilder {
            name: None,
            number: None,
            nodes: DEFAULT_NODES,
            ports: 64,
            payload: None,
            window: None,
            windows: None,
            capabilities: None,
            names: None,
            udp: None,
            insecure: false,
            key: None,
            peer_timeout: None,
            page_timeout: None,
        }
    }

    /// The node's number.
    #[must_use]
    pub fn number(&self) -> NodeId {
        self.inner.node.card.node
    }

    /// The node, to open ports on.
    #[must_use]
    pub fn node(&self) -> netvm::Node {
        netvm::Node::new(Arc::new(NodeBackend {
            whole: Arc::clone(&self.inner) as Arc<dyn Whole>,
            parts: Arc::clone(&self.inner.node),
            name: "soft",
            inline_limit: usize::from(INLINE_BYTES),
        }))
    }

    /// Links this node to another one of the same user and machine, by its name or by `#` and its number, or to a node
    /// anywhere by the [address of its UDP](SoftBuilder::udp), such as `udp://10.0.0.7:4800`; and says what its number is. A host's name may have
    /// several addresses: all that this node's own UDP can send to are asked.
    /// Nodes that are linked already stay so.
    ///
    /// # Errors
    /// There is no such node, it says no, or it does not answer within `patience`. [`LinkError::NumberTaken`] names a number with
    /// which this node would find a place there.
    pub fn connect(&self, name: &str, patience: Duration) -> Result<NodeId, SoftError> {
        if !self.inner.node.host.machine.is_this_process() {
            return Err(SoftError::Forked);
        }
        let linked = self.link(name, Instant::now() + patience);
        if let Err(error) = &linked {
            info!(node = self.number().0, to = name, %error, "a node is given up");
        }
        linked
    }

    /// A link that is up by then.
    fn link(&self, name: &str, end: Instant) -> Result<NodeId, SoftError> {
        let peer = match name.strip_prefix(UDP_SCHEME) {
            Some(address) => {
                let own = self.udp_address().ok_or(LinkError::NoUdp)?;
                self.dial_one_of(&address::reached(address, own)?, end)?
            }
            None => self.inner.card.connect(name, end)?,
        };
        let host = &self.inner.node.host;
        while !host.wait_for_peers(
            &[peer],
            GREETING.min(end.saturating_duration_since(Instant::now())),
        ) {
            if Instant::now() >= end {
                return Err(SoftError::Silent);
            }
            // The card has given up greeting a peer that is slow to answer.
            host.with(|core, glue, _| core.connect(glue, peer));
        }
        Ok(peer)
    }

    /// A link over UDP with the node that has one of these addresses. Where none answers may be asked first: each is asked for a while,
    /// which is longer in each round.
    fn dial_one_of(&self, addresses: &[SocketAddr], end: Instant) -> Result<NodeId, LinkError> {
        if let [only] = addresses {
            return self.dial(*only, end);
        }
        let mut turn = TURN;
        loop {
            for address in addresses {
                match self.dial(*address, end.min(Instant::now() + turn)) {
                    Err(LinkError::TimedOut) if Instant::now() < end => {}
                    other => return other,
                }
            }
            turn *= 2;
        }
    }

    /// A link over UDP. The number of this node may just have been that of another one, whose farewell the other side has not
    /// heard yet: then it is asked again for a while.
    fn dial(&self, address: SocketAddr, end: Instant) -> Result<NodeId, LinkError> {
        let farewell = end.min(Instant::now() + FAREWELL);
        loop {
            match self.inner.card.dial(address, end) {
                Err(LinkError::NumberTaken { .. }) if Instant::now() < farewell => {
                    std::thread::sleep(FAREWELL / 50);
                }
                dialed => return dialed,
            }
        }
    }

    /// The address that the node's UDP is bound to.
    #[must_use]
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.inner.card.udp_address()
    }

    /// Whether the link to a node is up.
    #[must_use]
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.inner.node.host.is_up(peer)
    }

    /// Whether the card has nothing outstanding, so that nothing will be due.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.inner.card.is_quiet()
    }

    /// Ends a port as if its process had died at this instruction: no destructor of the library runs. Returns false if it is
    /// not open. The library's handles stay, and find the port dead. They are to be dropped before the number is opened again: a process
    /// that has died writes nothing more, but what still posts here writes into what the next port has there.
    pub fn kill(&self, port: netvm_abi::PortId) -> bool {
        self.inner.node.close_port(port, None)
    }

    /// What the card did so far.
    #[must_use]
    pub fn stats(&self) -> CardStats {
        self.inner.card.stats()
    }

    /// Time since the node was started.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.inner.card.now()
    }
}
