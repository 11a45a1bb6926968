//! `netvm bench`: what things cost, in virtual time, by a cost model of counted instructions; calls, connections and leases in the machine's own
//! time.

mod calls;
mod lease;
mod net;
mod second;
mod sync;
mod wire;

use crate::args::{Bench, BenchCommand};
use crate::failure::Failure;

/// Runs a benchmark.
///
/// # Errors
/// [`Failure::Wrong`] when something does not hold that has to.
pub fn run(options: &Bench) -> Result<(), Failure> {
    match &options.command {
        BenchCommand::Calls(options) => calls::run(options),
        BenchCommand::Sync(options) => sync::run(options),
        BenchCommand::Wire(options) => wire::run(options),
        BenchCommand::Net(options) => net::run(options),
        BenchCommand::Lease(options) => lease::run(options),
    }
}
