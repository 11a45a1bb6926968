//! `cargo xtask rig test`: one scenario after another, each on machines of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use super::parts::{self, Parts};
use super::rack::Rack;
use super::reports;
use super::scenarios::{SCENARIOS, Scenario, WITH_LOSS};
use super::wire::{Carried, Faults};
use crate::cargo::target;
use crate::exec;
use crate::report::{Finished, Progress, Summary, Verdict};

/// Options of `cargo xtask rig test`.
#[derive(Args)]
pub struct Options {
    /// Run only these scenarios (may be given several times, or names with commas between).
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    only: Vec<String>,
    /// List the scenarios and stop.
    #[arg(long)]
    list: bool,
    /// On the kernel with lock, memory and sleep checks.
    #[arg(long)]
    debug_kernel: bool,
    /// What the wire does to frames follows from this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The wire loses this share of all frames, both ways, in percent: 0 to 30, with a fraction if need be. Runs
    /// conformance, storm and transfer, if no scenarios are named. A scenario fails if a card has lost its link, or if
    /// nothing was sent again.
    #[arg(long, value_name = "PERCENT")]
    loss: Option<Loss>,
    /// How often a scenario may be tried until it passes: emulated machines on a busy one sometimes do not even boot.
    /// What failed before is told all the same, and its logs are kept.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    tries: u32,
    /// No scenario begins after so many minutes, the building of the parts included: what a slow machine does not get
    /// to is named, and is no failure. The first three are always played.
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<u64>,
    /// Where the scenarios behind the first three begin, counted round: other ones than before are then left over.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The share of frames that a wire loses, in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss(u32);

impl Loss {
    /// Of a percent.
    const PERCENT: f64 = 10_000.0;
    /// More than this is no wire.
    const MOST: Self = Self(300_000);
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent: f64 = text
            .trim_end_matches('%')
            .trim()
            .parse()
            .map_err(|error| format!("{error}"))?;
        let most = f64::from(Self::MOST.0) / Self::PERCENT;
        // Not a number is in no range.
        if !(0.0..=most).contains(&percent) {
            return Err(format!("from 0 to {most} percent"));
        }
        Ok(Self((percent * Self::PERCENT).round() as u32))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.0) / Self::PERCENT)
    }
}

/// Runs them. `Ok(true)`: none failed.
pub(crate) fn test(options: &Options) -> Result<bool> {
    if options.list {
        for scenario in &SCENARIOS {
            println!("{:<12} {}", scenario.name, scenario.about);
        }
        return Ok(true);
    }
    let usual = WITH_LOSS.map(str::to_owned);
    let only = match options.loss {
        Some(_) if options.only.is_empty() => &usual,
        _ => options.only.as_slice(),
    };
    let chosen = turned(choose(only)?, options.from);
    let interrupted = super::interrupts()?;
    let started = Instant::now();
    let limit = options.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let Some(parts) = parts::ready(options.debug_kernel)? else {
        return Ok(false);
    };
    if let Some(loss) = options.loss {
        eprintln!(
            "the wire loses {loss} of all frames, both ways, by seed {}",
            options.seed
        );
    }
    let mut finished = Vec::new();
    for (at, scenario) in chosen.iter().enumerate() {
        if at >= ALWAYS && limit.is_some_and(|limit| started.elapsed() >= limit) {
            break;
        }
        let progress = Progress::start(at + 1, chosen.len(), scenario.name, scenario.about);
        let logs = target().join("rig/logs").join(scenario.name);
        let mut before = String::new();
        let mut attempt = 1;
        let (verdict, detail) = loop {
            let error = match run(scenario, &parts, options, &logs, &interrupted) {
                Ok(detail) => break (Verdict::Passed, format!("{detail}{before}")),
                Err(error) => format!("{error:#}"),
            };
            if attempt == options.tries || interrupted.load(Ordering::Relaxed) {
                break (Verdict::Failed, format!("{error}{before}"));
            }
            let kept = logs.with_extension(format!("failed-{attempt}"));
            eprintln!("    FAILED, and tried again: {error}");
            tell(&logs, scenario, options);
            let _ = std::fs::remove_dir_all(&kept);
            std::fs::rename(&logs, &kept).with_context(|| format!("keeping {}", logs.display()))?;
            before = format!("{before}; try {attempt} FAILED: {error} ({})", kept.display());
            attempt += 1;
        };
        let done = Finished {
            stage: scenario.name,
            verdict,
            detail,
            seconds: progress.elapsed().as_secs_f64(),
            causes: Vec::new(),
        };
        progress.finish(&done);
        if verdict == Verdict::Failed {
            tell(&logs, scenario, options);
        }
        finished.push(done);
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    let well = Summary::new(&finished, started.elapsed()).say(options.json)?;
    let left: Vec<_> = chosen.iter().skip(finished.len()).collect();
    if !left.is_empty() && !options.json {
        let names: Vec<_> = left.iter().map(|scenario| scenario.name).collect();
        println!(
            "{} of {} scenarios played; no time for: {}",
            finished.len(),
            chosen.len(),
            names.join(", ")
        );
    }
    Ok(well)
}

/// How many of the first scenarios are played however late it is: without them a run says nothing of the parts together.
const ALWAYS: usize = 3;

/// The same scenarios: those behind the first begin with another one.
fn turned(mut chosen: Vec<&'static Scenario>, from: u64) -> Vec<&'static Scenario> {
    if let Some((_, rest)) = chosen.split_at_mut_checked(ALWAYS)
        && !rest.is_empty()
    {
        rest.rotate_left((from % rest.len() as u64) as usize);
    }
    chosen
}

fn run(
    scenario: &Scenario,
    parts: &Parts,
    options: &Options,
    logs: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<String> {
    // Logs of before must not speak for this run.
    let _ = std::fs::remove_dir_all(logs);
    let mut rack = Rack::start(
        parts,
        logs,
        options.seed,
        scenario.processors,
        scenario.bus,
        interrupted,
    )?;
    let loss = options.loss.unwrap_or(Loss(0));
    rack.wire.set(Faults {
        lost: scenario.wire.lost.max(loss.0),
        ..scenario.wire
    });
    let result = (scenario.run)(&mut rack);
    // What a kernel says of itself explains a failure better than what came of it.
    rack.is_sound()?;
    let detail = result?;
    let carried = rack.wire.carried();
    let books = reports::books(&mut rack)?;
    let mended = if loss == Loss(0) {
        String::new()
    } else {
        let mended = reports::mended(&rack.counted)?;
        format!("{loss} of frames lost by seed {}: {mended}", options.seed)
    };
    let told = [detail, frames(carried), mended, books];
    rack.was_checked()?;
    rack.is_sound()?;
    let told = told.iter().map(String::as_str).filter(|part| !part.is_empty());
    Ok(told.collect::<Vec<_>>().join("; "))
}

/// What the wire has done.
fn frames([there, back]: [Carried; 2]) -> String {
    let [frames, lost] = [there.frames + back.frames, there.lost + back.lost];
    match lost {
        0 => format!("{frames} frames"),
        _ => format!("{frames} frames, {lost} more lost"),
    }
}

/// Where to look, and how to run it alone.
fn tell(logs: &Path, scenario: &Scenario, options: &Options) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(logs)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    paths.sort();
    for path in &paths {
        let text = match path.extension() {
            Some(end) if end == "log" => exec::tail(path, 1500),
            _ => String::new(),
        };
        let lines: Vec<&str> = text.lines().collect();
        for line in lines.iter().skip(lines.len().saturating_sub(8)) {
            eprintln!("    | {}", line.trim_end());
        }
        eprintln!("    {}", path.display());
    }
    let kind = if options.debug_kernel {
        " --debug-kernel"
    } else {
        ""
    };
    let loss = options.loss.map(|Loss(lost)| f64::from(lost) / Loss::PERCENT);
    let loss = loss.map(|loss| format!(" --loss {loss}")).unwrap_or_default();
    eprintln!(
        "    this scenario alone: cargo xtask rig test --only {} --seed {}{loss}{kind}",
        scenario.name, options.seed
    );
}

fn choose(only: &[String]) -> Result<Vec<&'static Scenario>> {
    let known = |name: &String| SCENARIOS.iter().any(|scenario| scenario.name == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        let what = format!(
            "there is no scenario `{unknown}`; there are: {}",
            names.join(", ")
        );
        return Err(crate::Usage(what).into());
    }
    Ok(SCENARIOS
        .iter()
        .filter(|scenario| only.is_empty() || only.iter().any(|name| name == scenario.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_unknown_scenario_is_named() {
        let error = choose(&["nonsense".to_owned()]).err().expect("no such scenario");
        assert!(error.is::<crate::Usage>(), "{error:?}");
        assert_eq!(choose(&[]).map(|all| all.len()).ok(), Some(SCENARIOS.len()));
    }

    #[test]
    fn a_share_of_frames_is_taken_in_percent() {
        for (text, lost) in [
            ("0", 0),
            ("5", 50_000),
            ("0.25", 2_500),
            ("30", 300_000),
            ("7.5%", 75_000),
        ] {
            assert_eq!(text.parse(), Ok(Loss(lost)), "{text}");
        }
        for text in ["30.1", "-1", "nan", "", "many"] {
            text.parse::<Loss>().expect_err(text);
        }
        assert_eq!(Loss(2_500).to_string(), "0.25 %");
        let usual = WITH_LOSS.map(str::to_owned);
        assert_eq!(choose(&usual).map(|chosen| chosen.len()).ok(), Some(usual.len()));
    }

    #[test]
    fn every_scenario_has_its_turn_behind_the_first() {
        let all = || choose(&[]).expect("all of them");
        let names = |of: &[&Scenario]| -> Vec<_> { of.iter().map(|scenario| scenario.name).collect() };
        let plain = names(&all());
        assert_eq!(names(&turned(all(), 0)), plain);
        let rest = (plain.len() - ALWAYS) as u64;
        let next: BTreeSet<_> = (0..rest)
            .map(|from| {
                let turned = names(&turned(all(), from));
                assert_eq!(turned[..ALWAYS], plain[..ALWAYS]);
                assert_eq!(BTreeSet::from_iter(&turned), BTreeSet::from_iter(&plain));
                turned[ALWAYS]
            })
            .collect();
        assert_eq!(next.len() as u64, rest);
        assert_eq!(names(&turned(all(), rest)), plain);
        assert_eq!(turned(Vec::new(), 5).len(), 0);
    }
}
