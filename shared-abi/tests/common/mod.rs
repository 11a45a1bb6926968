//! Reads the golden vectors, and offers words to write to.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder of the golden vectors.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A file of golden vectors: bytes by section.
pub struct Golden {
    name: String,
    sections: BTreeMap<String, Vec<u8>>,
}

impl Golden {
    /// Reads `tests/golden/NAME.hex`.
    pub fn read(name: &str) -> Self {
        let path = folder().join(format!("{name}.hex"));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut sections = BTreeMap::new();
        let mut current: Option<String> = None;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let new = sections.insert(section.to_owned(), Vec::new()).is_none();
                assert!(new, "{name}.hex:{}: [{section}] twice", at + 1);
                current = Some(section.to_owned());
                continue;
            }
            let section = current
                .as_ref()
                .unwrap_or_else(|| panic!("{name}.hex:{}: bytes before a [section]", at + 1));
            let bytes = sections.get_mut(section).expect("inserted above");
            for byte in line.split_whitespace() {
                let byte = u8::from_str_radix(byte, 16)
                    .unwrap_or_else(|error| panic!("{name}.hex:{}: {byte}: {error}", at + 1));
                bytes.push(byte);
            }
        }
        Self {
            name: name.to_owned(),
            sections,
        }
    }

    /// Bytes of a section, filled up with zeroes to `len`; the section counts as used.
    pub fn take(&mut self, section: &str, len: usize) -> Vec<u8> {
        let mut bytes = self
            .sections
            .remove(section)
            .unwrap_or_else(|| panic!("{}.hex: no [{section}]", self.name));
        assert!(bytes.len() <= len, "{}.hex: [{section}] is too long", self.name);
        bytes.resize(len, 0);
        bytes
    }

    /// The same as little-endian words.
    pub fn take_words<const N: usize>(&mut self, section: &str) -> [u32; N] {
        words(&self.take(section, 4 * N))
    }

    /// Bytes of a section as they are.
    pub fn take_exact(&mut self, section: &str) -> Vec<u8> {
        let len = self.sections.get(section).map_or(0, Vec::len);
        self.take(section, len)
    }

    /// Every section has been used.
    pub fn end(self) {
        assert!(
            self.sections.is_empty(),
            "{}.hex: no test checks {:?}",
            self.name,
            self.sections.keys()
        );
    }
}

/// Little-endian words.
pub fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    words.try_into().expect("as many words")
}

/// Shared words, all of them `fill`.
pub fn shared(len: usize, fill: u32) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(fill)).collect()
}

/// What is in shared words.
pub fn dump<const N: usize>(words: &[AtomicU32], at: usize) -> [u32; N] {
    core::array::from_fn(|index| words[at + index].load(Ordering::Relaxed))
}
