//! All numbers of the layouts as one report: a Markdown page, an SVG and a JSON object.

use super::cost::{self, Case, Cost};
use super::measure::{self, Crowding, Curve, PAGES, PATTERNS};
use super::{Layout, Row4, Shipped, SplitArrays, Tags};
use crate::callgrind;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Instructions, lines, accesses of each layout and case.
    pub costs: Vec<Cost>,
    /// Chances of not finding a mapped page.
    pub curves: Vec<Curve>,
    /// A quiet port beside a hostile one.
    pub crowding: Vec<Crowding>,
}

/// Measures.
///
/// # Errors
/// Valgrind is missing or did not see what it should.
pub fn measure(keys: u32) -> Result<Report> {
    let profile = callgrind::run()?;
    Ok(Report {
        costs: cost::all(&profile)?,
        curves: measure::curves(keys),
        crowding: vec![
            measure::crowding::<Shipped>(PAGES, keys.min(4)),
            measure::crowding::<Row4>(PAGES, keys.min(4)),
            measure::crowding::<Row4>(PAGES / 2, keys.min(4)),
            measure::crowding::<Tags>(PAGES / 2, keys.min(4)),
            measure::crowding::<Tags>(PAGES / 4, keys.min(4)),
        ],
    })
}

impl Report {
    /// Writes `layout.md` and `layout-evictions.svg` into `folder`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        super::plot::evictions(&self.curves, &folder.join("layout-evictions.svg"))?;
        let page = folder.join("layout.md");
        std::fs::write(&page, self.page()?).with_context(|| format!("writing {}", page.display()))
    }

    /// The report as text.
    ///
    /// # Errors
    /// None that happens: writing to a string.
    pub fn page(&self) -> Result<String> {
        let mut page = String::from(
            "# Page-table layouts, measured\n\n\
             Written by `cargo xtask bench layout`; the choice is in \
             [decision 1](../decisions/0001-page-table-layout.md).\n\n",
        );
        for (name, text) in names() {
            writeln!(page, "- **{name}**: {text}")?;
        }
        self.costs(&mut page)?;
        self.chances(&mut page)?;
        self.crowded(&mut page)?;
        Ok(page)
    }

    fn costs(&self, page: &mut String) -> Result<()> {
        page.push_str(
            "\n## One look-up, lock and dirty unlock\n\n\
             Instructions by callgrind (x86-64, release build), the call included; cache lines of 64 bytes, \
             loads and stores of shared words, and full barriers counted at the words. *First* and *last* slot \
             of full rows; *miss* in full rows.\n\n\
             | layout | instructions: first | last | miss | lines: first | last | miss | accesses: first | last | miss | barriers |\n\
             |---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (name, _) in names() {
            let of = |case| {
                self.costs
                    .iter()
                    .find(|cost| cost.layout == name && cost.case == case)
                    .with_context(|| format!("no costs of {name}"))
            };
            let (first, last, miss) = (of(Case::First)?, of(Case::Last)?, of(Case::Miss)?);
            writeln!(
                page,
                "| {name} | {:.0} | {:.0} | {:.0} | {} | {} | {} | {} | {} | {} | {} |",
                first.instructions,
                last.instructions,
                miss.instructions,
                first.lines,
                last.lines,
                miss.lines,
                first.accesses,
                last.accesses,
                miss.accesses,
                first.barriers,
            )?;
        }
        Ok(())
    }

    fn chances(&self, page: &mut String) -> Result<()> {
        writeln!(
            page,
            "\n## A mapped page is not found\n\n\
             ![probability over load](layout-evictions.svg)\n\n\
             Load = mapped pages / pages of the host. *Computed*: chance for a random mapped page \
             (benches/src/layout/eviction.rs has the derivation). *Rows*: thesis 4.3.1.1's formula, the chance in a \
             random row. *Measured*: {PAGES} pages, the shipped hash, the layouts' own code; *lines*: cache lines per \
             hit, random pages.\n\n\
             | layout | rows a page | NIC bytes a page | load | lines | computed | rows | {} |\n\
             |---|---|---|---|---|---|---|{}",
            PATTERNS.map(|pattern| pattern.text()).join(" | "),
            "---|".repeat(PATTERNS.len()),
        )?;
        for curve in &self.curves {
            for (at, computed) in curve.computed.iter().enumerate() {
                let by_row = curve.by_row.get(at).copied();
                write!(
                    page,
                    "| {} | {} | {:.1} | {:.1} | {:.2} | {} | {} |",
                    curve.layout,
                    curve.rows_per_page,
                    curve.bytes_per_page,
                    (at + 1) as f64 / f64::from(measure::LOADS),
                    curve.lines.get(at).copied().unwrap_or_default(),
                    chance(*computed),
                    by_row.map_or_else(|| "".to_owned(), chance),
                )?;
                for measured in &curve.measured {
                    write!(
                        page,
                        " {} |",
                        measured.get(at).copied().map_or_else(String::new, chance)
                    )?;
                }
                page.push('\n');
            }
        }
        Ok(())
    }

    fn crowded(&self, page: &mut String) -> Result<()> {
        page.push_str(
            "\n## A quiet port beside a hostile one\n\n\
             The quiet port maps a quarter of the host's pages; then another port maps random pages, four times as \
             many as the table has slots. With the quota a full row loses a page of the port that holds most of it; \
             without, any page (thesis 4.3.1). *Bound*: the quiet port's own chance at half the row depth.\n\n\
             | layout | rows a page | alone | bound | with quota | without |\n|---|---|---|---|---|---|\n",
        );
        for crowding in &self.crowding {
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} |",
                crowding.layout,
                crowding.rows_per_page,
                chance(crowding.alone),
                chance(crowding.bound),
                chance(crowding.measured),
                chance(crowding.without_quota),
            )?;
        }
        Ok(())
    }
}

fn names() -> [(&'static str, &'static str); 4] {
    const fn of<L: Layout>() -> (&'static str, &'static str) {
        (L::NAME, L::TEXT)
    }
    [of::<Shipped>(), of::<SplitArrays>(), of::<Row4>(), of::<Tags>()]
}

fn chance(chance: f64) -> String {
    if chance < 1e-12 {
        "0".to_owned()
    } else {
        format!("{chance:.1e}")
    }
}
