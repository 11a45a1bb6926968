//! What carries a card's messages.

use netvm_abi::{Nanos, NodeId};

use crate::message::{Message, Spare};

/// A card's end of its wires. No method blocks.
///
/// A wire says in a received message's header which node the message is from ([`Message::arrived_from`]), by the link
/// that it came over. What the sender wrote there means nothing.
pub trait Wire: Send {
    /// Takes a message on its way. Gives it back where the wire has copied it, so that its memory is used again.
    fn send(&mut self, now: Nanos, to: NodeId, message: Box<Message>) -> Option<Box<Message>>;

    /// The next message that has arrived.
    fn receive(&mut self, spare: &mut Spare) -> Option<Box<Message>>;

    /// Whether a message to a node may be lost on its way. Where one may, the card keeps what it sends until it has been
    /// received. Memory loses nothing.
    fn loses_frames(&self, to: NodeId) -> bool {
        let _ = to;
        false
    }

    /// Whether [`receive`](Self::receive) would give something.
    fn has_input(&mut self) -> bool;
}
