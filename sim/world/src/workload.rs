//! The roles of a world, and the nodes that they run on.
//!
//! Every role but the hostile one goes through the user library. In benign worlds the roles are the
//! conformance bodies, which insist on success; in the others they are [`crate::mix`], whose
//! operations may fail and which then start over.

use crate::backend::SimBackend;
use crate::cluster;
use crate::config::{Config, FaultLevel};
use crate::coroutine::Park;
use crate::dice::Dice;
use crate::hostile;
use crate::judged;
use crate::mix;
use crate::sim::Sim;
use crate::solo::Solo;
use netvm::Node as Handle;
use netvm_abi::{Nanos, NodeId, PortId};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the apps of a world are told.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Finish what you are at, close, and return.
    pub(crate) stop: AtomicBool,
    /// The same for roles that others send to.
    pub(crate) close: AtomicBool,
    /// No role is left that would send anything.
    pub(crate) done: AtomicBool,
    /// Whatever the faults have broken is whole again: a life of a role that begins now must end well.
    pub(crate) calm: AtomicBool,
    /// The nodes are far apart.
    pub(crate) far: bool,
}

impl Stage {
    /// Whether roles that others send to shall finish.
    pub(crate) fn closing(&self) -> bool {
        self.close.load(Ordering::Relaxed)
    }

    /// Whether apps shall finish.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether nothing has a reason to fail any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }
}

/// What a role's body gets.
pub(crate) struct Env {
    pub(crate) node: Handle,
    pub(crate) backend: Arc<SimBackend>,
    pub(crate) sim: Solo<Weak<Sim>>,
    pub(crate) id: NodeId,
    /// What descriptors may carry, in bytes.
    pub(crate) inline: usize,
    pub(crate) stage: Arc<Stage>,
    pub(crate) dice: Dice,
    /// Nothing had a reason to fail any more when this life of the role began.
    pub(crate) calm: bool,
    /// The nodes are far apart.
    pub(crate) far: bool,
}

/// How much longer what is far takes.
const FAR: u64 = 100;

impl Env {
    /// So many milliseconds, or a hundred times as many where nodes are far apart.
    pub(crate) const fn millis(&self, near: u64) -> Duration {
        Duration::from_millis(near * if self.far { FAR } else { 1 })
    }

    /// Notes an event of this role in the trace.
    pub(crate) fn note(&self, what: &'static str, fields: &[(&'static str, u64)]) {
        if let Some(sim) = self.sim.upgrade() {
            sim.note(self.id, what, fields);
        }
    }

    /// Lets some time pass.
    pub(crate) fn rest(&self) {
        if let Some(sim) = self.sim.upgrade() {
            sim.parker
                .park(Park::Until(sim.now().after(Nanos::from_micros(20))));
        }
    }

    /// How this life of the role has ended. One that began in the calm has no reason to fail.
    pub(crate) fn ends<E: std::fmt::Display>(&self, what: &str, end: std::result::Result<(), E>) {
        if let (true, Err(error)) = (self.calm, end) {
            self.complain(format!(
                "{what} ends with \"{error}\", though the faults are long over"
            ));
        }
    }

    /// Has the world fail with this.
    pub(crate) fn complain(&self, what: String) {
        if let Some(sim) = self.sim.upgrade() {
            sim.complain(format!("an app of node {}: {what}", self.id));
        }
    }
}

type Body = Rc<dyn Fn(Env)>;

/// A role: a process that runs a body, again and again if it says so.
#[derive(Clone)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) node: NodeId,
    /// Its memory may be thrown away under it.
    pub(crate) scratch: bool,
    /// Others send to it: it finishes last.
    pub(crate) server: bool,
    /// It starts over when its body has returned.
    pub(crate) repeat: bool,
    /// It starts over when it was killed.
    pub(crate) revive: bool,
    body: Body,
}

impl Role {
    /// A role that repeats and revives.
    pub(crate) fn new(name: impl Into<String>, node: NodeId, body: impl Fn(Env) + 'static) -> Self {
        Self {
            name: name.into(),
            node,
            scratch: false,
            server: false,
            repeat: true,
            revive: true,
            body: Rc::new(body),
        }
    }

    /// The body, ready to run.
    pub(crate) fn body(
        &self,
        sim: &Sim,
        backend: Arc<SimBackend>,
        inline: u16,
        stage: Arc<Stage>,
        seed: u64,
    ) -> Box<dyn FnOnce()> {
        let env = Env {
            node: Handle::new(backend.clone()),
            backend,
            sim: Solo::new(sim.me.clone()),
            id: self.node,
            inline: inline.into(),
            calm: stage.is_calm(),
            far: stage.far,
            stage,
            dice: Dice::new(seed),
        };
        let body = self.body.clone();
        Box::new(move || body(env))
    }
}

/// Ports of a node: the driver's, the bodies', and some more.
pub(crate) const PORTS: u16 = 1 + BODIES * netvm_conformance::PORTS_PER_CASE + 22;
/// Ports that some nodes have and others have not.
pub(crate) const EXTRA_PORTS: u16 = 16;
/// The port that shows, after the faults, that each node reaches each other one.
pub(crate) const REUNION: PortId = PortId(PORTS - 2);
/// The port that sends only so that there is traffic.
pub(crate) const BACKGROUND: PortId = PortId(PORTS - 16);
/// Ports of programs whose operations are judged, and of the one that owns what they change.
pub(crate) const JUDGED: PortId = PortId(PORTS - 17);
pub(crate) const JUDGED_HOME: PortId = PortId(PORTS - 18);
/// The same for locks and semaphores.
pub(crate) const LOCKS: PortId = PortId(PORTS - 19);
pub(crate) const LOCKS_HOME: PortId = PortId(PORTS - 20);
/// The same for wait queues, channels and shared queues.
pub(crate) const QUEUES: PortId = PortId(PORTS - 21);
pub(crate) const QUEUES_HOME: PortId = PortId(PORTS - 22);
/// Conformance bodies that run side by side, at most.
const BODIES: u16 = 3;

/// Whether conformance bodies run in such worlds.
pub(crate) const fn runs_bodies(config: &Config) -> bool {
    config.nodes <= 16
}

/// The roles of a run. In benign worlds bodies make up most of it.
pub(crate) fn roles(dice: &mut Dice, config: &Config) -> Vec<Role> {
    let bodies = match config.faults {
        FaultLevel::All => dice.below(u64::from(BODIES) + 1) as u16,
        _ => 1 + dice.below(u64::from(BODIES)) as u16,
    };
    let mut roles = if runs_bodies(config) {
        cluster::roles(dice, config, bodies)
    } else {
        Vec::new()
    };
    roles.extend(mix::roles(dice, config));
    roles.extend(judged::roles(dice, config.nodes));
    let node = NodeId(dice.below(u64::from(config.nodes)) as u16);
    if config.nodes > 1 {
        roles.push(Role::new("hostile app", node, |env| {
            let stage = env.stage.clone();
            hostile::app(&env.sim, env.id, &*env.backend, &|| stage.stopped());
        }));
    }
    roles
}
