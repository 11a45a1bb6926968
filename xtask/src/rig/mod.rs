//! The rig: the real stack in QEMU. Two hosts run Linux and the module, each with a card that boots the firmware image;
//! the cards are joined by a wire that can misbehave.
//!
//! | question | file |
//! |---|---|
//! | what is built for it? | [`parts`], [`initramfs`]; the hosts' first program: `tests/rig/init` |
//! | what is a machine? | [`machines`], all of them together: [`rack`]; where their memory is: [`folder`] |
//! | how does a host get commands? | [`lane`] |
//! | what may happen to a frame? | [`wire`] |
//! | when does a log speak of trouble? | [`mod@logs`] |
//! | what is tried? | [`scenarios`] ([`sharing`], [`traffic`], [`trouble`], [`pressure`], [`mod@kill`], [`life`], [`storm`], [`hostile`], [`unplug`], [`silent`], [`files`], [`quota`]), one after another by [`mod@run`] |
//! | what does it cost? | [`measure`] |
//! | and by hand? | [`mod@shell`] |

mod files;
mod folder;
mod hostile;
mod initramfs;
mod kill;
mod lane;
mod life;
mod logs;
mod machines;
mod measure;
mod parts;
mod pressure;
mod quota;
mod rack;
mod reports;
mod run;
mod scenarios;
mod sharing;
mod shell;
mod silent;
mod storm;
mod traffic;
mod trouble;
mod unplug;
mod wire;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::exec;
use crate::run::{Context, Outcome};

/// Commands of `cargo xtask rig`.
#[derive(Subcommand)]
pub(crate) enum Rig {
    /// Run the scenarios, print a table, and say where the logs of a failure are.
    Test(run::Options),
    /// Measure misses, exports, and what lands in place under memory pressure; write `docs/evaluation/rig-measured.md`.
    Measure(measure::Options),
    /// Start two hosts and their cards, and leave them running until Ctrl-C.
    Shell(shell::ShellOptions),
    /// A shell on a host that `rig shell` runs.
    Console(shell::ConsoleOptions),
    /// Run one command on a host that `rig shell` runs.
    Run(shell::RunOptions),
}

/// `cargo xtask rig`.
pub(crate) fn rig(command: &Rig) -> Result<bool> {
    match command {
        Rig::Test(options) => run::test(options),
        Rig::Measure(options) => measure::measure(options),
        Rig::Shell(options) => shell::shell(options),
        Rig::Console(options) => shell::console(options),
        Rig::Run(options) => shell::run(options),
    }
}

/// The stage `rig`: all scenarios on the plain kernel, which is built if the cache has it not.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped(
            "its hosts and their kernel are built on x86-64 only".to_owned(),
        ));
    }
    if !parts::installed()? {
        return Ok(Outcome::Skipped(
            "packages are missing (named above), and only root of a Debian may install them: sudo cargo xtask rig test"
                .to_owned(),
        ));
    }
    let this = std::env::current_exe().context("this program's own path")?;
    context.exec(Command::new(this).args(["rig", "test", "--tries", "2"]))?;
    let log = exec::tail(context.log(), 20_000);
    // Lines of the table begin with a name, those of the progress with a bracket.
    let again = log
        .lines()
        .filter(|line| !line.starts_with('[') && line.contains("; try 1 FAILED: "));
    let mut detail = log.trim().lines().last().unwrap_or_default().to_owned();
    for name in again.filter_map(|line| line.split_whitespace().next()) {
        detail.push_str(&format!("; {name} only at the second try"));
    }
    Ok(Outcome::Passed(detail))
}

/// A flag that Ctrl-C sets.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}
