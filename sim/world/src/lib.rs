//! NetVM's deterministic simulator: whole networks in virtual time, with the shipped NIC core, host
//! core and user library, and every fault that a seed asks for.
//!
//! ```text
//! apps (user library, coroutines)          workload, mix, hostile
//!   | system calls, words, memory          backend, memory, words
//! host core + modelled kernel and memory   driver, kernel, process, vm
//!   | word spaces, bounce pages            node, words
//! NIC core + DMA engines                   card, dma
//!   | frames                               link
//! ```
//!
//! Checkers of the promises P1 to P7 ([`check`]) look at what happened after every step. They are
//! shown memory accesses, frames and page events, never a core's state, and share no code with the
//! cores. A run is a pure function of its seed and [`Config`] (P8).

mod backend;
mod bodies;
mod card;
pub mod check;
mod clock;
mod cluster;
mod config;
mod coroutine;
pub mod crowd;
mod dice;
mod dma;
mod driver;
mod effort;
pub mod evidence;
pub mod faults;
pub mod footprint;
mod heap;
mod held;
mod history;
mod hostile;
mod judged;
mod kernel;
mod link;
mod memory;
mod mix;
mod node;
pub mod points;
mod process;
mod remains;
mod report;
mod reunion;
mod rings;
mod script;
mod seen;
mod sim;
mod solo;
mod sparse;
pub mod stand;
pub mod timing;
pub mod trace;
mod vm;
pub mod wide;
mod words;
mod workload;
mod world;

pub use bodies::{Bodies, Ran};
pub use config::{Config, FaultLevel};
pub use dice::Dice;
pub use effort::CoreStep;
pub use report::{Failure, Report};
pub use script::Script;
pub use trace::{Lines, NoTrace, TraceSink};

use world::World;

/// Plays the run of a seed. `sink` gets its trace, if it wants one. A world lives on the calling
/// thread; run several seeds on several threads.
///
/// # Errors
/// [`Failure`] when a promise was broken, an app read what it should not, or something did not
/// finish.
pub fn run_seed(seed: u64, config: &Config, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
    World::new(seed, *config, sink.wants_lines()).run(sink)
}

/// The same, and what the world's memory was made of when it was largest. The figures are those of the whole process: it
/// has to be the only world, and the first.
///
/// # Errors
/// [`Failure`] as [`run_seed`].
pub fn run_measured(seed: u64, config: &Config) -> Result<(Report, footprint::Footprint), Box<Failure>> {
    let meter = footprint::Meter::default();
    let mut world = World::new(seed, *config, false);
    world.measure(&meter);
    let report = world.run(&mut NoTrace)?;
    Ok((report, meter.largest()))
}

/// Plays one conformance body in a world of its own.
///
/// # Errors
/// [`Failure`] as [`run_seed`]; also when the body did not end well.
pub fn run_conformance(
    case: &'static netvm_conformance::Case,
    seed: u64,
    config: &Config,
    sink: &mut dyn TraceSink,
) -> Result<Report, Box<Failure>> {
    let prospect = match (config.faults, config.far) {
        (FaultLevel::All, _) => cluster::Prospect::Foul,
        (_, true) => cluster::Prospect::Far,
        (_, false) => cluster::Prospect::Fair,
    };
    // As many messages as the body sends.
    let config = Config {
        messages: u64::MAX,
        ..*config
    };
    let roles = |_: &mut dice::Dice, _: &Config| vec![cluster::role_of(case, seed, prospect)];
    World::with_roles(seed, config, sink.wants_lines(), roles).run(sink)
}

/// Plays one conformance body beside one fault, which strikes at a step of the protocol. No other fault fires. The body
/// may end with an error, but everything must finish.
///
/// # Errors
/// [`Failure`] as [`run_seed`].
pub fn run_scripted(
    case: &'static netvm_conformance::Case,
    seed: u64,
    script: Script,
    sink: &mut dyn TraceSink,
) -> Result<Report, Box<Failure>> {
    let config = Config {
        messages: u64::MAX,
        faults: FaultLevel::Off,
        ..Config::default()
    };
    let roles = |_: &mut dice::Dice, _: &Config| vec![cluster::role_of(case, seed, cluster::Prospect::Foul)];
    let world = World::with_roles(seed, config, sink.wants_lines(), roles);
    world.play(script, script::Blow::Lost);
    world.run(sink)
}
