//! `cargo xtask module`: `netvm.ko` of `kernel-driver/module`, for the kernel of `cargo xtask kernel`.
//!
//! Kbuild knows no cargo, and cargo no Kbuild. So cargo builds the crates for the kernel ([`crates`]), and Kbuild gets
//! what they became beside the module's sources ([`stage`]).

mod crates;
mod stage;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::cargo::{root, target};
use crate::kernel::tools::{self, Tools};
use crate::kernel::{self, Kernel};

/// Options of `cargo xtask module`.
#[derive(Args)]
#[command(after_help = "The kernel is built first if the cache has it not; see `cargo xtask kernel --help`.")]
pub struct Options {
    /// For the kernel with lock, memory and sleep checks.
    #[arg(long)]
    debug: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// A built module.
#[derive(Serialize)]
pub(crate) struct Module {
    /// `netvm.ko`.
    pub(crate) module: PathBuf,
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// What it is for.
    pub(crate) kernel: Kernel,
}

/// `cargo xtask module`. `Ok(false)`: a compiler has said on stderr what is wrong.
///
/// # Errors
/// What is missing, or what stopped the build.
pub fn module(options: &Options) -> Result<bool> {
    let Some(module) = build(options.debug)? else {
        return Ok(false);
    };
    if options.json {
        println!("{}", serde_json::to_string(&module)?);
    } else {
        println!(
            "{} ({} KiB), for Linux {}{}",
            module.module.display(),
            module.bytes.div_ceil(1024),
            module.kernel.version,
            if module.kernel.debug { " with checks" } else { "" }
        );
    }
    Ok(true)
}

/// Builds it; `None` if a compiler has said on stderr what is wrong.
pub(crate) fn build(debug: bool) -> Result<Option<Module>> {
    let kernel = kernel::ready(debug)?;
    let tools = tools::ready()?;
    let name = kernel.tree.file_name().context("a kernel without a name")?;
    let folder = target().join("module").join(name);
    let Some(crates) = crates::build(&tools, &kernel.tree, &folder.join("crates"))? else {
        return Ok(None);
    };
    let stage = folder.join("kbuild");
    stage::lay(&root().join("kernel-driver/module"), &stage, &crates)?;
    let Some(module) = make(&tools, &kernel, &stage, "netvm.ko")? else {
        return Ok(None);
    };
    Ok(Some(Module {
        bytes: std::fs::metadata(&module)?.len(),
        module,
        kernel,
    }))
}

/// Builds a module of C for the same kernel: where it is, or `None` as [`build`].
pub(crate) fn build_plain(kernel: &Kernel, sources: &Path, name: &str) -> Result<Option<PathBuf>> {
    let tree = kernel.tree.file_name().context("a kernel without a name")?;
    let stage = target().join("module").join(tree).join(name);
    stage::lay(sources, &stage, &[])?;
    make(&tools::ready()?, kernel, &stage, &format!("{name}.ko"))
}

/// Has Kbuild build what lies in `stage`.
fn make(tools: &Tools, kernel: &Kernel, stage: &Path, result: &str) -> Result<Option<PathBuf>> {
    let mut make = tools.make(&kernel.tree);
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    make.arg(format!("M={}", stage.display()))
        .arg(format!("-j{jobs}"))
        .arg("modules");
    // What the compilers say goes where ours goes: stdout is for the result.
    make.stdin(Stdio::null()).stdout(std::io::stderr());
    if !make.status().context("cannot start make")?.success() {
        return Ok(None);
    }
    let module = stage.join(result);
    if !module.is_file() {
        bail!("make left no {}", module.display());
    }
    Ok(Some(module))
}
