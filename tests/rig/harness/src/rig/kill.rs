//! Processes killed in mid-transfer, or as they hold and wait for locks; a module that goes, and nothing left of them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::rack::Rack;
use super::reports::{counters, number};
use super::scenarios::as_user;

/// On each host.
const ROUNDS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(300);
/// Members that are killed inside of the lock, on each host at least.
const INSIDE: u64 = 10;

/// What was begun, and the ways in which it may end: by the counters of the driver, both sides are equal when no process is
/// left.
const BOOKS: [(&[&str], &[&str]); 4] = [
    (&["ports_opened"], &["ports_closed"]),
    (&["segments_registered"], &["segments_ended"]),
    (&["exports"], &["unexports"]),
    (&["grants"], &["grants_revoked", "grants_released"]),
];

/// What a death of a process may not lead to.
const NEVER: [&str; 4] = ["cards_dead", "nic_events_bad", "bounce_bad", "pages_leaked"];

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let texts = rack.both(&as_user(&format!("rig-kill --rounds {ROUNDS}")), LIMIT)?;
    let mut bounced = 0;
    for counters in counters(rack)? {
        let driver = &counters["driver"];
        for (begun, ended) in BOOKS {
            let sum = |names: &[&str]| names.iter().map(|name| number(driver, name)).sum::<Result<u64>>();
            let (begins, ends) = (sum(begun)?, sum(ended)?);
            ensure!(
                begins == ends,
                "{begins} times {}, but {ends} times {}: {driver}",
                begun.join(" or "),
                ended.join(" or ")
            );
        }
        for name in NEVER {
            ensure!(number(driver, name)? == 0, "{name}: {driver}");
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

/// The number in front of these words.
fn number_before(text: &str, words: &str) -> Result<u64> {
    let before = text.split_once(words).map_or("", |(before, _)| before);
    let number = before.split_whitespace().next_back().unwrap_or_default();
    number
        .parse()
        .with_context(|| format!("no number of '{words}' in '{text}'"))
}

/// Members of a lock, a semaphore and an asymmetric lock are killed; those that stay go on, and are told.
pub(super) fn members(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let texts = rack.both(&as_user("rig-deaths"), LIMIT)?;
    // Host 0 is home to the lock, and reads at the end how often it told of a death.
    let told = number_before(&texts[0], "deaths told")?;
    let mut inside = 0;
    for text in &texts {
        inside += number_before(text, "of them inside")?;
    }
    // A process that is told may be killed before it has written that down.
    ensure!(
        inside >= 2 * INSIDE && told >= inside / 2,
        "{inside} processes were killed inside of the lock, and {told} deaths told: {texts:?}"
    );
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    let [at_home, away] = texts.map(|text| text.trim().to_owned());
    Ok(format!("{at_home}; {away}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_the_words_behind_them() {
        let text = "40 killed, 13 of them inside; 1620 deaths told";
        assert_eq!(number_before(text, "of them inside").ok(), Some(13));
        assert_eq!(number_before(text, "deaths told").ok(), Some(1620));
        assert!(number_before(text, "entries").is_err());
    }
}
