//! What the card leaves for drivers and applications: bounce records, errors, replies, notifications.

use crate::ADDRESS;
use crate::common::{Golden, dump, shared};
use crate::messages::write;
use netvm_abi::bounce::{RECORD_WORDS, load_record, store_record};
use netvm_abi::port_area::{ErrorRecord, REPLY_WORDS, Reply, reply_at};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;

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
        second: 0x1122_3344_5566_7788,
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
