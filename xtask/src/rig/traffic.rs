//! Bytes there and back.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::number;
use super::scenarios::{as_user, report};

/// For 64 MiB there and back, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn transfer(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    rack.hosts[1].begin(&as_user("rig-traffic serve --kib 65536 --rounds 2"))?;
    let drive = |rack: &mut Rack, seed: u32| -> Result<Value> {
        let command = format!("rig-traffic drive --to 1 --kib 65536 --rounds 1 --notify --seed {seed}");
        rack.hosts[0].begin(&as_user(&command))?;
        report(&rack.hosts[0].end(LIMIT)?)
    };
    // The first time, the card learns where pages are.
    let cold = drive(rack, 1)?;
    let before = rack.hosts[1].counters()?;
    let warm = drive(rack, 2)?;
    let after = rack.hosts[1].counters()?;
    let served = rack.hosts[1].end(LIMIT)?;
    for one in [&cold, &warm] {
        ensure!(one["lives"] == 1 && one["rounds"] == 1, "something failed: {one}");
        let digest = one["digest"].as_str().unwrap_or("none");
        ensure!(
            served.contains(digest),
            "{digest} was sent, and there is another there: {served}"
        );
    }
    let more = |name| -> Result<u64> { Ok(number(&after["card"], name)? - number(&before["card"], name)?) };
    let (straight, bounced) = (more("zero_copy")?, more("bounced_not_found")?);
    // So many pages fill a card's table, so that some have lost their place to others.
    ensure!(
        straight > 2 * bounced,
        "of pages that the card knows, {straight} were zero-copy, and {bounced} bounced"
    );
    for name in ["dropped", "failed", "errors_sent"] {
        let count = number(&after["card"], name)?;
        ensure!(count == 0, "the card counts {name}: {count}");
    }
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok(format!(
        "cold {} and {} ms, warm {} and {} ms to write and read; warm: {straight} zero-copy, {bounced} bounced",
        cold["write_ms"], cold["read_ms"], warm["write_ms"], warm["read_ms"]
    ))
}
