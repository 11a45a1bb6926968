//! `cargo xtask bench wire`: what a wire that loses frames costs, into `docs/evaluation/`.

use anyhow::anyhow;
use clap::Parser;
use netvm_bench_wire::suite::{self, Sizes};
use netvm_benches::wire::page;
use netvm_world::timing::CostModel;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures a wire that loses frames, in modelled worlds. Fails when a goal is missed that has been reached.
#[derive(Parser)]
struct Options {
    /// Print one JSON object and write no files.
    #[arg(long)]
    json: bool,
    /// Few losses and worlds.
    #[arg(long)]
    quick: bool,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    out: PathBuf,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<bool> {
    let model = CostModel::committed().map_err(|what| anyhow!(what))?;
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::WHOLE };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = suite::measure(&model, &sizes, threads, &|line| eprintln!("{line}"))?;
    if options.json {
        println!("{}", serde_json::to_string(&measured)?);
    } else {
        page::write(&model, &measured, &options.out)?;
        print!("{}", page::page(&model, &measured)?);
    }
    let wrong = measured.wrong();
    for line in &wrong {
        eprintln!("wrong: {line}");
    }
    Ok(wrong.is_empty())
}
