//! The wire: messages go from card to card by handing over the buffer that holds their payload.
//!
//! It loses nothing and keeps the order between two nodes. What a wire carried can be captured ([`crate::capture`]).

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use netvm_abi::wire::HEADER_BYTES;

use crate::event_count::EventCount;
use crate::memory::Buffer;

/// Largest payload that travels inside of a message instead of in a buffer.
pub(crate) const SMALL_BYTES: usize = 128;

/// A message on its way, or received and not released yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER_BYTES],
    /// Bytes of payload.
    pub(crate) len: usize,
    /// The payload, where there is no buffer.
    pub(crate) small: [u8; SMALL_BYTES],
    /// The buffer that holds it, handed over.
    pub(crate) buffer: Option<Box<Buffer>>,
}

impl Message {
    pub(crate) fn payload(&self) -> &[u8] {
        let all: &[u8] = match &self.buffer {
            None => &self.small,
            Some(buffer) => &buffer.0,
        };
        all.get(..self.len).unwrap_or(all)
    }
}

/// A card's end of the wire.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    inbox: Mutex<VecDeque<Message>>,
    /// Somebody wants this card to run. Set before its lock is tried, looked at again after it was let go.
    pub(crate) pending: AtomicBool,
    /// Where the card's own thread sleeps, if it has one.
    pub(crate) wake: EventCount,
}

impl Socket {
    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, message: Message) {
        self.queue().push_back(message);
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        self.queue().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }
}
