//! What tests put around the crates that they test.
//!
//! [`Words`] is a word space with hooks, [`Heap`] and [`CountingHeap`] hold the tables of a core. With the feature `nic`,
//! the module `nic` has a board for the NIC core, nodes, and a wire between them. With the feature `host`, the module
//! `host` has a platform for the host core, and the NIC's ends of its rings. With the feature `port`, the module `port`
//! has a card made of words for the library.
//!
//! [`length`] says how much a test is to do.
//!
//! No crate asks for the features of both cores. The books of `tests/faults` are not here: they share nothing with what
//! the cores are tested with.
#![deny(unsafe_code)]

pub mod heap;
#[cfg(feature = "host")]
pub mod host;
pub mod length;
#[cfg(feature = "nic")]
pub mod nic;
#[cfg(feature = "port")]
pub mod port;
pub mod words;

pub use heap::{CountingHeap, Heap};
pub use words::{Hook, Lie, Words};
