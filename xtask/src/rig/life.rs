//! How ports end, and what the module makes of it.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::{Rack, SHORT};
use super::reports::{counters, number};
use super::scenarios::{as_user, report};

/// For one program.
const LIMIT: Duration = Duration::from_secs(200);
/// A group that may keep so much, and nothing in swap, runs out of memory.
const STARVE: &str =
    "G=/sys/fs/cgroup/app; mkdir -p $G; echo 24M > $G/memory.max; echo 0 > $G/memory.swap.max; ";

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let host = &mut rack.hosts[0];
    // The module does not go while somebody has a port.
    host.begin(&as_user("timeout -s KILL 5 rig-life hold"))?;
    host.look("sleep 2; netvm stat --json | grep -q '\"port\":43'")?;
    host.look("! rmmod netvm 2> /dev/null && test -c /dev/netvm0")?;
    ensure!(host.end(SHORT).is_err(), "who holds a port was to be killed");
    let mut cases = |command: &str| {
        host.begin(command)?;
        number(&report(&host.end(LIMIT)?)?, "cases")
    };
    let fed = cases(&as_user("rig-life"))?;
    let starved = cases(&format!("{STARVE}{}", as_user("rig-life --starve")))?;
    let kills = host.run("grep ^oom_kill /sys/fs/cgroup/app/memory.events")?;
    ensure!(!kills.trim().ends_with(" 0"), "the kernel killed nobody: {kills}");
    let [here, _] = counters(rack)?;
    let (opened, closed) = (
        number(&here["driver"], "ports_opened")?,
        number(&here["driver"], "ports_closed")?,
    );
    ensure!(opened == closed, "{opened} ports opened, {closed} closed");
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    Ok(format!(
        "{fed} + {starved} cases; {opened} ports opened and closed; rmmod refused while one was open"
    ))
}
