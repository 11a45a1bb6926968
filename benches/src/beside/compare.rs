//! Ratios out of several turns.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::rows::{Row, Turn, Wanted};

/// A comparison, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What was done.
    pub what: &'static str,
    /// What it is compared with.
    pub with: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// NetVM's median.
    pub ours: f64,
    /// The peers' median.
    pub theirs: f64,
    /// Median of the turns' ratios, ours to theirs, in the unit.
    pub ratio: f64,
    /// Least and most of these.
    pub spread: [f64; 2],
    /// Whether more is better.
    pub is_rate: bool,
    /// The goal, as text; empty where there is none.
    pub wanted: String,
    /// What the ratio should come to.
    pub goal: Option<f64>,
    /// Whether it is reached.
    pub reached: Option<bool>,
}

/// Median, least and most.
#[must_use]
pub fn spread(mut values: Vec<f64>) -> (f64, [f64; 2]) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), [at(0), at(values.len().saturating_sub(1))])
}

/// A comparison out of several runs: of each what is ours, what is theirs, and the ratio. `what` is what was done, beside what, in which unit.
#[must_use]
pub fn row(
    (what, with, unit): (&'static str, &'static str, &'static str),
    is_rate: bool,
    goal: Option<f64>,
    values: Vec<(f64, f64, f64)>,
) -> Compared {
    let (ours, _) = spread(values.iter().map(|(ours, ..)| *ours).collect());
    let (theirs, _) = spread(values.iter().map(|(_, theirs, _)| *theirs).collect());
    let (ratio, ends) = spread(values.iter().map(|(.., ratio)| *ratio).collect());
    Compared {
        what,
        with,
        unit,
        ours,
        theirs,
        ratio,
        spread: ends,
        is_rate,
        wanted: match goal {
            Some(goal) if is_rate => format!(">= {goal} x"),
            Some(goal) => format!("<= {goal} x"),
            None => String::new(),
        },
        goal,
        reached: goal.map(|goal| if is_rate { ratio >= goal } else { ratio <= goal }),
    }
}

/// A comparison as a line of a page's table, with so many digits behind the point.
#[must_use]
pub fn line(row: &Compared, digits: usize) -> String {
    let number = |value: f64| format!("{value:.digits$}");
    let reached = match row.reached {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "",
    };
    let [least, most] = row.spread.map(number);
    let [ours, theirs, ratio] = [row.ours, row.theirs, row.ratio].map(number);
    let Compared {
        what,
        with,
        unit,
        wanted,
        ..
    } = row;
    format!(
        "| {what} | {with} | {unit} | {ours} | {theirs} | {ratio} | {least} to {most} | {wanted} | {reached} |"
    )
}

/// Compares, over all turns.
///
/// # Errors
/// Something was not measured.
pub fn compare(rows: &[Row], turns: &[Turn]) -> Result<Vec<Compared>> {
    rows.iter().map(|row| compare_one(row, turns)).collect()
}

fn compare_one(row: &Row, turns: &[Turn]) -> Result<Compared> {
    let mut all: [Vec<f64>; 3] = Default::default();
    for turn in turns {
        let get = |name: &str| {
            turn.get(name)
                .copied()
                .with_context(|| format!("{name} was not measured"))
        };
        let ours = row.unit.show(get(row.ours)?);
        let times: Result<Vec<f64>> = row.theirs.iter().map(|name| get(name)).collect();
        // Of times the least is the best, whatever is shown.
        let theirs = row.unit.show(times?.into_iter().fold(f64::INFINITY, f64::min));
        for (list, value) in all.iter_mut().zip([ours, theirs, ours / theirs]) {
            list.push(value);
        }
    }
    all.iter_mut().for_each(|list| list.sort_by(f64::total_cmp));
    let [ours, theirs, ratios] = &all;
    let median = |list: &[f64]| list.get(list.len() / 2).copied().unwrap_or(f64::NAN);
    let (ours, theirs, ratio) = (median(ours), median(theirs), median(ratios));
    let (wanted, goal, reached) = match row.wanted {
        Wanted::AtMost(most) => (format!("<= {most} x"), Some(most), Some(ratio <= most)),
        Wanted::AtLeast(least) => (format!(">= {least} x"), Some(least), Some(ratio >= least)),
        Wanted::Alone(least) => (
            format!(">= {least} {}", row.unit.name()),
            None,
            Some(ours >= least),
        ),
        Wanted::Nothing => (String::new(), None, None),
    };
    Ok(Compared {
        what: row.what,
        with: row.with,
        unit: row.unit.name(),
        ours,
        theirs,
        ratio,
        spread: [
            ratios.first().copied().unwrap_or(f64::NAN),
            ratios.last().copied().unwrap_or(f64::NAN),
        ],
        is_rate: row.unit.is_rate(),
        wanted,
        goal,
        reached,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside::rows::Unit;

    fn row(theirs: &'static [&'static str], unit: Unit, wanted: Wanted) -> Row {
        Row {
            what: "",
            ours: "ours",
            with: "",
            theirs,
            unit,
            wanted,
        }
    }

    #[test]
    fn the_ratio_is_the_median_of_the_turns_and_the_best_peer_counts() {
        let turns: Vec<Turn> = [(2.0, 4.0, 1.0), (9.0, 3.0, 3.0), (4.0, 2.0, 8.0)]
            .iter()
            .map(|&(ours, one, other)| Turn::from([("ours", ours), ("one", one), ("other", other)]))
            .collect();
        let found = compare_one(&row(&["one", "other"], Unit::Micros, Wanted::AtMost(2.0)), &turns).unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (4.0, 2.0, 2.0));
        assert_eq!((found.spread, found.reached), ([2.0, 3.0], Some(true)));
        // Twice the time is half of the rate.
        let rate = row(&["one"], Unit::Gigabytes(1000), Wanted::AtLeast(0.6));
        let found = compare_one(&rate, &turns[2..]).unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (0.25, 0.5, 0.5));
        assert_eq!(found.reached, Some(false));
        assert!(compare_one(&row(&["none"], Unit::Micros, Wanted::Nothing), &turns).is_err());
    }
}
