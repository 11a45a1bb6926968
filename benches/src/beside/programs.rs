//! Programs of others: each started twice, on two processors, and what one of them prints.

use anyhow::{Context as _, Result, bail};
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Which processors the two processes run on.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// One for each; with one alone the kernel chooses.
    pinned: bool,
}

impl Processors {
    /// One for each process, where there are two.
    #[must_use]
    pub fn here() -> Self {
        Self {
            pinned: std::thread::available_parallelism().is_ok_and(|all| all.get() > 1),
        }
    }

    /// A program on one of them.
    #[must_use]
    pub fn on(self, which: usize, program: &str) -> Command {
        if !self.pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", &which.to_string(), program]);
        command
    }

    /// Puts this process on the one that the beginning side has.
    ///
    /// # Errors
    /// The kernel says no.
    pub fn begin_here(self) -> Result<()> {
        if self.pinned {
            let mut set = rustix::thread::CpuSet::new();
            set.set(1);
            rustix::thread::sched_setaffinity(None, &set).context("staying on one processor")?;
        }
        Ok(())
    }
}

/// A measurement by `fi_pingpong`.
#[derive(Clone, Copy, Debug)]
pub struct PingPong {
    /// The provider.
    pub provider: &'static str,
    /// Bytes of a message.
    pub bytes: u32,
    /// How many.
    pub rounds: u32,
    /// What both sides find in their environment.
    pub env: &'static [(&'static str, &'static str)],
}

impl PingPong {
    /// Messages of 8 bytes over a provider.
    #[must_use]
    pub const fn of(provider: &'static str) -> Self {
        Self {
            provider,
            bytes: 8,
            rounds: 20_000,
            env: &[],
        }
    }

    fn args(&self) -> [String; 8] {
        let (bytes, rounds) = (self.bytes.to_string(), self.rounds.to_string());
        ["-p", self.provider, "-e", "rdm", "-S", &bytes, "-I", &rounds].map(str::to_owned)
    }

    /// The command that a person types, beside an `fi_pingpong` that waits.
    #[must_use]
    pub fn command(&self) -> String {
        let mut command = String::new();
        for (name, value) in self.env {
            command += &format!("{name}={value} ");
        }
        let args = self
            .args()
            .join(" ")
            .replace(self.provider, &quoted(self.provider));
        command + "fi_pingpong " + &args + " localhost"
    }

    /// Microseconds one way.
    ///
    /// # Errors
    /// The program fails, or prints something else.
    pub fn run(&self, processors: Processors, path: Option<&Path>) -> Result<f64> {
        let port = free_port()?.to_string();
        let mut server = processors.on(0, "fi_pingpong");
        server.args(self.args()).args(["-B", &port]);
        let mut client = processors.on(1, "fi_pingpong");
        client.args(self.args()).args(["-P", &port, "localhost"]);
        for command in [&mut server, &mut client] {
            command.envs(self.env.iter().copied());
            command.envs(path.map(|path| (PROVIDERS, path)));
        }
        let out = both(server, client, &port)?;
        one_way(&out).with_context(|| format!("{} printed:\n{out}", self.command()))
    }
}

/// Where libfabric looks for providers.
pub const PROVIDERS: &str = "FI_PROVIDER_PATH";

/// As a shell wants it.
fn quoted(word: &str) -> String {
    if word.contains(';') {
        format!("'{word}'")
    } else {
        word.to_owned()
    }
}

/// Two processes of Open MPI, each on a processor of its own where there are two. What follows says what they run.
#[must_use]
pub fn mpirun(processors: Processors) -> Command {
    let mut command = Command::new("mpirun");
    let bound = if processors.pinned { "core" } else { "none" };
    // It does not run as root unless it is told twice.
    command
        .args(["-np", "2", "--bind-to", bound])
        .envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .stdin(Stdio::null());
    command
}

/// What a program prints, to one of its outputs.
///
/// # Errors
/// It fails, or does not end.
pub fn said<P: Read>(mut command: Command, pipe: impl FnOnce(&mut Child) -> Option<P>) -> Result<String> {
    let running = command.spawn().with_context(|| format!("starting {command:?}"))?;
    printed(Ending(running), Instant::now() + PATIENCE, pipe)
        .with_context(|| format!("waiting for {command:?}"))
}

/// The column `usec/xfer`.
fn one_way(out: &str) -> Option<f64> {
    let mut lines = out.lines().skip_while(|line| !line.contains("usec/xfer"));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|name| name == "usec/xfer")?;
    // The heading begins with a column mark that the numbers do not have, or with their first column.
    let values: Vec<&str> = lines.next()?.split_whitespace().collect();
    values.get(at)?.parse().ok()
}

/// A port that no program has; another one may take it first, and then the measurement fails and says so.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Whether a program of this machine listens on a port, by the kernel's lists.
fn listens(port: &str) -> bool {
    let Ok(port) = port.parse::<u16>() else {
        return false;
    };
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|list| {
        let text = std::fs::read_to_string(list).unwrap_or_default();
        text.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let here = columns.next().is_some_and(|local| local.ends_with(&wanted));
            // 0A: listening.
            here && columns.nth(1) == Some("0A")
        })
    })
}

/// Ends with this value.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one side, and when it listens the other; gives what the other prints.
pub(crate) fn both(mut server: Command, mut client: Command, port: &str) -> Result<String> {
    let quiet = |command: &mut Command| {
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null());
    };
    quiet(&mut server);
    quiet(&mut client);
    let mut server = Ending(server.spawn().with_context(|| format!("starting {server:?}"))?);
    let end = Instant::now() + PATIENCE;
    while !listens(port) {
        if server.0.try_wait()?.is_some() || Instant::now() >= end {
            bail!("the waiting side does not listen at port {port}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let begun = client.stdout(Stdio::piped()).spawn();
    let running = Ending(begun.with_context(|| format!("starting {client:?}"))?);
    printed(running, end, |child| child.stdout.take()).with_context(|| format!("waiting for {client:?}"))
}

/// What a program has printed when it has ended: a few lines, which a pipe holds.
fn printed<P: Read>(
    mut running: Ending,
    end: Instant,
    pipe: impl FnOnce(&mut Child) -> Option<P>,
) -> Result<String> {
    while running.0.try_wait()?.is_none() {
        if Instant::now() >= end {
            bail!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut said = String::new();
    if let Some(mut pipe) = pipe(&mut running.0) {
        pipe.read_to_string(&mut said)?;
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                  8       10k     =10k     156k        0.08s      1.97       4.07       0.25\n";
        assert_eq!(one_way(fi), Some(4.07));
        assert_eq!(one_way("fi_getinfo: -61\n"), None);
    }

    #[test]
    fn a_command_can_be_typed() {
        let rxm = PingPong {
            env: &[("FI_NETVM_SHM", "0")],
            ..PingPong::of("tcp;ofi_rxm")
        };
        assert_eq!(
            rxm.command(),
            "FI_NETVM_SHM=0 fi_pingpong -p 'tcp;ofi_rxm' -e rdm -S 8 -I 20000 localhost"
        );
    }
}
