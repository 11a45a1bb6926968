//! What a network has done.

/// What a [`Net`](crate::Net) has done so far, and what it has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetStats {
    /// Connections that are open here, half-closed ones included.
    pub connections: u64,
    /// Peers that it has a queue of.
    pub peers: u64,
    /// Connections that were accepted or connected.
    pub opened: u64,
    /// Connections that have ended by a reset.
    pub resets: u64,
    /// Messages posted, of all kinds.
    pub messages: u64,
    /// Messages posted once more, after a failure or a refusal.
    pub repeated: u64,
    /// Messages taken from the queue.
    pub received: u64,
    /// Messages that were taken and said nothing new, or were none of ours.
    pub ignored: u64,
    /// Writes of a program that went in messages, or parts of one.
    pub by_message: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Pieces that went by a write into memory of the receiver.
    pub by_write: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Pieces that went by a read of the receiver's.
    pub by_read: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// How often the way of large transfers to a peer has changed with the load.
    pub switches: u64,
    /// Messages that were handed to another thread, because that one had the network's state.
    pub handed_over: u64,
    /// How busy this end is, 0 to 255: what share of its looks has found something.
    pub load: u8,
}
