//! Nodes inside of a process: the host core over a card that the process runs itself, as a back end of the library.
//!
//! A node is a [`Machine`] (its card), a [`Memory`] (what its ports export), and between them what all such nodes share: the
//! driver ([`HostSide`]) and the library's boundary ([`NodeBackend`]). The emulator's nodes are made of these as well.
//!
//! Locks are taken in the order memory, host core. The card takes neither, and no thread waits for the card.

pub mod backend;
pub mod choice;
pub mod driver;
pub mod life;
pub mod machine;
pub mod node;
mod patience;
pub mod refusal;
mod secrets;
mod segment;
pub mod soft;
pub mod worker;

pub use backend::NodeBackend;
pub use choice::{OpenError, Opened, open};
pub use driver::{Glue, HostSide};
pub use life::Life;
pub use machine::{Area, Machine, Memory, Threads, Whole};
pub use node::NodeParts;
pub use soft::{SoftBuilder, SoftError, SoftNode};
