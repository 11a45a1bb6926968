//! Bytes there and back.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::rack::Rack;
use super::reports::{counters, number};
use super::scenarios::as_user;

const MIB: u64 = 64;
/// Cold and warm.
const ROUNDS: usize = 2;
/// For a round, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Percent of what moves in the second round that must not be copied by a host.
const STRAIGHT: u64 = 95;
/// Made by the sender after each round.
const PAUSE: &str = "/tmp/pause";

/// 64 MiB there and back, twice: the first time the cards learn where pages are.
pub(super) fn transfer(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let common = format!("--kib {} --rounds {ROUNDS}", MIB << 10);
    rack.hosts[1].begin(&as_user(&format!("rig-traffic serve {common}")))?;
    let drive = format!("rig-traffic drive --to 1 {common} --notify --pause {PAUSE}");
    rack.hosts[0].begin(&as_user(&drive))?;
    let mut before = counters(rack)?;
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        await_pause(rack)?;
        let after = counters(rack)?;
        seen.push(Moved::between(&before, &after)?);
        before = after;
        rack.hosts[0].look(&format!("rm {PAUSE}"))?;
    }
    let drove = rack.hosts[0].end(LIMIT)?;
    let served = rack.hosts[1].end(LIMIT)?;
    let rounds: Vec<Value> = drove
        .lines()
        .filter(|line| line.starts_with("{\"write_ms\""))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    ensure!(rounds.len() == ROUNDS, "something failed: {drove}");
    let mut said = Vec::new();
    for (round, seen) in rounds.iter().zip(&seen) {
        let digest = round["digest"].as_str().unwrap_or("none");
        ensure!(
            served.contains(digest),
            "{digest} was sent, and there is another there: {served}"
        );
        said.push(format!(
            "{} and {} ms to write and read, {seen}",
            round["write_ms"], round["read_ms"]
        ));
    }
    let warm = seen.last().copied().unwrap_or_default();
    for (what, [straight, helped]) in [("written", warm.written), ("read", warm.read)] {
        ensure!(
            straight * 100 >= (straight + helped) * STRAIGHT,
            "of the second {MIB} MiB {what}, {helped} fragments needed a host, {straight} did not: {}",
            said.join("; then ")
        );
    }
    for counters in &before {
        for name in ["failed", "messages_failed", "source_failures", "errors_sent"] {
            let count = number(&counters["card"], name)?;
            ensure!(count == 0, "a card counts {name}: {count}");
        }
    }
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok(format!("{MIB} MiB there and back: {}", said.join("; then ")))
}

fn await_pause(rack: &mut Rack) -> Result<()> {
    let allowed = rack.allowed(LIMIT);
    let limit = Instant::now() + allowed;
    loop {
        let state = rack.hosts[0].look(&format!(
            "if test -e {PAUSE}; then echo paused; elif pidof rig-traffic > /dev/null; then echo busy; fi"
        ))?;
        match state.trim() {
            "paused" => return Ok(()),
            "busy" => {}
            _ => {
                // It says why.
                rack.hosts[0].end(LIMIT)?;
                bail!("the sender ended within a round");
            }
        }
        ensure!(
            Instant::now() < limit,
            "a round takes more than {} s",
            allowed.as_secs()
        );
        ensure!(rack.is_running(), "a machine has ended");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What a round moved: fragments that went straight from page to page, and how often a host had to help because a page at
/// either end was not there.
#[derive(Clone, Copy, Default)]
struct Moved {
    written: [u64; 2],
    read: [u64; 2],
}

impl Moved {
    /// Node 0 writes to node 1, and reads from it.
    fn between(before: &[Value; 2], after: &[Value; 2]) -> Result<Self> {
        let more = |node: usize, of: &str, name: &str| -> Result<u64> {
            Ok(number(&after[node][of], name)?.saturating_sub(number(&before[node][of], name)?))
        };
        let bounced = |node| -> Result<u64> {
            Ok(more(node, "card", "bounced_not_found")? + more(node, "card", "bounced_read_only")?)
        };
        let [missed_here, missed_there] = [
            more(0, "card", "source_misses")?,
            more(1, "card", "source_misses")?,
        ];
        Ok(Self {
            written: [
                more(1, "card", "zero_copy")?.saturating_sub(missed_here),
                bounced(1)? + missed_here,
            ],
            read: [
                more(0, "card", "zero_copy")?.saturating_sub(missed_there),
                bounced(0)? + missed_there,
            ],
        })
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |[straight, helped]: [u64; 2]| straight * 1000 / (straight + helped).max(1);
        let (written, read) = (percent(self.written), percent(self.read));
        write!(
            f,
            "{}.{} % of {} and {}.{} % of {} fragments zero-copy",
            written / 10,
            written % 10,
            self.written.iter().sum::<u64>(),
            read / 10,
            read % 10,
            self.read.iter().sum::<u64>()
        )
    }
}
