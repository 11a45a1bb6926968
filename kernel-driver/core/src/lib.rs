//! The host side of NetVM as state machines: export map, shadow-table upkeep, bounce paging.
//!
//! Policy for the kernel module, the userfaultfd emulator and the simulator alike. No heap (tables
//! are lent by the platform), no clock (`now` is an argument), no thread, no kernel type. All calls
//! go to one [`Host`], under one lock of the platform; see [`platform`] for what that lock may not be
//! held across.
//!
//! **Two layers.** A file of the *state* has a table or a machine of its own and knows nothing of the others' owner. [`host`]
//! joins them: what the platform calls is a method of [`Host`] there. State never imports `host`; the stage `house` of
//! `cargo xtask test` checks it.
//!
//! | state | idea |
//! |---|---|
//! | `card` | whether the card can be used |
//! | [`attach`] | sizes of a host, and why a card cannot be attached |
//! | [`ports`] | port numbers and generations |
//! | [`segments`] | registered ranges: address -> segment |
//! | [`exports`] | names for ranges, and the lists of their importers |
//! | [`grants`] | capabilities derived for importers |
//! | [`revoke`] | taking them back, and the barriers with the NIC |
//! | [`leases`] | capabilities given for a time, and what the host knows of their end |
//! | [`imports`] | what this node's ports import |
//! | `shares` | tables of which no port can take everything |
//! | `control` | slots for messages between host drivers |
//! | [`shadow`] | the mirror of the NIC's page table: rows, quota, displacement |
//! | `own` | the host's own word of a slot, from memory |
//! | `races` | page events against maps under way |
//! | [`unmap`] | an unmap under way |
//! | `bounce` | a piece of paging work |
//! | [`paging`] | what a paging worker does with it |
//! | `peers` | links, incarnations |
//! | [`events`] | what the platform hears |
//! | [`watch`] | time in which the card ran |
//! | [`counters`] | what happened |
//! | [`tally`] | what happened to one port, one segment, one link |
//!
//! | [`host`] | idea |
//! |---|---|
//! | `mod` | the whole; posting events; the card's death |
//! | `attach` | negotiating with a card, reset |
//! | `watch` | judging the card |
//! | `events` | what the NIC says, and what is due |
//! | `port` | opening and closing ports, process-exit clean-up |
//! | `segment`, `export` | how ranges and names begin and end |
//! | `grant`, `lease`, `barrier` | deriving capabilities, lending, and taking them back |
//! | `import`, `answers`, `control` | importing, and messages between host drivers |
//! | `map`, `unmap` | mapping pages, and unmapping ranges |
//! | `bounce`, `paging` | from the NIC's event to a port's queue, and what workers tell |
//! | `overdue` | pages that do not come in time |
//! | `peer` | what a lost link ends |
//! | `tally` | the books of one port, one segment, one link |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod attach;
mod bounce;
mod card;
mod control;
pub mod counters;
pub mod events;
pub mod exports;
pub mod grants;
pub mod host;
pub mod imports;
pub mod leases;
mod lists;
mod numbers;
mod own;
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
