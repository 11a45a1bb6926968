//! The licences of foreign crates that are linked into a package: by name, and with the texts that their authors want to be passed on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::MetadataCommand;
use netvm_harness::cargo::{cargo, root};

/// What packages are linked from: the package, a workspace, and the crate of it.
pub(super) const LINKED: [(&str, &str, &str); 6] = [
    ("libnetvm0", "Cargo.toml", "netvm-c"),
    ("libnetvm-dev", "Cargo.toml", "netvm-c"),
    ("netvm", "Cargo.toml", "netvm-cli"),
    ("libfabric-netvm", "Cargo.toml", "netvm-fabric"),
    ("netvm-preload", "Cargo.toml", "netvm-preload"),
    ("netvm-firmware", "nic-firmware/image/Cargo.toml", "netvm-fw"),
];

/// How a file with a licence, or with what has to be said beside it, begins.
const FILES: [&str; 7] = [
    "LICENSE",
    "LICENCE",
    "UNLICENSE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "AUTHORS",
];

/// A foreign crate: name, version, licence.
type Foreign = (String, String, String);

/// The file for one crate's package.
pub(super) fn text(manifest: &str, package: &str) -> Result<String> {
    let crates = linked(manifest, package)?;
    let metadata = MetadataCommand::new()
        .manifest_path(root().join(manifest))
        .other_options(["--locked".to_owned()])
        .exec()
        .context("cargo metadata")?;
    let mut text = format!("Crates of others that {package} is linked with, and their licences\n\n");
    // A text that many crates share stands here once.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version, licence) in &crates {
        writeln!(text, "{name} {version}: {licence}")?;
        let found = metadata
            .packages
            .iter()
            .find(|one| one.name.as_str() == name && one.version.to_string() == *version)
            .and_then(|one| one.manifest_path.parent())
            .with_context(|| format!("cargo metadata does not name {name} {version}"))?;
        for file in licences(found.as_std_path())? {
            let said = std::fs::read(&file).with_context(|| file.display().to_string())?;
            texts
                .entry(String::from_utf8_lossy(&said).trim_end().to_owned())
                .or_default()
                .push(format!("{name} {version}"));
        }
    }
    text.push_str(
        "\nThe standard library of Rust: MIT OR Apache-2.0, and its crates as they say in its sources\n",
    );
    for (said, by) in texts {
        write!(text, "\n{}\n{}\n\n{said}\n", "=".repeat(79), by.join(", "))?;
    }
    Ok(text)
}

/// The files in a crate's folder that say its licence.
fn licences(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_file() && FILES.iter().any(|begin| name.starts_with(begin)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// What a crate is linked with, of others: macros run in the compiler, and leave only what they write.
fn linked(manifest: &str, package: &str) -> Result<Vec<Foreign>> {
    let mut tree = cargo(&["tree", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--format", "{p}|{l}", "--package", package])
        .arg("--manifest-path")
        .arg(root().join(manifest));
    let listed = tree.output().context("cargo tree does not run")?;
    if !listed.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&listed.stderr));
    }
    let mut found: Vec<Foreign> = String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(foreign)
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// A foreign crate in a line of `cargo tree`: ours have a path behind their version.
fn foreign(line: &str) -> Option<Foreign> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let (name, version) = package.split_once(" v")?;
    (!version.contains('(')).then(|| (name.to_owned(), version.to_owned(), licence.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_crate_has_no_path() {
        let (name, version, licence) = foreign("serde v1.0.1|MIT OR Apache-2.0 (*)").unwrap();
        assert_eq!(
            (name.as_str(), version.as_str(), licence.as_str()),
            ("serde", "1.0.1", "MIT OR Apache-2.0")
        );
        assert_eq!(foreign("netvm v0.1.0 (/x/userlib)|MIT"), None);
    }

    #[test]
    fn the_library_for_c_names_what_it_is_linked_with() {
        let text = text("Cargo.toml", "netvm-c").unwrap();
        assert!(text.contains("\nlibc 0.2.") && text.contains("Permission is hereby granted"));
        assert!(!text.contains("\nnetvm"));
    }
}
