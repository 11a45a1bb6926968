//! A cluster whose nodes are different machines, each running the same body of the conformance suite.
//!
//! A body is the program of its node 0, and starts what runs on others. On the machine of node 0 it runs as it is, and what it
//! starts elsewhere is taken as started. On another machine the same body is run for what it starts *there*: its own part
//! cannot open a port, because node 0 is elsewhere, and ends at once; what it started goes on by itself and is waited for at
//! the end. So both machines together run every part once, and each judges its own.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use netvm::abi::Geometry;
use netvm::backend::{Backend, OpenRequest, PortBackend, Refusal};
use netvm::{Node, NodeId};
use netvm_conformance::{Body, Case, Cluster, Env, Outcome, Running, Trouble};

use crate::memory;

/// This machine's view of all nodes.
pub struct Spread {
    /// The card of this machine.
    here: Node,
    geometry: Geometry,
    /// The control group that this program runs in, to be put under pressure.
    group: Option<PathBuf>,
    started: Mutex<Vec<JoinHandle<Outcome>>>,
}

impl Spread {
    /// A cluster of all nodes of this machine's card.
    #[must_use]
    pub fn new(here: Node, group: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            geometry: here.geometry(),
            here,
            group,
            started: Mutex::default(),
        })
    }

    fn is_here(&self, node: u16) -> bool {
        self.here.id() == NodeId(node)
    }

    /// Runs this machine's part of a body.
    ///
    /// # Errors
    /// What the body says, or the first bad end of what it started here.
    pub fn run(self: &Arc<Self>, case: &Case, env: &Env) -> Outcome {
        let own = case.run(env);
        let started = std::mem::take(&mut *self.started.lock().unwrap_or_else(PoisonError::into_inner));
        let mut outcome = match own {
            // Node 0 is elsewhere: only what was started here counts.
            Err(Trouble::Skipped(why)) if started.is_empty() => return Err(Trouble::Skipped(why)),
            _ if !self.is_here(0) && started.is_empty() => {
                return Err(Trouble::Skipped("no part of it runs on this machine"));
            }
            _ if !self.is_here(0) => Ok(()),
            own => own,
        };
        for thread in started {
            let ended = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        outcome
    }

    fn start(&self, name: &str, body: Body) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        self.started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(thread);
        Ok(())
    }
}

impl Cluster for Spread {
    fn nodes(&self) -> u16 {
        self.geometry.nodes
    }

    fn node(&self, node: u16) -> Node {
        if self.is_here(node) {
            return self.here.clone();
        }
        Node::new(Arc::new(Elsewhere {
            node: NodeId(node),
            geometry: self.geometry,
        }))
    }

    fn spawn(&self, node: u16, name: &str, body: Body) -> Box<dyn Running> {
        if !self.is_here(node) {
            return Box::new(Detached(Ok(())));
        }
        let started = self.start(name, body);
        Box::new(Detached(started.map_err(|error| {
            Trouble::Unexpected(format!("a thread cannot be started: {error}"))
        })))
    }

    fn spawn_thread(&self, _: u16, name: &str, body: Body) -> Box<dyn Running> {
        // The caller waits for it, so it is no part of its own.
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        match thread {
            Ok(thread) => Box::new(Thread(thread)),
            Err(error) => Box::new(Detached(Err(Trouble::Unexpected(format!(
                "a thread cannot be started: {error}"
            ))))),
        }
    }

    fn pressure(&self, node: u16) {
        if let Some(group) = self.group.as_ref().filter(|_| self.is_here(node)) {
            // A hint: where the group does not exist, pages stay.
            let _ = memory::reclaim(group, 1 << 30);
        }
    }

    fn can_kill(&self) -> bool {
        false
    }
}

/// A process that runs elsewhere, or by itself until [`Spread::run`] waits for it.
struct Detached(Outcome);

impl Running for Detached {
    fn join(self: Box<Self>) -> Outcome {
        self.0
    }

    fn kill(&self) {}
}

/// A thread of the caller's.
struct Thread(JoinHandle<Outcome>);

impl Running for Thread {
    fn join(self: Box<Self>) -> Outcome {
        self.0
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn kill(&self) {}
}

/// A node that is another machine's.
struct Elsewhere {
    node: NodeId,
    geometry: Geometry,
}

impl Backend for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn node(&self) -> NodeId {
        self.node
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn inline_limit(&self) -> usize {
        0
    }

    fn open(&self, _: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        Err(Refusal::Unsupported("this node is another machine's"))
    }
}
