//! What carries messages to other cards and back.

pub(crate) mod loopback;

use netvm_abi::ReceiveId;
use netvm_abi::wire::Header;
use netvm_platform::Frame;

/// A wire. Messages of one path may be lost with the link, but are not changed.
pub(crate) trait Wire {
    /// Sends a message; the payload, [`Header::len`] bytes, has been copied when this returns.
    fn send(&mut self, header: &Header, payload: &[u8]);

    /// The next message that has arrived. Its buffer stays until it is released.
    fn poll(&mut self) -> Option<Frame>;

    /// Hands the first `len` payload bytes of a received message to `take`; nothing where there are no such bytes.
    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R>;

    /// Gives a received message's buffer back.
    fn release(&mut self, receive: ReceiveId);

    /// Whether [`Self::poll`] would give something.
    fn has_input(&mut self) -> bool;
}
