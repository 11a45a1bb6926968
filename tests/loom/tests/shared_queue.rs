//! The shared receive queue: `freed` against `tail`, and a record against its message. What the receiver finds at a
//! place is the message that its record speaks of, whole, and stays so until the receiver gives the place back.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::bar::port;
use netvm_abi::port_area::{AREA_WORDS, QUEUE_RECORDS};
use netvm_abi::shared_queue::{Cursor, Record, free, record_at};
use netvm_abi::words::SharedWords;
use netvm_abi::{NodeId, PortId, Status, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

/// Messages that go through a queue of `places` places, which the card takes for one of `believed`.
fn queue(
    flaw: Flaw,
    places: u32,
    believed: u32,
    messages: u32,
    full: Seen,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let block = Arc::new(Words::watching(flaw, port::COMMANDS.0, [port::QUEUE_FREED.0]));
        let records = (0..messages).flat_map(|place| [record_at(place).0, record_at(place).0 + 1]);
        let area = Arc::new(Words::watching(flaw, AREA_WORDS, records));
        // What a DMA stores: ordered by nothing but the record, and the word that gives the place back.
        let memory = Arc::new(Words::new(Flaw::NoOrder, places));
        assert!(record_at(0) == QUEUE_RECORDS);
        let card = {
            let (block, area, memory, full) = (block.clone(), area.clone(), memory.clone(), full.clone());
            thread::spawn(move || {
                let mut cursor = Cursor::default();
                for message in 0..messages {
                    let place = loop {
                        match cursor.take(&*block, WordIndex(0), believed) {
                            Some(place) => break place,
                            None => {
                                full.mark();
                                thread::yield_now();
                            }
                        }
                    };
                    assert_eq!(place, message, "given out twice, or not at all");
                    memory.store_release(WordIndex(place % places), 100 + message);
                    let record = Record {
                        status: Status::Ok,
                        len: message as u16,
                        node: NodeId(message as u16),
                        port: PortId(7),
                    };
                    record.store(&*area, WordIndex(0), place);
                }
            })
        };
        for place in 0..messages {
            let record = loop {
                if let Some(record) = Record::load(&*area, place) {
                    break record;
                }
                thread::yield_now();
            };
            assert_eq!(
                (record.len, record.node, record.port),
                (place as u16, NodeId(place as u16), PortId(7)),
                "a torn record"
            );
            for _ in 0..2 {
                let found = memory.load_acquire(WordIndex(place % places));
                assert_eq!(found, 100 + place, "another message than the record's");
            }
            free(&*block, place + 1);
        }
        card.join().unwrap();
    }
}

#[test]
fn a_place_keeps_its_message_until_it_is_given_back() {
    let full = Seen::new();
    explore(
        "shared queue of one",
        Some(4),
        queue(Flaw::None, 1, 1, 3, full.clone()),
    );
    assert!(full.count() > 0, "the queue was full at least once");
    explore(
        "shared queue of two",
        Some(3),
        queue(Flaw::None, 2, 2, 4, Seen::new()),
    );
    must_fail(
        "shared queue, no order",
        Some(3),
        queue(Flaw::NoOrder, 1, 1, 2, Seen::new()),
    );
    must_fail(
        "shared queue, one place too many",
        Some(3),
        queue(Flaw::None, 1, 2, 3, Seen::new()),
    );
}
