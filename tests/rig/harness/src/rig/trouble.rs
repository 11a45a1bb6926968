//! Cards and wires that fail in mid-traffic.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::number;
use super::scenarios::{as_user, report};

/// Frames of a few rounds.
const ROUNDS: u64 = 10_000;
/// They come by then.
const PATIENCE: Duration = Duration::from_secs(90);
/// A reset takes no time.
const DOWN: Duration = Duration::from_secs(1);
/// A card hangs longer than a driver waits for its heartbeat, which it looks at twice in that time.
const HANGS: Duration = Duration::from_secs(20);
/// A program looks now and then whether it shall end.
const LIMIT: Duration = Duration::from_secs(120);
/// A failure is told within a driver's patience for a heartbeat and a half, and some for slow machines.
const TOLD_MS: u64 = 30_000;

/// What a sender may be told of another card's end.
const GONE: [&str; 3] = ["CardGone", "LinkLost", "StaleIncarnation"];

pub(super) fn loss(rack: &mut Rack) -> Result<String> {
    through(rack, &["LinkLost"], |rack| {
        // One of the sender's own, which is then under way. A sender with nothing under way when a link falls loses
        // nothing; its next write is refused, because its import has gone with the link.
        rack.wire.lose_writes(0, 1);
        Ok(())
    })
}

pub(super) fn reset(rack: &mut Rack) -> Result<String> {
    through(rack, &GONE, |rack| {
        rack.end_card(1)?;
        std::thread::sleep(DOWN);
        rack.start_card(1)
    })
}

pub(super) fn hang(rack: &mut Rack) -> Result<String> {
    through(rack, &GONE, |rack| {
        rack.hang_card(1)?;
        std::thread::sleep(HANGS);
        rack.end_card(1)?;
        rack.start_card(1)
    })
}

/// Traffic from host 0 to host 1, while something happens: it fails with one of `statuses`, soon, and
/// goes on.
pub(super) fn through(
    rack: &mut Rack,
    statuses: &[&str],
    happens: impl FnOnce(&mut Rack) -> Result<()>,
) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
        host.run("rm -f /tmp/over")?;
    }
    let common = "--kib 1024 --stubborn --until /tmp/over";
    rack.hosts[1].begin(&as_user(&format!("rig-traffic serve {common}")))?;
    rack.hosts[0].begin(&as_user(&format!("rig-traffic drive --to 1 {common}")))?;
    flows(rack)?;
    happens(rack)?;
    flows(rack)?;
    // First the sender: a round of his that outlives its exporter is refused, and then the last thing that he has seen is
    // a failure.
    let mut end = |node: usize| -> Result<Value> {
        let host = &mut rack.hosts[node];
        host.look("touch /tmp/over")?;
        report(&host.end(LIMIT)?)
    };
    let (drove, served) = (end(0)?, end(1)?);
    let failures = &drove["failures"];
    let expected = statuses.iter().any(|status| failures.get(status).is_some());
    ensure!(
        expected,
        "the sender was told none of {}: {drove}",
        statuses.join(", ")
    );
    ensure!(
        number(&drove, "rounds_since")? > 0,
        "traffic did not go on: {drove}"
    );
    let told = number(&drove, "latest_failure_ms")?;
    ensure!(told < TOLD_MS, "a failure was told after {told} ms: {drove}");
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok(format!(
        "{} rounds, {} of them after it; sender: {failures} after {told} ms; exporter: {}",
        drove["rounds"], drove["rounds_since"], served["failures"]
    ))
}

/// Waits for some rounds of traffic.
fn flows(rack: &mut Rack) -> Result<()> {
    let carried = |rack: &Rack| rack.wire.carried().map(|way| way.frames);
    let (before, limit) = (carried(rack), Instant::now() + rack.allowed(PATIENCE));
    while carried(rack)
        .iter()
        .zip(before)
        .any(|(now, before)| *now < before + ROUNDS)
    {
        ensure!(Instant::now() < limit, "traffic does not flow");
        ensure!(rack.is_running(), "a machine has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
