//! The programs of UCX and Open MPI.

use anyhow::{Context as _, Result};
use std::process::Stdio;

use crate::beside::programs::{Processors, both, free_port, mpirun, said};

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

/// What [`open_mpi`] starts, after `mpirun -np 2`: UCX over TCP is not among the transports that Open MPI asks UCX for by itself.
pub const NETPIPE: &str = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self \
    NPopenmpi -s -l 1048576 -u 1048576 -p 0 -n 1000 -o /dev/null";

/// Messages of 1 MiB, one behind the other, between two processes of Open MPI over UCX and TCP: microseconds of one.
///
/// # Errors
/// The program fails, or prints something else.
pub fn open_mpi(processors: Processors) -> Result<f64> {
    let mut command = mpirun(processors);
    command
        .args(NETPIPE.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let said = said(command, |child| child.stderr.take())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_read() {
        let ucx = "\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw\n50000,0.087,0.089,0.091,85.7,85.8\n";
        assert_eq!(latency(ucx), Some(0.091));
        assert_eq!(latency("no route to host\n"), None);
        let pipe = "Now starting the main loop\n  0: 1048576 bytes   1000 times -->   9875.70 Mbps in     810.07 usec\n";
        assert_eq!(netpipe(pipe), Some(810.07));
        assert_eq!(netpipe("PML ucx cannot be selected\n"), None);
    }
}
