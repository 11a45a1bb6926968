//! `netvm bench sync`: synchronization and channels.

use std::fmt::Write as _;
use std::time::Instant;

use netvm::Nanos;
use netvm_world::bench::crowd::{self, Crowd};
use netvm_world::bench::operations::{self, Operation};
use netvm_world::bench::{Trouble, verdict};
use netvm_world::timing::CostModel;
use serde::Serialize;

use crate::args::BenchSync;
use crate::failure::Failure;
use crate::output;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether everything holds that has to.
    ok: bool,
    /// What does not.
    wrong: Vec<String>,
    /// Whether the small sizes were measured.
    quick: bool,
    /// The cost model: name, value, unit.
    model: Vec<(&'static str, u64, &'static str)>,
    operations: Vec<Operation>,
    crowd: Crowd,
    /// Time of this machine.
    seconds: f64,
}

fn failed(trouble: Trouble) -> Failure {
    Failure::Wrong(trouble.to_string())
}

pub(super) fn run(options: &BenchSync) -> Result<(), Failure> {
    let model = CostModel::committed().map_err(Failure::Wrong)?;
    let began = Instant::now();
    output::tell("operations ...");
    let operations = operations::measure(&model).map_err(failed)?;
    let (clients, nodes, millis) = if options.quick { (48, 8, 8) } else { (240, 20, 30) };
    output::tell(&format!("{clients} clients on one lock ..."));
    let crowd = crowd::measure(&model, clients, nodes, Nanos::from_millis(millis)).map_err(failed)?;
    let mut wrong = verdict::of_operations(&operations);
    wrong.extend(verdict::of_crowd(&crowd));
    let report = Report {
        ok: wrong.is_empty(),
        wrong,
        quick: options.quick,
        model: model.parameters().to_vec(),
        operations,
        crowd,
        seconds: began.elapsed().as_secs_f64(),
    };
    if options.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.table())?;
    }
    if report.ok {
        return Ok(());
    }
    Err(Failure::Wrong(format!(
        "what was measured is not as it has to be:\n  {}",
        report.wrong.join("\n  ")
    )))
}

impl Report {
    /// As a person reads it.
    fn table(&self) -> String {
        let mut text = String::from("cost model\n");
        // Writing to a string cannot fail.
        for (name, value, unit) in &self.model {
            let _ = writeln!(text, "  {name:<16} {value:>8} {unit}");
        }
        let _ = writeln!(
            text,
            "\n{:<56} {:>5} {:>7} {:>12} {:>8} {:>6}",
            "operation", "trips", "one-way", "instructions", "ns", "reads"
        );
        for one in &self.operations {
            let _ = writeln!(
                text,
                "{:<56} {:>5} {:>7} {:>12} {:>8} {:>6.2}",
                one.name, one.round_trips, one.one_way, one.instructions, one.nanos, one.reads
            );
        }
        let crowd = &self.crowd;
        let _ = writeln!(
            text,
            "\n{} clients on {} nodes, one lock, {} us watched\n  \
             acquisitions     {} ({} to {} each)\n  \
             Jain's index     {:.4}\n  \
             hand-over        {} ns\n  \
             goodput          {:.3} of what hand-overs allow\n  \
             repeated         {}",
            crowd.clients,
            crowd.nodes,
            crowd.nanos / 1_000,
            crowd.acquisitions,
            crowd.fewest,
            crowd.most,
            crowd.jain,
            crowd.hand_over_nanos,
            crowd.goodput,
            crowd.retried()
        );
        let _ = writeln!(text, "\ntime {:.1} s", self.seconds);
        if self.ok {
            let _ = writeln!(text, "bench sync: ok");
        }
        text
    }
}
