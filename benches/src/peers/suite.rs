//! Takes the turns, and judges.

use anyhow::{Context as _, Result};
use serde::Serialize;
use std::time::Duration;

use super::client::{Pair, Wire};
use super::pinned;
use super::rows::{LIBFABRIC, ROWS, UCX};
use super::tools::open_mpi;
use crate::beside::compare::{Compared, compare};
use crate::beside::programs::{PingPong, Processors};
use crate::beside::rows::Turn;

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

/// Writes that the card is called for at once.
const TOGETHER: u64 = 16;

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
    Ok(Measured {
        turns: sizes.turns,
        fresh: sizes.fresh,
        rows: compare(&ROWS, &turns)?,
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
    /// The same, with the card called for sixteen writes at once.
    RateTogether,
    /// Write 1 MiB without a pause over shared memory.
    Large,
    /// Write 8 bytes there and back over UDP.
    UdpWrite,
    /// Write 1 MiB without a pause over UDP.
    UdpLarge,
    /// Fetch and add over UDP.
    UdpAdd,
    /// Write a word to each page of fresh memory, over shared memory.
    Fresh,
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
        Only::Write | Only::Rate | Only::RateTogether | Only::Large | Only::Fresh => Wire::Shared,
        Only::WriteBeside => Wire::Beside,
        Only::UdpWrite | Only::UdpLarge | Only::UdpAdd => Wire::Udp,
    };
    let mut pair = Pair::start(wire, processors)?;
    let found = match what {
        Only::Write | Only::WriteBeside | Only::UdpWrite => pair.one_way(ROUNDS),
        Only::Rate => pair.while_it_spins(|pair| pair.rate(8, TIME)),
        Only::RateTogether => pair.while_it_spins(|pair| pair.rate_of(TIME, 8, TOGETHER)),
        Only::Large | Only::UdpLarge => pair.while_it_spins(|pair| pair.rate(1 << 20, TIME)),
        Only::Fresh => pair
            .fresh(Sizes::WHOLE.fresh, true)
            .map(|(_, every)| every.unwrap_or_default()),
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
            "rate 8 together",
            pair.while_it_spins(|pair| Ok(micros(pair.rate_of(time, 8, TOGETHER)?)))?,
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
        turn.insert(name, PingPong::of(provider).run(processors, None)?);
    }
    turn.insert("mpi tcp 1m", open_mpi(processors)?);
    let (lock, every) = pinned::lock(sizes.fresh as usize)?;
    turn.insert("lock", lock);
    turn.insert("lock all", every);
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_is_of_what_is_measured() {
        let measured = [
            "write 8",
            "rate 8",
            "rate 8 together",
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
