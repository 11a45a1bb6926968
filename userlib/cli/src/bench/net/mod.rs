//! `netvm bench net`: connections between two processes of this machine, and TCP over loopback beside them.
//!
//! This process starts the other one, which serves ([`server`]), and measures ([`client`]). Time is the machine's own.

mod client;
mod server;

use std::fmt::Write as _;
use std::time::Duration;

use netvm::PortId;
use netvm_process::SoftNode;
use serde::{Deserialize, Serialize};

use super::second;
use crate::args::BenchNet;
use crate::failure::Failure;
use crate::output;

/// The server's port and listener.
const PORT: PortId = PortId(7);
const SERVICE: u16 = 80;
/// How long anything may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a small message.
const SMALL: usize = 64;

/// What a client asks of the server, as the first byte of a connection.
#[derive(Clone, Copy)]
enum Wish {
    /// Answer each small message by itself.
    Echo = b'e' as isize,
    /// Take so many bytes (8 bytes say how many), then answer by one.
    Sink = b's' as isize,
    /// Accept so many connections (4 bytes), answer by the memory of each (8 bytes); take so many bytes of all of them (8 bytes),
    /// and answer by one.
    Many = b'm' as isize,
}

/// What the server says on its standard output.
#[derive(Serialize, Deserialize)]
struct Ready {
    node: u16,
    tcp: u16,
}

/// Sizes of a run.
struct Sizes {
    /// Round trips of each repetition.
    trips: u32,
    /// Repetitions, of which the median counts.
    repeats: usize,
    connections: u32,
    /// Small messages of each measurement of throughput.
    messages: u32,
    /// Bytes of each measurement of bandwidth.
    bytes: u64,
}

const WHOLE: Sizes = Sizes {
    trips: 20_000,
    repeats: 7,
    connections: 10_000,
    messages: 1_000_000,
    bytes: 512 << 20,
};
const QUICK: Sizes = Sizes {
    trips: 1000,
    repeats: 3,
    connections: 500,
    messages: 50_000,
    bytes: 16 << 20,
};

/// Which way large writes took, and how fast they were.
#[derive(Debug, Serialize)]
struct Bandwidth {
    way: &'static str,
    megabytes_per_second: f64,
    /// Pieces that went by a write, and by a read.
    writes: u64,
    reads: u64,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether all goals are reached.
    ok: bool,
    /// Those that are not.
    missed: Vec<String>,
    quick: bool,
    /// Round trips of 64 bytes, in microseconds: medians of the repetitions.
    round_trip_us: f64,
    tcp_round_trip_us: f64,
    /// The median of the ratios of each repetition.
    latency_ratio: f64,
    connections: u32,
    /// Messages of 64 bytes a second over one connection, and over all in turn.
    one_per_second: f64,
    many_per_second: f64,
    throughput_ratio: f64,
    /// Memory of an idle connection in the process that connects, and in the one that accepts, its handle included.
    idle_bytes_client: f64,
    idle_bytes_server: f64,
    /// Writes of 1 MiB over one connection.
    bandwidth: Vec<Bandwidth>,
}

pub(super) fn run(options: &BenchNet) -> Result<(), Failure> {
    if let Some(client) = options.server_for {
        return server::run(client, options.quick);
    }
    let sizes = if options.quick { &QUICK } else { &WHOLE };
    let measure = |node: &SoftNode, ready: &Ready| client::measure(node, ready, sizes);
    let mut report = second::measured("net", options.quick, measure)?;
    report.quick = options.quick;
    report.judge();
    if options.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.table())?;
    }
    second::judged(&report.missed, options.quick)
}

impl Report {
    /// Compares with the goals.
    fn judge(&mut self) {
        let idle = self.idle_bytes_client.max(self.idle_bytes_server);
        let goals = [
            (
                self.latency_ratio <= 0.5,
                format!("latency is {:.2} x TCP's, 0.5 is wanted", self.latency_ratio),
            ),
            (
                self.throughput_ratio >= 0.9,
                format!(
                    "{} connections carry {:.2} x one, 0.9 is wanted",
                    self.connections, self.throughput_ratio
                ),
            ),
            (
                idle <= 256.0,
                format!("an idle connection has {idle:.0} bytes, 256 are wanted"),
            ),
        ];
        self.missed = goals
            .into_iter()
            .filter(|(met, _)| !met)
            .map(|(_, text)| text)
            .collect();
        self.ok = self.missed.is_empty();
    }

    /// As a person reads it.
    fn table(&self) -> String {
        let mut text = String::new();
        let million = |rate: f64| rate / 1e6;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "64 B there and back        {:>8.2} us, TCP over loopback {:.2} us: {:.2} x (wanted <= 0.5)",
            self.round_trip_us, self.tcp_round_trip_us, self.latency_ratio
        );
        let _ = writeln!(
            text,
            "64 B over one connection   {:>8.2} million a second",
            million(self.one_per_second)
        );
        let _ = writeln!(
            text,
            "... over {} in turn     {:>8.2} million a second: {:.2} x (wanted >= 0.9)",
            self.connections,
            million(self.many_per_second),
            self.throughput_ratio
        );
        let _ = writeln!(
            text,
            "an idle connection         {:>8.0} bytes here, {:.0} in the other process (wanted <= 256)",
            self.idle_bytes_client, self.idle_bytes_server
        );
        for row in &self.bandwidth {
            let _ = writeln!(
                text,
                "writes of 1 MiB, {:<9} {:>8.0} MB/s, {} pieces by a write, {} by a read",
                row.way, row.megabytes_per_second, row.writes, row.reads
            );
        }
        text
    }
}
