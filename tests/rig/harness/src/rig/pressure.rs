//! Exported memory under memory pressure: nothing is pinned, nothing lost, and what a card uses stays.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::{counters, number, reports};
use super::scenarios::as_user;

/// For one program.
const LIMIT: Duration = Duration::from_secs(400);
/// What is exported, and what of all memory of the program may stay, in MiB.
const EXPORTED: u64 = 24;
const ALLOWED: u64 = 12;

/// More memory is exported than its owner may keep.
pub(super) fn stream(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let limit = format!(
        "G=/sys/fs/cgroup/app; mkdir -p $G; test $(hostname) = host-1 && echo {ALLOWED}M > $G/memory.max; "
    );
    let program = format!("rig-pressure stream --mib {EXPORTED} --cgroup $G");
    let [writer, exporter] = reports(rack, &format!("{limit}{}", as_user(&program)), LIMIT)?;
    for report in [&writer, &exporter] {
        ensure!(report["pinned"] == 0, "memory was pinned: {report}");
    }
    let exported = number(&exporter, "exported")?;
    let left = number(&exporter, "left")?;
    ensure!(
        left * 20 < exported,
        "{left} of {exported} idle bytes stayed under pressure"
    );
    ensure!(number(&exporter, "dirtied")? > 0, "the exporter dirtied no page");
    let [_, there] = counters(rack)?;
    let (bounced, zero_copy) = (
        number(&there["driver"], "bounced")?,
        number(&there["card"], "zero_copy")?,
    );
    ensure!(
        bounced > 0 && zero_copy > 0,
        "bounced {bounced}, in place {zero_copy}"
    );
    let text = |report: &Value, name: &str| report[name].to_string();
    Ok(format!(
        "{EXPORTED} MiB exported, {ALLOWED} allowed; {bounced} pages bounced, {zero_copy} in place; {} % of the idle memory \
         stayed after {} tries; {} MiB/s",
        left * 100 / exported,
        number(&exporter, "presses")?,
        text(&writer, "mib_per_s")
    ))
}

/// Pages that only a card uses outlive idle ones, with either of the kernel's ways to choose.
pub(super) fn keep(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let mut seen = Vec::new();
    for (name, mode) in [("classic", "n"), ("MGLRU", "y")] {
        rack.hosts[1].run(&format!("echo {mode} > /sys/kernel/mm/lru_gen/enabled"))?;
        let [_, exporter] = reports(rack, &as_user("rig-pressure keep --cgroup $G"), LIMIT)?;
        let steps = exporter["left"].as_array().context("no steps")?;
        let sum = |which: usize| steps.iter().filter_map(|step| step[which].as_u64()).sum::<u64>();
        let average = |which| sum(which) / steps.len().max(1) as u64;
        let (used, idle) = (average(0), average(1));
        ensure!(
            used > idle + 10,
            "{name}: of used pages {used} % stayed, of idle ones {idle} %: {exporter}"
        );
        seen.push(format!(
            "{name}: {used} % of used pages stay, {idle} % of idle ones"
        ));
    }
    Ok(seen.join("; "))
}
