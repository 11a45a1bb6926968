//! The `netvm` program; what it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;
use netvm_cli::args::Cli;
use netvm_cli::output;

fn main() -> ExitCode {
    match netvm_cli::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(&failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}
