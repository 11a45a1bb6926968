//! The plot of `docs/evaluation/wire.svg`.

use anyhow::{Result, anyhow};
use netvm_bench_wire::goodput::Stream;
use netvm_bench_wire::verdict::SHARES;
use plotters::prelude::*;
use std::path::Path;

const COLORS: [RGBColor; 4] = [
    RGBColor(70, 120, 180),
    RGBColor(80, 150, 90),
    RGBColor(200, 70, 60),
    RGBColor(150, 110, 60),
];
const WANTED: RGBColor = RGBColor(150, 150, 150);

/// Its name, its color, its points.
type Line = (String, RGBColor, Vec<(f64, f64)>);

/// Draws goodput over loss: a line for each kind of stream, and what is wanted.
///
/// # Errors
/// The file cannot be written.
pub fn goodput(streams: &[Stream], file: &Path) -> Result<()> {
    draw(streams, file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

fn draw(streams: &[Stream], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut lines: Vec<Line> = Vec::new();
    let whole = streams.iter().filter(|stream| stream.setting.loss == 0);
    for (stream, color) in whole.zip(COLORS.into_iter().cycle()) {
        let at = stream.setting;
        let same = streams.iter().filter(|other| {
            let other = other.setting;
            other.loss > 0 && (other.round_trip, other.bytes) == (at.round_trip, at.bytes)
        });
        lines.push((
            format!("{} B, {} us", at.bytes, at.round_trip / 1_000),
            color,
            same.map(|stream| (stream.loss() * 100.0, stream.share * 100.0))
                .collect(),
        ));
    }
    let wanted = SHARES.map(|(rate, share)| (f64::from(rate) / 1e4, share * 100.0));
    lines.push(("wanted".to_owned(), WANTED, wanted.to_vec()));

    let root = SVGBackend::new(file, (640, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "Goodput, in % of what arrives when nothing is lost, by frames lost each way",
        (12, 10),
        ("sans-serif", 18).into_font(),
    ))?;
    let (head, below) = root.split_vertically(60);
    for (at, (name, color, _)) in (0..).zip(&lines) {
        let left = 12 + 122 * at;
        head.draw(&PathElement::new(
            vec![(left, 44), (left + 20, 44)],
            color.stroke_width(3),
        ))?;
        head.draw(&Text::new(
            name.clone(),
            (left + 26, 37),
            ("sans-serif", 14).into_font(),
        ))?;
    }
    let mut chart = ChartBuilder::on(&below)
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(44)
        .build_cartesian_2d((0.08..40.0).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| format!("{x} %"))
        .y_label_formatter(&|y| format!("{y:.0} %"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (_, color, line) in lines {
        chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(3)))?;
        chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    root.present()?;
    Ok(())
}
