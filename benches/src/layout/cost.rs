//! What one look-up costs: cache lines, accesses, barriers (counted at the words) and instructions (callgrind).

use super::table::Table;
use super::{LINE, Layout, Row4, Shipped, SplitArrays, Tags};
use crate::callgrind::Profile;
use anyhow::{Context as _, Result};
use netvm_abi::page_lock::Used;
use netvm_abi::page_table::{HashKey, PageEntry};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, Ppn, SegmentId, Vpn, WordIndex};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::AtomicU32;

const ROWS: u32 = 256;
const PAGES: u32 = 1024;
const ROUNDS: u32 = 100;
/// Pages per call of a probe.
const BATCH: usize = 64;

/// Where the looked-up page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// In the first slot.
    First,
    /// In the last slot of a full row (of the second row, where there are two).
    Last,
    /// Nowhere, and the row is full of others.
    Miss,
}

/// What a look-up, and where it hits the lock and the dirty unlock, costs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The layout.
    pub layout: &'static str,
    /// The case.
    pub case: Case,
    /// Instructions of lock and unlock, by callgrind.
    pub instructions: f64,
    /// Different cache lines touched.
    pub lines: usize,
    /// Loads and stores of shared words.
    pub accesses: u32,
    /// Full barriers.
    pub barriers: u32,
}

/// Words that record each look at them.
struct Counting<'a> {
    words: &'a [AtomicU32],
    lines: RefCell<BTreeSet<u32>>,
    accesses: Cell<u32>,
    barriers: Cell<u32>,
}

impl Counting<'_> {
    fn note(&self, at: WordIndex) {
        self.lines.borrow_mut().insert(at.0 / (LINE / 4));
        self.accesses.set(self.accesses.get() + 1);
    }
}

impl SharedWords for Counting<'_> {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.note(at);
        self.words.load_acquire(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.note(at);
        self.words.store_release(at, value);
    }

    fn full_barrier(&self) {
        self.barriers.set(self.barriers.get() + 1);
    }

    fn bus_barrier(&self) {
        self.note(WordIndex(0));
        self.full_barrier();
    }
}

/// What is measured: lock, and unlock dirty if there is something to unlock; page after page, so that the call of
/// the measured function does not count (in the NIC these are parts of larger functions, too).
#[inline]
fn visit<L: Layout, W: SharedWords + ?Sized>(layout: &L, bar: &W, pages: &[Vpn]) -> u64 {
    let mut sum = 0;
    for &vpn in pages {
        if let Ok(held) = layout.lock(bar, vpn, true) {
            sum ^= held.ppn.0;
            layout.unlock(bar, held.slot, Used::Written);
        }
    }
    sum
}

/// Cache lines that a look-up of `vpn` touches.
pub(super) fn lines<L: Layout>(table: &Table<L>, vpn: Vpn) -> usize {
    let counting = Counting::new(&table.bar);
    visit(&table.layout, &counting, &[vpn]);
    counting.lines.into_inner().len()
}

/// A table in which one row (and its alternative) is full, and the page that the case looks up.
fn scene<L: Layout>(case: Case) -> Result<(Table<L>, Vpn)> {
    let key = HashKey([0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7345]);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut table = Table::<L>::new(ROWS, PAGES, key);
    let any = |number| Vpn::new(PortId(3), number);
    let rows = table.layout.rows_of(any(0x7F00_1234_5000));
    // Pages of the same row(s), found by trying.
    let mut same = (0x7F00_1234_5000..)
        .map(any)
        .filter(|&vpn| table.layout.rows_of(vpn) == rows);
    let wanted = L::SLOTS as usize * L::CHOICES;
    let pages: Vec<Vpn> = same.by_ref().take(wanted).collect();
    let absent = same.next().context("no further page in this row")?;
    for (at, &vpn) in pages.iter().enumerate() {
        let entry = PageEntry {
            vpn,
            // Far apart, as frames are.
            ppn: Ppn(at as u64 * 61 + 7),
            segment: SegmentId(5),
            writable: true,
        };
        table.insert(entry, &mut random);
    }
    let probes = |vpn: Vpn| {
        let counting = Counting::new(&table.bar);
        visit(&table.layout, &counting, &[vpn]);
        counting.accesses.get()
    };
    // With two rows the order of filling is not the order of looking.
    let first = pages.iter().copied().min_by_key(|&vpn| probes(vpn));
    let last = pages.iter().copied().max_by_key(|&vpn| probes(vpn));
    let vpn = match case {
        Case::First => first,
        Case::Last => last,
        Case::Miss => Some(absent),
    };
    Ok((table, vpn.context("an empty row")?))
}

impl<'a> Counting<'a> {
    fn new(words: &'a [AtomicU32]) -> Self {
        Self {
            words,
            lines: RefCell::default(),
            accesses: Cell::default(),
            barriers: Cell::default(),
        }
    }
}

macro_rules! measured {
    ($($layout:ty => $probe:ident $first:ident $last:ident $miss:ident;)*) => {
        $(
            #[inline(never)]
            fn $probe(layout: &$layout, bar: &[AtomicU32], pages: &[Vpn]) -> u64 {
                visit(layout, bar, pages)
            }

            #[inline(never)]
            fn $first() -> Result<()> {
                repeat(Case::First, $probe)
            }

            #[inline(never)]
            fn $last() -> Result<()> {
                repeat(Case::Last, $probe)
            }

            #[inline(never)]
            fn $miss() -> Result<()> {
                repeat(Case::Miss, $probe)
            }
        )*

        /// Runs every case, for callgrind to watch.
        ///
        /// # Errors
        /// A scene could not be set.
        pub fn run_cases() -> Result<()> {
            $( $first()?; $last()?; $miss()?; )*
            Ok(())
        }

        /// The costs of all layouts.
        ///
        /// # Errors
        /// Callgrind did not see a case.
        pub fn all(profile: &Profile) -> Result<Vec<Cost>> {
            Ok(vec![ $(
                cost::<$layout>(profile, Case::First, stringify!($first), stringify!($probe))?,
                cost::<$layout>(profile, Case::Last, stringify!($last), stringify!($probe))?,
                cost::<$layout>(profile, Case::Miss, stringify!($miss), stringify!($probe))?,
            )* ])
        }
    };
}

measured! {
    Row4 => probe_row4 case_row4_first case_row4_last case_row4_miss;
    Shipped => probe_shipped case_shipped_first case_shipped_last case_shipped_miss;
    SplitArrays => probe_thesis case_thesis_first case_thesis_last case_thesis_miss;
    Tags => probe_tags case_tags_first case_tags_last case_tags_miss;
}

/// Calls a probe many times. Inlined into the case, so that callgrind tells the cases apart.
#[inline(always)]
fn repeat<L: Layout>(case: Case, probe: fn(&L, &[AtomicU32], &[Vpn]) -> u64) -> Result<()> {
    let (table, vpn) = scene::<L>(case)?;
    let pages = [vpn; BATCH];
    for _ in 0..ROUNDS {
        black_box(probe(
            black_box(&table.layout),
            black_box(&table.bar),
            black_box(&pages),
        ));
    }
    Ok(())
}

fn cost<L: Layout>(profile: &Profile, case: Case, caller: &str, probe: &str) -> Result<Cost> {
    let (table, vpn) = scene::<L>(case)?;
    let counting = Counting::new(&table.bar);
    visit(&table.layout, &counting, &[vpn]);
    Ok(Cost {
        layout: L::NAME,
        case,
        instructions: profile.between(caller, probe)?.each() / BATCH as f64,
        lines: counting.lines.borrow().len(),
        accesses: counting.accesses.get(),
        barriers: counting.barriers.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obeys_the_protocol<L: Layout>() -> Result<()> {
        for case in [Case::First, Case::Last, Case::Miss] {
            let (table, vpn) = scene::<L>(case)?;
            let found = table.layout.lock(&*table.bar, vpn, true);
            assert_eq!(found.is_ok(), case != Case::Miss, "{} {case:?}", L::NAME);
            let Ok(held) = found else { continue };
            assert_eq!(held.segment, SegmentId(5));
            assert_eq!(held.ppn.0 % 61, 7, "{}: the page that was published", L::NAME);
            table.layout.unlock(&*table.bar, held.slot, Used::Written);
        }
        Ok(())
    }

    #[test]
    fn every_layout_finds_what_was_published() -> Result<()> {
        obeys_the_protocol::<Shipped>()?;
        obeys_the_protocol::<SplitArrays>()?;
        obeys_the_protocol::<Tags>()?;
        obeys_the_protocol::<Row4>()
    }
}
