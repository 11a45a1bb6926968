//! The rig: QEMU machines with a real kernel and our module, and cards that boot our image.

use std::process::{Command, Stdio};

use super::{Backend, Check};

const PROGRAMS: [(&str, &str); 2] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-system-aarch64", "qemu-system-arm"),
];

/// Looks for QEMU; `cargo xtask rig` installs that and builds the rest.
pub(crate) fn examine() -> Backend {
    let checks = PROGRAMS
        .iter()
        .map(|(program, package)| qemu(program, package))
        .collect();
    Backend::new(
        "rig",
        "Linux, the module, the firmware image and a wire, in QEMU: cargo xtask rig",
        false,
        checks,
    )
}

fn qemu(program: &str, package: &str) -> Check {
    let version = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok();
    let version = version.filter(|output| output.status.success());
    match version.and_then(|output| Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned()))
    {
        Some(line) => Check::there(program, line),
        None => Check::missing(
            program,
            "not installed",
            format!("sudo apt-get install {package}"),
        ),
    }
}
