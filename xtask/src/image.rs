//! The firmware image of `nic-firmware/image`: builds it (`cargo xtask firmware`) and boots it in QEMU (stage `image`).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::cargo::{cargo, output_of, root, target, works};
use crate::exec;
use crate::run::{Context, Outcome};

const TARGET: &str = "aarch64-unknown-none";
const QEMU: &str = "qemu-system-aarch64";
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
            "FAR=0x10000000",
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

/// Options of `cargo xtask firmware`.
#[derive(Args)]
pub(crate) struct Options {
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Section {
    name: String,
    bytes: u64,
    loaded: bool,
}

#[derive(Serialize)]
struct Sizes {
    image: PathBuf,
    loaded_bytes: u64,
    static_bytes: u64,
    sections: Vec<Section>,
}

/// `cargo xtask firmware`.
pub(crate) fn firmware(options: &Options) -> Result<bool> {
    have_target()?;
    if !build().status().context("cannot start cargo")?.success() {
        return Ok(false);
    }
    let sizes = measure(&std::fs::read(image())?)?;
    if options.json {
        println!("{}", serde_json::to_string(&sizes)?);
        return Ok(true);
    }
    println!("{}", sizes.image.display());
    println!("{:<18}{:>12}  in the image", "section", "bytes");
    for section in &sizes.sections {
        let loaded = if section.loaded { "yes" } else { "no" };
        println!("{:<18}{:>12}  {loaded}", section.name, section.bytes);
    }
    println!(
        "loaded: {} bytes; static memory in all: {} bytes",
        sizes.loaded_bytes, sizes.static_bytes
    );
    Ok(true)
}

/// The stage: builds, lints and boots the image once for each thing that it must report.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !works(QEMU, &["--version"]) {
        bail!("{QEMU} is missing: cargo xtask setup, or apt-get install qemu-system-arm");
    }
    have_target()?;
    let manifest = root().join("nic-firmware/image/Cargo.toml");
    context.exec(cargo(&["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    context.exec(in_folder(&mut cargo(&[
        "clippy",
        "--release",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])))?;
    context.exec(&mut build())?;
    for (name, word, says) in BOOTS {
        let log = target().join("xtask").join(format!("image-{word}.log"));
        let _ = std::fs::remove_file(&log);
        context
            .exec(&mut boot(word, &log))
            .with_context(|| format!("boot '{name}': QEMU did not end by itself"))?;
        let text = exec::tail(&log, 20_000);
        for expected in says {
            if !text.contains(expected) {
                bail!(
                    "boot '{name}': the log does not say '{expected}': {}",
                    log.display()
                );
            }
        }
    }
    Ok(Outcome::Passed(format!("{} boots", BOOTS.len())))
}

fn image() -> PathBuf {
    target().join("image").join(TARGET).join("release/netvm-fw")
}

fn build() -> Command {
    let mut command = cargo(&["build", "--release", "--locked"]);
    in_folder(&mut command);
    command
}

/// In the image's own folder, for its target; built files go to a folder of their own.
fn in_folder(command: &mut Command) -> &mut Command {
    command
        .current_dir(root().join("nic-firmware/image"))
        .env("CARGO_BUILD_TARGET", TARGET)
        .env("CARGO_TARGET_DIR", target().join("image"))
}

/// The machine stays in QEMU's parallel mode: with one processor at most, QEMU would leave out barriers and atomics.
fn boot(word: u32, log: &std::path::Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(Duration::from_secs(60).as_secs().to_string())
        .arg(QEMU);
    command.args(["-M", "virt", "-cpu", "cortex-a72", "-accel", "tcg,thread=multi"]);
    command.args(["-smp", "1,maxcpus=2", "-m", "128M", "-nic", "none"]);
    command.args(["-display", "none", "-monitor", "none"]);
    command.arg("-serial").arg(format!("file:{}", log.display()));
    command
        .arg("-device")
        .arg(format!("loader,addr={BOOT_WORD:#x},data={word},data-len=4"));
    command.arg("-kernel").arg(image());
    command
}

fn have_target() -> Result<()> {
    let installed = || output_of("rustup", &["target", "list", "--installed"]).unwrap_or_default();
    if installed().lines().any(|line| line == TARGET) {
        return Ok(());
    }
    if works("rustup", &["target", "add", TARGET]) {
        return Ok(());
    }
    bail!("no Rust for {TARGET}: rustup target add {TARGET}")
}

/// Sections that take memory, out of a 64-bit little-endian ELF file.
fn measure(elf: &[u8]) -> Result<Sizes> {
    let number = |at: usize, len: usize| -> Result<u64> {
        let bytes = elf
            .get(at..at + len)
            .context("the image's ELF file is cut short")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |sum, &byte| (sum << 8) | u64::from(byte)))
    };
    let place = |at: usize, len: usize| Ok::<_, anyhow::Error>(usize::try_from(number(at, len)?)?);
    if elf.get(..4) != Some(b"\x7fELF") {
        bail!("the image is no ELF file");
    }
    let (table, size, count, names) = (place(0x28, 8)?, place(0x3A, 2)?, place(0x3C, 2)?, place(0x3E, 2)?);
    let strings = place(table + names * size + 0x18, 8)?;
    let mut sections = Vec::new();
    for index in 0..count {
        let at = table + index * size;
        // SHF_ALLOC: it takes memory. SHT_NOBITS: but no room in the file.
        let (kind, flags, bytes) = (number(at + 4, 4)?, number(at + 8, 8)?, number(at + 0x20, 8)?);
        if flags & 2 == 0 || bytes == 0 {
            continue;
        }
        let name = elf.get(strings + place(at, 4)?..).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        sections.push(Section {
            name: String::from_utf8_lossy(name).into_owned(),
            bytes,
            loaded: kind != 8,
        });
    }
    Ok(Sizes {
        image: image(),
        loaded_bytes: sections
            .iter()
            .filter(|section| section.loaded)
            .map(|section| section.bytes)
            .sum(),
        static_bytes: sections.iter().map(|section| section.bytes).sum(),
        sections,
    })
}
