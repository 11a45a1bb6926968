//! The kernel device: `/dev/netvm0`, made by the kernel module.

use netvm::device;

use super::{Backend, Check};

/// Looks for the device, and asks its driver for its name and version.
pub(crate) fn examine() -> Backend {
    let check = if device::present() {
        match device::open(device::FIRST) {
            Ok(node) => {
                let geometry = node.geometry();
                Check::there(
                    "device",
                    format!(
                        "{}: node {} of {}, {} ports",
                        device::FIRST,
                        node.id(),
                        geometry.nodes,
                        geometry.ports
                    ),
                )
            }
            Err(refusal) => Check::missing(
                "device",
                format!("{} does not answer: {refusal:?}", device::FIRST),
                "use the netvm.ko and the netvm of one release",
            ),
        }
    } else {
        let fix = "insmod netvm.ko (built by cargo xtask module) on a machine with a card, and give it the card (docs/decisions/0020-permissions.md); cargo xtask rig shell shows one without";
        Check::missing("device", format!("no {}", device::FIRST), fix)
    };
    Backend::new(
        "kernel device",
        "a programmable card and the kernel module",
        false,
        vec![check],
    )
}
