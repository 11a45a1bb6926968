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

/// What both drivers and both cards have counted. Nothing may have been lost, whatever was done. That a card has sent again
/// says nothing: an emulated one may stand still for longer than its peer waits.
pub(super) fn counters(rack: &mut Rack) -> Result<[Value; 2]> {
    let mut all = [Value::Null, Value::Null];
    for (host, counters) in rack.hosts.iter_mut().zip(&mut all) {
        *counters = host.counters()?;
        for name in ["dropped", "events_lost"] {
            ensure!(
                number(&counters["card"], name)? == 0,
                "{name} is not 0: {counters}"
            );
        }
    }
    rack.counted = all.clone();
    Ok(all)
}

/// Counters of each card that say what a scenario was about, and their names for a person.
const TOLD: [(&str, &str); 10] = [
    ("zero_copy", "zero-copy"),
    ("bounced_not_found", "bounced"),
    ("source_misses", "source misses"),
    ("messages_failed", "failed"),
    ("retransmitted", "sent again"),
    ("tail_probes", "tail probes"),
    ("put_off", "put off"),
    ("answers_unkept", "answers without a copy"),
    ("links_lost", "links lost"),
    ("dropped", "dropped"),
];

/// What both drivers and both cards have counted, in a line: nothing of a host whose module has gone. Whatever was done, no
/// message was dropped but with its link, and no event was lost.
pub(super) fn books(rack: &mut Rack) -> Result<String> {
    let mut said = Vec::new();
    for (node, host) in rack.hosts.iter_mut().enumerate() {
        let text =
            host.look("sleep 1.2; test -c /dev/netvm0 && netvm stat --device /dev/netvm0 --json || true")?;
        if text.trim().is_empty() {
            continue;
        }
        let counters: Value =
            serde_json::from_str(text.trim()).with_context(|| format!("no counters: {text}"))?;
        let card = &counters["card"];
        ensure!(
            number(card, "events_lost")? == 0,
            "card {node} lost an event: {card}"
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
        if let Some(counted) = rack.counted.get_mut(node) {
            counted.clone_from(&counters);
        }
        said.push(format!(
            "node {node}: {mapped} pages mapped, {}",
            parts.join(", ")
        ));
    }
    Ok(said.join("; "))
}

/// A wire that lost frames has lost no link: what both cards counted last says so, and that they did send again.
pub(super) fn mended(counted: &[Value; 2]) -> Result<String> {
    let mut again = [0; 2];
    for (node, (counters, again)) in counted.iter().zip(&mut again).enumerate() {
        let card = &counters["card"];
        let lost = number(card, "links_lost")?;
        ensure!(lost == 0, "card {node} has lost {lost} links: {card}");
        *again = number(card, "retransmitted")?;
    }
    let [here, there] = again;
    ensure!(
        here + there > 0,
        "the wire lost frames, and nothing was sent again"
    );
    Ok(format!("{here} and {there} messages sent again"))
}

/// A number of a report.
pub(super) fn number(report: &Value, name: &str) -> Result<u64> {
    report[name]
        .as_u64()
        .with_context(|| format!("no {name} in {report}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lost_link_and_a_wire_without_effect_are_told() {
        let card = |lost: u64, again: u64| json!({"card": {"links_lost": lost, "retransmitted": again}});
        assert_eq!(
            mended(&[card(0, 3), card(0, 0)]).ok().as_deref(),
            Some("3 and 0 messages sent again")
        );
        mended(&[card(0, 3), card(1, 2)]).expect_err("card 1 has lost a link");
        mended(&[card(0, 0), card(0, 0)]).expect_err("nothing was sent again");
        mended(&[card(0, 3), Value::Null]).expect_err("card 1 was not asked");
    }
}
