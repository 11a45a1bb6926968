//! Wire 1: shared memory between processes of one machine.
//!
//! Between two processes there is a Unix socket, over which they introduce themselves ([`introduce`]), and for each direction a
//! ring of messages in a memfd of its own ([`ring`]) and an eventfd that wakes the reader. No ring and no eventfd is shared
//! with a third process. The end of the socket, or of the peer's process, is the end of the link.

pub mod introduce;
mod mapping;
pub mod question;
mod ring;
pub mod running;
pub mod wires;
