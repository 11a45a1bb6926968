//! Messages that never leave the machine: a card's buffers for what has arrived, to which the sender copies.

use crate::arena::Arena;
use crate::host::copy::copy_own;
use heapless::{Deque, Vec};
use netvm_abi::wire::{HEADER_BYTES, HEADER_WORDS, OwnHeader};
use netvm_abi::{PAGE_SIZE, ReceiveId};
use netvm_platform::Frame;

/// A received message.
#[repr(C, align(16))]
struct Message {
    /// As words: between cards of one machine they are never bytes.
    header: [u32; HEADER_WORDS],
    payload: [u8; PAGE_SIZE as usize],
    len: usize,
}

const _: () = assert!(size_of::<Message>() == netvm_fw_common::memory::MESSAGE_BYTES);

/// What has arrived at a card, and `BUFFERS` buffers for what will. Its buffers have numbers from `first` on.
#[derive(Default)]
pub(super) struct Inbox<const BUFFERS: usize> {
    first: u32,
    buffers: &'static mut [Message],
    free: Vec<u32, BUFFERS>,
    arrived: Deque<u32, BUFFERS>,
    /// Messages that found no buffer.
    pub(super) lost: u32,
}

impl<const BUFFERS: usize> Inbox<BUFFERS> {
    pub(super) fn new(arena: &mut Arena, first: u32) -> Self {
        Self {
            first,
            buffers: arena.slice(BUFFERS, 16, |_| Message {
                header: [0; HEADER_WORDS],
                payload: [0; PAGE_SIZE as usize],
                len: 0,
            }),
            // Taken from the end: the same few buffers are used again and again.
            free: (0..BUFFERS as u32).rev().collect(),
            arrived: Deque::new(),
            lost: 0,
        }
    }

    /// Copies a message in.
    pub(super) fn put(&mut self, header: &OwnHeader, payload: &[u8]) {
        let Some(index) = self.free.pop() else {
            self.lost += 1;
            return;
        };
        let Some(message) = self.buffers.get_mut(index as usize) else {
            return;
        };
        message.header = *header.words();
        let len = payload.len().min(message.payload.len());
        copy_own(payload, &mut message.payload);
        message.len = len;
        // As long as there are buffers.
        let _ = self.arrived.push_back(index);
    }

    /// The next message.
    pub(super) fn poll(&mut self) -> Option<Frame> {
        let index = self.arrived.pop_front()?;
        let message = self.buffers.get(index as usize)?;
        Some(Frame {
            receive: ReceiveId(self.first + index),
            head: message.header,
            len: HEADER_BYTES + message.len,
        })
    }

    /// Whether a message stands in a buffer of this inbox.
    pub(super) fn has(&self, receive: ReceiveId) -> bool {
        self.message(receive).is_some()
    }

    fn message(&self, receive: ReceiveId) -> Option<&Message> {
        self.buffers.get(receive.0.checked_sub(self.first)? as usize)
    }

    /// Payload of a message.
    pub(super) fn payload(&self, receive: ReceiveId, len: usize) -> Option<&[u8]> {
        let message = self.message(receive)?;
        message.payload.get(..message.len)?.get(..len)
    }

    /// Gives a message's buffer back.
    pub(super) fn release(&mut self, receive: ReceiveId) {
        if self.has(receive) {
            // As long as there are buffers, and the core gives each back once.
            let _ = self.free.push(receive.0 - self.first);
        }
    }

    pub(super) fn has_input(&self) -> bool {
        !self.arrived.is_empty()
    }
}
