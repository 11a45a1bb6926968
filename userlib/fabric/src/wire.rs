//! What endpoints say to each other: entries of rings, and the record with which they introduce themselves.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::address::Address;

/// The unit in which a ring is used up.
pub(crate) const UNIT: u64 = 64;
/// An entry lies within one page.
pub(crate) const PAGE: u64 = netvm::abi::PAGE_SIZE as u64;
/// Bytes of an entry's head.
pub(crate) const HEAD_BYTES: usize = size_of::<Head>();
/// The longest message that is sent as one entry.
pub(crate) const INJECT_BYTES: usize = PAGE as usize - HEAD_BYTES;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing: the next entry begins with the next page.
    Skip = 1,
    /// A whole message.
    Eager = 2,
    /// A message that the receiver reads from the sender's memory, or asks for. Its parts: [`Part`]s.
    Offer = 3,
    /// The receiver asks for the message in pieces. `tag`: how the receiver calls it.
    Push = 4,
    /// A piece. `tag`: as in the request; `data`: where it begins.
    Piece = 5,
    /// A message, or its offer, is done with. `data`: an `errno`, or 0.
    Done = 6,
    /// The other end wrote this endpoint's memory, and `data` is for its completion queue.
    Written = 7,
    /// The endpoint closes.
    Bye = 8,
}

impl Kind {
    pub(crate) const fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Skip,
            2 => Self::Eager,
            3 => Self::Offer,
            4 => Self::Push,
            5 => Self::Piece,
            6 => Self::Done,
            7 => Self::Written,
            8 => Self::Bye,
            _ => return None,
        })
    }
}

/// The message has a tag.
pub(crate) const TAGGED: u8 = 1;
/// The message has data for the receiver's completion queue.
pub(crate) const WITH_DATA: u8 = 2;
/// The sender waits to hear that the message is in the receiver's buffer.
pub(crate) const ANSWER: u8 = 4;

/// How an entry begins.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    /// Counts the entries of a ring.
    pub(crate) seq: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Bytes behind the head.
    pub(crate) size: u16,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    /// Length of the message.
    pub(crate) total: u64,
    /// How the sender calls the message.
    pub(crate) cookie: u64,
    /// How much of the other ring its receiver has used up.
    pub(crate) consumed: u64,
}

impl Head {
    /// An entry of this kind; the ring fills in the rest.
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind: kind as u8,
            ..Self::default()
        }
    }
}

/// A part of the memory that an offer names.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

const RECORD: u32 = 0x6d76_4e02;

/// An endpoint introduces itself to another one, and names the ring in which it takes that one's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Record {
    magic: u32,
    pub(crate) pid: u32,
    pub(crate) from: Address,
    /// The life of the endpoint that it is meant for.
    pub(crate) to: u64,
    /// Names the ring.
    pub(crate) ring: u64,
    /// An address of the process, and what stands there: who reads the memory of this process by its number, reads that, too.
    pub(crate) proof_at: u64,
    pub(crate) proof: u64,
    /// The signal of a new entry of the ring. The next number says that some of the sender's own ring is free again.
    pub(crate) notification: u32,
    spare: u32,
}

/// Room for a record: it is written in one piece.
pub(crate) const RECORD_ROOM: u64 = 128;
const _: () = assert!(size_of::<Record>() <= RECORD_ROOM as usize);

impl Record {
    pub(crate) fn new(from: Address, to: u64, ring: u64, notification: u32, proof: (u64, u64)) -> Self {
        Self {
            magic: RECORD,
            pid: std::process::id(),
            from,
            to,
            ring,
            proof_at: proof.0,
            proof: proof.1,
            notification,
            spare: 0,
        }
    }

    /// A record that another endpoint wrote.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (record, _) = Self::read_from_prefix(bytes).ok()?;
        let sound = record.magic == RECORD && Address::read(record.from.as_bytes()).is_ok();
        sound.then_some(record)
    }
}
