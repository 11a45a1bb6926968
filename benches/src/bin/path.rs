//! `cargo xtask bench path`: what the path of a write costs, into `docs/evaluation/`.

use anyhow::Result;
use clap::Parser;
use netvm_benches::{callgrind, path::cases};

#[derive(Parser)]
struct Options {
    #[arg(long, hide = true)]
    cases_for_callgrind: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.cases_for_callgrind {
        return cases::run();
    }
    let ratios = netvm_benches::path::ratios::measure()?; println!("{ratios:#?}"); for r in ratios.ratios() { println!("{r:?}"); }
    let profile = callgrind::run()?;
    for step in cases::steps(&profile)? {
        println!("{:60} {:6.0} {:?} {}", step.text, step.instructions, step.budget, step.holds());
    }
    for (name, n) in profile.hottest(40) { println!("{n:10} {name}"); }
    Ok(())
}
