//! Installs the packages into a Debian that has nothing else, uses them there and purges them (`xtask/debian/clean-root.sh`).
//!
//! mmdebstrap makes the root, runs the script in it and throws it away: nothing stays mounted or on the disk, however the script ends.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::{output_of, root};
use netvm_harness::exec;

use crate::run::{Context, Outcome};

/// What runs in the root.
const SCRIPT: &str = "xtask/debian/clean-root.sh";
/// How apt is asked where it gets packages from.
const TARGETS: &str = "$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)";

/// Tries them all.
pub(super) fn try_packages(debs: &[&Path], module: &str, context: &mut Context<'_>) -> Result<Outcome> {
    let (system, release) = system()?;
    let mut sources = sources(&system);
    if sources.is_empty() {
        // Without an index apt does not know whose a source is.
        context.exec(Command::new("apt-get").args(["-q", "update"]))?;
        sources = self::sources(&system);
    }
    if sources.is_empty() {
        bail!("apt knows no source of {system}");
    }
    let mut files = String::new();
    for path in debs.iter().copied().chain([root().join(SCRIPT).as_path()]) {
        files.push_str(&format!(" '{}'", path.display()));
    }
    let mut root = Command::new("mmdebstrap");
    root.args(["--variant=minbase", "--format=null", "--quiet"])
        .arg("--aptopt=Acquire::Retries \"3\"")
        .arg("--customize-hook=mkdir \"$1/netvm\"")
        .arg(format!("--customize-hook=cp{files} \"$1/netvm\""))
        .arg("--customize-hook=chroot \"$1\" sh /netvm/clean-root.sh")
        .args([release.as_str(), "/dev/null"])
        .args(&sources);
    context.exec(&mut root)?;
    let log = exec::tail(context.log(), 4_000);
    let said = log
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("clean root: "));
    let said = said.context("the script in the clean root did not come to its end")?;
    Ok(Outcome::Passed(format!(
        "{} packages, lintian is silent; {module}; {said}",
        debs.len()
    )))
}

/// This machine's system and its release, as it calls them.
fn system() -> Result<(String, String)> {
    let text = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
            .with_context(|| format!("/etc/os-release has no {name}"))
    };
    Ok((field("ID")?, field("VERSION_CODENAME")?))
}

/// The system's own sources among this machine's, as lines of a list.
fn sources(system: &str) -> Vec<String> {
    let listed = output_of(
        "apt-get",
        &["indextargets", "--format", TARGETS, "Created-By: Packages"],
    );
    let mut lines: Vec<String> = listed
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once('|'))
        .filter(|(origin, _)| origin.eq_ignore_ascii_case(system))
        .map(|(_, line)| line.to_owned())
        .collect();
    // One target for each architecture.
    lines.dedup();
    lines
}
