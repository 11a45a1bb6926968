//! The house rules: what reviewers would otherwise have to watch for, as a test.
//!
//! Each rule is a function from the tree to complaints; a complaint names file, line and rule.

mod api;
mod arrows;
mod counters;
mod kernel;
mod layers;
mod links;
mod text;
mod tree;
mod walks;

use anyhow::{Result, bail};

use crate::run::{Context, Outcome};
use netvm_harness::cargo::WORKSPACES;

/// The crates that must build for a kernel or a card: no standard library, no heap.
pub(crate) const CORES: [&str; 4] = ["netvm-abi", "netvm-nic", "netvm-host", "netvm-host-platform"];

/// Checks every rule and lists all that is wrong.
pub(crate) fn check(context: &mut Context<'_>) -> Result<Outcome> {
    let tree = tree::Tree::read(netvm_harness::cargo::root())?;
    let mut wrong = text::check(&tree);
    wrong.extend(arrows::check()?);
    wrong.extend(workspaces(&tree));
    wrong.extend(layers::check(&tree));
    wrong.extend(counters::check(&tree));
    wrong.extend(api::check(&tree));
    wrong.extend(kernel::check(&tree));
    wrong.extend(links::check(&tree));
    wrong.extend(walks::check(&tree));
    std::fs::write(context.log(), wrong.join("\n"))?;
    if wrong.is_empty() {
        return Ok(Outcome::Passed(format!("{} files", tree.files.len())));
    }
    bail!(
        "{} broken",
        if wrong.len() == 1 {
            "1 rule is".to_owned()
        } else {
            format!("{} rules are", wrong.len())
        }
    )
}

/// A lock file is the mark of a workspace: each must be one that formats and dependencies are checked of.
fn workspaces(tree: &tree::Tree) -> Vec<String> {
    tree.files
        .iter()
        .filter_map(|file| file.path.strip_suffix("Cargo.lock"))
        .filter(|folder| !WORKSPACES.contains(&format!("{folder}Cargo.toml").as_str()))
        .map(|folder| {
            format!("{folder}Cargo.lock: not one of the workspaces in tests/rig/harness/src/cargo.rs")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_nobody_checks_is_found() {
        let tree = tree::Tree::of(&[
            ("Cargo.lock", ""),
            ("tests/fuzz/Cargo.lock", ""),
            ("tests/new/Cargo.lock", ""),
        ]);
        let wrong = workspaces(&tree);
        assert!(
            wrong.len() == 1 && wrong[0].starts_with("tests/new/"),
            "{wrong:?}"
        );
    }
}
