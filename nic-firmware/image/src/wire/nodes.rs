//! The nodes' addresses on the network.

use netvm_abi::NodeId;
use netvm_abi::frame::Endpoint;

/// UDP port of NetVM's messages.
const PORT: u16 = 0x4E56;

/// Addresses of a node: a rule instead of a table, as long as nothing but these images is on the wire. The Ethernet
/// address is a locally administered one.
pub(crate) const fn endpoint(node: NodeId) -> Endpoint {
    let [high, low] = node.0.to_be_bytes();
    Endpoint {
        mac: [0x02, b'N', b'V', b'M', high, low],
        ip: [10, 78, high, low],
        port: PORT,
    }
}
