//! Processes killed in mid-transfer, or as they hold and wait for locks; a module that goes, and nothing left of them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

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

/// Members of a lock, a semaphore and an asymmetric lock are killed; those that stay go on, and are told.
pub(super) fn members(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let texts = rack.both(&as_user("rig-deaths"), LIMIT)?;
    let mut told = 0;
    for text in &texts {
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.iter().position(|&word| word == "told");
        let count = at.and_then(|at| words.get(at.checked_sub(1)?)?.parse::<u64>().ok());
        told += count.with_context(|| format!("no count of deaths in '{text}'"))?;
    }
    ensure!(
        told > 0,
        "no process was killed as it held the lock or waited for it: {texts:?}"
    );
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    let [at_home, away] = texts.map(|text| text.trim().to_owned());
    Ok(format!("{at_home}; {away}"))
}
