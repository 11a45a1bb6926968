//! Every layout against bytes that were written down by hand: whoever implements the other side in another
//! language can take the same files (`docs/ABI.md`).

mod common;

use common::{Golden, dump, folder, shared, words};
use netvm_abi::attach::CardHeader;
use netvm_abi::bar::{BarMap, port};
use netvm_abi::bounce::{RECORD_WORDS, load_record, store_record};
use netvm_abi::capability::{CAPABILITY_WORDS, Capability};
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::control::{CONTROL_WORDS, Control, Grant, Modes, Name};
use netvm_abi::descriptor::{Command, CommandFlags, DESCRIPTOR_WORDS, HEAD_WORDS, Opcode};
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::frame::{self, Endpoint};
use netvm_abi::ioctl;
use netvm_abi::page_lock::{self, Clear, PageUse, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable, SLOT_WORDS};
use netvm_abi::port_area::{ErrorRecord, REPLY_WORDS, Reply, reply_at};
use netvm_abi::wire::{HEADER_WORDS, Header, Kind, MessageFlags};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use zerocopy::{FromBytes, IntoBytes};

const SECRET: u64 = 0x1122_3344_5566_7788;
const ADDRESS: VirtAddr = VirtAddr(0x7f12_3456_7ff8);

#[test]
fn no_file_is_unused() {
    let used = [
        "bar_header",
        "bounce_record",
        "capability",
        "control",
        "descriptor",
        "error_record",
        "frame",
        "header",
        "host_event",
        "ioctl",
        "nic_event",
        "notification",
        "page_slot",
        "reply",
    ];
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let used: Vec<String> = used.iter().map(|name| format!("{name}.hex")).collect();
    assert_eq!(files, used);
}

#[test]
fn descriptors() {
    let mut golden = Golden::read("descriptor");
    let to_seven = Command {
        node: NodeId(1),
        port: PortId(7),
        capability: CapabilitySlot(9),
        secret: SECRET,
        remote: ADDRESS,
        epoch: Epoch(2),
        ..Command::default()
    };
    let commands = [
        (
            "write_inline",
            Command {
                flags: CommandFlags::INLINE,
                len: ByteLen(8),
                notification: NotificationId(5),
                op: OpId(77),
                ..to_seven
            },
            vec![0x0403_0201, 0x0807_0605],
        ),
        (
            "write_local",
            Command {
                flags: CommandFlags::ORDERED,
                len: ByteLen(4096),
                node: NodeId(0x0102),
                port: PortId(0x0304),
                capability: CapabilitySlot(0x0a0b_0c0d),
                secret: 0xfedc_ba98_7654_3210,
                remote: VirtAddr(0x5555_5555_6000),
                local: VirtAddr(0x7fff_dead_b000),
                notification: NotificationId::FIRST_ONE_SHOT,
                op: OpId(0x0102_0304),
                epoch: Epoch(0xabcd),
                ..Command::default()
            },
            vec![],
        ),
        (
            "read",
            Command {
                opcode: Opcode::Read,
                len: ByteLen(100),
                node: NodeId(3),
                port: PortId(1),
                capability: CapabilitySlot(2),
                secret: 0x8000_0000_0000_0001,
                remote: VirtAddr(0x1000_0020),
                local: VirtAddr(0x2000_0fff),
                op: OpId(78),
                reply: ReplySlot(12),
                epoch: Epoch(1),
                ..Command::default()
            },
            vec![],
        ),
        (
            "flush_remote",
            Command {
                opcode: Opcode::FlushRemote,
                node: NodeId(3),
                op: OpId(79),
                reply: ReplySlot(13),
                epoch: Epoch(1),
                ..Command::default()
            },
            vec![],
        ),
        (
            "compare_swap",
            Command {
                opcode: Opcode::CompareSwap,
                flags: CommandFlags::WIDE,
                len: ByteLen(8),
                op: OpId(80),
                reply: ReplySlot(63),
                operand: 0xaaaa_aaaa_bbbb_bbbb,
                compare: 0xcccc_cccc_dddd_dddd,
                ..to_seven
            },
            vec![],
        ),
    ];
    for (section, command, inline) in commands {
        let expected: [u32; DESCRIPTOR_WORDS] = golden.take_words(section);
        let head = expected[..HEAD_WORDS].try_into().unwrap();
        assert_eq!(command.encode(), head, "{section}");
        assert_eq!(Command::decode(&head), Ok(command), "{section}");

        // Through a queue: what the library posts is what stands in NIC memory and what the NIC copies.
        let block = shared(port::BLOCK_WORDS as usize, 0);
        let block = &block[..];
        assert!(Producer::default().post(block, &head, &inline));
        let entry: [u32; DESCRIPTOR_WORDS] = dump(block, port::COMMANDS.index());
        assert_eq!(entry, expected, "{section}");
        let consumer = Consumer::default();
        assert_eq!(consumer.poll(block), Doorbell::Pending(1));
        assert_eq!(consumer.copy_head(block), head);
        let mut copied = vec![0; inline.len()];
        consumer.copy_inline(block, &mut copied);
        assert_eq!(copied, inline);
    }
    golden.end();
}

/// A header from node 0, port 3, to node 1, port 7.
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

fn write() -> Header {
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
fn nic_events() {
    let mut golden = Golden::read("nic_event");
    let peer = NodeId(4);
    let events = [
        (
            "bounced",
            NicEvent::Bounced {
                bounce: BounceId(0x0001_0203),
                generation: Generation(0xdead_beef),
            },
        ),
        (
            "source_miss",
            NicEvent::SourceMiss {
                staging: StagingId(0x11),
                generation: Generation(6),
                vpn: Vpn::new(PortId(7), 0x7_f123_4567),
                offset: PageOffset(0xff8),
                len: ByteLen(8),
                attempt: 2,
            },
        ),
        (
            "peer_reset",
            NicEvent::PeerReset {
                peer,
                incarnation: Incarnation(0xb1b2_b3b4),
            },
        ),
        (
            "peer_up",
            NicEvent::PeerUp {
                peer: NodeId(0xfff),
                incarnation: Incarnation(0xb1b2_b3b5),
            },
        ),
        (
            "peer_lost",
            NicEvent::PeerLost {
                peer,
                incarnation: Incarnation(0xb1b2_b3b6),
            },
        ),
        (
            "barrier_done",
            NicEvent::BarrierDone {
                token: Token(0xcafe_0001),
            },
        ),
        (
            "port_closed",
            NicEvent::PortClosed {
                port: PortId(63),
                generation: Generation(9),
            },
        ),
        (
            "control_sent",
            NicEvent::ControlSent {
                token: Token(0xcafe_0002),
                status: Status::LinkLost,
            },
        ),
    ];
    for (section, event) in events {
        let expected = golden.take_words(section);
        assert_eq!(event.encode(), expected, "{section}");
        assert_eq!(NicEvent::decode(&expected), Some(event), "{section}");
    }
    golden.end();
}

#[test]
fn host_events() {
    let mut golden = Golden::read("host_event");
    let peer = NodeId(4);
    let answer = |generation, answer| HostEvent::SourceAnswer {
        staging: StagingId(0x11),
        generation: Generation(generation),
        answer,
    };
    let events = [
        (
            "port_open",
            HostEvent::PortOpen {
                port: PortId(63),
                generation: Generation(9),
            },
        ),
        (
            "port_close",
            HostEvent::PortClose {
                port: PortId(62),
                generation: Generation(10),
            },
        ),
        (
            "bounce_ended",
            HostEvent::BounceEnded {
                bounce: BounceId(0x0001_0203),
                generation: Generation(0xdead_beef),
                status: Status::Unmapped,
            },
        ),
        ("source_retry", answer(6, SourceAnswer::Retry)),
        ("source_copied", answer(7, SourceAnswer::Copied)),
        ("source_failed", answer(8, SourceAnswer::Failed(Status::BusError))),
        (
            "send_control",
            HostEvent::SendControl {
                peer,
                slot: 33,
                token: Token(0xcafe_0003),
            },
        ),
        (
            "peer_released",
            HostEvent::PeerReleased {
                peer,
                incarnation: Incarnation(0xb1b2_b3b4),
            },
        ),
        ("peer_connect", HostEvent::PeerConnect { peer: NodeId(5) }),
        (
            "barrier",
            HostEvent::Barrier {
                token: Token(0xcafe_0001),
            },
        ),
    ];
    for (section, event) in events {
        let expected = golden.take_words(section);
        assert_eq!(event.encode(), expected, "{section}");
        assert_eq!(HostEvent::decode(&expected), Some(event), "{section}");
    }
    golden.end();
}

#[test]
fn control_messages() {
    let mut golden = Golden::read("control");
    let modes = Modes::READ | Modes::WRITE | Modes::NOTIFY;
    let token = Token(0xcafe_0004);
    let capability = CapabilitySlot(9);
    let messages = [
        (
            "import",
            Control::Import {
                token,
                port: PortId(7),
                importer: PortId(3),
                modes,
                name: Name::new("matrix/left").unwrap(),
            },
        ),
        (
            "granted",
            Control::Granted {
                token,
                grant: Grant {
                    start: VirtAddr(0x7f12_3456_0000),
                    len: 0x1_2345_6789,
                    capability,
                    secret: SECRET,
                    modes,
                    notify_first: NotificationId(1),
                    notify_last: NotificationId(u32::MAX),
                },
            },
        ),
        (
            "refused",
            Control::Refused {
                token,
                status: Status::NoSuchExport,
            },
        ),
        (
            "release",
            Control::Release {
                capability,
                secret: SECRET,
            },
        ),
        (
            "revoked",
            Control::Revoked {
                capability,
                exporter: NodeId(1),
            },
        ),
    ];
    for (section, message) in messages {
        let expected: [u32; CONTROL_WORDS] = golden.take_words(section);
        assert_eq!(message.encode(), expected, "{section}");
        assert_eq!(Control::decode(&expected), Ok(message), "{section}");
    }
    golden.end();
}

#[test]
fn bounce_records() {
    let mut golden = Golden::read("bounce_record");
    let space = shared(RECORD_WORDS + 1, 0);
    let space = &space[..];
    store_record(space, WordIndex(1), &write());
    assert_eq!(dump::<RECORD_WORDS>(space, 1), golden.take_words("write"));
    assert_eq!(load_record(space, WordIndex(1)), Ok(write()));
    golden.end();
}

#[test]
fn capabilities() {
    let mut golden = Golden::read("capability");
    let capability = Capability {
        port: PortId(7),
        modes: Modes::READ | Modes::WRITE | Modes::NOTIFY,
        segment: SegmentId(0x21),
        holder: NodeId(2),
        holder_port: PortId(3),
        start: VirtAddr(0x7f12_3456_0010),
        end: VirtAddr(0x7f12_3458_0001),
        secret: SECRET,
        notify_first: NotificationId(1),
        notify_last: NotificationId(1023),
        expires: Nanos(0x0102_0304_0506_0708),
    };
    let bar = shared(3 * CAPABILITY_WORDS, 0);
    let bar = &bar[..];
    let at = netvm_abi::capability::capability_at(WordIndex(0), CapabilitySlot(1));
    capability.publish(bar, at);
    assert_eq!(
        dump::<CAPABILITY_WORDS>(bar, at.index()),
        golden.take_words("valid")
    );
    assert_eq!(Capability::load(bar, at), Some(capability));
    Capability::retract(bar, at);
    assert_eq!(
        dump::<CAPABILITY_WORDS>(bar, at.index()),
        golden.take_words("retracted")
    );
    assert_eq!(Capability::load(bar, at), None);
    golden.end();
}

#[test]
fn page_slots() {
    let mut golden = Golden::read("page_slot");
    let table = PageTable::new(WordIndex(0), 1, HashKey::default());
    let bar = shared(
        table.rows() as usize * netvm_abi::page_table::ROW_WORDS as usize,
        0,
    );
    let bar = &bar[..];
    let slot = PageSlot::new(0, 1);
    let at = table.slot_at(slot).index();
    let mut expect = |section: &str| {
        assert_eq!(
            dump::<{ SLOT_WORDS as usize }>(bar, at),
            golden.take_words(section),
            "{section}"
        );
    };
    let entry = PageEntry {
        vpn: Vpn::new(PortId(7), 0x7_f123_4567),
        ppn: Ppn(0x1_2345_6789),
        segment: SegmentId(0x21),
        writable: true,
    };
    page_lock::publish(bar, &table, slot, &entry);
    expect("published");
    let locked = page_lock::lock_page(bar, &table, entry.vpn, true).unwrap();
    assert_eq!(
        (locked.slot, locked.ppn, locked.segment),
        (slot, entry.ppn, entry.segment)
    );
    expect("locked");
    page_lock::unlock_page(bar, &table, slot, Used::Written);
    expect("written");
    let both = PageUse {
        dirty: true,
        referenced: true,
    };
    assert_eq!(page_lock::take_use(bar, &table, slot, Clear::Both), both);
    expect("cleaned");
    assert_eq!(
        page_lock::take_use(bar, &table, slot, Clear::Both),
        PageUse::default()
    );
    let _locked = page_lock::lock_page(bar, &table, entry.vpn, false).unwrap();
    page_lock::unlock_page(bar, &table, slot, Used::Read);
    expect("read");
    page_lock::retract(bar, &table, slot);
    expect("retracted");
    golden.end();
}

#[test]
fn error_records_and_replies() {
    let mut golden = Golden::read("error_record");
    let record = ErrorRecord {
        op: OpId(77),
        status: Status::OutOfRange,
        node: NodeId(1),
        port: PortId(7),
        epoch: Epoch(2),
        address: ADDRESS,
    };
    let expected = golden.take_words("out_of_range");
    assert_eq!(record.encode(), expected);
    assert_eq!(ErrorRecord::decode(expected), record);
    golden.end();

    let mut golden = Golden::read("reply");
    let area = shared(netvm_abi::port_area::AREA_WORDS as usize, 0);
    let area = Part::new(&area[..], WordIndex(0), netvm_abi::port_area::AREA_WORDS);
    let reply = Reply {
        op: OpId(80),
        status: Status::Ok,
        value: 0x0123_4567_89ab_cdef,
    };
    assert_eq!(Reply::load(&area, 18, OpId(80)), None);
    reply.store(&area, 18);
    let mut stored = [0; REPLY_WORDS];
    area.load_slice(reply_at(18), &mut stored);
    assert_eq!(stored, golden.take_words("atomic"));
    assert_eq!(Reply::load(&area, 18, OpId(80)), Some(reply));
    golden.end();
}

#[test]
fn notifications() {
    let mut golden = Golden::read("notification");
    assert_eq!(golden.take_words("event_count"), [NotificationId(5).get()]);
    let [one_shot] = golden.take_words("one_shot");
    assert_eq!(one_shot, 0x1234_5678);
    assert!(NotificationId(one_shot).is_one_shot());
    golden.end();
}

#[test]
fn the_cards_header() {
    let mut golden = Golden::read("bar_header");
    let card = CardHeader {
        geometry: Geometry {
            version: ABI_VERSION,
            page_size: 4096,
            payload: 4096,
            ports: 64,
            nodes: 4,
            window: 64,
            page_rows: 8192,
            capabilities: 1024,
            staging: 64,
            reads: 64,
            notification_queue: 2048,
        },
        node: NodeId(2),
        incarnation: Incarnation(0xa1a2_a3a4),
        key: HashKey([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]),
    };
    let bar = shared(BarMap::new(&card.geometry).host_events.index(), 0);
    let bar = &bar[..];
    card.publish(bar);
    assert_eq!(dump::<16>(bar, 0), golden.take_words("node_2_of_4"));
    assert_eq!(CardHeader::load(bar), Ok(card));
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

#[test]
fn device_calls() {
    /// The argument from its golden bytes, with the call's number checked and every byte accounted for.
    fn check<T: FromBytes + IntoBytes + zerocopy::Immutable>(
        golden: &mut Golden,
        section: &str,
        number: u32,
    ) -> T {
        let bytes = golden.take(section, 4 + size_of::<T>());
        let (head, argument) = bytes.split_at(4);
        assert_eq!(head, number.to_le_bytes(), "{section}");
        let value = T::read_from_bytes(argument).unwrap();
        assert_eq!(value.as_bytes(), argument, "{section}");
        value
    }
    let mut golden = Golden::read("ioctl");
    let golden = &mut golden;
    let query: ioctl::Query = check(golden, "query", ioctl::QUERY);
    assert_eq!((query.version, query.node, query.payload), (ABI_VERSION, 2, 1392));
    assert_eq!((query.pinned_bytes, query.counters), (0x12_3456, 40));
    let register: ioctl::Register = check(golden, "register", ioctl::REGISTER);
    assert_eq!(
        (register.port, register.generation, register.eventfd),
        (3, 9, u32::MAX)
    );
    assert_eq!(register.block_offset, ioctl::mmap_offset(ioctl::MapRegion::Block));
    assert_eq!(register.area_offset, ioctl::mmap_offset(ioctl::MapRegion::Area));
    assert_eq!(
        register.status_offset,
        ioctl::mmap_offset(ioctl::MapRegion::Status)
    );
    let adopt: ioctl::Adopt = check(golden, "adopt", ioctl::ADOPT);
    assert_eq!((adopt.len, adopt.segment), (0x2_0000, 0x21));
    let disown: ioctl::Disown = check(golden, "disown", ioctl::DISOWN);
    assert_eq!(disown.segment, 0x21);
    let export: ioctl::Export = check(golden, "export", ioctl::EXPORT);
    assert_eq!(export.name, *Name::new("matrix/left").unwrap().bytes());
    assert_eq!(
        (export.len, export.allow_count, export.lease),
        (0x1_fff1, 2, 1_000_000_000)
    );
    let unexport: ioctl::Unexport = check(golden, "unexport", ioctl::UNEXPORT);
    assert_eq!(unexport.export, 5);
    let import: ioctl::Import = check(golden, "import", ioctl::IMPORT);
    assert_eq!((import.node, import.port, import.secret), (1, 7, SECRET));
    assert_eq!((import.timeout, import.capability), (5_000_000_000, 9));
    let unimport: ioctl::Unimport = check(golden, "unimport", ioctl::UNIMPORT);
    assert_eq!(
        (unimport.node, unimport.status),
        (1, u32::from(Status::CapabilityRefused.code()))
    );
    let wait: ioctl::Wait = check(golden, "wait", ioctl::WAIT);
    assert_eq!(
        (wait.notifications, wait.errors, wait.timeout),
        (17, 2, 1_000_000)
    );
    let stat: ioctl::Stat = check(golden, "stat", ioctl::STAT);
    assert_eq!((stat.count, stat.scope), (40, 1));
}
