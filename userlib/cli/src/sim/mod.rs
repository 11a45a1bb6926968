//! `netvm sim`: many seeds of the deterministic simulator, spread over the machine's cores.
//!
//! A world is single-threaded; worlds of different seeds know nothing of each other. Everything that stands on
//! standard output is a function of the seeds, except the closing lines about time.

mod enumerate;
mod memory;
mod result;
mod run;
mod watchdog;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use netvm_world::trace::{Lines, TraceSink};
use netvm_world::{Config, Report, evidence};

use crate::args::Sim;
use crate::failure::Failure;
use crate::{output, process};
use result::{Memory, Sum};
use run::{AfterFailure, Run, Way};
use watchdog::{Hung, Watchdog};

/// Fewer seeds than this need not fire every kind of fault (each kind is off in one seed of four).
const COVERED_BY: u32 = 50;

/// Runs the seeds that were asked for and says what they came to.
///
/// # Errors
/// [`Failure::Wrong`] when a seed failed or, with 50 seeds or more, a kind of fault never fired.
pub fn run(options: &Sim) -> Result<(), Failure> {
    if let Some(point) = &options.points.point {
        return enumerate::one(point, options);
    }
    if options.points.enumerate {
        return enumerate::run(options, &evidence::folder());
    }
    let usual = if options.far {
        Config::far()
    } else {
        Config::default()
    };
    let config = Config {
        nodes: options.nodes,
        messages: options.messages,
        sparse: options.sparse,
        ..usual
    };
    run_with(options, config, &evidence::folder())
}

/// The same for this configuration. Runs that fail leave their traces in `folder`.
fn run_with(options: &Sim, config: Config, folder: &Path) -> Result<(), Failure> {
    if let (Some(seed), true) = (options.seed, options.trace) {
        return trace(seed, &config);
    }
    if let (Some(seed), true) = (options.seed, options.memory) {
        return memory::print(seed, &config, options.json);
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
            "seeds {first} to {last}, {} nodes each, {}\n",
            config.nodes,
            match (config.sparse, config.far) {
                (true, _) => "sparse, 1 % loss",
                (false, true) => "far apart, all faults",
                (false, false) => "all faults",
            }
        ))?;
    }

    let started = Instant::now();
    let bar = bar(u64::from(count), "seeds");
    let jobs = jobs(options);
    let mut sum = Sum::new(first, count, &config);
    let before = process::resident_bytes().unwrap_or_default();
    let watchdog = Watchdog::new(config.nodes);
    let way = Way {
        jobs,
        after_failure: AfterFailure::of(options),
        watchdog: &watchdog,
    };
    let world = |at, sink: &mut dyn TraceSink| run::one(first + at, &config, sink);
    let mut each = |_, run: Run| {
        bar.inc(1);
        if let Err(failure) = &run.outcome {
            bar.suspend(|| output::tell(&failure.to_string()));
            let left = evidence::leave(folder, failure, |sink| {
                // It fails as it did.
                let _ = run::one(failure.seed, &config, sink);
            });
            match left {
                Ok(path) => sum.traces.push(path),
                Err(error) => bar.suspend(|| {
                    output::tell(&format!(
                        "the trace could not be written to {}: {error}",
                        folder.display()
                    ));
                }),
            }
        }
        sum.add(run);
    };
    let hangs = |hung: &Hung| {
        let failure = run::failure(first + hung.number, &config, hung.to_string());
        bar.suspend(|| watchdog::give_up(&failure, folder, |sink| drop(world(hung.number, sink))));
    };
    watchdog.watch(hangs, || {
        run::all(u64::from(count), way, || true, world, &mut each)
    });
    bar.finish_and_clear();
    let memory = Memory {
        before,
        peak: process::peak_bytes().unwrap_or_default(),
        worlds: jobs,
    };
    sum.finish(started.elapsed(), memory, count >= COVERED_BY);

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
    print_trace(|sink| run::one(seed, config, sink)).map(|report| {
        output::tell(&format!(
            "seed {seed}: ok, {} messages, {} events",
            report.messages, report.events
        ));
    })
}

/// Prints the events of a run.
fn print_trace(
    run: impl FnOnce(&mut dyn TraceSink) -> Result<Report, Box<netvm_world::Failure>>,
) -> Result<Report, Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut lost = None;
    let outcome = run(&mut Lines(|line: &str| {
        if lost.is_none() {
            lost = writeln!(out, "{line}").err();
        }
    }));
    let lost = lost.or_else(|| out.flush().err());
    if let Some(error) = lost.filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe) {
        return Err(Failure::Wrong(format!("cannot write the trace: {error}")));
    }
    outcome.map_err(|failure| Failure::Wrong(failure.to_string()))
}

/// A seed that was never used before, short enough to be read out.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000_000
}

/// Worlds that run at once.
fn jobs(options: &Sim) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    options.jobs.map_or_else(cores, usize::from)
}

fn bar(count: u64, of: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(count).with_message(of);
    // The template is a constant: it parses or a test fails.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {elapsed} (left: {eta})") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use netvm::Nanos;
    use std::collections::BTreeMap;

    /// Runs seeds of which each fails. Gives what the command says, and the files that it leaves.
    fn fails(name: &str, options: &[&str]) -> (Config, Failure, BTreeMap<String, String>) {
        let line = ["netvm", "sim", "--messages", "300", "--json"]
            .iter()
            .chain(options);
        let Command::Sim(options) = Cli::parse_from(line).command else {
            panic!("another command");
        };
        // Nothing finishes so soon after the faults have stopped.
        let config = Config {
            messages: 300,
            patience: Nanos(1),
            ..Config::default()
        };
        let folder = std::env::temp_dir().join(format!("netvm-cli-{name}-{}", std::process::id()));
        let failure = run_with(&options, config, &folder).expect_err("a patience of a nanosecond");
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a trace");
            files.insert(path.display().to_string(), text);
        }
        std::fs::remove_dir_all(&folder).expect("the folder goes");
        (config, failure, files)
    }

    #[test]
    fn a_run_that_fails_leaves_its_trace_and_names_the_file() {
        let (config, failure, files) = fails("traces", &["--seed", "3"]);
        let (path, text) = files.first_key_value().expect("a file");
        let said = failure.to_string();
        assert!(path.ends_with("seed-3-nodes-4.txt"));
        assert_eq!(failure.status(), 1);
        assert!(said.contains(path), "{said}");
        assert!(said.contains(&config.replay(3)) && text.contains(&config.replay(3)));
        assert!(
            text.lines().count() > 100 && text.contains("after the faults stopped"),
            "{text}"
        );
        assert!(text.contains("\nmessages_sent "), "{text}");
    }

    #[test]
    fn the_other_seeds_run_when_told_to() {
        let seeds = ["--first-seed", "3", "--seeds", "4", "--jobs", "1"];
        let (_, _, files) = fails("stops", &seeds);
        assert_eq!(files.len(), 1, "the first failure ends the list");
        let (config, failure, files) = fails("goes-on", &[&seeds[..], &["--keep-going"]].concat());
        let said = failure.to_string();
        assert!(said.contains("4 seed(s) failed"), "{said}");
        assert!((3..7).all(|seed| said.contains(&config.replay(seed))), "{said}");
        assert_eq!(files.len(), 4, "each leaves its trace");
        assert!(files.keys().all(|path| said.contains(path)), "{said}");
    }
}
