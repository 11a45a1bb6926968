//! A ring of messages from one process to another.
//!
//! One process writes messages, the other reads them and writes [`HEAD`]. Both count bytes since the ring was made. Each end keeps
//! its own count in private memory, copies what the other end wrote once, and checks it before it is used: what makes no sense
//! is [`BadRing`], which ends the link, and nothing but this link.
//!
//! # A message
//! Its length comes first, and is 0 until the message is there. So the line of memory that says that there is one brings its first
//! bytes, too; a count beside the ring would be another line to be fetched from the producer's processor.
//!
//! | producer | consumer |
//! |---|---|
//! | writes the bytes | |
//! | writes 0 as the length of the next message | |
//! | writes the length, release | loads the length, acquire |
//! | | reads the bytes |
//! | | `HEAD`, release |
//! | loads `HEAD`, acquire, before it writes there again | |
//!
//! The consumer looks at the next message's length only after it has seen this one's, so it finds the 0 that was written before, or
//! what came after, and never the bytes of an older message that stood there. The room for that 0 is counted.
//!
//! # Sleep
//! A consumer that is going to sleep says so in [`ASLEEP`]; a producer that finds the ring full says so in [`FULL`]. Either
//! is called by the other end through its eventfd. No call is lost, because store and load stand on both sides of a full
//! fence:
//!
//! | consumer | producer |
//! |---|---|
//! | `ASLEEP = 1` | writes the length |
//! | fence | fence |
//! | loads the length; sleeps if it is 0 | loads `ASLEEP`; calls if it is 1 |
//!
//! If the consumer loads 0, its fence comes before the producer's in the order of all fences; so the producer's
//! load sees `ASLEEP = 1`, and it calls. The same holds for `FULL` and `HEAD` with the roles exchanged. Without the fences
//! both could load the old value: on x86-64, too, a load may pass an earlier store.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use netvm_abi::wire::HEADER_BYTES;

use super::mapping::Shared;
use crate::PAGE_BYTES;
use crate::message::{Message, SMALL_BYTES, Spare};

/// Bytes that a ring holds: more than the messages of a window and of the round trips beside it.
pub(crate) const RING_BYTES: usize = 1 << 20;
/// Bytes of its file.
pub(crate) const FILE_BYTES: usize = DATA + RING_BYTES;

// Each word has cache lines of its own. The count changes with each message, and the other end looks at the two flags as often:
// beside the count they would be fetched from the other processor for each message.
/// The producer waits for room: set by the producer, cleared by whichever end acts on it.
const FULL: usize = 256;
/// Bytes read so far: the consumer's.
const HEAD: usize = 512;
/// The consumer sleeps: set by the consumer, cleared by whichever end acts on it.
const ASLEEP: usize = 768;
const DATA: usize = 4096;

/// Before each message stands its length, in as many bytes. 0: it is not there yet.
const LENGTH: usize = 8;

/// The other end wrote into the ring what no end writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRing;

/// Bytes that a message takes.
const fn taken(len: usize) -> u64 {
    (LENGTH + len.next_multiple_of(8)) as u64
}

const fn place(at: u64) -> usize {
    at as usize % RING_BYTES
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    shared: Shared,
    tail: u64,
    /// The consumer's count, as last seen.
    head: u64,
    /// Something was written since the last [`should_call`](Self::should_call).
    news: bool,
}

impl Producer {
    pub(crate) const fn new(shared: Shared) -> Self {
        Self {
            shared,
            tail: 0,
            head: 0,
            news: false,
        }
    }

    /// Whether so many bytes have room, and the length behind them, by the consumer's own word.
    fn has_room(&mut self, need: u64) -> Result<bool, BadRing> {
        let need = need + LENGTH as u64;
        if self.tail + need - self.head <= RING_BYTES as u64 {
            return Ok(true);
        }
        let head = self.shared.word64(HEAD).load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(BadRing);
        }
        self.head = head;
        Ok(self.tail + need - head <= RING_BYTES as u64)
    }

    /// Writes a message; false if it has no room. Then the consumer calls when it has made some.
    pub(crate) fn push(&mut self, message: &Message) -> Result<bool, BadRing> {
        let payload = message.payload();
        let len = HEADER_BYTES + payload.len();
        let need = taken(len);
        if !self.has_room(need)? {
            self.shared.word32(FULL).store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.has_room(need)? {
                return Ok(false);
            }
        }
        self.write(self.tail + LENGTH as u64, &message.header);
        self.write(self.tail + (LENGTH + HEADER_BYTES) as u64, payload);
        let next = self.tail + need;
        self.length(next).store(0, Ordering::Relaxed);
        self.length(self.tail).store(len as u64, Ordering::Release);
        self.tail = next;
        self.news = true;
        Ok(true)
    }

    fn length(&self, at: u64) -> &AtomicU64 {
        self.shared.word64(DATA + place(at))
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let at = place(at);
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        self.shared.write(DATA + at, first);
        if !rest.is_empty() {
            self.shared.write(DATA, rest);
        }
    }

    /// After messages: whether the consumer sleeps and has to be called. Asked once, it is the caller's to do.
    pub(crate) fn should_call(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        fence(Ordering::SeqCst);
        let asleep = self.shared.word32(ASLEEP);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    shared: Shared,
    head: u64,
    /// Something was read since the last [`should_call`](Self::should_call).
    news: bool,
}

impl Consumer {
    pub(crate) const fn new(shared: Shared) -> Self {
        Self {
            shared,
            head: 0,
            news: false,
        }
    }

    /// The length of the next message.
    #[inline]
    fn next(&self) -> u64 {
        self.shared
            .word64(DATA + place(self.head))
            .load(Ordering::Acquire)
    }

    /// Whether there is a message.
    #[inline]
    pub(crate) fn has_message(&self) -> bool {
        self.next() != 0
    }

    /// Takes the next message.
    pub(crate) fn pop(&mut self, spare: &mut Spare) -> Result<Option<Box<Message>>, BadRing> {
        let len = match self.next() {
            0 => return Ok(None),
            len => usize::try_from(len).unwrap_or(usize::MAX),
        };
        if !(HEADER_BYTES..=HEADER_BYTES + PAGE_BYTES).contains(&len) {
            return Err(BadRing);
        }
        let mut message = spare.messages.take();
        message.len = len - HEADER_BYTES;
        self.read(self.head + LENGTH as u64, &mut message.header);
        let at = self.head + (LENGTH + HEADER_BYTES) as u64;
        if message.len <= SMALL_BYTES {
            let len = message.len;
            self.read(at, &mut message.small[..len]);
        } else {
            let mut buffer = spare.pages.take();
            self.read(at, &mut buffer.0[..message.len]);
            message.buffer = Some(buffer);
        }
        self.head += taken(len);
        self.shared.word64(HEAD).store(self.head, Ordering::Release);
        self.news = true;
        Ok(Some(message))
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let at = place(at);
        let cut = into.len().min(RING_BYTES - at);
        let (first, rest) = into.split_at_mut(cut);
        self.shared.read(DATA + at, first);
        if !rest.is_empty() {
            self.shared.read(DATA, rest);
        }
    }

    /// After messages were taken: whether the producer waits for room and has to be called.
    pub(crate) fn should_call(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        fence(Ordering::SeqCst);
        let full = self.shared.word32(FULL);
        full.load(Ordering::Relaxed) != 0 && full.swap(0, Ordering::Relaxed) != 0
    }

    /// Says whether this end sleeps. A fence must follow, and a look at the ring, before it does.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        let word = self.shared.word32(ASLEEP);
        if word.load(Ordering::Relaxed) != u32::from(asleep) {
            word.store(u32::from(asleep), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Buffer, Pools};
    use std::time::{Duration, Instant};

    fn ends() -> (Producer, Consumer) {
        let (file, producer) = Shared::create("ring", FILE_BYTES).unwrap();
        let consumer = Shared::accept(&file, FILE_BYTES).unwrap();
        (Producer::new(producer), Consumer::new(consumer))
    }

    fn message(round: usize) -> Message {
        let len = round * 37 % (PAGE_BYTES + 1);
        let mut message = Message {
            header: [round as u8; HEADER_BYTES],
            len,
            ..Message::default()
        };
        if len <= SMALL_BYTES {
            message.small[..len].fill(round as u8 ^ 1);
        } else {
            let mut buffer = Box::new(Buffer::default());
            buffer.0[..len].fill(round as u8 ^ 1);
            message.buffer = Some(buffer);
        }
        message
    }

    #[test]
    fn messages_of_all_lengths_arrive_whole_and_in_order() {
        let (mut producer, mut consumer) = ends();
        let mut spare = Spare::new(&Pools::default());
        let (mut sent, mut taken) = (0, 0);
        while taken < 5000 {
            while sent < 5000 && producer.push(&message(sent)).unwrap() {
                sent += 1;
            }
            for _ in 0..1 + sent % 7 {
                let Some(got) = consumer.pop(&mut spare).unwrap() else {
                    break;
                };
                let wanted = message(taken);
                assert_eq!((got.header, got.payload()), (wanted.header, wanted.payload()));
                taken += 1;
                spare.give(got);
            }
        }
        assert!(!consumer.has_message());
    }

    /// Many times round the ring, while both ends are at it.
    #[test]
    fn messages_arrive_whole_while_others_are_written() {
        const MESSAGES: usize = 20_000;
        const PATIENCE: Duration = Duration::from_secs(30);
        let begin = Instant::now();
        let (mut producer, mut consumer) = ends();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..MESSAGES {
                    while !producer.push(&message(round)).unwrap() {
                        // A consumer that has found something wrong takes no more.
                        assert!(begin.elapsed() < PATIENCE, "message {round} finds no room");
                        std::thread::yield_now();
                    }
                }
            });
            let mut spare = Spare::new(&Pools::default());
            for round in 0..MESSAGES {
                let got = loop {
                    match consumer.pop(&mut spare).unwrap() {
                        Some(got) => break got,
                        None => std::thread::yield_now(),
                    }
                };
                let wanted = message(round);
                assert_eq!((got.header, got.payload()), (wanted.header, wanted.payload()));
                spare.give(got);
            }
        });
    }

    #[test]
    fn a_sleeper_is_called_once_and_only_for_news() {
        let (mut producer, mut consumer) = ends();
        let mut spare = Spare::new(&Pools::default());
        assert!(!producer.should_call());
        producer.push(&message(1)).unwrap();
        assert!(!producer.should_call(), "the consumer is awake");
        consumer.set_asleep(true);
        producer.push(&message(2)).unwrap();
        assert!(producer.should_call());
        producer.push(&message(3)).unwrap();
        assert!(!producer.should_call(), "it was called");
        assert!(!consumer.should_call());
        while producer.push(&message(9)).unwrap() {}
        consumer.pop(&mut spare).unwrap();
        assert!(consumer.should_call());
    }

    #[test]
    fn senseless_words_are_found() {
        for value in [79u64, 4177, u64::MAX] {
            let (mut producer, mut consumer) = ends();
            producer.push(&message(0)).unwrap();
            producer.shared.word64(DATA).store(value, Ordering::Release);
            let mut spare = Spare::new(&Pools::default());
            assert_eq!(consumer.pop(&mut spare).err(), Some(BadRing), "{value}");
        }
        for head in [u64::MAX, RING_BYTES as u64 * 2] {
            let (mut producer, consumer) = ends();
            while producer.push(&message(100)).unwrap() {}
            consumer.shared.word64(HEAD).store(head, Ordering::Release);
            assert_eq!(producer.push(&message(100)), Err(BadRing));
        }
    }
}
