//! What carries a card's messages.

use netvm_abi::{Incarnation, Nanos, NodeId};
use netvm_nic::platform::Path;

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

    /// The path to a node, for a life of the link that begins, with this end's incarnation of it. Memory loses nothing and takes
    /// a page. Where a message may be lost, the card keeps what it sends until it has been received.
    fn path_to(&mut self, to: NodeId, life: Incarnation) -> Path {
        let _ = (to, life);
        Path {
            loses_frames: false,
            ..Path::default()
        }
    }

    /// Whether [`receive`](Self::receive) would give something.
    fn has_input(&mut self) -> bool;
}
