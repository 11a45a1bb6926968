//! A name as an error shows it.

use std::fmt;
use std::ops::Deref;

/// Bytes of a name that are shown: all of every name that an export can have.
const SHOWN: usize = netvm_abi::control::NAME_BYTES;

/// A name inside of an [`Error`](crate::Error): the name that was given, or what fits 64 bytes of it.
/// Reads as a `str`.
///
/// It is held in place, so that errors own nothing: then a `Result` costs nothing to drop, which every
/// caller of every call does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    bytes: [u8; SHOWN],
    len: u8,
}

impl From<&str> for Label {
    fn from(name: &str) -> Self {
        let len = (0..=SHOWN.min(name.len()))
            .rev()
            .find(|&len| name.is_char_boundary(len))
            .unwrap_or_default();
        let mut bytes = [0; SHOWN];
        for (to, from) in bytes.iter_mut().zip(name.bytes()).take(len) {
            *to = from;
        }
        Self {
            bytes,
            len: len as u8,
        }
    }
}

impl Deref for Label {
    type Target = str;

    fn deref(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len));
        // It was cut between two characters, so it is text.
        bytes
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Label;

    #[test]
    fn a_name_is_shown_as_it_is() {
        let longest = "x".repeat(64);
        for name in ["", "inbox", "día", "a\0b", longest.as_str()] {
            assert_eq!(&*Label::from(name), name);
            assert_eq!(format!("{:?}", Label::from(name)), format!("{name:?}"));
        }
    }

    #[test]
    fn a_longer_name_is_cut_between_characters() {
        assert_eq!(&*Label::from("x".repeat(65).as_str()), "x".repeat(64));
        // 63 bytes and a character of two.
        let name = format!("{}é", "x".repeat(63));
        assert_eq!(&*Label::from(name.as_str()), "x".repeat(63));
    }
}
