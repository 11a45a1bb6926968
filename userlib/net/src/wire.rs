//! What a message between two ends looks like: a header of 32 bytes, then the payload.
//!
//! All numbers are little endian. A message is either *numbered*, and acts once and in order, or it says something that may be
//! said twice: places that are free again, a sign of life, a farewell.

use netvm::{NodeId, PortId};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Another layout has another version, and its peers refuse each other.
pub(crate) const VERSION: u8 = 3;

/// Bytes of a header.
pub(crate) const HEADER: usize = size_of::<Header>();

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    /// How busy the sender is, 0 to 255.
    pub(crate) load: u8,
    /// 0.
    pub(crate) reserved: u8,
    /// The sender's name for what it has with the receiver. Another one is another life.
    pub(crate) session: U32,
    /// Its number among the numbered messages of the session, from 0 on.
    pub(crate) number: U32,
    /// How many numbered messages of the receiver the sender has taken.
    pub(crate) taken: U32,
    /// The receiver's end of the connection.
    pub(crate) to: Id,
    /// How many bytes of the connection the sender's program has read.
    pub(crate) consumed: U32,
    /// What the kind makes of it.
    pub(crate) value: U32,
}

/// Stands before bytes of another connection, behind those of a [`Kind::Data`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Part {
    /// As in a header.
    pub(crate) to: Id,
    /// As in a header.
    pub(crate) consumed: U32,
    /// How many bytes follow.
    pub(crate) len: U32,
}

/// An end of a connection: a place in a table, and which connection it is that has it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Id {
    pub(crate) slot: U32,
    pub(crate) generation: U32,
}

impl Id {
    pub(crate) const fn new(slot: u32, generation: u32) -> Self {
        Self {
            slot: U32::new(slot),
            generation: U32::new(generation),
        }
    }
}

/// The payload of [`Kind::Open`] and [`Kind::Accept`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Opening {
    /// The sender's end.
    pub(crate) from: Id,
    /// How many bytes it takes before its program reads.
    pub(crate) window: U32,
}

/// A part of memory that one end lends to the other.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Piece {
    /// Which piece of the memory.
    pub(crate) piece: U32,
    /// How many of its bytes.
    pub(crate) len: U32,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal,)*) => {
        /// What a message says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($(#[doc = $doc])* $name = $code,)*
        }

        impl Kind {
            pub(crate) const fn of(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The first of a session. `value`: how many numbered messages may be on their way to the sender; `consumed`: how large its pieces of memory are.
    Hello = 1,
    /// `taken` is news. Not numbered.
    Credit = 2,
    /// Answered by [`Kind::Answer`]. Not numbered.
    Probe = 3,
    /// The sender lives. Not numbered.
    Answer = 4,
    /// The receiver's session `value`, or all of them for 0, is over. Not numbered.
    Bye = 5,
    /// A connection to the service `value`.
    Open = 16,
    /// It is accepted.
    Accept = 17,
    /// It is not. `value`: a [`Reason`].
    Refuse = 18,
    /// Bytes. `value`: how many, and then a [`Part`], bytes and so on; 0: all to the end of the message.
    Data = 19,
    /// No more bytes come.
    End = 20,
    /// The connection is over.
    Reset = 21,
    /// `consumed` is news.
    Window = 22,
    /// `value` bytes are about to be sent: memory for them is welcome.
    Want = 23,
    /// The receiver may write into this piece of the sender's memory.
    Offer = 24,
    /// Bytes have been written into it.
    Placed = 25,
    /// The piece is not needed.
    Unused = 26,
    /// Bytes are in this piece of the sender's memory, to be read.
    Lend = 27,
    /// They have been read.
    Return = 28,
}

impl Kind {
    pub(crate) const fn is_numbered(self) -> bool {
        self as u8 >= Self::Open as u8 || matches!(self, Self::Hello)
    }
}

/// Why a connection is not, or is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// No listener has this number.
    NoListener = 1,
    /// The listener has as many as it wants to have waiting.
    Backlog = 2,
    /// The other end has closed with bytes unread, or has said so.
    Reset = 3,
    /// The other process is gone, or the way to it.
    PeerLost = 4,
    /// This end's network is closed.
    Closed = 5,
    /// There is nothing to connect to at that port.
    NoPeer = 6,
    /// What is there speaks another language.
    NotOurs = 7,
    /// The peer has no place for another peer.
    Full = 8,
    /// The peer does not admit this port.
    NotAdmitted = 9,
    /// The time-out of the connect passed.
    TimedOut = 10,
    /// The node cannot be reached.
    Unreachable = 11,
    /// The other network has ended in an orderly way: all that was written there has left before this.
    Left = 12,
}

impl Reason {
    pub(crate) const fn of(code: u8) -> Self {
        match code {
            1 => Self::NoListener,
            2 => Self::Backlog,
            4 => Self::PeerLost,
            5 => Self::Closed,
            6 => Self::NoPeer,
            7 => Self::NotOurs,
            8 => Self::Full,
            9 => Self::NotAdmitted,
            10 => Self::TimedOut,
            11 => Self::Unreachable,
            12 => Self::Left,
            _ => Self::Reset,
        }
    }
}

/// Where a peer is.
pub(crate) type PeerAddress = (NodeId, PortId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_layout() {
        assert_eq!(HEADER, 32);
        let header = Header {
            kind: Kind::Data as u8,
            version: VERSION,
            session: 0x0403_0201.into(),
            number: 7.into(),
            to: Id::new(5, 6),
            value: 9.into(),
            ..Header::default()
        };
        let bytes = header.as_bytes();
        assert_eq!(bytes[..12], [19, VERSION, 0, 0, 1, 2, 3, 4, 7, 0, 0, 0]);
        assert_eq!(bytes[16..24], [5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(bytes[28..], [9, 0, 0, 0]);
    }

    #[test]
    fn kinds_and_reasons_come_back() {
        for code in 0..=u8::MAX {
            if let Some(kind) = Kind::of(code) {
                assert_eq!(kind as u8, code);
                assert_eq!(kind.is_numbered(), !(2..16).contains(&code), "{kind:?}");
            }
        }
        for code in 1..=11 {
            assert_eq!(Reason::of(code) as u8, code);
        }
        assert_eq!(Reason::of(200), Reason::Reset);
    }
}
