//! The plot of `docs/evaluation/sync-locality.svg`.

use anyhow::{Result, anyhow};
use netvm_bench_sync::locality::{KINDS, Point};
use plotters::prelude::*;
use std::path::Path;

/// Of one chart.
const WIDTH: u32 = 300;
const HEIGHT: u32 = 250;
const COLORS: [RGBColor; 3] = [
    RGBColor(70, 120, 180),
    RGBColor(80, 150, 90),
    RGBColor(200, 70, 60),
];

/// Draws throughput over locality: a row of charts for each number of nodes, a column for each number of locks.
///
/// # Errors
/// The file cannot be written.
pub fn locality(points: &[Point], file: &Path) -> Result<()> {
    draw(points, file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort();
    values.dedup();
    values
}

fn draw(points: &[Point], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let nodes = sorted(points.iter().map(|point| point.setting.nodes));
    let locks = sorted(points.iter().map(|point| point.setting.locks));
    let size = (WIDTH * locks.len() as u32, HEIGHT * nodes.len() as u32 + 60);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "Acquisitions in a microsecond of virtual time, by how many of a hundred are of the process' own node",
        (12, 10),
        ("sans-serif", 18).into_font(),
    ))?;
    for (at, kind) in (0..).zip(KINDS) {
        let left = 12 + 120 * at;
        let style = COLORS[at as usize].stroke_width(3);
        root.draw(&PathElement::new(vec![(left, 44), (left + 24, 44)], style))?;
        root.draw(&Text::new(
            kind.label(),
            (left + 30, 37),
            ("sans-serif", 15).into_font(),
        ))?;
    }
    let (_, charts) = root.split_vertically(60);
    let areas = charts.split_evenly((nodes.len(), locks.len()));
    let most = points.iter().map(|point| point.mops).fold(1.0, f64::max) * 1.5;
    let least = points
        .iter()
        .map(|point| point.mops)
        .fold(most, f64::min)
        .max(0.01)
        / 1.5;
    let each = nodes
        .iter()
        .flat_map(|&nodes| locks.iter().map(move |&locks| (nodes, locks)));
    for (area, (nodes, locks)) in areas.iter().zip(each) {
        let plural = if locks == 1 { "" } else { "s" };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .caption(format!("{nodes} nodes, {locks} lock{plural}"), ("sans-serif", 15))
            .x_label_area_size(24)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..100.0, (least..most).log_scale())?;
        chart
            .configure_mesh()
            .x_labels(5)
            .x_label_formatter(&|x| format!("{x:.0} %"))
            .y_label_formatter(&|y| format!("{y}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (kind, color) in KINDS.into_iter().zip(COLORS) {
            let mut line: Vec<(f64, f64)> = points
                .iter()
                .filter(|point| {
                    (point.setting.nodes, point.setting.locks, point.setting.kind) == (nodes, locks, kind)
                })
                .map(|point| (f64::from(point.setting.local_percent), point.mops.max(least)))
                .collect();
            line.sort_by(|one, other| one.0.total_cmp(&other.0));
            let style = color.stroke_width(3);
            chart.draw_series(LineSeries::new(line.clone(), style))?;
            chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
        }
    }
    root.present()?;
    Ok(())
}
