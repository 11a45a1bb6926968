//! The host side of NetVM as state machines: export map, shadow-table upkeep, bounce paging.
//!
//! Policy for the kernel module, the userfaultfd emulator and the simulator alike. No heap (tables
//! are lent by the platform), no clock (`now` is an argument), no thread, no kernel type. All calls
//! go to one [`Host`], under one lock of the platform; see [`platform`] for what that lock may not be
//! held across.
//!
//! | file | idea |
//! |---|---|
//! | [`attach`] | negotiating with a card, dead cards, reset |
//! | [`ports`] | port numbers, generations, process-exit clean-up |
//! | [`segments`] | registered ranges: address -> segment |
//! | [`exports`] | names for ranges, and who may import them |
//! | [`grants`] | capabilities derived for importers |
//! | [`revoke`] | taking them back, and the barrier with the NIC |
//! | [`imports`] | what this node's ports import |
//! | [`control`] | messages between host drivers |
//! | [`shadow`] | mapping pages: rows, quota, displacement |
//! | [`unmap`] | unmapping pages and ranges |
//! | [`paging`] | bounced messages and source misses |
//! | [`peers`] | links, incarnations |
//! | [`events`] | what the NIC says, and what the platform hears of it |
#![no_std]
#![forbid(unsafe_code)]

pub mod attach;
pub mod events;
pub mod exports;
pub mod grants;
pub mod imports;
pub mod paging;
pub mod platform;
pub mod ports;
pub mod segments;
pub mod shadow;
pub mod unmap;

pub use attach::Host;
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
