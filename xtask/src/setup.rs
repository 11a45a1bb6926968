//! `cargo xtask setup`: the Debian packages that the tests need.
//!
//! Nothing here is needed to build or to run the demo: those take Rust and a C linker. It changes nothing when
//! all is there, so CI calls it every time.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::works;

/// A tool that some stage needs, and the Debian package that brings it.
struct Tool {
    package: &'static str,
    needed_for: &'static str,
    probe: (&'static str, &'static [&'static str]),
}

const TOOLS: [Tool; 4] = [
    Tool {
        package: "gcc",
        needed_for: "linking",
        probe: ("cc", &["--version"]),
    },
    Tool {
        package: "g++",
        needed_for: "the fuzz targets (libFuzzer is C++)",
        probe: ("c++", &["--version"]),
    },
    Tool {
        package: "valgrind",
        needed_for: "instruction counts (cargo xtask bench path)",
        probe: ("valgrind", &["--version"]),
    },
    Tool {
        package: "qemu-system-arm",
        needed_for: "booting the firmware image",
        probe: ("qemu-system-aarch64", &["--version"]),
    },
];

/// Installs what is missing if we may, or says what to install. `Ok(false)`: something is missing.
pub(crate) fn setup() -> Result<bool> {
    let missing: Vec<&Tool> = TOOLS
        .iter()
        .filter(|tool| !works(tool.probe.0, tool.probe.1))
        .collect();
    if missing.is_empty() {
        println!(
            "setup: {} are there; nothing to do",
            names(&TOOLS.iter().collect::<Vec<_>>(), ", ")
        );
        return Ok(true);
    }
    for tool in &missing {
        println!(
            "setup: {} is missing; needed for {}",
            tool.package, tool.needed_for
        );
    }
    let command = format!(
        "apt-get install -y --no-install-recommends {}",
        names(&missing, " ")
    );
    if !rustix::process::geteuid().is_root() || !works("apt-get", &["--version"]) {
        println!("setup: please run: sudo {command}");
        return Ok(false);
    }
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(missing.iter().map(|tool| tool.package));
    apt(&install)?;
    let still: Vec<&Tool> = missing
        .into_iter()
        .filter(|tool| !works(tool.probe.0, tool.probe.1))
        .collect();
    if !still.is_empty() {
        bail!("{} still cannot be run after `{command}`", names(&still, ", "));
    }
    println!("setup: done");
    Ok(true)
}

fn names(tools: &[&Tool], between: &str) -> String {
    tools
        .iter()
        .map(|tool| tool.package)
        .collect::<Vec<_>>()
        .join(between)
}

fn apt(args: &[&str]) -> Result<()> {
    println!("setup: apt-get {}", args.join(" "));
    let status = Command::new("apt-get")
        .args(["-q", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot start apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed ({status})", args.join(" "));
    }
    Ok(())
}
