//! The kernel device: `/dev/netvm0`, made by the kernel module.

use std::path::Path;

use super::{Backend, Check};

const DEVICE: &str = "/dev/netvm0";

/// Looks for the device. The module that makes it is not in this release, so there is no command to give.
pub(crate) fn examine() -> Backend {
    let device = if Path::new(DEVICE).exists() {
        Check::there(
            "device",
            format!("{DEVICE} is there, but this release cannot use it"),
        )
    } else {
        let fix =
            "none yet: the kernel module is not in this release (README, support table); use the emulator";
        Check::missing("device", format!("no {DEVICE}"), fix)
    };
    Backend::new(
        "kernel device",
        "a programmable card and the kernel module",
        false,
        vec![device],
    )
}
