//! A wire inside of the image: a message is copied to the receiving card's buffers at once.

use super::Wire;
use super::inbox::Inbox;
use crate::arena::Arena;
use core::cell::RefCell;
use heapless::Deque;
use netvm_abi::wire::OwnHeader;
use netvm_abi::{NodeId, ReceiveId, StagingId};
use netvm_platform::Frame;

/// Cards that may be joined.
pub(crate) const CARDS: usize = 2;
/// Receive buffers of a card: for the default geometry.
const BUFFERS: usize = netvm_fw_common::memory::receive_buffers(CARDS as u16, 64, 64);

/// The inboxes of all cards.
#[derive(Clone, Copy)]
pub(crate) struct Hub(&'static [RefCell<Inbox<BUFFERS>>]);

impl Hub {
    /// A hub for [`CARDS`] cards.
    pub(crate) fn new(arena: &mut Arena) -> Self {
        let mut inboxes: [_; CARDS] = core::array::from_fn(|_| Some(Inbox::new(arena, 0)));
        Self(arena.slice(CARDS, 8, |card| {
            RefCell::new(inboxes.get_mut(card).and_then(Option::take).unwrap_or_default())
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
    /// Runs `act` on a card's inbox. One core and no interrupt handler in here: the lock is free.
    fn inbox<R>(&self, node: usize, act: impl FnOnce(&mut Inbox<BUFFERS>) -> R) -> Option<R> {
        Some(act(&mut *self.hub.0.get(node)?.try_borrow_mut().ok()?))
    }

    /// Messages for this card that found no buffer.
    pub(crate) fn lost(&self) -> u32 {
        self.inbox(self.node, |inbox| inbox.lost).unwrap_or_default()
    }
}

impl Wire for Loopback {
    unsafe fn send(&mut self, header: &OwnHeader, payload: &[u8], staging: Option<StagingId>) {
        // A node that does not exist gets what every network gives it: nothing.
        let _ = self.inbox(header.destination().index(), |inbox| inbox.put(header, payload));
        if let Some(id) = staging {
            // More buffers than a card has.
            let _ = self.sent.push_back(id);
        }
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sent.pop_front()
    }

    fn poll(&mut self) -> Option<Frame> {
        self.inbox(self.node, Inbox::poll)?
    }

    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.inbox(self.node, |inbox| inbox.payload(receive, len).map(take))?
    }

    fn release(&mut self, receive: ReceiveId) {
        let _ = self.inbox(self.node, |inbox| inbox.release(receive));
    }

    fn has_input(&mut self) -> bool {
        let arrived = self.inbox(self.node, |inbox| inbox.has_input());
        !self.sent.is_empty() || arrived == Some(true)
    }
}
