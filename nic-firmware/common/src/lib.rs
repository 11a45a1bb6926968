//! What the firmware image and the programs that boot it both know.
//!
//! [`board`] says how large a card's tables are, [`memory`] how much memory a card takes, and [`host`] plays a host: inside
//! of the image for its tests of itself, and outside of it for cards in QEMU.
#![no_std]
#![forbid(unsafe_code)]

pub mod board;
pub mod host;
pub mod memory;
