//! `docs/ABI.md` says what the code does: every table of numbers in it is read and compared.

use netvm_abi::bar::{header, port};
use netvm_abi::capability::{CAPABILITY_WORDS, Capability};
use netvm_abi::control::{CONTROL_WORDS, Control, Modes};
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{EVENT_WORDS, HostEvent, NicEvent};
use netvm_abi::lease::{LEASE_WORDS, Lease, Terms};
use netvm_abi::page_table::{PLACES, ROW_SLOTS, SLOT_WORDS, host_word, nic_word};
use netvm_abi::port_area::{self, ErrorRecord, REPLY_WORDS, Reply, reply_at};
use netvm_abi::shared_map::status_page;
use netvm_abi::shared_queue::{Record, record_at};
use netvm_abi::value::{ValueOp, ValueType};
use netvm_abi::wire::{Body, Header, Kind, MAGIC, MessageFlags, Receipt, WIRE_VERSION};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::AtomicU32;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ABI.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the first table under a heading, without its two lines of head; code marks are taken away.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = page();
    let mut lines = page
        .lines()
        .skip_while(|line| line.trim_start_matches(['#', ' ']) != heading || !line.starts_with('#'));
    assert!(lines.next().is_some(), "no heading '{heading}'");
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| !line.starts_with('#'))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().replace('`', "")).collect()
        })
        .collect();
    assert!(!rows.is_empty(), "'{heading}' has no table");
    rows
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("'{text}' is no number"))
}

/// Two columns of a table, as number and name, are exactly these.
fn numbers_and_names(heading: &str, (of_number, of_name): (usize, usize), expected: &[(u64, String)]) {
    let said: Vec<(u64, String)> = table(heading)
        .iter()
        .map(|row| (number(&row[of_number]), row[of_name].clone()))
        .collect();
    assert_eq!(said, expected, "{heading}");
}

macro_rules! words {
    ($($module:ident :: { $($name:ident),* $(,)? })*) => {
        [$($((u64::from($module::$name.0), stringify!($name).to_owned()),)*)*]
    };
}

macro_rules! values {
    ($($value:expr => $name:literal),* $(,)?) => { [$(($value as u64, $name.to_owned()),)*] };
}

#[test]
fn sizes() {
    let expected = values![
        ABI_VERSION => "ABI_VERSION",
        WIRE_VERSION => "WIRE_VERSION",
        PAGE_SIZE => "PAGE_SIZE",
        bar::PAGE_WORDS => "PAGE_WORDS",
        descriptor::DESCRIPTOR_WORDS => "DESCRIPTOR_WORDS",
        descriptor::HEAD_WORDS => "HEAD_WORDS",
        descriptor::INLINE_BYTES => "INLINE_BYTES",
        descriptor::QUEUE_ENTRIES => "QUEUE_ENTRIES",
        port::BLOCK_WORDS => "BLOCK_WORDS",
        port_area::AREA_WORDS => "AREA_WORDS",
        wire::HEADER_WORDS => "HEADER_WORDS",
        EVENT_WORDS => "EVENT_WORDS",
        CONTROL_WORDS => "CONTROL_WORDS",
        control::CONTROL_SLOTS => "CONTROL_SLOTS",
        control::NAME_BYTES => "NAME_BYTES",
        bounce::RECORD_WORDS => "RECORD_WORDS",
        CAPABILITY_WORDS => "CAPABILITY_WORDS",
        LEASE_WORDS => "LEASE_WORDS",
        SLOT_WORDS => "SLOT_WORDS",
        ROW_SLOTS => "ROW_SLOTS",
        PLACES => "PLACES",
        port_area::ERROR_WORDS => "ERROR_WORDS",
        port_area::ERROR_RECORDS => "ERROR_RECORDS",
        REPLY_WORDS => "REPLY_WORDS",
        port_area::REPLY_SLOTS => "REPLY_SLOTS",
        notification::EVENT_COUNTS => "EVENT_COUNTS",
        port_area::SHADOW_STEP => "SHADOW_STEP",
        port_area::RECORDS_OF_QUEUE => "RECORDS_OF_QUEUE",
        wire::ANSWERS_PER_SLOT => "ANSWERS_PER_SLOT",
        wire::DEFAULT_UDP_PORT => "DEFAULT_UDP_PORT",
        frame::MIN_PAYLOAD => "MIN_PAYLOAD",
    ];
    numbers_and_names("1. Conventions", (1, 0), &expected);
}

#[test]
fn maps() {
    numbers_and_names(
        "Header",
        (0, 1),
        &words! { header::{
            MAGIC, VERSION, PAGE_SIZE, PAYLOAD, PORTS_NODES, WINDOW_STAGING, PAGE_ROWS, CAPABILITIES, READS_WINDOWS,
            NOTIFICATION_QUEUE, INCARNATION, HASH_KEY, HOST_EVENT_TAIL, NIC_EVENT_HEAD, DRIVER_MEMORY,
            BOUNCE_PAGES, DRIVER_READY,
        } },
    );
    numbers_and_names(
        "Port block",
        (0, 1),
        &words! { port::{
            DOORBELL, WRITE_FENCE, READ_FENCE, NOTIFICATION_READ, ERROR_READ, TAKEN_FENCE, WAKE_ON_QUEUE,
            QUEUE_FREED, INTERRUPT_ENABLE, ACKNOWLEDGED, SIGNALLED, COMMANDS,
        } },
    );
    numbers_and_names(
        "Status pages",
        (0, 1),
        &words! { status_page::{ SLEEPING, HEARTBEAT, HOST_EVENT_HEAD, NIC_EVENT_TAIL, PEERS } },
    );
    numbers_and_names(
        "Port area",
        (0, 1),
        &words! { port_area::{
            TAKEN, WRITES_DONE, READS_DONE, NOTIFICATION_WRITE, ERROR_WRITE, ERRORS_LOST, PORT_STATE, PORT_GENERATION,
            PORT_EVENTS, ERRORS, REPLIES, SHADOW_SIGNALS, NOTIFICATIONS, QUEUE_RECORDS,
        } },
    );
}

type SetField = fn(&mut Geometry, u64);

#[test]
fn geometry_limits() {
    let fields: [(&str, SetField); 11] = [
        ("page_size", |g, v| g.page_size = v as u32),
        ("payload", |g, v| g.payload = v as u32),
        ("ports", |g, v| g.ports = v as u16),
        ("nodes", |g, v| g.nodes = v as u16),
        ("window", |g, v| g.window = v as u16),
        ("windows", |g, v| g.windows = v as u16),
        ("page_rows", |g, v| g.page_rows = v as u32),
        ("capabilities", |g, v| g.capabilities = v as u32),
        ("staging", |g, v| g.staging = v as u16),
        ("reads", |g, v| g.reads = v as u16),
        ("notification_queue", |g, v| g.notification_queue = v as u32),
    ];
    let rows = table("2. Geometry and version");
    assert_eq!(rows.len(), fields.len());
    for (row, (name, set)) in rows.iter().zip(fields) {
        assert_eq!(row[0], name);
        let valid = |value| {
            let mut geometry = Geometry::default();
            set(&mut geometry, value);
            geometry.validate().is_ok()
        };
        let (least, most) = (number(&row[1]), number(&row[2]));
        // The next values that have the right form.
        let (below, above) = if row[3].contains("power of two") {
            (least / 2, most * 2)
        } else if row[3].contains("multiple of 8") {
            (least - 8, most + 8)
        } else {
            (least - 1, most + 1)
        };
        assert!(valid(least) && valid(most), "{name}");
        assert!(!valid(below) && !valid(above), "{name}");
    }
}

/// A row of a table of fields: first bit of the layout, one past the last, and what the field is called.
fn field(row: &[String]) -> (usize, usize, &str) {
    let word = number(&row[0]) as usize * 32;
    let (from, to) = row[1].split_once("..").expect("bits like 0..8");
    (
        word + number(from) as usize,
        word + number(to) as usize,
        &row[row.len() - 1],
    )
}

/// The bits in which two encodings differ.
fn differing(left: &[u32], right: &[u32]) -> Vec<usize> {
    (0..left.len() * 32)
        .filter(|bit| (left[bit / 32] ^ right[bit / 32]) >> (bit % 32) & 1 == 1)
        .collect()
}

/// Each row of a table of fields names the bits that change when that field, and nothing else, does. `fields` gives,
/// in the table's order, the layout with that field's bits inverted, and whether all of them could be.
fn fields(heading: &str, base: &[u32], fields: &[(Vec<u32>, bool)]) {
    let rows = table(heading);
    assert_eq!(rows.len(), fields.len(), "{heading}: rows");
    let mut last = 0;
    for (row, (changed, whole)) in rows.iter().zip(fields) {
        let (from, to, name) = field(row);
        assert!(from >= last, "{heading}: {name} overlaps the row before");
        last = to;
        let bits = differing(base, changed);
        assert!(
            bits.iter().all(|bit| (from..to).contains(bit)),
            "{heading}: '{name}' is in bits {bits:?}, not {from}..{to}"
        );
        assert!(!bits.is_empty(), "{heading}: '{name}' is nowhere");
        assert!(
            !whole || bits.len() == to - from,
            "{heading}: '{name}' has {} bits",
            bits.len()
        );
    }
}

#[test]
fn descriptor_fields() {
    let base = Command {
        reply: ReplySlot(0),
        ..Command::default()
    };
    type Set = fn(&mut Command);
    let set: [(Set, bool); 15] = [
        (|c| c.opcode = Opcode::CompareSwap, false),
        (|c| c.flags = CommandFlags::all(), false),
        (|c| c.len = ByteLen(0xFFFF), true),
        (|c| c.node = NodeId(u16::MAX), true),
        (|c| c.port = PortId(u16::MAX), true),
        (|c| c.capability = CapabilitySlot(u32::MAX), true),
        (|c| c.notification = NotificationId(u32::MAX), true),
        (|c| c.secret = u64::MAX, true),
        (|c| c.remote = VirtAddr(u64::MAX), true),
        (|c| c.local = VirtAddr(u64::MAX), true),
        (|c| c.op = OpId(u32::MAX), true),
        (|c| c.reply = ReplySlot::NONE, true),
        (|c| c.epoch = Epoch(u16::MAX), true),
        (|c| c.operand = u64::MAX, true),
        (|c| c.compare = u64::MAX, true),
    ];
    let changed: Vec<_> = set
        .iter()
        .map(|(set, whole)| {
            let mut command = base;
            set(&mut command);
            (command.encode().to_vec(), *whole)
        })
        .collect();
    fields("Descriptor", &base.encode(), &changed);
}

#[test]
fn message_header_fields() {
    let base = Header {
        reply: ReplySlot(0),
        ..Header::new(Kind::Write, NodeId(0), NodeId(0))
    };
    type Set = fn(&mut Header);
    let set: [(Set, bool); 21] = [
        (|h| h.kind = Kind::Bye, false),
        (|h| h.flags = MessageFlags::all(), false),
        (|h| h.raw.status = u8::MAX, true),
        (|h| h.len = u16::MAX, true),
        (|h| h.source = NodeId(u16::MAX), true),
        (|h| h.destination = NodeId(u16::MAX), true),
        (|h| h.source_port = PortId(u16::MAX), true),
        (|h| h.destination_port = PortId(u16::MAX), true),
        (|h| h.source_incarnation = Incarnation(u32::MAX), true),
        (|h| h.destination_incarnation = Incarnation(u32::MAX), true),
        (|h| h.seq = Seq(u32::MAX), true),
        (|h| h.notification = NotificationId(u32::MAX), true),
        (|h| h.address = VirtAddr(u64::MAX), true),
        (|h| h.capability = CapabilitySlot(u32::MAX), true),
        (|h| h.op = OpId(u32::MAX), true),
        (|h| h.secret = u64::MAX, true),
        (|h| h.reply = ReplySlot::NONE, true),
        (|h| h.epoch = Epoch(u16::MAX), true),
        (|h| h.stamp = Stamp(u32::MAX), true),
        (|h| h.raw.operand = u64::MAX, true),
        (|h| h.raw.compare = u64::MAX, true),
    ];
    let words = base.encode_words();
    // The first two fields are constants: without them they are what is missing.
    let mut no_magic = words;
    no_magic[0] ^= u32::from(MAGIC);
    let mut no_version = words;
    no_version[0] ^= u32::from(WIRE_VERSION) << 16;
    let mut changed = vec![(no_magic.to_vec(), false), (no_version.to_vec(), false)];
    changed.extend(set.iter().map(|(set, whole)| {
        let mut header = base;
        set(&mut header);
        (header.encode_words().to_vec(), *whole)
    }));
    fields("Message header", &words, &changed);
}

#[test]
fn acknowledgement_fields() {
    let base = Header {
        reply: ReplySlot(0),
        ..Header::of(Body::Ack, NodeId(0), NodeId(0))
    };
    let said = |set: fn(&mut Seq, &mut Receipt)| {
        let (mut ack, mut receipt) = (base, Receipt::default());
        set(&mut ack.seq, &mut receipt);
        ack.set_receipt(&receipt);
        (ack.encode_words().to_vec(), true)
    };
    let changed = [
        said(|seq, _| *seq = Seq(u32::MAX)),
        said(|_, r| r.requests.next = Seq(u32::MAX)),
        said(|_, r| r.requests.beyond = u64::MAX),
        said(|_, r| r.answers.next = Seq(u32::MAX)),
        said(|_, r| r.echo = Stamp(u32::MAX)),
        said(|_, r| r.held = u32::MAX),
        said(|_, r| r.repeats = u32::MAX),
        said(|_, r| r.ended = u16::MAX),
        said(|_, r| r.answers.beyond = u64::MAX),
        said(|_, r| r.requests.from = Seq(u32::MAX)),
        said(|_, r| r.answers.from = Seq(u32::MAX)),
    ];
    fields("What an Ack says", &base.encode_words(), &changed);
}

fn zeroes(len: usize) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

fn published(capability: &Capability) -> Vec<u32> {
    let bar = zeroes(CAPABILITY_WORDS);
    capability.publish(&bar[..], WordIndex(0));
    bar.iter()
        .map(|word| word.load(std::sync::atomic::Ordering::Relaxed))
        .collect()
}

#[test]
fn capability_fields() {
    let base = Capability {
        expires: Nanos(0),
        ..Capability::NOTHING
    };
    type Set = fn(&mut Capability);
    let set: [(Set, bool); 13] = [
        (|c| c.port = PortId(u16::MAX), true),
        (|c| c.modes = Modes::all(), false),
        (|c| c.segment = SegmentId(u32::MAX), true),
        (|c| c.holder = NodeId(u16::MAX), true),
        (|c| c.holder_port = PortId(u16::MAX), true),
        (|c| c.start = VirtAddr(u64::MAX), true),
        (|c| c.end = VirtAddr(u64::MAX), true),
        (|c| c.secret = u64::MAX, true),
        (|c| c.notify_first = NotificationId(u32::MAX), true),
        (|c| c.notify_last = NotificationId(u32::MAX), true),
        (|c| c.expires = Nanos::MAX, true),
        (|c| c.queue.entry = u8::MAX, true),
        (|c| c.queue.number = u16::MAX, true),
    ];
    let words = published(&base);
    let mut retracted = words.clone();
    retracted[0] = 0;
    let mut changed = vec![(retracted, false)];
    changed.extend(set.iter().map(|(set, whole)| {
        let mut capability = base;
        set(&mut capability);
        (published(&capability), *whole)
    }));
    fields("Capability", &words, &changed);
}

#[test]
fn lease_fields() {
    const AT: WordIndex = WordIndex(CAPABILITY_WORDS as u32);
    let row = |terms: Option<Terms>, begins: Option<Nanos>| {
        let bar = zeroes(CAPABILITY_WORDS + LEASE_WORDS);
        let bar = &bar[..];
        if let Some(terms) = terms {
            terms.publish(bar, AT);
        }
        if let Some(now) = begins {
            let lease = Lease::of(bar, (WordIndex(0), AT), CapabilitySlot(0));
            Capability::NOTHING.publish(bar, WordIndex(0));
            assert!(lease.begin(now));
        }
        let mut words = vec![0; LEASE_WORDS];
        bar.load_slice(AT, &mut words);
        words
    };
    let terms = |generation, duration, longest| Terms {
        generation: Generation(generation),
        duration: Nanos(duration),
        longest: Nanos(longest),
    };
    // What the card stores, beside what the driver has stored.
    let begun = |generation, longest, now| -> Vec<u32> {
        let before = row(Some(terms(generation, 0, longest)), None);
        let after = row(Some(terms(generation, 0, longest)), Some(now));
        before
            .iter()
            .zip(after)
            .map(|(before, after)| before ^ after)
            .collect()
    };
    let changed = [
        (row(Some(terms(u32::MAX, 0, 0)), None), true),
        (begun(u32::MAX, 0, Nanos(0)), true),
        (row(Some(terms(0, u64::MAX, 0)), None), true),
        (row(Some(terms(0, 0, u64::MAX)), None), true),
        (
            begun(1, 0, Nanos::MAX)
                .iter()
                .enumerate()
                .map(|(at, word)| if at == 1 { 0 } else { *word })
                .collect(),
            true,
        ),
    ];
    fields("Lease", &[0; LEASE_WORDS], &changed);
}

#[test]
fn page_slot_fields() {
    let one = |word: usize, bits: u32| {
        let mut slot = vec![0; SLOT_WORDS as usize];
        slot[word] = bits;
        (slot, true)
    };
    let two = |word: usize| {
        let mut slot = vec![0; SLOT_WORDS as usize];
        slot[word..word + 2].fill(u32::MAX);
        (slot, true)
    };
    let changed = [
        one(0, host_word::VALID),
        one(0, host_word::WRITABLE),
        one(0, host_word::DIRTY),
        one(0, host_word::REFERENCED),
        one(1, nic_word::LOCKS),
        one(1, nic_word::DIRTY),
        one(1, nic_word::REFERENCED),
        one(1, nic_word::BACKED_OFF),
        two(2),
        two(4),
        one(6, u32::MAX),
    ];
    fields("Page slot", &[0; SLOT_WORDS as usize], &changed);
}

#[test]
fn records_of_a_port_area() {
    let base = ErrorRecord::default();
    type Set = fn(&mut ErrorRecord);
    let set: [(Set, bool); 6] = [
        (|r| r.op = OpId(u32::MAX), true),
        (|r| r.status = Status::Revoked, false),
        (|r| r.epoch = Epoch(u16::MAX), true),
        (|r| r.node = NodeId(u16::MAX), true),
        (|r| r.port = PortId(u16::MAX), true),
        (|r| r.address = VirtAddr(u64::MAX), true),
    ];
    let changed: Vec<_> = set
        .iter()
        .map(|(set, whole)| {
            let mut record = base;
            set(&mut record);
            (record.encode().to_vec(), *whole)
        })
        .collect();
    fields("Error record", &base.encode(), &changed);

    let stored = |op, status, value, second| {
        let area = zeroes(port_area::AREA_WORDS as usize);
        let area = Part::new(&area[..], WordIndex(0), port_area::AREA_WORDS);
        let reply = Reply {
            op: OpId(op),
            status,
            value,
            second,
        };
        reply.store(&area, 0);
        let mut words = vec![0; REPLY_WORDS];
        area.load_slice(reply_at(0), &mut words);
        words
    };
    fields(
        "Reply slot",
        &stored(0, Status::Ok, 0, 0),
        &[
            (stored(u32::MAX, Status::Ok, 0, 0), true),
            (stored(0, Status::Revoked, 0, 0), false),
            (stored(0, Status::Ok, u64::MAX, 0), true),
            (stored(0, Status::Ok, 0, u64::MAX), true),
        ],
    );

    let stored = |place: u32, status, len, node, port| {
        let area = zeroes(port_area::AREA_WORDS as usize);
        let record = Record {
            status,
            len,
            node: NodeId(node),
            port: PortId(port),
        };
        record.store(&area[..], WordIndex(0), place);
        let mut words = vec![0; shared_queue::RECORD_WORDS as usize];
        area[..].load_slice(record_at(place), &mut words);
        words
    };
    let place = 255 * port_area::RECORDS_OF_QUEUE;
    fields(
        "Queue record",
        &stored(place, Status::Ok, 0, 0, 0),
        &[
            (stored(place, Status::Ok, u16::MAX, 0, 0), true),
            (stored(place, Status::Revoked, 0, 0, 0), false),
            (
                stored(place - port_area::RECORDS_OF_QUEUE, Status::Ok, 0, 0, 0),
                true,
            ),
            (stored(place, Status::Ok, 0, u16::MAX, 0), true),
            (stored(place, Status::Ok, 0, 0, u16::MAX), true),
        ],
    );
}

/// The variant's name.
fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let end = text.find([' ', '(', '{']).unwrap_or(text.len());
    text[..end].to_owned()
}

#[test]
fn codes() {
    let opcodes: Vec<_> = (0..value::FIRST)
        .filter_map(|code| Some((u64::from(code), name(&Opcode::from_code(code)?))))
        .collect();
    numbers_and_names("Opcodes", (0, 1), &opcodes);
    for row in table("Opcodes") {
        let opcode = Opcode::from_code(number(&row[0]) as u8).unwrap();
        assert_eq!(opcode.is_write(), row[2] == "write", "{opcode:?}");
    }
    let operations: Vec<_> = ValueOp::ALL.iter().map(|op| (*op as u64, name(op))).collect();
    numbers_and_names("Operations on values", (0, 1), &operations);
    let types: Vec<_> = ValueType::ALL
        .iter()
        .map(|on| (u64::from(value::FIRST) + 32 * u64::from(on.kind()), name(on)))
        .collect();
    numbers_and_names("Types of values", (0, 1), &types);
    for (row, on) in table("Types of values").iter().zip(ValueType::ALL) {
        assert_eq!(on.is_wide(), row[2] == "yes", "{on:?}");
        assert_eq!(u64::from(on.bytes()), number(&row[3]), "{on:?}");
        let lacks: Vec<_> = ValueOp::ALL.iter().filter(|op| !on.has(**op)).map(name).collect();
        assert_eq!(lacks.join(", "), row[4], "{on:?}");
    }
    let statuses: Vec<_> = Status::ALL
        .iter()
        .map(|status| (u64::from(status.code()), name(status)))
        .collect();
    numbers_and_names("Status", (0, 1), &statuses);
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| (*kind as u64, name(kind))).collect();
    numbers_and_names("Kinds", (0, 1), &kinds);
    for (row, kind) in table("Kinds").iter().zip(Kind::ALL) {
        assert_eq!(kind.is_windowed(), row[2] == "yes", "{kind:?}");
    }
}

#[test]
fn flags() {
    fn names<B: bitflags::Flags<Bits: Into<u64>>>() -> Vec<(u64, String)> {
        let bits = |flag: &B| -> u64 { flag.bits().into() };
        B::FLAGS
            .iter()
            .map(|flag| {
                (
                    u64::from(bits(flag.value()).trailing_zeros()),
                    flag.name().to_owned(),
                )
            })
            .collect()
    }
    numbers_and_names("Command flags", (0, 1), &names::<CommandFlags>());
    numbers_and_names("Message flags", (0, 1), &names::<MessageFlags>());
    numbers_and_names("Modes", (0, 1), &names::<Modes>());
}

#[test]
fn events_and_control_messages() {
    fn kinds<const N: usize, T: Debug>(decode: impl Fn(&[u32; N]) -> Option<T>) -> Vec<(u64, String)> {
        (0..1000)
            .filter_map(|kind| {
                let mut words = [0; N];
                words[0] = kind;
                Some((u64::from(kind), name(&decode(&words)?)))
            })
            .collect()
    }
    numbers_and_names(
        "Events from the NIC",
        (0, 1),
        &kinds::<EVENT_WORDS, _>(NicEvent::decode),
    );
    numbers_and_names(
        "Events from the driver",
        (0, 1),
        &kinds::<EVENT_WORDS, _>(HostEvent::decode),
    );
    let control = kinds::<CONTROL_WORDS, _>(|words| Control::decode(words).ok());
    numbers_and_names("Control kinds", (0, 1), &control);
}

#[test]
fn device_calls() {
    let arguments: [&[(&str, usize, usize)]; 13] = [
        ioctl::Query::FIELDS,
        ioctl::Register::FIELDS,
        ioctl::Adopt::FIELDS,
        ioctl::Disown::FIELDS,
        ioctl::Export::FIELDS,
        ioctl::Unexport::FIELDS,
        ioctl::Import::FIELDS,
        ioctl::Unimport::FIELDS,
        ioctl::Wait::FIELDS,
        ioctl::Stat::FIELDS,
        ioctl::Lend::FIELDS,
        ioctl::LeaseLeft::FIELDS,
        ioctl::Recall::FIELDS,
    ];
    let rows = table("Calls");
    let (calls, bare) = rows.split_at(ioctl::ALL.len());
    let bare: Vec<_> = bare
        .iter()
        .map(|row| (number(&row[0]), row[1].as_str()))
        .collect();
    let codes = [("WAKE", ioctl::WAKE), ("NUDGE", ioctl::NUDGE)].map(|(name, code)| (u64::from(code), name));
    assert_eq!(bare, codes);
    assert_eq!(calls.len(), ioctl::ALL.len());
    for ((row, (name, code, bytes)), argument) in calls.iter().zip(ioctl::ALL).zip(arguments) {
        assert_eq!((number(&row[0]), row[1].as_str()), (u64::from(*code), *name));
        assert_eq!(number(&row[2]), *bytes as u64, "{name}");
        let said: Vec<&str> = row[3].split(", ").collect();
        let is: Vec<String> = argument
            .iter()
            .filter(|(field, ..)| !field.starts_with("reserved"))
            .map(|(field, at, _)| format!("{field} {at}"))
            .collect();
        assert_eq!(said, is, "{name}");
    }
}

/// The bytes of the worked example are those of the golden vectors.
#[test]
fn example() {
    let page = page();
    let mut examples = 0;
    for block in page.split("```text ").skip(1) {
        let (title, rest) = block.split_once('\n').unwrap();
        let (file, section) = title.split_once(' ').unwrap();
        let shown = rest.split("```").next().unwrap().trim_end();
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(file);
        let golden = std::fs::read_to_string(path).unwrap();
        let vector = golden
            .split_once(&format!("[{section}]\n"))
            .unwrap_or_else(|| panic!("{file} has no [{section}]"))
            .1;
        let vector = vector.split("\n[").next().unwrap().trim_end();
        assert_eq!(shown, vector, "{file} [{section}]");
        examples += 1;
    }
    assert_eq!(examples, 2);
}
