//! `netvm bench wire`: a wire that loses frames.

use std::fmt::Write as _;
use std::time::Instant;

use netvm_bench_wire::suite::{self, Measured, Sizes};
use netvm_bench_wire::verdict::AGAIN;
use netvm_world::timing::CostModel;
use serde::Serialize;

use crate::args::BenchWire;
use crate::failure::Failure;
use crate::output;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether all goals are reached that must be.
    ok: bool,
    /// Those that are not.
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

pub(super) fn run(options: &BenchWire) -> Result<(), Failure> {
    let model = CostModel::committed().map_err(Failure::Wrong)?;
    let began = Instant::now();
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::WHOLE };
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
        let mut text = String::from("cost model (links are longer, see round trips)\n");
        // Writing to a string cannot fail.
        for (name, value, unit) in &self.model {
            let _ = writeln!(text, "  {name:<16} {value:>8} {unit}");
        }
        let _ = writeln!(
            text,
            "\n{:<24} {:>6} {:>9} {:>9} {:>7} {:>7} {:>8} {:>6} {:>6} {:>8} {:>8} {:>6}",
            "writes, round trip",
            "lost",
            "MB/s",
            "of whole",
            "again",
            "bound",
            "in vain",
            "asked",
            "stalls",
            "credits",
            "staging",
            "links"
        );
        for stream in &self.measured.streams {
            let (at, counted, loss) = (stream.setting, stream.counted, stream.loss());
            let who = format!("  {} B, {} us", at.bytes, at.round_trip / 1_000);
            let _ = writeln!(
                text,
                "{who:<24} {:>4} % {:>9.1} {:>7.1} % {:>5.2} % {:>5.2} % {:>8} {:>6} {:>6} {:>8} {:>8} {:>6}",
                loss * 100.0,
                stream.megabytes,
                stream.share * 100.0,
                stream.again_share * 100.0,
                AGAIN * loss / (1.0 - loss) * 100.0,
                counted.in_vain,
                counted.tail_probes,
                counted.stalls,
                counted.credit_stalls,
                counted.staging_stalls,
                counted.links_lost
            );
        }
        let _ = writeln!(
            text,
            "\n{:<50} {:>10} {:>9} {:>7} {:>7} {:>6}",
            "one frame is lost; in round trips", "trip, ns", "lossless", "median", "worst", "again"
        );
        for one in &self.measured.completions {
            let _ = writeln!(
                text,
                "  {:<48} {:>10} {:>9.2} {:>7.2} {:>7.2} {:>6.2}",
                one.setting.case.label(),
                one.round_trip_nanos,
                one.lossless,
                one.median,
                one.worst,
                one.again as f64 / f64::from(one.setting.worlds)
            );
        }
        self.show_incasts(&mut text);
        let _ = writeln!(text, "\n{:<72} {:>9} {:>9}", "goal", "wanted", "measured");
        for goal in &self.measured.goals {
            let sign = if goal.at_least { ">=" } else { "<=" };
            let end = match (goal.reached, goal.must) {
                (true, _) => "yes",
                (false, true) => "NO",
                (false, false) => "NO (known)",
            };
            let _ = writeln!(
                text,
                "  {:<70} {sign} {:>6.3} {:>9.3} {end}",
                goal.what, goal.wanted, goal.measured
            );
        }
        let _ = writeln!(text, "\ntime {:.1} s", self.seconds);
        if self.ok {
            let _ = writeln!(text, "bench wire: ok");
        }
        text
    }

    /// Many to one.
    fn show_incasts(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:<50} {:>9} {:>7} {:>6} {:>7} {:>9} {:>7} {:>7}",
            "many to one, small writes beside",
            "MB/s",
            "share",
            "Jain",
            "again",
            "alone, us",
            "median",
            "99 %"
        );
        for one in &self.measured.incasts {
            let at = one.setting;
            let what = format!(
                "{} senders, {} us, switch {} KiB",
                at.senders,
                at.round_trip / 1_000,
                at.switch >> 10
            );
            let _ = writeln!(
                text,
                "  {what:<48} {:>9.1} {:>5.1} % {:>6.3} {:>5.2} % {:>9.1} {:>7.1} {:>7.1}",
                one.megabytes,
                one.share * 100.0,
                one.jain,
                one.again_share * 100.0,
                one.small_alone as f64 / 1e3,
                one.small_median as f64 / one.small_alone.max(1) as f64,
                one.slowness()
            );
        }
    }
}
