//! Command queues with anything in them, read once or by a memory that answers each load as the fuzzer says, so that no
//! two looks at a descriptor agree.
//!
//! What leaves an honest queue is a command that was posted, with the bytes that it names; what a lying one lets leave
//! are bytes of its own port. Of that port's pages only those bytes change into which a reply is to go.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm_abi::descriptor::{Command, CommandFlags, HEAD_WORDS, INLINE_BYTES, Opcode};
use netvm_abi::wire::{Body, HEADER_BYTES, Header, ReadTicket};
use netvm_abi::{ByteLen, CapabilitySlot, NodeId, OpId, PortId, VirtAddr};
use netvm_faults::Stand;
use netvm_faults::bytes::Sent;
use netvm_faults::landing::Landing;
use netvm_faults::stand::{BASE, POSTING};
use std::collections::{HashSet, VecDeque};

/// Longer than a descriptor's own payload can be: so it comes from a page.
const LEN: u32 = 200;

/// A command that is right in all that the NIC can check.
fn valid(port: u16, number: u32, what: u8) -> Command {
    let base = Command {
        len: ByteLen(LEN),
        node: NodeId(2),
        port: PortId(1),
        capability: CapabilitySlot(1),
        op: OpId(number),
        remote: VirtAddr(BASE),
        local: VirtAddr(BASE + u64::from(port) * 4096),
        ..Command::default()
    };
    match what % 4 {
        0 => Command {
            flags: CommandFlags::INLINE,
            len: ByteLen(64),
            ..base
        },
        1 => Command {
            opcode: Opcode::Read,
            ..base
        },
        // Of a page that is not mapped, or into one.
        2 => Command {
            opcode: if what & 4 == 0 {
                Opcode::Read
            } else {
                Opcode::Write
            },
            local: VirtAddr(BASE + 6 * 4096),
            ..base
        },
        _ => base,
    }
}

/// A command in an honest queue, with the payload in it.
struct Posted {
    command: Command,
    inline: Vec<u8>,
}

/// A read under way.
struct Asked {
    ticket: ReadTicket,
    node: NodeId,
    port: PortId,
    local: VirtAddr,
    len: u32,
}

#[derive(Default)]
struct Reference {
    lies: bool,
    landing: Landing,
    posted: [VecDeque<Posted>; 8],
    asked: Vec<Asked>,
    /// What was posted, by port and operation: one that is refused is told from a later one by nothing else.
    numbers: HashSet<(u16, OpId)>,
}

impl Posted {
    /// Whether this message carries it out.
    fn is_carried_by(&self, sent: &Header) -> bool {
        let (command, body) = (&self.command, sent.body());
        let kind = match body {
            Body::Write { .. } => command.opcode == Opcode::Write && u32::from(sent.len) == command.len.0,
            Body::ReadRequest { len, .. } => command.opcode == Opcode::Read && len == command.len.0,
            Body::Flush { .. } => command.opcode == Opcode::FlushRemote,
            Body::AtomicRequest {
                opcode,
                operand,
                compare,
                ..
            } => opcode == Some(command.opcode) && (operand, compare) == (command.operand, command.compare),
            _ => false,
        };
        let names = (sent.destination, sent.destination_port) == (command.node, command.port)
            && (sent.capability, sent.secret) == (command.capability, command.secret);
        // An atomic, and the extension of a lease, has its ticket where others have their operation.
        let same = matches!(body, Body::AtomicRequest { .. }) || sent.op == command.op;
        kind && names && same && sent.address == command.remote && sent.epoch == command.epoch
    }
}

impl Reference {
    /// What has left.
    fn left(&mut self, stand: &mut Stand) {
        for sent in std::mem::take(&mut stand.bytes().sent) {
            let header = &sent.header;
            let asks = matches!(
                header.body(),
                Body::Write { .. }
                    | Body::ReadRequest { .. }
                    | Body::Flush { .. }
                    | Body::AtomicRequest { .. }
            );
            if !asks {
                assert!(sent.payload.is_empty(), "{:?} with a payload", header.kind);
            } else if self.lies {
                self.comes_from_its_port(stand, &sent);
            } else {
                self.was_posted(&sent);
            }
        }
    }

    /// Commands leave in the order in which they were posted; those between have failed.
    fn was_posted(&mut self, sent: &Sent) {
        let (header, port) = (&sent.header, sent.header.source_port);
        let posted = std::iter::from_fn(|| self.posted[port.index()].pop_front())
            .find(|posted| posted.is_carried_by(header));
        let Posted { command, inline } = posted.unwrap_or_else(|| panic!("{header:?} was not posted"));
        match header.body() {
            Body::Write { .. } if command.flags.contains(CommandFlags::INLINE) => {
                assert_eq!(sent.payload, inline[..command.len.index()], "another payload");
            }
            Body::Write { .. } if command.len.0 > 0 => {
                self.landing.check_read(port, command.local, &sent.payload);
            }
            Body::ReadRequest { ticket, len } => self.asked.push(Asked {
                ticket,
                node: header.destination,
                port,
                local: command.local,
                len,
            }),
            _ => assert!(sent.payload.is_empty(), "a request with a payload"),
        }
    }

    /// Whatever the queue said: what is too long for a descriptor is a piece of a page of the port.
    fn comes_from_its_port(&self, stand: &mut Stand, sent: &Sent) {
        let (port, len) = (sent.header.source_port, sent.payload.len());
        if len > INLINE_BYTES {
            let mut pages = stand.bytes().touched().filter(|(vpn, _)| vpn.port() == port);
            assert!(
                pages.any(|(_, page)| page.windows(len).any(|piece| piece == sent.payload)),
                "{len} bytes that are not the port's"
            );
        }
    }

    /// A node answers a read of an honest queue, or says what was not asked.
    fn answer(&mut self, stand: &mut Stand, node: usize, what: u8) {
        let Some(request) = stand.peers[node].requests.pop() else {
            return;
        };
        let mut header = stand.peers[node].answer(&request);
        if what & 0x10 != 0 {
            header.len = header.len.wrapping_sub(u16::from(what >> 5));
        }
        if header.len > 4096 {
            return;
        }
        let mut frame = header.encode().to_vec();
        frame.extend((0..header.len).map(|at| (at as u8).wrapping_mul(11) ^ what | 1));
        if let Body::ReadReply { ticket, .. } = header.body()
            && let Some(at) = self
                .asked
                .iter()
                .position(|asked| (asked.ticket, asked.node) == (ticket, NodeId(node as u16)))
        {
            let asked = self.asked.swap_remove(at);
            if u32::from(header.len) == asked.len {
                self.landing.may(asked.port, asked.local, &frame[HEADER_BYTES..]);
            }
        }
        stand.frame(&frame);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else {
        return;
    };
    let mut stand = Stand::with_bytes();
    let mut reference = Reference {
        lies: how & 1 != 0,
        ..Reference::default()
    };
    for node in [0, 2, 3] {
        stand.link(NodeId(node));
    }
    let chunks = data.chunks(1 + 4 * HEAD_WORDS).zip(POSTING.cycle()).enumerate();
    for (number, (chunk, port)) in chunks {
        // What the fuzzer gives is what is wrong with a descriptor that is right.
        let Some((&what, wrong)) = chunk.split_first() else {
            break;
        };
        let right = valid(port, number as u32 + 1, what).encode();
        let mut head = right;
        for (word, bytes) in head.iter_mut().zip(wrong.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word ^= u32::from_le_bytes(four);
        }
        let inline = std::array::from_fn::<u32, { INLINE_BYTES / 4 }, _>(|at| {
            ((number * 32 + at + 1) as u32).wrapping_mul(0x0101_0307)
        });
        let command = Command::decode(&head).ok();
        if reference.lies {
            // The queue holds another descriptor than the one that is read; what is read again is different again.
            let script = head.iter().rev().copied().collect();
            stand.post(PortId(port), &right, &inline);
            stand.lie(PortId(port), script, head[0] | 1);
        } else if command.is_none_or(|command| reference.numbers.insert((port, command.op)))
            && stand.post(PortId(port), &head, &inline)
            && let Some(command) = command
        {
            let inline = inline.iter().flat_map(|word| word.to_le_bytes()).collect();
            reference.posted[usize::from(port)].push_back(Posted { command, inline });
        }
        stand.settle();
        stand.board.bar.unhook();
        while stand.board.dmas.len() > 4 {
            stand.end_dma(0, wrong.first().is_none_or(|wrong| wrong % 8 != 0));
        }
        reference.left(&mut stand);
        // Where a lying queue wants its replies is not known here.
        if what & 8 != 0 && !reference.lies {
            reference.answer(&mut stand, [0, 2, 3][usize::from(what >> 6) % 3], what);
        }
    }
    stand.quiesce();
    reference.left(&mut stand);
    reference.landing.check(stand.bytes(), false);
});
