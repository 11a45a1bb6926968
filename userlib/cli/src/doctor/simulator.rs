//! The simulator: needs nothing of the machine, so a short run tells.

use std::time::Instant;

use netvm_world::trace::NoTrace;
use netvm_world::{Config, FaultLevel, run_seed};

use super::{Backend, Check};

/// Runs a short world.
pub(crate) fn examine() -> Backend {
    let config = Config {
        nodes: 2,
        messages: 200,
        faults: FaultLevel::Benign,
        ..Config::default()
    };
    let started = Instant::now();
    let check = match run_seed(1, &config, &mut NoTrace) {
        Ok(report) => Check::there(
            "a short run",
            format!(
                "{} messages in {:.0} ms",
                report.messages,
                started.elapsed().as_secs_f64() * 1e3
            ),
        ),
        Err(failure) => Check::missing("a short run", failure.what.clone(), failure.replay.clone()),
    };
    Backend::new("simulator", "virtual time, faults from a seed", true, vec![check])
}
