//! Takes the turns.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::programs::Programs;
use super::rows::{LIBFABRIC, MPI, REGISTRATION, ROWS};
use crate::beside::compare::{Compared, compare};
use crate::beside::programs::{PingPong, Processors};
use crate::beside::rows::Turn;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Turns of everything.
    pub turns: u32,
    /// Single operations by Open MPI.
    pub singles: u32,
    /// One of so many messages by `fi_pingpong` is measured.
    pub one_of: u32,
    /// Bytes that are registered.
    pub registered: u64,
}

impl Sizes {
    /// For the page.
    pub const WHOLE: Self = Self {
        turns: 7,
        singles: 30_000,
        one_of: 1,
        registered: 1 << 30,
    };
    /// Some seconds.
    pub const QUICK: Self = Self {
        turns: 1,
        singles: 3_000,
        one_of: 10,
        registered: 64 << 20,
    };
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// How many turns.
    pub turns: u32,
    /// Bytes that are registered.
    pub registered: u64,
    /// The comparisons.
    pub rows: Vec<Compared>,
}

/// Measures everything, in turns.
///
/// # Errors
/// A program is missing or fails.
pub fn measure(sizes: &Sizes, say: &dyn Fn(&str)) -> Result<Measured> {
    let programs = Programs::prepare()?;
    let mut turns = Vec::new();
    for turn in 1..=sizes.turns {
        say(&format!("turn {turn} of {}", sizes.turns));
        turns.push(take(sizes, &programs)?);
    }
    Ok(Measured {
        turns: sizes.turns,
        registered: sizes.registered,
        rows: compare(&ROWS, &turns)?,
    })
}

fn take(sizes: &Sizes, programs: &Programs) -> Result<Turn> {
    let processors = Processors::here();
    let mut turn = Turn::new();
    for (name, pingpong) in LIBFABRIC {
        let shorter = PingPong {
            rounds: pingpong.rounds / sizes.one_of,
            ..pingpong
        };
        let time = shorter.run(processors, Some(&programs.providers));
        turn.insert(name, time.with_context(|| name.to_owned())?);
    }
    for (over, names) in MPI {
        programs.mpi(&over, names, sizes.singles, processors, &mut turn)?;
    }
    programs.registration(sizes.registered, REGISTRATION, &mut turn)?;
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_is_of_what_is_measured() {
        let known = |name: &str| {
            let by_mpi = MPI.iter().flat_map(|(_, names)| *names).chain(REGISTRATION);
            LIBFABRIC.iter().any(|(known, _)| *known == name)
                || by_mpi.into_iter().any(|(_, known)| *known == name)
        };
        for row in &ROWS {
            assert!(known(row.ours), "{row:?}");
            assert!(row.theirs.iter().all(|name| known(name)), "{row:?}");
        }
    }
}
