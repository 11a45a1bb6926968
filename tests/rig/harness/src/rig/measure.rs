//! `cargo xtask rig measure`: how much lands in place under memory pressure, what a miss costs, what an export costs.
//! Writes `rig-measured.md` and `rig-pressure.svg`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use plotters::prelude::*;
use serde_json::Value;

use super::machines::Bus;
use super::parts;
use super::rack::Rack;
use super::reports::{number, reports};
use super::scenarios::as_user;
use crate::cargo::{root, target};

/// Options of `cargo xtask rig measure`.
#[derive(Args)]
pub struct Options {
    /// Where the files go.
    #[arg(long, value_name = "FOLDER", default_value_os_t = root().join("docs/evaluation"))]
    to: PathBuf,
}

/// What is exported, in KiB, and what the program needs beside that.
const EXPORTED: u64 = 8 << 10;
const BESIDE: u64 = 1 << 10;
/// Memory that is allowed, in per cent of what is exported.
const ALLOWED: [u64; 8] = [120, 100, 90, 80, 65, 50, 40, 30];
const LIMIT: Duration = Duration::from_secs(300);

/// A point of the plot.
struct Share {
    allowed: u64,
    in_place: u64,
    bounced: u64,
}

impl Share {
    fn percent(&self) -> f64 {
        100.0 * self.in_place as f64 / (self.in_place + self.bounced).max(1) as f64
    }
}

/// Measures everything.
pub(crate) fn measure(options: &Options) -> Result<bool> {
    let interrupted = super::interrupts()?;
    let Some(parts) = parts::ready(false)? else {
        return Ok(false);
    };
    // One processor each: with two, they wait for each other's locks most of the time.
    let logs = target().join("rig/logs/measure");
    let mut rack = Rack::start(&parts, &logs, 1, 1, Bus::Plain, &interrupted)?;
    for host in &mut rack.hosts {
        host.device()?;
    }
    let exports = reports(&mut rack, &as_user("rig-measure export"), LIMIT)?;
    let misses = reports(&mut rack, &as_user("rig-measure misses"), LIMIT)?;
    let mut shares = Vec::new();
    for allowed in ALLOWED {
        shares.push(share(&mut rack, allowed)?);
    }
    rack.is_sound()?;
    let text = page(&exports, &misses, &shares)?;
    std::fs::write(options.to.join("rig-measured.md"), &text)?;
    plot(&shares, &options.to.join("rig-pressure.svg"))?;
    print!("{text}");
    Ok(true)
}

fn share(rack: &mut Rack, allowed: u64) -> Result<Share> {
    let kib = EXPORTED * allowed / 100 + BESIDE;
    let limit = format!(
        "G=/sys/fs/cgroup/app; mkdir -p $G; test $(hostname) = host-1 && echo {kib}K > $G/memory.max; "
    );
    let program = format!("rig-measure share --mib {} --cgroup $G", EXPORTED >> 10);
    let [_, exporter] = reports(rack, &format!("{limit}{}", as_user(&program)), LIMIT)?;
    let share = Share {
        allowed,
        in_place: number(&exporter, "in_place")?,
        bounced: number(&exporter, "bounced")?,
    };
    ensure!(share.in_place + share.bounced > 0, "nothing arrived: {exporter}");
    Ok(share)
}

fn page([_, exports]: &[Value; 2], [writer, exporter]: &[Value; 2], shares: &[Share]) -> Result<String> {
    let mut text = "# The rig, measured\n\n\
        `cargo xtask rig measure` writes this page. Hosts and cards are emulated (QEMU without KVM, one processor each), so times \
        are good for comparison with each other only.\n\n\
        ## Misses\n\n\
        A word is written to a page that the exporter's process has not mapped, and its landing is waited for; the middle of 64 \
        pages, no two of them neighbours. What a hit takes is taken off, so the third column is what the miss adds, from frame \
        to data in place. Beside it, the same page touched by the exporter itself.\n\n\
        | page | remote, a miss | remote, a hit | the miss alone | the exporter's own fault |\n\
        |---|---|---|---|---|\n"
        .to_owned();
    for (name, about) in [
        ("untouched", "never touched"),
        ("cached", "in the page cache (minor)"),
        ("swapped", "swapped out (major)"),
    ] {
        let missed = number(&writer[name], "missed_ns")?;
        let hit = number(&writer[name], "hit_ns")?;
        let fault = number(&exporter[name], "fault_ns")?;
        let micros = |nanos: u64| format!("{:.0} us", nanos as f64 / 1000.0);
        text += &format!(
            "| {about} | {} | {} | {} | {} |\n",
            micros(missed),
            micros(hit),
            micros(missed.saturating_sub(hit)),
            micros(fault)
        );
    }
    text += "\n## Exports of memory that was never touched\n\n| size | adopt and export | end of both |\n|---|---|---|\n";
    for gib in [1, 64] {
        let times = &exports[format!("gib_{gib}")];
        text += &format!(
            "| {gib} GiB | {} us | {} us |\n",
            number(times, "export_us")?,
            number(times, "unexport_us")?
        );
    }
    text += &format!(
        "\n## Memory pressure\n\n\
         {} MiB are exported; the exporter's control group may keep so much of that in memory, and {} KiB for all else that it needs \
         (classic LRU, swap in memory). Pages are written whole, half of them to an eighth of the memory, the others anywhere.\n\n\
         ![share in place over memory allowed](rig-pressure.svg)\n\n\
         | allowed, % of exported | landed in place | bounced | in place |\n|---|---|---|---|\n",
        EXPORTED >> 10,
        BESIDE
    );
    for share in shares {
        text += &format!(
            "| {} | {} | {} | {:.0} % |\n",
            share.allowed,
            share.in_place,
            share.bounced,
            share.percent()
        );
    }
    Ok(text)
}

fn plot(shares: &[Share], file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, (720, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(20_f64..130_f64, 0_f64..105_f64)?;
    chart
        .configure_mesh()
        .x_desc("memory allowed, % of what is exported")
        .y_desc("pages that land in place, %")
        .draw()?;
    let points: Vec<_> = shares
        .iter()
        .map(|share| (share.allowed as f64, share.percent()))
        .collect();
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE))?;
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, BLUE.filled())))?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_tells_what_was_measured() {
        let times = json!({"missed_ns": 900_000, "hit_ns": 400_000, "fault_ns": 70_000});
        let all = json!({"untouched": times, "cached": times, "swapped": times});
        let exports = json!({"gib_1": {"export_us": 11, "unexport_us": 12}, "gib_64": {"export_us": 13, "unexport_us": 14}});
        let shares = [Share {
            allowed: 50,
            in_place: 1,
            bounced: 3,
        }];
        let text = page(&[Value::Null, exports], &[all.clone(), all], &shares).expect("all is there");
        assert!(
            text.contains("| swapped out (major) | 900 us | 400 us | 500 us | 70 us |"),
            "{text}"
        );
        assert!(text.contains("| 64 GiB | 13 us | 14 us |"), "{text}");
        assert!(text.contains("| 50 | 1 | 3 | 25 % |"), "{text}");
    }
}
