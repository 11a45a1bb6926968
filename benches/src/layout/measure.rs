//! Evictions measured: tables filled through the layouts' own code and the shipped hash, then every mapped
//! page looked up as the NIC does.

use super::table::Table;
use super::{Layout, Row4, Shipped, SplitArrays, Tags};
use super::{cost, eviction};
use netvm_abi::page_table::{HashKey, PageEntry};
use netvm_abi::{PortId, Ppn, SegmentId, Vpn};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Loads at which is measured: tenths of the host's pages that are mapped.
pub const LOADS: u32 = 10;
/// Pages of the modelled host.
pub const PAGES: u32 = 1 << 16;

/// Which pages are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Anywhere, in 64 ports: what the formulas assume.
    Random,
    /// One range of one port, page after page.
    OneRange,
    /// A range in each of 64 ports, all at the same address.
    SixtyFourPorts,
    /// Every 512th page of one port (what is left of 2 MiB blocks).
    Strided,
}

/// All patterns.
pub const PATTERNS: [Pattern; 4] = [
    Pattern::Random,
    Pattern::OneRange,
    Pattern::SixtyFourPorts,
    Pattern::Strided,
];

impl Pattern {
    /// What it is, in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Random => "random pages",
            Self::OneRange => "one range",
            Self::SixtyFourPorts => "64 ports",
            Self::Strided => "every 512th",
        }
    }

    fn pages(self, random: &mut ChaCha8Rng) -> Vec<Vpn> {
        let base = 0x7F00_0000_0000 >> 12;
        let page = |i: u32| match self {
            Self::Random => Vpn::new(PortId((i % 64) as u16), random.random_range(0..1 << 36)),
            Self::OneRange => Vpn::new(PortId(1), base + u64::from(i)),
            Self::SixtyFourPorts => Vpn::new(PortId((i % 64) as u16), base + u64::from(i / 64)),
            Self::Strided => Vpn::new(PortId(1), base + 512 * u64::from(i)),
        };
        let mut pages: Vec<Vpn> = (0..PAGES).map(page).collect();
        pages.shuffle(random);
        pages
    }
}

/// Chances that a mapped page is not found, of one layout at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The layout.
    pub layout: &'static str,
    /// Rows for each page of the host.
    pub rows_per_page: f64,
    /// NIC bytes for each page of the host.
    pub bytes_per_page: f64,
    /// By the formula, at load 0.1, 0.2, ... 1.0.
    pub computed: Vec<f64>,
    /// By the thesis' formula, which weights rows and not pages; none for two rows to choose from.
    pub by_row: Vec<f64>,
    /// Cache lines per hit, measured with random pages.
    pub lines: Vec<f64>,
    /// Measured, for each of [`PATTERNS`].
    pub measured: Vec<Vec<f64>>,
}

/// All curves: each layout at two sizes.
#[must_use]
pub fn curves(keys: u32) -> Vec<Curve> {
    vec![
        curve::<Shipped>(PAGES, keys),
        curve::<Shipped>(PAGES / 2, keys),
        curve::<SplitArrays>(PAGES, keys),
        curve::<SplitArrays>(PAGES / 2, keys),
        curve::<Row4>(PAGES, keys),
        curve::<Row4>(PAGES / 2, keys),
        curve::<Tags>(PAGES / 2, keys),
        curve::<Tags>(PAGES / 4, keys),
    ]
}

fn curve<L: Layout>(rows: u32, keys: u32) -> Curve {
    let rows_per_page = f64::from(rows) / f64::from(PAGES);
    let loads = (1..=LOADS).map(|tenth| tenth * PAGES / LOADS);
    let depth = f64::from(L::SLOTS);
    let computed = loads.clone().map(|n| match L::CHOICES {
        1 => eviction::by_page(n, f64::from(rows), depth),
        _ => eviction::two_rows(n, f64::from(rows), L::SLOTS as i32),
    });
    let by_row = loads
        .filter(|_| L::CHOICES == 1)
        .map(|n| eviction::by_row(n, f64::from(rows), depth));
    let (measured, lines): (Vec<_>, Vec<_>) = PATTERNS
        .iter()
        .map(|&pattern| measure::<L>(rows, keys, pattern))
        .unzip();
    Curve {
        layout: L::NAME,
        rows_per_page,
        bytes_per_page: L::memory().bytes_per_page(rows_per_page),
        computed: computed.collect(),
        by_row: by_row.collect(),
        lines: lines.into_iter().next().unwrap_or_default(),
        measured,
    }
}

/// The share of mapped pages that a look-up misses, at each load, over several hash keys; and the cache lines that
/// one that hits touches, at the first key.
fn measure<L: Layout>(rows: u32, keys: u32, pattern: Pattern) -> (Vec<f64>, Vec<f64>) {
    let mut lines = Vec::new();
    let mut missed = vec![0u64; LOADS as usize];
    for key in 0..keys {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(key));
        let mut table = Table::<L>::new(rows, PAGES, HashKey(random.random()));
        let pages = pattern.pages(&mut random);
        let frames = shuffled_frames(&mut random);
        let mut mapped = 0;
        for (tenth, missed) in (1..).zip(&mut missed) {
            let until = (tenth * PAGES / LOADS) as usize;
            for (&vpn, &ppn) in pages.iter().zip(&frames).take(until).skip(mapped) {
                table.insert(entry(vpn, ppn), &mut random);
            }
            mapped = until;
            let (hits, misses): (Vec<Vpn>, Vec<Vpn>) =
                pages.iter().take(until).partition(|&&vpn| table.finds(vpn));
            *missed += misses.len() as u64;
            if key == 0 && pattern == Pattern::Random {
                let touched: usize = hits.iter().map(|&vpn| cost::lines(&table, vpn)).sum();
                lines.push(touched as f64 / hits.len() as f64);
            }
        }
    }
    let chances = (1..).zip(missed).map(|(tenth, missed): (u32, u64)| {
        missed as f64 / f64::from(tenth * PAGES / LOADS) / f64::from(keys)
    });
    (chances.collect(), lines)
}

fn shuffled_frames(random: &mut ChaCha8Rng) -> Vec<u32> {
    let mut frames: Vec<u32> = (0..PAGES).collect();
    frames.shuffle(random);
    frames
}

fn entry(vpn: Vpn, ppn: u32) -> PageEntry {
    PageEntry {
        vpn,
        ppn: Ppn(u64::from(ppn)),
        segment: SegmentId(u32::from(vpn.port().0) + 1),
        writable: true,
    }
}

/// What a hostile port that maps pages for every row does to a port of some load.
#[derive(Clone, Debug, Serialize)]
pub struct Crowding {
    /// The layout.
    pub layout: &'static str,
    /// Rows for each page of the host.
    pub rows_per_page: f64,
    /// The quiet port's pages by the host's pages.
    pub load: f64,
    /// Its chance to miss, when alone.
    pub alone: f64,
    /// The bound under attack: the same port with half the slots of each row.
    pub bound: f64,
    /// Measured under attack.
    pub measured: f64,
    /// Measured under attack, were the victim any slot of the row (thesis 4.3.1).
    pub without_quota: f64,
}

/// A quiet port that maps a quarter of the host's pages, then an attacker that maps four times the table.
#[must_use]
pub fn crowding<L: Layout>(rows: u32, keys: u32) -> Crowding {
    let quiet = PAGES / 4;
    let depth = f64::from(L::SLOTS);
    Crowding {
        layout: L::NAME,
        rows_per_page: f64::from(rows) / f64::from(PAGES),
        load: f64::from(quiet) / f64::from(PAGES),
        alone: match L::CHOICES {
            1 => eviction::by_page(quiet, f64::from(rows), depth),
            _ => eviction::two_rows(quiet, f64::from(rows), L::SLOTS as i32),
        },
        bound: eviction::by_page(quiet, f64::from(rows), (depth / 2.0).floor()),
        measured: crowded::<L>(rows, keys, quiet, true),
        without_quota: crowded::<L>(rows, keys, quiet, false),
    }
}

fn crowded<L: Layout>(rows: u32, keys: u32, quiet: u32, quota: bool) -> f64 {
    let mut missed = 0;
    for key in 0..keys {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(key));
        let mut table = Table::<L>::new(rows, PAGES, HashKey(random.random()));
        table.quota = quota;
        let own: Vec<Vpn> = (0..quiet)
            .map(|_| Vpn::new(PortId(1), random.random_range(0..1 << 36)))
            .collect();
        for (ppn, &vpn) in (0..).zip(&own) {
            table.insert(entry(vpn, ppn), &mut random);
        }
        for i in 0..4 * rows * L::SLOTS {
            let vpn = Vpn::new(PortId(2), random.random_range(0..1 << 36));
            // The attacker's pages share the frames that are left.
            let ppn = quiet + i % (PAGES - quiet);
            table.insert(entry(vpn, ppn), &mut random);
        }
        missed += own.iter().filter(|&&vpn| !table.finds(vpn)).count();
    }
    missed as f64 / f64::from(quiet) / f64::from(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_agrees_with_computed() {
        let curve = curve::<Row4>(PAGES / 2, 1);
        let (Some(&computed), Some(&measured)) = (
            curve.computed.last(),
            curve.measured.first().and_then(|m| m.last()),
        ) else {
            panic!("no numbers");
        };
        assert!(
            (measured / computed - 1.0).abs() < 0.1,
            "{measured} against {computed}"
        );
    }

    #[test]
    fn an_attacker_leaves_a_port_its_share() {
        let crowding = crowding::<Row4>(PAGES / 4, 1);
        assert!(crowding.measured <= crowding.bound * 1.05, "{crowding:?}");
        assert!(crowding.without_quota > 2.0 * crowding.measured, "{crowding:?}");
    }
}
