//! What the `netvm` program does, one module a subcommand.

pub mod args;
pub mod failure;
pub mod output;
pub mod process;

use crate::args::Cli;
use crate::failure::Failure;

/// Runs a command line.
///
/// # Errors
/// Whatever the subcommand ends with; [`Failure::status`] is the exit status.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    let _ = cli;
    Ok(())
}
