//! A page that never comes: its file's server is silent. Only the port that asked for the page waits.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::scenarios::as_user;

/// For an honest case beside it.
const HONEST: Duration = Duration::from_secs(120);
/// A process that ends has nothing to wait for.
const SOON: Duration = Duration::from_secs(40);
/// How the server takes reads: one at a time, for which the kernel waits without a way out, or several.
const WAYS: [&str; 2] = ["", "--together"];
/// Processes that wait and are killed, one after another, with one silent server.
const KILLED: u32 = 3;

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let mut threads = 0;
    for way in WAYS {
        let host = &mut rack.hosts[0];
        // A process that serves the file that its port waits for: nothing else ends its wait than its own end.
        host.begin(&format!("rig-fuse --at /tmp/own {way} both 20"))?;
        host.end(SOON)?;
        gone(host, 20)?;
        host.run("umount /tmp/own")?;
        // A server that stays: a process that waits for it can be killed, and its port's number is free at once.
        host.run(&format!(
            "mkdir -p /tmp/other; ln -sf /bin/rig-fuse /tmp/server; ln -sf /bin/rig-fuse /tmp/waiter; (/tmp/server --at /tmp/other {way} serve > /tmp/served 2>&1 &); \
             for i in $(seq 100); do grep -q serving /tmp/served && exit 0; sleep 0.1; done; cat /tmp/served; exit 1"
        ))?;
        for _ in 0..KILLED {
            host.run("rm -f /tmp/waits")?;
            host.begin(&as_user("/tmp/waiter --at /tmp/other wait 21 > /tmp/waits 2>&1"))?;
            host.look(
                "for i in $(seq 300); do grep -q waiting /tmp/waits && exit 0; sleep 0.1; done; cat /tmp/waits; exit 1",
            )?;
            // Others do not notice.
            host.look(&as_user("rig-quota share"))?;
            host.look("kill -KILL $(pidof waiter)")?;
            ensure!(host.end(SOON).is_err(), "a process that waits was to be killed");
            gone(host, 21)?;
        }
        let text = host.run("ps -o comm | grep -c netvm-port || true")?;
        threads = threads.max(text.trim().parse::<u32>().unwrap_or_default());
        host.run("kill -KILL $(pidof server); umount -l /tmp/other")?;
        host.run(
            "for i in $(seq 100); do ps -o comm | grep -q netvm-port || exit 0; sleep 0.1; done; ps; exit 1",
        )?;
    }
    let pong = rack.both(&as_user("rig-conformance --only ping_pong"), HONEST)?;
    ensure!(
        pong.iter().all(|text| text.contains("1 passed, 0 failed")),
        "{pong:?}"
    );
    let opened = rack.unload()?;
    Ok(format!(
        "{opened} ports opened and closed; {threads} threads of ended ports waited for a silent server, and none without"
    ))
}

/// Waits until a port has ended.
fn gone(host: &mut super::rack::Host, port: u16) -> Result<()> {
    host.look(&format!(
        "for i in $(seq 100); do netvm stat --device /dev/netvm0 --json | grep -q '\"port\":{port}[,}}]' || exit 0; sleep 0.1; done; \
         echo port {port} does not end; exit 1"
    ))
    .map(drop)
}
