//! Processes in name only: threads of one process, for back ends whose nodes all live in one.

use crate::cases::ALL;
use crate::cluster::{Body, Cluster, Running};
use crate::env::Env;
use crate::outcome::{Outcome, Trouble};
use netvm::abi::Geometry;
use netvm::backend::{Backend, OpenRequest, PortBackend, Refusal};
use netvm::{Node, NodeId, PortId};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nodes of this process.
pub trait Nodes: Send + Sync + 'static {
    /// How many.
    fn count(&self) -> u16;

    /// One of them.
    fn node(&self, node: u16) -> Node;

    /// Ends a port as if its process had died.
    fn kill(&self, node: u16, port: PortId);

    /// As [`Cluster::pressure`].
    fn pressure(&self, node: u16) {
        let _ = node;
    }
}

/// A cluster of such nodes, whose processes are threads.
#[derive(Debug)]
pub struct Threads<N>(pub Arc<N>);

/// The ports that a process has opened, to be ended when it is killed.
type Opened = Arc<Mutex<Vec<PortId>>>;

thread_local! {
    /// Of the process that this thread belongs to.
    static OPENED: RefCell<Opened> = RefCell::default();
}

/// A thread that stands for a process, or for a thread of one.
struct Thread<N> {
    handle: JoinHandle<Outcome>,
    nodes: Arc<N>,
    node: u16,
    opened: Opened,
    killed: Arc<AtomicBool>,
}

/// A node that remembers which process opens which ports.
struct Watched(Arc<dyn Backend>);

impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn node(&self) -> NodeId {
        self.0.node()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn inline_limit(&self) -> usize {
        self.0.inline_limit()
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let port = self.0.open(request)?;
        OPENED.with_borrow(|opened| {
            opened
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(port.port())
        });
        Ok(port)
    }
}

impl<N: Nodes> Running for Thread<N> {
    fn join(self: Box<Self>) -> Outcome {
        let outcome = self.handle.join();
        let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A killed process would have stopped there; the thread that stands for it finds its ports dead.
        if self.killed.load(Ordering::Acquire) && outcome.is_err() {
            return Err(Trouble::Killed);
        }
        outcome
    }

    fn is_over(&self) -> bool {
        self.handle.is_finished()
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for port in opened {
            self.nodes.kill(self.node, port);
        }
    }
}

impl<N: Nodes> Threads<N> {
    fn run(&self, node: u16, name: &str, opened: Opened, body: Body) -> Box<dyn Running> {
        let thread = std::thread::Builder::new().name(name.into());
        let theirs = Arc::clone(&opened);
        let body = move || {
            OPENED.replace(theirs);
            body()
        };
        match thread.spawn(body) {
            Ok(handle) => Box::new(Thread {
                handle,
                nodes: Arc::clone(&self.0),
                node,
                opened,
                killed: Arc::default(),
            }),
            Err(error) => Box::new(NotStarted(error)),
        }
    }
}

/// There was no thread.
struct NotStarted(std::io::Error);

impl Running for NotStarted {
    fn join(self: Box<Self>) -> Outcome {
        Err(Trouble::Unexpected(format!("no thread: {}", self.0)))
    }

    fn is_over(&self) -> bool {
        true
    }

    fn kill(&self) {}
}

impl<N: Nodes> Cluster for Threads<N> {
    fn nodes(&self) -> u16 {
        self.0.count()
    }

    fn node(&self, node: u16) -> Node {
        Node::new(Arc::new(Watched(Arc::clone(self.0.node(node).backend()))))
    }

    fn spawn(&self, node: u16, name: &str, body: Body) -> Box<dyn Running> {
        self.run(node, name, Opened::default(), body)
    }

    fn spawn_thread(&self, node: u16, name: &str, body: Body) -> Box<dyn Running> {
        self.run(node, name, OPENED.with_borrow(Arc::clone), body)
    }

    fn pressure(&self, node: u16) {
        self.0.pressure(node);
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// Runs every body on these nodes, and says what failed. `NETVM_CASE` chooses bodies, `NETVM_REPEAT` repeats them,
/// `NETVM_SEED` is the seed.
///
/// # Errors
/// What failed, a line each.
pub fn run_all<N: Nodes>(mode: &str, nodes: N) -> Result<(), String> {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let only = std::env::var("NETVM_CASE").ok();
    let (repeat, seed) = (number("NETVM_REPEAT", 1), number("NETVM_SEED", 42));
    let cluster: Arc<dyn Cluster> = Arc::new(Threads(Arc::new(nodes)));
    let mut failed = Vec::new();
    let wanted = |name: &str| {
        only.as_ref()
            .is_none_or(|only| only.split(',').any(|only| only == name))
    };
    let cases = ALL.iter().filter(|case| wanted(case.name));
    for case in (0..repeat).flat_map(|_| cases.clone()) {
        let begin = Instant::now();
        let mut env = Env::new(Arc::clone(&cluster), 1, seed);
        env.patience = Duration::from_secs(10);
        let outcome = case.run(&env);
        println!("{mode}: {} {:?} {:?}", case.name, begin.elapsed(), outcome);
        match outcome {
            Ok(()) | Err(Trouble::Skipped(_)) => {}
            Err(trouble) => failed.push(format!("{}: {trouble}", case.name)),
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("{mode}, seed {seed}:\n{}", failed.join("\n")))
    }
}
