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

/// Counters of each card that say what a scenario was about, and their names for a person.
const TOLD: [(&str, &str); 6] = [
    ("zero_copy", "zero-copy"),
    ("bounced_not_found", "bounced"),
    ("source_misses", "source misses"),
    ("messages_failed", "failed"),
    ("links_lost", "links lost"),
    ("dropped", "dropped"),
];

/// What both drivers and both cards have counted, in a line: nothing of a host whose module has gone. Whatever was done, no
/// message was sent twice, none dropped but with its link, and no event was lost.
pub(super) fn books(rack: &mut Rack) -> Result<String> {
    let mut said = Vec::new();
    for (node, host) in rack.hosts.iter_mut().enumerate() {
        let text = host.look("sleep 1.2; test -c /dev/netvm0 && netvm stat --json || true")?;
        if text.trim().is_empty() {
            continue;
        }
        let counters: Value =
            serde_json::from_str(text.trim()).with_context(|| format!("no counters: {text}"))?;
        let card = &counters["card"];
        ensure!(
            number(card, "retransmitted")? == 0 && number(card, "events_lost")? == 0,
            "card {node} sent again, or lost an event: {card}"
        );
        ensure!(
            number(card, "dropped")? == 0 || number(card, "links_lost")? + number(card, "peer_resets")? > 0,
            "card {node} dropped messages of a link that lives: {card}"
        );
        let mut parts = Vec::new();
        for (name, words) in TOLD {
            match number(card, name)? {
                0 => {}
                count => parts.push(format!("{count} {words}")),
            }
        }
        let mapped = number(&counters["driver"], "pages_mapped")?;
        said.push(format!(
            "node {node}: {mapped} pages mapped, {}",
            parts.join(", ")
        ));
    }
    Ok(said.join("; "))
}

/// A number of a report.
pub(super) fn number(report: &Value, name: &str) -> Result<u64> {
    report[name]
        .as_u64()
        .with_context(|| format!("no {name} in {report}"))
}
