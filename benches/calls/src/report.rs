//! What was measured, and what had to be.

use serde::Serialize;

/// All ways to send so many bytes, in MB of arguments a second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Row {
    /// Bytes of an argument.
    pub bytes: u64,
    /// By a channel's messages: what receives runs no function.
    pub send: f64,
    /// Calls that each leave by a write of their own.
    pub write: f64,
    /// Calls that are packed.
    pub packed: f64,
    /// Calls in overflow: alone while there is room.
    pub overflow: f64,
    /// Plain writes of as many bytes, without a function.
    pub raw: f64,
    /// Plain writes of 4 KiB, measured in the same turns.
    pub raw_page: f64,
    /// Million packed calls a second.
    pub million_calls: f64,
    /// Median of the turns' ratios: packed by one write for each call.
    pub gain: f64,
    /// Median of the turns' ratios: packed by plain writes of 4 KiB.
    pub of_raw_page: f64,
    /// Median of the turns' ratios: in overflow by plain writes of as many bytes.
    pub overflow_of_raw: f64,
    /// Packed calls for each batch that left.
    pub calls_per_write: f64,
}

/// Something that is wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What.
    pub what: String,
    /// At least so much.
    pub wanted: f64,
    /// So much it is.
    pub measured: f64,
}

impl Goal {
    /// Whether it is reached.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.measured >= self.wanted
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// By size.
    pub rows: Vec<Row>,
    /// A call and its result, there and back, in nanoseconds: the median.
    pub round_trip_nanos: f64,
    /// What is wanted.
    pub goals: Vec<Goal>,
}

impl Measured {
    pub(crate) fn new(rows: Vec<Row>, round_trip_nanos: f64) -> Self {
        let mut goals = Vec::new();
        for row in &rows {
            if row.bytes == 8 {
                goals.push(Goal {
                    what: "million packed calls of 8 B a second".into(),
                    wanted: 20.0,
                    measured: row.million_calls,
                });
            }
            if row.bytes >= 256 {
                goals.push(Goal {
                    what: format!("packed calls of {} B by plain writes of 4 KiB", row.bytes),
                    wanted: 0.95,
                    measured: row.of_raw_page,
                });
            }
        }
        Self {
            rows,
            round_trip_nanos,
            goals,
        }
    }
}

/// The median of some values: the middle one, or the lower of two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 1.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn what_is_wanted_is_asked_of_the_right_sizes() {
        let row = |bytes| Row {
            bytes,
            million_calls: 21.0,
            of_raw_page: 0.9,
            ..Row::default()
        };
        let measured = Measured::new(vec![row(8), row(64), row(256)], 1.0);
        let reached: Vec<bool> = measured.goals.iter().map(Goal::is_reached).collect();
        assert_eq!(reached, [true, false]);
    }
}
