//! The emulator: what its probe says.

use super::{Backend, Check};

/// Asks the emulator what it lacks here.
pub(crate) fn examine() -> Backend {
    let checks = netvm_emulator::probe(&std::env::temp_dir())
        .into_iter()
        .map(|check| Check {
            name: check.name.to_owned(),
            ok: check.ok,
            found: check.found,
            fix: (!check.ok).then_some(check.fix),
        })
        .collect();
    Backend::new(
        "emulator",
        "real threads, memory and page faults in one process",
        true,
        checks,
    )
}
