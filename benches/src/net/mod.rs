//! Connections beside TCP over loopback: page and plot of `docs/evaluation/net*`, out of several runs of `netvm bench net`.

use crate::beside::compare::{Compared, line, row, spread};
use crate::beside::plot;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::fmt::Write as _;
use std::path::Path;

/// What `netvm bench net --json` prints, as far as it is used here.
#[derive(Debug, Deserialize)]
pub struct Run {
    round_trip_us: f64,
    tcp_round_trip_us: f64,
    latency_ratio: f64,
    connections: u32,
    one_per_second: f64,
    many_per_second: f64,
    throughput_ratio: f64,
    idle_bytes_client: f64,
    idle_bytes_server: f64,
    bandwidth: Vec<Bandwidth>,
}

#[derive(Debug, Deserialize)]
struct Bandwidth {
    way: String,
    megabytes_per_second: f64,
}

/// What was found when this was measured; written by hand.
const WHY: &str = include_str!("why.md");

/// Writes page and plot into `folder`. Gives the page.
///
/// # Errors
/// They cannot be written.
pub fn write(runs: &[Run], folder: &Path) -> Result<String> {
    let rows = rows(runs);
    plot::ratios(&rows, &folder.join("net.svg"))?;
    let page = page(runs, &rows);
    let file = folder.join("net.md");
    std::fs::write(&file, &page).with_context(|| format!("writing {}", file.display()))?;
    Ok(page)
}

/// All comparisons.
fn rows(runs: &[Run]) -> Vec<Compared> {
    let latency = |run: &Run| (run.round_trip_us, run.tcp_round_trip_us, run.latency_ratio);
    let many = |run: &Run| {
        (
            run.many_per_second / 1e6,
            run.one_per_second / 1e6,
            run.throughput_ratio,
        )
    };
    let mut rows = vec![
        row(
            ("64 B there and back", "TCP over loopback", "us"),
            false,
            Some(0.5),
            runs.iter().map(latency).collect(),
        ),
        row(
            ("64 B over 10,000 connections", "over one", "million/s"),
            true,
            Some(0.9),
            runs.iter().map(many).collect(),
        ),
    ];
    for (way, what) in [
        ("message", "1 MiB writes, by messages"),
        ("write", "1 MiB writes, by writes"),
        ("read", "1 MiB writes, by reads"),
        ("auto", "1 MiB writes, as load says"),
    ] {
        let of = |run: &Run, way: &str| {
            let found = run.bandwidth.iter().find(|row| row.way == way);
            found.map_or(f64::NAN, |row| row.megabytes_per_second / 1e3)
        };
        let values = runs.iter().map(|run| {
            let (ours, tcp) = (of(run, way), of(run, "TCP"));
            (ours, tcp, ours / tcp)
        });
        rows.push(row(
            (what, "TCP over loopback", "GB/s"),
            true,
            None,
            values.collect(),
        ));
    }
    rows
}

fn page(runs: &[Run], rows: &[Compared]) -> String {
    let connections = runs.first().map_or(0, |run| run.connections);
    let mut text = format!(
        "# Connections, measured\n\n\
         Written by `cargo xtask bench net`, which runs `netvm bench net --json` {} times and takes the medians. `netvm bench net` measures and \
         prints the same once, in some seconds with `--quick`.\n\n\
         Two processes of one machine, each a node of the software card, over shared memory. One thread of each is in a call; both \
         spin for 50 us before they sleep. TCP over loopback is measured in the same run, in turns, with `TCP_NODELAY` and blocking calls. The {connections} connections are written to in \
         turn by one thread, and read by futures of one other thread, and so is the one that they are compared with. The bytes of an idle connection are the growth of resident memory \
         while they are made, by their number, the program's handle included.\n\n\
         ![ratios](net.svg)\n\n\
         | what | beside | unit | here | there | ratio | spread | wanted | reached |\n|---|---|---|---|---|---|---|---|---|\n",
        runs.len(),
    );
    // Writing to a string cannot fail.
    for row in rows {
        let _ = writeln!(text, "{}", line(row, 3));
    }
    for (what, values) in [
        (
            "the process that connects",
            runs.iter().map(|run| run.idle_bytes_client).collect(),
        ),
        (
            "the one that accepts",
            runs.iter().map(|run| run.idle_bytes_server).collect::<Vec<f64>>(),
        ),
    ] {
        let (bytes, ends) = spread(values);
        let _ = writeln!(
            text,
            "| an idle connection, in {what} | | bytes | {bytes:.0} | | | {:.0} to {:.0} | <= 256 | {} |",
            ends[0],
            ends[1],
            if bytes <= 256.0 { "yes" } else { "NO" }
        );
    }
    text.push_str(WHY);
    text
}
