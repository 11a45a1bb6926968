//! A modelled world, and what its processes need to measure in it. The checkers of the promises watch it as they watch the
//! worlds of seeds.

use crate::card::Card;
use crate::check::Modest;
use crate::config::{Config, FaultLevel};
use crate::coroutine::Park;
use crate::process;
use crate::report::{Failure, Report};
use crate::script::{Blow, Script};
use crate::sim::Sim;
use crate::solo::Solo;
use crate::timing::CostModel;
use crate::trace::NoTrace;
use crate::workload::{Env, Role};
use crate::world::World;
use netvm::{Node, Port, PortConfig, Result, Timeout};
use netvm_abi::{Geometry, Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A measurement came to nothing: what failed, of which part.
#[derive(Clone, Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

/// What a process that measures is given.
#[derive(Clone)]
pub struct Actor {
    sim: Solo<Weak<Sim>>,
    /// The library's handle of its node.
    pub node: Node,
    /// Which node that is.
    pub id: NodeId,
}

impl Actor {
    fn sim(&self) -> Option<Rc<Sim>> {
        self.sim.upgrade()
    }

    /// The present.
    pub fn now(&self) -> Nanos {
        self.sim().map_or(Nanos(0), |sim| sim.now())
    }

    /// Instructions of all cards so far, but for looks in vain.
    pub fn instructions(&self) -> u64 {
        self.sim().map_or(0, |sim| {
            sim.nodes.iter().map(|node| node.instructions.get()).sum()
        })
    }

    /// What all cards together have counted so far, by the counters' names.
    pub fn counted(&self, names: &[&str]) -> Vec<u64> {
        let Some(sim) = self.sim() else {
            return Vec::new();
        };
        let mut sums = vec![0; names.len()];
        for node in &sim.nodes {
            for (name, value) in node.card.borrow().iter().flat_map(Card::counters) {
                if let Some(at) = names.iter().position(|&wanted| wanted == name) {
                    sums[at] += value;
                }
            }
        }
        sums
    }

    /// Lets time pass.
    pub fn rest(&self, span: Nanos) {
        if let Some(sim) = self.sim() {
            let until = sim.now().after(span);
            // Something of its process may wake it earlier.
            while sim.now() < until {
                sim.parker.park(Park::Until(until));
            }
        }
    }

    /// Cuts the link between its node and another for a while.
    pub fn cut(&self, other: NodeId, span: Nanos) {
        if let Some(sim) = self.sim() {
            let until = sim.now().after(span);
            sim.fabric.borrow_mut().cut_between(self.id, other, until);
        }
    }

    /// Lets time pass until something is so.
    pub fn until(&self, mut is: impl FnMut() -> bool) {
        while !is() {
            self.rest(Nanos::from_micros(20));
        }
    }

    /// Opens a port of the process.
    ///
    /// # Errors
    /// Those of [`Port::open`].
    pub fn open(&self, number: u16) -> Result<Port> {
        Port::open(&self.node, PortConfig::number(number))
    }

    /// Adds a thread to the process.
    pub fn thread(&self, body: impl FnOnce(&Self) -> Result<()> + 'static) {
        let Some(sim) = self.sim() else { return };
        let Some((_, process)) = process::running(&sim) else {
            return;
        };
        let actor = self.clone();
        let run = move || {
            let end = body(&actor);
            actor.judge(end);
        };
        if let Err(what) = process::spawn(&sim, process, Box::new(run)) {
            sim.complain(format!("a thread of node {}: {what}", self.id));
        }
    }

    /// Has the world fail with this.
    pub fn complain(&self, what: &str) {
        if let Some(sim) = self.sim() {
            sim.complain(format!("a process of node {}: {what}", self.id));
        }
    }

    fn judge(&self, end: Result<()>) {
        if let Err(error) = end {
            self.complain(&error.to_string());
        }
    }
}

/// Where a number of processes meet.
#[derive(Default)]
pub struct Gate {
    come: Cell<usize>,
}

impl Gate {
    /// How many have come.
    pub fn come(&self) -> usize {
        self.come.get()
    }

    /// Waits until `many` have come.
    pub fn pass(&self, actor: &Actor, many: usize) {
        self.come.set(self.come.get() + 1);
        actor.until(|| self.come.get() >= many);
    }
}

/// Numbers that processes leave behind, by name.
pub type Findings<T> = Rc<RefCell<Vec<T>>>;

/// A world to be, and its processes.
pub struct Stand {
    model: CostModel,
    nodes: u16,
    roles: Vec<Role>,
    modest: Option<Modest>,
    script: Option<(Script, Blow)>,
    shipped_timers: bool,
    loss: Option<(u32, u64)>,
    window: Option<(u16, u16)>,
    switch: Option<u64>,
}

/// How long a process waits for a name.
pub const SOON: Timeout = Timeout::After(std::time::Duration::from_secs(5));

impl Stand {
    /// With `nodes` nodes.
    pub const fn new(model: &CostModel, nodes: u16) -> Self {
        Self {
            model: *model,
            nodes,
            roles: Vec::new(),
            modest: None,
            script: None,
            shipped_timers: false,
            loss: None,
            window: None,
            switch: None,
        }
    }

    /// Adds a process.
    pub fn process(&mut self, node: u16, name: &str, body: impl Fn(&Actor) -> Result<()> + 'static) {
        let mut role = Role::new(name, NodeId(node), move |env: Env| {
            let actor = Actor {
                sim: env.sim.clone(),
                node: env.node.clone(),
                id: env.id,
            };
            let end = body(&actor);
            actor.judge(end);
        });
        (role.repeat, role.revive) = (false, false);
        self.roles.push(role);
    }

    /// The frame of this script is lost.
    pub fn lose(&mut self, script: Script) {
        self.script = Some((script, Blow::Lost));
    }

    /// The frame of this script is lost once, and arrives when it is sent again.
    pub fn lose_once(&mut self, script: Script) {
        self.script = Some((script, Blow::LostOnce));
    }

    /// `rate` of a million frames are lost, of all kinds and in both directions. The seed says which.
    pub const fn lose_at_random(&mut self, rate: u32, seed: u64) {
        self.loss = Some((rate, seed));
    }

    /// Its cards have the deadlines that are shipped, which are longer than those of the worlds of seeds.
    pub const fn with_shipped_timers(&mut self) {
        self.shipped_timers = true;
    }

    /// Its cards have windows of so many messages, and so many staging buffers.
    pub const fn with_window(&mut self, window: u16, staging: u16) {
        self.window = Some((window, staging));
    }

    /// A switch keeps so many bytes for each node, and loses what comes when they are full.
    pub const fn with_switch(&mut self, bytes: u64) {
        self.switch = Some(bytes);
    }

    /// The frame of this script arrives so much later.
    pub fn delay(&mut self, script: Script, span: Nanos) {
        self.script = Some((script, Blow::Late(span)));
    }

    /// A port that has to get its turns.
    pub(crate) fn watch(&mut self, modest: Modest) {
        self.modest = Some(modest);
    }

    /// Runs it until all processes have returned. `clients`: the most of any node.
    ///
    /// # Errors
    /// A process failed, did not return, or a promise was broken.
    pub fn run(self, clients: u16) -> std::result::Result<(), Trouble> {
        self.play(clients)
            .map(drop)
            .map_err(|failure| Trouble(failure.what.clone()))
    }

    /// The same, with all that a run comes to.
    ///
    /// # Errors
    /// [`Failure`] as [`run`](Self::run).
    pub fn play(self, clients: u16) -> std::result::Result<Report, Box<Failure>> {
        let config = Config {
            nodes: self.nodes,
            messages: 0,
            sparse: false,
            far: false,
            faults: FaultLevel::Off,
            deadline: Nanos::from_millis(100),
            patience: Nanos::from_millis(60_000),
        };
        let tables = |usual: Geometry| match self.window {
            Some((window, staging)) => Geometry {
                window,
                staging,
                ..usual
            },
            None => usual,
        };
        let timers = self.shipped_timers;
        let mut world = World::modelled(config, &self.model, clients, self.roles, timers, tables);
        if let Some(modest) = self.modest {
            world.watch(modest);
        }
        if let Some((rate, seed)) = self.loss {
            world.lose(rate, seed);
        }
        if let Some(bytes) = self.switch {
            world.set_switch(bytes);
        }
        if let Some((script, blow)) = self.script {
            world.play(script, blow);
        }
        world.run(&mut NoTrace)
    }
}

/// Runs something for each of many, in no order; gives the results in theirs: worlds that have
/// nothing to do with each other.
///
/// # Errors
/// The first of those that failed.
pub fn side_by_side<T: Sync, R: Send>(
    all: &[T],
    threads: usize,
    run: impl Fn(&T) -> std::result::Result<R, Trouble> + Sync,
) -> std::result::Result<Vec<R>, Trouble> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, std::result::Result<R, Trouble>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, all.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(at) else { break };
                    let result = run(one);
                    if let Ok(mut results) = results.lock() {
                        results.push((at, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poison| poison.into_inner());
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_one_that_fails_is_told() {
        let all: Vec<u32> = (0..50).collect();
        let doubled = side_by_side(&all, 3, |&n| Ok(2 * n)).unwrap();
        assert_eq!(doubled, all.iter().map(|n| 2 * n).collect::<Vec<_>>());
        let fails = side_by_side(&all, 3, |&n| {
            if n == 7 {
                Err(Trouble("seven".into()))
            } else {
                Ok(n)
            }
        });
        assert_eq!(fails.unwrap_err().0, "seven");
    }
}
