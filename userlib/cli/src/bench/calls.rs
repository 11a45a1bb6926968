//! `netvm bench calls`: remote calls between two processes.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Instant;

use netvm_bench_calls::{Measured, Sizes, measure, serve};
use serde::Serialize;

use crate::args::BenchCalls;
use crate::failure::Failure;
use crate::output;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether each call ran once. Times are this machine's, and decide nothing.
    ok: bool,
    /// Whether the small sizes were measured.
    quick: bool,
    #[serde(flatten)]
    measured: Measured,
    /// Time of this machine.
    seconds: f64,
}

pub(super) fn run(options: &BenchCalls) -> Result<(), Failure> {
    if let Some(name) = &options.callee {
        return serve(name).map_err(Failure::Wrong);
    }
    let began = Instant::now();
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::WHOLE };
    let program = std::env::current_exe()
        .map_err(|error| Failure::Wrong(format!("cannot find the running program: {error}")))?;
    let name = format!("bench-calls-{}", std::process::id());
    let mut other = Command::new(program);
    other.args(["bench", "calls", "--callee", &name]);
    let report = Report {
        ok: true,
        quick: options.quick,
        measured: measure(&sizes, &name, &mut other).map_err(Failure::Wrong)?,
        seconds: began.elapsed().as_secs_f64(),
    };
    if options.json {
        output::print_json(&report)
    } else {
        output::print(&report.table())
    }
}

impl Report {
    /// As a person reads it.
    fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8} {:>8}",
            "MB/s", "send", "write", "packed", "overflow", "raw", "raw, 4 KiB", "million/s", "gain", "of raw"
        );
        for row in &self.measured.rows {
            let _ = writeln!(
                text,
                "{:<10} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>10.0} {:>10.2} {:>8.1} {:>8.2}",
                format!("{} B", row.bytes),
                row.send,
                row.write,
                row.packed,
                row.overflow,
                row.raw,
                row.raw_page,
                row.million_calls,
                row.gain,
                row.of_raw_page
            );
        }
        let _ = writeln!(
            text,
            "\na call and its result: {:.1} us\n\n{:<60} {:>9} {:>9}",
            self.measured.round_trip_nanos / 1e3,
            "goal",
            "wanted",
            "measured"
        );
        for goal in &self.measured.goals {
            let end = if goal.is_reached() { "yes" } else { "no" };
            let _ = writeln!(
                text,
                "  {:<58} >= {:>6.2} {:>9.2} {end}",
                goal.what, goal.wanted, goal.measured
            );
        }
        let _ = writeln!(text, "\ntime {:.1} s\nbench calls: ok", self.seconds);
        text
    }
}
