//! Where the workspace is, and how cargo is called from here.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root folder.
pub fn root() -> &'static Path {
    // This crate's folder is `tests/rig/harness`.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(3)
        .unwrap_or(Path::new("."))
}

/// Every workspace of this tree, by its manifest: the one that ships, the card's image (another target), the fuzz
/// targets (another toolchain). What is checked of one (format, dependencies) is checked of each.
pub const WORKSPACES: [&str; 3] = [
    "Cargo.toml",
    "nic-firmware/image/Cargo.toml",
    "tests/fuzz/Cargo.toml",
];

/// Cargo's target folder: builds of other kinds (mutants, fuzz) go to folders of their own below it.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A `cargo` command in the workspace's root, without the variables that the cargo which runs this program set
/// for it (they would make the inner cargo rebuild what it has built already).
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(args);
    for (name, _) in std::env::vars_os() {
        if let Some(name) = name.to_str()
            && name.starts_with("CARGO_")
            && !matches!(
                name,
                "CARGO_HOME"
                    | "CARGO_TARGET_DIR"
                    | "CARGO_BUILD_JOBS"
                    | "CARGO_INCREMENTAL"
                    | "CARGO_NET_OFFLINE"
            )
            && !name.starts_with("CARGO_REGISTR")
            && !name.starts_with("CARGO_HTTP")
            && !name.starts_with("CARGO_SOURCE")
        {
            command.env_remove(name);
        }
    }
    command
}

/// Installs a program of the registry below `folder`. It is built to be there soon, not to be fast: each runs for seconds, and a new
/// machine builds them all.
pub fn install(program: &str, version: &str, folder: &Path) -> Command {
    let mut command = cargo(&["install", program, "--locked", "--version", version, "--root"]);
    // Not the workspace's target folder: its lock and its profiles are none of the program's business.
    command
        .arg(folder)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}

/// Does `program args` start and succeed? For looking at what the machine has.
pub fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// What `program args` prints, trimmed, if it succeeds.
pub fn output_of(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
