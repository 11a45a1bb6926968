//! The NIC as a state machine.
#![no_std]
#![forbid(unsafe_code)]

pub mod platform;
