//! The dependency policy of `deny.toml`, for every workspace: licences, bans, sources.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{Context, Outcome};
use netvm_harness::cache;
use netvm_harness::cargo::{WORKSPACES, install, root, works};

/// The release that is installed where there is none (some two minutes on two cores, once a machine).
const VERSION: &str = "0.20.2";

/// Runs cargo-deny, installing it into a cache outside the checkout if the machine has none.
pub(crate) fn deny(context: &mut Context<'_>) -> Result<Outcome> {
    let program = if works("cargo-deny", &["--version"]) {
        PathBuf::from("cargo-deny")
    } else {
        let tools = cache::folder()?.join(format!("cargo-deny-{VERSION}"));
        let program = tools.join("bin/cargo-deny");
        if !program.exists() {
            context.exec(&mut install("cargo-deny", VERSION, &tools))?;
        }
        program
    };
    for manifest in WORKSPACES {
        let mut check = Command::new(&program);
        check
            .current_dir(root())
            .args(["--manifest-path", manifest, "--config", "deny.toml", "--locked"])
            .args(["check", "licenses", "bans", "sources"]);
        context.exec(&mut check).with_context(|| manifest.to_owned())?;
    }
    Ok(Outcome::Passed(format!(
        "licences, bans and sources of {} workspaces as deny.toml says",
        WORKSPACES.len()
    )))
}
