//! Hostile processes beside an honest one.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::reports::{counters, number, reports};
use super::scenarios::as_user;

/// Beside what they do.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a card must have refused, so that it was tried at all: by its own host's processes, by the other's, by its host.
const REFUSED: [&[&str]; 3] = [
    &["commands_refused", "commands_failed", "broken_doorbells"],
    &[
        "refused_capability",
        "refused_range",
        "refused_mode",
        "refused_port",
    ],
    &["source_failures", "messages_failed"],
];

/// On hosts with one processor, where the honest waits for the driver and not for QEMU's lock
/// (docs/evaluation/rig.md): no longer than T.
pub(super) fn run(rack: &mut Rack) -> Result<String> {
    beside(rack, 60, "")
}

/// On hosts with two, where processes meet in the driver.
pub(super) fn crowd(rack: &mut Rack) -> Result<String> {
    beside(rack, 24, "--untimed")
}

fn beside(rack: &mut Rack, seconds: u64, how: &str) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
        // A process that may not answer faults of the kernel hides less.
        host.run("echo 1 > /proc/sys/vm/unprivileged_userfaultfd")?;
    }
    let command = as_user(&format!("rig-hostile --seconds {seconds} {how}"));
    let said = reports(rack, &command, Duration::from_secs(seconds) + PATIENCE)?;
    let all = counters(rack)?;
    for (node, counters) in all.iter().enumerate() {
        for name in ["links_lost", "events_lost"] {
            let count = number(&counters["card"], name)?;
            ensure!(count == 0, "card {node} counts {name}: {count}");
        }
        let dead = number(&counters["driver"], "cards_dead")?;
        ensure!(dead == 0, "host {node} lost its card");
    }
    let [here, there] = &all;
    let mut refused = Vec::new();
    for kinds in REFUSED {
        for name in kinds {
            let count = number(&here["card"], name)? + number(&there["card"], name)?;
            refused.push((*name, count));
        }
        let some = refused
            .iter()
            .rev()
            .take(kinds.len())
            .any(|(_, count)| *count > 0);
        ensure!(some, "none of {} was counted", kinds.join(", "));
    }
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    let sides = said.iter().map(|side| {
        format!(
            "host {}: {} honest rounds, the longest {} ms ({} beside spinners, T {}), {} of {} misdeeds of {} processes refused",
            side["node"],
            side["rounds"],
            side["worst_ms"],
            side["calm_worst_ms"],
            side["t_ms"],
            side["refused"],
            side["tried"],
            side["lives"]
        )
    });
    let sides: Vec<String> = sides.collect();
    let refused: Vec<String> = refused
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    Ok(format!("{}; {}", sides.join("; "), refused.join(", ")))
}
