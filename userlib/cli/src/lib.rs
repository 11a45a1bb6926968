//! What the `netvm` program does, one module a subcommand.

pub mod args;
pub mod bench;
pub mod demo;
pub mod doctor;
pub mod failure;
pub mod logs;
pub mod observe;
pub mod output;
pub mod pages;
pub mod process;
pub mod processes;
mod signals;
pub mod sim;
mod unnamed;

use crate::args::{Cli, Command};
use crate::failure::Failure;

/// Runs a command line.
///
/// # Errors
/// Whatever the subcommand ends with; [`Failure::status`] is the exit status.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    logs::begin(cli.verbose)?;
    match &cli.command {
        Command::Serve(options) => processes::serve::run(options),
        Command::Key(options) => processes::key::run(options),
        Command::Nodes(options) => processes::nodes::run(options),
        Command::Completions(options) => pages::completions(options),
        Command::Manual(options) => pages::manual(options),
        Command::Relay(options) => processes::relay::run(options),
        Command::Ping(options) => processes::ping::run(options),
        Command::Perf(options) => processes::perf::run(options),
        Command::Demo(options) => demo::run(options),
        Command::Sim(options) => sim::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Show(options) => observe::show::run(options),
        Command::Stat(options) => observe::stat::run(options),
        Command::Top(options) => observe::top::run(options),
        Command::Info(options) => observe::info::run(options),
        Command::Doctor(options) => doctor::run(options),
    }
}

/// The README's example is a documentation test of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
