//! Processes killed in mid-transfer, a module that goes, and nothing left of them.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::reports::{counters, number};
use super::scenarios::as_user;

/// On each host.
const ROUNDS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(300);

/// What was opened and what was closed.
const PAIRS: [(&str, &str); 3] = [
    ("ports_opened", "ports_closed"),
    ("segments_registered", "segments_ended"),
    ("exports", "unexports"),
];

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let texts = rack.both(&as_user(&format!("rig-kill --rounds {ROUNDS}")), LIMIT)?;
    let mut bounced = 0;
    for counters in counters(rack)? {
        let driver = &counters["driver"];
        for (begun, ended) in PAIRS {
            let (begun, ended) = (number(driver, begun)?, number(driver, ended)?);
            ensure!(begun == ended, "{begun} begun, {ended} ended: {driver}");
        }
        bounced += number(driver, "bounced")?;
    }
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    let [sent, exported] = texts.map(|text| text.trim().to_owned());
    Ok(format!("{exported}; {sent}; {bounced} pages bounced"))
}
