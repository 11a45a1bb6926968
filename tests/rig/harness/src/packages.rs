//! Debian packages: which of a list are there, and how the others get there.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{output_of, works};

/// Something that a command needs, and the Debian package that brings it.
pub struct Tool {
    /// As apt knows it.
    pub package: &'static str,
    /// For a person.
    pub needed_for: &'static str,
    /// How we see that it is there.
    pub probe: Probe,
}

/// How we see that a package is there.
pub enum Probe {
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

/// Installs what is missing of `tools` if we may, or says what to install. `Ok(false)`: something is missing.
///
/// # Errors
/// `apt-get` fails, or the package does not bring what it should.
pub fn install(tools: &[Tool]) -> Result<bool> {
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
pub fn version_of(package: &str) -> Option<String> {
    let found = output_of(
        "dpkg-query",
        &["-W", "-f=${db:Status-Status} ${Version}", package],
    )?;
    found.strip_prefix("installed ").map(str::to_owned)
}

/// Those of `tools` that are not there.
pub fn missing(tools: &[Tool]) -> Vec<&Tool> {
    tools.iter().filter(|tool| !tool.is_there()).collect()
}

/// Their packages, with `between` between.
pub fn names(tools: &[&Tool], between: &str) -> String {
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
