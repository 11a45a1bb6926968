//! Properties of the layouts over random values: what is encoded comes back, whatever comes in never panics, and
//! tables of any size do not overlap.

use netvm_abi::attach::CardHeader;
use netvm_abi::bar::{BarMap, port};
use netvm_abi::bounce::BounceUse;
use netvm_abi::capability::Capability;
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::control::{CONTROL_WORDS, Control, Grant, Modes, Name};
use netvm_abi::descriptor::{
    Command, CommandFlags, DESCRIPTOR_WORDS, HEAD_WORDS, Opcode, QUEUE_ENTRIES, RawCommand,
};
use netvm_abi::event::{EVENT_WORDS, HostEvent, NicEvent};
use netvm_abi::frame::{self, Endpoint};
use netvm_abi::page_table::{HashKey, PageTable};
use netvm_abi::port_area::{ERROR_WORDS, ErrorRecord};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::{
    Body, HEADER_WORDS, Header, Kind, Message, MessageFlags, OwnHeader, Owner, RawBody, RawHeader,
    ReadTicket, Receipt, Received,
};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

fn shared(len: usize, fill: u32) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(fill)).collect()
}

fn head_of(consumer: &Consumer, block: &[AtomicU32]) -> [u32; HEAD_WORDS] {
    let mut head = [0; HEAD_WORDS];
    consumer.copy_head(block, &mut head);
    head
}

/// All that there are.
fn opcodes() -> impl Strategy<Value = Opcode> {
    let known: Vec<_> = (0..=u8::MAX).filter_map(Opcode::from_code).collect();
    proptest::sample::select(known)
}

fn commands() -> impl Strategy<Value = Command> {
    (
        (opcodes(), 0..8_u8, any::<u16>(), any::<[u16; 4]>()),
        (any::<[u32; 3]>(), any::<[u64; 5]>()),
    )
        .prop_map(|((opcode, flags, len, short), (word, long))| Command {
            opcode,
            flags: CommandFlags::from_bits_truncate(flags),
            len: ByteLen(u32::from(len)),
            node: NodeId(short[0]),
            port: PortId(short[1]),
            reply: ReplySlot(short[2]),
            epoch: Epoch(short[3]),
            capability: CapabilitySlot(word[0]),
            notification: NotificationId(word[1]),
            op: OpId(word[2]),
            secret: long[0],
            remote: VirtAddr(long[1]),
            local: VirtAddr(long[2]),
            operand: long[3],
            compare: long[4],
        })
}

fn headers() -> impl Strategy<Value = Header> {
    (
        (
            proptest::sample::select(Kind::ALL),
            0..64_u8,
            any::<u8>(),
            0..=4096_u16,
            any::<[u16; 6]>(),
        ),
        (any::<[u32; 7]>(), any::<[u64; 4]>()),
    )
        .prop_map(|((kind, flags, status, len, short), (word, long))| Header {
            kind,
            flags: MessageFlags::from_bits_truncate(flags),
            len,
            source: NodeId(short[0]),
            destination: NodeId(short[1]),
            source_port: PortId(short[2]),
            destination_port: PortId(short[3]),
            reply: ReplySlot(short[4]),
            epoch: Epoch(short[5]),
            source_incarnation: Incarnation(word[0]),
            destination_incarnation: Incarnation(word[1]),
            seq: Seq(word[2]),
            notification: NotificationId(word[3]),
            capability: CapabilitySlot(word[4]),
            op: OpId(word[5]),
            stamp: Stamp(word[6]),
            address: VirtAddr(long[0]),
            secret: long[1],
            raw: RawBody {
                status,
                operand: long[2],
                compare: long[3],
            },
        })
}

fn geometries() -> impl Strategy<Value = Geometry> {
    (
        (2..=1024_u16, 1..=4096_u16, 6..=10_u32, 0..=14_u32),
        (
            1..=1_u32 << 14,
            4..=64_u16,
            1..=1024_u16,
            64..=512_u32,
            2..=4096_u16,
        ),
    )
        .prop_map(
            |((ports, nodes, window, rows), (capabilities, staging, reads, payload, windows))| Geometry {
                ports,
                nodes,
                window: 1 << window,
                windows,
                page_rows: 1 << rows,
                capabilities,
                staging,
                reads,
                payload: payload * 8,
                ..Geometry::default()
            },
        )
}

/// A word that is likely to be a kind, and words that are likely to be small.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0..32_u32, any::<u32>(), Just(u32::MAX)]
}

/// Words each of which is an access of its own, as over a bus.
#[derive(Clone, Copy)]
struct OneByOne<'a>(&'a [AtomicU32]);

impl SharedWords for OneByOne<'_> {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.0.load_acquire(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.0.store_release(at, value);
    }

    fn full_barrier(&self) {
        self.0.full_barrier();
    }

    fn bus_barrier(&self) {
        self.0.bus_barrier();
    }
}

proptest! {
    /// A short write goes from its entry straight into the header that its command would be carried by, and nothing
    /// else goes this way, whatever an application has written.
    #[test]
    fn a_short_write_is_carried_as_its_command_is(
        command in commands(),
        flags: u8,
        empty: bool,
        writes in 0..4_u8,
        payload: [u32; 2],
        from: (u16, u16),
        owner: (u32, u32),
        taken: u32,
    ) {
        let mut words = command.encode();
        let opcode = if writes == 0 { command.opcode.code() } else { Opcode::Write.code() };
        let len = if empty { 0 } else { words[0] >> 16 };
        words[0] = len << 16 | u32::from(flags) << 8 | u32::from(opcode);
        let block = shared(port::BLOCK_WORDS as usize, 0xEEEE_EEEE);
        let block = &block[..];
        prop_assert!(Producer::starting_at(taken).post(block, &words, &payload));
        let consumer = Consumer::starting_at(taken);
        let from = (NodeId(from.0), PortId(from.1));
        let owner = Owner { generation: Generation(owner.0), start: Incarnation(owner.1) };
        let short = consumer.copy_short_write(block, from, owner);
        let one_by_one = consumer.copy_short_write(OneByOne(block), from, owner);
        prop_assert_eq!(format!("{short:?}"), format!("{one_by_one:?}"));

        let expected = RawCommand::of(&words).ok().filter(|command| {
            let flags = command.flags();
            let short = flags.contains(CommandFlags::INLINE) || command.is_empty();
            command.opcode() == Opcode::Write && short && !flags.contains(CommandFlags::APPEND)
        });
        let Some(command) = expected else {
            prop_assert!(short.is_none());
            return Ok(());
        };
        let short = short.unwrap();
        let flags = MessageFlags::of_command(command.flags());
        for (said, of) in [
            (MessageFlags::ORDERED, CommandFlags::ORDERED),
            (MessageFlags::REGARDLESS, CommandFlags::REGARDLESS),
        ] {
            prop_assert_eq!(flags.contains(said), command.flags().contains(of));
        }
        prop_assert!((MessageFlags::ORDERED | MessageFlags::REGARDLESS).contains(flags));
        let body = Body::Write { owner, refusal: OpId(0) };
        let message = Message::new(body, flags, len as u16, command.notification());
        let carried = OwnHeader::carrying(message, from, &command);
        prop_assert_eq!(short.header.decode(), carried.decode());
        prop_assert_eq!(short.header.words(), carried.words());
        prop_assert_eq!(short.inline, command.flags().contains(CommandFlags::INLINE));
        prop_assert_eq!(short.pair, payload);
    }

    /// The words that a command and its message share are handed on as they are.
    #[test]
    fn a_message_carries_its_command(command in commands(), other in headers()) {
        let message = Message::new(other.body(), other.flags, other.len, other.notification);
        let words = command.encode();
        let raw = RawCommand::of(&words).unwrap();
        prop_assert_eq!(raw.decode(), command);
        let carried = OwnHeader::carrying(message, (other.source, other.source_port), &raw);
        let expected = Header {
            destination: command.node,
            destination_port: command.port,
            source_incarnation: Incarnation(0),
            destination_incarnation: Incarnation(0),
            seq: Seq(0),
            stamp: Stamp(0),
            address: command.remote,
            capability: command.capability,
            op: command.op,
            secret: command.secret,
            reply: command.reply,
            epoch: command.epoch,
            raw: Header::of(other.body(), other.source, command.node).raw,
            ..other
        };
        prop_assert_eq!(carried.decode(), expected);
        prop_assert_eq!(carried.to_bytes(), expected.encode());
        let mut numbered = carried;
        numbered.set_number(other.seq, [other.source_incarnation, other.destination_incarnation]);
        numbered.set_stamp(other.stamp);
        numbered.request_ack();
        let expected = Header {
            flags: other.flags | MessageFlags::ACK_REQUEST,
            seq: other.seq,
            stamp: other.stamp,
            source_incarnation: other.source_incarnation,
            destination_incarnation: other.destination_incarnation,
            ..expected
        };
        prop_assert_eq!(numbered.decode(), expected);
        prop_assert_eq!(numbered.to_bytes(), expected.encode());
    }

    /// An answer is what its request says, turned round.
    #[test]
    fn an_answer_turns_its_request_round(request in headers(), answer in headers()) {
        let (lives, body) = ([answer.source_incarnation, answer.destination_incarnation], answer.body());
        let mut expected = Header::of(body, request.destination, request.source);
        expected.source_port = request.destination_port;
        expected.destination_port = request.source_port;
        [expected.source_incarnation, expected.destination_incarnation] = lives;
        expected.seq = request.seq;
        expected.epoch = request.epoch;
        expected.len = answer.len;
        if !matches!(body, Body::AtomicReply { .. }) {
            expected.op = request.op;
        }
        prop_assume!(!matches!(body, Body::AtomicRequest { .. }));
        let answering = OwnHeader::answering(&OwnHeader::new(&request), lives, body, answer.len);
        prop_assert_eq!(answering.decode(), expected);
        prop_assert_eq!(answering.to_bytes(), expected.encode());
    }

    #[test]
    fn commands_come_back(command in commands()) {
        prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
    }

    #[test]
    fn any_descriptor_is_refused_or_means_what_it_says(words in any::<[u32; HEAD_WORDS]>(), opcode in 0..32_u32, flags in 0..8_u32) {
        let _ = Command::decode(&words);
        let mut likely = words;
        likely[0] = (likely[0] & !0xFFFF) | opcode | (flags << 8);
        if let Ok(command) = Command::decode(&likely) {
            prop_assert_eq!(command.encode(), likely);
        }
    }

    #[test]
    fn headers_come_back(header in headers()) {
        prop_assert_eq!(Header::decode_words(&header.encode_words()), Ok(header));
        let mut bytes = header.encode().to_vec();
        bytes.resize(bytes.len() + usize::from(header.len), 0);
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
        if header.len > 0 {
            bytes.pop();
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    #[test]
    fn bodies_come_back(header in headers(), small: bool) {
        let mut header = header;
        if small {
            header.raw.compare &= 0xFFFF_FFFF;
        }
        let body = header.body();
        let said = Header::of(body, header.source, header.destination);
        prop_assert_eq!((said.kind, said.body()), (header.kind, body));
        let words = said.encode_words();
        prop_assert_eq!(Header::decode_words(&words).unwrap().body(), body);
        prop_assert_eq!(RawHeader::of(&words).unwrap().body(), body);
        // Saying it over another message leaves nothing of that.
        let mut again = header;
        again.set_body(Body::Write {
            owner: Owner { generation: Generation(u32::MAX), start: Incarnation(u32::MAX) },
            refusal: OpId(u32::MAX),
        });
        again.set_body(body);
        prop_assert_eq!(again.raw, said.raw);
    }

    /// An acknowledgement says what its receipt says, its sequence number and its stamp, and nothing else.
    #[test]
    fn receipts_come_back(header in headers(), word in any::<[u32; 7]>(), beyond in any::<[u64; 2]>(), ended: u16) {
        let receipt = Receipt {
            requests: Received { next: Seq(word[0]), from: Seq(word[5]), beyond: beyond[0] },
            ended,
            answers: Received { next: Seq(word[1]), from: Seq(word[6]), beyond: beyond[1] },
            echo: Stamp(word[2]),
            held: word[3],
            repeats: word[4],
        };
        let mut ack = Header::of(Body::Ack, header.source, header.destination);
        (ack.seq, ack.stamp) = (header.seq, header.stamp);
        ack.set_receipt(&receipt);
        let words = ack.encode_words();
        let raw = RawHeader::of(&words).unwrap();
        prop_assert_eq!((raw.receipt(), raw.seq(), raw.stamp()), (receipt, header.seq, header.stamp));
        prop_assert_eq!(raw.answer_number(), None);
        // Another one in the same header leaves nothing of it.
        ack.set_receipt(&Receipt::default());
        prop_assert_eq!(RawHeader::of(&ack.encode_words()).unwrap().receipt(), Receipt::default());
    }

    /// A number changes nothing else of an answer.
    #[test]
    fn an_answer_keeps_what_it_says_when_it_is_numbered(header in headers(), number: u32) {
        prop_assume!(!header.kind.is_windowed() && header.kind != Kind::Ack);
        let mut answer = OwnHeader::new(&header);
        answer.number_answer(Seq(number));
        prop_assert_eq!(answer.answer_number(), Some(Seq(number)));
        let expected = Header {
            flags: header.flags | MessageFlags::NUMBERED,
            capability: CapabilitySlot(number),
            ..header
        };
        prop_assert_eq!(answer.decode(), expected);
        prop_assert_eq!(answer.to_bytes(), expected.encode());
        prop_assert_eq!(answer.body(), header.body());
    }

    #[test]
    fn a_ticket_can_come_last(header in headers(), slot: u16, generation: u32) {
        let ticket = ReadTicket { slot: ReadSlot(slot), generation: Generation(generation) };
        let mut late = OwnHeader::new(&header);
        late.set_ticket(ticket);
        let with = match header.body() {
            Body::ReadRequest { len, .. } => Body::ReadRequest { ticket, len },
            Body::Flush { owner, .. } => Body::Flush { ticket, owner },
            Body::AtomicRequest { opcode, operand, compare, .. } => Body::AtomicRequest { ticket, opcode, operand, compare },
            // No request: it has none.
            body => body,
        };
        prop_assert_eq!(late.body(), with);
    }

    #[test]
    fn any_words_are_a_header_or_none(words in any::<[u32; HEADER_WORDS]>(), kind in 0..32_u32, flags in 0..64_u32) {
        let _ = Header::decode_words(&words);
        let mut likely = words;
        likely[0] = u32::from(wire::MAGIC) | (u32::from(wire::WIRE_VERSION) << 16) | (kind << 24);
        likely[1] = (likely[1] & !0xFF) | flags;
        if let Ok(header) = Header::decode_words(&likely) {
            prop_assert_eq!(header.encode_words(), likely);
        }
    }

    #[test]
    fn any_events_decode_without_panic(words in vec(word(), EVENT_WORDS)) {
        let words: [u32; EVENT_WORDS] = words.try_into().unwrap();
        if let Some(event) = NicEvent::decode(&words) {
            prop_assert_eq!(NicEvent::decode(&event.encode()), Some(event));
        }
        if let Some(event) = HostEvent::decode(&words) {
            prop_assert_eq!(HostEvent::decode(&event.encode()), Some(event));
        }
        let record = ErrorRecord::decode(words[..ERROR_WORDS].try_into().unwrap());
        prop_assert_eq!(ErrorRecord::decode(record.encode()), record);
    }

    #[test]
    fn any_control_words_decode_without_panic(words in vec(word(), CONTROL_WORDS)) {
        let words: [u32; CONTROL_WORDS] = words.try_into().unwrap();
        if let Ok(message) = Control::decode(&words) {
            prop_assert_eq!(Control::decode(&message.encode()), Ok(message));
            if let Control::Import { name, .. } = message {
                let _ = name.as_str();
            }
        }
    }

    #[test]
    fn grants_come_back(token: u32, long in any::<[u64; 3]>(), word in any::<[u32; 4]>(), modes in 0..32_u16) {
        let message = Control::Granted {
            token: Token(token),
            grant: Grant {
                start: VirtAddr(long[0]),
                len: long[1],
                secret: long[2],
                capability: CapabilitySlot(word[0]),
                modes: Modes::from_bits_truncate(modes),
                notify_first: NotificationId(word[1]),
                notify_last: NotificationId(word[2]),
                queue: QueueShape::from_word(word[3] & 0xFFFF_00FF),
            },
        };
        prop_assert_eq!(Control::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn names_are_1_to_64_bytes(text in ".{0,70}") {
        match Name::new(&text) {
            Ok(name) => {
                prop_assert_eq!(name.as_str(), Some(text.as_str()));
                prop_assert!((1..=64).contains(&text.len()) && !text.contains('\0'));
            }
            Err(status) => {
                prop_assert_eq!(status, Status::Malformed);
                prop_assert!(text.is_empty() || text.len() > 64 || text.contains('\0'));
            }
        }
    }

    #[test]
    fn frames_come_back_and_damage_is_found(header in headers(), mac: [u8; 12], ip: [u8; 8], ports: [u16; 2], damage in vec((0..4218_usize, 1..=255_u8), 1..4)) {
        let (from_mac, to_mac) = (mac[..6].try_into().unwrap(), mac[6..].try_into().unwrap());
        let (from_ip, to_ip) = (ip[..4].try_into().unwrap(), ip[4..].try_into().unwrap());
        let from = Endpoint { mac: from_mac, ip: from_ip, port: ports[0] };
        let to = Endpoint { mac: to_mac, ip: to_ip, port: ports[1] };
        let payload: Vec<u8> = (0..header.len).map(|at| (at * 7) as u8).collect();
        let mut bytes = vec![0; frame::MAX_FRAME_BYTES];
        let len = frame::encode(&from, &to, &header, &payload, &mut bytes).unwrap();
        bytes.truncate(len);
        let decoded = frame::decode(&bytes).unwrap();
        prop_assert_eq!((decoded.from, decoded.to, decoded.header, decoded.payload), (from, to, header, &payload[..]));
        for (at, change) in damage {
            let at = at % bytes.len();
            bytes[at] ^= change;
        }
        let _ = frame::decode(&bytes);
        for cut in [0, 13, 14, 33, 34, 41, 42, 121, 122] {
            let _ = frame::decode(&bytes[..cut.min(bytes.len())]);
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_none(bytes in vec(any::<u8>(), 0..200)) {
        let _ = frame::decode(&bytes);
        let _ = Header::decode(&bytes);
    }

    #[test]
    fn any_card_is_attached_or_refused(words in vec(word(), 64), magic: bool) {
        let bar = shared(64, 0);
        for (to, from) in bar.iter().zip(&words) {
            to.store(*from, Ordering::Relaxed);
        }
        if magic {
            bar[0].store(bar::header::MAGIC_VALUE, Ordering::Relaxed);
        }
        if let Ok(card) = CardHeader::load(&bar[..]) {
            prop_assert!(card.geometry.validate().is_ok());
        }
    }

    #[test]
    fn cards_come_back(geometry in geometries(), incarnation: u32, key: [u64; 2]) {
        let card = CardHeader {
            geometry,
            node: NodeId(geometry.nodes - 1),
            incarnation: Incarnation(incarnation),
            key: HashKey(key),
        };
        let bar = shared(64, 0);
        card.publish(&bar[..]);
        prop_assert_eq!(CardHeader::load(&bar[..]), Ok(card));
    }

    #[test]
    fn parts_of_the_maps_follow_one_another(geometry in geometries()) {
        prop_assert_eq!(geometry.validate(), Ok(()));
        let bar = BarMap::new(&geometry);
        let last = PortId(geometry.ports - 1);
        let ring = RingPlace::host_events(&geometry);
        prop_assert!(ring.count.is_power_of_two() && ring.count > geometry.bounce_slots());
        prop_assert!(bar.host_events.0 + ring.count * EVENT_WORDS as u32 <= bar.ports.0);
        prop_assert!(bar.port(last).0 + port::BLOCK_WORDS <= bar.capabilities.0);
        let slot = CapabilitySlot(geometry.capabilities);
        prop_assert!(capability::capability_at(bar.capabilities, slot).0 <= bar.page_table.0);
        prop_assert!(bar.page_table.0 + geometry.page_rows * page_table::ROW_WORDS <= bar.words);

        let map = SharedMap::new(&geometry);
        prop_assert!(shared_map::status_page::peer(NodeId(geometry.nodes)).0 <= map.nic_events.0);
        prop_assert!(map.nic_events.0 + geometry.ring_entries() * EVENT_WORDS as u32 <= map.control.0);
        prop_assert!(map.control_slot(control::CONTROL_SLOTS).0 <= map.bounce_records.0);
        prop_assert!(map.bounce_record(BounceId(geometry.bounce_slots())).0 <= map.port_areas.0);
        prop_assert_eq!(map.port_area(PortId(geometry.ports)).0, map.words);
        for part in [bar.host_events.0, bar.ports.0, bar.capabilities.0, bar.page_table.0, map.nic_events.0, map.port_areas.0] {
            prop_assert!(part.is_multiple_of(bar::PAGE_WORDS), "parts start on a page");
        }
    }

    #[test]
    fn bounce_pages_have_one_use_each(geometry in geometries(), id: u32) {
        let id = BounceId(id % (geometry.bounce_slots() + 2));
        match BounceUse::from_id(&geometry, id) {
            Some(what) => prop_assert_eq!(what.id(&geometry), id),
            None => prop_assert!(id.0 >= geometry.bounce_slots()),
        }
    }

    #[test]
    fn rows_are_in_the_table(key: [u64; 2], rows in 0..20_u32, vpn: u64) {
        let table = PageTable::new(WordIndex(0), 1 << rows, HashKey(key));
        prop_assert!(table.row_of(Vpn::from_raw(vpn)) < table.rows());
    }

    #[test]
    fn a_capability_is_whole_or_not_there(words in vec(any::<u32>(), 16)) {
        let bar = shared(16, 0);
        for (to, from) in bar.iter().zip(&words) {
            to.store(*from, Ordering::Relaxed);
        }
        let loaded = Capability::load(&bar[..], WordIndex(0));
        prop_assert_eq!(loaded.is_some(), words[0] == 1);
        if let Some(capability) = loaded {
            capability.publish(&bar[..], WordIndex(0));
            prop_assert_eq!(Capability::load(&bar[..], WordIndex(0)), Some(capability));
        }
    }

    /// The command queue against a list, counters wrapping, shadow counter late.
    #[test]
    fn the_command_queue_is_a_queue(start: u32, steps in vec(0..3_u8, 1..300)) {
        let block = shared(port::BLOCK_WORDS as usize, 0);
        let block = &block[..];
        let mut producer = Producer::starting_at(start);
        let mut consumer = Consumer::starting_at(start);
        block[0].store(start, Ordering::Relaxed);
        let mut list = VecDeque::new();
        let mut next = 0_u32;
        for step in steps {
            match step {
                0 => {
                    let head = core::array::from_fn(|at| next.wrapping_mul(31).wrapping_add(at as u32));
                    let inline = vec![next; (next % 33) as usize];
                    let fits = producer.free() > 0;
                    prop_assert_eq!(producer.post(block, &head, &inline), fits);
                    if fits {
                        list.push_back((head, inline));
                        next += 1;
                    }
                }
                1 => match consumer.poll(block) {
                    Doorbell::Empty => prop_assert!(list.is_empty()),
                    Doorbell::Pending(count) => {
                        prop_assert_eq!(count as usize, list.len());
                        let (head, inline) = list.pop_front().unwrap();
                        prop_assert_eq!(head_of(&consumer, block), head);
                        let mut copied = vec![0; inline.len()];
                        consumer.copy_inline(block, &mut copied);
                        prop_assert_eq!(copied, inline);
                        consumer.take();
                    }
                    Doorbell::Broken => prop_assert!(false, "it was not broken"),
                },
                _ => producer.update_taken(consumer.taken()),
            }
        }
        // What no consumer can have said changes nothing.
        let free = producer.free();
        producer.update_taken(producer.posted().wrapping_add(1));
        producer.update_taken(producer.posted().wrapping_sub(QUEUE_ENTRIES + 1));
        prop_assert_eq!(producer.free(), free);
    }

    /// Whatever the application writes into its block, the consumer stays inside of it.
    #[test]
    fn a_hostile_doorbell_is_empty_pending_or_broken(doorbell: u32, taken: u32) {
        let block = shared(port::BLOCK_WORDS as usize, 0xEEEE_EEEE);
        let block = &block[..];
        block[0].store(doorbell, Ordering::Relaxed);
        let consumer = Consumer::starting_at(taken);
        match consumer.poll(block) {
            Doorbell::Pending(count) => prop_assert!((1..=QUEUE_ENTRIES).contains(&count)),
            Doorbell::Empty => prop_assert_eq!(doorbell, taken),
            Doorbell::Broken => prop_assert!(doorbell.wrapping_sub(taken) > QUEUE_ENTRIES),
        }
        prop_assert_eq!(head_of(&consumer, block), [0xEEEE_EEEE; HEAD_WORDS]);
        let mut inline = [0; DESCRIPTOR_WORDS];
        consumer.copy_inline(block, &mut inline);
        prop_assert_eq!(inline[DESCRIPTOR_WORDS - HEAD_WORDS], 0, "not past the entry");
    }

    /// An event ring against a list.
    #[test]
    fn the_event_ring_is_a_queue(steps in vec(any::<bool>(), 1..200), order in 0..4_u32) {
        let place = RingPlace { entries: WordIndex(8), count: 1 << order, tail: WordIndex(0), head: WordIndex(1) };
        let space = shared(8 + (EVENT_WORDS << order), 0);
        let space = &space[..];
        let (mut writer, mut reader) = (RingWriter::new(place), RingReader::new(place));
        let mut list = VecDeque::new();
        for (number, push) in steps.into_iter().enumerate() {
            prop_assert_eq!(reader.is_empty(space), list.is_empty());
            if push {
                let event = [number as u32; EVENT_WORDS];
                let fits = list.len() < place.count as usize;
                prop_assert_eq!(writer.push(space, space, &event), fits);
                if fits {
                    list.push_back(event);
                }
            } else {
                prop_assert_eq!(reader.pop(space, space), list.pop_front());
            }
        }
        // A card that is gone reads as all ones: no event, no panic.
        for word in space {
            word.store(u32::MAX, Ordering::Relaxed);
        }
        prop_assert_eq!(reader.pop(space, space), None);
    }
}
