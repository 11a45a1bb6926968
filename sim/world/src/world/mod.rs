//! A run: nodes come up ([`power`]), faults fly, then stop, and everything must finish ([`phases`]).

#[cfg(test)]
mod aftermath;
mod drawn;
mod phases;
#[cfg(test)]
mod posted_stores;
mod power;
mod rest;

pub(crate) use power::{hang, restart};

use crate::backend::SimBackend;
use crate::card;
use crate::check::{Checkers, Limits, Modest, Violation};
use crate::config::{Config, FaultLevel};
use crate::dice::Dice;
use crate::dma::DmaSpeed;
use crate::faults::Faults;
use crate::footprint::Meter;
use crate::history::Judged;
use crate::hostile::{self, Rogue};
use crate::kernel::{self, KernelStep};
use crate::link::{Fabric, LinkSpeed};
use crate::node::Node;
use crate::points;
use crate::process;
use crate::report::{Failure, Report};
use crate::reunion::{self, Apart};
use crate::script::{Blow, Script};
use crate::sim::{Event, Sim};
use crate::sparse;
use crate::timing::CostModel;
use crate::trace::TraceSink;
use crate::words::Side;
use crate::workload::{self, Role, Stage};
use netvm_abi::wire::Header;
use netvm_abi::{Geometry, Nanos, NodeId};
use netvm_host::attach::HostConfig;
use netvm_nic::config::Timers;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use phases::{CHECK, Phase};

/// A world and what watches it.
pub(crate) struct World {
    seed: u64,
    config: Config,
    sim: Rc<Sim>,
    checkers: Checkers,
    roles: Vec<Role>,
    stage: Arc<Stage>,
    rogue: Rogue,
    dma: DmaSpeed,
    /// What descriptors of this run may carry, in bytes.
    inline: u16,
    /// What drivers are told.
    host: HostConfig,
    phase: Phase,
    /// When the phase began, and how many messages had been sent when progress was last seen.
    since: Nanos,
    messages_then: u64,
    alive_roles: Vec<bool>,
    /// Roles that have ended while the faults went on, and that begin anew.
    parted: Vec<usize>,
    /// The pairs of nodes that have not reached one another since the faults.
    apart: Apart,
    tick: Nanos,
    /// Deadlines of the cards.
    timers: Timers,
    /// Looks at the memory of the process.
    meter: Option<Meter>,
}

impl Drop for World {
    /// Apps own references to the world, and it owns the apps.
    fn drop(&mut self) {
        // After a panic of the world itself nothing can be said of the apps: they are forgotten.
        if !std::thread::panicking() {
            for node in &self.sim.nodes {
                node.held.end();
            }
            process::bury(&self.sim);
        }
    }
}

/// Sizes and speeds of a world.
struct Shape {
    /// The tables of each node's card.
    geometries: Vec<Geometry>,
    speed: LinkSpeed,
    dma: DmaSpeed,
    /// Page frames of each node.
    frames: usize,
    inline: u16,
    /// Accesses until one side's step is interleaved into the other's.
    fuse: u32,
    host: HostConfig,
    /// How often a host looks around.
    tick: Nanos,
    timers: Timers,
    model: Option<CostModel>,
}

/// What ends a run early.
enum Stop {
    Broken(Violation),
    Other(String),
}

/// How often a host looks around.
const TICK: Nanos = Nanos::from_micros(20);

impl World {
    /// A world in which nothing has happened yet, with a workload of its own making.
    pub(crate) fn new(seed: u64, config: Config, wants_lines: bool) -> Self {
        if config.sparse {
            return Self::sparse(seed, config, wants_lines);
        }
        Self::with_roles(seed, config, wants_lines, workload::roles)
    }

    /// A world of very many nodes that say little.
    fn sparse(seed: u64, config: Config, wants_lines: bool) -> Self {
        let mut dice = Dice::new(seed);
        let shape = Shape {
            geometries: vec![sparse::geometry(&config); config.nodes.into()],
            speed: LinkSpeed::draw(&mut dice, config.far),
            dma: DmaSpeed::draw(&mut dice),
            frames: 24,
            inline: 64,
            fuse: u32::MAX,
            host: HostConfig {
                segments: 16,
                exports: 16,
                imports: 16,
                ..power::host_config()
            },
            tick: Nanos(TICK.0 * u64::from(config.nodes).div_ceil(8)),
            timers: power::timers(false),
            model: None,
        };
        let (config, roles) = (
            Config {
                faults: FaultLevel::Off,
                patience: Nanos::from_millis(20_000),
                ..config
            },
            sparse::roles(&config),
        );
        let faults = Faults::none();
        let world = Self::of_shape(seed, config, wants_lines, roles, shape, (dice, faults));
        world.lose(sparse::LOSS, seed);
        world
    }

    /// A world with these roles.
    pub(crate) fn with_roles(
        seed: u64,
        config: Config,
        wants_lines: bool,
        roles: impl FnOnce(&mut Dice, &Config) -> Vec<Role>,
    ) -> Self {
        Self::with_tables(seed, config, wants_lines, roles, |drawn| drawn)
    }

    /// The same, whose nodes have other tables than those that were drawn.
    pub(crate) fn with_tables(
        seed: u64,
        config: Config,
        wants_lines: bool,
        roles: impl FnOnce(&mut Dice, &Config) -> Vec<Role>,
        tables: impl Fn(Geometry) -> Geometry,
    ) -> Self {
        let mut dice = Dice::new(seed);
        let faults = match config.faults {
            FaultLevel::Off => Faults::none(),
            FaultLevel::Benign => Faults::benign(&mut dice),
            FaultLevel::All => Faults::swarm(&mut dice),
        };
        let speed = LinkSpeed::draw(&mut dice, config.far);
        let dma = DmaSpeed::draw(&mut dice);
        let common = drawn::geometry(&mut dice, &config);
        // In half of the worlds each card has tables of its own sizes.
        let mixed = dice.below(2) == 0;
        let geometries = drawn::messages_of_windows(seed, config.nodes)
            .into_iter()
            .zip(drawn::windows(seed, config.nodes))
            .map(|(window, windows)| {
                let drawn = if mixed {
                    drawn::geometry(&mut dice, &config)
                } else {
                    common
                };
                tables(Geometry {
                    windows,
                    ..drawn::widened(drawn, window)
                })
            })
            .collect();
        let roles = roles(&mut dice, &config);
        let per_node = roles.len().div_ceil(usize::from(config.nodes.max(1)));
        let frames = 12 + dice.index(60) + 6 * per_node;
        let inline = [8, 16, 64, 128][dice.index(4)];
        let fuse = dice.within(15, 600) as u32;
        let counts_from = drawn::counts(seed);
        let shape = Shape {
            geometries,
            speed,
            dma,
            frames,
            inline,
            fuse,
            host: HostConfig {
                counts_from,
                import_retry: power::import_retry(config.far),
                ..power::host_config()
            },
            tick: Nanos(TICK.0 * u64::from(config.nodes).div_ceil(8)),
            timers: power::timers(config.far),
            model: None,
        };
        Self::of_shape(seed, config, wants_lines, roles, shape, (dice, faults))
    }

    /// A world in which nothing goes wrong and what happens takes what `model` says, with `clients` processes or threads
    /// on each node at most. Its cards have the deadlines of drawn worlds, or those that are shipped, and the usual tables
    /// but for what `tables` changes.
    pub(crate) fn modelled(
        config: Config,
        model: &CostModel,
        clients: u16,
        roles: Vec<Role>,
        shipped_timers: bool,
        tables: impl Fn(Geometry) -> Geometry,
    ) -> Self {
        let clients = clients.max(4);
        let places = u32::from(clients) * u32::from(config.nodes);
        let geometry = tables(Geometry {
            ports: clients + 8,
            nodes: config.nodes + 1,
            page_rows: 1024,
            capabilities: 1024 + 64 * places,
            ..Geometry::default()
        });
        let shape = Shape {
            geometries: vec![geometry; config.nodes.into()],
            speed: LinkSpeed::modelled(model),
            dma: DmaSpeed::modelled(model),
            frames: 512 + 512 * usize::from(clients),
            inline: 128,
            fuse: u32::MAX,
            host: HostConfig {
                segments: 64 + 512 * u32::from(clients),
                exports: 64 + 512 * u32::from(clients),
                imports: (1024 + 64 * places).min(u32::from(u16::MAX)),
                ..power::host_config()
            },
            tick: Nanos::from_millis(1),
            timers: power::timers(shipped_timers),
            model: Some(*model),
        };
        Self::of_shape(0, config, false, roles, shape, (Dice::new(0), Faults::none()))
    }

    fn of_shape(
        seed: u64,
        config: Config,
        wants_lines: bool,
        roles: Vec<Role>,
        shape: Shape,
        (mut dice, faults): (Dice, Faults),
    ) -> Self {
        let own = dice.split(1);
        let fabric = Fabric::new(usize::from(config.nodes), shape.speed, Nanos::from_millis(60));
        let sim = Sim::new(own, faults, fabric, wants_lines, shape.fuse, shape.model, |sim| {
            (0..)
                .zip(&shape.geometries)
                .map(|(id, &geometry)| Node::new(sim, NodeId(id), geometry, shape.frames))
                .collect()
        });
        sim.counts_from.set(shape.host.counts_from);
        // In a part of the worlds faults strike at any access, and not at ticks only.
        let mut drawn = dice.split(2);
        if config.faults == FaultLevel::All && drawn.below(3) == 0 {
            sim.points.draw(drawn);
        }
        let alive_roles = vec![false; roles.len()];
        let limits = Limits {
            nodes: config.nodes,
            deadline: config.deadline,
            silence: crate::driver::silence(&shape.host),
            loss: shape.timers.loss_bound(),
            greeting: Nanos(shape.timers.hello_interval.0 * u64::from(shape.timers.hello_limit)),
            background: Some(workload::BACKGROUND.0),
            reunited: if shape.model.is_none() && config.nodes <= reunion::ALL_PAIRS {
                config.nodes
            } else {
                0
            },
        };
        Self {
            seed,
            config,
            sim,
            checkers: Checkers::new(limits, &shape.geometries),
            roles,
            stage: Arc::new(Stage {
                far: config.far,
                ..Stage::default()
            }),
            rogue: Rogue::new(NodeId(config.nodes)),
            dma: shape.dma,
            inline: shape.inline,
            host: shape.host,
            phase: Phase::Safety,
            since: Nanos(0),
            messages_then: 0,
            alive_roles,
            parted: Vec::new(),
            apart: Apart::default(),
            tick: shape.tick,
            timers: shape.timers,
            meter: None,
        }
    }

    /// The same, whose hosts look around so often.
    pub(crate) fn with_tick(mut self, tick: Nanos) -> Self {
        self.tick = tick;
        self
    }

    /// What it is made of.
    pub(crate) fn sim(&self) -> Rc<Sim> {
        self.sim.clone()
    }

    /// Adds a fault at a step of the protocol.
    pub(crate) fn play(&self, script: Script, blow: Blow) {
        self.sim.play.begin(script, blow);
    }

    /// Puts a switch into all ways, which keeps so many bytes for each node.
    pub(crate) fn set_switch(&self, bytes: u64) {
        self.sim.fabric.borrow_mut().set_switch(bytes);
    }

    /// From now on, `rate` of a million frames are lost.
    pub(crate) fn lose(&self, rate: u32, seed: u64) {
        self.sim.fabric.borrow_mut().lose(rate, seed);
    }

    /// Has this look at the memory of the process now and then.
    pub(crate) fn measure(&mut self, meter: &Meter) {
        self.meter = Some(meter.clone());
    }

    /// Holds the waits of a port against a bound.
    pub(crate) fn watch(&mut self, modest: Modest) {
        self.checkers.watch(modest);
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
        let result = self.start().and_then(|()| self.events(sink));
        self.sim.trace.borrow_mut().flush(sink);
        let judged = result.and_then(|()| self.sim.histories.borrow().judge().map_err(Stop::Other));
        match judged {
            Ok(judged) => Ok(self.report(judged)),
            Err(stop) => Err(Box::new(self.failure(stop))),
        }
    }

    fn start(&mut self) -> Result<(), Stop> {
        for id in 0..self.config.nodes {
            self.boot(NodeId(id)).map_err(Stop::Other)?;
        }
        for role in 0..self.roles.len() {
            let span = self.sim.span(Nanos(1_000), Nanos::from_micros(50));
            self.sim.after(span, Event::Start { role });
            self.alive_roles[role] = true;
        }
        self.sim.after(CHECK, Event::Check);
        if self.sim.model.is_none() {
            self.sim.after(Nanos::from_micros(30), Event::Rogue);
        }
        self.since = self.sim.now();
        Ok(())
    }

    fn events(&mut self, sink: &mut dyn TraceSink) -> Result<(), Stop> {
        while self.phase != Phase::Over {
            let Some(event) = self.sim.clock.borrow_mut().next() else {
                return Err(Stop::Other(
                    "nothing is left to happen, and the run is not over".into(),
                ));
            };
            self.dispatch(event)?;
            points::settle(&self.sim);
            self.look()?;
            if sink.wants_lines() {
                self.sim.trace.borrow_mut().flush(sink);
            }
            sink.step();
        }
        Ok(())
    }

    /// Shows the checkers what was seen.
    fn look(&mut self) -> Result<(), Stop> {
        if !self.sim.log.borrow().is_empty() {
            let facts = self.sim.log.borrow_mut().take();
            let now = self.sim.now();
            for fact in &facts {
                self.checkers.see(now, fact).map_err(Stop::Broken)?;
            }
        }
        match self.sim.complaint.borrow_mut().take() {
            Some(what) => Err(Stop::Other(what)),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, event: Event) -> Result<(), Stop> {
        let sim = self.sim.clone();
        let alive = |node: NodeId, life: u32| sim.node(node).life.get() == life;
        match event {
            Event::App { app, turn } => process::run(&sim, app, turn),
            Event::Card { node, life } if alive(node, life) => {
                let node = sim.node(node);
                node.card_due.set(false);
                let paused = node.paused_until.get();
                if paused > sim.now() {
                    node.kick(&sim, Nanos(0));
                } else {
                    card::pass(&sim, node);
                    node.words().drain(crate::words::Side::Nic);
                }
            }
            Event::Resume {
                node,
                side: Side::Nic,
                turn,
            } => card::resume(&sim, sim.node(node), turn),
            Event::Resume {
                node,
                side: Side::Host,
                turn,
            } => kernel::resume(&sim, sim.node(node), turn),
            Event::Lands { node, life, side } if alive(node, life) => {
                sim.node(node).words().land(side, sim.now());
            }
            Event::DmaMove { node, life, dma } if alive(node, life) => {
                card::dma_move(&sim, sim.node(node), dma, false)
            }
            Event::DmaDone { node, life, dma } if alive(node, life) => {
                card::dma_done(&sim, sim.node(node), dma)
            }
            Event::Sent { node, life, staging } if alive(node, life) => {
                card::sent(&sim, sim.node(node), staging);
            }
            Event::Switch { to, frame } => card::at_switch(&sim, to, frame),
            Event::Arrive { to, frame } => {
                if to.index() < sim.nodes.len() {
                    card::arrive(&sim, to, frame);
                } else if let Ok(header) = Header::decode(&frame) {
                    self.rogue.hear(&sim, &header);
                }
            }
            Event::Driver { node, life } if alive(node, life) => {
                kernel::run(&sim, sim.node(node), KernelStep::Poll);
            }
            Event::Port { node, life, port } if alive(node, life) => {
                process::port_event(&sim, sim.node(node), port);
            }
            Event::Worker { node, life, port } if alive(node, life) => {
                kernel::run(&sim, sim.node(node), KernelStep::Worker(port));
            }
            Event::Job {
                node,
                life,
                job,
                turn,
            } if alive(node, life) => {
                kernel::run(&sim, sim.node(node), KernelStep::Job { job, turn });
            }
            Event::ChildExits { node, life, child } if alive(node, life) => {
                process::child_exits(&sim, sim.node(node), child);
            }
            Event::Tick { node, life } if alive(node, life) => self.host_tick(node),
            Event::Overslept(wait) => process::found(&sim, wait),
            Event::Boot { node } => self.boot(node).map_err(Stop::Other)?,
            Event::Reset { node, life, tries } if alive(node, life) => self.reset(node, tries)?,
            Event::Start { role } => self.start_role(role).map_err(Stop::Other)?,
            Event::Rogue => self.hostile(),
            Event::Check => self.check()?,
            // An event of a life that is over.
            _ => {}
        }
        Ok(())
    }

    fn start_role(&mut self, index: usize) -> Result<(), String> {
        let sim = self.sim.clone();
        let role = &self.roles[index];
        let node = sim.node(role.node).clone();
        // A hung card is not noticed before a port of it does not answer.
        if node.driver(&sim).is_none() {
            sim.after(Nanos::from_micros(500), Event::Start { role: index });
            return Ok(());
        }
        let backend = Arc::new(SimBackend::new(&sim, role.node, self.inline.into()));
        let seed = sim.dice.borrow_mut().word();
        let body = role.body(&sim, backend, self.inline, self.stage.clone(), seed);
        process::start(&sim, role.node, Some(index), role.scratch, body)?;
        Ok(())
    }

    fn hostile(&mut self) {
        let sim = self.sim.clone();
        if sim.faults.borrow().active() {
            self.rogue.act(&sim);
            hostile::spoilt_frame(&sim);
            let span = sim.span(Nanos(2_000), Nanos::from_micros(30));
            sim.after(span, Event::Rogue);
        }
    }

    /// What the NICs, the host cores and their kernels counted.
    fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for node in &self.sim.nodes {
            // A run that fails may leave steps that are held up.
            node.held.end();
            node.held_step.end();
            if let Some(card) = node.card.borrow().as_ref() {
                for (name, value) in card.counters() {
                    *counters.entry(name.to_owned()).or_default() += value;
                }
            }
            if let Some(driver) = node.driver(&self.sim).as_ref() {
                for (name, value) in driver.host.counters().iter() {
                    *counters.entry(format!("host_{name}")).or_default() += value;
                }
            }
            let vm = node.vm.borrow();
            *counters.entry("host_evictions".into()).or_default() += vm.evictions;
            *counters.entry("host_written_back".into()).or_default() += vm.written_back;
        }
        counters
    }

    fn report(&self, judged: Judged) -> Report {
        let mut counters = self.counters();
        for (kind, operations) in judged.operations {
            let kind = kind.replace(' ', "_");
            counters.insert(format!("judged_{kind}_operations"), operations);
        }
        counters.insert("histories_undecided".into(), judged.undecided);
        Report {
            seed: self.seed,
            nodes: self.config.nodes,
            messages: self.checkers.messages(),
            events: self.sim.clock.borrow().posted(),
            virtual_nanos: self.sim.now().0 - 1_000_000_000,
            counters,
            coverage: self.sim.faults.borrow().coverage().clone(),
            bodies: self
                .sim
                .bodies
                .borrow()
                .clone()
                .of_seeds(workload::runs_bodies(&self.config).into()),
            longest: self.sim.longest.all().collect(),
        }
    }

    fn failure(&self, stop: Stop) -> Failure {
        let (promise, what) = match stop {
            Stop::Broken(violation) => (Some(violation.promise), violation.what),
            Stop::Other(what) => (None, what),
        };
        Failure {
            seed: self.seed,
            nodes: self.config.nodes,
            point: None,
            promise,
            what,
            virtual_nanos: self.sim.now().0 - 1_000_000_000,
            last_events: self.sim.trace.borrow().last(),
            counters: self.counters(),
            replay: self.config.replay(self.seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coroutine::Park;
    use crate::process::AppId;
    use crate::trace::NoTrace;
    use std::cell::{Cell, RefCell};

    /// Processes are killed in the middle of system calls, nodes restart, and bodies end early.
    #[test]
    fn nothing_of_a_world_outlives_it() {
        for seed in 1..8 {
            let config = Config {
                messages: 1_500,
                ..Config::default()
            };
            let world = World::new(seed, config, false);
            let sim = Rc::downgrade(&world.sim);
            let words: Vec<_> = world
                .sim
                .nodes
                .iter()
                .map(|node| Rc::downgrade(&node.words()))
                .collect();
            if let Err(failure) = world.run(&mut NoTrace) {
                panic!("{failure}");
            }
            assert_eq!(sim.strong_count(), 0, "seed {seed}: the world is still there");
            assert!(
                words.iter().all(|words| words.strong_count() == 0),
                "seed {seed}: words of a node are still there"
            );
        }
    }

    /// Says whether it found the lock free when it was dropped.
    struct Last(Rc<RefCell<()>>, Rc<Cell<Option<bool>>>);

    impl Drop for Last {
        fn drop(&mut self) {
            self.1.set(Some(self.0.try_borrow_mut().is_ok()));
        }
    }

    /// Where the app that holds a lock of its process is when that is killed.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Holder {
        Parked,
        Running,
    }

    /// Whether the destructors of another app of the process find the lock free.
    fn finds_the_lock_free(holder_is: Holder) -> Option<bool> {
        let world = World::new(1, Config::default(), false);
        let sim = world.sim.clone();
        let (lock, free) = (Rc::new(RefCell::new(())), Rc::new(Cell::new(None)));
        let last = Last(lock.clone(), free.clone());
        let owns = Rc::downgrade(&sim);
        let body = move || {
            let _last = last;
            let sim = owns.upgrade().expect("a world");
            sim.parker.park(Park::Until(Nanos::MAX));
        };
        let process = process::start(&sim, NodeId(0), None, true, Box::new(body)).expect("a process");
        let holds = Rc::downgrade(&sim);
        let body = move || {
            let _held = lock.borrow_mut();
            let sim = holds.upgrade().expect("a world");
            if holder_is == Holder::Running {
                process::kill(&sim, process, true);
            }
            sim.parker.park(Park::Access(Nanos::MAX));
        };
        let holder = process::spawn(&sim, process, Box::new(body)).expect("an app");
        process::run(&sim, AppId(holder.0 - 1), 0);
        process::run(&sim, holder, 0);
        if holder_is == Holder::Parked {
            process::kill(&sim, process, true);
        }
        drop((sim, world));
        free.get()
    }

    /// An app that was inside of a critical section when its process was killed is unwound before the others: their
    /// destructors take the same lock.
    #[test]
    fn an_app_that_holds_a_lock_goes_before_the_others_of_its_process() {
        assert_eq!(finds_the_lock_free(Holder::Parked), Some(true));
        // A fault strikes in the middle of its turn.
        assert_eq!(finds_the_lock_free(Holder::Running), Some(true));
    }
}
