//! Loops over a whole table of a core (promise P7): only where this file says why that may be.
//!
//! The simulator counts how often a core looks at its tables, but a loop over all entries is one look. So this rule looks
//! for such loops in the text.

use super::tree::{File, Tree};
use std::collections::BTreeSet;

const CORES: [&str; 2] = ["nic-firmware/core/src/", "kernel-driver/core/src/"];

/// File, function, and why it may.
const ALLOWED: [(&str, &str, &str); 26] = [
    ("nic-firmware/core/src/inbound.rs", "held", "a census"),
    ("nic-firmware/core/src/links.rs", "answers_owed", "a census"),
    ("nic-firmware/core/src/links.rs", "credits_held", "a census"),
    (
        "nic-firmware/core/src/links.rs",
        "publish_windows",
        "for observers",
    ),
    (
        "nic-firmware/core/src/links/greetings.rs",
        "leave",
        "the end of the firmware",
    ),
    (
        "nic-firmware/core/src/ports.rs",
        "new",
        "the start of the firmware",
    ),
    ("nic-firmware/core/src/ports.rs", "held", "a census"),
    ("nic-firmware/core/src/round_trips.rs", "held", "a census"),
    (
        "nic-firmware/core/src/round_trips.rs",
        "ask",
        "read slots: a number of the card",
    ),
    (
        "nic-firmware/core/src/round_trips.rs",
        "is_overdue",
        "read slots: a number of the card",
    ),
    (
        "nic-firmware/core/src/round_trips.rs",
        "look_for_receipts",
        "read slots: a number of the card",
    ),
    (
        "nic-firmware/core/src/staging.rs",
        "orphan",
        "staging buffers: a number of the card",
    ),
    (
        "nic-firmware/core/src/windows.rs",
        "next_wanted",
        "windows: a number of the card",
    ),
    (
        "nic-firmware/core/src/windows.rs",
        "put",
        "what is set aside: a number of the card",
    ),
    (
        "nic-firmware/core/src/windows.rs",
        "take_back",
        "what is set aside: a number of the card",
    ),
    ("kernel-driver/core/src/shares.rs", "held", "a census"),
    (
        "kernel-driver/core/src/host/attach.rs",
        "reattach",
        "the start of a card",
    ),
    (
        "kernel-driver/core/src/host/import.rs",
        "all_imports_lost",
        "the death of a card",
    ),
    (
        "kernel-driver/core/src/host/port.rs",
        "fail_ports",
        "the death of a card",
    ),
    (
        "kernel-driver/core/src/host/tally.rs",
        "port_tally",
        "for observers",
    ),
    (
        "kernel-driver/core/src/host/tally.rs",
        "export_tally",
        "for observers",
    ),
    (
        "kernel-driver/core/src/host/tally.rs",
        "peer_tally",
        "for observers",
    ),
    ("kernel-driver/core/src/host/watch.rs", "watch_due", "a mutant"),
    (
        "nic-firmware/core/src/tables.rs",
        "reset",
        "the start of the firmware",
    ),
    ("kernel-driver/core/src/host/census.rs", "held", "a census"),
    (
        "kernel-driver/core/src/lists.rs",
        "of_all",
        "the start of the driver",
    ),
];

/// A core's file without comments and white space, and where its functions begin.
struct Code {
    text: String,
    /// Offset, number of the line, and function of each line.
    lines: Vec<(usize, usize, String)>,
}

impl Code {
    fn of(file: &File) -> Self {
        let (mut text, mut lines) = (String::new(), Vec::new());
        let mut function = String::new();
        for (at, line) in file.shipped_lines() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some((_, rest)) = code.split_once("fn ") {
                function = rest.chars().take_while(|c| is_name(*c)).collect();
            }
            lines.push((text.len(), at, function.clone()));
            text.extend(code.chars().filter(|c| !c.is_whitespace()));
        }
        Self { text, lines }
    }

    /// Fields that are tables of a core.
    fn tables(&self) -> impl Iterator<Item = String> {
        self.text.match_indices(":S::Table<").map(|(at, _)| {
            let before = self.text[..at].chars().rev().take_while(|c| is_name(*c));
            before.collect::<Vec<_>>().into_iter().rev().collect()
        })
    }

    /// Line and function of each loop over one of these tables.
    fn walks(&self, tables: &BTreeSet<String>) -> BTreeSet<(usize, String)> {
        let loops = [".iter()", ".iter_mut()", ".len()"].into_iter().flat_map(|call| {
            let found = self.text.match_indices(call);
            found.filter(move |(at, _)| {
                let path = |c: &char| is_name(*c) || *c == '.';
                let before: Vec<char> = self.text[..*at].chars().rev().take_while(path).collect();
                let before: String = before.into_iter().rev().collect();
                let name = before.rsplit('.').next().unwrap_or_default();
                tables.contains(name) && (call != ".len()" || before.contains(".."))
            })
        });
        loops
            .map(|(at, _)| {
                let line = self.lines.partition_point(|(begins, ..)| *begins <= at) - 1;
                (self.lines[line].1, self.lines[line].2.clone())
            })
            .collect()
    }
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for core in CORES {
        let files = tree
            .files
            .iter()
            .filter(|file| file.is_rust() && file.path.starts_with(core));
        let files: Vec<(&str, Code)> = files.map(|file| (file.path.as_str(), Code::of(file))).collect();
        let tables = files.iter().flat_map(|(_, code)| code.tables()).collect();
        for (path, code) in &files {
            let walks = code.walks(&tables);
            let allowed = ALLOWED.iter().filter(|(file, ..)| file == path);
            let names: BTreeSet<&str> = allowed.map(|(_, function, _)| *function).collect();
            let unknown = walks
                .iter()
                .filter(|(_, function)| !names.contains(function.as_str()));
            wrong.extend(unknown.map(|(at, function)| {
                format!("{path}:{at}: {function} goes through a whole table; xtask/src/house/walks.rs says where that may be")
            }));
            let gone = names
                .iter()
                .filter(|name| !walks.iter().any(|(_, function)| function == **name));
            wrong.extend(gone.map(|name| {
                format!("{path}: {name} goes through no table, and xtask/src/house/walks.rs allows it")
            }));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_a_table_is_found() {
        let wrong = |body: &str| {
            let text = format!(
                "struct X<S> {{\n    ports: S::Table<Port>,\n    few: [u8; 4],\n}}\nfn scan(&self) {{\n{body}\n}}\n"
            );
            check(&Tree::of(&[("kernel-driver/core/src/host/new.rs", &text)]))
        };
        for bad in [
            "self.ports.iter().any(Port::is_free)",
            "self\n    .ports // all\n    .iter_mut()",
            "for port in 0..self.ports.len() {}",
        ] {
            let found = wrong(bad);
            assert!(
                found.len() == 1 && found[0].contains("scan goes through"),
                "{bad}: {found:?}"
            );
        }
        for good in [
            "self.few.iter()",
            "port < self.ports.len()",
            "self.ports.get(3)",
            "// ports.iter()",
        ] {
            assert_eq!(wrong(good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn what_is_allowed_and_gone_is_found() {
        let text = "fn held(&self) -> u32 {\n    self.count\n}\n";
        let found = check(&Tree::of(&[("kernel-driver/core/src/shares.rs", text)]));
        assert!(
            found.len() == 1 && found[0].contains("held goes through no table"),
            "{found:?}"
        );
    }
}
