//! Two images on two machines, joined by a wire: each writes to the other, both idle, then strangers
//! send them nonsense. Once more over a wire that loses frames.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::boots::{self, log_of};
use super::storm;
use crate::rig::wire::{Faults, Wire};

/// Boot word: talk to the other node.
const NETWORK: u32 = 8;
/// Where the image finds which node it is.
const NODE_WORD: u32 = 0x4007_0004;
/// So long for everything.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long are the machines watched while they say that they have nothing to do: less than they idle.
const WATCH: Duration = Duration::from_secs(2);
/// Processor time of a machine with nothing to do, at most.
const IDLE_LIMIT: f64 = 0.05;

/// A wire that loses one frame in twenty, both ways.
const LOSES: Faults = Faults {
    lost: 50_000,
    held: 0,
    longest: Duration::ZERO,
    delay: Duration::ZERO,
};
const SEED: u64 = 1;

/// What was seen.
pub(super) struct Seen {
    /// Both logs.
    pub(super) logs: [String; 2],
    /// The larger share of a processor that a machine took while it idled.
    pub(super) idle: f64,
    /// Frames that the other wire lost.
    pub(super) lost: u64,
}

/// A machine; ended when this ends, however it does.
pub(crate) struct Machine(Child);

impl Machine {
    /// Starts it, with nothing to read and no listener: it has a log.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        let machine = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Self(machine.with_context(|| format!("starting {program}"))?))
    }

    /// Whether it has not ended by itself.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots both and watches.
pub(super) fn run() -> Result<Seen> {
    let folder = std::env::temp_dir().join(format!("netvm-wire-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let seen = direct(&folder).and_then(|(logs, idle)| {
        let lost = over_a_wire(&folder).context("over a wire that loses frames")?;
        Ok(Seen { logs, idle, lost })
    });
    // Sockets only; leftovers do no harm.
    let _ = std::fs::remove_dir_all(&folder);
    seen
}

/// Each machine sends to the other one's socket.
fn direct(folder: &Path) -> Result<([String; 2], f64)> {
    let logs = [0, 1].map(|node| log_of(&format!("node-{node}")));
    let [first, second] = &logs;
    let machines = [
        start(NETWORK, 0, first, folder, &[])?,
        start(NETWORK, 1, second, folder, &[])?,
    ];
    let cards = [0, 1].map(|node: u32| folder.join(node.to_string()));
    watch(machines, &logs, &cards)
}

/// Each machine sends to the wire. What it loses is sent again: the same writes land, and no link is lost. Gives the number of
/// frames that were lost.
fn over_a_wire(folder: &Path) -> Result<u64> {
    let logs = [0, 1].map(|node| log_of(&format!("lossy-{node}")));
    let [inputs, cards] = ["wire", "card"].map(|end| [0, 1].map(|node| folder.join(format!("{end}-{node}"))));
    let capture = log_of("lossy").with_extension("pcap");
    let wire = Wire::start(inputs.clone(), cards.clone(), &capture, SEED)?;
    wire.set(LOSES);
    let [first, second] = [0, 1].map(|node: u32| {
        let at = node as usize;
        Machine::spawn(wired(NETWORK, node, &logs[at], [&cards[at], &inputs[at]], &[]))
    });
    let (texts, _) = watch([first?, second?], &logs, &cards)?;
    let again = texts.iter().any(|text| {
        text.lines()
            .any(|line| line.contains("messages sent again") && !line.contains(" 0 messages sent again"))
    });
    if !again {
        bail!("nothing was sent again: {}", logs[0].display());
    }
    Ok(wire.carried().iter().map(|way| way.lost).sum())
}

/// Both logs, and the larger share of a processor while both idled. Frames for the cards go to `cards`.
fn watch(
    mut machines: [Machine; 2],
    logs: &[PathBuf; 2],
    cards: &[PathBuf; 2],
) -> Result<([String; 2], f64)> {
    let [first, _] = logs;
    let limit = Instant::now() + PATIENCE;
    await_line("IDLE BEGINS", &mut machines, logs, limit)?;
    let idle = idle_share([&machines[0], &machines[1]], WATCH)?;
    if text_of(logs).iter().any(|text| text.contains("IDLE ENDS")) {
        bail!(
            "the machines stopped idling before they were watched: {}",
            first.display()
        );
    }
    await_line("STORM WANTED", &mut machines, logs, limit)?;
    for (node, card) in (0..).zip(cards) {
        storm::send(node, card)?;
    }
    await_line("SELF TEST PASSED", &mut machines, logs, limit)?;
    if idle > IDLE_LIMIT {
        bail!(
            "a machine with nothing to do took {:.1} % of a processor",
            idle * 100.0
        );
    }
    Ok((text_of(logs), idle))
}

/// A machine of `node`; datagrams on sockets of the file system are its wire. It has `devices` besides.
pub(super) fn start(word: u32, node: u32, log: &Path, folder: &Path, devices: &[String]) -> Result<Machine> {
    let socket = |node: u32| folder.join(node.to_string());
    let machine = wired(word, node, log, [&socket(node), &socket(1 - node)], devices);
    Machine::spawn(machine)
}

/// The same, not started; frames arrive at the first socket, and go to the second.
pub(crate) fn wired(word: u32, node: u32, log: &Path, wire: [&Path; 2], devices: &[String]) -> Command {
    let mut command: Command = boots::machine_alone(word, log);
    command.args(["-accel", "tcg,thread=multi", "-smp", "1,maxcpus=2"]);
    command
        .arg("-device")
        .arg(format!("loader,addr={NODE_WORD:#x},data={node},data-len=4"));
    command.arg("-netdev").arg(format!(
        "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        wire[0].display(),
        wire[1].display()
    ));
    command.args(["-device", "virtio-net-pci,netdev=wire,romfile="]);
    command.args(devices);
    command
}

fn text_of(logs: &[PathBuf; 2]) -> [String; 2] {
    // A log that is not there yet says nothing.
    [0, 1].map(|node| std::fs::read_to_string(&logs[node]).unwrap_or_default())
}

/// Waits until both logs say `line`.
fn await_line(line: &str, machines: &mut [Machine; 2], logs: &[PathBuf; 2], limit: Instant) -> Result<()> {
    loop {
        let ended = machines.iter_mut().all(|machine| !machine.is_running());
        let texts = text_of(logs);
        if texts.iter().all(|text| text.contains(line)) {
            return Ok(());
        }
        if ended || Instant::now() > limit || texts.iter().any(|text| text.contains("SELF TEST FAILED")) {
            bail!(
                "the nodes do not both say '{line}': {}, {}",
                logs[0].display(),
                logs[1].display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The larger share of a processor that a machine takes in the next `span`.
pub(super) fn idle_share(machines: [&Machine; 2], span: Duration) -> Result<f64> {
    let before = [busy(machines[0])?, busy(machines[1])?];
    std::thread::sleep(span);
    let after = [busy(machines[0])?, busy(machines[1])?];
    let took = (after[0] - before[0]).max(after[1] - before[1]);
    Ok(took / span.as_secs_f64())
}

/// Seconds of processor time that a machine has taken, in user and kernel mode.
fn busy(machine: &Machine) -> Result<f64> {
    let file = format!("/proc/{}/stat", machine.0.id());
    let stat = std::fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    let ticks = ticks_of(&stat).with_context(|| format!("{file} is not as proc(5) says"))?;
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 14 and 15 of proc(5)'s stat; the second, in brackets, may hold anything.
fn ticks_of(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, kernel): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 20 22 0 0";
        assert_eq!(ticks_of(stat), Some(42.0));
        assert_eq!(ticks_of("12 S"), None);
    }
}
