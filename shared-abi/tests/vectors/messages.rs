//! What travels between cards: message headers and whole frames.

use crate::common::{Golden, words};
use crate::{ADDRESS, SECRET};
use netvm_abi::atomic::AtomicResult;
use netvm_abi::descriptor::Opcode;
use netvm_abi::frame;
use netvm_abi::frame::Endpoint;
use netvm_abi::wire::{
    Body, Greeting, HEADER_BYTES, HEADER_WORDS, Header, Kind, MessageFlags, OwnHeader, Owner, RawBody,
    RawHeader, ReadTicket, Receipt, Received,
};
use netvm_abi::*;

const OWNER: Owner = Owner {
    generation: Generation(4),
    start: Incarnation(0),
};

const fn ticket(slot: u16, generation: u32) -> ReadTicket {
    ReadTicket {
        slot: ReadSlot(slot),
        generation: Generation(generation),
    }
}

fn there(body: Body) -> Header {
    Header {
        source_port: PortId(3),
        destination_port: PortId(7),
        source_incarnation: Incarnation(0xa1a2_a3a4),
        destination_incarnation: Incarnation(0xb1b2_b3b4),
        ..Header::of(body, NodeId(0), NodeId(1))
    }
}

/// Its answer's.
fn back(body: Body) -> Header {
    Header {
        source_port: PortId(7),
        destination_port: PortId(3),
        source_incarnation: Incarnation(0xb1b2_b3b4),
        destination_incarnation: Incarnation(0xa1a2_a3a4),
        ..Header::of(body, NodeId(1), NodeId(0))
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
        stamp: Stamp(0x0012_d687),
        notification: NotificationId(5),
        address: ADDRESS,
        capability: CapabilitySlot(9),
        op: OpId(77),
        secret: SECRET,
        epoch: Epoch(2),
        ..there(Body::Write {
            owner: OWNER,
            refusal: OpId(0),
        })
    }
}

const RECEIPT: Receipt = Receipt {
    requests: Received {
        next: Seq(40),
        from: Seq(41),
        beyond: 0x8000_0000_0000_0005,
    },
    ended: 2,
    answers: Received {
        next: Seq(7),
        from: Seq(8),
        beyond: 0x0000_0001_0000_0002,
    },
    echo: Stamp(0x0012_d687),
    held: 1563,
    repeats: 3,
};

fn ack() -> Header {
    let mut header = Header {
        seq: Seq(32),
        stamp: Stamp(0x89ab_cdef),
        ..drivers(back(Body::Ack))
    };
    header.set_receipt(&RECEIPT);
    header
}

/// Word of a failure that its sender keeps until it has been received.
fn numbered_error() -> Header {
    let mut header = OwnHeader::new(&Header {
        seq: Seq(41),
        stamp: Stamp(0x89ab_ce00),
        op: OpId(77),
        epoch: Epoch(2),
        ..back(Body::Error {
            status: Status::Unmapped,
            owner: OWNER,
        })
    });
    header.number_answer(Seq(7));
    header.decode()
}

const fn greeting(page_size: u32, payload: u32, window: u16) -> Greeting {
    Greeting {
        page_size,
        payload,
        window,
        version: ABI_VERSION,
        refuses: window == 128,
    }
}

fn headers() -> Vec<(&'static str, Header)> {
    vec![
        ("write", write()),
        (
            "append",
            Header {
                flags: MessageFlags::ORDERED | MessageFlags::APPEND,
                len: 8,
                seq: Seq(44),
                capability: CapabilitySlot(10),
                op: OpId(81),
                secret: SECRET,
                epoch: Epoch(2),
                ..there(Body::Write {
                    owner: OWNER,
                    refusal: OpId(80),
                })
            },
        ),
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
                ..there(Body::ReadRequest {
                    ticket: ticket(17, 0x55),
                    len: 100,
                })
            },
        ),
        (
            "atomic_request",
            Header {
                flags: MessageFlags::WIDE | MessageFlags::ACK_REQUEST,
                seq: Seq(42),
                address: ADDRESS,
                capability: CapabilitySlot(9),
                secret: SECRET,
                epoch: Epoch(2),
                ..there(Body::AtomicRequest {
                    ticket: ticket(18, 80),
                    opcode: Some(Opcode::CompareSwap),
                    operand: 0xaaaa_aaaa_bbbb_bbbb,
                    compare: 0xcccc_cccc_dddd_dddd,
                })
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
                ..there(Body::Flush {
                    ticket: ticket(19, 3),
                    owner: OWNER,
                })
            },
        ),
        (
            "control",
            Header {
                flags: MessageFlags::ACK_REQUEST,
                len: 128,
                seq: Seq(44),
                ..drivers(there(Body::Control))
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
                ..back(Body::ReadReply {
                    ticket: ticket(17, 0x55),
                    status: Status::Ok,
                })
            },
        ),
        (
            "atomic_reply",
            Header {
                seq: Seq(42),
                epoch: Epoch(2),
                ..back(Body::AtomicReply {
                    ticket: ticket(18, 80),
                    status: Status::Ok,
                    result: AtomicResult {
                        value: 0x0123_4567_89ab_cdef,
                        second: 0,
                    },
                })
            },
        ),
        (
            "flush_reply",
            Header {
                source_port: PortId(0),
                seq: Seq(43),
                op: OpId(79),
                reply: ReplySlot(13),
                epoch: Epoch(1),
                ..back(Body::FlushReply {
                    ticket: ticket(19, 3),
                    status: Status::Unmapped,
                    failed: OpId(77),
                    refused: OpId(76),
                })
            },
        ),
        ("ack", ack()),
        (
            "error",
            Header {
                seq: Seq(41),
                address: ADDRESS,
                op: OpId(77),
                epoch: Epoch(2),
                ..back(Body::Error {
                    status: Status::OutOfRange,
                    owner: OWNER,
                })
            },
        ),
        ("numbered_error", numbered_error()),
        (
            "hello",
            Header {
                destination_incarnation: Incarnation(0),
                ..drivers(there(Body::Hello {
                    greeting: greeting(4096, 1392, 64),
                }))
            },
        ),
        (
            "hello_ack",
            drivers(back(Body::HelloAck {
                status: Status::VersionMismatch,
                greeting: greeting(4096, 4096, 128),
            })),
        ),
        (
            "probe",
            Header {
                seq: Seq(45),
                stamp: Stamp(0x0012_ffff),
                ..drivers(there(Body::Probe))
            },
        ),
        ("bye", drivers(there(Body::Bye))),
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
        // What the bytes say, said again, gives the same bytes.
        let mut again = Header {
            kind: Kind::Write,
            raw: RawBody::default(),
            ..header
        };
        again.set_body(header.body());
        if header.kind == Kind::Ack {
            again.set_receipt(&OwnHeader::new(&header).receipt());
        }
        assert_eq!(again.encode().as_slice(), &bytes[..HEADER_BYTES], "{section}");
    }
    golden.end();
}

#[test]
fn receipts() {
    let mut golden = Golden::read("header");
    let words = golden.take_words("ack");
    let ack = RawHeader::of(&words).unwrap();
    assert_eq!(
        (ack.seq(), ack.receipt(), ack.answer_number()),
        (Seq(32), RECEIPT, None)
    );
    let words = golden.take_words("numbered_error");
    let answer = RawHeader::of(&words).unwrap();
    assert_eq!((answer.seq(), answer.answer_number()), (Seq(41), Some(Seq(7))));
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
        ..there(Body::Write {
            owner: Owner::default(),
            refusal: OpId(0),
        })
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
