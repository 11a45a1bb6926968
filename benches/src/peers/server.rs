//! The other process of NetVM's measurements: does what it is told by lines on its standard input.
//!
//! While a one-sided measurement runs, it either waits for the next line, so that its card's helper alone serves, or spins on a
//! notification, as the peers' programs do.

use anyhow::{Result, bail};
use netvm::{Access, NodeId, Port, PortConfig, PortId, Timeout};
use netvm_process::SoftNode;
use std::io::{BufRead as _, Write as _};
use std::time::Duration;

/// The server's port.
pub const PORT: u16 = 7;
/// The client's port.
pub const CLIENT_PORT: u16 = 9;
/// What the server exports.
pub const MEMORY: &str = "memory";
/// What the client exports.
pub const BACK: &str = "back";
/// What the server exports when it is told to, of a size that it is told.
pub const FRESH: &str = "fresh";
/// Bytes of [`MEMORY`].
pub const BYTES: u64 = 16 << 20;
/// The notification of a write that is to be answered, and of its answer.
pub const SIGNAL: u32 = 1;
/// How long any one step may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Serves until its input ends.
///
/// # Errors
/// A line is none that it knows, or the node fails.
pub fn run(name: &str, by_udp: bool) -> Result<()> {
    let mut node = SoftNode::builder().name(name).payload(4096);
    if by_udp {
        node = node.udp("127.0.0.1:0");
    }
    let node = node.start()?;
    let port = Port::open(&node.node(), PortConfig::number(PORT))?;
    let memory = port.alloc(BYTES)?;
    let access = Access::everyone().notify(SIGNAL..=SIGNAL);
    let _export = port.export(MEMORY, &memory, .., access)?;
    let address = node.udp_address().map(|address| address.to_string());
    say(&format!("ready {}", address.unwrap_or_default()))?;
    let mut fresh = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["pong", client, rounds] => pong(&port, NodeId(client.parse()?), rounds.parse()?)?,
            ["spin"] => {
                let ended = port.notification(SIGNAL)?;
                say("ok")?;
                ended.spin(PATIENCE)?;
                ended.ack()?;
                say("ok")?;
            }
            ["export", bytes] => {
                let region = port.alloc(bytes.parse()?)?;
                let export = port.export(FRESH, &region, .., Access::everyone())?;
                fresh = Some((export, region));
                say("ok")?;
            }
            ["unexport"] => {
                fresh = None;
                say("ok")?;
            }
            _ => bail!("what is '{line}'?"),
        }
    }
    drop(fresh);
    Ok(())
}

/// Answers each write with a write.
fn pong(port: &Port, client: NodeId, rounds: u32) -> Result<()> {
    let back = port.import(client, PortId(CLIENT_PORT), BACK, Timeout::After(PATIENCE))?;
    let arrived = port.notification(SIGNAL)?;
    say("ok")?;
    for round in 0..rounds {
        arrived.spin(PATIENCE)?;
        arrived.ack()?;
        back.write(0, &u64::from(round).to_le_bytes()[..])
            .notify(SIGNAL)
            .post()?;
    }
    port.flush_remote(client)?;
    back.unimport()?;
    say("ok")
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
