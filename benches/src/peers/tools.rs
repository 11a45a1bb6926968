//! The programs of UCX, libfabric and Open MPI: each started twice, on two processors, and what one of them prints.

use anyhow::{Context as _, Result, bail};
use std::io::Read;
use std::net::TcpListener;
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

/// A measurement of UCX's: its transports, and the arguments of `ucx_perftest`.
#[derive(Clone, Copy, Debug)]
pub struct Ucx {
    /// `UCX_TLS`.
    pub transports: &'static str,
    /// What the side that begins is told.
    pub args: &'static str,
}

impl Ucx {
    /// The command that a person types, beside a `ucx_perftest` that waits.
    #[must_use]
    pub fn command(&self) -> String {
        format!(
            "UCX_TLS={} ucx_perftest localhost {} -f -v",
            self.transports, self.args
        )
    }

    /// Microseconds of one operation.
    ///
    /// # Errors
    /// The program fails, or prints something else.
    pub fn run(&self, processors: Processors) -> Result<f64> {
        let port = free_port()?.to_string();
        let mut server = processors.on(0, "ucx_perftest");
        server.args(["-p", &port]).env("UCX_TLS", self.transports);
        let mut client = processors.on(1, "ucx_perftest");
        client
            .args(["localhost", "-p", &port, "-f", "-v"])
            .args(self.args.split(' '))
            .env("UCX_TLS", self.transports);
        let out = both(server, client, &port)?;
        latency(&out).with_context(|| format!("{} printed:\n{out}", self.command()))
    }
}

/// The overall time of one operation, out of `ucx_perftest -f -v`.
fn latency(out: &str) -> Option<f64> {
    let mut lines = out.lines().skip_while(|line| !line.starts_with("iterations,"));
    let at = lines.next()?.split(',').position(|name| name == "overall_lat")?;
    lines.next()?.split(',').nth(at)?.trim().parse().ok()
}

/// `fi_pingpong` of 8 bytes over a provider: microseconds one way.
///
/// # Errors
/// The program fails, or prints something else.
pub fn fi_pingpong(provider: &str, processors: Processors) -> Result<f64> {
    let port = free_port()?.to_string();
    let both_args = ["-p", provider, "-e", "rdm", "-S", "8", "-I", "20000"];
    let mut server = processors.on(0, "fi_pingpong");
    server.args(both_args).args(["-B", &port]);
    let mut client = processors.on(1, "fi_pingpong");
    client.args(both_args).args(["-P", &port, "localhost"]);
    let out = both(server, client, &port)?;
    one_way(&out).with_context(|| format!("fi_pingpong -p {provider} printed:\n{out}"))
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

/// What [`open_mpi`] starts, after `mpirun -np 2`: UCX over TCP is not among the transports that Open MPI asks UCX for by itself.
pub const NETPIPE: &str = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self \
    NPopenmpi -s -l 1048576 -u 1048576 -p 0 -n 1000 -o /dev/null";

/// Messages of 1 MiB, one behind the other, between two processes of Open MPI over UCX and TCP: microseconds of one.
///
/// # Errors
/// The program fails, or prints something else.
pub fn open_mpi(processors: Processors) -> Result<f64> {
    let mut command = Command::new("mpirun");
    let bound = if processors.pinned { "core" } else { "none" };
    // It does not run as root unless it is told twice.
    command
        .args(["-np", "2", "--bind-to", bound])
        .args(NETPIPE.split_whitespace())
        .envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let running = Ending(command.spawn().context("starting mpirun")?);
    let said = printed(running, Instant::now() + PATIENCE, |child| child.stderr.take())?;
    netpipe(&said).with_context(|| format!("mpirun -np 2 {NETPIPE} printed:\n{said}"))
}

/// The time of the last line.
fn netpipe(said: &str) -> Option<f64> {
    said.trim_end()
        .rsplit_once(" Mbps in ")?
        .1
        .strip_suffix("usec")?
        .trim()
        .parse()
        .ok()
}

/// A port that no program has; another one may take it first, and then the measurement fails and says so.
fn free_port() -> Result<u16> {
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
fn both(mut server: Command, mut client: Command, port: &str) -> Result<String> {
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
    fn what_the_programs_print_is_read() {
        let ucx = "\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw\n50000,0.087,0.089,0.091,85.7,85.8\n";
        assert_eq!(latency(ucx), Some(0.091));
        assert_eq!(latency("no route to host\n"), None);
        let fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                  8       10k     =10k     156k        0.08s      1.97       4.07       0.25\n";
        assert_eq!(one_way(fi), Some(4.07));
        assert_eq!(one_way("fi_getinfo: -61\n"), None);
        let pipe = "Now starting the main loop\n  0: 1048576 bytes   1000 times -->   9875.70 Mbps in     810.07 usec\n";
        assert_eq!(netpipe(pipe), Some(810.07));
        assert_eq!(netpipe("PML ucx cannot be selected\n"), None);
    }
}
