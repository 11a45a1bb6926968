//! The wire: messages go from card to card by handing over the buffer that holds their payload.
//!
//! It loses nothing and keeps the order between two nodes. What a wire carried can be captured ([`crate::capture`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_abi::{Nanos, NodeId};
use netvm_soft::message::{Message, Spare};
use netvm_soft::{EventCount, Wire};

use crate::capture::Capture;

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

/// All wires that one card has: to every socket, and from its own.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) node: usize,
    pub(crate) sockets: Arc<[Socket]>,
    /// Messages taken from the card's socket and not looked at yet.
    pub(crate) arrived: VecDeque<Box<Message>>,
    /// Cards that got a message, a bit each: the thread that runs this card inline runs those next.
    pub(crate) kicked: u64,
    /// Cards have threads of their own, to be woken.
    pub(crate) threaded: bool,
    pub(crate) capture: Option<Arc<Capture>>,
}

impl Wire for Wires {
    fn send(&mut self, now: Nanos, to: NodeId, message: Box<Message>) -> Option<Box<Message>> {
        if let Some(capture) = &self.capture
            && let Ok(header) = message.decode()
        {
            capture.add(now, &header, message.payload());
        }
        let Some(socket) = self.sockets.get(to.index()) else {
            return Some(message);
        };
        socket.push(message);
        if self.threaded {
            socket.wake.notify();
        } else {
            self.kicked |= 1 << to.index();
        }
        None
    }

    #[inline]
    fn receive(&mut self, _: &mut Spare) -> Option<Box<Message>> {
        if self.arrived.is_empty() {
            self.sockets.get(self.node)?.take(&mut self.arrived);
        }
        self.arrived.pop_front()
    }

    #[inline]
    fn has_input(&mut self) -> bool {
        let waits = |socket: &Socket| !socket.is_empty();
        !self.arrived.is_empty() || self.sockets.get(self.node).is_some_and(waits)
    }
}
