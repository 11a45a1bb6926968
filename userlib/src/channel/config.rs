//! How to open a channel.

use crate::export::Access;
use netvm_abi::control::Modes;
use netvm_abi::{NodeId, NotificationId, PAGE_SIZE, PortId};

use super::layout::HEAD_BYTES;

/// How to open a channel: what [`Receiver::open`](crate::Receiver::open) is told. The sender learns it when it joins.
#[derive(Clone, Debug)]
#[must_use]
pub struct ChannelConfig {
    pub(super) message_bytes: u64,
    pub(super) capacity: u32,
    pub(super) refill: Option<u32>,
    pub(super) notification: Option<NotificationId>,
    from: Option<(NodeId, Option<PortId>)>,
}

impl Default for ChannelConfig {
    /// 64 messages of what fits a page, from the first port that joins.
    fn default() -> Self {
        Self {
            message_bytes: u64::from(PAGE_SIZE) - HEAD_BYTES,
            capacity: 64,
            refill: None,
            notification: None,
            from: None,
        }
    }
}

impl ChannelConfig {
    /// Size of the largest message in bytes; may be several pages. Entries of up to a page do not cross
    /// pages: with its head of 8 bytes a message of 4,088 bytes is the largest that travels in one piece.
    pub const fn message_bytes(mut self, bytes: u64) -> Self {
        self.message_bytes = bytes;
        self
    }

    /// How many messages may be under way, waiting or borrowed (thesis: `NUM_BUF`). At least 1.
    pub const fn capacity(mut self, messages: u32) -> Self {
        self.capacity = messages;
        self
    }

    /// How many entries the receiver gives back at a time (thesis: `REFILL`). More means fewer
    /// replenishments, fewer a fuller queue. At least 1, at most the capacity; a quarter of that if not
    /// given.
    pub const fn refill(mut self, messages: u32) -> Self {
        self.refill = Some(messages);
        self
    }

    /// The event-count number of the receiver's port that says that a message has come. If not given,
    /// the highest that is not in use; ask [`Receiver::notification`](crate::Receiver::notification) which that is.
    pub fn notification(mut self, id: impl Into<NotificationId>) -> Self {
        self.notification = Some(id.into());
        self
    }

    /// Only ports of this node may join. Without this and the next, any port may.
    pub const fn from_node(mut self, node: NodeId) -> Self {
        self.from = Some((node, None));
        self
    }

    /// Only this port may join.
    pub const fn from_port(mut self, node: NodeId, port: PortId) -> Self {
        self.from = Some((node, Some(port)));
        self
    }

    /// Entries given back at a time.
    pub(super) fn refill_or_default(&self) -> u32 {
        let refill = self.refill.unwrap_or(self.capacity / 4);
        refill.clamp(1, self.capacity.max(1))
    }

    /// Access for the ports that may join, and signal this number.
    pub(super) fn access(&self, id: NotificationId) -> Access {
        let modes = Modes::READ | Modes::WRITE | Modes::ATOMIC;
        let access = match self.from {
            None => Access::everyone().modes(modes),
            Some((node, None)) => Access::nobody().and_node(node, modes),
            Some((node, Some(port))) => Access::nobody().and_port(node, port, modes),
        };
        access.notify_own(id.0..=id.0)
    }
}
