//! What the two ends say to one another while a connection moves.
//!
//! 1. The end that connects knows from the directory that the listener has the library. It sends a [`Hello`] over TCP, with the first
//!    bytes of its program and before them, and goes on with TCP.
//! 2. The end that has accepted looks at the first bytes. If they are a hello it connects a stream to the network that the
//!    hello names. Both ends go on with TCP meanwhile.
//! 3. When the stream stands, each end says on it how many bytes it has sent over TCP ([`Word`]), and sends all others after that. The
//!    other end reads as many from TCP, and then goes on with the stream.
//!
//! So no end waits for the other one, and no byte comes out of its order.
//!
//! A connection that a parent and its child go on with goes back to TCP, which processes can share:
//!
//! 4. The end that goes back writes no more to the stream, and begins another one to the other end's network, on which it says how many
//!    bytes it has sent by the stream ([`Back`]). It sends all others over TCP.
//! 5. The other end does the same, and answers with its own count. Each reads as many from the stream, and then goes on with TCP.

use netvm_net::Address;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How a hello begins. No protocol begins like this but by chance: one in 2^128.
const MAGIC: [u8; 16] = *b"\xffnetvm\x00\x01\x9d\x83\xe1\x06\xb7\x5c\xf2\xaa";

/// Which connection is meant: a number that no other has, but by chance.
pub(crate) type Nonce = [u8; 16];

/// The first bytes of a connection that may move.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    magic: [u8; 16],
    nonce: Nonce,
    node: U16,
    port: U16,
    service: U16,
    unused: U16,
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// They may become a hello.
    Few,
    /// The program's.
    Program,
    /// A hello: the network that it comes from, and its connection.
    Hello(Address, Nonce),
}

impl Hello {
    pub(crate) const BYTES: usize = size_of::<Self>();

    pub(crate) fn new(from: Address, nonce: Nonce) -> Self {
        Self {
            magic: MAGIC,
            nonce,
            node: from.node.0.into(),
            port: from.port.0.into(),
            service: from.service.into(),
            unused: U16::ZERO,
        }
    }

    /// What these bytes are, the first of a connection.
    pub(crate) fn read(bytes: &[u8]) -> First {
        let begin = bytes.len().min(MAGIC.len());
        if bytes[..begin] != MAGIC[..begin] {
            return First::Program;
        }
        match Self::ref_from_prefix(bytes) {
            Ok((hello, _)) => First::Hello(
                Address::new(hello.node.get(), hello.port.get(), hello.service.get()),
                hello.nonce,
            ),
            Err(_) => First::Few,
        }
    }
}

/// The first bytes of a stream, in each direction.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Word {
    pub(crate) nonce: Nonce,
    /// How many bytes were sent over TCP before, or [`STAYS`](Self::STAYS).
    pub(crate) before: U64,
}

impl Word {
    pub(crate) const BYTES: usize = size_of::<Self>();
    /// The end that says so knows of no such connection: it has stayed with TCP, or is gone.
    pub(crate) const STAYS: u64 = u64::MAX;

    pub(crate) fn new(nonce: Nonce, before: u64) -> Self {
        Self {
            nonce,
            before: before.into(),
        }
    }
}

/// Which end of a connection: both may be in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum End {
    Connected,
    Accepted,
}

impl End {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Connected => Self::Accepted,
            Self::Accepted => Self::Connected,
        }
    }
}

/// A connection goes back to TCP: the only message of a stream of its own, and the answer to it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Back {
    pub(crate) nonce: Nonce,
    /// How many bytes of the program the sender has sent by the connection's stream.
    pub(crate) sent: U64,
    /// The [`End`] that it is for.
    end: u8,
    unused: [u8; 7],
}

impl Back {
    pub(crate) const BYTES: usize = size_of::<Self>();

    pub(crate) fn new(nonce: Nonce, to: End, sent: u64) -> Self {
        Self {
            nonce,
            sent: sent.into(),
            end: to as u8,
            unused: [0; 7],
        }
    }

    pub(crate) const fn to(&self) -> Option<End> {
        match self.end {
            0 => Some(End::Connected),
            1 => Some(End::Accepted),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_back_names_an_end() {
        for end in [End::Connected, End::Accepted] {
            let back = Back::new([3; 16], end, 7);
            let read = Back::read_from_bytes(back.as_bytes()).unwrap();
            assert_eq!((read.to(), read.nonce, read.sent.get()), (Some(end), [3; 16], 7));
        }
        assert_eq!(Back::read_from_bytes(&[9; Back::BYTES]).unwrap().to(), None);
    }

    #[test]
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is_one() {
        let address = Address::new(3, 7, 1);
        let hello = Hello::new(address, [9; 16]);
        let bytes = hello.as_bytes();
        assert_eq!(Hello::read(bytes), First::Hello(address, [9; 16]));
        for len in 0..bytes.len() {
            assert_eq!(Hello::read(&bytes[..len]), First::Few, "{len} bytes");
        }
        let mut longer = bytes.to_vec();
        longer.extend_from_slice(b"GET / HTTP/1.1");
        assert_eq!(Hello::read(&longer), First::Hello(address, [9; 16]));
        assert_eq!(Hello::read(b"GET / HTTP/1.1"), First::Program);
        assert_eq!(Hello::read(b"\xffnetvm\x00\x02"), First::Program);
    }
}
