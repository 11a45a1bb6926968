//! Models of the synchronization algorithms, explored whole for the sizes that each test names.
//!
//! The library runs its algorithms as step machines that say what they want next and are told the
//! answer; a model answers for a network of NICs and memories in every order that there is. So what
//! is checked is what ships.

//!
//! In [`lock`], [`queue`] and [`reset`], what is between the machines is a [`World`]: the centre's words, the seats,
//! and one-way messages, which are under way from when they are posted to when they land, in any order
//! but for what NetVM promises (P4). A step is one access to one of these. Every run ends, because
//! nothing spins: so a state from which there is no step must be one in which all processes are done.

mod explore;
pub mod graph;
pub mod lock;
pub mod queue;
pub mod reset;
pub mod ring;
mod world;

pub use explore::{Ends, Verdict, explore};
pub use world::{Delivery, Message, Nic, Payload, Seat, World};
