//! Synchronization between processes on any nodes (thesis 8).
//!
//! | to | see |
//! |---|---|
//! | keep others out, first come first served | [`Lock`] |
//! | keep others out, at no cost on the lock's own node | [`alock`] |
//! | wait for an event | [`WaitQueue`] |
//! | both, as thesis table 21 has it | [`Monitor`], [`Condition`] |
//! | count tokens | [`Semaphore`] |
//!
//! Each call that waits can be [begun](Lock::begin_acquire) instead: its end is a future.
//!
//! Each has a [`Home`]: a block of memory in some port, exported under a name. A participant *joins* it, and has a
//! *seat*, some words in its own port's memory through which the others talk to it.
//!
//! The algorithms are step machines without any input or output (`protocol`): the library's drivers
//! run them on real words, and `tests/models` runs the same ones in every order there is.

pub mod alock;
mod home;
mod lock;
mod members;
mod monitor;
mod peers;
#[doc(hidden)]
pub mod protocol;
mod queue;
mod rights;
mod seats;
mod semaphore;
mod succession;
mod suspicion;

/// How long a node may be out of reach until those there count as dead.
const OUT_OF_REACH: std::time::Duration = std::time::Duration::from_secs(2);

pub use home::Home;
pub use lock::{Guard, Lock, OwnedGuard};
pub use monitor::{Condition, Inside, Monitor, OwnedInside};
pub use protocol::SeatId;
pub use queue::{WaitQueue, Waiting, Woken};
pub(crate) use seats::Seats;
pub use semaphore::Semaphore;
