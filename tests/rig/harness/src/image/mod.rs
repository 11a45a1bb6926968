//! The firmware image of `nic-firmware/image`: builds it (`cargo xtask firmware`), says what it takes ([`sizes`],
//! [`memory`]), counts its instructions ([`icount`]) and boots it in QEMU ([`boots`]), also two of it on a
//! wire ([`network`]), and with hosts outside ([`hosted`]).

mod boots;
pub(crate) mod hosted;
mod icount;
pub(crate) mod memory;
pub(crate) mod network;
mod sizes;
mod storm;
mod stuck;

pub use boots::test;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::cargo::{cargo, output_of, root, target, works};

const TARGET: &str = "aarch64-unknown-none";
const QEMU: &str = "qemu-system-aarch64";

/// Options of `cargo xtask firmware`.
#[derive(Args)]
pub struct Options {
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Boot the image in QEMU and print the instructions of a write, step by step.
    #[arg(long)]
    icount: bool,
}

/// `cargo xtask firmware`. `Ok(false)`: the compiler has said on stderr what is wrong.
///
/// # Errors
/// What is missing, or what went wrong.
pub fn firmware(options: &Options) -> Result<bool> {
    if options.icount {
        have_qemu()?;
    }
    have_target()?;
    if !build().status().context("cannot start cargo")?.success() {
        return Ok(false);
    }
    if options.icount {
        let report = icount::count()?;
        if options.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print!("{report}");
        }
        return Ok(true);
    }
    let report = Report {
        sizes: sizes::measure(&std::fs::read(image())?)?,
        memory: memory::Memory::new(&netvm_fw_common::board::geometry()),
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}\n{}", report.sizes, report.memory);
    }
    Ok(true)
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    sizes: sizes::Sizes,
    memory: memory::Memory,
}

fn image() -> PathBuf {
    target().join("image").join(TARGET).join("release/netvm-fw")
}

pub(crate) fn build() -> Command {
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

fn have_qemu() -> Result<()> {
    if works(QEMU, &["--version"]) {
        return Ok(());
    }
    bail!("{QEMU} is missing: cargo xtask setup, or apt-get install qemu-system-arm")
}

/// Builds the image: where it is. `exec` runs a command.
///
/// # Errors
/// What is missing, or what went wrong.
pub fn ready(exec: &mut dyn FnMut(&mut Command) -> Result<()>) -> Result<PathBuf> {
    have_target()?;
    exec(&mut build())?;
    Ok(image())
}

pub(crate) fn have_target() -> Result<()> {
    let installed = || output_of("rustup", &["target", "list", "--installed"]).unwrap_or_default();
    if installed().lines().any(|line| line == TARGET) {
        return Ok(());
    }
    if works("rustup", &["target", "add", TARGET]) {
        return Ok(());
    }
    bail!("no Rust for {TARGET}: rustup target add {TARGET}")
}
