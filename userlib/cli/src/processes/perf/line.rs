//! What is printed of a measurement.

use std::time::Duration;

use serde::Serialize;

use super::landed::Landed;
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
    #[serde(flatten)]
    landed: Landed,
}

impl Speed {
    fn new(size: u32, (count, time): (u64, Duration), microseconds: Spread) -> Self {
        let seconds = time.as_secs_f64().max(1e-9);
        Self {
            per_second: (count as f64 / seconds).round(),
            megabytes_per_second: (count as f64 * f64::from(size) / seconds / 1e5).round() / 10.0,
            microseconds,
            landed: Landed::default(),
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

    /// The same, with where its messages landed: those of this process, and the server's.
    pub(super) fn landed(mut self, (there, here): (Landed, Landed)) -> Self {
        self.speed.landed = there;
        if let Some(back) = &mut self.back {
            back.landed = here;
        }
        self
    }
}

fn row(name: &str, size: u32, speed: &Speed) -> String {
    format!(
        "{name:<8} {size:>9} {:>13} {:>11.1} {:>12.2} {:>10.2} {:>10}\n",
        output::grouped(speed.per_second as u64),
        speed.megabytes_per_second,
        speed.microseconds.median,
        speed.microseconds.p99,
        speed.landed.share()
    )
}

/// A table for a person.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text =
        String::from("             bytes    per second        MB/s    median us        p99   in place\n");
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
    text + "in place: messages of the cards, of up to a page each, that found their page in memory; the others were bounced\n"
}
