//! A wire inside of the image: a message is copied to the receiving card's buffers at once.

use super::Wire;
use crate::arena::Arena;
use crate::host::copy::copy_own;
use core::cell::RefCell;
use heapless::{Deque, Vec};
use netvm_abi::wire::{HEADER_BYTES, Header};
use netvm_abi::{NodeId, PAGE_SIZE, ReceiveId, StagingId};
use netvm_platform::Frame;

/// Cards that may be joined.
pub(crate) const CARDS: usize = 2;
/// Receive buffers of a card: for the default geometry.
const BUFFERS: usize = crate::memory::receive_buffers(CARDS as u16, 64, 64);

/// A received message.
#[repr(C, align(16))]
struct Message {
    header: [u8; HEADER_BYTES],
    payload: [u8; PAGE_SIZE as usize],
    len: usize,
}

/// What has arrived at a card, and the buffers for what will.
struct Inbox {
    buffers: &'static mut [Message],
    free: Vec<u32, BUFFERS>,
    arrived: Deque<u32, BUFFERS>,
    /// Messages that found no buffer.
    lost: u32,
}

/// The inboxes of all cards.
#[derive(Clone, Copy)]
pub(crate) struct Hub(&'static [RefCell<Inbox>]);

impl Hub {
    /// A hub for [`CARDS`] cards.
    pub(crate) fn new(arena: &mut Arena) -> Self {
        let mut buffers: [Option<&'static mut [Message]>; CARDS] = core::array::from_fn(|_| {
            Some(arena.slice(BUFFERS, 16, |_| Message {
                header: [0; HEADER_BYTES],
                payload: [0; PAGE_SIZE as usize],
                len: 0,
            }))
        });
        Self(arena.slice(CARDS, 8, |card| {
            RefCell::new(Inbox {
                buffers: buffers.get_mut(card).and_then(Option::take).unwrap_or_default(),
                // Taken from the end: the same few buffers are used again and again.
                free: (0..BUFFERS as u32).rev().collect(),
                arrived: Deque::new(),
                lost: 0,
            })
        }))
    }

    /// A card's end.
    pub(crate) const fn end(self, node: NodeId) -> Loopback {
        Loopback {
            hub: self,
            node: node.index(),
            sent: Deque::new(),
        }
    }
}

/// One card's end of a [`Hub`].
pub(crate) struct Loopback {
    hub: Hub,
    node: usize,
    /// Staging buffers whose messages have been copied.
    sent: Deque<StagingId, BUFFERS>,
}

impl Loopback {
    /// Runs `act` on a card's inbox. One core and no interrupt handler in here: nobody else holds it.
    fn inbox<R>(&self, node: usize, act: impl FnOnce(&mut Inbox) -> R) -> Option<R> {
        Some(act(&mut *self.hub.0.get(node)?.try_borrow_mut().ok()?))
    }

    /// Messages for this card that found no buffer.
    pub(crate) fn lost(&self) -> u32 {
        self.inbox(self.node, |inbox| inbox.lost).unwrap_or_default()
    }
}

impl Inbox {
    fn put(&mut self, header: &Header, payload: &[u8]) {
        let Some(index) = self.free.pop() else {
            self.lost += 1;
            return;
        };
        let Some(message) = self.buffers.get_mut(index as usize) else {
            return;
        };
        message.header = header.encode();
        let len = payload.len().min(message.payload.len());
        copy_own(payload, &mut message.payload);
        message.len = len;
        // As long as there are buffers.
        let _ = self.arrived.push_back(index);
    }

    fn message(&self, index: u32) -> Option<&Message> {
        self.buffers.get(index as usize)
    }
}

impl Wire for Loopback {
    unsafe fn send(&mut self, header: &Header, payload: &[u8], staging: Option<StagingId>) {
        // A node that does not exist gets what every network gives it: nothing.
        let _ = self.inbox(header.destination.index(), |inbox| inbox.put(header, payload));
        if let Some(id) = staging {
            // More buffers than a card has.
            let _ = self.sent.push_back(id);
        }
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sent.pop_front()
    }

    fn poll(&mut self) -> Option<Frame> {
        self.inbox(self.node, |inbox| {
            let index = inbox.arrived.pop_front()?;
            let message = inbox.message(index)?;
            let len = HEADER_BYTES + message.len;
            Some(Frame::new(ReceiveId(index), &message.header, len))
        })?
    }

    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.inbox(self.node, |inbox| {
            let message = inbox.message(receive.0)?;
            let bytes = message.payload.get(..message.len)?.get(..len)?;
            Some(take(bytes))
        })?
    }

    fn release(&mut self, receive: ReceiveId) {
        let _ = self.inbox(self.node, |inbox| {
            if inbox.message(receive.0).is_some() {
                // As long as there are buffers, and the core gives each back once.
                let _ = inbox.free.push(receive.0);
            }
        });
    }

    fn has_input(&mut self) -> bool {
        let arrived = self.inbox(self.node, |inbox| !inbox.arrived.is_empty());
        !self.sent.is_empty() || arrived == Some(true)
    }
}
