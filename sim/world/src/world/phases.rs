//! The phases of a run, and the roles that may still be busy in each.

use super::{Stop, World};
use crate::config::FaultLevel;
use crate::faults::FaultKind;
use crate::process::{self, Ended};
use crate::reunion;
use crate::sim::Event;
use netvm_abi::{Nanos, NodeId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Faults fire.
    Safety,
    /// They still do, in a part of the worlds, while all apps are told to finish; then the apps begin anew.
    Parting,
    /// They have stopped; the messages that are still wanted must flow.
    Recovery,
    /// The apps have been told to finish, first those that no other app sends to. Each node must reach each other one.
    Reunion,
    /// Nothing has a reason to fail any more. Each role that was told to finish lives once more, and must end well.
    Finish,
    /// Everything sent has ended; the others finish.
    Close,
    /// All have. What they held comes back.
    Rest,
    /// It has.
    Over,
}

/// How long at most faults fly.
const SAFETY_LIMIT: Nanos = Nanos::from_millis(400);
/// How long at most faults fly while apps finish: longer than links take to fail.
const PARTING_LIMIT: Nanos = Nanos::from_millis(60);
/// How often deadlines and phases are looked at.
pub(super) const CHECK: Nanos = Nanos::from_millis(1);

impl World {
    /// Once a millisecond: deadlines, dead roles, phases.
    pub(super) fn check(&mut self) -> Result<(), Stop> {
        let sim = self.sim.clone();
        let now = sim.now();
        self.checkers.tick(now).map_err(Stop::Broken)?;
        if let Some(meter) = &self.meter {
            meter.look(&sim, &self.checkers);
        }
        self.restart_roles()?;
        let messages = self.checkers.messages();
        let elapsed = Nanos(now.0 - self.since.0);
        match self.phase {
            Phase::Safety => {
                let enough =
                    messages >= self.config.messages / 10 * 9 || self.stage.done.load(Ordering::Relaxed);
                if enough || elapsed > SAFETY_LIMIT || self.config.faults == FaultLevel::Off {
                    if self.config.faults == FaultLevel::All && sim.below(3) == 0 {
                        self.part(messages);
                    } else {
                        self.calm_down(messages);
                    }
                }
            }
            Phase::Parting => {
                if !self.alive_roles.contains(&true) || elapsed > PARTING_LIMIT {
                    self.meet_again();
                    self.calm_down(messages);
                }
            }
            Phase::Recovery => {
                if messages >= self.config.messages || self.stage.done.load(Ordering::Relaxed) {
                    self.stage.stop.store(true, Ordering::Relaxed);
                    self.reunite();
                    self.enter(Phase::Reunion, messages);
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
            Phase::Reunion => {
                let bound = reunion::bound(&self.config, &self.timers);
                if !self.apart.is_over() && elapsed > bound {
                    return Err(Stop::Other(format!(
                        "{} ms after the faults stopped these nodes have not reached one another: {}; {}",
                        elapsed.0 / 1_000_000,
                        self.apart.describe(),
                        self.unfinished()
                    )));
                }
                let calm = self.apart.is_over() && (elapsed > bound || self.config.faults != FaultLevel::All);
                if calm && self.clients_are_over() {
                    self.live_once_more();
                    self.enter(Phase::Finish, messages);
                } else if elapsed > self.config.patience {
                    return Err(self.stuck(elapsed));
                }
            }
            Phase::Finish => {
                let quiet = self.clients_are_over() && self.checkers.quiet();
                if quiet && elapsed > Nanos::from_millis(3) {
                    match self.checkers.settled() {
                        Ok(()) => {
                            self.stage.close.store(true, Ordering::Relaxed);
                            self.enter(Phase::Close, messages);
                        }
                        Err(broken) if elapsed > self.config.patience => return Err(Stop::Broken(broken)),
                        // Some go on beside the clients: what has landed this moment is about to be told.
                        Err(_) => {}
                    }
                } else if elapsed > self.config.patience {
                    return Err(self.stuck(elapsed));
                }
            }
            Phase::Close => {
                if self.finished() {
                    self.enter(Phase::Rest, messages);
                } else if elapsed > self.config.patience {
                    return Err(self.stuck(elapsed));
                }
            }
            Phase::Rest => {
                if self.is_at_rest(elapsed)? {
                    self.phase = Phase::Over;
                }
            }
            Phase::Over => {}
        }
        sim.after(CHECK, Event::Check);
        Ok(())
    }

    /// The faults stop.
    fn calm_down(&mut self, messages: u64) {
        self.sim.faults.borrow_mut().stop();
        self.sim.points.disarm();
        self.sim.fabric.borrow_mut().mend();
        self.enter(Phase::Recovery, messages);
    }

    /// All apps are told to finish while the faults go on.
    fn part(&mut self, messages: u64) {
        self.stage.stop.store(true, Ordering::Relaxed);
        self.stage.close.store(true, Ordering::Relaxed);
        self.enter(Phase::Parting, messages);
    }

    /// Begins each role anew that has ended so.
    fn meet_again(&mut self) {
        self.stage.stop.store(false, Ordering::Relaxed);
        self.stage.close.store(false, Ordering::Relaxed);
        for role in std::mem::take(&mut self.parted) {
            self.begin_again(role);
        }
    }

    /// A role has ended while the faults go on.
    fn parts(&mut self, role: usize, again: bool) {
        let node = self.roles[role].node;
        let states = self.sim.node(node).states();
        self.sim.faults.borrow_mut().count(FaultKind::Parting, states);
        if again {
            self.parted.push(role);
        }
    }

    fn begin_again(&mut self, role: usize) {
        self.alive_roles[role] = true;
        let span = self.sim.span(Nanos::from_micros(20), Nanos::from_micros(500));
        self.sim.after(span, Event::Start { role });
    }

    /// Whether all roles have ended that no other app sends to.
    fn clients_are_over(&self) -> bool {
        let mut roles = self.alive_roles.iter().zip(&self.roles);
        roles.all(|(alive, role)| role.server || !alive)
    }

    /// Begins the roles by which the nodes reach one another.
    fn reunite(&mut self) {
        self.sim.points.close();
        // In a modelled world nothing happens that is not measured.
        if self.sim.model.is_some() {
            return;
        }
        let (apart, roles) = reunion::roles(&self.config);
        self.apart = apart;
        for role in roles {
            self.roles.push(role);
            self.alive_roles.push(true);
            let role = self.roles.len() - 1;
            self.sim.after(Nanos(1_000), Event::Start { role });
        }
    }

    /// Begins each role anew that no other app sends to.
    fn live_once_more(&mut self) {
        self.stage.calm.store(true, Ordering::Relaxed);
        let mut again = Vec::new();
        for (role, state) in self.roles.iter().enumerate() {
            if state.repeat && !state.server {
                again.push(role);
            }
        }
        for role in again {
            self.begin_again(role);
        }
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

    fn restart_roles(&mut self) -> Result<(), Stop> {
        let ended = std::mem::take(&mut self.sim.apps.borrow_mut().ended);
        for (role, how) in ended {
            let again = match how {
                Ended::Killed => self.roles[role].revive,
                Ended::Finished => self.roles[role].repeat,
            };
            let role_of = &self.roles[role];
            if how == Ended::Killed && self.phase == Phase::Finish && self.stage.is_calm() {
                return Err(Stop::Other(format!(
                    "{} on node {} was killed, though the faults are long over",
                    role_of.name, role_of.node
                )));
            }
            let over = match self.phase {
                Phase::Safety | Phase::Recovery => false,
                Phase::Parting => {
                    self.parts(role, again);
                    true
                }
                Phase::Reunion | Phase::Finish => !role_of.server,
                Phase::Close | Phase::Rest | Phase::Over => true,
            };
            self.alive_roles[role] = false;
            if again && !over {
                self.begin_again(role);
            }
        }
        if !self.alive_roles.contains(&true) && self.phase != Phase::Parting {
            self.stage.done.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        !self.alive_roles.contains(&true)
            && self.sim.nodes.iter().all(|node| {
                node.jobs.borrow().count() == 0
                    && node.vm.borrow().processes().is_empty()
                    && node.driver(&self.sim).is_some()
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
}
