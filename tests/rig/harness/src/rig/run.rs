//! `cargo xtask rig test`: one scenario after another, each on machines of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;

use super::parts::{self, Parts};
use super::rack::Rack;
use super::reports;
use super::scenarios::{SCENARIOS, Scenario};
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
    /// How often a scenario may be tried until it passes: emulated machines on a busy one sometimes do not even boot.
    /// What failed before is told all the same, and its logs are kept.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    tries: u32,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs them. `Ok(true)`: none failed.
pub(crate) fn test(options: &Options) -> Result<bool> {
    if options.list {
        for scenario in &SCENARIOS {
            println!("{:<12} {}", scenario.name, scenario.about);
        }
        return Ok(true);
    }
    let chosen = choose(&options.only)?;
    let interrupted = super::interrupts()?;
    let started = Instant::now();
    let Some(parts) = parts::ready(options.debug_kernel)? else {
        return Ok(false);
    };
    let mut finished = Vec::new();
    for (at, scenario) in chosen.iter().enumerate() {
        let progress = Progress::start(at + 1, chosen.len(), scenario.name, scenario.about);
        let logs = target().join("rig/logs").join(scenario.name);
        let mut before = String::new();
        let mut attempt = 1;
        let (verdict, detail) = loop {
            let error = match run(scenario, &parts, options.seed, &logs, &interrupted) {
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
    Summary::new(&finished, started.elapsed()).say(options.json)
}

fn run(
    scenario: &Scenario,
    parts: &Parts,
    seed: u64,
    logs: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<String> {
    // Logs of before must not speak for this run.
    let _ = std::fs::remove_dir_all(logs);
    let mut rack = Rack::start(parts, logs, seed, scenario.processors, scenario.bus, interrupted)?;
    rack.wire.set(scenario.wire);
    let result = (scenario.run)(&mut rack);
    // What a kernel says of itself explains a failure better than what came of it.
    rack.is_sound()?;
    let detail = result?;
    let [there, back] = rack.wire.carried();
    let frames = there.frames + back.frames;
    let told = [detail, format!("{frames} frames"), reports::books(&mut rack)?];
    rack.was_checked()?;
    rack.is_sound()?;
    let told = told.iter().map(String::as_str).filter(|part| !part.is_empty());
    Ok(told.collect::<Vec<_>>().join("; "))
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
    eprintln!(
        "    this scenario alone: cargo xtask rig test --only {} --seed {}{kind}",
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

    #[test]
    fn an_unknown_scenario_is_named() {
        let error = choose(&["nonsense".to_owned()]).err().expect("no such scenario");
        assert!(error.is::<crate::Usage>(), "{error:?}");
        assert_eq!(choose(&[]).map(|all| all.len()).ok(), Some(SCENARIOS.len()));
    }
}
