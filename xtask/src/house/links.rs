//! Links in Markdown files point at files that exist.

use super::tree::Tree;

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (at, line) in file.text.lines().enumerate() {
            for link in targets(line) {
                let path = resolve(&file.path, link);
                if !path.is_empty() && !tree.has(&path) {
                    wrong.push(format!("{}:{}: there is no {path}", file.path, at + 1));
                }
            }
        }
    }
    wrong
}

/// The targets of `[text](target)` that are files of ours.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
}

/// A link in `from`, as a path from the workspace's root.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_link_is_found() {
        let tree = Tree::of(&[
            (
                "docs/A.md",
                "see [b](B.md), [root](../README.md#x), [dead](../gone.rs), [web](https://x.y/z)",
            ),
            ("docs/B.md", ""),
            ("README.md", "[docs](docs/)"),
        ]);
        assert_eq!(check(&tree), vec!["docs/A.md:1: there is no gone.rs".to_owned()]);
    }
}
