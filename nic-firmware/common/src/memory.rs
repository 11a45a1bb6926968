//! How much memory a card takes, as a function of its geometry. `cargo xtask firmware` prints it; the
//! image asserts the sizes of its buffers, and says in its log what it counts here (`self_test/network.rs`).

use netvm_abi::bar::BarMap;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{Geometry, PAGE_SIZE};
use netvm_nic::tables::footprint;

/// Bytes of a staging buffer.
pub const STAGING_BYTES: usize = PAGE_SIZE as usize;
/// Bytes of a receive buffer: a frame with the largest payload, what the device puts before it, and whose it is.
pub const RECEIVE_BYTES: usize = 4288;
/// Bytes of a buffer for what a node sends to itself: a message, and how long it is.
pub const MESSAGE_BYTES: usize = 4192;
/// Bytes for the head of a frame that leaves, and its payload if that is short.
pub const HEAD_BYTES: usize = 320;
/// Frames that may be leaving: those that a device has, and those that wait for it (`wire/virtio/send.rs` says how many).
pub const HEADS: usize = 512;

/// Receive buffers of a card: the sum of the windows, replies to all its reads, and some for each node for what is not
/// counted against a window (acknowledgements, errors, greetings).
#[must_use]
pub const fn receive_buffers(nodes: u16, window: u16, reads: u16) -> usize {
    nodes as usize * (window as usize + 32) + reads as usize
}

/// A part of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What it holds.
    pub name: &'static str,
    /// How large it is.
    pub bytes: u64,
    /// It is memory of the host and not of the card.
    pub on_host: bool,
}

/// All parts.
#[must_use]
pub fn parts(geometry: &Geometry) -> [Part; 12] {
    let bar = BarMap::new(geometry);
    let words = |from: u32, to: u32| u64::from(to - from) * 4;
    let card = |name, bytes| Part {
        name,
        bytes,
        on_host: false,
    };
    let host = |name, bytes| Part {
        name,
        bytes,
        on_host: true,
    };
    let receive = receive_buffers(geometry.window_count(), geometry.window, geometry.reads) * RECEIVE_BYTES;
    let staging = usize::from(geometry.staging) * STAGING_BYTES;
    let home = receive_buffers(1, geometry.window, geometry.reads) * MESSAGE_BYTES;
    [
        card("header and event ring", words(0, bar.ports.0)),
        card("port blocks", words(bar.ports.0, bar.capabilities.0)),
        card("capability table", words(bar.capabilities.0, bar.page_table.0)),
        card("page table", words(bar.page_table.0, bar.counters.0)),
        card("published counters", words(bar.counters.0, bar.words)),
        card("the core's tables", footprint(geometry).bytes() as u64),
        card("staging buffers", staging as u64),
        card("receive buffers", receive as u64),
        card("buffers for its own node", home as u64),
        card("heads of frames", (HEADS * HEAD_BYTES) as u64),
        host("driver memory", words(0, SharedMap::new(geometry).words)),
        host(
            "bounce pages",
            u64::from(geometry.bounce_slots()) * u64::from(PAGE_SIZE),
        ),
    ]
}

/// Bytes of the card, and of the host.
#[must_use]
pub fn totals(geometry: &Geometry) -> (u64, u64) {
    let sum = |on_host| {
        let of = parts(geometry).into_iter().filter(|part| part.on_host == on_host);
        of.map(|part| part.bytes).sum()
    };
    (sum(false), sum(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 64 windows, what every further node costs that has none: bytes of the card, and of the host.
    #[test]
    fn a_node_at_rest_costs_little_and_no_page() {
        let with = |nodes| Geometry {
            nodes,
            ..Geometry::default()
        };
        let of = |name| {
            let bytes = |nodes| parts(&with(nodes)).into_iter().filter(|part| part.name == name);
            let sum = |nodes| bytes(nodes).map(|part| part.bytes).sum::<u64>();
            sum(4096) - sum(64)
        };
        assert_eq!(
            (of("receive buffers"), of("bounce pages"), of("staging buffers")),
            (0, 0, 0)
        );
        let (few, many) = (totals(&with(64)), totals(&with(4096)));
        let each = [many.0 - few.0, many.1 - few.1].map(|bytes| bytes / 4032);
        assert!(each[0] <= 1024 && each[1] <= 1024, "{each:?}");
    }
}
