//! Command queues whose memory answers each load as the fuzzer says, so that no two looks at a descriptor agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm_abi::descriptor::{Command, CommandFlags, HEAD_WORDS};
use netvm_abi::{ByteLen, CapabilitySlot, NodeId, PortId, VirtAddr};
use netvm_faults::Stand;
use netvm_faults::stand::{BASE, POSTING};

/// A write that is right in all that the NIC can check.
fn valid(port: u16) -> [u32; HEAD_WORDS] {
    let command = Command {
        flags: CommandFlags::empty(),
        len: ByteLen(64),
        node: NodeId(2),
        port: PortId(1),
        capability: CapabilitySlot(1),
        remote: VirtAddr(BASE),
        local: VirtAddr(BASE + u64::from(port) * 4096),
        ..Command::default()
    };
    command.encode()
}

fuzz_target!(|data: &[u8]| {
    let mut stand = Stand::new();
    for node in [0, 2, 3] {
        stand.link(NodeId(node));
    }
    for (chunk, port) in data.chunks(4 * HEAD_WORDS).zip(POSTING.cycle()) {
        // What the fuzzer gives is what is wrong with a descriptor that is right.
        let mut head = valid(port);
        for (word, bytes) in head.iter_mut().zip(chunk.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word ^= u32::from_le_bytes(four);
        }
        // The queue holds another descriptor than the one that is read; what is read again is different again.
        let script = head.iter().rev().copied().collect();
        stand.post(PortId(port), &valid(port), &[0; 8]);
        stand.lie(PortId(port), script, head[0] | 1);
        stand.settle();
        stand.board.bar.unhook();
        while stand.board.dmas.len() > 4 {
            stand.end_dma(0, chunk[0] % 8 != 0);
        }
    }
    stand.quiesce();
});
