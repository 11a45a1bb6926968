//! Every public function of the library is called by a test.
//!
//! Told apart by name, and by type where the call names it: `Port::open`, `.export(`. So of two types with a function of the
//! same name, one call counts for both.

use std::collections::BTreeSet;

use super::tree::{File, Tree};

/// The library's own sources.
const LIBRARY: &str = "userlib/src/";
/// Public for the other crates of NetVM alone (`userlib/src/lib.rs` says so).
const INTERNAL: [&str; 5] = [
    "userlib/src/backend.rs",
    "userlib/src/guarded.rs",
    "userlib/src/mapped.rs",
    "userlib/src/sync/protocol",
    "userlib/src/sync/alock/machine",
];
/// What calls it as a user would, beside the tests: the conformance suite's bodies, and the examples, which the stage `program`
/// runs.
const CALLERS: [&str; 2] = ["tests/conformance/src/", "examples/"];

/// A public function.
#[derive(Debug, Eq, PartialEq)]
struct Function<'a> {
    /// The type that it belongs to; empty if to none.
    of: &'a str,
    name: &'a str,
    line: usize,
}

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut calls = Calls::default();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        if CALLERS.iter().any(|folder| file.path.starts_with(folder)) {
            calls.read(&file.text);
        } else {
            calls.read(file.test_text());
        }
    }
    let mut wrong = Vec::new();
    for file in tree.files.iter().filter(|file| is_public(file)) {
        for Function { of, name, line } in functions(file) {
            if !calls.made(of, name) {
                let of = if of.is_empty() { "netvm" } else { of };
                wrong.push(format!("{}:{line}: no test calls `{of}::{name}`", file.path));
            }
        }
    }
    wrong
}

fn is_public(file: &File) -> bool {
    file.is_rust()
        && !file.is_test()
        && file.path.starts_with(LIBRARY)
        && !INTERNAL.iter().any(|internal| file.path.starts_with(internal))
}

/// Words of a line that stand before a function's name, if it is public.
const BEGINNINGS: [&str; 5] = [
    "pub fn ",
    "pub const fn ",
    "pub async fn ",
    "pub unsafe fn ",
    "pub const unsafe fn ",
];

/// The public functions of a file, with the type that they belong to.
fn functions(file: &File) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let (mut of, mut hidden) = ("", false);
    for (line, text) in file.shipped_lines() {
        if let Some(rest) = text.strip_prefix("impl") {
            of = type_of(rest);
        }
        let code = text.trim_start();
        let name = BEGINNINGS.iter().find_map(|words| code.strip_prefix(words));
        if let Some(name) = name.and_then(|rest| rest.split(['(', '<']).next())
            && !hidden
        {
            let of = if code == text { "" } else { of };
            found.push(Function { of, name, line });
        }
        hidden = code.starts_with("#[doc(hidden)]") || hidden && code.starts_with(['#', '/']);
    }
    found
}

/// The type in `<T> Type<T> {`, `Trait for Type {` or ` Type {`.
fn type_of(rest: &str) -> &str {
    // Parameters of the `impl` itself.
    let rest = match rest.strip_prefix('<') {
        Some(inner) => inner.split_once("> ").map_or("", |(_, rest)| rest),
        None => rest,
    };
    let rest = rest.split_once(" for ").map_or(rest, |(_, rest)| rest);
    rest.trim().split(['<', ' ']).next().unwrap_or_default()
}

/// The calls of some texts.
#[derive(Default)]
struct Calls {
    /// `name` of `.name(` and `.name::<`.
    methods: BTreeSet<String>,
    /// `name` of `name(`.
    functions: BTreeSet<String>,
    /// `Type::name`.
    paths: BTreeSet<(String, String)>,
}

impl Calls {
    /// Adds those of a text. Comments do not count.
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            let code = line.split("//").next().unwrap_or_default();
            let mut words = Words(code);
            let mut before: Option<(&str, &str)> = None;
            while let Some((glue, word)) = words.next() {
                let called = words.0.starts_with('(') || words.0.starts_with("::<");
                if glue.ends_with('.') && called {
                    self.methods.insert(word.to_owned());
                } else if called {
                    self.functions.insert(word.to_owned());
                }
                if let Some((_, of)) = before
                    && glue == "::"
                {
                    self.paths.insert((of.to_owned(), word.to_owned()));
                }
                before = Some((glue, word));
            }
        }
    }

    fn made(&self, of: &str, name: &str) -> bool {
        if of.is_empty() {
            return self.functions.contains(name);
        }
        self.methods.contains(name) || self.paths.contains(&(of.to_owned(), name.to_owned()))
    }
}

/// Cuts a line into words, each with what stands before it.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begin = self.0.find(is_word)?;
        let (glue, rest) = self.0.split_at(begin);
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.0 = rest;
        Some((glue, word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY_TEXT: &str = "impl<'a, T: X<u8>> Port<'a, T> {\n    pub fn open(node: &Node) {}\n\
         #[doc(hidden)]\n    #[must_use]\n    pub fn card(&self) {}\n    pub fn name<T>(&self) {}\n    pub const fn id(&self) {}\n\
         pub(crate) fn own(&self) {}\n}\nimpl Iterator for Set {\n    fn next(&mut self) {}\n}\npub const fn free() {}\n";

    #[test]
    fn public_functions_are_found_with_their_types() {
        let tree = Tree::of(&[("userlib/src/port.rs", LIBRARY_TEXT)]);
        let found: Vec<(&str, &str)> = functions(&tree.files[0]).iter().map(|f| (f.of, f.name)).collect();
        let expected = [("Port", "open"), ("Port", "name"), ("Port", "id"), ("", "free")];
        assert_eq!(found, expected);
        assert_eq!(type_of(" Iterator for Set {"), "Set");
        assert_eq!(type_of("<S: Store> Nic<S> {"), "Nic");
    }

    #[test]
    fn a_function_that_no_test_calls_is_found() {
        let body = "fn body(port: &Port) { Node::open(1); port.name::<u8>(); /* of */ } // port.id()\n";
        let tests = "fn test() { assert!(Port::open(&node)); port.idle(); }";
        let tree = Tree::of(&[
            ("userlib/src/port.rs", LIBRARY_TEXT),
            ("userlib/src/backend.rs", LIBRARY_TEXT),
            ("tests/conformance/src/one.rs", body),
            ("userlib/tests/library/main.rs", tests),
            ("benches/src/lib.rs", "port.id()"),
        ]);
        let wrong = check(&tree);
        assert_eq!(
            wrong,
            [
                "userlib/src/port.rs:7: no test calls `Port::id`",
                "userlib/src/port.rs:13: no test calls `netvm::free`"
            ]
        );
    }
}
