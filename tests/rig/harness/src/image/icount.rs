//! `cargo xtask firmware --icount`: instructions of a write in the image.
//!
//! QEMU counts (`-icount shift=0`, one thread: virtual time is instructions), the image reads its processor's event
//! counter for retired instructions, which QEMU makes of that count, and checks it with loops of known length first.

use std::fmt;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::boots::{self, log_of};
use super::{QEMU, have_qemu};
use crate::cargo::root;

/// Boot word: count.
const COUNT: u32 = 7;

/// Steps, as the image and `docs/evaluation/instructions.csv` name them.
const STEPS: [(&str, &str); 18] = [
    ("command_8", "NIC: descriptor to frame, 8 B"),
    ("command_4096", "NIC: descriptor to source DMA, 4 KiB"),
    ("fetched_4096", "NIC: source DMA done to frame, 4 KiB"),
    ("frame_8", "NIC: frame to DMA, 8 B"),
    ("frame_4096", "NIC: frame to DMA, 4 KiB"),
    ("frame_miss", "NIC: frame to bounce DMA, page not there"),
    (
        "landed",
        "NIC: DMA done to landed, with its share of acknowledgements",
    ),
    ("notification", "NIC: deliver a notification"),
    ("landed_miss", "NIC: bounce DMA done to the host's event"),
    ("lock_hit", "page: look-up, lock, dirty unlock"),
    ("lock_second_row", "page: the same in the last place looked at"),
    ("lock_miss", "page: look-up of a page that is not there"),
    ("send_8", "image: hand 8 B to the loopback (in command_8)"),
    ("send_4096", "image: hand 4 KiB to the loopback (in fetched_4096)"),
    ("clock", "image: read the clock (once a pass)"),
    (
        "whole_8",
        "whole: an 8 B write, doorbell to landed, both cards, 16 at a time",
    ),
    (
        "whole_4096",
        "whole: a 4 KiB write, the same, its three copies included",
    ),
    ("idle_pass", "loop: a pass that finds nothing"),
];

#[derive(Serialize)]
struct Step {
    name: &'static str,
    text: &'static str,
    instructions: f64,
    /// What `cargo xtask bench path` wrote down, for x86-64.
    x86_64: Option<f64>,
}

/// All of them.
#[derive(Serialize)]
pub(super) struct Report {
    counter: &'static str,
    calibration: String,
    not_counted: &'static str,
    steps: Vec<Step>,
}

/// Boots the image and reads its counts.
pub(super) fn count() -> Result<Report> {
    have_qemu()?;
    let log = log_of("icount");
    let output = machine(&log)
        .output()
        .with_context(|| format!("starting {QEMU}"))?;
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    if !output.status.success() || !text.contains("SELF TEST PASSED") {
        bail!(
            "the image did not count ({}): {}\n{text}{}",
            output.status,
            log.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let before = std::fs::read_to_string(root().join("docs/evaluation/instructions.csv")).unwrap_or_default();
    let steps = STEPS.iter().map(|&(name, description)| {
        Ok(Step {
            name,
            text: description,
            instructions: counted(&text, name)
                .with_context(|| format!("the image did not count '{name}'"))?,
            x86_64: before
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(',')?.parse().ok()),
        })
    });
    let calibration = text.lines().find_map(|line| line.split_once("CALIBRATED: "));
    Ok(Report {
        counter: "PMEVCNTR0_EL0, event INST_RETIRED, under QEMU -icount shift=0",
        calibration: calibration
            .context("the counter was not calibrated")?
            .1
            .to_owned(),
        not_counted: "the library's posting (post_8, post_4096): it needs an operating system",
        steps: steps.collect::<Result<_>>()?,
    })
}

/// The count of a step: instructions and rounds stand in the log.
fn counted(log: &str, name: &str) -> Option<f64> {
    log.lines().find_map(|line| {
        let mut words = line.split_once("COUNT ")?.1.split_whitespace();
        if words.next()? != name {
            return None;
        }
        let (sum, rounds): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (rounds > 0.0).then(|| sum / rounds)
    })
}

/// One processor and one thread: this machine shares no memory, and counting needs it.
fn machine(log: &std::path::Path) -> Command {
    let mut command = boots::machine(COUNT, log);
    command.args(["-accel", "tcg,thread=single", "-smp", "1", "-nic", "none"]);
    command.args(["-icount", "shift=0,sleep=off"]);
    command
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<66}{:>8}{:>9}", "instructions of one", "image", "x86-64")?;
        for step in &self.steps {
            let other = step.x86_64.map(|count| format!("{count:.0}")).unwrap_or_default();
            writeln!(f, "{:<66}{:>8.0}{other:>9}", step.text, step.instructions)?;
        }
        writeln!(f, "counted by {}; {}", self.counter, self.calibration)?;
        writeln!(f, "not counted: {}", self.not_counted)?;
        writeln!(
            f,
            "x86-64: docs/evaluation/instructions.csv, by cargo xtask bench path"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_out_of_the_log() {
        let log = "[    0.1] info: COUNT landed 10 4\r\n[    0.1] info: COUNT landed_miss 9 3\r\n";
        assert_eq!(counted(log, "landed"), Some(2.5));
        assert_eq!(counted(log, "landed_miss"), Some(3.0));
        assert_eq!(counted(log, "frame_8"), None);
    }
}
