//! The host side of NetVM as state machines: export map, shadow-table upkeep, bounce paging.
//!
//! Policy for the kernel module, the userfaultfd emulator and the simulator alike. No heap (tables
//! are lent by the platform), no clock (`now` is an argument), no thread, no kernel type. All calls
//! go to one [`Host`], under one lock of the platform; see [`platform`] for what that lock may not be
//! held across.
//!
//! | file | idea |
//! |---|---|
//! | [`host`] | the whole; posting events; the card's death |
//! | [`attach`] | negotiating with a card, watching it, reset |
//! | [`ports`] | port numbers, generations, process-exit clean-up |
//! | [`segments`] | registered ranges: address -> segment |
//! | [`exports`] | names for ranges, and the lists of their importers |
//! | [`grants`] | capabilities derived for importers |
//! | [`revoke`] | taking them back, and the barrier with the NIC |
//! | [`imports`] | what this node's ports import |
//! | `shares` | tables of which no port can take everything |
//! | `answers` | answers to import requests, on both sides |
//! | `control` | messages between host drivers |
//! | [`shadow`] | mapping pages: mirror, rows, quota, displacement |
//! | `races` | page events against maps under way |
//! | [`unmap`] | unmapping pages and ranges |
//! | `bounce` | from the NIC's event to a port's queue; the check of a bounced message |
//! | [`paging`] | what a paging worker does with it |
//! | `peers` | links, incarnations |
//! | [`events`] | what the NIC says, and what the platform hears of it |
//! | [`counters`] | what happened |
//! | [`tally`] | what happened to one port, one segment, one link |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod answers;
pub mod attach;
mod bounce;
mod control;
pub mod counters;
pub mod events;
pub mod exports;
pub mod grants;
pub mod host;
pub mod imports;
mod lists;
pub mod paging;
mod peers;
pub mod platform;
pub mod ports;
mod races;
pub mod revoke;
pub mod segments;
pub mod shadow;
mod shares;
pub mod tally;
pub mod unmap;
pub mod watch;

pub use host::Host;
pub use platform::Platform;

/// How far a state machine has come that the platform drives by `*_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a step that is not done must be repeated"]
pub enum Progress {
    /// There is more to do: call again at once (the lock may be released in between).
    Again,
    /// It waits for the NIC or for a paging worker: call again after the next `poll` that took an
    /// event, after the next `work_*` call, or a few microseconds later.
    Wait,
    /// It is over.
    Done,
}
