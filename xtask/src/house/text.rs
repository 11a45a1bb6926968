//! Rules about the text of Rust files.

use super::tree::{File, Tree};

/// Split by state machine before this.
const MAX_LINES: usize = 700;

/// Words that promise work instead of doing it. Written in halves, or this file would break its own rule.
const UNFINISHED: [&str; 7] = [
    concat!("to", "do!("),
    concat!("unimplem", "ented!("),
    concat!("db", "g!("),
    concat!("allow(dead", "_code)"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// A crate's folder and what its text must and must not say.
struct Crate {
    folder: &'static str,
    forbids_unsafe: bool,
    no_std: bool,
    no_globals: bool,
}

const CRATES: [Crate; 6] = [
    Crate {
        folder: "shared-abi",
        forbids_unsafe: false,
        no_std: true,
        no_globals: true,
    },
    Crate {
        folder: "nic-firmware/core",
        forbids_unsafe: true,
        no_std: true,
        no_globals: true,
    },
    Crate {
        folder: "nic-firmware/platform",
        forbids_unsafe: true,
        no_std: false,
        no_globals: true,
    },
    Crate {
        folder: "kernel-driver/core",
        forbids_unsafe: true,
        no_std: true,
        no_globals: true,
    },
    Crate {
        folder: "kernel-driver/platform",
        forbids_unsafe: true,
        no_std: true,
        no_globals: true,
    },
    Crate {
        folder: "userlib",
        forbids_unsafe: false,
        no_std: false,
        no_globals: true,
    },
];

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!(
                "{}: {lines} lines; split files before {MAX_LINES}",
                file.path
            ));
        }
        for (at, line) in file.text.lines().enumerate() {
            // A macro counts where it is code; the other words wherever they stand.
            let code = line.split("//").next().unwrap_or_default();
            let says = |word: &&&str| {
                if word.ends_with('(') {
                    code.contains(**word)
                } else {
                    line.contains(**word)
                }
            };
            if let Some(word) = UNFINISHED.iter().find(says) {
                wrong.push(format!(
                    "{}:{}: `{word}`: finish it, or leave it out",
                    file.path,
                    at + 1
                ));
            }
        }
    }
    for rules in &CRATES {
        check_crate(tree, rules, &mut wrong);
    }
    wrong
}

fn check_crate(tree: &Tree, rules: &Crate, wrong: &mut Vec<String>) {
    let prefix = format!("{}/src/", rules.folder);
    let files: Vec<&File> = tree
        .files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with(&prefix))
        .collect();
    let root = files.iter().find(|file| file.path == format!("{prefix}lib.rs"));
    let says = |attribute: &str| root.is_some_and(|root| root.text.contains(attribute));
    if rules.forbids_unsafe && !says("#![forbid(unsafe_code)]") {
        wrong.push(format!("{prefix}lib.rs: must say #![forbid(unsafe_code)]"));
    }
    if rules.no_std && !says("#![no_std]") && !says("#![cfg_attr(not(test), no_std)]") {
        wrong.push(format!("{prefix}lib.rs: must say #![no_std]"));
    }
    for file in files.iter().filter(|file| !file.is_test()) {
        let mut before = "";
        for (at, line) in file.shipped_lines() {
            let code = line.split("//").next().unwrap_or_default();
            let for_tests = before == "#[cfg(test)]";
            if rules.no_std
                && !for_tests
                && (code.contains("std::") || code.contains("alloc::") || code.contains("extern crate"))
            {
                wrong.push(format!(
                    "{}:{at}: no standard library and no heap here: {}",
                    file.path,
                    line.trim()
                ));
            }
            if rules.no_globals && is_global(code) && before != "#[cfg(netvm_mutant)]" {
                wrong.push(format!(
                    "{}:{at}: one process holds many nodes, so no globals: {}",
                    file.path,
                    line.trim()
                ));
            }
            // What stands under such an attribute is in no shipped build.
            before = line.trim();
        }
    }
}

/// A mutable or interior-mutable global, or a thread-local. Plain constant tables are `const`.
fn is_global(code: &str) -> bool {
    let code = code.trim_start();
    let code = code
        .strip_prefix("pub ")
        .or_else(|| code.strip_prefix("pub(crate) "))
        .unwrap_or(code);
    code.starts_with("static ") || code.contains(concat!("thread", "_local!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#![no_std]\n#![forbid(unsafe_code)]\n";

    fn house(extra: &[(&str, &str)]) -> Vec<String> {
        let mut files: Vec<(&str, &str)> = vec![
            ("shared-abi/src/lib.rs", GOOD),
            ("nic-firmware/core/src/lib.rs", GOOD),
            ("nic-firmware/platform/src/lib.rs", GOOD),
            ("kernel-driver/core/src/lib.rs", GOOD),
            ("kernel-driver/platform/src/lib.rs", GOOD),
        ];
        files.extend(extra);
        check(&Tree::of(&files))
    }

    #[test]
    fn a_clean_house_has_no_complaints() {
        assert_eq!(house(&[]), Vec::<String>::new());
    }

    #[test]
    fn each_rule_bites() {
        let long = "\n".repeat(MAX_LINES + 1);
        let unfinished = format!("fn f() {{ {}) }}", UNFINISHED[0]);
        for (path, text, says) in [
            ("userlib/src/long.rs", long.as_str(), "split files"),
            ("userlib/cli/src/x.rs", unfinished.as_str(), "finish it"),
            (
                "kernel-driver/core/src/x.rs",
                "use std::vec;",
                "no standard library",
            ),
            (
                "nic-firmware/core/src/x.rs",
                "pub static X: u8 = 0;",
                "no globals",
            ),
        ] {
            let wrong = house(&[(path, text)]);
            assert!(
                wrong.len() == 1 && wrong[0].contains(says) && wrong[0].contains(path),
                "{wrong:?}"
            );
        }
        let wrong = check(&Tree::of(&[("nic-firmware/core/src/lib.rs", "")]));
        assert!(
            wrong
                .iter()
                .any(|line| line.contains("nic-firmware/core") && line.contains("forbid")),
            "{wrong:?}"
        );
    }

    #[test]
    fn tests_may_use_the_standard_library() {
        let text = "//! std::x\n#[cfg(test)]\nextern crate std;\n#[cfg(test)]\nmod tests { use std::vec; }";
        assert_eq!(
            house(&[("kernel-driver/core/src/x.rs", text)]),
            Vec::<String>::new()
        );
    }
}
