//! Channels: one-way streams of messages from one port to another (thesis chapter 7).
//!
//! The receiver exports a circular queue; the sender has imported it and writes each message into the next entry with a
//! notifying write, and needs no answer to do so. Both count messages. The receiver tells now and then how many entries
//! it has given back, and a sender that has used them all waits for that.
//!
//! ```no_run
//! # fn both(here: &netvm::Port, there: &netvm::Port) -> netvm::Result<()> {
//! use netvm::{ChannelConfig, Receiver, Sender, Timeout};
//! let mut receiver = Receiver::open(there, "jobs", ChannelConfig::default())?;
//! let mut sender = Sender::join(here, there.node().id(), there.id(), "jobs", Timeout::Never)?;
//! sender.send(b"wash the dishes", Timeout::Never)?;
//! let job = receiver.recv(Timeout::Never)?;
//! assert_eq!(job.to_vec()?, b"wash the dishes");
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from the thesis
//!
//! *Entries are given back when a borrow ends*, not by the next receive. So the sender may fill all
//! entries but those that the receiver holds, and the thesis' spare entry is not needed.
//!
//! *A replenishment says how many entries have been given back since the beginning*, and is an ordered
//! write with a notification, not a notification alone. It stands alone
//! ([`regardless`](crate::Write::regardless)): it comes through when another operation of the receiver's port has
//! failed, and its own failure suppresses nothing when the channel's sender has just gone.
//!
//! *Each entry begins with its message's number and length.* The receiver takes an entry when it is
//! signalled **and** has the right number. Signals come after all data of earlier writes, so a message
//! is never taken in part: there are never more signals than messages that have landed. The sender's farewell is
//! signalled too, and is no proof of anything before it, which may have failed: a receiver that sees it discounts that
//! signal.
//!
//! # Failure
//!
//! A write that fails is reported by a later [`Sender::send`] or by [`Sender::close`]. A message is lost
//! then, and so is the channel: it ends with [`Error::ChannelBroken`](crate::Error::ChannelBroken), at the receiver once it has taken
//! what came before. The same when another operation of the sender's port to that node fails while
//! messages are under way, because that suppresses their signals: where that may happen, give the
//! channel a port of its own. With threads that share the port it is more than a precaution: a failure that another
//! thread is told of in the very moment of a send goes unnoticed until the next.
//!
//! A waiter checks after a few milliseconds, and then less and less often, whether the other side is still there. It
//! reads the other side's memory: the read is refused when that port has closed or its process has died, and it fails
//! when the link is lost.

#[cfg(feature = "tokio")]
mod async_io;
mod body;
mod config;
mod layout;
pub(crate) mod look;
mod patience;
mod ready;
mod receiver;
mod sender;
mod set;
pub mod shared;
mod stream;

#[cfg(feature = "tokio")]
pub use async_io::{AsyncChannelReader, AsyncChannelWriter, MessageSink, MessageStream, SharedStream};
pub use config::ChannelConfig;
pub use ready::{MessageReady, RoomReady, SharedReady};
pub use receiver::{Message, Receiver};
pub use sender::Sender;
pub use set::{ReceiverSet, SetReady};
pub use shared::{SharedConfig, SharedMessage, SharedReceiver, SharedSender};
pub use stream::{ChannelReader, ChannelWriter};

/// What one end of a channel, or the receiver of a shared queue, has done. The latter needs neither looks nor
/// replenishments, and counts none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Messages sent or received.
    pub messages: u64,
    /// How often a call found nothing to receive, or no room to send, and waited.
    pub waits: u64,
    /// How often it looked whether the other side still is there.
    pub looks: u64,
    /// Replenishments sent, or found to have come.
    pub replenishments: u64,
}
