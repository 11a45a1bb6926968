//! The key that the nodes of a cluster share.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::core::fill_random;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// How the text of a key begins: what it is, and the version of the text.
const SCHEME: &str = "netvm-key-1:";

/// A secret of 256 random bits that all nodes of a cluster have. Nodes with it encrypt and authenticate what they send over
/// UDP, and take nothing else.
///
/// It is overwritten when it is dropped, and shows nothing of itself in messages for people.
#[derive(Clone)]
pub struct ClusterKey(Zeroizing<[u8; KEY_BYTES]>);

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// It does not begin as one.
    #[error("it does not begin with '{SCHEME}', as a key does")]
    Scheme,
    /// It is too long or too short.
    #[error(
        "what follows '{SCHEME}' is not 43 characters long, as a key is: a part of it is missing, or there is too much"
    )]
    Length,
    /// It has characters that no key has.
    #[error("what follows '{SCHEME}' is no key: it has letters, digits, '-' and '_' only")]
    Text,
}

impl ClusterKey {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn generate() -> Result<Self, Errno> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        fill_random(&mut *bytes)?;
        Ok(Self(bytes))
    }

    /// Reads the [text](Self::to_text) of one. White space around it does not count.
    ///
    /// # Errors
    /// What is wrong with it. Nothing of the text is repeated.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let text = text.trim_ascii().strip_prefix(SCHEME).ok_or(BadKey::Scheme)?;
        if text.len() != BASE64URL_NOPAD.encode_len(KEY_BYTES) {
            return Err(BadKey::Length);
        }
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        match BASE64URL_NOPAD.decode_mut(text.as_bytes(), &mut *bytes) {
            Ok(KEY_BYTES) => Ok(Self(bytes)),
            _ => Err(BadKey::Text),
        }
    }

    /// Its text, for a file.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // With all of its room from the beginning: a text that grows leaves copies.
        let mut text = String::with_capacity(SCHEME.len() + BASE64URL_NOPAD.encode_len(KEY_BYTES));
        text.push_str(SCHEME);
        BASE64URL_NOPAD.encode_append(&*self.0, &mut text);
        Zeroizing::new(text)
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClusterKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back() {
        let key = ClusterKey::generate().unwrap();
        let text = key.to_text();
        let read = ClusterKey::parse(&format!(" {}\n", *text)).unwrap();
        assert_eq!(read.bytes(), key.bytes());
        assert_ne!(ClusterKey::generate().unwrap().bytes(), key.bytes());
        let known = ClusterKey::parse("netvm-key-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8").unwrap();
        assert!(known.bytes().iter().copied().eq(0..32));
    }

    #[test]
    fn nothing_of_it_is_shown() {
        let key = ClusterKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), "ClusterKey(..)");
        let text = key.to_text();
        for wrong in [&text[1..], &text[..30], &format!("{}?", &text[..text.len() - 1])] {
            let error = ClusterKey::parse(wrong).unwrap_err();
            let secret = &text[SCHEME.len()..SCHEME.len() + 8];
            assert!(!format!("{error} {error:?}").contains(secret), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_text_is_told_apart() {
        let text = ClusterKey::generate().unwrap().to_text();
        let parse = |text: &str| ClusterKey::parse(text).map(drop);
        assert_eq!(parse(""), Err(BadKey::Scheme));
        assert_eq!(parse(&text[SCHEME.len()..]), Err(BadKey::Scheme));
        assert_eq!(parse(&text.replace("key-1", "key-2")), Err(BadKey::Scheme));
        for len in SCHEME.len()..text.len() {
            assert_eq!(parse(&text[..len]), Err(BadKey::Length));
        }
        assert_eq!(parse(&format!("{}A", *text)), Err(BadKey::Length));
        for letter in ['+', '/', '=', ' ', 'ä'] {
            let mut wrong = text[..SCHEME.len() + 20].to_owned();
            wrong.push(letter);
            wrong.push_str(&text[wrong.len()..]);
            assert_eq!(parse(&wrong), Err(BadKey::Text), "{letter}");
        }
        // Two texts of one key: the last letter has two bits too many.
        let wrong = "netvm-key-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9";
        assert_eq!(parse(wrong), Err(BadKey::Text));
    }
}
