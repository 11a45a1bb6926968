//! The `netvm` program; what it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;
use netvm_cli::args::Cli;

fn main() -> ExitCode {
    match netvm_cli::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.status())
        }
    }
}
