//! The plot of `docs/evaluation/layout-evictions.svg`.

use super::measure::{Curve, LOADS};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 560);
const LOWEST: f64 = 1e-6;

/// Draws computed chances as lines and measured ones (random pages) as dots.
///
/// # Errors
/// The file cannot be written.
pub fn evictions(curves: &[Curve], file: &Path) -> Result<()> {
    draw(curves, file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(curves: &[Curve], file: &Path) -> Drawn {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption("A mapped page is not found in the page table", ("sans-serif", 20))
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.05..1.72, (LOWEST..0.3).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("load: mapped pages / pages of the host")
        .y_desc("probability per look-up")
        .x_labels(18)
        .x_label_formatter(&|x| {
            if *x < 1.05 {
                format!("{x:.1}")
            } else {
                String::new()
            }
        })
        .y_label_formatter(&|y| format!("{y:.0e}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let load = |tenth: usize| (tenth + 1) as f64 / f64::from(LOADS);
    let mut seen: Vec<&str> = Vec::new();
    for curve in curves {
        let smaller = seen.contains(&curve.layout);
        if !smaller {
            seen.push(curve.layout);
        }
        let color = Palette99::pick(seen.len() - 1).to_rgba();
        let style = color.stroke_width(if smaller { 1 } else { 3 });
        let points = |values: &[f64]| -> Vec<(f64, f64)> {
            values
                .iter()
                .enumerate()
                .filter(|&(_, &chance)| chance >= LOWEST)
                .map(|(at, &chance)| (load(at), chance))
                .collect()
        };
        let label = format!("{}, {:.0} B a page", curve.layout, curve.bytes_per_page);
        chart
            .draw_series(LineSeries::new(points(&curve.computed), style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
        if let Some(random) = curve.measured.first() {
            chart.draw_series(points(random).into_iter().map(|at| Circle::new(at, 4, style)))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE)
        .border_style(TRANSPARENT)
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}
