//! One user takes all that he can have; another one still gets his share, and what the driver allocates is charged.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::reports::number;
use super::scenarios::{as_user, report};

/// For one program.
const LIMIT: Duration = Duration::from_secs(300);
/// A piece of memory that is watched costs about this much, in bytes: two structures and a node of a tree.
const PIECE: u64 = 200;
/// Pieces that are watched at once (`CHUNKS` of the module), and how many are asked for.
const WATCHED: u64 = 8192;
const ASKED: u64 = 12_000;

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let host = &mut rack.hosts[0];
    // No other user may open the device.
    host.look(
        "! su nobody -c 'cat /dev/netvm0' 2> /dev/null; ls -l /dev/netvm0 | grep -q '^crw-rw----.*netvm'",
    )?;
    host.run("rm -f /tmp/taken")?;
    host.begin(&as_user("rig-quota take /tmp/taken"))?;
    host.look("for i in $(seq 1200); do test -s /tmp/taken && exit 0; sleep 0.1; done; exit 1")?;
    let other = report(&host.look("su other -c 'rig-quota share'")?)?;
    ensure!(number(&other, "rounds")? == 4, "another user: {other}");
    host.look("rm /tmp/taken")?;
    let took = report(&host.end(LIMIT)?)?;
    let ports = number(&took, "ports")?;
    ensure!((1..=32).contains(&ports), "one user has {ports} ports: {took}");
    for table in ["segments", "exports", "imports"] {
        let taken = number(&took, table)?;
        ensure!(
            (256..1024).contains(&taken),
            "one user has {taken} {table}: {took}"
        );
    }
    let watch = format!("rig-quota watch --cgroup $G --pieces {ASKED}");
    host.begin(&as_user(&watch))?;
    let watched = report(&host.end(LIMIT)?)?;
    let charged = number(&watched, "charged")?;
    ensure!(
        charged > WATCHED * PIECE && charged < (WATCHED + ASKED) / 2 * PIECE * 3,
        "{charged} bytes were charged for {ASKED} pieces, of which {WATCHED} are watched at once"
    );
    rack.unload()?;
    Ok(format!(
        "one user: {ports} ports, {} segments, {} exports, {} imports; another one got on; {charged} bytes charged for \
         {ASKED} watched pieces",
        took["segments"], took["exports"], took["imports"]
    ))
}
