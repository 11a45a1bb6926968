//! What programs on the hosts, drivers and cards say of themselves, as JSON.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::rack::Rack;

/// Runs a program on both hosts; the last line of each is its report.
pub(super) fn reports(rack: &mut Rack, command: &str, limit: Duration) -> Result<[Value; 2]> {
    let texts = rack.both(command, limit)?;
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
        *counters = host.counters()?;
        for name in ["dropped", "retransmitted"] {
            ensure!(
                number(&counters["card"], name)? == 0,
                "{name} is not 0: {counters}"
            );
        }
    }
    Ok(all)
}

/// A number of a report.
pub(super) fn number(report: &Value, name: &str) -> Result<u64> {
    report[name]
        .as_u64()
        .with_context(|| format!("no {name} in {report}"))
}
