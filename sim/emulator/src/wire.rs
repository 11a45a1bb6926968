//! The wire: messages go from card to card by handing over the buffer that holds their payload.
//!
//! It loses nothing and keeps the order between two nodes. What a wire carried can be captured ([`crate::capture`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    inbox: Mutex<VecDeque<Box<Message>>>,
    /// Messages in the inbox: a card that looks and finds none takes no lock.
    count: AtomicUsize,
    /// Where the card's own thread sleeps, if it has one.
    pub(crate) wake: EventCount,
}

impl Socket {
    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Box<Message>>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, message: Box<Message>) {
        let mut queue = self.queue();
        queue.push_back(message);
        self.count.store(queue.len(), Ordering::Release);
    }

    /// Takes all messages that are there, in exchange for a queue that is empty.
    #[inline]
    pub(crate) fn take(&self, into: &mut VecDeque<Box<Message>>) {
        if !self.is_empty() {
            let mut queue = self.queue();
            std::mem::swap(&mut *queue, into);
            self.count.store(queue.len(), Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}
