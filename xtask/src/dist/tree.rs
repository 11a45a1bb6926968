//! What `dpkg-buildpackage` finds: `debian/` as `xtask/debian` has it, with what only a program knows, and below `stage/` all files of the
//! packages where they will stand.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::{cargo, output_of, root, target};
use netvm_harness::image;

use super::{Run, licences};
use crate::c_library;

/// The workspace's, which this crate shares.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where the packages' material is.
const MATERIAL: &str = "xtask/debian";
/// Of the sources of the kernel module: what of the workspace the module is built from.
const MODULE_CRATES: [&str; 3] = ["shared-abi", "kernel-driver/core", "kernel-driver/platform"];
const MODULE: &str = "kernel-driver/module";
/// Shells, and where each looks for completions of packages.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/netvm"),
    ("fish", "usr/share/fish/vendor_completions.d/netvm.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_netvm"),
];

/// Builds everything and lays it out in `tree`. The time that the packages bear, in seconds.
pub(super) fn lay(tree: &Path, run: &mut Run<'_>) -> Result<String> {
    let date = date();
    let stage = tree.join("stage");
    let triplet = output_of("dpkg-architecture", &["-qDEB_HOST_MULTIARCH"])
        .context("dpkg-architecture does not run")?;
    program(&stage, run)?;
    library(&stage, &triplet, run)?;
    provider(&stage, &triplet, run)?;
    preload(tree, &triplet, run)?;
    module(&stage.join(format!("usr/src/netvm-{VERSION}")), run)?;
    firmware(&stage, run)?;
    let examples = tree.join("stage-examples");
    copy_folder(&root().join("examples/c"), &examples.join("c"))?;
    copy(
        &root().join("tests/rig/kernel.config"),
        &examples.join("kernel.config"),
    )?;
    // Under another name: debhelper would take it for a changelog in Debian's form.
    copy(
        &root().join("CHANGELOG.md"),
        &tree.join("stage-docs/release-notes.md"),
    )?;
    for (package, manifest, krate) in licences::LINKED {
        write(
            &tree.join("stage-docs").join(package).join("licences-of-crates"),
            &licences::text(manifest, krate)?,
        )?;
    }
    debian(&tree.join("debian"), &date)?;
    Ok(date)
}

/// Of the commit, so that the same commit makes the same packages; else now.
fn date() -> String {
    let now = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs().to_string()
    };
    std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .or_else(|| output_of("git", &["log", "-1", "--format=%ct"]))
        .unwrap_or_else(now)
}

/// The program, with what it writes about itself.
fn program(stage: &Path, run: &mut Run<'_>) -> Result<()> {
    run(&mut cargo(&["build", "--release", "--locked", "--bin", "netvm"]))?;
    let netvm = stage.join("usr/bin/netvm");
    copy(&target().join("release/netvm"), &netvm)?;
    for (shell, place) in SHELLS {
        let said = output_of(&netvm.to_string_lossy(), &["completions", shell])
            .with_context(|| format!("netvm completions {shell}"))?;
        write(&stage.join(place), &(said + "\n"))?;
    }
    run(Command::new(&netvm)
        .arg("manual")
        .arg(stage.join("usr/share/man/man1")))?;
    copy(
        &root().join(MATERIAL).join("netvm.sysusers.conf"),
        &stage.join("usr/lib/sysusers.d/netvm.conf"),
    )
}

/// The library for C. Each call has its page under its own name.
fn library(stage: &Path, triplet: &str, run: &mut Run<'_>) -> Result<()> {
    let usr = stage.join("usr");
    c_library::build(
        &c_library::Options::for_system(usr.clone(), &format!("lib/{triplet}")),
        run,
    )?;
    for page in c_library::pages()? {
        let text = std::fs::read_to_string(&page)?;
        let file = page.file_name().unwrap_or_default();
        let section = page.extension().unwrap_or_default().display().to_string();
        for name in names(&text) {
            let link = usr.join(format!("share/man/man{section}/{name}.{section}"));
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(file, link)?;
            }
        }
    }
    Ok(())
}

/// What a page of the manual is about, as its section NAME lists it.
fn names(page: &str) -> Vec<&str> {
    page.lines()
        .skip_while(|line| *line != ".Sh NAME")
        .take_while(|line| !line.starts_with(".Nd"))
        .filter_map(|line| line.strip_prefix(".Nm ")?.split_whitespace().next())
        .collect()
}

fn release(package: &str) -> Command {
    cargo(&["build", "--release", "--locked", "--package", package])
}

fn provider(stage: &Path, triplet: &str, run: &mut Run<'_>) -> Result<()> {
    run(&mut release("netvm-fabric"))?;
    copy(
        &target().join("release/libnetvm_fi.so"),
        &stage.join(format!("usr/lib/{triplet}/libfabric/libnetvm-fi.so")),
    )
}

/// The library for programs with sockets, and what runs them with it.
fn preload(tree: &Path, triplet: &str, run: &mut Run<'_>) -> Result<()> {
    run(&mut release("netvm-preload"))?;
    let (from, stage, docs) = (
        root().join("userlib/preload"),
        tree.join("stage"),
        tree.join("stage-docs/netvm-preload"),
    );
    copy(
        &target().join("release/libnetvm_preload.so"),
        &stage.join(format!("usr/lib/{triplet}/netvm/libnetvm_preload.so")),
    )?;
    copy(&from.join("netvm-preload"), &stage.join("usr/bin/netvm-preload"))?;
    copy(&from.join("netvm-preload.1"), &docs.join("netvm-preload.1"))?;
    copy(&root().join("docs/sockets.md"), &docs.join("sockets.md"))
}

/// A workspace of the crates that the module takes, with foreign ones beside them, and what builds it.
fn module(folder: &Path, run: &mut Run<'_>) -> Result<()> {
    for krate in MODULE_CRATES {
        copy_folder(&root().join(krate).join("src"), &folder.join(krate).join("src"))?;
        let manifest = std::fs::read_to_string(root().join(krate).join("Cargo.toml"))?;
        write(&folder.join(krate).join("Cargo.toml"), &without_tests(&manifest))?;
    }
    copy_folder(&root().join(MODULE), &folder.join(MODULE))?;
    let manifest = std::fs::read_to_string(root().join("Cargo.toml"))?;
    write(&folder.join("Cargo.toml"), &workspace_of_the_module(&manifest)?)?;
    copy(&root().join("Cargo.lock"), &folder.join("Cargo.lock"))?;
    copy(
        &root().join(MATERIAL).join("module/build-module"),
        &folder.join("build-module"),
    )?;
    // It also takes out of the lock file what these crates do not use.
    let mut vendor = cargo(&["vendor", "--quiet", "vendor"]);
    run(vendor.current_dir(folder).stdout(std::process::Stdio::null()))?;
    renew(&folder.join("vendor"))
}

/// Sets the time of files to now: crates come with times of before there were packages, which dpkg's tools take for a fault.
fn renew(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => renew(&entry.path())?,
            false => std::fs::File::open(entry.path())?.set_modified(SystemTime::now())?,
        }
    }
    Ok(())
}

/// A manifest without what only tests take.
fn without_tests(manifest: &str) -> String {
    let mut kept = String::new();
    let mut skips = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            skips = line == "[dev-dependencies]";
        }
        if !skips {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The workspace's manifest with other members.
fn workspace_of_the_module(manifest: &str) -> Result<String> {
    let (head, rest) = manifest
        .split_once("members = [")
        .context("Cargo.toml lists no members")?;
    let (_, rest) = rest
        .split_once("[workspace.package]")
        .context("Cargo.toml has no [workspace.package]")?;
    Ok(format!(
        "{head}members = {MODULE_CRATES:?}\n\n[workspace.package]{rest}"
    ))
}

fn firmware(stage: &Path, run: &mut Run<'_>) -> Result<()> {
    copy(
        &image::ready(run)?,
        &stage.join("usr/lib/netvm/qemu-virt/netvm-fw"),
    )
}

/// `debian/`: the material, and what follows from elsewhere.
fn debian(folder: &Path, date: &str) -> Result<()> {
    copy_folder(&root().join(MATERIAL), folder)?;
    copy(
        &root().join(MODULE).join("99-netvm.rules"),
        &folder.join("netvm.udev"),
    )?;
    let readme = folder.join("netvm-module-source.README.Debian");
    fill(&readme, "@VERSION@", VERSION)?;
    let control = std::fs::read_to_string(folder.join("control"))?;
    let maintainer = control
        .lines()
        .find_map(|line| line.strip_prefix("Maintainer: "))
        .context("debian/control names no maintainer")?;
    let day = output_of("date", &["-R", "-u", "-d", &format!("@{date}")]).context("date does not run")?;
    let changelog = format!(
        "netvm ({VERSION}) unstable; urgency=medium\n\n  * What is new: /usr/share/doc/netvm/release-notes.md.gz of the package netvm.\n\n -- {maintainer}  {day}\n"
    );
    write(&folder.join("changelog"), &changelog)
}

fn fill(path: &Path, mark: &str, text: &str) -> Result<()> {
    let before = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if !before.contains(mark) {
        bail!("{} has no {mark}", path.display());
    }
    std::fs::write(path, before.replace(mark, text))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let at = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &at)?,
            false => copy(&entry.path(), &at)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_page_are_those_of_its_first_section() {
        let page =
            ".Dt X 3\n.Sh NAME\n.Nm netvm_a ,\n.Nm netvm_b\n.Nd things\n.Sh DESCRIPTION\n.Nm netvm_c\n";
        assert_eq!(names(page), ["netvm_a", "netvm_b"]);
    }

    #[test]
    fn the_sources_of_the_module_are_a_workspace_of_their_own() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let own = workspace_of_the_module(&manifest).unwrap();
        assert!(own.contains(r#"members = ["shared-abi", "kernel-driver/core", "kernel-driver/platform"]"#));
        assert!(!own.contains("\"xtask\"") && own.contains("[workspace.dependencies]"));
    }

    #[test]
    fn what_tests_take_is_left_out() {
        let manifest = "[dependencies]\na = 1\n[dev-dependencies]\nb = 1\n[features]\nc = []\n";
        assert_eq!(
            without_tests(manifest),
            "[dependencies]\na = 1\n[features]\nc = []\n"
        );
    }
}
