//! Frames against the NIC core: bytes as they are, and messages of live links with anything wrong in them. The bytes
//! also go to the decoder of Ethernet frames.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm_abi::wire::{HEADER_BYTES, Header, Kind};
use netvm_abi::{CapabilitySlot, NodeId, PortId, VirtAddr, frame};
use netvm_faults::Stand;
use netvm_faults::stand::BASE;

/// A message that is right in all that the NIC can check.
fn valid(stand: &Stand, node: usize, kind: Kind) -> Header {
    let slot = 3 * [0, 2, 3].iter().position(|&n| n == node).unwrap_or(0) as u32;
    let mut header = stand.peers[node].header(kind);
    header.seq = stand.peers[node].next;
    header.source_port = PortId(1);
    header.destination_port = PortId(1);
    header.capability = CapabilitySlot(slot);
    header.secret = 0x5EC2_E700_0000_0000 | u64::from(slot);
    header.address = VirtAddr(BASE + 4096);
    header
}

fuzz_target!(|data: &[u8]| {
    let _ = frame::decode(data);
    let mut stand = Stand::new();
    for node in [0, 2, 3] {
        stand.link(NodeId(node));
    }
    for chunk in data.chunks(2 + HEADER_BYTES) {
        let Some((&[how, what], wrong)) = chunk.split_first_chunk() else {
            break;
        };
        let node = [0, 2, 3][usize::from(how % 3)];
        let mut bytes = [0; HEADER_BYTES + 256];
        if how & 0x80 == 0 {
            let kind = Kind::ALL[usize::from(what) % Kind::ALL.len()];
            bytes[..HEADER_BYTES].copy_from_slice(&valid(&stand, node, kind).encode());
        }
        for (byte, wrong) in bytes.iter_mut().zip(wrong) {
            *byte ^= wrong;
        }
        let len = if how & 0x40 == 0 {
            bytes.len()
        } else {
            usize::from(what)
        };
        let before = stand.nic.counters().messages_received;
        stand.frame(&bytes[..len]);
        if stand.nic.counters().messages_received > before {
            stand.peers[node].number();
        }
        if how & 0x20 == 0 {
            stand.settle();
        }
        if how & 0x10 == 0 && !stand.board.dmas.is_empty() {
            stand.end_dma(0, true);
        }
        if how & 0x08 == 0 && !stand.host.pending.is_empty() {
            stand.host.answer(&stand.board, 0, what);
        }
    }
    stand.quiesce();
});
