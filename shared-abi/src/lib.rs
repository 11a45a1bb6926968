//! What two sides of a NetVM boundary must agree on, and the algorithms that two sides run on
//! words they share.
//!
//! Four parties meet here: the application (through the user library), the host driver, the NIC
//! and the NICs of other nodes. Each boundary has its module; `docs/ABI.md` describes the same
//! layouts for an implementation of one side in another language.
//!
//! | boundary | modules |
//! |---|---|
//! | application -> NIC | [`descriptor`], [`command_queue`], [`bar`], [`atomic`], [`value`] |
//! | NIC -> application | [`port_area`], [`notification`], [`shared_queue`] |
//! | host driver <-> NIC | [`attach`], [`event`], [`ring`], [`bounce`], [`capability`], [`lease`], [`page_table`], [`page_lock`], [`counter_table`] |
//! | NIC <-> NIC | [`wire`], [`control`], [`frame`] |
//! | application -> host driver | [`ioctl`] |
//!
//! Nothing here allocates, reads a clock or names a platform.
#![no_std]
#![forbid(unsafe_code)]

pub mod atomic;
pub mod attach;
pub mod bar;
mod body;
pub mod bounce;
pub mod capability;
pub mod command_queue;
pub mod control;
pub mod counter_table;
pub mod descriptor;
pub mod event;
pub mod frame;
pub mod geometry;
pub mod ioctl;
mod layout;
pub mod lease;
pub mod mutant;
pub mod notification;
pub mod page_lock;
pub mod page_table;
pub mod port_area;
mod raw_command;
mod raw_header;
mod receipt;
pub mod ring;
pub mod shared_map;
pub mod shared_queue;
pub mod short_write;
pub mod status;
pub mod storage;
pub mod units;
pub mod value;
pub mod wire;
pub mod words;

pub use geometry::Geometry;
pub use status::Status;
pub use units::*;

/// Version of everything in this crate. Two sides that differ refuse each other at attach (host
/// and NIC) or in the greeting (NIC and NIC). The policy is in `docs/ABI.md`.
pub const ABI_VERSION: u16 = 10;

/// The only page size of the first release, in bytes; negotiated at attach, others are refused.
pub const PAGE_SIZE: u32 = 4096;
