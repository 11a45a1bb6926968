//! What carries messages to other cards and back.

pub(crate) mod home;
mod inbox;
pub(crate) mod loopback;
mod nodes;
pub(crate) mod virtio;

use netvm_abi::wire::OwnHeader;
use netvm_abi::{ReceiveId, StagingId};
use netvm_platform::Frame;

/// A wire. Messages of one path may be lost with the link, but are not changed.
pub(crate) trait Wire {
    /// Sends a message with its payload, as many bytes as the header says. Where that stands in a staging buffer, it may
    /// leave from there later, and [`Self::poll_sent`] gives the buffer back; otherwise it has been copied when this
    /// returns.
    ///
    /// # Safety
    /// The payload of a staging buffer stays where it is, untouched, until the buffer is given back.
    unsafe fn send(&mut self, header: &OwnHeader, payload: &[u8], staging: Option<StagingId>);

    /// The next staging buffer whose message has left.
    fn poll_sent(&mut self) -> Option<StagingId>;

    /// The next message that has arrived. Its buffer stays until it is released.
    fn poll(&mut self) -> Option<Frame>;

    /// Hands the first `len` payload bytes of a received message to `take`; nothing where there are no such bytes.
    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R>;

    /// Gives a received message's buffer back.
    fn release(&mut self, receive: ReceiveId);

    /// Whether one of the polls would give something.
    fn has_input(&mut self) -> bool;

    /// From now on, what arrives ends a sleep. [`Self::has_input`] is asked once more after this. Interrupts are masked.
    fn arm(&mut self) {}

    /// The sleep is over.
    fn disarm(&mut self) {}
}
