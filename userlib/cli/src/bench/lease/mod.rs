//! `netvm bench lease`: what leases cost between two processes of this machine.
//!
//! This process starts the other one, which lends ([`server`]), and measures ([`client`]). Time is the machine's own, so what counts are the
//! ratios of what was measured side by side.

mod client;
mod server;

use std::fmt::Write as _;
use std::time::Duration;

use netvm::PortId;
use netvm_process::SoftNode;
use serde::{Deserialize, Serialize};

use super::second;
use crate::args::BenchLease;
use crate::failure::Failure;
use crate::output;

/// The manager's port, its name, and that of the same memory without leases.
const PORT: PortId = PortId(7);
const NAME: &str = "lender";
const PLAIN: &str = "plain";
/// The part that is lent.
const KEY: u64 = 3;
const PART: u64 = 64 << 10;
const POOL: u64 = 1 << 20;
/// How long anything may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any measurement.
const LONG: Duration = Duration::from_secs(3600);

/// The lease of the port that goes on after its end.
const SHORT: Duration = Duration::from_millis(5);
/// Writes of an honest port for each access of another one beside it.
const STRIDE: u32 = 50;

/// What the server says on its standard output.
#[derive(Serialize, Deserialize)]
struct Ready {
    node: u16,
}

/// Sizes of a run.
struct Sizes {
    /// Repetitions, of whose ratios the median counts.
    repeats: usize,
    /// Extensions, and reads beside them, of a repetition.
    trips: u32,
    /// Reads or writes of a repetition.
    operations: u32,
    /// Grants of a repetition: each has an entry of the card's table.
    grants: u32,
}

const WHOLE: Sizes = Sizes {
    repeats: 31,
    trips: 4000,
    operations: 100_000,
    grants: 200,
};
const QUICK: Sizes = Sizes {
    repeats: 3,
    trips: 500,
    operations: 10_000,
    grants: 100,
};

/// Two ways that were measured side by side.
#[derive(Debug, Serialize)]
struct Pair {
    /// Operations a second with what is measured, and with what it is compared with: medians.
    rate: f64,
    beside: f64,
    /// The median of the ratios of each repetition.
    ratio: f64,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether all goals are reached.
    ok: bool,
    /// Those that are not.
    missed: Vec<String>,
    quick: bool,
    /// Extensions, one after the other, beside reads of 8 bytes.
    extensions: Pair,
    /// Writes and reads of 8 bytes under a lease, beside the same through an import.
    writes: Pair,
    reads: Pair,
    /// Writes of 8 bytes of one port while another one of the same card writes under a lease that is over, beside the same while that port
    /// may write.
    honest: Pair,
    /// Failures that the other port was told of.
    refused: u64,
    /// Grants, one after the other, beside requests that do nothing.
    grants: Pair,
    /// A grant and its relinquishment, beside two requests that do nothing.
    turns: Pair,
}

pub(super) fn run(options: &BenchLease) -> Result<(), Failure> {
    if let Some(client) = options.server_for {
        return server::run(client);
    }
    let sizes = if options.quick { &QUICK } else { &WHOLE };
    let measure = |node: &SoftNode, ready: &Ready| client::measure(node, ready, sizes);
    let mut report = second::measured("lease", options.quick, measure)?;
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
        let goals = [
            (&self.writes, 0.99, "8 B writes under a lease"),
            (&self.reads, 0.99, "8 B reads under a lease"),
            (&self.honest, 0.99, "8 B writes beside illegal accesses"),
            (&self.grants, 0.9, "grants"),
        ];
        let missed = goals.into_iter().filter(|(pair, least, _)| pair.ratio < *least);
        self.missed = missed
            .map(|(pair, least, what)| {
                format!(
                    "{what} are {:.3} x what is beside them, {least} is wanted",
                    pair.ratio
                )
            })
            .collect();
        if self.refused == 0 {
            self.missed.push("no illegal access was refused".to_owned());
        }
        self.ok = self.missed.is_empty();
    }

    /// As a person reads it.
    fn table(&self) -> String {
        let mut text = String::new();
        let rows = [
            (
                "extensions",
                &self.extensions,
                "reads of 8 B, one by one",
                "1 round trip each",
            ),
            (
                "8 B writes under a lease",
                &self.writes,
                "without",
                "wanted >= 0.99",
            ),
            (
                "8 B reads under a lease",
                &self.reads,
                "without",
                "wanted >= 0.99",
            ),
            (
                "8 B writes, others illegal",
                &self.honest,
                "others legal",
                "wanted >= 0.99",
            ),
            (
                "grants",
                &self.grants,
                "requests that do nothing",
                "wanted >= 0.9",
            ),
            (
                "grants that are given back",
                &self.turns,
                "two such requests",
                "no goal",
            ),
        ];
        for (what, pair, beside, wanted) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{what:<27} {:>10.0}/s, {beside:<25} {:>10.0}/s: {:.3} x ({wanted})",
                pair.rate, pair.beside, pair.ratio
            );
        }
        text
    }
}
