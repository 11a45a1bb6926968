//! Runs with points: one that keeps them, and one for each.

use super::{Crash, Spot};
use crate::cluster::{self, Prospect};
use crate::config::{Config, FaultLevel};
use crate::dice::Dice;
use crate::report::{Failure, Report};
use crate::trace::TraceSink;
use crate::world::World;
use netvm_abi::Nanos;
use netvm_conformance::{ALL, Case};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Nodes of these worlds: two that bodies are about, and one more.
pub const NODES: u16 = 3;

/// How long bodies wait for what must come. The longer, the longer takes a run in which it never comes.
const HASTY: Duration = Duration::from_millis(400);

/// How long those wait that have a process die by themselves, and whose others hear of that late.
const PATIENT: Duration = Duration::from_secs(2);
const SLOW: [&str; 1] = ["dead_in_wait_queue"];

/// How often hosts look around. Most of a run is a wait for what never comes, and most of that are ticks.
const TICK: Nanos = Nanos::from_micros(200);

/// The seed of all these runs.
const SEED: u64 = 1;

/// A body, an access of its run, and what happens there.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The body.
    pub case: &'static Case,
    /// The number of the access; 1 is the first.
    pub access: u64,
    /// The fault.
    pub crash: Crash,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.case.name, self.access, self.crash)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let (Some(name), Some(access), Some(crash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("a point is BODY:ACCESS:FAULT, as in ping_pong:700:card-hangs".to_owned());
        };
        let case = ALL.iter().find(|case| case.name == name);
        Ok(Self {
            case: case.ok_or_else(|| format!("there is no body `{name}`"))?,
            access: access
                .parse()
                .ok()
                .filter(|&access| access > 0)
                .ok_or_else(|| format!("an access is a number from 1 on, not `{access}`"))?,
            crash: crash.parse()?,
        })
    }
}

impl Point {
    /// The command that plays it again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!("cargo run --release --bin netvm -- sim --point {self}")
    }

    /// A run of it that failed and could not say more.
    #[must_use]
    pub fn failure(&self, what: String) -> Failure {
        Failure {
            seed: SEED,
            nodes: NODES,
            point: Some(self.to_string()),
            promise: None,
            what,
            virtual_nanos: 0,
            last_events: Vec::new(),
            counters: BTreeMap::new(),
            replay: self.replay(),
        }
    }
}

/// What a body's run without faults has.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Accesses in all.
    pub accesses: u64,
    /// Those that differ, in the order of the run.
    pub spots: Vec<Spot>,
}

impl Recorded {
    /// The points of the body, each access with each of these faults that can strike there. Leaves out what `seen` has from
    /// other bodies, and adds to it.
    pub fn points<'a>(
        &'a self,
        case: &'static Case,
        crashes: &'a [Crash],
        seen: &'a mut BTreeSet<u64>,
    ) -> impl Iterator<Item = Point> + 'a {
        let fresh = |spot: &&Spot| spot.common.is_none_or(|common| seen.insert(common));
        self.spots.iter().filter(fresh).flat_map(move |spot| {
            let can = move |crash: &&Crash| **crash != Crash::ProcessDies || spot.has_process;
            crashes.iter().filter(can).map(move |&crash| Point {
                case,
                access: spot.access,
                crash,
            })
        })
    }
}

fn config() -> Config {
    Config {
        nodes: NODES,
        messages: u64::MAX,
        faults: FaultLevel::Off,
        ..Config::default()
    }
}

fn world(case: &'static Case, wants_lines: bool) -> World {
    // The body knows that anything may fail, in the run without faults, too: both runs are the same up to the fault.
    let patience = if SLOW.contains(&case.name) { PATIENT } else { HASTY };
    let prospect = Prospect::OneFault(patience);
    let roles = |_: &mut Dice, _: &Config| vec![cluster::role_of(case, SEED, prospect)];
    World::with_roles(SEED, config(), wants_lines, roles).with_tick(TICK)
}

/// A run that keeps the points of a body, that failed and could not say more.
#[must_use]
pub fn unrecorded(case: &'static Case, what: &str) -> Failure {
    Failure {
        seed: SEED,
        nodes: NODES,
        point: None,
        promise: None,
        what: format!("{}, without faults: {what}", case.name),
        virtual_nanos: 0,
        last_events: Vec::new(),
        counters: BTreeMap::new(),
        replay: format!(
            "cargo run --release --bin netvm -- sim --enumerate --body {} --minutes 1",
            case.name
        ),
    }
}

/// Plays a body without faults and keeps its points.
///
/// # Errors
/// [`Failure`] as [`crate::run_conformance`].
pub fn record(case: &'static Case, sink: &mut dyn TraceSink) -> Result<Recorded, Box<Failure>> {
    let world = world(case, sink.wants_lines());
    let sim = world.sim();
    sim.points.record();
    let report = world.run(sink)?;
    let well = report
        .bodies
        .bodies
        .get(case.name)
        .is_some_and(|ran| ran.well == 1);
    if !well {
        return Err(Box::new(Failure {
            virtual_nanos: report.virtual_nanos,
            counters: report.counters,
            ..unrecorded(case, "does not end well")
        }));
    }
    let (accesses, spots) = sim.points.recorded();
    Ok(Recorded { accesses, spots })
}

/// The bodies that have points: those that a simulated world can play, and for which three nodes are enough.
pub fn bodies() -> impl Iterator<Item = &'static Case> {
    cluster::bodies().filter(|case| case.nodes <= NODES)
}

/// Plays a body with one fault at one access, and nothing else that could fail. The body may end with an error. All
/// promises must hold, and everything must finish.
///
/// # Errors
/// [`Failure`] as [`crate::run_seed`]; also when the access was never reached, as in a run of another build.
pub fn play(point: &Point, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
    let world = world(point.case, sink.wants_lines());
    let sim = world.sim();
    sim.points.strike(point.access, point.crash);
    let outcome = world.run(sink);
    let has_struck = sim.points.has_struck();
    match outcome {
        Ok(report) if has_struck => Ok(report),
        Ok(_) => Err(Box::new(point.failure(
            "this access was never reached; is it a point of another build?".to_owned(),
        ))),
        Err(mut failure) => {
            let place = sim.points.struck_at();
            let place = place.unwrap_or_else(|| "before the fault".to_owned());
            failure.what = format!("{}\n  {place}", failure.what);
            failure.point = Some(point.to_string());
            failure.replay = point.replay();
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::NoTrace;

    /// With no port open the driver does not look at its card. Opening one does, and finds it dead.
    #[test]
    fn a_card_found_dead_when_a_port_is_opened_is_declared_dead() {
        let point: Point = "restarted_node:1:card-hangs".parse().expect("a point");
        if let Err(failure) = play(&point, &mut NoTrace) {
            panic!("{failure}");
        }
    }

    #[test]
    fn a_point_is_written_as_it_is_read() {
        let text = "ping_pong:700:card-hangs";
        let point: Point = text.parse().expect("a point");
        assert_eq!(point.to_string(), text);
        assert!(point.replay().ends_with(text));
        for wrong in [
            "ping_pong:700",
            "ping_pong:0:card-hangs",
            "ping_pong:700:card-sings",
            "sing_song:1:card-hangs",
            "ping_pong:700:card-hangs:1",
        ] {
            assert!(wrong.parse::<Point>().is_err(), "{wrong}");
        }
    }
}
