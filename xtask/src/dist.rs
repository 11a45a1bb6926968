//! `cargo xtask dist`: the Debian packages, and the stage `dist`, which tries them.
//!
//! cargo and the C compiler build what goes into them; [`tree`] lays that out beside `xtask/debian`, whose rules let debhelper do the rest.
//! The stage asks lintian, and [`clean_root`] installs the packages into a Debian that has nothing else, uses them and purges them.

mod clean_root;
mod licences;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::target;
use netvm_harness::packages::install;
use netvm_harness::{exec, kernel};

use crate::run::{Context, Outcome};
use crate::tools;

/// Runs a command; an error unless it succeeds.
type Run<'a> = dyn FnMut(&mut Command) -> Result<()> + 'a;

/// Where the packages go.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder for the packages; if not given, `target/dist`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// `cargo xtask dist`. `Ok(false)`: packages are missing, which stderr names.
pub(crate) fn dist(options: &Options) -> Result<bool> {
    if !install(&tools::DIST)? {
        return Ok(false);
    }
    let out = match &options.out {
        Some(out) => std::path::absolute(out)?,
        None => target().join("dist"),
    };
    let mut run = |command: &mut Command| {
        let status = command.status().with_context(|| format!("{command:?}"))?;
        if !status.success() {
            bail!("{command:?}: {status}");
        }
        Ok(())
    };
    let made = build(&out, &mut run)?;
    for deb in made.iter().filter(|path| is_deb(path)) {
        println!("{} ({} KiB)", deb.display(), deb.metadata()?.len().div_ceil(1024));
    }
    Ok(true)
}

fn is_deb(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb")
}

/// Makes the packages: what `dpkg-buildpackage` leaves, in `out`.
fn build(out: &Path, run: &mut Run<'_>) -> Result<Vec<PathBuf>> {
    let work = target().join("dist-build");
    // What an earlier version has left would go into the packages.
    if work.exists() {
        std::fs::remove_dir_all(&work).with_context(|| format!("clearing {}", work.display()))?;
    }
    let folder = work.join(format!("netvm-{}", tree::VERSION));
    let date = tree::lay(&folder, run)?;
    let mut dpkg = Command::new("dpkg-buildpackage");
    dpkg.current_dir(&folder)
        .args(["-b", "-us", "-uc", "--no-pre-clean"])
        .env("SOURCE_DATE_EPOCH", date)
        .env("LC_ALL", "C.UTF-8");
    run(&mut dpkg)?;
    std::fs::create_dir_all(out)?;
    let mut made = Vec::new();
    for entry in std::fs::read_dir(&work)? {
        let path = entry?.path();
        if path.is_file() {
            let at = out.join(path.file_name().unwrap_or_default());
            std::fs::copy(&path, &at).with_context(|| at.display().to_string())?;
            made.push(at);
        }
    }
    made.sort();
    std::fs::remove_dir_all(&work)?;
    Ok(made)
}

/// The stage `dist`.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !install(&tools::DIST)? || !install(&tools::DIST_TRIED)? {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let out = target().join("dist-tried");
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    let made = build(&out, &mut |command| context.exec(command))?;
    let changes = made
        .iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "changes"))
        .context("dpkg-buildpackage left no .changes")?;
    // All that it has to say, but for what it says of itself to be experimental. Machine code looks like misspelt words here and there, in
    // other places with every change of a program.
    let mut lintian = Command::new("lintian");
    lintian.args(["--display-info", "--pedantic", "--allow-root"]);
    lintian.args(["--suppress-tags", "spelling-error-in-binary"]);
    lintian.args(["--fail-on", "error,warning,info,pedantic"]);
    context.exec(lintian.arg(changes))?;
    let debs: Vec<&Path> = made
        .iter()
        .map(PathBuf::as_path)
        .filter(|path| is_deb(path) && !path.to_string_lossy().contains("-dbgsym_"))
        .collect();
    let unpacked = target().join("dist-unpacked");
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    for deb in &debs {
        context.exec(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&unpacked))?;
    }
    boot(&unpacked, context)?;
    let module = module(&unpacked, context)?;
    clean_root::try_packages(&debs, module, context)
}

/// Boots the image as its README.Debian says.
fn boot(unpacked: &Path, context: &mut Context<'_>) -> Result<()> {
    let readme = unpacked.join("usr/share/doc/netvm-firmware/README.Debian");
    let text = std::fs::read_to_string(&readme).with_context(|| readme.display().to_string())?;
    let (_, command) = text
        .split_once("    qemu-system-aarch64")
        .context("README.Debian of netvm-firmware boots nothing")?;
    let (command, _) = command.split_once("\n\n").unwrap_or((command, ""));
    let here = format!("{}/usr/lib/netvm", unpacked.display());
    let command = command.replace("/usr/lib/netvm", &here);
    let mut qemu = Command::new("sh");
    qemu.arg("-c");
    context.exec(qemu.arg(format!("timeout 60 qemu-system-aarch64{command}")))?;
    let log = exec::tail(context.log(), 4_000);
    if !log.contains("SELF TEST PASSED") {
        bail!("the image of netvm-firmware does not pass its self test");
    }
    Ok(())
}

/// Builds the kernel module from its package, where there is a kernel to build it for. What a person is told.
fn module(unpacked: &Path, context: &mut Context<'_>) -> Result<&'static str> {
    let Some(tree) = kernel::tree_if_built()? else {
        return Ok("the module is not built: cargo xtask kernel makes a tree for it");
    };
    let script = unpacked.join(format!("usr/src/netvm-{}/build-module", tree::VERSION));
    let built = unpacked.join("built");
    context.exec(Command::new(script).arg(tree).arg(&built))?;
    if !built.join("netvm.ko").is_file() {
        bail!("build-module left no netvm.ko");
    }
    Ok("the module is built from its package")
}
