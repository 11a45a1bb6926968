//! The plot of `docs/evaluation/calls.svg`.

use anyhow::{Result, anyhow};
use netvm_bench_calls::Row;
use plotters::prelude::*;
use std::path::Path;

/// A way to send, and its color.
type Way = (&'static str, RGBColor, fn(&Row) -> f64);

const WAYS: [Way; 6] = [
    ("packed", RGBColor(50, 100, 170), |row| row.packed),
    ("overflow", RGBColor(160, 190, 225), |row| row.overflow),
    ("write", RGBColor(50, 130, 70), |row| row.write),
    ("send", RGBColor(215, 190, 150), |row| row.send),
    ("raw", RGBColor(195, 50, 45), |row| row.raw),
    ("raw, 4 KiB", RGBColor(150, 150, 150), |row| row.raw_page),
];

/// Draws throughput over size: a line for each way.
///
/// # Errors
/// The file cannot be written.
pub fn throughput(rows: &[Row], file: &Path) -> Result<()> {
    draw(rows, file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

fn draw(rows: &[Row], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, (640, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "MB of arguments a second, by bytes of an argument",
        (12, 10),
        ("sans-serif", 18).into_font(),
    ))?;
    let (head, below) = root.split_vertically(90);
    for (at, (name, color, _)) in (0..).zip(&WAYS) {
        let (left, line) = (12 + 205 * (at % 3), 44 + 24 * (at / 3));
        head.draw(&PathElement::new(
            vec![(left, line), (left + 20, line)],
            color.stroke_width(3),
        ))?;
        head.draw(&Text::new(
            *name,
            (left + 26, line - 7),
            ("sans-serif", 14).into_font(),
        ))?;
    }
    let values = rows
        .iter()
        .flat_map(|row| WAYS.iter().map(move |(_, _, of)| of(row)));
    let most = values.fold(10.0, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(&below)
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(54)
        .build_cartesian_2d((6.0..1400.0).log_scale(), (1.0..most).log_scale())?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| format!("{x} B"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (_, color, of) in WAYS {
        let line: Vec<_> = rows
            .iter()
            .map(|row| (row.bytes as f64, of(row).max(1.0)))
            .collect();
        chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(3)))?;
        chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    root.present()?;
    Ok(())
}
