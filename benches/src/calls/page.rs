//! The page `docs/evaluation/calls.md`.

use super::plot;
use anyhow::{Context as _, Result};
use netvm_bench_calls::{Measured, Sizes};
use std::fmt::Write as _;
use std::path::Path;

/// Writes page and plot into `folder`.
///
/// # Errors
/// They cannot be written.
pub fn write(measured: &Measured, sizes: &Sizes, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let file = folder.join("calls.md");
    std::fs::write(&file, page(measured, sizes)?).with_context(|| format!("writing {}", file.display()))?;
    plot::throughput(&measured.rows, &folder.join("calls.svg"))
}

/// The page as Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn page(measured: &Measured, sizes: &Sizes) -> Result<String> {
    let mut page = format!(
        "# Remote calls, measured\n\n\
         Written by `cargo xtask bench calls`. `netvm bench calls` measures and prints the same; `--quick` takes some seconds, \
         `--json` prints one object.\n\n\
         Two processes of one machine with {} processors, each on one of its own, linked by the software card in shared memory. One calls, the other runs a function that reads its \
         argument and counts. All ways of a row are measured in turn, {} times; throughputs are medians, and so are the ratios of each turn. \
         A way's time ends when the last call has run at the other side, or the last write has landed. \
         The times are this machine's, and noisy where other programs run; read the ratios.\n\n\
         ## Throughput, by size\n\n\
         In MB of arguments a second. *Send*: messages of a [channel](../../userlib/src/channel/mod.rs), which run nothing. *Write*: each call leaves by a write \
         of its own. *Packed*: calls leave together, 16 KiB at a time. *Overflow*: alone while there is room, packed while there is none. \
         *Raw*: plain writes of as many bytes, which run nothing.\n\n\
         ![throughput by size](calls.svg)\n\n\
         | size, B | send | write | packed | overflow | raw | raw, 4 KiB | million packed calls a second | calls in a write |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        processors(),
        sizes.turns
    );
    for row in &measured.rows {
        writeln!(
            page,
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} |",
            row.bytes,
            row.send,
            row.write,
            row.packed,
            row.overflow,
            row.raw,
            row.raw_page,
            row.million_calls,
            row.calls_per_write
        )?;
    }
    writeln!(
        page,
        "\n## What packing gains\n\n\
         | size, B | packed by write | packed by raw writes of 4 KiB | overflow by raw writes of as many bytes |\n|---|---|---|---|"
    )?;
    for row in &measured.rows {
        writeln!(
            page,
            "| {} | {:.1} | {:.2} | {:.2} |",
            row.bytes, row.gain, row.of_raw_page, row.overflow_of_raw
        )?;
    }
    writeln!(
        page,
        "\nA call and its result, there and back, take {:.1} us (median).\n\n\
         ## What is wanted\n\n| goal | wanted | measured | reached |\n|---|---|---|---|",
        measured.round_trip_nanos / 1e3
    )?;
    for goal in &measured.goals {
        let reached = if goal.is_reached() { "yes" } else { "no" };
        writeln!(
            page,
            "| {} | {} | {:.2} | {reached} |",
            goal.what, goal.wanted, goal.measured
        )?;
    }
    page.push_str(WHY);
    Ok(page)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a person has to know to read it; written by hand.
const WHY: &str = "
## How to read it

- Seriema's table 2 has the same columns on InfiniBand: its *trad* is *packed*, its *max-raw* is *raw*. There packing gains 58, 15 and 5 times at 8,
  64 and 256 B, because a card's message costs much more than a call. The software card's message costs a few hundred
  nanoseconds, so there is less to gain.
- A plain write needs the caller's thread and the other side's card. A call also needs the thread that runs it, and its batch is copied once more: out of
  memory that its caller could still change. On a machine with two processors these share what one has.
";
