//! A shared receive queue: any number of senders, one queue, and the receiver's card gives out the places (what
//! thesis 10.2 leaves for later).
//!
//! A [channel](crate::channel) has one sender. A server with a thousand clients would need a thousand queues, most
//! of them empty. Here all of them append to one.
//!
//! ```no_run
//! # fn all(server: &netvm::Port, client: &netvm::Port) -> netvm::Result<()> {
//! use netvm::{SharedConfig, SharedReceiver, SharedSender, Timeout};
//! let mut requests = SharedReceiver::open(server, "requests", SharedConfig::default())?;
//! let to_server = SharedSender::join(client, server.node().id(), server.id(), "requests", Timeout::Never)?;
//! to_server.send(b"what time is it?", Timeout::Never)?;
//! let request = requests.recv(Timeout::Never)?;
//! let (node, port) = request.sender();
//! println!("{:?} asks port {port} of node {node}", request.to_vec()?);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! *Order.* The messages of one sender come in the order in which they were sent, each once. Those of different
//! senders come in the order in which the card gave out the places.
//!
//! *Sender.* The card writes each message's sender, so no sender can pass for another.
//!
//! *Isolation.* A sender can add, and neither choose a place nor change what is there. But one sender can fill the
//! queue: a receiver that does not trust its clients gives them channels, or ports.
//!
//! *Full.* The card refuses the message, whose sender repeats it after a pause: [`SharedSender::send`]. There are no
//! credits, and no line of waiting senders. Senders that all wait by `send` come to equal shares, and a message that
//! has waited long is repeated more often: a tendency and no promise, which `docs/evaluation/sync.md` measures. A
//! sender that repeats [`SharedSender::try_send`] without a pause gets what it can.
//!
//! *Failure.* A message that cannot be put into its place (its page cannot be had, its link is lost) leaves a place
//! that the receiver skips without a word; the sender is told. A sender that dies leaves nothing half done. When the
//! receiver's port ends, senders are refused.
//!
//! # What it costs
//!
//! A message is one message on the wire, and [`SharedSender::send`], which waits to hear that it has its place, one
//! round trip. To receive and to give back costs no message.
//!
//! # Beside other traffic of its port
//!
//! A message that finds no room holds back later messages of its port to shared queues of that node, and nothing else:
//! writes, notifications and channels go on, and no other call hears of it. [`SharedSender::send`] sends again what
//! was held back. A *failure* of another operation to the same node does hold messages back, until it has been reported.

mod pace;
mod receiver;
mod sender;

pub use receiver::{SharedMessage, SharedReceiver};
pub use sender::SharedSender;

use crate::export::Access;
use netvm_abi::control::Modes;
use netvm_abi::shared_queue::{LARGEST_ENTRY, MOST_PLACES, SMALLEST_ENTRY};
use netvm_abi::{NodeId, NotificationId, PortId};

/// How to open a shared receive queue: what [`SharedReceiver::open`] is told.
#[derive(Clone, Debug)]
#[must_use]
pub struct SharedConfig {
    message_bytes: u64,
    capacity: u32,
    notification: Option<NotificationId>,
    access: Option<Access>,
}

impl Default for SharedConfig {
    /// 256 messages of up to 512 bytes, from any port.
    fn default() -> Self {
        Self {
            message_bytes: 512,
            capacity: 256,
            notification: None,
            access: None,
        }
    }
}

impl SharedConfig {
    /// Size of the largest message in bytes, at most a page. Entries have the next power of two. A sender whose path
    /// carries less in one message sends no more than that.
    pub const fn message_bytes(mut self, bytes: u64) -> Self {
        self.message_bytes = bytes;
        self
    }

    /// How many messages may wait, be borrowed or on their way into memory: 1 to 1,024, made the next power of two.
    pub const fn capacity(mut self, messages: u32) -> Self {
        self.capacity = messages;
        self
    }

    /// The event-count number of the receiver's port that is raised for each message. If not given, the highest that is
    /// not in use.
    pub fn notification(mut self, id: impl Into<NotificationId>) -> Self {
        self.notification = Some(id.into());
        self
    }

    /// Ports of this node may send. Without this and the next, any port may.
    pub fn from_node(mut self, node: NodeId) -> Self {
        let access = self.access.unwrap_or_else(Access::nobody);
        self.access = Some(access.and_node(node, Modes::APPEND));
        self
    }

    /// This port may send.
    pub fn from_port(mut self, node: NodeId, port: PortId) -> Self {
        let access = self.access.unwrap_or_else(Access::nobody);
        self.access = Some(access.and_port(node, port, Modes::APPEND));
        self
    }

    /// Log2 of an entry's bytes, if there is such an entry.
    fn entry(&self) -> Option<u8> {
        let bytes = self.message_bytes.max(1).checked_next_power_of_two()?;
        let entry = (bytes.trailing_zeros() as u8).max(SMALLEST_ENTRY);
        (entry <= LARGEST_ENTRY).then_some(entry)
    }

    /// How many entries, if that can be.
    fn entries(&self) -> Option<u32> {
        let entries = self.capacity.checked_next_power_of_two()?;
        (self.capacity > 0 && entries <= MOST_PLACES).then_some(entries)
    }

    fn access(&self) -> Access {
        let everyone = || Access::everyone().modes(Modes::APPEND);
        self.access.clone().unwrap_or_else(everyone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_within_bounds() {
        let entry = |bytes| SharedConfig::default().message_bytes(bytes).entry();
        assert_eq!(
            [entry(0), entry(1), entry(8), entry(9)],
            [Some(3), Some(3), Some(3), Some(4)]
        );
        assert_eq!(
            [entry(512), entry(4096), entry(4097), entry(u64::MAX)],
            [Some(9), Some(12), None, None]
        );
        let entries = |messages| SharedConfig::default().capacity(messages).entries();
        assert_eq!([entries(0), entries(1), entries(3)], [None, Some(1), Some(4)]);
        assert_eq!(
            [entries(1024), entries(1025), entries(u32::MAX)],
            [Some(1024), None, None]
        );
    }
}
