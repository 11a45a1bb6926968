//! `cargo xtask bench mpi`: the provider for libfabric beside others, between two processes of this machine, into `docs/evaluation/`.

use clap::Parser;
use netvm_benches::beside::options::Options;
use netvm_benches::mpi::{page, suite};
use std::process::ExitCode;

/// Runs programs of libfabric and MPI over NetVM and over others, in turns between two processes of this machine, and compares them.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Arguments::parse().options))
}

fn run(options: &Options) -> anyhow::Result<bool> {
    let sizes = if options.quick {
        suite::Sizes::QUICK
    } else {
        suite::Sizes::WHOLE
    };
    let turns = options.turns.unwrap_or(sizes.turns);
    let measured = suite::measure(&suite::Sizes { turns, ..sizes }, &|line| eprintln!("{line}"))?;
    if options.json {
        println!("{}", serde_json::to_string(&measured)?);
        return Ok(true);
    }
    if !options.quick {
        page::write(&measured, &options.out)?;
    }
    print!("{}", page::page(&measured)?);
    Ok(true)
}
