//! `cargo xtask bench layout`: page-table layouts side by side, into `docs/evaluation/`.

use clap::Parser;
use netvm_benches::layout::{cost, report};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures page-table layouts: instructions, cache lines, NIC memory, and how often a mapped page is not found.
#[derive(Parser)]
struct Options {
    /// Print one JSON object and write no files.
    #[arg(long)]
    json: bool,
    /// Hash keys over which measured chances are averaged.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    keys: u32,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    out: PathBuf,
    /// Run the cases and nothing else.
    #[arg(long, hide = true)]
    cases_for_callgrind: bool,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Options::parse()).map(|()| true))
}

fn run(options: &Options) -> anyhow::Result<()> {
    if options.cases_for_callgrind {
        return cost::run_cases();
    }
    let report = report::measure(options.keys)?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.write(&options.out)?;
        print!("{}", report.page()?);
    }
    Ok(())
}
