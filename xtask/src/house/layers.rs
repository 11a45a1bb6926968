//! The two layers of the host core: the files of its state know nothing of the whole that uses them.
//!
//! `kernel-driver/core/src/*.rs` holds tables, lists and machines, each with its own idea. `host/` joins them. An arrow
//! back would let a table act on all the others. Only `lib.rs` names both.

use super::tree::{File, Tree};

const CORE: &str = "kernel-driver/core/src/";

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let state = tree.files.iter().filter(|file| {
        let name = file.path.strip_prefix(CORE);
        name.is_some_and(|name| name != "lib.rs" && !name.contains('/') && file.is_rust())
    });
    state.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut in_use = false;
    for (at, line) in file.shipped_lines() {
        let code = line.split("//").next().unwrap_or_default();
        in_use |= is_use(code);
        if names_host(code, in_use) {
            wrong.push(format!(
                "{}:{at}: state never imports host: {}",
                file.path,
                line.trim()
            ));
        }
        in_use &= !code.contains(';');
    }
    wrong
}

fn is_use(code: &str) -> bool {
    let code = code.trim_start();
    let code = code
        .strip_prefix("pub")
        .map_or(code, |rest| rest.split_once(' ').map_or(rest, |(_, rest)| rest));
    code.starts_with("use ")
}

/// The type wherever it stands; its module in a path or an import, since a value may have that name.
fn names_host(code: &str, in_use: bool) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let word = |word: &str| code.split(|c| !is_name(c)).any(|part| part == word);
    let path = code
        .match_indices("host::")
        .any(|(at, _)| !code[..at].ends_with(is_name));
    word("Host") || path || (in_use && word("host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn each_way_to_import_host_is_found() {
        for bad in [
            "use crate::host::Host;",
            "use crate::Host;",
            "use crate::host;",
            "pub(crate) use super::host::CardState;",
            "use crate::{lists::List, host::CardState};",
            "use crate::{\n    lists,\n    host,\n};",
            "impl<S: Storage> Host<S> {}",
            "fn f(now: u64) { crate::host::f(now) }",
        ] {
            let text = format!("//! A table.\n{bad}\n");
            let found = wrong("kernel-driver/core/src/exports.rs", &text);
            assert!(
                found.len() == 1 && found[0].contains("state never imports host"),
                "{bad}: {found:?}"
            );
        }
    }

    #[test]
    fn what_is_no_import_of_host_passes() {
        let text = "//! Driven by [`Host::poll`](crate::Host::poll).\nuse crate::lists::List;\nuse netvm_host::x;\n\
            fn f(host: u8, ghost: u8) -> u8 { host + ghost }\nstruct HostConfig;\n\
            #[cfg(test)]\nmod tests { use crate::Host; }\n";
        assert_eq!(
            wrong("kernel-driver/core/src/exports.rs", text),
            Vec::<String>::new()
        );
        for above in [
            "kernel-driver/core/src/lib.rs",
            "kernel-driver/core/src/host/export.rs",
            "kernel-driver/core/tests/host/rig.rs",
        ] {
            assert_eq!(wrong(above, "use crate::host::Host;\n"), Vec::<String>::new());
        }
    }
}
