//! Memory that several threads, or several processes, change at the same time: how its bytes are moved.
//!
//! The library, the emulator and the software card move payload through this crate alone.

pub mod change;
pub mod copy;
pub mod guard;
