//! Exported memory under memory pressure: nothing is pinned, nothing lost, and what a card uses stays.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::rack::{Host, Rack};
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
    let [writer, exporter] = reports(rack, &format!("{limit}{}", as_user(&program)))?;
    for report in [&writer, &exporter] {
        ensure!(report["pinned"] == 0, "memory was pinned: {report}");
    }
    let exported = number(&exporter, "exported")?;
    let left = number(&exporter, "left")?;
    ensure!(
        left * 20 < exported,
        "{left} of {exported} idle bytes stayed under pressure"
    );
    ensure!(number(&exporter, "dirtied")? > 0, "nobody dirtied a page");
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
         stayed; {} MiB/s",
        left * 100 / exported,
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
        let [_, exporter] = reports(rack, &as_user("rig-pressure keep --cgroup $G"))?;
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

/// Runs a program on both hosts; the last line of each is its report.
fn reports(rack: &mut Rack, command: &str) -> Result<[Value; 2]> {
    let texts = rack.both(command, LIMIT)?;
    let mut reports = [Value::Null, Value::Null];
    for (report, text) in reports.iter_mut().zip(&texts) {
        let line = text.trim().lines().last().unwrap_or_default();
        *report = serde_json::from_str(line).with_context(|| format!("no report: {line}"))?;
    }
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok(reports)
}

/// What both drivers and both cards have counted. Nothing may have been lost, whatever was done.
pub(super) fn counters(rack: &mut Rack) -> Result<[Value; 2]> {
    let mut all = [Value::Null, Value::Null];
    for (host, counters) in rack.hosts.iter_mut().zip(&mut all) {
        *counters = of(host)?;
        for name in ["dropped", "retransmitted"] {
            ensure!(
                number(&counters["card"], name)? == 0,
                "{name} is not 0: {counters}"
            );
        }
    }
    Ok(all)
}

fn of(host: &mut Host) -> Result<Value> {
    // The card publishes them now and then.
    let text = host.run("sleep 1.2; netvm stat --json")?;
    serde_json::from_str(text.trim()).with_context(|| format!("no counters: {text}"))
}

pub(super) fn number(report: &Value, name: &str) -> Result<u64> {
    report[name]
        .as_u64()
        .with_context(|| format!("no {name} in {report}"))
}
