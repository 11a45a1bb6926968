//! Page events under fire, then a module that goes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::{counters, number, reports};
use super::scenarios::as_user;

/// A minute of it against an exporter's card that takes its time: so page events find it with a page in its hands, or about
/// to take one.
pub(super) fn with_slow_card(rack: &mut Rack) -> Result<String> {
    rack.slow_card(1)?;
    // One locked page in a thousand is one that the card was on its way to. A kernel with checks meets a twentieth as many, and is
    // there to say what is wrong with locks and memory.
    let neither = if rack.is_checked() { 0 } else { 1 };
    storm(rack, 60, &Least { locked: 100, neither })
}

/// A while of it where each host can do two things at once.
pub(super) fn with_two_processors(rack: &mut Rack) -> Result<String> {
    // A card at full speed has a page in its hands for a moment only, and is hardly ever met on its way to one.
    let least = Least {
        locked: 1,
        neither: 0,
    };
    storm(rack, 20, &least)
}

/// Storms in a row, at most.
const ROUNDS: u64 = 4;

/// What the kernel must have done, from `/proc/vmstat`.
const DONE: [&str; 5] = [
    "pgmigrate_success",
    "thp_collapse_alloc",
    "thp_split_page",
    "cow_ksm",
    "pswpout",
];

/// What must have happened at least, or the storm has tried too little.
struct Least {
    /// Pages that the NIC had in its hands when they were taken away (thesis figure 13, second and third outcome).
    locked: u64,
    /// Pages that neither side had (third outcome).
    neither: u64,
}

/// Page events under fire, then a module that goes: nothing of the processes is left.
fn storm(rack: &mut Rack, seconds: u64, least: &Least) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let exporter = &mut rack.hosts[1];
    exporter.run("echo 20 > /sys/kernel/mm/ksm/sleep_millisecs; echo 1 > /sys/kernel/mm/ksm/run")?;
    // Memory is compacted all the while: pages move to other frames. Root does it, because no other user may ask for
    // it.
    exporter.run(
        "(while ! test -e /tmp/calm; do echo 1 > /proc/sys/vm/compact_memory; sleep 0.3; done) > /dev/null 2>&1 &",
    )?;
    // A card is seldom met on its way to a page, a few times in a minute, and pages that were merged are seldom written to; a
    // storm may last longer, if it must. On a kernel with checks all of it is slower.
    let mut rounds = 0;
    let (fired, events, kernel, there) = loop {
        rounds += 1;
        let command = as_user(&format!("rig-storm --seconds {seconds} --seed {rounds}"));
        let [fired, events] = reports(rack, &command, Duration::from_secs(seconds + 180))?;
        let vm = rack.hosts[1].run("cat /proc/vmstat")?;
        let mut kernel = Vec::new();
        for name in DONE {
            kernel.push((name, count_of(&vm, name)?));
        }
        let [_, there] = counters(rack)?;
        let enough = number(&there["driver"], "unmap_neither")? >= least.neither
            && number(&there["driver"], "unmap_found_locked")? >= least.locked
            && kernel.iter().all(|(_, count)| *count > 0);
        if enough || rounds == ROUNDS {
            break (fired, events, kernel, there);
        }
    };
    rack.hosts[1].run("touch /tmp/calm")?;
    let driver = &there["driver"];
    let (locked, neither, races) = (
        number(driver, "unmap_found_locked")?,
        number(driver, "unmap_neither")?,
        number(driver, "map_races")?,
    );
    let (zero_copy, bounced) = (number(&there["card"], "zero_copy")?, number(driver, "bounced")?);
    for (name, count) in &kernel {
        ensure!(
            *count > 0,
            "{name} is 0: the kernel did not do what was asked for: {events}"
        );
    }
    let kernel: Vec<String> = kernel
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let seen = format!(
        "{rounds} x {seconds} s; {} page events ({}; of the kernel: {}), {} writes, {} reads, {} refused; {zero_copy} pages in place, {bounced} bounced; \
         no word in the wrong place, none in {} pages of another process; {races} lost races; {locked} pages found locked, \
         {neither} that neither side had; unmaps that waited: {}",
        total(&events["events"]),
        listed(&events["events"]),
        kernel.join(", "),
        fired["writes"],
        fired["reads"],
        fired["refused"],
        events["canary_pages"],
        waits(driver),
    );
    ensure!(
        locked >= least.locked && neither >= least.neither && races > 0,
        "that tries too little: {seen}"
    );
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    Ok(seen)
}

/// A number of `/proc/vmstat`.
fn count_of(vm: &str, name: &str) -> Result<u64> {
    let line = vm
        .lines()
        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' '));
    let line = line.with_context(|| format!("the kernel does not count {name}"))?;
    Ok(line.trim().parse()?)
}

fn total(events: &Value) -> u64 {
    let counts = events.as_object().into_iter().flatten();
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

fn listed(events: &Value) -> String {
    let counts = events.as_object().into_iter().flatten();
    let texts: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
    texts.join(", ")
}

/// How long unmaps waited for the card, from its driver's counters: powers of two, in microseconds.
fn waits(driver: &Value) -> String {
    let mut waits = Vec::new();
    for at in 0..15 {
        let from = 1_u64 << at;
        let count = driver[format!("unmap_waited_{from}us")]
            .as_u64()
            .unwrap_or_default();
        if count > 0 {
            let to = if at < 14 {
                format!("..{}", 2 * from)
            } else {
                "..".to_owned()
            };
            let from = if at == 0 { 0 } else { from };
            waits.push(format!("{from}{to} us {count}"));
        }
    }
    waits.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn waits_are_said_by_their_length() {
        let driver = json!({"unmap_waited_1us": 3, "unmap_waited_2us": 0, "unmap_waited_8us": 2, "unmap_waited_16384us": 1});
        assert_eq!(waits(&driver), "0..2 us 3, 8..16 us 2, 16384.. us 1");
        assert_eq!(total(&json!({"Touch": 3, "Drop": 4})), 7);
        assert_eq!(
            count_of("pgmigrate_success 12\npgmigrate_fail 2\n", "pgmigrate_success").ok(),
            Some(12)
        );
    }
}
