//! A card in software: the NIC core with its event loop, run by threads of the process that uses it.
//!
//! There is no host core here. `netvm-process` joins this crate with one, and gives the library a back end; a machine that runs
//! Linux on a card needs this crate alone.
//!
//! - [`Board`] is what the core and its loop see of a card: buffers, a [`Engine`] that moves payload, a [`Wire`];
//! - [`Core`] is the card: core, loop and board;
//! - [`turn::Turn`] lets any thread run it, one at a time, and none wait.

pub mod board;
pub mod card;
pub mod clock;
pub mod core;
pub mod direct;
pub mod event_count;
pub mod link_error;
pub mod memory;
pub mod message;
pub mod shm;
pub mod transfer;
pub mod turn;
pub mod udp;
pub mod wire;

pub use board::{Board, Engine};
pub use core::{Core, Parts};
pub use event_count::EventCount;
pub use netvm_nic::Timers;
pub use wire::Wire;

/// Bytes in a page.
pub const PAGE_BYTES: usize = netvm_abi::PAGE_SIZE as usize;
