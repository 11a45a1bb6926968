//! Every counter that `--json` prints is named by a test, so that none can rot at zero unseen.

use super::tree::Tree;

/// Files whose fields are counters or results: structs, or lists of names given to a macro. (The host core has a test
/// that drives each of its counters, whatever its name.)
const REPORTS: [&str; 3] = [
    "userlib/cli/src/demo/report.rs",
    "userlib/cli/src/sim/result.rs",
    "nic-firmware/core/src/counters.rs",
];

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let tests: String = tree
        .files
        .iter()
        .filter(|file| file.is_rust())
        .map(|file| file.test_text())
        .collect();
    let mut wrong = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| REPORTS.contains(&file.path.as_str()))
    {
        for (at, line) in file.shipped_lines() {
            if let Some(name) = field(line)
                && !mentions(&tests, name)
            {
                wrong.push(format!("{}:{at}: no test mentions `{name}`", file.path));
            }
        }
    }
    wrong
}

/// The name in a line like `pub(crate) name: u64,` or, in a macro's list, `name,`.
fn field(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(crate) "));
    let name = match rest {
        Some(rest) => rest.split_once(": ")?.0,
        None => line.strip_suffix(',')?,
    };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!name.is_empty() && name.chars().all(plain)).then_some(name)
}

/// Is `name` in `text` as a whole word?
fn mentions(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(word) && !text[at + name.len()..].starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_without_a_test_is_found() {
        let report = "pub(crate) struct R {\n    pub(crate) bounced: u64,\n    pub(crate) lost: u64,\n}\n";
        let tree = Tree::of(&[
            ("userlib/cli/src/demo/report.rs", report),
            (
                "userlib/cli/tests/cli.rs",
                "assert!(json.bounced > 0); // bounced_lost",
            ),
        ]);
        let wrong = check(&tree);
        assert!(wrong.len() == 1 && wrong[0].contains("`lost`"), "{wrong:?}");

        let list = "counters! {\n    /// Sent.\n    sent,\n}\n";
        let tree = Tree::of(&[("nic-firmware/core/src/counters.rs", list)]);
        assert_eq!(
            check(&tree),
            vec!["nic-firmware/core/src/counters.rs:3: no test mentions `sent`".to_owned()]
        );
    }
}
