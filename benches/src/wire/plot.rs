//! The plot of `docs/evaluation/wire.svg`.

use anyhow::{Result, anyhow};
use netvm_bench_wire::goodput::Stream;
use netvm_bench_wire::verdict::SHARES;
use plotters::prelude::*;
use std::path::Path;

/// The usual window is pale, the wide one strong.
const COLORS: [RGBColor; 8] = [
    RGBColor(160, 190, 225),
    RGBColor(165, 210, 170),
    RGBColor(235, 165, 155),
    RGBColor(215, 190, 150),
    RGBColor(50, 100, 170),
    RGBColor(50, 130, 70),
    RGBColor(195, 50, 45),
    RGBColor(140, 95, 40),
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
            other.loss > 0
                && (other.round_trip, other.bytes, other.window) == (at.round_trip, at.bytes, at.window)
        });
        lines.push((
            format!(
                "{} B, {} us, window {}",
                at.bytes,
                at.round_trip / 1_000,
                at.window
            ),
            color,
            same.map(|stream| (stream.loss() * 100.0, stream.share * 100.0))
                .collect(),
        ));
    }
    let wanted = SHARES.map(|(rate, share)| (f64::from(rate) / 1e4, share * 100.0));
    lines.push(("wanted".to_owned(), WANTED, wanted.to_vec()));

    let root = SVGBackend::new(file, (640, 460)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "Goodput, in % of what arrives when nothing is lost, by frames lost each way",
        (12, 10),
        ("sans-serif", 18).into_font(),
    ))?;
    let (head, below) = root.split_vertically(120);
    for (at, (name, color, _)) in (0..).zip(&lines) {
        let (left, line) = (12 + 205 * (at % 3), 44 + 24 * (at / 3));
        head.draw(&PathElement::new(
            vec![(left, line), (left + 20, line)],
            color.stroke_width(3),
        ))?;
        head.draw(&Text::new(
            name.clone(),
            (left + 26, line - 7),
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
