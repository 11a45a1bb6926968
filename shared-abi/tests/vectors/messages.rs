//! What travels between cards: message headers and whole frames.

use crate::common::{Golden, words};
use crate::{ADDRESS, SECRET};
use netvm_abi::descriptor::Opcode;
use netvm_abi::frame;
use netvm_abi::frame::Endpoint;
use netvm_abi::wire::{HEADER_WORDS, Header, Kind, MessageFlags};
use netvm_abi::*;

fn there(kind: Kind) -> Header {
    Header {
        source_port: PortId(3),
        destination_port: PortId(7),
        source_incarnation: Incarnation(0xa1a2_a3a4),
        destination_incarnation: Incarnation(0xb1b2_b3b4),
        ..Header::new(kind, NodeId(0), NodeId(1))
    }
}

/// Its answer's.
fn back(kind: Kind) -> Header {
    Header {
        source_port: PortId(7),
        destination_port: PortId(3),
        source_incarnation: Incarnation(0xb1b2_b3b4),
        destination_incarnation: Incarnation(0xa1a2_a3a4),
        ..Header::new(kind, NodeId(1), NodeId(0))
    }
}

/// Between host drivers or NICs.
fn drivers(header: Header) -> Header {
    Header {
        source_port: PortId(0),
        destination_port: PortId(0),
        ..header
    }
}

pub(crate) fn write() -> Header {
    Header {
        flags: MessageFlags::ACK_REQUEST,
        len: 8,
        seq: Seq(41),
        notification: NotificationId(5),
        address: ADDRESS,
        capability: CapabilitySlot(9),
        op: OpId(77),
        secret: SECRET,
        epoch: Epoch(2),
        compare: 4,
        ..there(Kind::Write)
    }
}

fn ack() -> Header {
    Header {
        seq: Seq(32),
        operand: 0x8000_0000_0000_0005,
        ..drivers(back(Kind::Ack))
    }
}

fn greeting(kind: Kind, page: u64, payload: u64, window: u64) -> Header {
    Header {
        operand: page | (payload << 32),
        compare: window | (u64::from(ABI_VERSION) << 16),
        ..drivers(match kind {
            Kind::Hello => there(kind),
            _ => back(kind),
        })
    }
}

fn headers() -> Vec<(&'static str, Header)> {
    vec![
        ("write", write()),
        (
            "read_request",
            Header {
                flags: MessageFlags::ACK_REQUEST,
                source: NodeId(2),
                destination: NodeId(3),
                source_port: PortId(6),
                destination_port: PortId(1),
                seq: Seq(0xffff_fff0),
                address: VirtAddr(0x1000_0020),
                capability: CapabilitySlot(2),
                op: OpId(78),
                secret: 0x8000_0000_0000_0001,
                reply: ReplySlot(12),
                epoch: Epoch(1),
                operand: (0x55 << 32) | 17,
                compare: 100,
                ..there(Kind::ReadRequest)
            },
        ),
        (
            "atomic_request",
            Header {
                flags: MessageFlags::WIDE | MessageFlags::ACK_REQUEST,
                status: Opcode::CompareSwap as u8,
                seq: Seq(42),
                address: ADDRESS,
                capability: CapabilitySlot(9),
                op: OpId(80),
                secret: SECRET,
                reply: ReplySlot(18),
                epoch: Epoch(2),
                operand: 0xaaaa_aaaa_bbbb_bbbb,
                compare: 0xcccc_cccc_dddd_dddd,
                ..there(Kind::AtomicRequest)
            },
        ),
        (
            "flush",
            Header {
                flags: MessageFlags::ACK_REQUEST | MessageFlags::ORDERED,
                destination_port: PortId(0),
                seq: Seq(43),
                op: OpId(79),
                reply: ReplySlot(13),
                epoch: Epoch(1),
                operand: (3 << 32) | 19,
                compare: 4,
                ..there(Kind::Flush)
            },
        ),
        (
            "control",
            Header {
                flags: MessageFlags::ACK_REQUEST,
                len: 128,
                seq: Seq(44),
                ..drivers(there(Kind::Control))
            },
        ),
        (
            "read_reply",
            Header {
                len: 100,
                source: NodeId(3),
                destination: NodeId(2),
                source_port: PortId(1),
                destination_port: PortId(6),
                seq: Seq(0xffff_fff0),
                op: OpId(78),
                reply: ReplySlot(12),
                epoch: Epoch(1),
                operand: (0x55 << 32) | 17,
                ..back(Kind::ReadReply)
            },
        ),
        (
            "atomic_reply",
            Header {
                seq: Seq(42),
                op: OpId(80),
                reply: ReplySlot(18),
                epoch: Epoch(2),
                operand: 0x0123_4567_89ab_cdef,
                ..back(Kind::AtomicReply)
            },
        ),
        (
            "flush_reply",
            Header {
                status: Status::Unmapped.code(),
                source_port: PortId(0),
                seq: Seq(43),
                op: OpId(79),
                reply: ReplySlot(13),
                epoch: Epoch(1),
                operand: 77,
                compare: (3 << 32) | 19,
                ..back(Kind::FlushReply)
            },
        ),
        ("ack", ack()),
        (
            "error",
            Header {
                status: Status::OutOfRange.code(),
                seq: Seq(41),
                address: ADDRESS,
                op: OpId(77),
                epoch: Epoch(2),
                compare: 4,
                ..back(Kind::Error)
            },
        ),
        (
            "hello",
            Header {
                destination_incarnation: Incarnation(0),
                ..greeting(Kind::Hello, 4096, 1392, 64)
            },
        ),
        (
            "hello_ack",
            Header {
                status: Status::VersionMismatch.code(),
                ..greeting(Kind::HelloAck, 4096, 4096, 128)
            },
        ),
        ("probe", drivers(there(Kind::Probe))),
        ("bye", drivers(there(Kind::Bye))),
    ]
}

#[test]
fn message_headers() {
    let mut golden = Golden::read("header");
    let headers = headers();
    for kind in Kind::ALL {
        assert!(headers.iter().any(|(_, header)| header.kind == *kind), "{kind:?}");
    }
    for (section, header) in headers {
        let expected = golden.take_exact(section);
        assert_eq!(header.encode().as_slice(), expected, "{section}");
        assert_eq!(
            header.encode_words(),
            words::<HEADER_WORDS>(&expected),
            "{section}"
        );
        let mut bytes = expected;
        bytes.resize(bytes.len() + usize::from(header.len), 0xEE);
        assert_eq!(Header::decode(&bytes), Ok(header), "{section}");
    }
    golden.end();
}

#[test]
fn frames() {
    let mut golden = Golden::read("frame");
    let from = Endpoint {
        mac: [0x02, 0x4e, 0x56, 0, 0, 1],
        ip: [10, 78, 0, 1],
        port: 5791,
    };
    let to = Endpoint {
        mac: [0x02, 0x4e, 0x56, 0, 0, 2],
        ip: [10, 78, 0, 2],
        port: 5792,
    };
    let odd = Header {
        len: 3,
        seq: Seq(42),
        address: VirtAddr(0x1001),
        capability: CapabilitySlot(9),
        op: OpId(78),
        secret: SECRET,
        ..there(Kind::Write)
    };
    for (section, header, payload) in [
        ("write", write(), &[1, 2, 3, 4, 5, 6, 7, 8][..]),
        ("write_odd", odd, b"abc"),
        ("ack", ack(), &[]),
    ] {
        let expected = golden.take_exact(section);
        let mut bytes = [0; frame::MAX_FRAME_BYTES];
        let len = frame::encode(&from, &to, &header, payload, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], expected, "{section}");
        let decoded = frame::decode(&expected).unwrap();
        assert_eq!((decoded.from, decoded.to), (from, to), "{section}");
        assert_eq!((decoded.header, decoded.payload), (header, payload), "{section}");
    }
    golden.end();
}
