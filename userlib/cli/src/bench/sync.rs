//! `netvm bench sync`: synchronization and channels.

use std::fmt::Write as _;
use std::time::Instant;

use netvm_bench_sync::suite::{self, Measured, Sizes};
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
    #[serde(flatten)]
    measured: Measured,
    /// Time of this machine.
    seconds: f64,
}

pub(super) fn run(options: &BenchSync) -> Result<(), Failure> {
    let model = CostModel::committed().map_err(Failure::Wrong)?;
    let began = Instant::now();
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::USUAL };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = suite::measure(&model, &sizes, threads, &output::tell)
        .map_err(|trouble| Failure::Wrong(trouble.to_string()))?;
    let wrong = measured.wrong();
    let report = Report {
        ok: wrong.is_empty(),
        wrong,
        quick: options.quick,
        model: model.parameters().to_vec(),
        measured,
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
        for one in &self.measured.operations {
            let _ = writeln!(
                text,
                "{:<56} {:>5} {:>7} {:>12} {:>8} {:>6.2}",
                one.name, one.round_trips, one.one_way, one.instructions, one.nanos, one.reads
            );
        }
        let crowd = &self.measured.crowd;
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
        let _ = writeln!(
            text,
            "\n{:<32} {:>8} {:>10} {:>20} {:>10}",
            "fetch-and-add on hot words", "Mops/s", "ns", "operand not fetched", "ns"
        );
        for hot in &self.measured.hot {
            let who = format!("  {} clients, {} words", hot.clients, hot.words);
            let _ = writeln!(
                text,
                "{who:<32} {:>8.3} {:>10.0} {:>20.3} {:>10.0}",
                hot.mops, hot.nanos, hot.cached_mops, hot.cached_nanos
            );
        }
        let _ = writeln!(
            text,
            "\n{:<42} {:>7} {:>12} {:>13} {:>9}",
            "full shared queues", "Jain's", "least share", "longest wait", "refusals"
        );
        for one in &self.measured.pressure {
            let at = one.setting;
            let who = format!(
                "  {} senders, room for {}, {} us each",
                at.senders,
                at.capacity,
                at.service_nanos / 1_000
            );
            let _ = writeln!(
                text,
                "{who:<42} {:>7.3} {:>12.2} {:>6.1} rounds {:>9.1}",
                one.jain,
                one.fewest,
                one.longest_rounds(),
                one.refusals
            );
        }
        let _ = writeln!(
            text,
            "\n{:<16} {:>10} {:>10} {:>8} {:>12} {:>10} {:>8}",
            "messages", "channel ns", "1000/s", "MB/s", "write ns", "1000/s", "MB/s"
        );
        for stream in &self.measured.streams {
            let _ = writeln!(
                text,
                "  {:<14} {:>10} {:>10.0} {:>8.0} {:>12} {:>10.0} {:>8.0}",
                format!("{} B", stream.bytes),
                stream.channel_nanos,
                stream.channel_kilo,
                stream.channel_megabytes,
                stream.write_nanos,
                stream.write_kilo,
                stream.write_megabytes
            );
        }
        let _ = writeln!(
            text,
            "\n{:<8} {:>6} {:>6} {:>10} {:>10}",
            "lock", "nodes", "locks", "local", "Mops/s"
        );
        for point in &self.measured.locality {
            let at = point.setting;
            let _ = writeln!(
                text,
                "{:<8} {:>6} {:>6} {:>8} % {:>10.3}",
                at.kind.label(),
                at.nodes,
                at.locks,
                at.local_percent,
                point.mops
            );
        }
        let _ = writeln!(text, "\ntime {:.1} s", self.seconds);
        if self.ok {
            let _ = writeln!(text, "bench sync: ok");
        }
        text
    }
}
