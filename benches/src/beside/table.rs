//! A table of ratios.

use anyhow::Result;
use std::fmt::Write as _;

use super::compare::Compared;

/// Adds the table, in Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn table(page: &mut String, rows: &[Compared]) -> Result<()> {
    page.push_str(HEADING);
    rows.iter().try_for_each(|row| line(page, row))
}

const HEADING: &str = "| what | beside | NetVM | peer | ratio | least to most | wanted | reached |\n\
    |---|---|---|---|---|---|---|---|\n";

/// Three digits that mean something.
fn digits(value: f64) -> String {
    match value.abs() {
        0.0..0.1 => format!("{value:.4}"),
        0.1..1.0 => format!("{value:.3}"),
        1.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn line(page: &mut String, row: &Compared) -> Result<()> {
    let [least, most] = row.spread.map(digits);
    writeln!(
        page,
        "| {} | {} | {} {unit} | {} {unit} | {} | {least} to {most} | {} | {} |",
        row.what,
        row.with,
        digits(row.ours),
        digits(row.theirs),
        digits(row.ratio),
        row.wanted,
        row.reached
            .map_or("", |reached| if reached { "yes" } else { "NO" }),
        unit = row.unit,
    )?;
    Ok(())
}
