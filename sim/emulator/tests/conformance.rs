//! The conformance suite on the emulator: every body in every mode.
//!
//! Some bodies alone, again and again: `NETVM_CASE=dead_exporter,ping_pong NETVM_REPEAT=30 cargo test -p netvm-emulator
//! --test conformance`. Another seed: `NETVM_SEED=7`.

use netvm::abi::Geometry;
use netvm::backend::{Backend, OpenRequest, PortBackend, Refusal};
use netvm::{Node, NodeId, Port, PortConfig, PortId, Region};
use netvm_conformance::{ALL, Body, Cluster, Env, Outcome, Running, Trouble};
use netvm_emulator::{Builder, DmaMode, Emulator, NicMode};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NODES: u16 = 3;
/// Port with which a node is put under memory pressure, beyond those of the bodies.
const HOG: u16 = 40;

/// An emulator as the bodies see it.
struct Emulated {
    emulator: Emulator,
    /// Pages that a node may keep resident.
    resident: u32,
    hogs: Mutex<Vec<Option<(Port, Region)>>>,
}

impl Emulated {
    fn start(builder: Builder, resident: u32) -> Arc<Self> {
        let emulator = builder.nodes(NODES).resident_pages(resident).start();
        Arc::new(Self {
            emulator: emulator.unwrap_or_else(|error| panic!("{error}")),
            resident,
            hogs: Mutex::new((0..NODES).map(|_| None).collect()),
        })
    }

    fn run(&self, node: u16, name: &str, opened: Opened, body: Body) -> Box<dyn Running> {
        let thread = std::thread::Builder::new().name(name.into());
        let theirs = Arc::clone(&opened);
        let body = move || {
            OPENED.replace(theirs);
            body()
        };
        Box::new(Thread {
            handle: thread.spawn(body).unwrap(),
            emulator: self.emulator.clone(),
            node,
            opened,
            killed: Arc::default(),
        })
    }
}

/// The ports that a process has opened, for the emulator to end when it is killed.
type Opened = Arc<Mutex<Vec<PortId>>>;

thread_local! {
    /// Of the process that this thread belongs to.
    static OPENED: RefCell<Opened> = RefCell::default();
}

/// A thread that stands for a process, or for a thread of one.
struct Thread {
    handle: JoinHandle<Outcome>,
    emulator: Emulator,
    node: u16,
    opened: Opened,
    killed: Arc<AtomicBool>,
}

/// A node that remembers which process opens which ports.
struct Watched {
    node: Arc<dyn Backend>,
}

impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.node.name()
    }

    fn node(&self) -> NodeId {
        self.node.node()
    }

    fn geometry(&self) -> Geometry {
        self.node.geometry()
    }

    fn inline_limit(&self) -> usize {
        self.node.inline_limit()
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let port = self.node.open(request)?;
        OPENED.with_borrow(|opened| opened.lock().unwrap().push(port.port()));
        Ok(port)
    }
}

impl Running for Thread {
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
        for &port in &*self.opened.lock().unwrap() {
            self.emulator.kill(usize::from(self.node), port);
        }
    }
}

impl Cluster for Emulated {
    fn nodes(&self) -> u16 {
        NODES
    }

    fn node(&self, node: u16) -> Node {
        let node = self.emulator.node(usize::from(node));
        Node::new(Arc::new(Watched {
            node: Arc::clone(node.backend()),
        }))
    }

    fn spawn(&self, node: u16, name: &str, body: Body) -> Box<dyn Running> {
        self.run(node, name, Opened::default(), body)
    }

    fn spawn_thread(&self, node: u16, name: &str, body: Body) -> Box<dyn Running> {
        self.run(node, name, OPENED.with_borrow(Arc::clone), body)
    }

    fn pressure(&self, node: u16) {
        let mut hogs = self.hogs.lock().unwrap();
        let hog = &mut hogs[usize::from(node)];
        let (_, region) = hog.get_or_insert_with(|| {
            let port = Port::open(&self.node(node), PortConfig::number(HOG)).unwrap();
            let region = port.alloc(u64::from(self.resident) * 4096 * 2).unwrap();
            (port, region)
        });
        for page in 0..region.len() / 4096 {
            region.write_from(page * 4096, &[1]).unwrap();
        }
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// Runs every body on a cluster of this kind.
fn run_all(mode: &str, builder: Builder, resident: u32) {
    let only = std::env::var("NETVM_CASE").ok();
    let repeat = std::env::var("NETVM_REPEAT").map_or(1, |repeat| repeat.parse().unwrap());
    let seed = std::env::var("NETVM_SEED").map_or(42, |seed| seed.parse().unwrap());
    let cluster = Emulated::start(builder, resident);
    let mut failed = Vec::new();
    let wanted = |name: &str| {
        only.as_ref()
            .is_none_or(|only| only.split(',').any(|only| only == name))
    };
    let cases = ALL.iter().filter(|case| wanted(case.name));
    for case in (0..repeat).flat_map(|_| cases.clone()) {
        let begin = Instant::now();
        let mut env = Env::new(Arc::clone(&cluster) as Arc<dyn Cluster>, 1, seed);
        env.patience = Duration::from_secs(10);
        let outcome = case.run(&env);
        println!("{mode}: {} {:?} {:?}", case.name, begin.elapsed(), outcome);
        match outcome {
            Ok(()) | Err(Trouble::Skipped(_)) => {}
            Err(trouble) => failed.push(format!("{}: {trouble}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{mode}, seed {seed}:\n{}", failed.join("\n"));
}

fn late(seed: u64) -> DmaMode {
    DmaMode::Late {
        seed,
        up_to: netvm::Nanos(50_000),
    }
}

#[test]
fn inline() {
    run_all("inline", Emulator::builder(), 512);
}

#[test]
fn inline_small_packets_little_memory() {
    run_all("inline, 1500", Emulator::builder().mtu(1500), 24);
}

#[test]
fn inline_late_transfers() {
    run_all(
        "inline, late",
        Emulator::builder().dma(late(1)).inline_limit(8),
        64,
    );
}

#[test]
fn threaded() {
    run_all("threaded", Emulator::builder().nic(NicMode::Threaded), 512);
}

#[test]
fn threaded_late_transfers_little_memory() {
    let builder = Emulator::builder().nic(NicMode::Threaded).dma(late(2)).mtu(1500);
    run_all("threaded, late, 1500", builder, 24);
}
