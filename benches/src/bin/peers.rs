//! `cargo xtask bench peers`: NetVM beside UCX and libfabric, between two processes of this machine, into `docs/evaluation/`.

use clap::Parser;
use netvm_benches::beside::options::Options;
use netvm_benches::peers::{page, server, suite};
use std::process::ExitCode;

/// Runs NetVM, UCX and libfabric in turns between two processes of this machine, and compares them.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Do nothing but this, of NetVM's, for some seconds: for a profile.
    #[arg(long, value_enum)]
    only: Option<suite::Only>,
    /// Be the other process of NetVM's measurements.
    #[arg(long, hide = true)]
    serve: Option<String>,
    /// The other process has UDP.
    #[arg(long, hide = true)]
    udp: bool,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    if let Some(name) = &arguments.serve {
        server::run(name, arguments.udp)?;
        return Ok(true);
    }
    if let Some(only) = arguments.only {
        suite::only(only)?;
        return Ok(true);
    }
    let options = &arguments.options;
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
    if options.quick {
        // Too little to be kept.
        print!("{}", page::page(&measured)?);
    } else {
        page::write(&measured, &options.out)?;
        print!("{}", page::page(&measured)?);
    }
    Ok(true)
}
