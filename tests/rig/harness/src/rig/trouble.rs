//! Cards and wires that fail in mid-traffic.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::{counters, number};
use super::scenarios::{as_user, report};
use super::wire::Faults;

/// Frames of a few rounds.
const ROUNDS: u64 = 10_000;
/// They come by then.
const PATIENCE: Duration = Duration::from_secs(90);
/// A reset takes no time.
const DOWN: Duration = Duration::from_secs(1);
/// A card hangs longer than a driver waits for its heartbeat, which it looks at twice in that time.
const HANGS: Duration = Duration::from_secs(20);
/// Writes that are lost in a row, after a first one: more than a window, so some are lost again.
const MANY: u64 = 100;
/// A card gives a peer up that says nothing for longer than this: its probes have that time, four times over.
const GIVES_UP: Duration = Duration::from_secs(30);
/// A program looks now and then whether it shall end.
const LIMIT: Duration = Duration::from_secs(120);
/// A failure is told within a driver's patience for a heartbeat and a half, and some for slow machines.
const TOLD_MS: u64 = 30_000;

/// What a sender may be told of another card's end.
const GONE: [&str; 3] = ["CardGone", "LinkLost", "StaleIncarnation"];

/// What is lost is sent again, and no program hears of it.
pub(super) fn loss(rack: &mut Rack) -> Result<String> {
    let [drove, served] = traffic(rack, |rack| {
        // Of the sender, which is the one that has them under way.
        rack.wire.lose_writes(0, 1);
        flows(rack)?;
        rack.wire.lose_writes(0, MANY);
        Ok(())
    })?;
    for (who, report) in [("sender", &drove), ("exporter", &served)] {
        let failures = report["failures"].as_object();
        ensure!(
            failures.is_some_and(serde_json::Map::is_empty),
            "the {who} was told of a loss: {report}"
        );
    }
    let [sender, exporter] = &counters(rack)?;
    let again = number(&sender["card"], "retransmitted")?;
    ensure!(
        again > MANY,
        "{again} messages sent again of {} that were lost",
        MANY + 1
    );
    for counters in [sender, exporter] {
        let lost = number(&counters["card"], "links_lost")?;
        ensure!(lost == 0, "{lost} links lost: {counters}");
    }
    Ok(format!("{} rounds; {} writes lost", drove["rounds"], MANY + 1))
}

/// The wire is cut until the sender's card gives the other one up.
pub(super) fn cut(rack: &mut Rack) -> Result<String> {
    through(rack, &["LinkLost"], |rack| {
        rack.wire.set(Faults::CUT);
        let limit = Instant::now() + rack.allowed(GIVES_UP);
        while number(&rack.hosts[0].counters()?["card"], "links_lost")? == 0 {
            ensure!(
                Instant::now() < limit,
                "the link of a wire that is cut is not lost"
            );
        }
        rack.wire.set(Faults::default());
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
    let [drove, served] = traffic(rack, happens)?;
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
    Ok(format!(
        "{} rounds, {} of them after it; sender: {failures} after {told} ms; exporter: {}",
        drove["rounds"], drove["rounds_since"], served["failures"]
    ))
}

/// Traffic from host 0 to host 1, before and after something happens: what the sender and the exporter say.
fn traffic(rack: &mut Rack, happens: impl FnOnce(&mut Rack) -> Result<()>) -> Result<[Value; 2]> {
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
    let reports = [end(0)?, end(1)?];
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok(reports)
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
