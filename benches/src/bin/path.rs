//! `cargo xtask bench path`: what the path of a write costs, into `docs/evaluation/`.

use clap::Parser;
use netvm_benches::path::{cases, report};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the path of a write: instructions against budgets, times as ratios. Fails when one is missed.
#[derive(Parser)]
struct Options {
    /// Print one JSON object and write no files.
    #[arg(long)]
    json: bool,
    /// Count instructions alone and hold them against their budgets: no times, no files.
    #[arg(long, conflicts_with_all = ["json", "out"])]
    counts: bool,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    out: PathBuf,
    /// Run the cases and nothing else.
    #[arg(long, hide = true)]
    cases_for_callgrind: bool,
    /// Of these, run one.
    #[arg(long, hide = true)]
    only_case: Option<String>,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<bool> {
    if options.cases_for_callgrind {
        cases::run(options.only_case.as_deref())?;
        return Ok(true);
    }
    if options.counts {
        let counts = report::count()?;
        print!("{}", counts.table()?);
        return Ok(counts.hold());
    }
    let report = report::measure()?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.write(&options.out)?;
        print!("{}", report.page()?);
    }
    Ok(report.ok)
}
