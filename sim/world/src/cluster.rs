//! The conformance suite's view of a world: its bodies run here as processes.

use crate::backend::SimBackend;
use crate::bodies::{Bodies, idioms};
use crate::config::{Config, FaultLevel};
use crate::coroutine::Park;
use crate::dice::Dice;
use crate::kernel;
use crate::process;
use crate::sim::Sim;
use crate::solo::Solo;
use crate::vm::{Change, ProcessId};
use crate::workload::{Env, Role};
use netvm::Node as Handle;
use netvm_abi::{Nanos, NodeId};
use netvm_conformance::{ALL, Body, Case, Cluster, Needs, Outcome, PORTS_PER_CASE, Running, Trouble};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A world as a cluster.
struct SimCluster {
    sim: Solo<Weak<Sim>>,
    nodes: u16,
    inline: usize,
    /// The processes that it has started.
    started: Started,
}

/// Processes that bodies of a role have started, in all of its lives.
type Started = Arc<Mutex<Vec<ProcessId>>>;

/// What a spawned body comes to.
type Result = Arc<Mutex<Option<Outcome>>>;

/// A process, or a thread of one.
struct SimRunning {
    sim: Solo<Weak<Sim>>,
    node: NodeId,
    process: Option<ProcessId>,
    result: Result,
}

fn take(result: &Result) -> Option<Outcome> {
    result.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Lets some time pass.
fn pause(sim: &Sim) {
    sim.parker
        .park(Park::Until(sim.now().after(Nanos::from_micros(20))));
}

impl Running for SimRunning {
    fn join(self: Box<Self>) -> Outcome {
        loop {
            let Some(sim) = self.sim.upgrade() else {
                return Err(Trouble::Killed);
            };
            if let Some(outcome) = take(&self.result) {
                return outcome;
            }
            if self.process.is_none_or(|process| !process::alive(&sim, process)) {
                return Err(Trouble::Killed);
            }
            pause(&sim);
        }
    }

    fn is_over(&self) -> bool {
        let told = self
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        let gone = |sim: Rc<Sim>| self.process.is_none_or(|process| !process::alive(&sim, process));
        told || self.sim.upgrade().is_none_or(gone)
    }

    fn kill(&self) {
        let (Some(sim), Some(process)) = (self.sim.upgrade(), self.process) else {
            return;
        };
        process::kill(&sim, process, true);
        while process::known(&sim, process) {
            pause(&sim);
        }
        sim.note(
            self.node,
            "killed by the suite",
            &[("process", u64::from(process.0))],
        );
    }
}

impl SimCluster {
    fn running(&self, node: u16, process: Option<ProcessId>, result: Result) -> Box<dyn Running> {
        Box::new(SimRunning {
            sim: self.sim.clone(),
            node: NodeId(node),
            process,
            result,
        })
    }
}

fn storing(body: Body, result: &Result) -> Box<dyn FnOnce()> {
    let result = result.clone();
    Box::new(move || {
        let outcome = body();
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    })
}

impl Cluster for SimCluster {
    fn nodes(&self) -> u16 {
        self.nodes
    }

    fn node(&self, node: u16) -> Handle {
        let sim = self.sim.upgrade();
        let backend = sim.map(|sim| SimBackend::new(&sim, NodeId(node), self.inline));
        Handle::new(Arc::new(
            backend.unwrap_or_else(|| SimBackend::nowhere(NodeId(node))),
        ))
    }

    fn spawn(&self, node: u16, _name: &str, body: Body) -> Box<dyn Running> {
        let result = Result::default();
        let process = self
            .sim
            .upgrade()
            .and_then(|sim| process::start(&sim, NodeId(node), None, false, storing(body, &result)).ok());
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.extend(process);
        drop(started);
        self.running(node, process, result)
    }

    fn spawn_thread(&self, node: u16, _name: &str, body: Body) -> Box<dyn Running> {
        let result = Result::default();
        let process = self.sim.upgrade().and_then(|sim| {
            let (_, process) = process::running(&sim)?;
            process::spawn(&sim, process, storing(body, &result))
                .ok()
                .map(|_| process)
        });
        self.running(node, process, result)
    }

    fn pressure(&self, node: u16) {
        let Some(sim) = self.sim.upgrade() else { return };
        let node = sim.node(NodeId(node)).clone();
        let processes = node.vm.borrow().processes();
        for process in processes {
            let pages: Vec<u64> = node
                .vm
                .borrow()
                .space(process)
                .map(|s| s.present_pages().collect())
                .unwrap_or_default();
            for page in pages {
                kernel::change(&sim, &node, process, Change::Evict { page }, None);
            }
        }
    }

    fn can_kill(&self) -> bool {
        true
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn has_descriptors(&self) -> bool {
        false
    }

    fn restart(&self, node: u16) {
        let Some(sim) = self.sim.upgrade() else { return };
        let node = sim.node(NodeId(node)).clone();
        crate::world::restart(&sim, &node);
        while node.driver(&sim).is_none() {
            pause(&sim);
        }
    }
}

/// Roles that run bodies, one after the other, until told to stop: `count` of them, each on other
/// port numbers.
pub(crate) fn roles(dice: &mut Dice, config: &Config, count: u16) -> Vec<Role> {
    let (strict, nodes) = (config.faults != FaultLevel::All, config.nodes);
    (0..count)
        .map(|index| {
            let home = NodeId(dice.below(u64::from(config.nodes)) as u16);
            let started = Started::default();
            Role::new("conformance", home, move |mut env| {
                // In the calm, one body must end well.
                let mut calm = env.calm;
                let prospect = if strict || calm {
                    Prospect::Fair
                } else {
                    Prospect::Foul
                };
                while calm || !env.stage.stopped() {
                    // What an earlier body has left behind would meddle with the next one. It comes to its
                    // end by itself: the promise that no process waits for ever holds for processes that were left
                    // alone as well.
                    if left_behind(&env, &started) {
                        continue;
                    }
                    if let Some(case) = draw(&mut env.dice, nodes) {
                        let seed = env.dice.word();
                        env.note(case.name, &[("body", u64::from(index))]);
                        let end = run(&env, case, seed, index, prospect, &started);
                        judge(&env, case, end, prospect);
                    }
                    calm = false;
                }
            })
        })
        .collect()
}

/// What may become of a body's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// None fails.
    Fair,
    /// None fails, and all take their time.
    Far,
    /// One fault strikes, and what it hits may fail. The body waits this long for what must come.
    OneFault(Duration),
    /// Any of them may fail, at any time.
    Foul,
}

impl Prospect {
    const fn is_fair(self) -> bool {
        matches!(self, Self::Fair | Self::Far)
    }

    /// How long a body waits for what must come. With faults, what never comes must not hold a run up for long.
    const fn patience(self) -> Duration {
        match self {
            Self::Fair => Duration::from_secs(2),
            Self::Far => Duration::from_secs(60),
            Self::OneFault(patience) => patience,
            Self::Foul => Duration::from_millis(40),
        }
    }
}

/// The role that runs one body once.
pub(crate) fn role_of(case: &'static Case, seed: u64, prospect: Prospect) -> Role {
    let mut role = Role::new(case.name, NodeId(0), move |env| {
        let end = run(&env, case, seed, 0, prospect, &Started::default());
        judge(&env, case, end, prospect);
    });
    role.repeat = false;
    role.revive = false;
    role
}

/// The bodies that a simulated world can play.
pub(crate) fn bodies() -> impl Iterator<Item = &'static Case> {
    ALL.iter().filter(|case| case.needs != Needs::Descriptors)
}

/// A body that can run here, of any idiom, each idiom as likely as another.
fn draw(dice: &mut Dice, nodes: u16) -> Option<&'static Case> {
    let idioms = idioms();
    let idiom = idioms.get(dice.index(idioms.len()))?;
    // A body that restarts nodes would take the others' processes with it.
    let fits = |case: &Case| case.needs != Needs::Restart && case.nodes <= nodes;
    let cases: Vec<&Case> = bodies()
        .filter(|case| case.idiom() == *idiom && fits(case))
        .collect();
    cases.get(dice.index(cases.len().max(1))).copied()
}

/// Whether processes of earlier bodies still run; after a pause if so.
fn left_behind(env: &Env, started: &Started) -> bool {
    let Some(sim) = env.sim.upgrade() else {
        return false;
    };
    let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
    started.retain(|&process| process::known(&sim, process));
    let some = !started.is_empty();
    drop(started);
    if some {
        pause(&sim);
    }
    some
}

fn run(env: &Env, case: &Case, seed: u64, index: u16, prospect: Prospect, started: &Started) -> Outcome {
    let Some(nodes) = env.sim.upgrade().map(|sim| sim.nodes.len() as u16) else {
        return Ok(());
    };
    let cluster = SimCluster {
        sim: env.sim.clone(),
        nodes,
        inline: env.inline,
        started: started.clone(),
    };
    let mut case_env = netvm_conformance::Env::new(Arc::new(cluster), 1, seed);
    case_env.first_port = 1 + index * PORTS_PER_CASE;
    case_env.nodes.rotate_left(usize::from(env.id.0));
    case_env.patience = prospect.patience();
    case_env.may_fail = !prospect.is_fair();
    env.note(case.name, &[("seed", seed)]);
    count(env, |bodies| bodies.begins(case));
    if let Some(sim) = env.sim.upgrade() {
        sim.points.open();
    }
    let end = case.run(&case_env);
    let how = match &end {
        Ok(()) => "body ends well",
        Err(Trouble::Wrong(_) | Trouble::Spoiled(_)) => "body ends wrong",
        Err(Trouble::Failed(_) | Trouble::Unexpected(_)) => "body ends with an error",
        Err(Trouble::Killed | Trouble::Skipped(_)) => "body ends early",
    };
    env.note(how, &[]);
    if end.is_ok() {
        count(env, |bodies| bodies.ends_well(case));
    }
    end
}

fn count(env: &Env, with: impl FnOnce(&mut Bodies)) {
    if let Some(sim) = env.sim.upgrade() {
        with(&mut sim.bodies.borrow_mut());
    }
}

fn judge(env: &Env, case: &Case, end: Outcome, prospect: Prospect) {
    match end {
        Ok(()) | Err(Trouble::Skipped(_)) => {}
        Err(trouble @ (Trouble::Wrong(_) | Trouble::Spoiled(_))) => {
            env.complain(format!("{}: {trouble}", case.name));
        }
        Err(trouble) if prospect.is_fair() => env.complain(format!("{}: {trouble}", case.name)),
        // Where anything may fail, this is a fair end.
        Err(_) => {}
    }
}
