//! A message in a card's memory, and the memory that messages are made of.

use std::sync::Arc;

use netvm_abi::wire::{HEADER_BYTES, Header, HeaderError};
use netvm_abi::{Incarnation, NodeId};

use crate::PAGE_BYTES;
use crate::memory::{Pool, Stock};

/// Largest payload that travels inside of a message instead of in a buffer.
pub const SMALL_BYTES: usize = 128;

/// A page of private memory for one payload; it has one owner at a time.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Buffer(
    /// Its bytes.
    pub [u8; PAGE_BYTES],
);

impl Default for Buffer {
    fn default() -> Self {
        Self([0; PAGE_BYTES])
    }
}

/// A message on its way, or received and not released yet.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: [u8; HEADER_BYTES],
    /// Bytes of payload.
    pub len: usize,
    /// The payload, where there is no buffer.
    pub small: [u8; SMALL_BYTES],
    /// The buffer that holds it, handed over.
    pub buffer: Option<Box<Buffer>>,
}

impl Default for Message {
    fn default() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            len: 0,
            small: [0; SMALL_BYTES],
            buffer: None,
        }
    }
}

/// Where a header names its source and its destination: [`netvm_abi::wire`].
const NODES_AT: usize = 8;
/// The word in which it names the life of the link at its source.
const LIFE_AT: usize = 4;

impl Message {
    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let all: &[u8] = match &self.buffer {
            None => &self.small,
            Some(buffer) => &buffer.0,
        };
        all.get(..self.len).unwrap_or(all)
    }

    /// A word of the header.
    #[must_use]
    #[inline]
    pub fn word(&self, at: usize) -> u32 {
        let bytes = self.header.as_chunks().0.get(at);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// The life of the link, as its sender's end says.
    #[must_use]
    pub fn life(&self) -> Incarnation {
        Incarnation(self.word(LIFE_AT))
    }

    /// The header, if it is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(&self) -> Result<Header, HeaderError> {
        Header::decode_words(&std::array::from_fn(|at| self.word(at)))
    }

    /// Says, in place of what the sender says, which node it is from and for.
    pub fn arrived_from(&mut self, source: NodeId, destination: NodeId) {
        let [s0, s1] = source.0.to_le_bytes();
        let [d0, d1] = destination.0.to_le_bytes();
        if let Some(nodes) = self.header.get_mut(NODES_AT..NODES_AT + 4) {
            nodes.copy_from_slice(&[s0, s1, d0, d1]);
        }
    }
}

/// Messages that go to or come from the pool at once: many, they are small.
const MESSAGES_AT_ONCE: usize = 32;
/// Buffers likewise: few, so that a stream uses the same few, which the nearest caches hold.
const PAGES_AT_ONCE: usize = 4;

/// What cards share to make messages of.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    messages: Arc<Pool<Box<Message>>>,
    pages: Arc<Pool<Box<Buffer>>>,
}

/// One card's unused messages and buffers.
#[derive(Debug)]
pub struct Spare {
    /// Messages without a buffer.
    pub messages: Stock<Box<Message>>,
    /// Buffers.
    pub pages: Stock<Box<Buffer>>,
}

impl Spare {
    /// None yet; they come from these pools.
    #[must_use]
    pub fn new(pools: &Pools) -> Self {
        Self {
            messages: Stock::new(&pools.messages, MESSAGES_AT_ONCE),
            pages: Stock::new(&pools.pages, PAGES_AT_ONCE),
        }
    }

    /// Takes back what a message is made of.
    pub fn give(&mut self, mut message: Box<Message>) {
        if let Some(buffer) = message.buffer.take() {
            self.pages.give(buffer);
        }
        self.messages.give(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::wire::Body;

    #[test]
    fn a_message_is_from_where_it_arrived() {
        let mut message = Message {
            header: Header::of(Body::Probe, NodeId(7), NodeId(9)).encode(),
            ..Message::default()
        };
        message.arrived_from(NodeId(0x102), NodeId(3));
        let header = message.decode().unwrap();
        assert_eq!((header.source, header.destination), (NodeId(0x102), NodeId(3)));
        assert_eq!(header.body(), Body::Probe);
    }
}
