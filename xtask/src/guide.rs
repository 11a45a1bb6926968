//! The guide (`docs/guide`) as a book.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::run::Context;
use netvm_harness::cache;
use netvm_harness::cargo::{install, root, target};
use netvm_harness::exec;

/// The release of mdBook that is installed (some three minutes on two cores, once a machine).
const VERSION: &str = "0.5.4";

/// Builds it with mdBook, which is installed into a cache outside the checkout. A warning is an error. Gives the first page.
pub(crate) fn build(context: &mut Context<'_>) -> Result<PathBuf> {
    let tools = cache::folder()?.join(format!("mdbook-{VERSION}"));
    let program = tools.join("bin/mdbook");
    if !program.exists() {
        // It serves nothing and watches nothing here.
        let mut installed = install("mdbook", VERSION, &tools);
        context.exec(installed.arg("--no-default-features"))?;
    }
    let book = target().join("guide");
    let mut build = Command::new(&program);
    build
        .current_dir(root())
        .args(["build", "docs/guide", "--dest-dir"]);
    context.exec(build.arg(&book))?;
    let said = exec::tail(context.log(), 4_000);
    if let Some(line) = said.lines().find(|line| {
        let level = line.split_whitespace().next();
        matches!(level, Some("WARN" | "ERROR"))
    }) {
        bail!("mdBook: {}", line.trim());
    }
    Ok(book.join("index.html"))
}
