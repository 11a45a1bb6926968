//! `cargo xtask dist`: the Debian packages, and the stage `dist`, which tries them.
//!
//! cargo and the C compiler build what goes into them; [`tree`] lays that out beside `xtask/debian`, whose rules let debhelper do the rest.
//! The stage asks lintian, and [`clean_root`] installs the packages into a Debian that has nothing else, uses them and purges them.

mod clean_root;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::target;
use netvm_harness::kernel;
use netvm_harness::packages::{Probe, Tool, install};

use crate::run::{Context, Outcome};

/// Runs a command; an error unless it succeeds.
type Run<'a> = dyn FnMut(&mut Command) -> Result<()> + 'a;

/// What making packages takes.
const TOOLS: [Tool; 2] = [
    Tool {
        package: "debhelper",
        needed_for: "the Debian packages",
        probe: Probe::Package,
    },
    Tool {
        package: "dpkg-dev",
        needed_for: "the Debian packages",
        probe: Probe::Package,
    },
];

/// What trying them takes beside that. Nothing else needs it, so `cargo xtask setup` does not bring it.
const TRIED_BY: [Tool; 2] = [
    Tool {
        package: "lintian",
        needed_for: "checking the Debian packages",
        probe: Probe::Package,
    },
    Tool {
        package: "mmdebstrap",
        needed_for: "installing the Debian packages into a clean root",
        probe: Probe::Package,
    },
];

/// Where the packages go.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder for the packages; if not given, `target/dist`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// `cargo xtask dist`. `Ok(false)`: packages are missing, which stderr names.
pub(crate) fn dist(options: &Options) -> Result<bool> {
    if !install(&TOOLS)? {
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
    if !install(&TOOLS)? || !install(&TRIED_BY)? {
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
    // All that it has to say, but for what it says of itself to be experimental.
    let mut lintian = Command::new("lintian");
    lintian.args(["--display-info", "--pedantic", "--allow-root"]);
    lintian.args(["--fail-on", "error,warning,info,pedantic"]);
    context.exec(lintian.arg(changes))?;
    let debs: Vec<&Path> = made
        .iter()
        .map(PathBuf::as_path)
        .filter(|path| is_deb(path) && !path.to_string_lossy().contains("-dbgsym_"))
        .collect();
    let module = module(&debs, context)?;
    clean_root::try_packages(&debs, &module, context)
}

/// Builds the kernel module from its package, where there is a kernel to build it for. What a person is told.
fn module(debs: &[&Path], context: &mut Context<'_>) -> Result<String> {
    let Some(tree) = kernel::tree_if_built()? else {
        return Ok("the module is not built: cargo xtask kernel makes a tree for it".to_owned());
    };
    let package = debs
        .iter()
        .find(|path| path.to_string_lossy().contains("netvm-module-source"))
        .context("there is no package of the module's sources")?;
    let folder = target().join("dist-module");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    context.exec(Command::new("dpkg-deb").arg("-x").arg(package).arg(&folder))?;
    let script = folder.join(format!("usr/src/netvm-{}/build-module", tree::VERSION));
    let built = folder.join("built");
    context.exec(Command::new(script).arg(tree).arg(&built))?;
    if !built.join("netvm.ko").is_file() {
        bail!("build-module left no netvm.ko");
    }
    Ok("the module is built from its package".to_owned())
}
