//! Two images on two machines, joined by a wire: each writes to the other, both idle, then strangers
//! send them nonsense.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::boots::{self, log_of};
use super::storm;

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

/// What was seen.
pub(super) struct Seen {
    /// Both logs.
    pub(super) logs: [String; 2],
    /// The larger share of a processor that a machine took while it idled.
    pub(super) idle: f64,
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
    let seen = watch(&folder);
    // Sockets only; leftovers do no harm.
    let _ = std::fs::remove_dir_all(&folder);
    seen
}

fn watch(folder: &Path) -> Result<Seen> {
    let logs = [0, 1].map(|node| log_of(&format!("node-{node}")));
    let [first, second] = &logs;
    let mut machines = [
        start(NETWORK, 0, first, folder, &[])?,
        start(NETWORK, 1, second, folder, &[])?,
    ];
    let limit = Instant::now() + PATIENCE;
    await_line("IDLE BEGINS", &mut machines, &logs, limit)?;
    let idle = idle_share([&machines[0], &machines[1]], WATCH)?;
    if text_of(&logs).iter().any(|text| text.contains("IDLE ENDS")) {
        bail!(
            "the machines stopped idling before they were watched: {}",
            first.display()
        );
    }
    await_line("STORM WANTED", &mut machines, &logs, limit)?;
    for node in [0, 1] {
        storm::send(node, &folder.join(node.to_string()))?;
    }
    await_line("SELF TEST PASSED", &mut machines, &logs, limit)?;
    if idle > IDLE_LIMIT {
        bail!(
            "a machine with nothing to do took {:.1} % of a processor",
            idle * 100.0
        );
    }
    Ok(Seen {
        logs: text_of(&logs),
        idle,
    })
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
