//! Comparisons: what is measured, in which unit, and what is wanted of the ratio.

/// Measurements of one turn, by name.
pub type Turn = std::collections::BTreeMap<&'static str, f64>;

/// How a number is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// 10^9 bytes a second, of operations of so many bytes that are measured in microseconds.
    Gigabytes(u32),
    /// 10^6 operations a second, which are measured in microseconds each.
    Millions,
}

impl Unit {
    /// A measured time, in this unit.
    #[must_use]
    pub fn show(self, time: f64) -> f64 {
        match self {
            Self::Micros | Self::Millis => time,
            Self::Gigabytes(bytes) => f64::from(bytes) / time / 1e3,
            Self::Millions => 1.0 / time,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::Gigabytes(_) => "GB/s",
            Self::Millions => "M/s",
        }
    }

    /// Whether more is better.
    #[must_use]
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Gigabytes(_) | Self::Millions)
    }
}

/// What the ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// At most so many times the peer's time.
    AtMost(f64),
    /// At least so much of the peer's rate.
    AtLeast(f64),
    /// So much by itself, whatever the peer does.
    Alone(f64),
    /// Nothing: it is said for comparison.
    Nothing,
}

/// A comparison.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is done.
    pub what: &'static str,
    /// NetVM's measurement.
    pub ours: &'static str,
    /// What it is compared with.
    pub with: &'static str,
    /// The peers' measurements: the best counts, in each turn.
    pub theirs: &'static [&'static str],
    /// How the numbers are shown.
    pub unit: Unit,
    /// The goal.
    pub wanted: Wanted,
}

/// A comparison.
#[must_use]
pub const fn row(
    what: &'static str,
    ours: &'static str,
    with: &'static str,
    theirs: &'static [&'static str],
    unit: Unit,
    wanted: Wanted,
) -> Row {
    Row {
        what,
        ours,
        with,
        theirs,
        unit,
        wanted,
    }
}
