//! Frames that no honest node sends, straight into a machine's wire.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netvm_abi::frame::{Endpoint, MAX_FRAME_BYTES, OUTER_BYTES, encode};
use netvm_abi::wire::{Header, Kind, RawBody};
use netvm_abi::{CapabilitySlot, Incarnation, NodeId, NotificationId, OpId, PortId, Seq, VirtAddr};

/// Frames for each node.
const FRAMES: u32 = 2000;
/// Everything but greetings: a forged greeting can end a link, as the README says.
const KINDS: [Kind; 8] = [
    Kind::Write,
    Kind::ReadRequest,
    Kind::Flush,
    Kind::ReadReply,
    Kind::FlushReply,
    Kind::Ack,
    Kind::Error,
    Kind::Probe,
];

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    /// `splitmix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Sends a storm to `node`, whose wire listens on `socket`.
pub(super) fn send(node: u16, socket: &Path) -> Result<()> {
    let wire = UnixDatagram::unbound().context("making a socket")?;
    // A machine that takes nothing any more is what the test is to find, not to wait for.
    wire.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut numbers = Numbers(u64::from(node) + 1);
    for _ in 0..FRAMES {
        let frame = frame(&mut numbers, node);
        wire.send_to(&frame, socket)
            .with_context(|| format!("sending a frame to node {node}"))?;
    }
    Ok(())
}

/// A frame: noise, or a message with plausible addresses and made-up fields, whole or with some bytes changed or cut off.
fn frame(numbers: &mut Numbers, node: u16) -> Vec<u8> {
    if numbers.below(4) == 0 {
        let len = 1 + numbers.below(MAX_FRAME_BYTES);
        return (0..len).map(|_| numbers.next() as u8).collect();
    }
    let payload = vec![numbers.next() as u8; numbers.below(4097)];
    let mut bytes = vec![0; MAX_FRAME_BYTES];
    let header = header(numbers, node, payload.len() as u16);
    let path = [endpoint(1 - node), endpoint(node)];
    let len = encode(&path[0], &path[1], &header, &payload, &mut bytes).unwrap_or(OUTER_BYTES);
    bytes.truncate(len);
    match numbers.below(3) {
        0 => {
            for _ in 0..=numbers.below(4) {
                let at = numbers.below(bytes.len());
                bytes[at] = numbers.next() as u8;
            }
        }
        1 => bytes.truncate(1 + numbers.below(len)),
        _ => {}
    }
    bytes
}

fn header(numbers: &mut Numbers, node: u16, len: u16) -> Header {
    let kind = KINDS[numbers.below(KINDS.len())];
    let status = numbers.next() as u8;
    Header {
        len,
        source_port: PortId(numbers.below(4) as u16),
        destination_port: PortId(numbers.below(4) as u16),
        source_incarnation: Incarnation(numbers.next() as u32),
        destination_incarnation: Incarnation(numbers.next() as u32),
        seq: Seq(numbers.next() as u32),
        notification: NotificationId(numbers.below(9) as u32),
        address: VirtAddr(0x10_0000 + numbers.below(1 << 17) as u64),
        capability: CapabilitySlot(numbers.below(5) as u32),
        op: OpId(numbers.next() as u32),
        secret: numbers.next(),
        raw: RawBody {
            status,
            operand: numbers.next(),
            compare: numbers.next(),
        },
        ..Header::new(kind, NodeId(1 - node), NodeId(node))
    }
}

/// As `nic-firmware/image/src/wire/nodes.rs` has it.
fn endpoint(node: u16) -> Endpoint {
    let [high, low] = node.to_be_bytes();
    Endpoint {
        mac: [0x02, b'N', b'V', b'M', high, low],
        ip: [10, 78, high, low],
        port: 0x4E56,
    }
}
