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

#[cfg(test)]
mod tests {
    use super::*;

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
