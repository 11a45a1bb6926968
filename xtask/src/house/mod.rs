//! The house rules: what reviewers would otherwise have to watch for, as a test.
//!
//! Each rule is a function from the tree to complaints; a complaint names file, line and rule.

mod arrows;
mod counters;
mod links;
mod text;
mod tree;

use anyhow::{Result, bail};

use crate::run::{Context, Outcome};

/// The crates that must build for a kernel or a card: no standard library, no heap.
pub(crate) const CORES: [&str; 3] = ["netvm-abi", "netvm-nic", "netvm-host"];

/// Checks every rule and lists all that is wrong.
pub(crate) fn check(context: &mut Context<'_>) -> Result<Outcome> {
    let tree = tree::Tree::read(crate::cargo::root())?;
    let mut wrong = text::check(&tree);
    wrong.extend(arrows::check()?);
    wrong.extend(counters::check(&tree));
    wrong.extend(links::check(&tree));
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
