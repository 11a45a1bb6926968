//! Page events under fire, then a module that goes.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::reports::{counters, number};
use super::scenarios::as_user;

/// Page events under fire, then a module that goes: nothing of the processes is left.
pub(super) fn run(rack: &mut Rack) -> Result<String> {
    const SECONDS: u64 = 20;
    for host in &mut rack.hosts {
        host.device()?;
    }
    let command = as_user(&format!("rig-storm --seconds {SECONDS}"));
    let [fired, events] = rack.both(&command, Duration::from_secs(SECONDS + 120))?;
    let [_, there] = counters(rack)?;
    let waits = number(&there["driver"], "unmap_waits")?;
    let races = number(&there["driver"], "map_races")?;
    // With every check of the kernel on, a page event takes so long that no DMA is met.
    let slow = rack.hosts[1]
        .run("grep -c kasan_report /proc/kallsyms || true")?
        .trim()
        != "0";
    ensure!(
        (waits > 0 || slow) && races > 0,
        "{waits} pages were taken away from the card in mid-DMA, {races} while they were mapped: that tries nothing"
    );
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    Ok(format!(
        "{}; {}; {waits} waits for a DMA, {races} lost races",
        events.trim(),
        fired.trim()
    ))
}
