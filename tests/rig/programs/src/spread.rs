//! A cluster whose nodes are different machines, each running the same body of the conformance suite.
//!
//! A body is the program of its node 0, and starts what runs on others: its *parts*. Each part is a process of its own. On the
//! machine of node 0 the body runs as it is, and what it starts elsewhere is taken as started. On another machine the same
//! body is run for what it starts *there*: what belongs to node 0 cannot open a port, because node 0 is elsewhere, and ends at
//! once; what it started goes on by itself and is waited for at the end. So all machines together run every part once, and
//! each judges its own. (A body has to start its parts before it opens a port.)
//!
//! A part's process finds its part in the same way: it runs the body once more with all nodes elsewhere, takes the part that
//! has its number as it is started, and runs that ([`Single`]).

use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, path::PathBuf};

use netvm::abi::Geometry;
use netvm::backend::{Backend, OpenRequest, PortBackend, Refusal};
use netvm::{Node, NodeId};
use netvm_conformance::{Body, Case, Cluster, Env, Outcome, Running, Trouble};

use crate::meeting::PATIENCE;
use crate::memory;
use crate::orders::Orders;

/// The exit code of a part that something of this machine keeps from running.
pub const SKIPPED: u8 = 4;

/// How often a part that is waited for is looked at, and orders to kill it.
const PACE: Duration = Duration::from_millis(1);

/// The command that runs one part of a case: [`Single::run`] with the same arguments.
pub type Start = Box<dyn Fn(&Case, usize) -> io::Result<Command> + Send + Sync>;

/// This machine's view of all nodes.
pub struct Spread {
    machine: Machine,
    start: Start,
    orders: Orders,
    running: Mutex<Progress>,
    this: Weak<Self>,
}

/// The body that is being run.
#[derive(Default)]
struct Progress {
    case: Option<Case>,
    parts: Vec<Part>,
    /// How many of them run on this machine.
    here: usize,
    /// What kept this cluster from doing what the body asked for.
    trouble: Option<Trouble>,
}

enum Part {
    Elsewhere { node: NodeId, killed: bool },
    Here { process: Child, killed: bool },
    Ended(Result<(), Ending>),
}

/// Why a part did not end well.
#[derive(Clone, Debug)]
enum Ending {
    NotStarted(String),
    Killed,
    Skipped,
    /// It has said why.
    Bad(ExitStatus),
}

impl Ending {
    fn of(status: ExitStatus, killed: bool) -> Result<(), Self> {
        match status.code() {
            // It may have been over before the order came.
            Some(0) => Ok(()),
            None if killed => Err(Self::Killed),
            Some(code) if code == i32::from(SKIPPED) => Err(Self::Skipped),
            _ => Err(Self::Bad(status)),
        }
    }

    fn trouble(self, part: usize) -> Trouble {
        match self {
            Self::NotStarted(error) => Trouble::Unexpected(format!("part {part} cannot be started: {error}")),
            Self::Killed => Trouble::Killed,
            Self::Skipped => Trouble::Skipped("a part of it cannot run on this machine"),
            Self::Bad(status) => {
                Trouble::Unexpected(format!("part {part} ended with {status}; it has said why"))
            }
        }
    }
}

impl Spread {
    /// A cluster of all nodes of this machine's card. `start` tells how a part is run, `group` is the control group that
    /// this program runs in, to be put under pressure.
    ///
    /// # Errors
    /// The port for orders between machines cannot be opened.
    pub fn new(here: Node, group: Option<PathBuf>, start: Start) -> netvm::Result<Arc<Self>> {
        let orders = Orders::open(&here)?;
        Ok(Arc::new_cyclic(|this| Self {
            machine: Machine::new(here, group),
            start,
            orders,
            running: Mutex::default(),
            this: Weak::clone(this),
        }))
    }

    /// Runs this machine's part of a body.
    ///
    /// # Errors
    /// What the body says, or the first bad end of what it started here.
    pub fn run(&self, case: &Case, env: &Env) -> Outcome {
        *self.running() = Progress {
            case: Some(*case),
            ..Progress::default()
        };
        let own = case.run(env);
        let (parts, here) = {
            let running = self.running();
            (running.parts.len(), running.here)
        };
        let mut outcome = match own {
            // Node 0 is elsewhere: only what was started here counts.
            Err(Trouble::Skipped(why)) if here == 0 => return Err(Trouble::Skipped(why)),
            _ if !self.machine.is(0) && here == 0 => {
                return Err(Trouble::Skipped("no part of it runs on this machine"));
            }
            _ if !self.machine.is(0) => Ok(()),
            own => own,
        };
        for part in 0..parts {
            let ended = match self.wait(part) {
                // By the body's order.
                Err(Trouble::Killed) => Ok(()),
                other => other,
            };
            outcome = outcome.and(ended);
        }
        outcome.and(self.running().trouble.take().map_or(Ok(()), Err))
    }

    fn running(&self) -> MutexGuard<'_, Progress> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a part has ended; meanwhile does what other machines order. The machine of node 0 waits for parts
    /// elsewhere, too; others do not.
    fn wait(&self, part: usize) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look()?;
            if let Some(ended) = self.running().end(part) {
                return ended;
            }
            if Instant::now() > deadline {
                return Err(Trouble::Unexpected(format!("part {part} does not end")));
            }
            self.orders.listen(PACE)?;
            if let Some(victim) = self.orders.victim() {
                self.kill(victim)?;
                self.orders.killed(victim)?;
            }
        }
    }

    /// Whether a part has ended: [`Self::wait`] would not wait.
    fn has_ended(&self, part: usize) -> Outcome<bool> {
        self.orders.listen(Duration::ZERO)?;
        self.look()?;
        Ok(self.running().end(part).is_some())
    }

    /// Looks which parts have ended, and tells node 0's machine.
    fn look(&self) -> Outcome {
        let is_body = self.machine.is(0);
        for (number, part) in self.running().parts.iter_mut().enumerate() {
            match part {
                Part::Here { process, killed } => {
                    let status = process.try_wait().map_err(|error| {
                        Trouble::Unexpected(format!("part {number} cannot be waited for: {error}"))
                    })?;
                    let Some(status) = status else { continue };
                    *part = Part::Ended(Ending::of(status, *killed));
                    if !is_body {
                        self.orders.ended(number)?;
                    }
                }
                Part::Elsewhere { killed, .. } if !is_body || self.orders.has_ended(number) => {
                    *part = Part::Ended(if *killed { Err(Ending::Killed) } else { Ok(()) });
                }
                Part::Elsewhere { .. } | Part::Ended(_) => {}
            }
        }
        Ok(())
    }

    /// Kills a part, wherever it runs.
    fn kill(&self, part: usize) -> Outcome {
        let node = {
            let parts = &mut self.running().parts;
            match parts.get_mut(part) {
                Some(Part::Here { process, killed }) => {
                    *killed = true;
                    let ended = process.kill().and_then(|()| process.wait());
                    return match ended {
                        Ok(_) => Ok(()),
                        Err(error) => Err(Trouble::Unexpected(format!(
                            "part {part} cannot be killed: {error}"
                        ))),
                    };
                }
                Some(Part::Elsewhere { node, killed }) => {
                    *killed = true;
                    *node
                }
                Some(Part::Ended(_)) => return Ok(()),
                None => return Err(Trouble::Unexpected(format!("there is no part {part} to kill"))),
            }
        };
        Ok(self.orders.kill(node, part)?)
    }
}

impl Progress {
    /// How a part has ended, if it has. What happens elsewhere is judged there.
    fn end(&self, number: usize) -> Option<Outcome> {
        match self.parts.get(number) {
            Some(Part::Ended(end)) => Some(end.clone().map_err(|end| end.trouble(number))),
            Some(_) => None,
            None => Some(Ok(())),
        }
    }
}

impl Cluster for Spread {
    fn nodes(&self) -> u16 {
        self.machine.geometry.nodes
    }

    fn node(&self, node: u16) -> Node {
        self.machine.node(node)
    }

    fn spawn(&self, node: u16, _: &str, _: Body) -> Box<dyn Running> {
        let mut running = self.running();
        let number = running.parts.len();
        let part = if self.machine.is(node) {
            running.here += 1;
            let command = match &running.case {
                Some(case) => (self.start)(case, number),
                None => Err(io::Error::other("no body is being run")),
            };
            match command.and_then(|mut command| command.spawn()) {
                Ok(process) => Part::Here {
                    process,
                    killed: false,
                },
                Err(error) => Part::Ended(Err(Ending::NotStarted(error.to_string()))),
            }
        } else {
            Part::Elsewhere {
                node: NodeId(node),
                killed: false,
            }
        };
        running.parts.push(part);
        Box::new(Handle {
            cluster: Weak::clone(&self.this),
            part: number,
        })
    }

    fn spawn_thread(&self, _: u16, name: &str, body: Body) -> Box<dyn Running> {
        thread(name, body)
    }

    fn pressure(&self, node: u16) {
        self.machine.pressure(node);
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// A part, for the body.
struct Handle {
    cluster: Weak<Spread>,
    part: usize,
}

impl Running for Handle {
    fn join(self: Box<Self>) -> Outcome {
        match self.cluster.upgrade() {
            Some(cluster) => cluster.wait(self.part),
            None => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        let Some(cluster) = self.cluster.upgrade() else {
            return true;
        };
        cluster.has_ended(self.part).unwrap_or_else(|trouble| {
            cluster.running().trouble.get_or_insert(trouble);
            true
        })
    }

    fn kill(&self) {
        let Some(cluster) = self.cluster.upgrade() else {
            return;
        };
        if let Err(trouble) = cluster.kill(self.part) {
            cluster.running().trouble.get_or_insert(trouble);
        }
    }
}

/// The cluster of a part's own process.
pub struct Single {
    machine: Machine,
    /// Which part it is.
    number: usize,
    /// How many were started.
    started: AtomicUsize,
    part: Mutex<Option<Body>>,
    /// Found: what runs now is the part.
    found: AtomicBool,
}

impl Single {
    /// For part `number` of a body.
    #[must_use]
    pub fn new(here: Node, group: Option<PathBuf>, number: usize) -> Arc<Self> {
        Arc::new(Self {
            machine: Machine::new(here, group),
            number,
            started: AtomicUsize::new(0),
            part: Mutex::default(),
            found: AtomicBool::new(false),
        })
    }

    /// Runs that part.
    ///
    /// # Errors
    /// What it says; [`Trouble::Unexpected`] if the body starts fewer parts than that before it opens a port.
    pub fn run(&self, case: &Case, env: &Env) -> Outcome {
        // The body itself fails: all nodes are elsewhere.
        let _ = case.run(env);
        let part = self.part.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(part) = part else {
            return Err(Trouble::Unexpected(format!(
                "it does not start {} parts before it opens a port",
                self.number + 1
            )));
        };
        self.found.store(true, Ordering::Relaxed);
        part()
    }
}

impl Cluster for Single {
    fn nodes(&self) -> u16 {
        self.machine.geometry.nodes
    }

    fn node(&self, node: u16) -> Node {
        if self.found.load(Ordering::Relaxed) {
            self.machine.node(node)
        } else {
            self.machine.elsewhere(node)
        }
    }

    fn spawn(&self, _: u16, name: &str, body: Body) -> Box<dyn Running> {
        if self.found.load(Ordering::Relaxed) {
            let what =
                format!("'{name}' is started by another part: that is not for bodies on several machines");
            return Box::new(Over(Err(Trouble::Unexpected(what))));
        }
        if self.started.fetch_add(1, Ordering::Relaxed) == self.number {
            *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
        Box::new(Over(Ok(())))
    }

    fn spawn_thread(&self, _: u16, name: &str, body: Body) -> Box<dyn Running> {
        thread(name, body)
    }

    fn pressure(&self, node: u16) {
        self.machine.pressure(node);
    }

    /// The cluster that has started it can; a body that needs that has such parts.
    fn can_kill(&self) -> bool {
        true
    }
}

/// What a process knows of the machine that it runs on.
struct Machine {
    here: Node,
    geometry: Geometry,
    group: Option<PathBuf>,
}

impl Machine {
    fn new(here: Node, group: Option<PathBuf>) -> Self {
        Self {
            geometry: here.geometry(),
            here,
            group,
        }
    }

    fn is(&self, node: u16) -> bool {
        self.here.id() == NodeId(node)
    }

    fn node(&self, node: u16) -> Node {
        if self.is(node) {
            return self.here.clone();
        }
        self.elsewhere(node)
    }

    fn elsewhere(&self, node: u16) -> Node {
        Node::new(Arc::new(Elsewhere {
            node: NodeId(node),
            geometry: self.geometry,
        }))
    }

    fn pressure(&self, node: u16) {
        if let Some(group) = self.group.as_ref().filter(|_| self.is(node)) {
            // A hint: where the group does not exist, pages stay.
            let _ = memory::reclaim(group, 1 << 30);
        }
    }
}

/// Starts a thread of the caller's; the caller waits for it.
fn thread(name: &str, body: Body) -> Box<dyn Running> {
    match std::thread::Builder::new().name(name.into()).spawn(body) {
        Ok(thread) => Box::new(Thread(thread)),
        Err(error) => Box::new(Over(Err(Trouble::Unexpected(format!(
            "a thread cannot be started: {error}"
        ))))),
    }
}

struct Thread(JoinHandle<Outcome>);

impl Running for Thread {
    fn join(self: Box<Self>) -> Outcome {
        self.0
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    fn kill(&self) {}
}

/// What has ended as it began.
struct Over(Outcome);

impl Running for Over {
    fn join(self: Box<Self>) -> Outcome {
        self.0
    }

    fn is_over(&self) -> bool {
        true
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
