//! The command queue and the event rings: every entry is taken once, in order and whole, also where counters wrap and
//! entries are used again.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::WordIndex;
use netvm_abi::bar::port;
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::descriptor::{DESCRIPTOR_WORDS, HEAD_WORDS, QUEUE_ENTRIES};
use netvm_abi::event::EVENT_WORDS;
use netvm_abi::port_area::TAKEN;
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::words::SharedWords;
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

/// A head whose every word says which command it belongs to.
fn head(command: u32) -> [u32; HEAD_WORDS] {
    core::array::from_fn(|at| command.wrapping_mul(100).wrapping_add(at as u32))
}

/// Loom watches the doorbell, two words of the head and one of the payload of one entry; the other words of that
/// entry move with them.
fn block(flaw: Flaw, entry: u32) -> Words {
    let at = port::COMMANDS.0 + (entry % QUEUE_ENTRIES) * DESCRIPTOR_WORDS as u32;
    let payload = at + HEAD_WORDS as u32;
    Words::watching(flaw, port::BLOCK_WORDS, [0, at, at + 15, payload])
}

fn check(consumer: &Consumer, block: &Words, command: u32) {
    let mut copied = [0; HEAD_WORDS];
    consumer.copy_head(block, &mut copied);
    let expected = head(command);
    assert_eq!(
        (copied[0], copied[15]),
        (expected[0], expected[15]),
        "a torn entry"
    );
    let mut inline = [0];
    consumer.copy_inline(block, &mut inline);
    assert_eq!(inline, [command], "payload of another command");
}

/// One command after another, polled while it is posted; the counters wrap on the way.
fn posting(flaw: Flaw, waited: Seen) -> impl Fn() + Send + Sync + 'static {
    const START: u32 = u32::MAX;
    move || {
        let block = Arc::new(block(flaw, START));
        block.store_release(port::DOORBELL, START);
        let consumer = {
            let (block, waited) = (block.clone(), waited.clone());
            thread::spawn(move || {
                let mut consumer = Consumer::starting_at(START);
                for command in 0..2 {
                    while consumer.poll(&*block) == Doorbell::Empty {
                        waited.mark();
                        thread::yield_now();
                    }
                    assert_ne!(consumer.poll(&*block), Doorbell::Broken);
                    if command == 0 {
                        check(&consumer, &block, 0);
                    }
                    consumer.take();
                }
                assert_eq!(consumer.poll(&*block), Doorbell::Empty);
            })
        };
        let mut producer = Producer::starting_at(START);
        for command in 0..2 {
            assert!(producer.post(&*block, &head(command), &[command]));
        }
        consumer.join().unwrap();
    }
}

#[test]
fn a_command_is_whole_when_its_doorbell_is_seen() {
    let waited = Seen::new();
    explore("posting", None, posting(Flaw::None, waited.clone()));
    assert!(waited.count() > 0, "the consumer was faster at least once");
    must_fail("posting, no order", None, posting(Flaw::NoOrder, Seen::new()));
}

/// A full queue: an entry is written again only after the NIC has copied it and said so in the shadow counter.
fn reuse(flaw: Flaw, full: Seen) -> impl Fn() + Send + Sync + 'static {
    // 64 commands wait, from here on; the counters wrap among them.
    const START: u32 = u32::MAX - 40;
    move || {
        let block = Arc::new(block(flaw, START));
        let area = Arc::new(Words::new(flaw, 1));
        let mut producer = Producer::starting_at(START);
        for command in 0..QUEUE_ENTRIES {
            assert!(producer.post(&*block, &head(command), &[command]));
        }
        assert!(!producer.post(&*block, &head(0), &[]), "it is full");
        area.store_release(TAKEN, START);
        let nic = {
            let (block, area) = (block.clone(), area.clone());
            thread::spawn(move || {
                let mut consumer = Consumer::starting_at(START);
                assert!(matches!(consumer.poll(&*block), Doorbell::Pending(_)));
                check(&consumer, &block, 0);
                consumer.take();
                area.store_release(TAKEN, consumer.taken());
                // The other 63 are not watched.
                for _ in 1..QUEUE_ENTRIES {
                    consumer.take();
                }
                while consumer.poll(&*block) == Doorbell::Empty {
                    thread::yield_now();
                }
                check(&consumer, &block, QUEUE_ENTRIES);
            })
        };
        loop {
            producer.update_taken(area.load_acquire(TAKEN));
            if producer.post(&*block, &head(QUEUE_ENTRIES), &[QUEUE_ENTRIES]) {
                break;
            }
            full.mark();
            thread::yield_now();
        }
        nic.join().unwrap();
    }
}

#[test]
fn an_entry_is_used_again_only_after_it_was_taken() {
    let full = Seen::new();
    explore("reuse", Some(5), reuse(Flaw::None, full.clone()));
    assert!(full.count() > 0, "the queue was full at least once");
    must_fail("reuse, no order", Some(5), reuse(Flaw::NoOrder, Seen::new()));
}

fn event(number: u32) -> [u32; EVENT_WORDS] {
    core::array::from_fn(|at| number * 10 + at as u32)
}

/// A ring of two entries carries four events.
fn ring(flaw: Flaw, full: Seen) -> impl Fn() + Send + Sync + 'static {
    const ENTRIES: u32 = 2;
    const WATCHED: [u32; 2] = [0, 7];
    const PLACE: RingPlace = RingPlace {
        entries: WordIndex(1),
        count: ENTRIES,
        tail: WordIndex(0),
        head: WordIndex(0),
    };
    move || {
        let mut watched = vec![0];
        for entry in 0..ENTRIES {
            watched.extend(WATCHED.map(|word| 1 + entry * EVENT_WORDS as u32 + word));
        }
        // Entries and tail on one side, the head on the other.
        let entries = Arc::new(Words::watching(flaw, 1 + ENTRIES * EVENT_WORDS as u32, watched));
        let heads = Arc::new(Words::new(flaw, 1));
        let reader = {
            let (entries, heads) = (entries.clone(), heads.clone());
            thread::spawn(move || {
                let mut reader = RingReader::new(PLACE);
                for number in 0..4 {
                    let taken = loop {
                        if let Some(taken) = reader.pop(&*entries, &*heads) {
                            break taken;
                        }
                        thread::yield_now();
                    };
                    for word in WATCHED {
                        assert_eq!(
                            taken[word as usize],
                            event(number)[word as usize],
                            "torn or out of order"
                        );
                    }
                }
                assert!(reader.is_empty(&*entries));
            })
        };
        let mut writer = RingWriter::new(PLACE);
        for number in 0..4 {
            while !writer.push(&*entries, &*heads, &event(number)) {
                full.mark();
                thread::yield_now();
            }
        }
        reader.join().unwrap();
    }
}

#[test]
fn a_ring_carries_events_in_order() {
    let full = Seen::new();
    explore("ring", Some(3), ring(Flaw::None, full.clone()));
    assert!(full.count() > 0, "the ring was full at least once");
    must_fail("ring, no order", Some(3), ring(Flaw::NoOrder, Seen::new()));
}
