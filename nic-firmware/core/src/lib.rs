//! The NIC as a state machine: no IO, no clock, no heap, no unsafe code.
//!
//! A platform (image, emulator, simulator, test) hands events to [`Nic`] and carries out what the
//! core asks of it through [`platform::Platform`]. Start reading at [`Nic`].
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

mod authorise;
mod behind;

pub mod config;
pub mod counters;
mod dispatch;
mod dmas;
mod env;
mod inbound;
mod leases;
mod links;
mod nic;

mod pipeline;
pub mod platform;
mod ports;
mod queue;
mod round_trips;
mod staging;
pub mod tables;
pub mod window;
mod windows;

pub use config::{Config, ConfigError, Timers};
pub use counters::Counters;
pub use links::LinkReport;
pub use nic::census;
pub use nic::{Found, Frame, Nic};
pub use ports::notify;
