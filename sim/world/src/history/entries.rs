//! The entries of a queue of messages with one receiver.

use std::collections::VecDeque;

/// What the entries hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entries {
    /// Messages that were sent and not received, in their order.
    sent: VecDeque<u64>,
    /// Entries whose messages are received, and that are not free yet.
    held: u32,
}

impl Entries {
    /// Of a new queue.
    pub(super) const NEW: Self = Self {
        sent: VecDeque::new(),
        held: 0,
    };

    /// A message is sent, if an entry of so many is free.
    pub(super) fn send(&mut self, number: u64, capacity: u32) -> Option<()> {
        let used = self.sent.len() as u64 + u64::from(self.held);
        (used < u64::from(capacity)).then(|| self.sent.push_back(number))
    }

    /// The receiver takes this message, if it is the first.
    pub(super) fn receive(&mut self, number: u64) -> Option<()> {
        if self.sent.front() != Some(&number) {
            return None;
        }
        self.sent.pop_front();
        self.held += 1;
        Some(())
    }

    /// It gives the entry back.
    pub(super) fn free(&mut self) -> Option<()> {
        self.held = self.held.checked_sub(1)?;
        Some(())
    }

    /// Whether all that was sent was received.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}
