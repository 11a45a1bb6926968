//! What both sides of a link agree on: the message that opens one, and where things lie in an inbox.
//!
//! An endpoint has a *door*, a shared queue, to which others append a greeting. Each side of a link has an *inbox*, which
//! the other alone may write to: a page of words, the table of functions, and the chunks of a ring.

use crate::function::Id;
use crate::ring::Shape;
use netvm::{NodeId, PortId};

/// Marks greetings and inboxes of this version.
const MAGIC: u64 = u64::from_le_bytes(*b"NetVMca2");
const PAGE: u64 = 4096;

/// Offsets in the first page of an inbox.
pub(crate) mod page {
    /// What the inbox is like: a [`Description`](super::Description).
    pub(crate) const DESCRIPTION: u64 = 0;
    /// Written by the other side, about what this side has sent: batches consumed, calls done, the resynchronization
    /// that it has seen. One after the other.
    pub(crate) const CREDIT: u64 = 64;
    /// Its last word: 0, or batches that it has sent in all, plus 1.
    pub(crate) const FAREWELL: u64 = 88;
    /// It has flushed: batches that it has sent, and a number.
    pub(crate) const SYNC: u64 = 96;
    /// The same three as at [`CREDIT`], about what the other side has sent: where it looks if it doubts.
    pub(crate) const OWN: u64 = 128;
    /// Where this side's looks put what they read.
    pub(crate) const LOOK: u64 = 192;
}

/// Bytes of the three words at [`page::CREDIT`].
pub(crate) const CREDIT_BYTES: usize = 24;

/// The three counts that the receiver of calls keeps for their sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Batches consumed.
    pub(crate) consumed: u64,
    /// Calls that have run.
    pub(crate) done: Done,
    /// The last [`Sync`] seen.
    pub(crate) sync: u64,
}

impl Credit {
    pub(crate) fn encode(self) -> [u8; CREDIT_BYTES] {
        words([self.consumed, self.done.0, self.sync])
    }
}

/// How many calls have run, and how many batches the endpoint that ran them had sent by then: the answers of those calls that have
/// failed are among them.
///
/// The count may come before the answers: a look reads it while they are under way, and signals of batches may be held back where a
/// credit is not. So it is acted upon only when these batches have been taken. Both are one word, for a reader must not see one of
/// them without the other. Each is told by its lower half: the reader knows the count to within 2^31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done(pub(crate) u64);

impl Done {
    pub(crate) const fn new(calls: u64, sent: u64) -> Self {
        Self(calls & HALF | sent << 32)
    }

    /// Calls that have run, to a reader that has heard of `before`.
    pub(crate) const fn calls(self, before: u64) -> u64 {
        nearest(before, self.0 as u32)
    }

    /// Whether the answers of those that have failed were in the batches that a reader has taken.
    pub(crate) const fn is_answered(self, taken: u64) -> bool {
        nearest(taken, (self.0 >> 32) as u32) <= taken
    }
}

/// The lower half of a word.
const HALF: u64 = u32::MAX as u64;

/// The count with this lower half that is nearest to `about`.
const fn nearest(about: u64, half: u32) -> u64 {
    about.wrapping_add_signed(half.wrapping_sub(about as u32).cast_signed() as i64)
}

/// A sender's word after a flush: so many batches have landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sync(pub(crate) u64);

impl Sync {
    /// The one after `before`.
    pub(crate) const fn new(sent: u64, before: u64) -> Self {
        Self((sent << 8) | ((before.wrapping_add(1)) & 0xff))
    }

    pub(crate) const fn sent(self) -> u64 {
        self.0 >> 8
    }
}

/// How an inbox is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) shape: Shape,
    /// The notification that tells of a batch; the next one tells of words.
    pub(crate) arrived: u32,
    /// Functions in the table.
    pub(crate) functions: u32,
    /// Which link it is.
    pub(crate) serial: u64,
}

/// Bytes of a description.
pub(crate) const DESCRIPTION_BYTES: usize = 40;
/// Bytes of a function in the table.
pub(crate) const FUNCTION_BYTES: usize = 16;
/// Where the table begins.
pub(crate) const TABLE: u64 = PAGE;

fn words<const N: usize, const B: usize>(words: [u64; N]) -> [u8; B] {
    let mut bytes = [0; B];
    for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *eight = word.to_le_bytes();
    }
    bytes
}

fn split_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*eight);
    }
    words
}

impl Description {
    pub(crate) fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        words([
            MAGIC,
            u64::from(self.shape.chunk_bytes) | u64::from(self.shape.chunks) << 32,
            u64::from(self.arrived),
            u64::from(self.functions),
            self.serial,
        ])
    }

    /// Reads the description of what is said to be an inbox of `len` bytes for this link.
    pub(crate) fn decode(
        bytes: &[u8; DESCRIPTION_BYTES],
        serial: u64,
        len: u64,
    ) -> std::result::Result<Self, &'static str> {
        let [magic, shape, arrived, functions, found] = split_words(bytes);
        if magic != MAGIC {
            return Err("its inbox is of another version, or none");
        }
        let description = Self {
            shape: Shape {
                chunk_bytes: shape as u32,
                chunks: (shape >> 32) as u32,
            },
            arrived: u32::try_from(arrived).map_err(|_| "its description makes no sense")?,
            functions: u16::try_from(functions)
                .map_err(|_| "its description makes no sense")?
                .into(),
            serial: found,
        };
        if found != serial {
            return Err("its inbox is for another link");
        }
        if !description.shape.is_possible() || description.bytes() > len {
            return Err("its description does not fit its size");
        }
        Ok(description)
    }

    /// Where the chunks begin.
    pub(crate) fn chunks_at(&self) -> u64 {
        let table = u64::from(self.functions) * FUNCTION_BYTES as u64;
        TABLE + table.next_multiple_of(PAGE)
    }

    /// Bytes of the inbox.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks_at() + self.shape.bytes()
    }
}

/// A table of functions, as bytes.
pub(crate) fn encode_table(ids: impl Iterator<Item = Id>) -> Vec<u8> {
    ids.flat_map(|id| [id.name, id.signature])
        .flat_map(u64::to_le_bytes)
        .collect()
}

pub(crate) fn decode_table(bytes: &[u8]) -> impl Iterator<Item = Id> {
    bytes.as_chunks::<FUNCTION_BYTES>().0.iter().map(|entry| {
        let [name, signature] = split_words(entry);
        Id { name, signature }
    })
}

/// Bytes of a greeting.
pub(crate) const GREETING_BYTES: usize = 16;

/// The message that opens a link.
pub(crate) fn greeting(serial: u64) -> [u8; GREETING_BYTES] {
    words([MAGIC, serial])
}

/// The serial in a greeting; nothing: it is none of this version.
pub(crate) fn split_greeting(bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; GREETING_BYTES] = bytes.try_into().ok()?;
    let [magic, serial] = split_words(bytes);
    (magic == MAGIC).then_some(serial)
}

/// Which side of a link an inbox belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that has greeted.
    Opener,
    /// The one that was greeted.
    Acceptor,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Opener => Self::Acceptor,
            Self::Acceptor => Self::Opener,
        }
    }
}

/// The name of the inbox of one side of a link, for the port that may write to it. A serial is its opener's own, so the
/// other port is a part of the name.
pub(crate) fn inbox_name(side: Side, node: NodeId, port: PortId, serial: u64) -> String {
    let side = match side {
        Side::Opener => 'o',
        Side::Acceptor => 'a',
    };
    format!("netvm calls {side} {} {} {serial:x}", node.0, port.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Description = Description {
        shape: Shape {
            chunk_bytes: 4096,
            chunks: 3,
        },
        arrived: 800,
        functions: 257,
        serial: 99,
    };

    #[test]
    fn what_is_no_inbox_is_refused() {
        let len = GOOD.bytes();
        assert_eq!(len, 4096 + 2 * 4096 + 3 * 4096);
        assert_eq!(Description::decode(&GOOD.encode(), 99, len), Ok(GOOD));
        assert!(Description::decode(&GOOD.encode(), 98, len).is_err());
        assert!(Description::decode(&GOOD.encode(), 99, len - 1).is_err());
        assert!(Description::decode(&[0; DESCRIPTION_BYTES], 0, len).is_err());
        for at in 8..24 {
            let mut bytes = GOOD.encode();
            bytes[at] ^= 0x80;
            let _ = Description::decode(&bytes, 99, len);
        }
    }

    #[test]
    fn tables_and_greetings_come_back() {
        let ids = [
            Id {
                name: 1,
                signature: 2,
            },
            Id {
                name: u64::MAX,
                signature: 0,
            },
        ];
        let bytes = encode_table(ids.into_iter());
        assert!(decode_table(&bytes).eq(ids));
        assert_eq!(split_greeting(&greeting(77)), Some(77));
        assert_eq!(split_greeting(&[0; 16]), None);
        assert_eq!(split_greeting(&greeting(77)[..15]), None);
    }

    #[test]
    fn names_fit_and_differ() {
        let name = |side, node, port| inbox_name(side, NodeId(node), PortId(port), u64::MAX);
        assert!(name(Side::Acceptor, u16::MAX, u16::MAX).len() <= 63);
        assert_ne!(name(Side::Acceptor, 1, 11), name(Side::Acceptor, 11, 1));
        assert_ne!(name(Side::Acceptor, 1, 1), name(Side::Opener, 1, 1));
    }

    #[test]
    fn counts_are_told_by_their_halves() {
        for about in [
            0,
            1,
            1 << 31,
            HALF - 1,
            HALF,
            HALF + 1,
            7 << 40,
            9 << 40 | 1 << 31,
        ] {
            for later in [0, 1, 1000, (1 << 31) - 1] {
                let (count, taken) = (about + later, about);
                let done = Done::new(count, count);
                assert_eq!(done.calls(about), count);
                assert_eq!(done.calls(count), count);
                assert_eq!(done.is_answered(taken), later == 0);
                assert!(done.is_answered(count));
                assert!(done.is_answered(count + 5));
            }
        }
        // What is older than what is known stays so.
        assert_eq!(Done::new(HALF, 0).calls(HALF + 3), HALF);
        assert_eq!(Done::default().calls(1000), 0);
    }

    #[test]
    fn a_sync_differs_from_the_one_before() {
        let first = Sync::new(7, 0);
        let second = Sync::new(7, first.0);
        assert_eq!((first.sent(), second.sent()), (7, 7));
        assert_ne!(first, second);
        assert_ne!(Sync::new(0, 0).0, 0);
        assert_ne!(Sync::new(7, Sync::new(7, 0xff).0).0, 0);
    }
}
