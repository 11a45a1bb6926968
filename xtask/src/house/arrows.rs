//! Which of our crates may depend on which: arrows point down only, and the two cores never import each other.
//!
//! Also what every manifest must say, and that the stated minimum Rust version is not below a dependency's.

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use netvm_harness::cargo::root;

/// A crate of ours, and those of ours that its shipped code may use.
const ARROWS: [(&str, &[&str]); 33] = [
    ("netvm-abi", &[]),
    ("netvm-nic", &["netvm-abi"]),
    ("netvm-host", &["netvm-abi"]),
    ("netvm-platform", &["netvm-abi", "netvm-nic"]),
    ("netvm-host-platform", &["netvm-abi", "netvm-host"]),
    ("netvm-memory", &[]),
    ("netvm", &["netvm-abi", "netvm-memory"]),
    (
        "netvm-soft",
        &["netvm-abi", "netvm-memory", "netvm-nic", "netvm-platform"],
    ),
    (
        "netvm-process",
        &[
            "netvm",
            "netvm-abi",
            "netvm-memory",
            "netvm-soft",
            "netvm-host",
            "netvm-host-platform",
        ],
    ),
    ("netvm-c", &["netvm", "netvm-process"]),
    ("netvm-fabric", &["netvm", "netvm-process"]),
    ("netvm-calls", &["netvm"]),
    ("netvm-search", &["netvm", "netvm-calls"]),
    ("netvm-net", &["netvm"]),
    ("netvm-lease", &["netvm"]),
    ("netvm-preload", &["netvm-net", "netvm-process"]),
    (
        "netvm-conformance",
        &["netvm", "netvm-calls", "netvm-lease", "netvm-net", "netvm-search"],
    ),
    (
        "netvm-emulator",
        &[
            "netvm",
            "netvm-abi",
            "netvm-memory",
            "netvm-soft",
            "netvm-process",
            "netvm-nic",
            "netvm-platform",
            "netvm-host",
            "netvm-host-platform",
        ],
    ),
    (
        "netvm-world",
        &[
            "netvm",
            "netvm-abi",
            "netvm-nic",
            "netvm-platform",
            "netvm-host",
            "netvm-host-platform",
            "netvm-conformance",
        ],
    ),
    ("netvm-relay", &[]),
    ("netvm-kit", &["netvm", "netvm-abi", "netvm-nic", "netvm-host"]),
    ("netvm-faults", &["netvm-abi", "netvm-kit", "netvm-nic"]),
    ("netvm-rig", &["netvm", "netvm-conformance"]),
    (
        "netvm-loom",
        &["netvm-abi", "netvm-host-platform", "netvm-nic", "netvm-platform"],
    ),
    ("netvm-models", &["netvm", "netvm-abi", "netvm-calls"]),
    ("netvm-bench-calls", &["netvm", "netvm-calls", "netvm-process"]),
    ("netvm-bench-sync", &["netvm", "netvm-abi", "netvm-world"]),
    ("netvm-bench-wire", &["netvm", "netvm-abi", "netvm-world"]),
    (
        "netvm-cli",
        &[
            "netvm",
            "netvm-process",
            "netvm-lease",
            "netvm-net",
            "netvm-emulator",
            "netvm-relay",
            "netvm-world",
            "netvm-bench-calls",
            "netvm-bench-sync",
            "netvm-bench-wire",
        ],
    ),
    ("netvm-guide", &["netvm", "netvm-process"]),
    // Counts the memory of a card from the types of the core.
    ("netvm-fw-common", &["netvm-abi", "netvm-nic"]),
    ("netvm-harness", &["netvm-abi", "netvm-fw-common"]),
    ("xtask", &["netvm-harness"]),
];

/// Measures everything, ships nothing: may use all.
const UNBOUND: [&str; 1] = ["netvm-benches"];

/// Pairs that may not meet even in tests.
const NEVER: [(&str, &str); 1] = [("netvm-nic", "netvm-host")];

/// Crates with both cores: whole nodes, and the kit, of which each test asks for one half.
const BOTH_CORES: [&str; 4] = ["netvm-emulator", "netvm-world", "netvm-kit", "netvm-benches"];

/// All complaints.
pub(crate) fn check() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .exec()
        .context("cargo metadata")?;
    let ours: Vec<&Package> = metadata.workspace_packages();
    let names: Vec<&str> = ours.iter().map(|package| package.name.as_str()).collect();
    let mut wrong = Vec::new();
    for package in &ours {
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| names.contains(&dependency.name.as_str()))
        {
            let only_in_tests = dependency.kind == DependencyKind::Development;
            if !allowed(&package.name, &dependency.name, only_in_tests) {
                wrong.push(format!("{}: may not depend on {}", package.name, dependency.name));
            }
        }
        if !BOTH_CORES.contains(&package.name.as_str()) && cores_of(package) == (true, true) {
            wrong.push(format!("{}: has both cores, or the kit's for both", package.name));
        }
        if !UNBOUND.contains(&package.name.as_str())
            && !ARROWS.iter().any(|(name, _)| *name == package.name.as_str())
        {
            wrong.push(format!(
                "{}: not in the list of crates in xtask/src/house/arrows.rs",
                package.name
            ));
        }
        let manifest = std::fs::read_to_string(&package.manifest_path)?;
        for line in [
            "rust-version.workspace = true",
            "license.workspace = true",
            "[lints]\nworkspace = true",
        ] {
            if !manifest.contains(line) {
                wrong.push(format!(
                    "{}: must say `{}`",
                    package.manifest_path,
                    line.replace('\n', " ")
                ));
            }
        }
    }
    wrong.extend(msrv(&metadata, &ours));
    Ok(wrong)
}

/// Whether a crate or its tests use the NIC core and the host core, by themselves or through the kit.
fn cores_of(package: &Package) -> (bool, bool) {
    let uses = |core: &str, half: &str| {
        package.dependencies.iter().any(|dependency| {
            let asks = dependency.features.iter().any(|feature| feature == half);
            dependency.name == core || dependency.name == "netvm-kit" && asks
        })
    };
    (uses("netvm-nic", "nic"), uses("netvm-host", "host"))
}

fn allowed(from: &str, to: &str, only_in_tests: bool) -> bool {
    if NEVER
        .iter()
        .any(|&(a, b)| (a, b) == (from, to) || (b, a) == (from, to))
    {
        return false;
    }
    only_in_tests
        || UNBOUND.contains(&from)
        || ARROWS
            .iter()
            .any(|(name, below)| *name == from && below.contains(&to))
}

/// A dependency that asks for a newer Rust than we say makes our statement untrue.
fn msrv(metadata: &Metadata, ours: &[&Package]) -> Vec<String> {
    let Some(stated) = ours.iter().find_map(|package| package.rust_version.clone()) else {
        return vec!["Cargo.toml: no rust-version".to_owned()];
    };
    metadata
        .packages
        .iter()
        .filter_map(|package| Some((package, package.rust_version.as_ref()?)))
        .filter(|(_, asks)| **asks > stated)
        .map(|(package, asks)| {
            format!(
                "{} {} asks for Rust {asks}; we say {stated}",
                package.name, package.version
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_never_meet() {
        assert!(!allowed("netvm-nic", "netvm-host", false));
        assert!(!allowed("netvm-host", "netvm-nic", true));
        assert!(allowed("netvm-host", "netvm-abi", false));
    }

    #[test]
    fn arrows_point_down() {
        assert!(!allowed("netvm", "netvm-emulator", false));
        assert!(allowed("netvm", "netvm-emulator", true));
        assert!(!allowed("netvm-abi", "netvm", false));
    }

    #[test]
    fn the_list_has_no_cycle() {
        for (at, (name, below)) in ARROWS.iter().enumerate() {
            for to in *below {
                assert!(
                    ARROWS[..at].iter().any(|(other, _)| other == to),
                    "{name} -> {to} points up"
                );
            }
        }
    }
}
