//! Crates for the kernel: cargo builds the host core, the steps of all host platforms and what both use for the kernel's target, with the kernel's own
//! `core` and the flags that Kbuild gives a Rust file.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::cargo::root;
use crate::kernel::tools::{RUSTC, Tools};

/// Debian's, of the same release as [`RUSTC`]: another release's may not know its unstable options.
const CARGO: &str = "/usr/bin/cargo";
/// What the module's own sources use.
const USED: &str = "netvm-host-platform";

/// A built crate.
#[derive(Debug)]
pub(super) struct Crate {
    /// As `extern crate` names it.
    pub(super) name: String,
    pub(super) rlib: PathBuf,
}

/// Builds them below `folder`; `None` if a compiler has said on stderr what is wrong.
pub(super) fn build(tools: &Tools, tree: &Path, folder: &Path) -> Result<Option<Vec<Crate>>> {
    let mut flags = flags(tree)?;
    flags.extend(["-Zunstable-options", "--sysroot=/dev/null", "-L"].map(str::to_owned));
    flags.push(tree.join("rust").display().to_string());
    let mut command = std::process::Command::new(CARGO);
    tools.environment(&mut command);
    command
        .current_dir(root())
        .args(["build", "--release", "--locked", "--package", USED])
        .args(["--config", "profile.release.debug=0"])
        .args(["-Zjson-target-spec", "--message-format=json-render-diagnostics"])
        .arg("--target")
        .arg(tree.join("scripts/target.json"))
        .arg("--target-dir")
        .arg(folder)
        .env("RUSTC", RUSTC)
        // The kernel's Makefile sets it for the same reason.
        .env("RUSTC_BOOTSTRAP", "1")
        // A path of the cache may hold blanks.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut cargo = command.spawn().with_context(|| format!("cannot start {CARGO}"))?;
    let output = cargo.stdout.take().context("cargo without its output")?;
    let mut crates = Vec::new();
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading what cargo says")?
            && let Some(rlib) = artifact
                .filenames
                .iter()
                .find(|file| file.extension() == Some("rlib") && file.starts_with(folder))
            // Build programs of crates run here, and are none of the kernel's.
            && artifact.target.is_kind(cargo_metadata::TargetKind::Lib)
        {
            crates.push(Crate {
                name: artifact.target.name.replace('-', "_"),
                rlib: rlib.clone().into_std_path_buf(),
            });
        }
    }
    if !cargo.wait()?.success() {
        return Ok(None);
    }
    if crates.is_empty() {
        bail!("cargo built no crate for the kernel");
    }
    Ok(Some(crates))
}

/// How the kernel's own Rust was compiled.
fn flags(tree: &Path) -> Result<Vec<String>> {
    let path = tree.join("rust/.kernel.o.cmd");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let flags = code_generation(text.lines().next().unwrap_or_default());
    if flags.is_empty() {
        bail!("{} names no flag: what is this kernel?", path.display());
    }
    Ok(flags)
}

/// The flags of a compiler's command that change the code that comes out; warnings and paths are each crate's own.
fn code_generation(command: &str) -> Vec<String> {
    let ours = ["-Zbinary_dep_depinfo", "-Zunstable-options"];
    command
        .split_ascii_whitespace()
        .filter(|word| word.starts_with("-C") || word.starts_with("-Z"))
        .filter(|word| !ours.iter().any(|own| word.starts_with(own)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_code_are_told_from_others() {
        let command = "savedcmd_rust/kernel.o := OBJTREE=/x rustc --edition=2021 -Zbinary_dep_depinfo=y -Wmissing_docs \
            -Cpanic=abort --target=./scripts/target.json -Ctarget-feature=-sse,-sse2 -Zcf-protection=branch \
            @./include/generated/rustc_cfg --sysroot=/dev/null -Zunstable-options";
        assert_eq!(
            code_generation(command),
            [
                "-Cpanic=abort",
                "-Ctarget-feature=-sse,-sse2",
                "-Zcf-protection=branch"
            ]
        );
    }
}
