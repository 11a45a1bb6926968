//! A batch's records: calls and answers, one behind the other.
//!
//! A record has a head of 8 bytes (length of its body, slot, kind, status) and a body. Calls have no number on the wire: both
//! sides count them. An answer names the call's.

use crate::error::Ended;
use netvm::Label;

/// Bytes of a record's head.
pub(crate) const HEAD: usize = 8;

/// What a record is: bits of its kind.
pub(crate) mod kind {
    /// An answer; else a call.
    pub(crate) const ANSWER: u8 = 1;
    /// The call's result goes back.
    pub(crate) const RETURNS: u8 = 2;
    /// Its caller counts that it was consumed.
    pub(crate) const COUNTED: u8 = 4;
    /// A buffer follows the argument.
    pub(crate) const INLINE: u8 = 8;
    /// A buffer lies where its caller wrote it: an address and a length follow the argument.
    pub(crate) const WRITTEN: u8 = 16;
    /// A buffer is to be read: an offset, a length and an export's name follow the argument.
    pub(crate) const READ: u8 = 32;
    /// All members of a group are called: its id and the rank of the first caller come before the argument.
    pub(crate) const BROADCAST: u8 = 64;
    /// Any of the three buffers: the argument's length comes first.
    pub(crate) const BUFFER: u8 = INLINE | WRITTEN | READ;
}

/// How a call has ended, as an answer says it.
pub(crate) mod status {
    pub(crate) const DONE: u8 = 0;
    pub(crate) const PANICKED: u8 = 1;
    pub(crate) const NO_FUNCTION: u8 = 2;
    pub(crate) const BAD_ARGUMENT: u8 = 3;
    pub(crate) const NO_BUFFER: u8 = 4;
    pub(crate) const TOO_LONG: u8 = 5;
    pub(crate) const NO_GROUP: u8 = 6;
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len: u32,
    pub(crate) slot: u16,
    pub(crate) kind: u8,
    pub(crate) status: u8,
}

impl Head {
    pub(crate) const fn encode(self) -> [u8; HEAD] {
        let low = self.len as u64 | (self.slot as u64) << 32;
        (low | (self.kind as u64) << 48 | (self.status as u64) << 56).to_le_bytes()
    }

    const fn decode(bytes: [u8; HEAD]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Self {
            len: word as u32,
            slot: (word >> 32) as u16,
            kind: (word >> 48) as u8,
            status: (word >> 56) as u8,
        }
    }
}

/// Appends a record whose body `fill` appends.
#[inline]
pub(crate) fn append(to: &mut Vec<u8>, slot: u16, kind: u8, status: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0; HEAD]);
    fill(to);
    let len = to.len().saturating_sub(start + HEAD) as u32;
    let head = Head {
        len,
        slot,
        kind,
        status,
    };
    if let Some(place) = to.get_mut(start..start + HEAD) {
        place.copy_from_slice(&head.encode());
    }
}

/// Puts a slot into a record that was made before it was known.
pub(crate) fn set_slot(record: &mut [u8], slot: u16) {
    if let Some(place) = record.get_mut(4..6) {
        place.copy_from_slice(&slot.to_le_bytes());
    }
}

/// Splits the first record off; nothing if what is there is none.
#[inline]
pub(crate) fn split(batch: &[u8]) -> Option<(Head, &[u8], &[u8])> {
    let (head, rest) = batch.split_first_chunk::<HEAD>()?;
    let head = Head::decode(*head);
    let (body, rest) = rest.split_at_checked(head.len as usize)?;
    Some((head, body, rest))
}

fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

/// The buffer of a call, as its record says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where<'a> {
    Nowhere,
    Here(&'a [u8]),
    At { address: u64, len: u64 },
    There { offset: u64, len: u64, name: &'a str },
}

/// Which members a broadcast is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Audience {
    pub(crate) group: u64,
    pub(crate) root: u64,
}

/// A call's body, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body<'a> {
    pub(crate) audience: Option<Audience>,
    pub(crate) argument: &'a [u8],
    pub(crate) buffer: Where<'a>,
}

impl<'a> Body<'a> {
    /// Nothing: it is not what its kind says.
    #[inline]
    pub(crate) fn decode(kind: u8, body: &'a [u8]) -> Option<Self> {
        if kind & (kind::BUFFER | kind::BROADCAST) == 0 {
            return Some(Self {
                audience: None,
                argument: body,
                buffer: Where::Nowhere,
            });
        }
        let (audience, body) = if kind & kind::BROADCAST == 0 {
            (None, body)
        } else {
            let (group, rest) = split_u64(body)?;
            let (root, rest) = split_u64(rest)?;
            (Some(Audience { group, root }), rest)
        };
        if kind & kind::BUFFER == 0 {
            return Some(Self {
                audience,
                argument: body,
                buffer: Where::Nowhere,
            });
        }
        let (len, rest) = split_u64(body)?;
        let (argument, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let buffer = match kind & kind::BUFFER {
            kind::INLINE => Where::Here(rest),
            kind::WRITTEN => {
                let (address, rest) = split_u64(rest)?;
                let (len, _) = split_u64(rest)?;
                Where::At { address, len }
            }
            kind::READ => {
                let (offset, rest) = split_u64(rest)?;
                let (len, name) = split_u64(rest)?;
                let name = std::str::from_utf8(name).ok()?;
                Where::There { offset, len, name }
            }
            _ => return None,
        };
        Some(Self {
            audience,
            argument,
            buffer,
        })
    }

    /// The bits of a kind that it needs.
    pub(crate) const fn kind(&self) -> u8 {
        let buffer = match self.buffer {
            Where::Nowhere => 0,
            Where::Here(_) => kind::INLINE,
            Where::At { .. } => kind::WRITTEN,
            Where::There { .. } => kind::READ,
        };
        if self.audience.is_some() {
            buffer | kind::BROADCAST
        } else {
            buffer
        }
    }

    /// Appends it, with an argument that `put` appends.
    #[inline]
    pub(crate) fn encode_with(&self, to: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(audience) = self.audience {
            to.extend_from_slice(&audience.group.to_le_bytes());
            to.extend_from_slice(&audience.root.to_le_bytes());
        }
        if let Where::Nowhere = self.buffer {
            return put(to);
        }
        let start = to.len();
        to.extend_from_slice(&[0; 8]);
        put(to);
        let len = to.len().saturating_sub(start + 8) as u64;
        if let Some(place) = to.get_mut(start..start + 8) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        match self.buffer {
            Where::Nowhere => {}
            Where::Here(bytes) => to.extend_from_slice(bytes),
            Where::At { address, len } => {
                to.extend_from_slice(&address.to_le_bytes());
                to.extend_from_slice(&len.to_le_bytes());
            }
            Where::There { offset, len, name } => {
                to.extend_from_slice(&offset.to_le_bytes());
                to.extend_from_slice(&len.to_le_bytes());
                to.extend_from_slice(name.as_bytes());
            }
        }
    }
}

/// The longest text that goes back about a panic.
const TEXT: usize = 256;

/// What an answer's body says beside the number of its call.
pub(crate) fn split_answer(body: &[u8]) -> Option<(u64, &[u8])> {
    split_u64(body)
}

/// The beginning of a text, whole characters.
pub(crate) fn shortened(text: &str) -> &str {
    let end = (0..=TEXT.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// What an answer's status means.
pub(crate) fn ended(status: u8, text: &[u8]) -> Ended {
    match status {
        status::PANICKED => Ended::Panicked(String::from_utf8_lossy(text).into_owned()),
        status::NO_FUNCTION => Ended::NoFunction,
        status::BAD_ARGUMENT => Ended::BadArgument,
        status::NO_BUFFER => Ended::NoBuffer(Label::from(&*String::from_utf8_lossy(text))),
        status::TOO_LONG => Ended::ResultTooLong,
        status::NO_GROUP => Ended::NoGroup,
        _ => Ended::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(body: Body<'_>) {
        let mut bytes = Vec::new();
        append(&mut bytes, 7, body.kind(), 3, |to| {
            body.encode_with(to, |to| to.extend_from_slice(body.argument));
        });
        bytes.extend_from_slice(b"rest");
        let (head, found, rest) = split(&bytes).unwrap();
        assert_eq!(
            (head.slot, head.kind, head.status, rest),
            (7, body.kind(), 3, &b"rest"[..])
        );
        assert_eq!(Body::decode(head.kind, found), Some(body));
    }

    #[test]
    fn bodies_come_back() {
        for audience in [None, Some(Audience { group: 9, root: 4 })] {
            for buffer in [
                Where::Nowhere,
                Where::Here(b"bytes"),
                Where::Here(b""),
                Where::At {
                    address: 1 << 40,
                    len: 5,
                },
                Where::There {
                    offset: 3,
                    len: 5,
                    name: "mine",
                },
            ] {
                for argument in [&b""[..], b"argument"] {
                    there_and_back(Body {
                        audience,
                        argument,
                        buffer,
                    });
                }
            }
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ü".repeat(200);
        assert_eq!(shortened(&long).len(), 256);
        assert_eq!(shortened(&format!("x{long}")).len(), 255);
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in any::<u8>()) {
            let _ = split(&bytes);
            let _ = Body::decode(kind, &bytes);
            let _ = split_answer(&bytes);
            let _ = ended(kind, &bytes);
        }
    }
}
