//! The two layers of each core: the files of its state know nothing of the whole that uses them.
//!
//! `kernel-driver/core/src/*.rs` holds tables, lists and machines, each with its own idea. `host/` joins them. In the
//! same way the parts of the NIC (`ports`, `links`, `staging` and their like) stand below `nic/`, which routes between
//! them. An arrow back would let a part act on all the others. Only `lib.rs` names both.

use super::tree::{File, Tree};

/// A core, and the module (with the type of the same name) that joins its parts.
struct Core {
    sources: &'static str,
    whole: &'static str,
    name: &'static str,
}

const CORES: [Core; 2] = [
    Core {
        sources: "kernel-driver/core/src/",
        whole: "host",
        name: "Host",
    },
    Core {
        sources: "nic-firmware/core/src/",
        whole: "nic",
        name: "Nic",
    },
];

impl Core {
    /// Whether a file holds a part of the core's state.
    fn is_part(&self, file: &File) -> bool {
        let Some(name) = file.path.strip_prefix(self.sources) else {
            return false;
        };
        let first = name.split('/').next().unwrap_or_default();
        let first = first.strip_suffix(".rs").unwrap_or(first);
        file.is_rust() && first != "lib" && first != self.whole
    }

    fn check_file(&self, file: &File) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut in_use = false;
        for (at, line) in file.shipped_lines() {
            let code = line.split("//").next().unwrap_or_default();
            in_use |= is_use(code);
            if self.is_named_in(code, in_use) {
                wrong.push(format!(
                    "{}:{at}: state never imports {}: {}",
                    file.path,
                    self.whole,
                    line.trim()
                ));
            }
            in_use &= !code.contains(';');
        }
        wrong
    }

    /// The type wherever it stands; its module in a path or an import, since a value may have that name.
    fn is_named_in(&self, code: &str, in_use: bool) -> bool {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let word = |word: &str| code.split(|c| !is_name(c)).any(|part| part == word);
        let path = code
            .match_indices(&format!("{}::", self.whole))
            .any(|(at, _)| !code[..at].ends_with(is_name));
        word(self.name) || path || (in_use && word(self.whole))
    }
}

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    CORES
        .iter()
        .flat_map(|core| {
            let parts = tree.files.iter().filter(|file| core.is_part(file));
            parts.flat_map(|file| core.check_file(file))
        })
        .collect()
}

fn is_use(code: &str) -> bool {
    let code = code.trim_start();
    let code = code
        .strip_prefix("pub")
        .map_or(code, |rest| rest.split_once(' ').map_or(rest, |(_, rest)| rest));
    code.starts_with("use ")
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
            "kernel-driver/core/tests/host/paging.rs",
        ] {
            assert_eq!(wrong(above, "use crate::host::Host;\n"), Vec::<String>::new());
        }
    }

    #[test]
    fn a_part_of_the_nic_never_imports_it() {
        for part in ["dmas.rs", "links/timers.rs"] {
            let path = format!("nic-firmware/core/src/{part}");
            let found = wrong(&path, "use crate::nic::Nic;\n");
            assert!(
                found.len() == 1 && found[0].contains("state never imports nic"),
                "{found:?}"
            );
        }
        for above in ["lib.rs", "nic.rs", "nic/links.rs"] {
            let path = format!("nic-firmware/core/src/{above}");
            assert_eq!(wrong(&path, "use super::Nic;\n"), Vec::<String>::new());
        }
    }
}
