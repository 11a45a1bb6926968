//! Page events under fire, then a module that goes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::rack::Rack;
use super::scenarios::as_user;

/// Page events under fire, then a module that goes: nothing of the processes is left.
pub(super) fn run(rack: &mut Rack) -> Result<String> {
    const SECONDS: u64 = 20;
    for host in &mut rack.hosts {
        host.device()?;
    }
    let command = as_user(&format!("rig-storm --seconds {SECONDS}"));
    let [fired, events] = rack.both(&command, Duration::from_secs(SECONDS + 120))?;
    let waits = counter(rack, 1, "unmap_waits")?;
    let races = counter(rack, 1, "map_races")?;
    ensure!(
        waits > 0 && races > 0,
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

/// A counter of a host's driver or card.
fn counter(rack: &mut Rack, node: usize, name: &str) -> Result<u64> {
    let text = rack.hosts[node].run(&format!("netvm stat | grep -w {name} | head -n 1"))?;
    let value = text.split_whitespace().last().unwrap_or_default();
    value.parse().with_context(|| format!("'{name}' is '{value}'"))
}
