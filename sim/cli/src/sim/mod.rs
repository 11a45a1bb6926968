//! `netvm sim`: many seeds of the deterministic simulator, spread over the machine's cores.
//!
//! A world is single-threaded; worlds of different seeds know nothing of each other. Everything that stands on
//! standard output is a function of the seeds, except the closing lines about time.

mod result;
mod run;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufWriter, Write};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use netvm_world::Config;
use netvm_world::trace::Lines;

use crate::args::Sim;
use crate::failure::Failure;
use crate::{output, process};
use result::Sum;

/// Fewer seeds than this need not fire every kind of fault (each kind is off in one seed of four).
const COVERED_BY: u32 = 50;

/// Runs the seeds that were asked for and says what they came to.
///
/// # Errors
/// [`Failure::Wrong`] when a seed failed or, with 50 seeds or more, a kind of fault never fired.
pub fn run(options: &Sim) -> Result<(), Failure> {
    let config = Config {
        nodes: options.nodes,
        messages: options.messages,
        ..Config::default()
    };
    if let (Some(seed), true) = (options.seed, options.trace) {
        return trace(seed, &config);
    }
    let (first, count) = match options.seed {
        Some(seed) => (seed, 1),
        None => (options.first_seed.unwrap_or_else(fresh_seed), options.seeds),
    };
    let Some(last) = first.checked_add(u64::from(count) - 1) else {
        return Err(Failure::Usage(format!(
            "--first-seed {first}: {count} seeds from there on go past {}, the last; give a smaller one",
            u64::MAX
        )));
    };
    if !options.json {
        output::print(&format!(
            "seeds {first} to {last}, {} nodes each, all faults\n",
            config.nodes
        ))?;
    }

    let started = Instant::now();
    let bar = bar(count);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.map_or_else(cores, usize::from);
    let mut sum = Sum::new(first, count, &config);
    run::all(first, count, &config, jobs, &mut |run| {
        bar.inc(1);
        if let Err(failure) = &run.outcome {
            bar.suspend(|| output::tell(&failure.to_string()));
        }
        sum.add(run);
    });
    bar.finish_and_clear();
    let peak = process::peak_bytes().unwrap_or_default();
    sum.finish(started.elapsed(), peak, jobs, count >= COVERED_BY);

    if options.json {
        output::print_json(&sum)?;
    } else {
        output::print(&sum.table())?;
    }
    match sum.complaint() {
        None => Ok(()),
        Some(complaint) => Err(Failure::Wrong(complaint)),
    }
}

/// Runs one seed and prints its events. Standard output is the same bytes each time.
fn trace(seed: u64, config: &Config) -> Result<(), Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut lost = None;
    let outcome = {
        let mut sink = Lines(|line: &str| {
            if lost.is_none() {
                lost = writeln!(out, "{line}").err();
            }
        });
        run::one(seed, config, &mut sink)
    };
    let lost = lost.or_else(|| out.flush().err());
    if let Some(error) = lost.filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe) {
        return Err(Failure::Wrong(format!("cannot write the trace: {error}")));
    }
    match outcome {
        Ok(report) => {
            output::tell(&format!(
                "seed {seed}: ok, {} messages, {} events",
                report.messages, report.events
            ));
            Ok(())
        }
        Err(failure) => Err(Failure::Wrong(failure.to_string())),
    }
}

/// A seed that was never used before, short enough to be read out.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000_000
}

fn bar(count: u32) -> ProgressBar {
    let bar = ProgressBar::new(u64::from(count));
    // The template is a constant: it parses or a test fails.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} seeds, {elapsed} (left: {eta})") {
        bar.set_style(style);
    }
    bar
}
