//! What is printed of a measurement.

use std::time::Duration;

use serde::Serialize;

use crate::output;
use crate::processes::spread::Spread;

/// One line of the result.
#[derive(Serialize)]
pub(super) struct Line {
    operation: &'static str,
    /// Bytes of each; 0 where it has none.
    size: u32,
    #[serde(flatten)]
    speed: Speed,
    /// What the times are of.
    timed: &'static str,
    /// What the server did meanwhile, to memory of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    back: Option<Speed>,
}

/// How fast it was, in one direction.
#[derive(Clone, Copy, Serialize)]
struct Speed {
    /// With many on their way.
    per_second: f64,
    /// Of payload, in 10^6 bytes.
    megabytes_per_second: f64,
    /// One at a time.
    microseconds: Spread,
}

impl Speed {
    fn new(size: u32, (count, time): (u64, Duration), microseconds: Spread) -> Self {
        let seconds = time.as_secs_f64().max(1e-9);
        Self {
            per_second: (count as f64 / seconds).round(),
            megabytes_per_second: (count as f64 * f64::from(size) / seconds / 1e5).round() / 10.0,
            microseconds,
        }
    }
}

impl Line {
    /// Of so many operations in a time, and of single ones.
    pub(super) fn new(operation: &'static str, size: u32, rate: (u64, Duration), singles: Spread) -> Self {
        Self {
            operation,
            size,
            speed: Speed::new(size, rate, singles),
            timed: match operation {
                "channel" => "half of a round trip",
                "read" | "atomic" => "until its answer has come",
                _ => "until it is known to have landed",
            },
            back: None,
        }
    }

    /// The same, and what the server did.
    pub(super) fn and_back(self, rate: (u64, Duration), singles: Spread) -> Self {
        Self {
            back: Some(Speed::new(self.size, rate, singles)),
            ..self
        }
    }
}

fn row(name: &str, size: u32, speed: &Speed) -> String {
    format!(
        "{name:<8} {size:>9} {:>15} {:>11.1} {:>13.2} {:>10.2}\n",
        output::grouped(speed.per_second as u64),
        speed.megabytes_per_second,
        speed.microseconds.median,
        speed.microseconds.p99
    )
}

/// A table for a person.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text = String::from("             bytes      per second        MB/s     median us        p99\n");
    for line in lines {
        text += &row(line.operation, line.size, &line.speed);
        if let Some(back) = &line.back {
            text += &row("  back", line.size, back);
        }
    }
    if lines.iter().any(|line| line.operation == "channel") {
        text +=
            "channel: times are half of a round trip; the rate is of messages that the server has taken\n";
    }
    if lines.iter().any(|line| line.back.is_some()) {
        text += "back: what the server did at the same time, to memory of this process\n";
    }
    text
}
