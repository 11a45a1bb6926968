//! NetVM's deterministic simulator.
#![allow(dead_code)]

pub mod check;
mod clock;
mod coroutine;
mod dice;
mod dma;
pub mod faults;
mod link;
mod seen;
pub mod trace;
mod vm;
