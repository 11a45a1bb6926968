//! Frames against the NIC core: bytes as they are, and messages of live links with anything wrong in them. The bytes
//! also go to the decoder of Ethernet frames.
//!
//! A frame's payload lies in the end where the frame says, if the books of the board let it; nothing else has changed.
//! What is read is what may lie there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::wire::{Body, HEADER_BYTES, Header, Kind, MessageFlags, ReadTicket};
use netvm_abi::{CapabilitySlot, NodeId, PAGE_SIZE, PortId, Status, VirtAddr, frame};
use netvm_faults::Stand;
use netvm_faults::landing::Landing;
use netvm_faults::stand::BASE;

const PAYLOAD: usize = 256;

/// A message that is right in all that the NIC can check.
fn valid(stand: &Stand, node: usize, kind: Kind) -> Header {
    let slot = 3 * [0, 2, 3].iter().position(|&n| n == node).unwrap_or(0) as u32;
    let mut header = stand.peers[node].header(kind);
    header.seq = stand.peers[node].next;
    header.source_port = PortId(slot as u16 % 3 + 1);
    header.destination_port = PortId(1);
    header.capability = CapabilitySlot(slot);
    header.secret = 0x5EC2_E700_0000_0000 | u64::from(slot);
    header.address = VirtAddr(BASE + 4096);
    match kind {
        Kind::Write => header.len = 64,
        Kind::ReadRequest => header.raw.compare = 64,
        _ => {}
    }
    header
}

/// A read that was let through.
struct Asked {
    node: NodeId,
    ticket: ReadTicket,
    port: PortId,
    address: VirtAddr,
    len: usize,
}

/// What frames may do.
#[derive(Default)]
struct Reference {
    landing: Landing,
    asked: Vec<Asked>,
}

/// The capability that a message names, if it is the sender's and lets it do this.
fn granted(stand: &Stand, header: &Header, mode: Modes) -> Option<Capability> {
    let capability = (*stand.board.capabilities.get(header.capability.index())?)?;
    let its = capability.secret == header.secret
        && capability.port == header.destination_port
        && (capability.holder, capability.holder_port) == (header.source, header.source_port);
    (its && capability.modes.contains(mode)).then_some(capability)
}

/// The same, for `len` bytes at the message's address, and for its notification.
fn permits(stand: &Stand, header: &Header, mode: Modes, len: u64) -> bool {
    let Some(capability) = granted(stand, header, mode) else {
        return false;
    };
    let inside = capability.start <= header.address
        && header
            .address
            .0
            .checked_add(len)
            .is_some_and(|end| end <= capability.end.0);
    let one_page = u64::from(header.address.page_offset().0) + len <= u64::from(PAGE_SIZE);
    let signals = header.notification.0 == 0
        || capability.modes.contains(Modes::NOTIFY)
            && (capability.notify_first..=capability.notify_last).contains(&header.notification);
    inside && one_page && signals
}

impl Reference {
    /// A frame was accepted as a new message of its link.
    fn accepted(&mut self, stand: &Stand, frame: &[u8]) {
        let Ok(header) = Header::decode(frame) else {
            panic!("what is no message was accepted");
        };
        let payload = &frame[HEADER_BYTES..][..usize::from(header.len)];
        let (port, address) = (header.destination_port, header.address);
        match header.body() {
            Body::Write { .. } if payload.is_empty() => {}
            Body::Write { .. } if header.flags.contains(MessageFlags::APPEND) => {
                let Some(queue) = granted(stand, &header, Modes::APPEND) else {
                    return;
                };
                // It is the queue that has the place.
                let entry = u64::from(queue.queue.entry_bytes());
                if payload.len() as u64 <= entry {
                    for at in (queue.start.0..queue.end.0).step_by(entry as usize) {
                        self.landing.may(port, VirtAddr(at), payload);
                    }
                }
            }
            Body::Write { .. } if permits(stand, &header, Modes::WRITE, payload.len() as u64) => {
                self.landing.may(port, address, payload);
                if MessageFlags::ACK_REQUEST.contains(header.flags) {
                    self.landing.must(port, address, payload.len());
                }
            }
            Body::ReadRequest { ticket, len } if permits(stand, &header, Modes::READ, len.into()) => {
                self.asked.push(Asked {
                    node: header.source,
                    ticket,
                    port,
                    address,
                    len: len as usize,
                });
            }
            Body::AtomicRequest {
                opcode: Some(opcode), ..
            } => {
                let wide = header.flags.contains(MessageFlags::WIDE);
                let len = opcode.operand_bytes(wide);
                if permits(stand, &header, Modes::ATOMIC, len.into()) {
                    self.landing.any(port, address, len as usize);
                }
            }
            _ => {}
        }
    }

    /// What has left.
    fn left(&self, stand: &mut Stand) {
        for sent in std::mem::take(&mut stand.bytes().sent) {
            let Body::ReadReply { ticket, status } = sent.header.body() else {
                assert!(sent.payload.is_empty(), "{:?} with a payload", sent.header.kind);
                continue;
            };
            if status != Status::Ok || sent.payload.is_empty() {
                assert!(sent.payload.is_empty(), "a refusal with a payload");
                continue;
            }
            let node = sent.header.destination;
            let mut asked = self.asked.iter().filter(|asked| {
                (asked.node, asked.ticket, asked.len) == (node, ticket, sent.payload.len())
                    && asked.port == sent.header.source_port
            });
            let first = asked
                .next()
                .expect("data for a node that may not read, or not so much");
            if asked.next().is_none() {
                self.landing.check_read(first.port, first.address, &sent.payload);
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = frame::decode(data);
    let mut stand = Stand::with_bytes();
    let mut reference = Reference::default();
    for node in [0, 2, 3] {
        stand.link(NodeId(node));
    }
    for (number, chunk) in data.chunks(2 + HEADER_BYTES).enumerate() {
        let Some((&[how, what], wrong)) = chunk.split_first_chunk() else {
            break;
        };
        let node = [0, 2, 3][usize::from(how % 3)];
        let mut bytes = [0; HEADER_BYTES + PAYLOAD];
        for (at, byte) in bytes[HEADER_BYTES..].iter_mut().enumerate() {
            *byte = (number * 59 + at * 7) as u8 | 1;
        }
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
            reference.accepted(&stand, &bytes[..len]);
        }
        if how & 0x20 == 0 {
            stand.settle();
        }
        if how & 0x10 == 0 && !stand.board.dmas.is_empty() {
            stand.end_dma(0, true);
        }
        if how & 0x08 == 0 && !stand.host.pending.is_empty() {
            stand.host.answer(&mut stand.board, 0, what);
        }
    }
    stand.drain();
    // A link that has failed, or the host, may have cost some.
    let counts = *stand.nic.counters();
    let all = counts.dropped == 0 && counts.failed == 0;
    reference.landing.check(stand.bytes(), all);
    stand.quiesce();
    reference.left(&mut stand);
    reference.landing.check(stand.bytes(), false);
});
