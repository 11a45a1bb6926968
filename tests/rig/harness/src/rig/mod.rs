//! The rig: the real stack in QEMU. Two hosts run Linux and the module, each with a card that boots the firmware image;
//! the cards are joined by a wire that can misbehave.
//!
//! | question | file |
//! |---|---|
//! | what is built for it? | [`parts`], [`programs`], [`initramfs`]; the hosts' first program: `tests/rig/init` |
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
mod power;
mod pressure;
mod programs;
mod quota;
mod rack;
mod reports;
mod run;
mod scenarios;
mod sharing;
mod shell;
mod silent;
mod storm;
mod taken;
mod traffic;
mod trouble;
mod unplug;
pub(crate) mod wire;

pub use parts::installed;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Subcommand;

/// Commands of `cargo xtask rig`.
#[derive(Subcommand)]
pub enum Rig {
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

/// `cargo xtask rig`. `Ok(false)`: something failed.
///
/// # Errors
/// What is missing, or what stopped it.
pub fn rig(command: &Rig) -> Result<bool> {
    match command {
        Rig::Test(options) => run::test(options),
        Rig::Measure(options) => measure::measure(options),
        Rig::Shell(options) => shell::shell(options),
        Rig::Console(options) => shell::console(options),
        Rig::Run(options) => shell::run(options),
    }
}

/// A flag that Ctrl-C sets.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}
