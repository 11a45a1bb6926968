//! The programs of the workspace that the hosts run, and the libraries that these load.
//!
//! They are the release build that README makes, with the libraries of this machine: a static build for the hosts alone would build
//! every dependency a second time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::cargo::{cargo, target};
use crate::packages::{Probe, Tool};

/// Packages whose programs the hosts have.
const PACKAGES: [&str; 2] = ["netvm-cli", "netvm-rig"];

/// What makes the programs small.
pub(super) const STRIP: Tool = Tool {
    package: "binutils",
    needed_for: "programs without debug information",
    probe: Probe::Runs("strip", &["--version"]),
};

/// What the hosts have of the workspace.
pub(super) struct Programs {
    /// Without debug information, which is many times their size: the hosts hold their files in memory.
    pub(super) programs: Vec<PathBuf>,
    /// What they load, by the paths at which they look for it.
    pub(super) libraries: BTreeSet<PathBuf>,
}

/// Builds them; `None` if a compiler has said on stderr what is wrong.
pub(super) fn build() -> Result<Option<Programs>> {
    let Some(built) = compile()? else {
        return Ok(None);
    };
    let folder = target().join("rig/bin");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let mut programs = Vec::new();
    let mut libraries = BTreeSet::new();
    for program in &built {
        let stripped = folder.join(program.file_name().context("a program without a name")?);
        strip(program, &stripped)?;
        libraries.extend(loaded_by(program)?);
        programs.push(stripped);
    }
    Ok(Some(Programs { programs, libraries }))
}

fn compile() -> Result<Option<Vec<PathBuf>>> {
    let mut command = cargo(&["build", "--release", "--locked", "--bins"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut cargo = command.spawn().context("cannot start cargo")?;
    let output = cargo.stdout.take().context("cargo without its output")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading what cargo says")?
            && let Some(program) = artifact.executable
        {
            programs.push(program.into_std_path_buf());
        }
    }
    Ok(cargo.wait()?.success().then_some(programs))
}

fn strip(program: &Path, to: &Path) -> Result<()> {
    let done = Command::new("strip")
        .arg("--strip-all")
        .arg("-o")
        .args([to, program])
        .status()
        .context("starting strip")?;
    if !done.success() {
        bail!("strip failed for {}", program.display());
    }
    Ok(())
}

/// The libraries that the dynamic linker finds for a program, and the linker itself.
fn loaded_by(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("starting ldd")?;
    if !output.status.success() {
        bail!(
            "ldd failed for {}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    paths(&String::from_utf8(output.stdout)?).with_context(|| format!("what {} loads", program.display()))
}

/// The files of what `ldd` prints: `name => path (address)`, the linker as `path (address)`, and what the kernel maps without
/// a path.
fn paths(ldd: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in ldd.lines() {
        let name = line.trim();
        let place = name.split_once(" => ").map_or(name, |(_, place)| place);
        if place == "not found" {
            bail!("this machine lacks a library: {name}");
        }
        if place.starts_with('/') {
            found.push(PathBuf::from(place.split(" (").next().unwrap_or(place)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_loads_is_read_from_what_ldd_prints() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(ldd).unwrap(), expected.map(PathBuf::from));
        assert_eq!(paths("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
        let error = paths("\tlibx.so => not found\n").unwrap_err().to_string();
        assert!(error.contains("libx.so"), "{error}");
    }
}
