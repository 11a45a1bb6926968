//! The stage `sockets`: programs of others over TCP, with the library to preload.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use netvm_harness::cargo::{root, target};
use netvm_harness::packages::install;

use crate::run::{Context, Outcome};
use crate::tools;

/// Builds the library, and tells where it is.
///
/// # Errors
/// It cannot be built.
pub(crate) fn library(context: &mut Context<'_>) -> Result<PathBuf> {
    context.cargo(&["build", "--release", "--locked", "--package", "netvm-preload"])?;
    Ok(target().join("release/libnetvm_preload.so"))
}

/// The stage.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !install(&tools::SOCKETS)? {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let library = library(context)?;
    let mut script = Command::new("bash");
    script.arg(root().join("userlib/preload/tests/foreign/run.sh"));
    context.exec(script.arg(library).arg(target().join("sockets")))?;
    Ok(Outcome::Passed(
        "Redis and its clients, a web server of Python's and curl, whois, rsync, iperf3: the same answers as by TCP, and their connections have moved"
            .to_owned(),
    ))
}
