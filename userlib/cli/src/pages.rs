//! What other programs read of the command line's definitions: completions for shells, manual pages.

use clap::CommandFactory as _;

use crate::args::{Cli, Completions, Manual};
use crate::failure::Failure;
use crate::output;

/// `netvm completions`.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(options: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "netvm", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// `netvm manual`.
///
/// # Errors
/// The folder cannot be written.
pub fn manual(options: &Manual) -> Result<(), Failure> {
    let told = |error: std::io::Error| Failure::Usage(format!("{}: {error}", options.folder.display()));
    std::fs::create_dir_all(&options.folder).map_err(told)?;
    clap_mangen::generate_to(Cli::command(), &options.folder).map_err(told)
}
