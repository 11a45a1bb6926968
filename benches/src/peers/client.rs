//! NetVM's measurements, from the process that begins them.

use anyhow::{Context as _, Result, bail, ensure};
use netvm::{Access, Export, NodeId, Notification, Port, PortConfig, PortId, Region, RemoteSegment, Timeout};
use netvm_process::SoftNode;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::server::{BACK, CLIENT_PORT, FRESH, MEMORY, PATIENCE, PORT, SIGNAL};
use crate::beside::programs::Processors;

/// How the two processes are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Rings in shared memory.
    Shared,
    /// Rings in shared memory, between nodes that have UDP sockets as well.
    Beside,
    /// UDP over the loopback device.
    Udp,
}

/// Both processes of NetVM, linked.
pub struct Pair {
    server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    peer: NodeId,
    remote: RemoteSegment,
    source: Region,
    arrived: Notification,
    _back: (Export, Region),
    port: Port,
    node: SoftNode,
}

/// The largest write.
const MOST: u64 = 1 << 20;

impl Pair {
    /// Starts the other process, and links to it.
    ///
    /// # Errors
    /// It does not start, or there is no link.
    pub fn start(wire: Wire, processors: Processors) -> Result<Self> {
        let name = format!("bench-peers-{}-{wire:?}", std::process::id());
        let program = std::env::current_exe().context("this program has no path")?;
        let mut command: Command = processors.on(0, &program.to_string_lossy());
        command.args(["--serve", &name]);
        if wire != Wire::Shared {
            command.arg("--udp");
        }
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = server.stdin.take();
        let mut output = BufReader::new(server.stdout.take().context("no output")?);
        let ready = hear(&mut output)?;
        let address = ready
            .strip_prefix("ready")
            .context("the server is not ready")?
            .trim();
        let node = SoftNode::builder().payload(4096);
        let (node, to) = match wire {
            Wire::Shared => (node, name),
            Wire::Beside => (node.udp("127.0.0.1:0"), name),
            Wire::Udp => (node.udp("127.0.0.1:0"), format!("udp://{address}")),
        };
        let node = node.start()?;
        let peer = node.connect(&to, PATIENCE)?;
        let port = Port::open(&node.node(), PortConfig::number(CLIENT_PORT))?;
        let back = port.alloc(4096)?;
        let export = port.export(BACK, &back, .., Access::everyone().notify(SIGNAL..=SIGNAL))?;
        let remote = port.import(peer, PortId(PORT), MEMORY, Timeout::After(PATIENCE))?;
        let source = port.alloc(MOST)?;
        source.write_from(0, &vec![0xA5; MOST as usize])?;
        Ok(Self {
            server,
            input,
            output,
            peer,
            remote,
            source,
            arrived: port.notification(SIGNAL)?,
            _back: (export, back),
            port,
            node,
        })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the server has no input")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    fn hear_ok(&mut self) -> Result<()> {
        let line = hear(&mut self.output)?;
        ensure!(line == "ok", "the server said '{line}'");
        Ok(())
    }

    /// An 8-byte write with a notification, answered by one: half of the way there and back, in microseconds. The median.
    ///
    /// # Errors
    /// The link ends.
    pub fn one_way(&mut self, rounds: u32) -> Result<f64> {
        let me = self.node.number();
        self.tell(&format!("pong {} {rounds}", me.0))?;
        self.hear_ok()?;
        let mut times = Vec::new();
        for round in 0..rounds {
            let begin = Instant::now();
            self.remote
                .write(0, &u64::from(round).to_le_bytes()[..])
                .notify(SIGNAL)
                .post()?;
            self.arrived.spin(PATIENCE)?;
            self.arrived.ack()?;
            times.push(begin.elapsed());
        }
        self.port.flush_remote(self.peer)?;
        self.hear_ok()?;
        times.sort_unstable();
        let median = times.get(times.len() / 2).context("no rounds")?;
        Ok(median.as_secs_f64() * 1e6 / 2.0)
    }

    /// Does something while the target spins on a notification.
    ///
    /// # Errors
    /// That fails, or the link ends.
    pub fn while_it_spins(&mut self, what: impl FnOnce(&Self) -> Result<f64>) -> Result<f64> {
        self.tell("spin")?;
        self.hear_ok()?;
        let found = what(self);
        self.remote.notify(SIGNAL)?;
        self.port.flush_remote(self.peer)?;
        self.hear_ok()?;
        found
    }

    /// Writes of this size without a pause, until the last is known to have landed: how many a second.
    ///
    /// # Errors
    /// The link ends.
    pub fn rate(&self, size: u64, time: Duration) -> Result<f64> {
        self.rate_of(time, size, 1)
    }

    /// As [`rate`](Self::rate), with the card called for so many writes at once ([`Write::more`](netvm::Write::more)).
    ///
    /// # Errors
    /// The link ends.
    pub fn rate_of(&self, time: Duration, size: u64, together: u64) -> Result<f64> {
        let each = (16 << 20) / size.max(8192);
        // Once without a clock: pages are touched, the peer is awake.
        self.writes(size, each, together)?;
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < time {
            self.writes(size, each, together)?;
            count += each;
        }
        Ok(count as f64 / begin.elapsed().as_secs_f64())
    }

    fn writes(&self, size: u64, count: u64, together: u64) -> Result<()> {
        let bytes = 0xA5A5_A5A5_A5A5_A5A5_u64.to_le_bytes();
        for at in 0..count {
            let to = at * size % (8 * MOST);
            let write = if size <= 8 {
                self.remote.write(to, &bytes[..])
            } else {
                self.remote.write(to, self.source.slice(0..size)?)
            };
            if at % together < together - 1 {
                write.more().post()?;
            } else {
                write.post()?;
            }
        }
        Ok(self.port.flush_remote(self.peer)?)
    }

    /// Fetch-and-add, there and back, one at a time: microseconds. The median.
    ///
    /// # Errors
    /// The link ends.
    pub fn fetch_add(&self, rounds: u32) -> Result<f64> {
        let word = self.remote.word64(0)?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begin = Instant::now();
            word.fetch_add(1)?;
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).context("no rounds")?;
        Ok(median.as_secs_f64() * 1e6)
    }

    /// Fresh memory: milliseconds from the wish to export it until the first byte, written from here, has landed; and until one
    /// word of every page has, if that is asked for.
    ///
    /// # Errors
    /// There is no memory, or the link ends.
    pub fn fresh(&mut self, bytes: u64, every_page: bool) -> Result<(f64, Option<f64>)> {
        let begin = Instant::now();
        self.tell(&format!("export {bytes}"))?;
        self.hear_ok()?;
        let remote = self
            .port
            .import(self.peer, PortId(PORT), FRESH, Timeout::After(PATIENCE))?;
        remote.write(0, &[1u8][..]).post()?;
        self.port.flush_remote(self.peer)?;
        let first = begin.elapsed();
        let mut every = None;
        if every_page {
            for page in 0..bytes / 4096 {
                remote.write(page * 4096, &1u64.to_le_bytes()[..]).post()?;
            }
            self.port.flush_remote(self.peer)?;
            every = Some(begin.elapsed());
        }
        remote.unimport()?;
        self.tell("unexport")?;
        self.hear_ok()?;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        Ok((millis(first), every.map(millis)))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.input.take());
        let begin = Instant::now();
        while matches!(self.server.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It has ended, or must.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn hear(output: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        bail!("NetVM's other process has ended");
    }
    Ok(line.trim_end().to_owned())
}
