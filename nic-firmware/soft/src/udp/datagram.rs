//! What a datagram is made of where nodes have no cluster key, and the letters of all nodes. [`super::sealed`] has the other kind.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | CRC32C of all that follows |
//! | 4, 5 | `NU` |
//! | 6 | version of this format |
//! | 7 | [`Kind`] |
//! | 8 to 15 | the receiver's number of the link; 0 in a [`Kind::Hello`] and a [`Kind::Confirm`] |
//! | 16 to ... | a message: header and payload; or a [`Letter`], and zeros behind it |
//!
//! All numbers are little-endian. A letter is as long as the longest message of its sender: a path that takes letters takes
//! messages, and an answer is not longer than what it answers.

use netvm_abi::NodeId;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes before the content.
pub const PREFIX: usize = 16;
const CHECKED: usize = 4;
const MAGIC: [u8; 2] = *b"NU";
/// Version of this format.
pub const VERSION: u8 = 1;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks for a link. Nothing is kept of it.
    Hello = 1,
    /// Asks whether the sender of a `Hello` is where it says, by a token.
    Challenge = 2,
    /// Brings the token back.
    Confirm = 3,
    /// The link is made.
    Welcome = 4,
    /// There will be no link.
    Refusal = 5,
    /// A message of the cards.
    Message = 6,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Hello,
        Self::Challenge,
        Self::Confirm,
        Self::Welcome,
        Self::Refusal,
        Self::Message,
    ];

    pub(super) fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    checksum: [u8; CHECKED],
    magic: [u8; 2],
    version: u8,
    kind: u8,
    link: U64,
}

const _: () = assert!(size_of::<Prefix>() == PREFIX);

/// Why there will be no link, in a [`Kind::Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The number that the other side says is its own belongs to another node here; this one is free.
    Taken(NodeId),
    /// Its number is not below this one.
    TooHigh(u16),
    /// Its number belongs to another node here, and so do all others.
    Full,
    /// It speaks another version of the ABI than this one.
    Version(u16),
    /// This node has a cluster key, and the other one did not use any. This reason and the next two are hints: no key proves them.
    WantsKey,
    /// This node has no cluster key, and the other one used one.
    NoKey,
    /// The other node used another cluster key than this node's.
    OtherKey,
}

/// What two nodes say to each other before they have a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Letter {
    abi: U16,
    node: U16,
    reason: U16,
    detail: U16,
    id: U64,
    /// In a `Challenge` and a `Confirm`.
    pub token: [u8; 32],
}

impl Letter {
    /// From a node that gives this number to the link.
    #[must_use]
    pub fn from(node: NodeId, id: u64) -> Self {
        Self {
            abi: U16::new(netvm_abi::ABI_VERSION),
            node: U16::new(node.0),
            reason: U16::ZERO,
            detail: U16::ZERO,
            id: U64::new(id),
            token: [0; 32],
        }
    }

    /// With a token.
    #[must_use]
    pub fn with_token(mut self, token: [u8; 32]) -> Self {
        self.token = token;
        self
    }

    /// With a reason why there will be no link.
    #[must_use]
    pub fn refusing(mut self, reason: Reason) -> Self {
        let (code, detail) = match reason {
            Reason::Taken(free) => (1, free.0),
            Reason::TooHigh(nodes) => (2, nodes),
            Reason::Version(version) => (3, version),
            Reason::Full => (4, 0),
            Reason::WantsKey => (5, 0),
            Reason::NoKey => (6, 0),
            Reason::OtherKey => (7, 0),
        };
        self.reason = U16::new(code);
        self.detail = U16::new(detail);
        self
    }

    /// Why there will be no link, if it says so.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        let detail = self.detail.get();
        match self.reason.get() {
            1 => Some(Reason::Taken(NodeId(detail))),
            2 => Some(Reason::TooHigh(detail)),
            3 => Some(Reason::Version(detail)),
            4 => Some(Reason::Full),
            5 => Some(Reason::WantsKey),
            6 => Some(Reason::NoKey),
            7 => Some(Reason::OtherKey),
            _ => None,
        }
    }

    /// The sender's node number.
    #[must_use]
    pub fn node(&self) -> NodeId {
        NodeId(self.node.get())
    }

    /// The sender's number of the link.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// The sender's version of the ABI.
    #[must_use]
    pub fn abi(&self) -> u16 {
        self.abi.get()
    }

    /// Reads one; what stands behind it is padding.
    #[must_use]
    pub fn read(content: &[u8]) -> Option<Self> {
        Self::read_from_prefix(content).ok().map(|(letter, _)| letter)
    }
}

/// Appends a datagram with this content, which is at most as long as it gets room for; zeros fill the rest.
pub fn write(into: &mut Vec<u8>, kind: Kind, link: u64, content: &[&[u8]], room: usize) {
    let begin = into.len();
    let prefix = Prefix {
        checksum: [0; CHECKED],
        magic: MAGIC,
        version: VERSION,
        kind: kind as u8,
        link: U64::new(link),
    };
    into.extend_from_slice(prefix.as_bytes());
    for part in content {
        into.extend_from_slice(part);
    }
    let end = into.len().max(begin + PREFIX + room);
    into.resize(end, 0);
    let (checksum, checked) = into.split_at_mut(begin + CHECKED);
    let sum = crc32c::crc32c(checked).to_le_bytes();
    if let Some(place) = checksum.get_mut(begin..) {
        place.copy_from_slice(&sum);
    }
}

/// Takes a datagram apart: its kind, the link that it names, and its content. Nothing where it is none of ours, or not what was
/// sent.
#[must_use]
pub fn read(datagram: &[u8]) -> Option<(Kind, u64, &[u8])> {
    let (prefix, content) = Prefix::ref_from_prefix(datagram).ok()?;
    let sum = crc32c::crc32c(datagram.get(CHECKED..)?);
    if prefix.checksum != sum.to_le_bytes() || prefix.magic != MAGIC || prefix.version != VERSION {
        return None;
    }
    Some((Kind::of(prefix.kind)?, prefix.link.get(), content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let mut bytes = vec![9; 3];
        let letter = Letter::from(NodeId(7), 0x1234_5678_9ABC).refusing(Reason::Taken(NodeId(9)));
        write(&mut bytes, Kind::Refusal, 77, &[letter.as_bytes()], 200);
        let mut datagram = bytes.split_off(3);
        assert_eq!(datagram.len(), PREFIX + 200);
        let (kind, link, content) = read(&datagram).unwrap();
        assert_eq!((kind, link), (Kind::Refusal, 77));
        assert_eq!(Letter::read(content), Some(letter));
        assert_eq!(letter.reason(), Some(Reason::Taken(NodeId(9))));
        assert_eq!(Letter::read(&content[..8]), None);
        for at in 0..datagram.len() {
            for bit in 0..8 {
                datagram[at] ^= 1 << bit;
                assert_eq!(read(&datagram), None, "byte {at}, bit {bit}");
                datagram[at] ^= 1 << bit;
            }
        }
        for len in 0..datagram.len() {
            assert_eq!(read(&datagram[..len]), None);
        }
    }
}
