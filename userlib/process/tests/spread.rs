//! The conformance suite with each part of a body in a process, and so on a node, of its own.
//!
//! Bodies that run two processes on one node are left out here: a node is a process. `conformance.rs` runs them.

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netvm::{Error, Node};
use netvm_conformance::{ALL, Body, Case, Cluster, Env, Needs, Outcome, Running, Trouble};
use netvm_kit::length::is_long;
use netvm_process::soft::LinkError;
use netvm_process::{SoftError, SoftNode};
use netvm_relay::{Faults, Relay};
use netvm_rig::spread::{SKIPPED, Single};

/// Bodies that start parts after they have opened a port, which [`Single`] cannot find.
const LEFT_OUT: [&str; 2] = ["deaths_in_a_crowd", "no_death"];

/// What links the nodes. Each has node numbers of its own; the lowest ones are for programs that do not ask for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Memory,
    Udp,
    /// UDP through a relay that loses one datagram of twenty each way, and doubles, delays and spoils others. In the long run it is a
    /// long way, too.
    Lossy,
}

const NODES: u16 = 3;
/// After so long a node that was killed is found out over UDP: a body for each kind of death waits for it.
const SILENCE: Duration = Duration::from_millis(1200);
/// How long a long way takes.
const FAR: Duration = Duration::from_millis(8);
/// Node number `n` has the UDP port so many above.
const UDP_PORTS: u16 = 24_000;

impl Wire {
    const ALL: [Self; 3] = [Self::Memory, Self::Udp, Self::Lossy];

    const fn first(self) -> u16 {
        match self {
            Self::Memory => 44,
            Self::Udp => 50,
            Self::Lossy => 56,
        }
    }

    fn numbers(self) -> std::ops::Range<u16> {
        self.first()..self.first() + NODES
    }

    fn of(number: u16) -> Self {
        let has = |wire: &Self| wire.numbers().contains(&number);
        Self::ALL.into_iter().find(has).unwrap()
    }

    /// How long a peer may take. The death of one is told by its socket in memory; UDP has to wait for it.
    const fn patience(self) -> Duration {
        match self {
            Self::Memory => Duration::from_secs(5),
            Self::Udp | Self::Lossy => Duration::from_secs(30),
        }
    }
}

fn udp_address(number: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], UDP_PORTS + number))
}

/// A node of this process, and what others are reached through.
struct Linked {
    node: SoftNode,
    _relays: Vec<Relay>,
}

/// A node, linked to these others, which run.
fn node(number: u16, others: &[u16]) -> Linked {
    let wire = Wire::of(number);
    let end = Instant::now() + wire.patience();
    let node = loop {
        let builder = SoftNode::builder().number(number);
        let builder = match wire {
            Wire::Memory => builder,
            Wire::Udp | Wire::Lossy => builder.udp(udp_address(number).to_string()).peer_timeout(SILENCE),
        };
        match builder.start() {
            // A thread of the last body's, on its way out, still holds its node.
            Err(SoftError::Link(LinkError::Taken)) if Instant::now() < end => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    let mut relays = Vec::new();
    for other in others {
        let name = match wire {
            Wire::Memory => format!("#{other}"),
            Wire::Udp => format!("udp://{}", udp_address(*other)),
            Wire::Lossy => {
                let faults = Faults {
                    lost: 50,
                    doubled: 10,
                    late: 10,
                    spoilt: 10,
                    delay: if is_long() { FAR } else { Duration::ZERO },
                };
                let seed = u64::from(number) << 16 | u64::from(*other);
                let relay = Relay::start(
                    SocketAddr::from(([127, 0, 0, 1], 0)),
                    udp_address(*other),
                    faults,
                    seed,
                )
                .unwrap();
                relays.push(relay);
                format!("udp://{}", relays.last().unwrap().address())
            }
        };
        if let Err(error) = node.connect(&name, wire.patience()) {
            panic!("{name}: {error}");
        }
    }
    Linked {
        node,
        _relays: relays,
    }
}

fn env(cluster: Arc<dyn Cluster>, wire: Wire) -> Env {
    let mut env = Env::new(cluster, 1, 42);
    env.nodes = wire.numbers().collect();
    env.patience = wire.patience();
    env
}

/// The processes of a body, seen from its first one, which is this process.
struct Processes {
    here: Node,
    case: &'static Case,
    started: Mutex<Vec<Arc<Part>>>,
    /// The body wants two processes on one node.
    crowded: AtomicBool,
}

/// Another process. Its node stays until the body is over: a body may leave messages on their way to a part that has ended.
struct Part {
    number: u16,
    child: Mutex<Child>,
    killed: AtomicBool,
    /// How its part of the body ended: an exit code.
    end: Mutex<Option<u8>>,
    ended: Condvar,
}

/// The end of a part that did not say how it ended.
const SILENT: u8 = 255;

impl Part {
    fn is_over(&self) -> bool {
        self.end.lock().unwrap().is_some()
    }

    /// Hears how it ends.
    fn hear(&self, lines: impl Iterator<Item = std::io::Result<String>>) {
        let said = |line: String| line.strip_prefix("ended ").and_then(|code| code.parse().ok());
        let end = lines.map_while(Result::ok).find_map(said).unwrap_or(SILENT);
        *self.end.lock().unwrap() = Some(end);
        self.ended.notify_all();
    }

    fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Its handle, for the body.
struct Handle(Arc<Part>);

impl Running for Handle {
    fn join(self: Box<Self>) -> Outcome {
        let mut end = self.0.end.lock().unwrap();
        while end.is_none() {
            end = self.0.ended.wait(end).unwrap();
        }
        match *end {
            _ if self.0.is_killed() => Err(Trouble::Killed),
            Some(0) => Ok(()),
            Some(SKIPPED) => Err(Trouble::Skipped("the other part cannot")),
            other => Err(Trouble::Wrong(format!("the other process ended with {other:?}"))),
        }
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn kill(&self) {
        self.0.kill();
    }
}

/// A thread of this process.
struct Thread(std::thread::JoinHandle<Outcome>);

impl Running for Thread {
    fn join(self: Box<Self>) -> Outcome {
        self.0.join().unwrap()
    }

    fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    fn kill(&self) {}
}

impl Cluster for Processes {
    fn nodes(&self) -> u16 {
        self.here.geometry().nodes
    }

    fn node(&self, node: u16) -> Node {
        if self.here.id().0 == node {
            return self.here.clone();
        }
        // Of the others the body asks for numbers only.
        Single::new(self.here.clone(), None, usize::MAX).node(node)
    }

    fn spawn(&self, node: u16, _: &str, _: Body) -> Box<dyn Running> {
        let mut started = self.started.lock().unwrap();
        let part = started.len();
        let taken = started.iter().any(|part| part.number == node && !part.is_over());
        if taken || self.here.id().0 == node {
            self.crowded.store(true, Ordering::Release);
            drop(started);
            // Ends the body where it stands.
            std::panic::resume_unwind(Box::new("two processes on one node"));
        }
        let others: Vec<String> = std::iter::once(self.here.id().0)
            .chain(
                started
                    .iter()
                    .filter(|part| !part.is_killed())
                    .map(|part| part.number),
            )
            .filter(|other| *other != node)
            .map(|other| other.to_string())
            .collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "part", "--nocapture", "--test-threads", "1"])
            .env("NETVM_PART", part.to_string())
            .env("NETVM_NODE", node.to_string())
            .env("NETVM_OTHERS", others.join(","))
            .env("NETVM_BODY", self.case.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It is linked to all when it says so.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("linked"))));
        let part = Arc::new(Part {
            number: node,
            child: Mutex::new(child),
            killed: AtomicBool::new(false),
            end: Mutex::default(),
            ended: Condvar::new(),
        });
        let theirs = Arc::clone(&part);
        std::thread::spawn(move || theirs.hear(lines));
        started.push(Arc::clone(&part));
        Box::new(Handle(part))
    }

    fn spawn_thread(&self, _: u16, _: &str, body: Body) -> Box<dyn Running> {
        Box::new(Thread(std::thread::spawn(body)))
    }

    fn pressure(&self, _: u16) {}

    fn can_kill(&self) -> bool {
        true
    }
}

/// Not a test: what the other processes do.
#[test]
fn part() {
    let Ok(body) = std::env::var("NETVM_BODY") else {
        return;
    };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u16>().unwrap();
    let case = ALL.iter().find(|case| case.name == body).unwrap();
    let others = std::env::var("NETVM_OTHERS").unwrap();
    let others: Vec<u16> = others.split(',').filter_map(|other| other.parse().ok()).collect();
    let linked = node(number("NETVM_NODE"), &others);
    println!("\nlinked");
    let cluster = Single::new(linked.node.node(), None, usize::from(number("NETVM_PART")));
    let wire = Wire::of(linked.node.number().0);
    let outcome = cluster.run(case, &env(Arc::clone(&cluster) as Arc<dyn Cluster>, wire));
    let end = match outcome {
        Ok(()) => 0,
        Err(Trouble::Skipped(_)) => SKIPPED,
        Err(trouble) => {
            eprintln!("{body}: {trouble}");
            1
        }
    };
    println!("\nended {end}");
    // Until the first process ends this one, or has ended.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn each_part_is_a_process_of_its_own() {
    play(Wire::Memory);
}

#[test]
fn each_part_is_a_process_of_its_own_over_udp() {
    play(Wire::Udp);
}

#[test]
fn each_part_is_a_process_of_its_own_over_udp_that_loses() {
    play(Wire::Lossy);
}

/// Whether a body is run over this wire. What the wire loses changes nothing about how a death is found, which takes seconds:
/// only the long run has both.
fn suits(case: &Case, wire: Wire) -> bool {
    let is_slow = case.needs == Needs::Kill && wire == Wire::Lossy;
    !LEFT_OUT.contains(&case.name) && (!is_slow || is_long())
}

/// One at a time: two that share two processors disturb each other's limits.
static ONE: Mutex<()> = Mutex::new(());

fn play(wire: Wire) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let only = std::env::var("NETVM_CASE").ok();
    let wanted = |name: &str| {
        only.as_ref()
            .is_none_or(|only| only.split(',').any(|only| only == name))
    };
    let (mut passed, mut crowded, mut failed) = (0, Vec::new(), Vec::new());
    for case in ALL.iter().filter(|case| wanted(case.name) && suits(case, wire)) {
        let begin = Instant::now();
        let here = node(wire.first(), &[]);
        let cluster = Arc::new(Processes {
            here: here.node.node(),
            case,
            started: Mutex::default(),
            crowded: AtomicBool::new(false),
        });
        let env = env(Arc::clone(&cluster) as Arc<dyn Cluster>, wire);
        let outcome = catch_unwind(AssertUnwindSafe(|| case.run(&env)));
        let outcome = outcome.unwrap_or(Err(Trouble::Skipped("two processes on one node")));
        let crowding = cluster.crowded.load(Ordering::Acquire);
        let started = std::mem::take(&mut *cluster.started.lock().unwrap_or_else(PoisonError::into_inner));
        // This node goes first: one that goes waits a while for peers that do not answer.
        drop((env, cluster, here));
        for part in started {
            part.kill();
        }
        println!("{} {:?} {outcome:?}", case.name, begin.elapsed());
        match outcome {
            _ if crowding => crowded.push(case.name),
            Ok(()) => passed += 1,
            Err(Trouble::Skipped(_)) => {}
            // The bodies' kill ends a process and leaves its node; here the node goes too, so any call to it may fail.
            Err(Trouble::Failed(error)) if case.needs == Needs::Kill && error != Error::TimedOut => {
                passed += 1
            }
            Err(trouble) => failed.push(format!("{}: {trouble}", case.name)),
        }
    }
    println!(
        "{passed} passed, {} want two processes on a node: {crowded:?}",
        crowded.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
