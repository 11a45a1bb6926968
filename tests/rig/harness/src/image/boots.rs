//! The tests of the stage `image`: boots the image in QEMU once for each thing that it must report.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use netvm_abi::Geometry;

use super::memory::Memory;
use super::{QEMU, build, have_qemu, have_target, hosted, icount, image, in_folder, network, stuck};
use crate::cargo::{cargo, target};
use crate::exec::tail;

/// Where the image looks for what a test asks of it (`src/board/qemu_virt/mod.rs`).
const BOOT_WORD: u32 = 0x4007_0000;

/// Boot words, and what the log must then say.
const BOOTS: [(&str, u32, &[&str]); 6] = [
    (
        "self test",
        1,
        &[
            "NetVM firmware",
            "translation and caches are on",
            "SELF TEST PASSED",
        ],
    ),
    (
        "exception",
        2,
        &[
            "EXCEPTION: data abort",
            "synchronous exception",
            "FAR=0x60000000",
            "ELR=0x400",
            "HALTED",
        ],
    ),
    (
        "panic",
        3,
        &[
            "PANIC: panicked at src/main.rs",
            "as the boot word asks",
            "HALTED",
        ],
    ),
    ("hang", 4, &["WATCHDOG: the loop has not moved", "HALTED"]),
    ("stack overflow", 5, &["EXCEPTION: data abort", "HALTED"]),
    (
        "loopback",
        6,
        &[
            "two linked cards",
            "node 0: 600 messages sent, 600 landed, 599 zero-copy, 1 bounced, 200 notifications",
            "node 1: 600 messages sent, 600 landed, 599 zero-copy, 1 bounced, 200 notifications",
            "SELF TEST PASSED",
        ],
    ),
];

/// Builds and lints the image, and boots it once for each thing that it must report. `exec` runs a command; the answer is
/// one line for a person.
///
/// # Errors
/// What is missing, or which boot did not report what it must.
pub fn test(exec: &mut dyn FnMut(&mut Command) -> Result<()>) -> Result<String> {
    have_qemu()?;
    have_target()?;
    exec(in_folder(&mut cargo(&[
        "clippy",
        "--release",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])))?;
    exec(&mut build())?;
    for (name, word, says) in BOOTS {
        let log = log_of(&word.to_string());
        exec(&mut boot(word, &log)).with_context(|| format!("boot '{name}': QEMU did not end by itself"))?;
        let text = tail(&log, 20_000);
        for expected in says {
            if !text.contains(expected) {
                bail!(
                    "boot '{name}': the log does not say '{expected}': {}",
                    log.display()
                );
            }
        }
    }
    icount::count()?;
    let seen = network::run()?;
    // The image's types are compiled for another machine: they must be as large as here. Its tests are smaller than a card.
    for line in Memory::new(&Geometry::default()).lines() {
        if !seen.logs.iter().all(|log| log.contains(&line)) {
            bail!("the image does not say '{line}': {}", log_of("node-0").display());
        }
    }
    stuck::run()?;
    let hosted = hosted::run()?;
    Ok(format!(
        "{} boots; idle at {:.1} % of a core; {} frames lost and made good; hosts outside: {} us an exchange, {} calls",
        BOOTS.len() + 8,
        seen.idle.max(hosted.idle) * 100.0,
        seen.lost,
        hosted.exchange.as_micros(),
        hosted.rings
    ))
}

/// The machine stays in QEMU's parallel mode: with one processor at most, QEMU would leave out barriers and atomics.
fn boot(word: u32, log: &Path) -> Command {
    let mut command = machine(word, log);
    command.args([
        "-accel",
        "tcg,thread=multi",
        "-smp",
        "1,maxcpus=2",
        "-nic",
        "none",
    ]);
    command
}

/// A machine that boots the image, but for its accelerator, processors and network.
pub(super) fn machine(word: u32, log: &Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(Duration::from_secs(60).as_secs().to_string())
        .arg(QEMU);
    arguments(&mut command, word, log);
    command
}

/// The same, for a caller that ends it.
pub(super) fn machine_alone(word: u32, log: &Path) -> Command {
    let mut command = Command::new(QEMU);
    arguments(&mut command, word, log);
    command
}

fn arguments(command: &mut Command, word: u32, log: &Path) {
    // A log of before must not speak for this boot; where it cannot be written, QEMU says so.
    if let Some(folder) = log.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = std::fs::remove_file(log);
    command.args(["-M", "virt", "-cpu", "cortex-a72", "-m", "128M"]);
    command.args(["-display", "none", "-monitor", "none"]);
    command.arg("-serial").arg(format!("file:{}", log.display()));
    command
        .arg("-device")
        .arg(format!("loader,addr={BOOT_WORD:#x},data={word},data-len=4"));
    command.arg("-kernel").arg(image());
}

/// Where a boot's log goes.
pub(super) fn log_of(name: &str) -> PathBuf {
    target().join("xtask").join(format!("image-{name}.log"))
}
