//! NetVM's emulator: real threads, real memory and real page faults in one process.

pub mod copy;
mod error;
pub mod fatal;
pub mod vm;

pub use error::EmulatorError;
