//! How ports end, and what the module makes of it.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::{Rack, SHORT};
use super::reports::number;
use super::scenarios::{as_user, report};

/// For one program.
const LIMIT: Duration = Duration::from_secs(200);
/// A group of its own that may keep so much, and nothing in swap, runs out of memory.
const STARVE: &str = "G=/sys/fs/cgroup/starving; mkdir -p $G; echo 16M > $G/memory.max; echo 0 > $G/memory.swap.max; \
                      echo 0 > $G/cgroup.procs; ulimit -l 0; exec su app -c 'rig-life eat'";

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let host = &mut rack.hosts[0];
    // The module does not go while a process has a port.
    host.begin(&as_user("timeout -s KILL 5 rig-life hold"))?;
    host.look("sleep 2; netvm stat --device /dev/netvm0 --json | grep -q '\"port\":43'")?;
    host.look("! rmmod netvm 2> /dev/null && test -c /dev/netvm0")?;
    ensure!(
        host.end(SHORT).is_err(),
        "the process that holds a port was to be killed"
    );
    host.begin(&as_user("rig-life"))?;
    let cases = number(&report(&host.end(LIMIT)?)?, "cases")?;
    host.begin(STARVE)?;
    let sender = report(&host.look(&as_user("rig-life starve"))?)?;
    ensure!(
        host.end(SHORT).is_err(),
        "the process that eats memory was to be killed"
    );
    let kills = host.run("grep ^oom_kill /sys/fs/cgroup/starving/memory.events")?;
    ensure!(
        !kills.contains("oom_kill 0"),
        "the kernel killed no process: {kills}"
    );
    let opened = rack.unload()?;
    Ok(format!(
        "{cases} cases; {} writes to a process that was killed for want of memory; {opened} ports opened and closed",
        number(&sender, "written")?
    ))
}
