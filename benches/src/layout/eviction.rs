//! How often a mapped page is not found because its row was full: thesis 4.3.1.1, derived anew.
//!
//! Rows are filled at random. With `n` pages mapped into `m` rows, the number `X` of pages that belong to a
//! row is binomial(n, 1/m), and a row of `d` slots holds min(X, d) of them.
//!
//! *The thesis* averages the share of missing pages over rows: the sum over i of (i-d)/i P(X=i). That is the
//! chance for a look-up that picks a *row* at random, empty rows included. A look-up picks a *page*, and
//! crowded rows have more pages. Weighted by pages it is `E[max(X-d, 0)] / E[X]`, five times the thesis'
//! number at full load with d=4: [`by_row`] and [`by_page`].
//!
//! *A hostile port* that has pages for every row cannot take more than its share: when a row is full, a port
//! that holds half of it or more loses a page of its own, and otherwise the port that holds most
//! ([`Table::insert`](super::table::Table::insert)). So beside one such port a port keeps d/2 slots in every row,
//! and its chance is [`by_page`] at that depth and this port's own load.
//!
//! *Two rows* of `d` slots each: a page goes to its first row, or to its second, or takes the place of one of
//! the 2d pages there that has room in its own other row and moves. No closed form; [`two_rows`] integrates the
//! limit for large tables. With s_i the share of rows that hold i pages or more, f the share of pages that sit
//! in their second row, and t pages a row inserted: both rows of a newcomer are full with chance s_d^2; a page
//! there cannot move with chance q = 1 - (1-f)(1-s_d), for one that sits in its second row has a full first one;
//! so room is made with chance r = 1 - q^(2d), and the newcomer displaces a page for good with chance
//! s_d^2 q^(2d). A row that is not full gets pages at the rate 1 + s_d + s_d^2 r / (1-s_d): newcomers, what full
//! rows pass on, and what moves.

/// Chance that a binomial(n, 1/m) variable is i, for i = 0, 1, ... until it stays below 1e-18.
fn binomial(n: u32, m: f64) -> impl Iterator<Item = (f64, f64)> {
    let n = f64::from(n);
    let mut chance = (n * (-1.0 / m).ln_1p()).exp();
    let mut i = 0.0;
    std::iter::from_fn(move || {
        let this = (i, chance);
        if i > n || (i > n / m && chance < 1e-18) {
            return None;
        }
        chance *= (n - i) / (i + 1.0) / (m - 1.0);
        i += 1.0;
        Some(this)
    })
}

/// The thesis' number: the chance for a look-up in a random row.
#[must_use]
pub fn by_row(n: u32, m: f64, depth: f64) -> f64 {
    binomial(n, m)
        .filter(|&(i, _)| i > depth)
        .map(|(i, chance)| (i - depth) / i * chance)
        .sum()
}

/// The chance for a look-up of a random mapped page.
#[must_use]
pub fn by_page(n: u32, m: f64, depth: f64) -> f64 {
    let missing: f64 = binomial(n, m)
        .filter(|&(i, _)| i > depth)
        .map(|(i, chance)| (i - depth) * chance)
        .sum();
    missing / (f64::from(n) / m)
}

/// The same with a second row of the same depth, and pages that move between their rows.
#[must_use]
pub fn two_rows(n: u32, m: f64, depth: i32) -> f64 {
    const STEPS: u32 = 4000;
    let load = f64::from(n) / m;
    let step = load / f64::from(STEPS);
    let mut state = Rows {
        share: vec![0.0; depth as usize],
        second: 0.0,
        lost: 0.0,
    };
    // The midpoint rule.
    for _ in 0..STEPS {
        let half = state.moved(&state.slope(depth), step / 2.0);
        state = state.moved(&half.slope(depth), step);
    }
    state.lost / load
}

/// State of the two-row table, per row; also its slope.
struct Rows {
    /// Share of rows that hold 1, 2, ... pages or more.
    share: Vec<f64>,
    /// Pages that sit in their second row.
    second: f64,
    /// Pages displaced for good.
    lost: f64,
}

impl Rows {
    fn slope(&self, depth: i32) -> Self {
        let full = self.share.last().copied().unwrap_or(0.0);
        let held: f64 = self.share.iter().sum();
        let in_second = if held > 0.0 { self.second / held } else { 0.0 };
        let stuck = (1.0 - (1.0 - in_second) * (1.0 - full)).powi(2 * depth);
        let moving = full * full * (1.0 - stuck);
        let rate = 1.0 + full + if full < 1.0 { moving / (1.0 - full) } else { 0.0 };
        let fewer = std::iter::once(1.0).chain(self.share.iter().copied());
        Self {
            share: fewer
                .zip(&self.share)
                .map(|(fewer, this)| (fewer - this) * rate)
                .collect(),
            second: full * (1.0 - full) + moving,
            lost: full * full * stuck,
        }
    }

    fn moved(&self, slope: &Self, by: f64) -> Self {
        Self {
            share: self
                .share
                .iter()
                .zip(&slope.share)
                .map(|(s, d)| s + by * d)
                .collect(),
            second: self.second + by * slope.second,
            lost: self.lost + by * slope.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thesis_numbers_come_out() {
        let full = by_row(1 << 20, f64::from(1 << 20), 4.0);
        assert!(
            (5e-4..1e-3).contains(&full),
            "thesis 4.3.1.1: below 1e-3, is {full}"
        );
        let half = by_row(1 << 19, f64::from(1 << 20), 4.0);
        assert!(
            (1e-5..4e-5).contains(&half),
            "thesis 4.3.1.1: below 4e-5, is {half}"
        );
    }

    #[test]
    fn a_look_up_meets_crowded_rows_more_often() {
        let (n, m) = (1 << 20, f64::from(1 << 20));
        assert!(by_page(n, m, 4.0) > 4.0 * by_row(n, m, 4.0));
    }

    #[test]
    fn chances_sum_to_one_and_mean_to_load() {
        let (sum, mean) = binomial(3000, 1000.0).fold((0.0, 0.0), |(s, m), (i, p)| (s + p, m + i * p));
        assert!((sum - 1.0f64).abs() < 1e-9 && (mean - 3.0f64).abs() < 1e-9);
    }

    #[test]
    fn two_rows_of_endless_depth_lose_nothing() {
        assert!(two_rows(1 << 16, f64::from(1 << 16), 12).abs() < 1e-9);
    }
}
