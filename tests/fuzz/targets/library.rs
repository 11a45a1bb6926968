//! Words that other nodes and the card write for the library, with anything in them: the ends of a channel, a shared queue,
//! the notification queue. The library does not panic and comes to an end; it hands out a message only if
//! the words say that there is one, and then the bytes that lie there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm::{
    ChannelConfig, Error, NodeId, NotificationQueue, Port, PortConfig, PortId, Receiver, ReceiverSet, Sender,
    SharedConfig, SharedReceiver, SharedSender, Timeout,
};
use netvm_abi::control::{Grant, Modes};
use netvm_abi::descriptor::Opcode;
use netvm_abi::port_area::{ERROR_WRITE, NOTIFICATION_WRITE, NOTIFICATIONS, SHADOW_SIGNALS};
use netvm_abi::shared_queue::{QueueShape, Record, record_at};
use netvm_abi::{Nanos, Status, WordIndex};
use netvm_kit::port::Card;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A queue of four messages of up to 64 bytes: where the sender's name is, its farewell, and the entries, in words of 8.
const MESSAGE: u64 = 64;
const CAPACITY: u64 = 4;
const OWNER: usize = 8;
const FAREWELL: usize = 9;
const FIRST_ENTRY: usize = 512;
const ENTRY: usize = 16;
/// A shared queue of eight places of 64 bytes.
const PLACES: u32 = 8;
/// Records of the port's area, and words of the notification queue.
const RECORDS: u32 = 1024;
const QUEUE: u32 = 2048;
/// More than can be pending at a time, whatever the words say.
const MOST_PENDING: usize = QUEUE as usize + 1024 + 4096;

/// What a wait may take beyond its deadline.
const SLACK: Nanos = Nanos::from_millis(1);

type Memory = Arc<Vec<AtomicU64>>;

/// Bytes of a memory.
fn bytes(memory: &Memory, word: usize, len: usize) -> Vec<u8> {
    let words = memory[word..]
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    words.take(len).collect()
}

/// The receiving end of a channel, by itself or in a set, and what is known of it by its words alone.
struct Channel {
    receiver: Option<Receiver>,
    set: ReceiverSet,
    id: u32,
    memory: Memory,
    received: u64,
    signals_before: u32,
}

impl Channel {
    fn receiver(&mut self) -> &mut Receiver {
        match &mut self.receiver {
            Some(receiver) => receiver,
            None => self.set.get_mut(0).expect("it is in its set"),
        }
    }

    /// Puts it into the set, or takes it out.
    fn change(&mut self) {
        match self.receiver.take() {
            Some(receiver) => assert_eq!(self.set.add(receiver), Ok(0)),
            None => self.receiver = self.set.remove(0),
        }
    }

    /// The set names it if there is something to receive, and else waits until the deadline.
    fn wait(&mut self, card: &Card, span: Nanos) {
        if self.set.is_empty() {
            return;
        }
        let deadline = card.now().after(span);
        match self.set.wait(Duration::from_nanos(span.0)) {
            Ok(index) => {
                assert_eq!(index, 0, "there is no such receiver");
                assert!(self.receive(card), "nothing is there");
            }
            Err(error) => {
                let farewell = self.memory[FAREWELL].load(Ordering::Relaxed) != 0;
                assert_eq!(error, Error::TimedOut);
                assert!(self.left(card) == 0 || farewell, "a message is there");
                let late = deadline.after(SLACK);
                assert!((deadline..=late).contains(&card.now()), "a deadline passes by");
            }
        }
    }

    /// Signals that no message was received for.
    fn left(&self, card: &Card) -> u32 {
        let signals = card.area.get(SHADOW_SIGNALS.plus(self.id));
        signals
            .wrapping_sub(self.signals_before)
            .wrapping_sub(self.received as u32)
    }

    fn entry(&self) -> usize {
        FIRST_ENTRY + ENTRY * (self.received % CAPACITY) as usize
    }

    /// The head of the next message is right, and says so many bytes.
    fn head(&self) -> Option<usize> {
        let head = self.memory[self.entry()].load(Ordering::Relaxed);
        let (number, len) = ((head >> 32) as u32, head & u64::from(u32::MAX));
        (number == (self.received as u32).wrapping_add(1) && len <= MESSAGE).then_some(len as usize)
    }

    /// Whether there was something: a message, an end, or an error.
    fn receive(&mut self, card: &Card) -> bool {
        let (left, head) = (self.left(card), self.head());
        let farewell = self.memory[FAREWELL].load(Ordering::Relaxed) != 0;
        let lies = bytes(&self.memory, self.entry() + 1, head.unwrap_or(0));
        let received = match self.receiver().try_recv() {
            Ok(Some(message)) => {
                assert!(left != 0, "a message that was not signalled");
                assert_eq!(Some(message.len()), head, "another length");
                assert_eq!(message.to_vec(), Ok(lies), "other bytes");
                drop(message);
                true
            }
            Ok(None) => {
                assert!(left == 0 || farewell, "a message is there");
                return false;
            }
            Err(Error::ChannelBroken {
                status: Status::Malformed,
            }) if left != 0 && !farewell && head.is_some() => {
                // It may have been broken before, and what the sender offers may make no sense.
                false
            }
            Err(_) => false,
        };
        self.received += u64::from(received);
        true
    }
}

/// A shared queue, and what is known of it by its words alone.
struct Shared {
    receiver: SharedReceiver,
    memory: Memory,
    next: u32,
}

impl Shared {
    /// The place, length and sender of the next message, by the records: bits 24 and up of the first word count uses of
    /// the record, 16 to 23 are its status.
    fn expected(&mut self, card: &Card) -> Option<(u32, usize, (NodeId, PortId))> {
        loop {
            let place = self.next;
            let at = record_at(place);
            let (word, source) = (card.area.get(at), card.area.get(at.plus(1)));
            if word >> 24 != (place / RECORDS + 1) & 0xFF {
                return None;
            }
            self.next = self.next.wrapping_add(1);
            let len = usize::from(word as u16);
            if word >> 16 & 0xFF == u32::from(Status::Ok.code()) && len <= MESSAGE as usize {
                let from = (NodeId(source as u16), PortId((source >> 16) as u16));
                return Some((place, len, from));
            }
        }
    }

    fn receive(&mut self, card: &Card) {
        let expected = self.expected(card);
        match (self.receiver.try_recv().expect("the port lives"), expected) {
            (Some(message), Some((place, len, from))) => {
                assert_eq!((message.len(), message.sender()), (len, from), "another message");
                let at = (place % PLACES) as usize * MESSAGE as usize / 8;
                assert_eq!(message.to_vec(), Ok(bytes(&self.memory, at, len)), "other bytes");
            }
            (None, None) => {}
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }
}

/// The sending end of a channel whose other end says anything of itself.
struct Sending {
    sender: Sender,
    memory: Memory,
    capacity: u64,
    sent: u64,
    returned: u64,
}

impl Sending {
    fn send(&mut self) {
        let freed = self.memory[0].load(Ordering::Relaxed).wrapping_sub(self.returned);
        if self.sent - self.returned == self.capacity && (1..=self.capacity).contains(&freed) {
            self.returned += freed;
        }
        let len = self.sender.message_bytes().min(8) as usize;
        if self.sender.send(&[7; 8][..len], Timeout::Now).is_ok() {
            self.sent += 1;
            assert!(
                self.sent - self.returned <= self.capacity,
                "more messages than the queue has room for"
            );
        }
    }
}

struct Stand {
    card: Arc<Card>,
    port: Port,
    channel: Channel,
    shared: Shared,
    queue: NotificationQueue,
    sending: Option<Sending>,
    appending: Option<SharedSender>,
    /// What the queue says of itself that is joined: magic, length of a message, capacity, notification.
    description: [u64; 4],
    /// Numbers that any word of the notification queue has held.
    said: std::collections::HashSet<u32>,
}

fn last_memory(card: &Card) -> Memory {
    card.memories.lock().unwrap().last().unwrap().clone()
}

impl Stand {
    fn new() -> Self {
        let card = Card::new();
        card.take_clock();
        let (port, ..) = card.open(PortConfig::default().spins(2));
        let config = ChannelConfig::default()
            .message_bytes(MESSAGE)
            .capacity(CAPACITY as u32)
            .refill(1);
        let receiver = Receiver::open(&port, "channel", config).unwrap();
        let memory = last_memory(&card);
        let channel = Channel {
            id: receiver.notification().id().0,
            receiver: Some(receiver),
            set: ReceiverSet::new(&port),
            memory,
            received: 0,
            signals_before: 0,
        };
        let config = SharedConfig::default().message_bytes(MESSAGE).capacity(PLACES);
        let receiver = SharedReceiver::open(&port, "shared", config).unwrap();
        let memory = last_memory(&card);
        let shared = Shared {
            receiver,
            memory,
            next: 0,
        };
        Self {
            queue: port.notifications(),
            card,
            port,
            channel,
            shared,
            sending: None,
            appending: None,
            description: [0; 4],
            said: std::collections::HashSet::new(),
        }
    }

    /// From now on the card answers what is asked with this.
    fn answer_with(&mut self, what: u8, word: u64) {
        let status = if what < 200 {
            Status::Ok
        } else {
            Status::from_code(what % 32)
        };
        // Right, but for one thing.
        let mut description = [u64::from_le_bytes(*b"NetVMch2"), MESSAGE, CAPACITY, 5];
        description[usize::from(what % 4)] ^= word;
        self.description = description;
        self.card.relax_with(move |card| {
            for (command, _) in card.take() {
                if command.opcode == Opcode::Read {
                    card.bring(&command, &description);
                }
                if status != Status::Ok && command.opcode.is_write() {
                    card.fail(&command, status);
                }
                if command.opcode.is_write() {
                    card.end(&command, Status::Ok);
                } else {
                    card.answer(&command, status, word);
                }
            }
        });
    }

    /// Joins another's shared queue, or sends a message there: it has its place, or is refused until the deadline.
    fn append(&mut self, place: u8, word: u64) {
        let Some(sender) = &self.appending else {
            let mut grant = self.card.grant.lock().unwrap().unwrap();
            grant.queue = QueueShape::from_word(word as u32);
            grant.modes = Modes::from_bits_truncate((word >> 32) as u16);
            *self.card.grant.lock().unwrap() = Ok(grant);
            self.appending =
                SharedSender::join(&self.port, NodeId(2), PortId(2), "shared", Timeout::Now).ok();
            *self.card.grant.lock().unwrap() = Ok(Grant {
                queue: QueueShape::NONE,
                modes: Modes::all(),
                ..grant
            });
            return;
        };
        let limit = sender.message_bytes();
        let span = Nanos(word % 100_000_000);
        let deadline = self.card.now().after(span);
        let message = vec![7; usize::from(place)];
        match sender.send(&message, Duration::from_nanos(span.0)) {
            Ok(()) => assert!((1..=limit).contains(&message.len().try_into().unwrap())),
            Err(Error::QueueFull) => assert!(self.card.now() >= deadline, "gives up too soon"),
            Err(_) => {}
        }
        assert!(self.card.now() <= deadline.after(SLACK), "a deadline passes by");
        if place.is_multiple_of(16) {
            self.appending = None;
        }
    }

    /// The card does what was asked meanwhile.
    fn catch_up(&self) {
        let _ = self.port.flush_writes();
    }

    fn join(&mut self) {
        // An end that is left goes first: it has memory and a number.
        self.sending = None;
        if let Ok(sender) = Sender::join(&self.port, NodeId(1), PortId(2), "queue", Timeout::Now) {
            let memory = last_memory(&self.card);
            self.sending = Some(Sending {
                sender,
                memory,
                capacity: self.description[2],
                sent: 0,
                returned: 0,
            });
        }
    }

    fn pop(&self) {
        for popped in 0.. {
            assert!(popped <= MOST_PENDING, "numbers without end");
            let Some(id) = self.queue.pop() else { break };
            let counts = id.0 < 1024 && self.card.area.get(SHADOW_SIGNALS.plus(id.0)) != 0;
            assert!(
                id.0 != 0 && (counts || self.said.contains(&id.0)),
                "{id} was never signalled"
            );
        }
    }

    fn signal(&mut self, id: u32) {
        self.said.insert(id);
        self.card.signal(id, true);
    }

    fn step(&mut self, what: u8, place: u8, word: u64) {
        let (card, at) = (Arc::clone(&self.card), usize::from(place));
        let low = word as u32;
        match what % 20 {
            _ if what >= 248 => self.append(place, word),
            _ if what >= 244 => self.channel.wait(&card, Nanos(word % 3_000_000_000)),
            _ if what >= 240 => self.channel.change(),
            // What a sender may write: anywhere, or where it is looked at.
            0 => self.channel.memory[at * 16 % self.channel.memory.len()].store(word, Ordering::Release),
            1 => self.channel.memory[[OWNER, FAREWELL, 10, 0][at % 4]].store(word, Ordering::Release),
            2 => self.channel.memory[self.channel.entry() + at % 4].store(word, Ordering::Release),
            3 => {
                // Right, but for what the fuzzer adds.
                let head = u64::from(self.channel.received as u32 + 1) << 32 | u64::from(place % 65);
                self.channel.memory[self.channel.entry()].store(head ^ word, Ordering::Release);
                self.signal(self.channel.id);
            }
            4 => {
                let owner = 1 << 48 | 2 << 32 | 1 << 10 | 5;
                self.channel.memory[OWNER].store(owner ^ word, Ordering::Release);
            }
            5 => {
                self.channel.receive(&card);
            }
            // What the card stores, or another one in its name.
            6 => self.signal(low % 4096),
            7 => card
                .area
                .set(SHADOW_SIGNALS.plus(low % 1024), (word >> 32) as u32),
            8 => {
                self.said.insert(low);
                card.area.set(NOTIFICATIONS.plus(u32::from(place) * 8), low);
            }
            9 => card.area.set(NOTIFICATION_WRITE, low),
            10 => self.pop(),
            11 => {
                let number = self.shared.next.wrapping_add(u32::from(place / 64));
                let record = Record {
                    status: Status::Ok,
                    len: u16::from(place % 66),
                    node: NodeId(1),
                    port: PortId(2),
                };
                record.store(&card.area, WordIndex(0), number);
                let at = record_at(number);
                card.area.set(at, card.area.get(at) ^ low);
                self.signal(self.shared.receiver.notification().id().0);
            }
            12 => card.area.set(record_at(u32::from(place) * 4), low),
            13 => self.shared.receive(&card),
            14 => {
                let memory = &self.shared.memory;
                memory[at % memory.len()].store(word, Ordering::Release);
            }
            15 => self.answer_with(place, word),
            16 => card.pass(Nanos::from_millis(u64::from(place) * 8)),
            17 => self.join(),
            18 => match &self.sending {
                Some(sending) => sending.memory[at % 2].store(word, Ordering::Release),
                None => card.area.set(ERROR_WRITE, low),
            },
            _ => match &mut self.sending {
                Some(sending) => sending.send(),
                None => self.catch_up(),
            },
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stand = Stand::new();
    stand.answer_with(0, 0);
    for chunk in data.chunks_exact(10) {
        let word = u64::from_le_bytes(chunk[2..].try_into().unwrap());
        stand.step(chunk[0], chunk[1], word);
    }
    // Everything is taken once more, and let go.
    stand.pop();
    for _ in 0..8 {
        stand.channel.receive(&stand.card);
        stand.shared.receive(&stand.card);
    }
});
