//! Whether the software card works: nodes of this user on this machine, and over UDP.

use netvm_process::SoftNode;

use super::{Backend, Check};

/// The kernel's limit of a socket's buffer below which windows of a few peers overflow it.
const BUFFER: u64 = 1 << 20;
const BUFFER_FILE: &str = "/proc/sys/net/core/rmem_max";

pub(super) fn examine() -> Backend {
    let about = "between any two processes of this machine, by shared memory";
    let fix = "see the error: a limit, or a filter of system calls";
    Backend::new(
        "software card",
        about,
        true,
        vec![processor(), start("a node", None, fix)],
    )
}

/// A machine may have no network.
pub(super) fn examine_udp(keys: &str) -> Backend {
    let about = "software cards of several machines; nothing is encrypted without --key-file";
    let started = start("a node with UDP", Some("127.0.0.1:0"), "ip link set lo up");
    Backend::new(
        "UDP",
        about,
        false,
        vec![started, buffer(), Check::there("keys of running nodes", keys)],
    )
}

fn processor() -> Check {
    let name = "adopted memory is guarded";
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        Check::there(name, "Linux on x86-64")
    } else {
        Check::missing(
            name,
            std::env::consts::ARCH,
            "use memory of `Port::alloc` on this processor",
        )
    }
}

fn start(name: &str, udp: Option<&str>, fix: &str) -> Check {
    let builder = SoftNode::builder();
    let builder = match udp {
        Some(address) => builder.udp(address),
        None => builder,
    };
    match builder.start() {
        Ok(node) => Check::there(
            name,
            match node.udp_address() {
                Some(address) => format!("started, at {address}"),
                None => format!("started, with number {}", node.number()),
            },
        ),
        Err(error) => Check::missing(name, error.to_string(), fix),
    }
}

/// A small buffer costs time, not messages: so it is told, and nothing is missing.
fn buffer() -> Check {
    let name = "buffer of a UDP socket";
    let limit = std::fs::read_to_string(BUFFER_FILE).ok();
    match limit.and_then(|limit| limit.trim().parse::<u64>().ok()) {
        Some(bytes) if bytes >= BUFFER => Check::there(name, format!("up to {bytes} bytes")),
        Some(bytes) => Check::there(
            name,
            format!("up to {bytes} bytes: `sysctl net.core.rmem_max=4194304` helps with many peers"),
        ),
        None => Check::there(name, format!("{BUFFER_FILE} cannot be read")),
    }
}
