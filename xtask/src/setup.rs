//! `cargo xtask setup`: the Debian packages that the tests need.
//!
//! Nothing here is needed to build or to run the demo: those take Rust and a C linker. It changes nothing when
//! all is there, so CI calls it every time.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{output_of, works};

/// Something that a command needs, and the Debian package that brings it.
pub(crate) struct Tool {
    /// As apt knows it.
    pub(crate) package: &'static str,
    /// For a person.
    pub(crate) needed_for: &'static str,
    /// How we see that it is there.
    pub(crate) probe: Probe,
}

/// How we see that a package is there.
pub(crate) enum Probe {
    /// This program runs, however it was installed.
    Runs(&'static str, &'static [&'static str]),
    /// Debian's own it must be.
    Package,
}

impl Tool {
    fn is_there(&self) -> bool {
        match self.probe {
            Probe::Runs(program, args) => works(program, args),
            Probe::Package => version_of(self.package).is_some(),
        }
    }
}

const TOOLS: [Tool; 4] = [
    Tool {
        package: "gcc",
        needed_for: "linking",
        probe: Probe::Runs("cc", &["--version"]),
    },
    Tool {
        package: "g++",
        needed_for: "the fuzz targets (libFuzzer is C++)",
        probe: Probe::Runs("c++", &["--version"]),
    },
    Tool {
        package: "valgrind",
        needed_for: "instruction counts (cargo xtask bench path)",
        probe: Probe::Runs("valgrind", &["--version"]),
    },
    Tool {
        package: "qemu-system-arm",
        needed_for: "booting the firmware image",
        probe: Probe::Runs("qemu-system-aarch64", &["--version"]),
    },
];

/// `cargo xtask setup`. `Ok(false)`: something is missing.
pub(crate) fn setup() -> Result<bool> {
    if missing(&TOOLS).is_empty() {
        println!(
            "setup: {} are there; nothing to do",
            names(&TOOLS.iter().collect::<Vec<_>>(), ", ")
        );
        return Ok(true);
    }
    let done = install(&TOOLS)?;
    if done {
        println!("setup: done");
    }
    Ok(done)
}

/// Installs what is missing of `tools` if we may, or says what to install. `Ok(false)`: something is missing.
pub(crate) fn install(tools: &[Tool]) -> Result<bool> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(true);
    }
    for tool in &missing {
        eprintln!(
            "setup: {} is missing; needed for {}",
            tool.package, tool.needed_for
        );
    }
    let command = format!(
        "apt-get install -y --no-install-recommends {}",
        names(&missing, " ")
    );
    if !works("apt-get", &["--version"]) {
        eprintln!(
            "setup: this is not Debian: please install the like of {}",
            names(&missing, ", ")
        );
        return Ok(false);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("setup: only root may install packages; please run: sudo {command}");
        return Ok(false);
    }
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(missing.iter().map(|tool| tool.package));
    apt(&install)?;
    let still: Vec<&Tool> = missing.into_iter().filter(|tool| !tool.is_there()).collect();
    if !still.is_empty() {
        bail!("{} still cannot be used after `{command}`", names(&still, ", "));
    }
    Ok(true)
}

/// The version of an installed Debian package.
pub(crate) fn version_of(package: &str) -> Option<String> {
    let found = output_of(
        "dpkg-query",
        &["-W", "-f=${db:Status-Status} ${Version}", package],
    )?;
    found.strip_prefix("installed ").map(str::to_owned)
}

fn missing(tools: &[Tool]) -> Vec<&Tool> {
    tools.iter().filter(|tool| !tool.is_there()).collect()
}

fn names(tools: &[&Tool], between: &str) -> String {
    tools
        .iter()
        .map(|tool| tool.package)
        .collect::<Vec<_>>()
        .join(between)
}

fn apt(args: &[&str]) -> Result<()> {
    eprintln!("setup: apt-get {}", args.join(" "));
    let status = Command::new("apt-get")
        .args(["-q", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Ours is for results.
        .stdout(std::io::stderr())
        .status()
        .context("cannot start apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed ({status})", args.join(" "));
    }
    Ok(())
}
