//! Takes the turns, and judges.

use anyhow::{Context as _, Result};
use serde::Serialize;
use std::time::Duration;

use super::client::{Pair, Wire};
use super::pinned;
use super::rows::{LIBFABRIC, ROWS, Row, Turn, UCX, Wanted};
use super::tools::{Processors, fi_pingpong, open_mpi};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Turns of everything.
    pub turns: u32,
    /// Single operations whose times are taken.
    pub singles: u32,
    /// How long a rate is measured, in milliseconds.
    pub millis: u64,
    /// Bytes of fresh memory.
    pub fresh: u64,
}

impl Sizes {
    /// For the page.
    pub const WHOLE: Self = Self {
        turns: 7,
        singles: 20_000,
        millis: 500,
        fresh: 1 << 30,
    };
    /// Some seconds.
    pub const QUICK: Self = Self {
        turns: 1,
        singles: 5_000,
        millis: 200,
        fresh: 64 << 20,
    };
}

/// A comparison, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What was done.
    pub what: &'static str,
    /// Who it is compared with.
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

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// How many turns.
    pub turns: u32,
    /// Bytes of fresh memory.
    pub fresh: u64,
    /// The comparisons.
    pub rows: Vec<Compared>,
}

/// Measures everything, in turns.
///
/// # Errors
/// A program is missing or fails.
pub fn measure(sizes: &Sizes, say: &dyn Fn(&str)) -> Result<Measured> {
    let processors = Processors::here();
    processors.begin_here()?;
    let mut turns = Vec::new();
    for turn in 1..=sizes.turns {
        say(&format!("turn {turn} of {}", sizes.turns));
        turns.push(take(sizes, processors)?);
    }
    let rows: Result<Vec<Compared>> = ROWS.iter().map(|row| compare(row, &turns)).collect();
    Ok(Measured {
        turns: sizes.turns,
        fresh: sizes.fresh,
        rows: rows?,
    })
}

/// What can be done alone.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Only {
    /// Write 8 bytes there and back over shared memory.
    Write,
    /// Write 8 bytes there and back over shared memory, between nodes that have UDP as well.
    WriteBeside,
    /// Write 8 bytes without a pause over shared memory.
    Rate,
    /// Write 1 MiB without a pause over shared memory.
    Large,
    /// Write 8 bytes there and back over UDP.
    UdpWrite,
    /// Write 1 MiB without a pause over UDP.
    UdpLarge,
    /// Fetch and add over UDP.
    UdpAdd,
}

/// Does one thing alone, for a profile.
///
/// # Errors
/// The link ends.
pub fn only(what: Only) -> Result<()> {
    const ROUNDS: u32 = 400_000;
    const TIME: Duration = Duration::from_secs(4);
    let processors = Processors::here();
    processors.begin_here()?;
    let wire = match what {
        Only::Write | Only::Rate | Only::Large => Wire::Shared,
        Only::WriteBeside => Wire::Beside,
        Only::UdpWrite | Only::UdpLarge | Only::UdpAdd => Wire::Udp,
    };
    let mut pair = Pair::start(wire, processors)?;
    let found = match what {
        Only::Write | Only::WriteBeside | Only::UdpWrite => pair.one_way(ROUNDS),
        Only::Rate => pair.while_it_spins(|pair| pair.rate(8, TIME)),
        Only::Large | Only::UdpLarge => pair.while_it_spins(|pair| pair.rate(1 << 20, TIME)),
        Only::UdpAdd => pair.while_it_spins(|pair| pair.fetch_add(ROUNDS)),
    };
    println!("{what:?}: {:.3}", found?);
    Ok(())
}

fn take(sizes: &Sizes, processors: Processors) -> Result<Turn> {
    let mut turn = Turn::new();
    let time = Duration::from_millis(sizes.millis);
    let micros = |rate: f64| 1e6 / rate;
    {
        let mut pair = Pair::start(Wire::Shared, processors)?;
        turn.insert("write 8", pair.one_way(sizes.singles)?);
        turn.insert(
            "rate 8",
            pair.while_it_spins(|pair| Ok(micros(pair.rate(8, time)?)))?,
        );
        turn.insert(
            "write 64k",
            pair.while_it_spins(|pair| Ok(micros(pair.rate(1 << 16, time)?)))?,
        );
        turn.insert(
            "write 1m",
            pair.while_it_spins(|pair| Ok(micros(pair.rate(1 << 20, time)?)))?,
        );
        turn.insert("fadd", pair.while_it_spins(|pair| pair.fetch_add(sizes.singles))?);
        turn.insert("fadd helped", pair.fetch_add(sizes.singles)?);
        turn.insert("sparse", pair.fresh(sizes.fresh * 64, false)?.0);
        let (first, every) = pair.fresh(sizes.fresh, true)?;
        turn.insert("fresh", first);
        turn.insert("fresh all", every.context("no time of every page")?);
    }
    {
        let mut pair = Pair::start(Wire::Udp, processors)?;
        turn.insert("udp write 8", pair.one_way(sizes.singles)?);
        turn.insert(
            "udp write 1m",
            pair.while_it_spins(|pair| Ok(micros(pair.rate(1 << 20, time)?)))?,
        );
        turn.insert(
            "udp fadd",
            pair.while_it_spins(|pair| pair.fetch_add(sizes.singles))?,
        );
        turn.insert("udp fadd helped", pair.fetch_add(sizes.singles)?);
    }
    for (name, ucx) in UCX {
        turn.insert(name, ucx.run(processors)?);
    }
    for (name, provider) in LIBFABRIC {
        turn.insert(name, fi_pingpong(provider, processors)?);
    }
    turn.insert("mpi tcp 1m", open_mpi(processors)?);
    let (lock, every) = pinned::lock(sizes.fresh as usize)?;
    turn.insert("lock", lock);
    turn.insert("lock all", every);
    Ok(turn)
}

fn compare(row: &Row, turns: &[Turn]) -> Result<Compared> {
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
    use crate::peers::rows::Unit;

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
        let found = compare(&row(&["one", "other"], Unit::Micros, Wanted::AtMost(2.0)), &turns).unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (4.0, 2.0, 2.0));
        assert_eq!((found.spread, found.reached), ([2.0, 3.0], Some(true)));
        // Twice the time is half of the rate.
        let rate = row(&["one"], Unit::Gigabytes(1000), Wanted::AtLeast(0.6));
        let found = compare(&rate, &turns[2..]).unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (0.25, 0.5, 0.5));
        assert_eq!(found.reached, Some(false));
        assert!(compare(&row(&["none"], Unit::Micros, Wanted::Nothing), &turns).is_err());
    }

    #[test]
    fn each_comparison_is_of_what_is_measured() {
        let measured = [
            "write 8",
            "rate 8",
            "write 64k",
            "write 1m",
            "fadd",
            "sparse",
            "fresh",
            "fresh all",
            "udp write 8",
            "udp write 1m",
            "udp fadd",
            "fadd helped",
            "udp fadd helped",
            "mpi tcp 1m",
            "lock",
            "lock all",
        ];
        let known = |name: &str| {
            measured.contains(&name)
                || UCX.iter().any(|(known, _)| *known == name)
                || LIBFABRIC.iter().any(|(known, _)| *known == name)
        };
        for row in &ROWS {
            assert!(known(row.ours), "{row:?}");
            assert!(row.theirs.iter().all(|name| known(name)), "{row:?}");
        }
    }
}
