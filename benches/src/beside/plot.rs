//! A plot of ratios.

use super::compare::Compared;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const BETTER: RGBColor = RGBColor(80, 150, 90);
const WORSE: RGBColor = RGBColor(200, 70, 60);
const NO_GOAL: RGBColor = RGBColor(70, 120, 180);
const LINES: RGBColor = RGBColor(120, 120, 120);

/// How many times as fast as the peer: of times, the ratio turned round.
fn speed(row: &Compared, ratio: f64) -> f64 {
    if row.is_rate { ratio } else { 1.0 / ratio }
}

/// Draws a bar for each comparison, on a logarithmic axis: how many times as fast as its peer NetVM is. A line across a bar is
/// the goal.
///
/// # Errors
/// The file cannot be written.
pub fn ratios(rows: &[Compared], file: &Path) -> Result<()> {
    draw(rows, file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

fn draw(rows: &[Compared], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const LEFT: i32 = 470;
    const RIGHT: i32 = 860;
    const TOP: i32 = 66;
    const EACH: i32 = 24;
    let height = TOP + EACH * rows.len() as i32 + 12;
    let root = SVGBackend::new(file, (900, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| ("sans-serif", size).into_font();
    root.draw(&Text::new(
        "How many times as fast as its peer NetVM is",
        (12, 10),
        text(18),
    ))?;
    root.draw(&Text::new(
        "green: the goal (dark line) is reached; red: it is not; blue: none",
        (12, 34),
        text(13),
    ))?;
    // From a thousandth to a thousand times.
    let place = |speed: f64| {
        let share = (speed.log10().clamp(-3.0, 3.0) + 3.0) / 6.0;
        LEFT + (share * f64::from(RIGHT - LEFT)).round() as i32
    };
    for power in -3..=3 {
        let at = place(10f64.powi(power));
        root.draw(&PathElement::new(
            vec![(at, TOP - 6), (at, height - 8)],
            LINES.mix(if power == 0 { 1.0 } else { 0.25 }),
        ))?;
        let name = 10f64.powi(power);
        root.draw(&Text::new(format!("{name} x"), (at - 12, TOP - 22), text(13)))?;
    }
    for (at, row) in (0..).zip(rows) {
        let top = TOP + EACH * at;
        let name = format!("{}: {}", row.what, row.with);
        let short: String = name.chars().take(74).collect();
        root.draw(&Text::new(short, (12, top + 4), text(13)))?;
        let color = match row.reached {
            Some(true) => BETTER,
            Some(false) => WORSE,
            None => NO_GOAL,
        };
        let (one, end) = (place(1.0), place(speed(row, row.ratio)));
        root.draw(&Rectangle::new(
            [
                (one.min(end), top + 3),
                (one.max(end).max(one.min(end) + 1), top + 17),
            ],
            color.filled(),
        ))?;
        if let Some(goal) = row.goal {
            let at = place(speed(row, goal));
            root.draw(&PathElement::new(
                vec![(at, top), (at, top + 20)],
                BLACK.stroke_width(2),
            ))?;
        }
    }
    root.present()?;
    Ok(())
}
