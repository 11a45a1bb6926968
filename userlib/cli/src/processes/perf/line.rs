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
    /// With many on their way.
    per_second: f64,
    /// Of payload, in 10^6 bytes.
    megabytes_per_second: f64,
    /// What the times are of.
    timed: &'static str,
    /// One at a time.
    microseconds: Spread,
}

impl Line {
    /// Of so many operations in a time, and of single ones.
    pub(super) fn new(
        operation: &'static str,
        size: u32,
        (count, time): (u64, Duration),
        microseconds: Spread,
    ) -> Self {
        let seconds = time.as_secs_f64().max(1e-9);
        Self {
            operation,
            size,
            per_second: (count as f64 / seconds).round(),
            megabytes_per_second: (count as f64 * f64::from(size) / seconds / 1e5).round() / 10.0,
            timed: match operation {
                "channel" => "half of a round trip",
                "read" | "atomic" => "until its answer has come",
                _ => "until it is known to have landed",
            },
            microseconds,
        }
    }
}

/// A table for a person.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text = String::from("             bytes      per second        MB/s     median us        p99\n");
    for line in lines {
        text += &format!(
            "{:<8} {:>9} {:>15} {:>11.1} {:>13.2} {:>10.2}\n",
            line.operation,
            line.size,
            output::grouped(line.per_second as u64),
            line.megabytes_per_second,
            line.microseconds.median,
            line.microseconds.p99
        );
    }
    if lines.iter().any(|line| line.operation == "channel") {
        text +=
            "channel: times are half of a round trip; the rate is of messages that the server has taken\n";
    }
    text
}
