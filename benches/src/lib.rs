//! NetVM's rulers. Each program in `src/bin` is one benchmark: `cargo xtask bench NAME`.
//!
//! Code paths are measured in instructions ([`callgrind`]), which are the same on every machine of one kind;
//! times only as a ratio to something real, taken in the same run.

pub mod beside;
pub mod callgrind;
pub mod calls;
pub mod layout;
pub mod mpi;
pub mod net;
pub mod path;
pub mod peers;
pub mod sockets;
pub mod sync;
pub mod wire;

use std::process::ExitCode;

/// Ends a benchmark: well if what has to hold does.
pub fn end(holds: anyhow::Result<bool>) -> ExitCode {
    match holds {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
