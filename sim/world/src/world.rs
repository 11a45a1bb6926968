//! A run: boot, a phase in which faults fly, a phase in which everything must finish.

use crate::backend::SimBackend;
use crate::card::{self, Card};
use crate::check::{Checkers, Violation};
use crate::config::{Config, FaultLevel};
use crate::dice::Dice;
use crate::dma::DmaSpeed;
use crate::driver::{self, Driver};
use crate::faults::{FaultKind, Faults};
use crate::hostile::{self, Rogue};
use crate::kernel;
use crate::link::{Fabric, LinkSpeed};
use crate::node::Node;
use crate::process::{self, Ended};
use crate::report::{Failure, Report};
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use crate::trace::TraceSink;
use crate::workload::{self, Role, Stage};
use netvm_abi::page_table::HashKey;
use netvm_abi::wire::Header;
use netvm_abi::{Geometry, Nanos, NodeId};
use netvm_host::attach::HostConfig;
use netvm_nic::config::Timers;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    phase: Phase,
    /// When the phase began, and how many messages had been sent when progress was last seen.
    since: Nanos,
    messages_then: u64,
    alive_roles: Vec<bool>,
    tick: Nanos,
}

/// Phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Faults fire.
    Safety,
    /// They have stopped; the messages that are still wanted must flow.
    Recovery,
    /// The apps have been told to finish, those first to whom nobody sends.
    Finish,
    /// Everything sent has ended; the others finish.
    Close,
    /// All have.
    Over,
}

/// What ends a run early.
enum Stop {
    Broken(Violation),
    Other(String),
}

/// How often a host looks around, and for how long at most faults fly.
const TICK: Nanos = Nanos::from_micros(20);
const SAFETY_LIMIT: Nanos = Nanos::from_millis(400);
const CHECK: Nanos = Nanos::from_millis(1);

impl World {
    /// A world in which nothing has happened yet, with a workload of its own making.
    pub(crate) fn new(seed: u64, config: Config, wants_lines: bool) -> Self {
        Self::with_roles(seed, config, wants_lines, workload::roles)
    }

    /// A world with these roles.
    pub(crate) fn with_roles(
        seed: u64,
        config: Config,
        wants_lines: bool,
        roles: impl FnOnce(&mut Dice, &Config) -> Vec<Role>,
    ) -> Self {
        let mut dice = Dice::new(seed);
        let faults = match config.faults {
            FaultLevel::Off => Faults::none(),
            FaultLevel::Benign => Faults::benign(&mut dice),
            FaultLevel::All => Faults::swarm(&mut dice),
        };
        let speed = LinkSpeed::draw(&mut dice);
        let dma = DmaSpeed::draw(&mut dice);
        let payload = [4096, 4096, 1408, 512][dice.index(4)];
        let geometry = Geometry {
            payload,
            ports: workload::PORTS,
            nodes: config.nodes + 1,
            page_rows: [16, 64, 256][dice.index(3)],
            capabilities: 128,
            staging: [8, 16, 64][dice.index(3)],
            reads: [4, 16, 64][dice.index(3)],
            ..Geometry::default()
        };
        let roles = roles(&mut dice, &config);
        let per_node = roles.len().div_ceil(usize::from(config.nodes.max(1)));
        let frames = 12 + dice.index(60) + 6 * per_node;
        let inline = [8, 16, 64, 128][dice.index(4)];
        let fuse = dice.within(15, 600) as u32;
        let own = dice.split(1);
        let fabric = Fabric::new(usize::from(config.nodes), speed, Nanos::from_millis(60));
        let sim = Sim::new(own, faults, fabric, wants_lines, fuse, |sim| {
            (0..config.nodes)
                .map(|id| Node::new(sim, NodeId(id), geometry, frames))
                .collect()
        });
        let alive_roles = vec![false; roles.len()];
        Self {
            seed,
            config,
            sim,
            checkers: Checkers::new(u32::from(geometry.window), config.deadline),
            roles,
            stage: Arc::new(Stage::default()),
            rogue: Rogue::new(NodeId(config.nodes)),
            dma,
            inline,
            phase: Phase::Safety,
            since: Nanos(0),
            messages_then: 0,
            alive_roles,
            tick: Nanos(TICK.0 * u64::from(config.nodes).div_ceil(8)),
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
        let result = self.start().and_then(|()| self.events(sink));
        self.sim.trace.borrow_mut().flush(sink);
        match result {
            Ok(()) => Ok(self.report()),
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
        self.sim.after(Nanos::from_micros(30), Event::Rogue);
        self.since = self.sim.now();
        Ok(())
    }

    fn boot(&mut self, id: NodeId) -> Result<(), String> {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        self.power_card(&node)?;
        let driver = Driver::attach(&sim, &node, &host_config())?;
        *node.driver.borrow_mut() = Some(driver);
        self.connect(&node);
        driver::nudge(&sim, &node, Nanos(1_000));
        let (life, tick) = (node.life.get(), self.tick);
        let first = sim.span(Nanos(0), tick);
        sim.after(first, Event::Tick { node: id, life });
        sim.note(id, "booted", &[("life", u64::from(life))]);
        Ok(())
    }

    fn power_card(&self, node: &Rc<Node>) -> Result<(), String> {
        let sim = &self.sim;
        let (key, seed) = {
            let mut dice = sim.dice.borrow_mut();
            (HashKey([dice.word(), dice.word()]), dice.word() as u32 | 1)
        };
        let config = netvm_nic::Config {
            node: node.id,
            geometry: node.geometry,
            hash_key: key,
            incarnation_seed: seed,
            inline_bytes: self.inline,
            timers: timers(),
        };
        let card = Card::boot(sim, node, config, self.dma)?;
        *node.card.borrow_mut() = Some(card);
        node.card_gone.set(false);
        node.kick(sim, Nanos(500));
        Ok(())
    }

    /// Small networks greet one another at once, in large ones links come with their first use.
    fn connect(&self, node: &Node) {
        if self.config.nodes > 16 {
            return;
        }
        if let Some(driver) = node.driver.borrow_mut().as_mut() {
            for peer in (0..self.config.nodes).map(NodeId).filter(|&peer| peer != node.id) {
                driver.host.connect(&mut driver.platform, peer);
            }
        }
    }

    fn events(&mut self, sink: &mut dyn TraceSink) -> Result<(), Stop> {
        while self.phase != Phase::Over {
            let Some(event) = self.sim.clock.borrow_mut().next() else {
                return Err(Stop::Other(
                    "nothing is left to happen, and the run is not over".into(),
                ));
            };
            self.dispatch(event)?;
            self.look()?;
            if sink.wants_lines() {
                self.sim.trace.borrow_mut().flush(sink);
            }
        }
        self.leaks()
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
            Event::DmaMove { node, life, dma } if alive(node, life) => {
                card::dma_move(&sim, sim.node(node), dma)
            }
            Event::DmaDone { node, life, dma } if alive(node, life) => {
                card::dma_done(&sim, sim.node(node), dma)
            }
            Event::Sent { node, life, staging } if alive(node, life) => {
                card::sent(&sim, sim.node(node), staging);
            }
            Event::Arrive { to, frame } => {
                if to.index() < sim.nodes.len() {
                    card::arrive(&sim, to, frame);
                } else if let Ok(header) = Header::decode(&frame) {
                    self.rogue.hear(&sim, &header);
                }
            }
            Event::Driver { node, life } if alive(node, life) => {
                driver::poll(&sim, sim.node(node));
                sim.node(node).words().drain(crate::words::Side::Host);
            }
            Event::Port { node, life, port } if alive(node, life) => {
                process::port_event(&sim, sim.node(node), port);
            }
            Event::Worker { node, life, port } if alive(node, life) => {
                driver::work(&sim, sim.node(node), port);
                sim.node(node).words().drain(crate::words::Side::Host);
            }
            Event::Job { node, life, job } if alive(node, life) => {
                kernel::step(&sim, sim.node(node), job);
                sim.node(node).words().drain(crate::words::Side::Host);
            }
            Event::ChildExits { node, life, child } if alive(node, life) => {
                process::child_exits(&sim, sim.node(node), child);
            }
            Event::Tick { node, life } if alive(node, life) => self.host_tick(node),
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

    fn host_tick(&mut self, id: NodeId) {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        sim.after(
            self.tick,
            Event::Tick {
                node: id,
                life: node.life.get(),
            },
        );
        kernel::tick(&sim, &node);
        node.words().drain(crate::words::Side::Host);
        if sim.fires(FaultKind::CardPauses, id) {
            let until = sim
                .now()
                .after(sim.span(Nanos::from_micros(10), Nanos::from_millis(2)));
            node.paused_until.set(until);
            sim.see(Seen::CardPaused { node: id, until });
        }
        if !node.card_gone.get() && sim.fires(FaultKind::CardHangs, id) {
            node.card_gone.set(true);
            sim.see(Seen::CardPaused {
                node: id,
                until: Nanos::MAX,
            });
        }
        if sim.fires(FaultKind::ProcessDies, id)
            && let Some(process) = process::victim(&sim, id, sim.below(1 << 20))
        {
            process::kill(&sim, process, true);
        }
        if sim.fires(FaultKind::NodeRestarts, id) {
            restart(&sim, &node);
        }
    }

    fn reset(&mut self, id: NodeId, tries: u32) -> Result<(), Stop> {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        let idle = node.ports.borrow().is_empty() && node.jobs.borrow().count() == 0;
        if !idle {
            // Apps learn of it from their ports and close them; who does not is ended.
            if tries > 20
                && let Some(process) = process::victim(&sim, id, 0)
            {
                process::kill(&sim, process, true);
            }
            let again = Event::Reset {
                node: id,
                life: node.life.get(),
                tries: tries + 1,
            };
            sim.after(Nanos::from_micros(500), again);
            return Ok(());
        }
        node.words().clear_bar();
        node.bus.borrow_mut().reset();
        self.power_card(&node).map_err(Stop::Other)?;
        let attached = {
            let mut slot = node.driver.borrow_mut();
            slot.as_mut()
                .map(|driver| driver.host.reattach(&mut driver.platform, sim.now()))
        };
        if let Some(Err(error)) = attached {
            return Err(Stop::Other(format!(
                "node {id}: the card was reset and cannot be attached: {error:?}"
            )));
        }
        node.words().drain(crate::words::Side::Host);
        node.resetting.set(false);
        sim.note(id, "card reset", &[]);
        let now = sim.now();
        sim.see(Seen::CardPaused { node: id, until: now });
        self.connect(&node);
        driver::nudge(&sim, &node, Nanos(1_000));
        Ok(())
    }

    fn start_role(&mut self, index: usize) -> Result<(), String> {
        let sim = self.sim.clone();
        let role = &self.roles[index];
        let node = sim.node(role.node).clone();
        // That its card hangs nobody knows before a port of it does not answer.
        if node.driver.borrow().is_none() {
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

    /// Once a millisecond: deadlines, dead roles, phases.
    fn check(&mut self) -> Result<(), Stop> {
        let sim = self.sim.clone();
        let now = sim.now();
        self.checkers.tick(now).map_err(Stop::Broken)?;
        self.restart_roles();
        let messages = self.checkers.messages();
        let elapsed = Nanos(now.0 - self.since.0);
        match self.phase {
            Phase::Safety => {
                let enough =
                    messages >= self.config.messages / 10 * 9 || self.stage.done.load(Ordering::Relaxed);
                if enough || elapsed > SAFETY_LIMIT || self.config.faults == FaultLevel::Off {
                    sim.faults.borrow_mut().stop();
                    sim.fabric.borrow_mut().mend();
                    self.enter(Phase::Recovery, messages);
                }
            }
            Phase::Recovery => {
                if messages >= self.config.messages || self.stage.done.load(Ordering::Relaxed) {
                    self.stage.stop.store(true, Ordering::Relaxed);
                    self.enter(Phase::Finish, messages);
                } else if messages > self.messages_then {
                    self.enter(Phase::Recovery, messages);
                } else if elapsed > self.config.patience {
                    return Err(Stop::Other(format!(
                        "no message for {} ms after the faults stopped: {}",
                        elapsed.0 / 1_000_000,
                        self.unfinished()
                    )));
                }
            }
            Phase::Finish => {
                let quiet = self
                    .alive_roles
                    .iter()
                    .zip(&self.roles)
                    .all(|(alive, role)| role.server || !alive)
                    && self.checkers.quiet();
                if quiet && elapsed > Nanos::from_millis(3) {
                    self.checkers.settled().map_err(Stop::Broken)?;
                    self.stage.close.store(true, Ordering::Relaxed);
                    self.enter(Phase::Close, messages);
                } else if elapsed > self.config.patience {
                    return Err(self.stuck(elapsed));
                }
            }
            Phase::Close => {
                if self.finished() {
                    self.phase = Phase::Over;
                } else if elapsed > self.config.patience {
                    return Err(self.stuck(elapsed));
                }
            }
            Phase::Over => {}
        }
        sim.after(CHECK, Event::Check);
        Ok(())
    }

    fn stuck(&self, elapsed: Nanos) -> Stop {
        Stop::Other(format!(
            "{} ms after the faults stopped not everything has finished: {}",
            elapsed.0 / 1_000_000,
            self.unfinished()
        ))
    }

    fn enter(&mut self, phase: Phase, messages: u64) {
        if phase != self.phase {
            self.sim.note(
                NodeId(0),
                "phase",
                &[("phase", phase as u64), ("messages", messages)],
            );
        }
        self.phase = phase;
        self.since = self.sim.now();
        self.messages_then = messages;
    }

    fn restart_roles(&mut self) {
        let ended = std::mem::take(&mut self.sim.apps.borrow_mut().ended);
        for (role, how) in ended {
            let again = match how {
                Ended::Killed => self.roles[role].revive,
                Ended::Finished => self.roles[role].repeat,
            };
            let role_of = &self.roles[role];
            let over = match self.phase {
                Phase::Safety | Phase::Recovery => false,
                Phase::Finish => !role_of.server,
                Phase::Close | Phase::Over => true,
            };
            self.alive_roles[role] = again && !over;
            if self.alive_roles[role] {
                let span = self.sim.span(Nanos::from_micros(20), Nanos::from_micros(500));
                self.sim.after(span, Event::Start { role });
            }
        }
        if !self.alive_roles.contains(&true) {
            self.stage.done.store(true, Ordering::Relaxed);
        }
    }

    fn finished(&self) -> bool {
        !self.alive_roles.contains(&true)
            && self.sim.nodes.iter().all(|node| {
                node.jobs.borrow().count() == 0
                    && node.vm.borrow().processes().is_empty()
                    && node.driver.borrow().is_some()
                    && !node.bus.borrow().busy()
            })
    }

    fn unfinished(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (role, _) in self.alive_roles.iter().enumerate().filter(|(_, alive)| **alive) {
            let _ = write!(
                text,
                "{} on node {}; ",
                self.roles[role].name, self.roles[role].node
            );
        }
        for node in &self.sim.nodes {
            let (jobs, processes) = (node.jobs.borrow().describe(), node.vm.borrow().processes().len());
            let _ = write!(text, "node {}: {processes} processes, jobs [{jobs}]; ", node.id);
        }
        for node in &self.sim.nodes {
            for (process, what) in process::remains(&self.sim, node.id) {
                let _ = write!(text, "process {} of node {}: {what}; ", process.0, node.id);
            }
        }
        text.push_str(&self.checkers.unfinished());
        let mut standing: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (node, process, calls) in process::whereabouts(&self.sim) {
            let who = format!("process {} of node {node}", process.0);
            standing.entry(calls).or_default().push(who);
        }
        for (calls, who) in standing {
            let _ = write!(text, "\n  stuck in {calls}: {}", who.join(", "));
        }
        text
    }

    /// What is left when everything has finished must be nothing.
    fn leaks(&self) -> Result<(), Stop> {
        for node in &self.sim.nodes {
            let free = node.vm.borrow().free_frames();
            if free != node.memory_limit {
                return Err(Stop::Other(format!(
                    "node {}: {} frames are still in use after the last process",
                    node.id,
                    node.memory_limit - free
                )));
            }
            let mapped = node
                .driver
                .borrow()
                .as_ref()
                .map_or(0, |driver| driver.host.mapped_pages());
            if mapped != 0 {
                return Err(Stop::Other(format!(
                    "node {}: {mapped} pages are still mapped at the end",
                    node.id
                )));
            }
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        let mut bytes = 0;
        for node in &self.sim.nodes {
            if let Some(card) = node.card.borrow().as_ref() {
                for (name, value) in card.counters() {
                    *counters.entry(name.to_owned()).or_default() += value;
                }
            }
            if let Some(driver) = node.driver.borrow().as_ref() {
                for (name, value) in driver.host.counters().iter() {
                    *counters.entry(format!("host_{name}")).or_default() += value;
                }
            }
            let vm = node.vm.borrow();
            *counters.entry("host_evictions".into()).or_default() += vm.evictions;
            *counters.entry("host_written_back".into()).or_default() += vm.written_back;
            bytes += vm.bytes() + node.words().bytes() + node.bus.borrow().bytes();
        }
        Report {
            seed: self.seed,
            nodes: self.config.nodes,
            messages: self.checkers.messages(),
            events: self.sim.clock.borrow().posted(),
            virtual_nanos: self.sim.now().0 - 1_000_000_000,
            bytes_per_node: (bytes / self.sim.nodes.len().max(1)) as u64,
            counters,
            coverage: self.sim.faults.borrow().coverage().clone(),
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
            promise,
            what,
            virtual_nanos: self.sim.now().0 - 1_000_000_000,
            last_events: self.sim.trace.borrow().last(),
            replay: self.config.replay(self.seed),
        }
    }
}

/// A node goes down with everything on it, and comes up again a little later.
pub(crate) fn restart(sim: &Sim, node: &Rc<Node>) {
    process::node_down(sim, node.id);
    node.life.set(node.life.get() + 1);
    node.wipe();
    sim.see(Seen::Restarted { node: node.id });
    let pause = sim.span(Nanos::from_micros(50), Nanos::from_millis(3));
    sim.after(pause, Event::Boot { node: node.id });
}

/// Deadlines of the cards, short because virtual time is dear.
fn timers() -> Timers {
    Timers {
        ack_delay: Nanos::from_micros(30),
        probe_interval: Nanos::from_millis(4),
        probe_limit: 5,
        gap_timeout: Nanos::from_millis(15),
        hello_interval: Nanos::from_micros(500),
        hello_limit: 200,
        keepalive: false,
    }
}

fn host_config() -> HostConfig {
    HostConfig {
        geometry: None,
        segments: 128,
        exports: 128,
        imports: 256,
        nic_deadline: Nanos::from_millis(10),
        heartbeat_deadline: Nanos::from_millis(20),
        import_retry: Nanos::from_micros(500),
    }
}
