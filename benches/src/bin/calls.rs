//! `cargo xtask bench calls`: what remote calls cost between two processes, into `docs/evaluation/`.

use anyhow::anyhow;
use clap::Parser;
use netvm_bench_calls::{Sizes, measure, serve};
use netvm_benches::calls::page;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Measures remote calls between two processes over the software card.
#[derive(Parser)]
struct Options {
    /// Print one JSON object and write no files.
    #[arg(long)]
    json: bool,
    /// Few turns.
    #[arg(long)]
    quick: bool,
    /// Be the other process, under this name.
    #[arg(long, hide = true)]
    callee: Option<String>,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    out: PathBuf,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<bool> {
    if let Some(name) = &options.callee {
        serve(name).map_err(|what| anyhow!(what))?;
        return Ok(true);
    }
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::WHOLE };
    let name = format!("bench-calls-{}", std::process::id());
    let mut other = Command::new(std::env::current_exe()?);
    other.args(["--callee", &name]);
    let measured = measure(&sizes, &name, &mut other).map_err(|what| anyhow!(what))?;
    if options.json {
        println!("{}", serde_json::to_string(&measured)?);
    } else {
        page::write(&measured, &sizes, &options.out)?;
        print!("{}", page::page(&measured, &sizes)?);
    }
    Ok(true)
}
