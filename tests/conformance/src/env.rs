//! What a body sees: its nodes, ports, sizes and random numbers.

use crate::cluster::{Cluster, Running};
use crate::outcome::Outcome;
use netvm::{Error, Nanos, Node, NodeId, NotificationId, Port, PortConfig, PortId, RemoteSegment, Timeout};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::Arc;
use std::time::Duration;

/// Ports that a body uses on a node, at most.
pub const PORTS_PER_CASE: u16 = 8;

/// A run of one body. Cheap to clone.
///
/// Several runs may share a cluster at the same time, with different [`first_port`](Self::first_port)s
/// where they share nodes.
#[derive(Clone)]
pub struct Env {
    /// The back end.
    pub cluster: Arc<dyn Cluster>,
    /// The nodes that the body calls 0, 1, 2 ...; at least as many as
    /// [`Case::nodes`](crate::Case::nodes). One may be there twice, unless the case needs them
    /// [apart](crate::Needs::Apart): then its second part uses other ports.
    pub nodes: Vec<u16>,
    /// First of [`PORTS_PER_CASE`] port numbers that the body may use on each of its nodes.
    pub first_port: u16,
    /// How much work: 1 is a few dozen messages, sizes grow in proportion.
    pub scale: u32,
    /// Decides sizes, offsets and contents.
    pub seed: u64,
    /// How long a body waits for anything before it calls it lost.
    pub patience: Duration,
    /// Whether anything may fail: processes die, nodes go down, writes are lost. Then a body judges only what holds all the
    /// same, or would hold without failures ([`Trouble::Spoiled`](crate::Trouble::Spoiled)).
    pub may_fail: bool,
}

impl Env {
    /// A run on nodes 0, 1, 2 ... of the cluster, from port 1 on, with a patience of 30 s; nothing may fail.
    #[must_use]
    pub fn new(cluster: Arc<dyn Cluster>, scale: u32, seed: u64) -> Self {
        Self {
            nodes: (0..cluster.nodes()).collect(),
            cluster,
            first_port: 1,
            scale: scale.max(1),
            seed,
            patience: Duration::from_secs(30),
            may_fail: false,
        }
    }

    fn index(&self, node: usize) -> u16 {
        self.nodes[node % self.nodes.len()]
    }

    /// Node number `node` of the body.
    pub(crate) fn node(&self, node: usize) -> Node {
        self.cluster.node(self.index(node))
    }

    pub(crate) fn id(&self, node: usize) -> NodeId {
        self.node(node).id()
    }

    /// Port number `port` of the body on a node.
    pub(crate) fn port_id(&self, node: usize, port: u16) -> PortId {
        let before = (0..node).filter(|&other| self.index(other) == self.index(node));
        let port = port + before.count() as u16 * PORTS_PER_CASE / 2;
        PortId(self.first_port + port % PORTS_PER_CASE)
    }

    /// Opens a port of the body.
    pub(crate) fn open(&self, node: usize, port: u16) -> netvm::Result<Port> {
        Port::open(&self.node(node), PortConfig::number(self.port_id(node, port).0))
    }

    /// Imports a name that a port of the body exports, now or later.
    pub(crate) fn import(
        &self,
        port: &Port,
        from_node: usize,
        from_port: u16,
        name: &str,
    ) -> netvm::Result<RemoteSegment> {
        port.import(
            self.id(from_node),
            self.port_id(from_node, from_port),
            name,
            self.patience,
        )
    }

    /// Starts a process of the body.
    pub(crate) fn spawn(
        &self,
        node: usize,
        name: &str,
        body: impl FnOnce(&Self) -> Outcome + Send + 'static,
    ) -> Box<dyn Running> {
        let env = self.clone();
        self.cluster
            .spawn(self.index(node), name, Box::new(move || body(&env)))
    }

    /// Starts a thread of the calling process.
    pub(crate) fn spawn_thread(
        &self,
        node: usize,
        name: &str,
        body: impl FnOnce(&Self) -> Outcome + Send + 'static,
    ) -> Box<dyn Running> {
        let env = self.clone();
        self.cluster
            .spawn_thread(self.index(node), name, Box::new(move || body(&env)))
    }

    pub(crate) fn pressure(&self, node: usize) {
        self.cluster.pressure(self.index(node));
    }

    pub(crate) fn restart(&self, node: usize) {
        self.cluster.restart(self.index(node));
    }

    /// A random stream; the same number gives the same stream in every process of the run.
    pub(crate) fn random(&self, stream: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(stream);
        random
    }

    /// `count` for each unit of scale.
    pub(crate) const fn scaled(&self, count: u32) -> u32 {
        count.saturating_mul(self.scale)
    }
}

/// When a body calls what it waits for lost: the process that should bring it may have died.
pub(crate) struct Deadline<'a> {
    port: &'a Port,
    end: Nanos,
}

impl Deadline<'_> {
    pub(crate) fn passed(&self) -> bool {
        self.port.now() > self.end
    }

    /// An error once it has passed.
    pub(crate) fn check(&self) -> netvm::Result<()> {
        if self.passed() {
            Err(Error::TimedOut)
        } else {
            Ok(())
        }
    }
}

impl Env {
    /// A deadline one patience from now.
    pub(crate) fn deadline<'a>(&self, port: &'a Port) -> Deadline<'a> {
        let patience = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
        let end = Nanos(port.now().0.saturating_add(patience));
        Deadline { port, end }
    }
}

/// Waits for a signal and acknowledges it.
pub(crate) fn take_signal(env: &Env, port: &Port, id: u32) -> Outcome {
    let notification = port.notification(id)?;
    notification.wait(env.patience)?;
    Ok(notification.ack()?)
}

/// Waits for so many signals, and acknowledges them.
pub(crate) fn take_signals(env: &Env, port: &Port, id: u32, count: u32) -> Outcome {
    for _ in 0..count {
        take_signal(env, port, id)?;
    }
    Ok(())
}

/// Passes some time of the back end.
pub(crate) fn pass(port: &Port, span: Duration) -> netvm::Result<()> {
    // No port signals this number.
    match port.notification(IDLE)?.wait(Timeout::After(span)) {
        Ok(_) | Err(Error::TimedOut) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A notification that no body signals.
const IDLE: NotificationId = NotificationId(1023);
