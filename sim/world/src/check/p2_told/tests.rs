use super::super::message::tests::frame;
use super::super::tests::{NODE, PORT, arrived, caught, feed_at, place, port_opened, sent};
use super::*;
use crate::seen::{Place, Way};
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::wire::{Header, Kind, MessageFlags};
use netvm_abi::{ByteLen, CapabilitySlot, Incarnation, Ppn, ReplySlot, Seq};

const PEER: NodeId = NodeId(1);
const THERE: PortId = PortId(4);

fn told_checker() -> Told {
    Told::new(Limits {
        deadline: Nanos(1_000),
        ..Limits::default()
    })
}

/// Port 3 of node 0 asks something of port 4 of node 1.
fn asks(op: u32, opcode: Opcode, flags: CommandFlags) -> Seen {
    let is_write = opcode == Opcode::Write;
    let command = Command {
        opcode,
        flags,
        len: ByteLen(4),
        node: PEER,
        port: THERE,
        remote: VirtAddr(0x1000),
        local: VirtAddr(10 << 12),
        op: OpId(op),
        reply: if is_write { ReplySlot::NONE } else { ReplySlot(7) },
        ..Command::default()
    };
    Seen::Posted {
        node: NODE,
        port: PORT,
        words: command.encode(),
        inline: digest(b"data"),
    }
}

fn writes(op: u32) -> Seen {
    asks(op, Opcode::Write, CommandFlags::INLINE)
}

/// The message of an operation, which has the number of its operation.
fn message(kind: Kind, op: u32) -> Vec<u8> {
    let payload: &[u8] = if kind == Kind::Write { b"data" } else { b"" };
    let mut bytes = frame(kind, op, 0x1000, payload, 0);
    bytes[44] = op as u8;
    bytes
}

/// What node 1 says of the message with this number.
fn says(kind: Kind, op: u32, status: Status) -> Header {
    let mut header = Header::new(kind, PEER, NODE);
    (header.source_port, header.destination_port) = (THERE, PORT);
    (header.source_incarnation, header.destination_incarnation) = (Incarnation(8), Incarnation(7));
    (header.seq, header.op, header.raw.status) = (Seq(op), OpId(op), status.code());
    header.address = VirtAddr(0x1000);
    header
}

fn comes(header: Header, payload: &[u8]) -> Seen {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes[6] = payload.len() as u8;
    Seen::Arrived {
        to: NODE,
        frame: bytes.into(),
    }
}

fn refused(op: u32) -> Seen {
    comes(says(Kind::Error, op, Status::Revoked), b"")
}

fn record(op: u32, status: Status) -> ErrorRecord {
    ErrorRecord {
        op: OpId(op),
        status,
        node: PEER,
        port: THERE,
        epoch: Epoch(0),
        address: VirtAddr(0x1000),
    }
}

fn told(record: ErrorRecord) -> Seen {
    Seen::Told {
        node: NODE,
        port: PORT,
        words: record.encode(),
    }
}

fn replied(slot: u16, op: u32, status: Status, value: u32) -> Seen {
    Seen::Replied {
        node: NODE,
        port: PORT,
        slot,
        words: [op, status.code().into(), value, 0, 0, 0, 0, 0],
    }
}

fn down() -> Seen {
    Seen::LinkDown {
        node: NODE,
        peer: PEER,
    }
}

/// What is said to these, at 10, and at this time.
fn judge(facts: &[Seen], at: u64) -> Verdict {
    let (mut checker, mut ledger) = (told_checker(), Ledger::default());
    feed_at(&mut checker, &mut ledger, Nanos(10), &[port_opened()])?;
    feed_at(&mut checker, &mut ledger, Nanos(10), facts)?;
    checker.tick(Nanos(at), &ledger)
}

fn begun() -> Vec<Seen> {
    let [one, two] = [1, 2].map(|op| message(Kind::Write, op));
    vec![writes(1), writes(2), sent(one.clone()), arrived(one), sent(two)]
}

fn after(more: &[Seen], at: u64) -> Verdict {
    judge(&[&begun()[..], more].concat(), at)
}

const LATE: u64 = 1_011;

#[test]
fn word_that_comes_out_of_order_is_owed_when_it_comes_again() {
    let numbered = |op, number| {
        let mut header = says(Kind::Error, op, Status::Revoked);
        header.flags = MessageFlags::NUMBERED;
        header.capability = CapabilitySlot(number);
        header
    };
    let leaves = |header: Header| Seen::Sent {
        frame: header.encode().to_vec().into(),
    };
    let closes = || Seen::PortClosed {
        node: NODE,
        port: PORT,
    };
    let (first, second) = (numbered(1, 50), numbered(2, 51));
    let early = [leaves(first), leaves(second), comes(second, b"")];
    // A link at rest does not take it.
    assert_eq!(after(&early, LATE), Ok(()));
    assert_eq!(after(&[&early[..], &[closes()]].concat(), LATE), Ok(()));
    let one = told(record(1, Status::Revoked));
    let again = [&early[..], &[comes(first, b""), one, comes(second, b"")]].concat();
    caught(after(&again, LATE), "has not been told for");
    caught(
        after(&[&again[..], &[closes()]].concat(), LATE),
        "was not told how operation 0x2",
    );
    let two = told(record(2, Status::Revoked));
    assert_eq!(after(&[&again[..], &[two, closes()]].concat(), LATE), Ok(()));
}

#[test]
fn a_refused_write_is_told_of_once_and_as_it_was_posted() {
    let good = record(1, Status::Revoked);
    assert_eq!(after(&[refused(1), told(good)], LATE), Ok(()));
    caught(after(&[refused(1)], LATE), "has not been told for");
    assert_eq!(after(&[refused(1)], LATE - 1), Ok(()));
    let mut far = good;
    far.address = VirtAddr(0x2000);
    let mut old = good;
    old.epoch = Epoch(3);
    for bad in [record(2, Status::Revoked), record(1, Status::Unmapped), far, old] {
        caught(after(&[refused(1), told(bad)], 10), "has failed so");
    }
    caught(after(&[told(good)], 10), "has failed so");
    caught(after(&[refused(1), told(good), told(good)], 10), "has failed so");
    // The wire has brought it twice.
    let twice = [refused(1), told(good), refused(1), told(good)];
    assert_eq!(after(&twice, LATE), Ok(()));
    assert_eq!(after(&twice[..3], LATE), Ok(()), "once is enough");
    let (node, port, what) = (NODE, PORT, Ending::Port);
    let (ends, closed) = (Seen::Ends { node, port, what }, Seen::PortClosed { node, port });
    caught(
        after(&[refused(1), ends.clone(), closed.clone()], 10),
        "closes, and was not told",
    );
    assert_eq!(after(&[ends, refused(1), closed], 10), Ok(()));
    let mut alone = says(Kind::Error, 1, Status::Revoked);
    alone.flags = MessageFlags::REGARDLESS;
    caught(after(&[comes(alone, b""), told(good)], 10), "has failed so");
    let lost = Seen::ErrorsLost {
        node: NODE,
        port: PORT,
    };
    assert_eq!(after(&[refused(1), lost], LATE), Ok(()));
}

#[test]
fn the_next_owner_is_told_nothing_of_what_the_last_one_did() {
    let facts = [port_opened(), refused(1)];
    assert_eq!(after(&facts, LATE), Ok(()));
    let facts = [&facts[..], &[told(record(1, Status::Revoked))]].concat();
    caught(after(&facts, 10), "has failed so");
}

#[test]
fn of_a_lost_link_each_port_hears_of_its_first_message() {
    let of = |op| ErrorRecord {
        op: OpId(op),
        status: Status::LinkLost,
        node: PEER,
        ..ErrorRecord::default()
    };
    assert_eq!(after(&[down(), told(of(1))], LATE), Ok(()));
    caught(after(&[down()], LATE), "has not been told for");
    caught(after(&[down(), told(of(2))], 10), "has failed so");
    caught(after(&[down(), told(of(1)), told(of(1))], 10), "has failed so");
    let mut ack = says(Kind::Ack, 3, Status::Ok);
    ack.op = OpId(0);
    let ack = comes(ack, b"");
    // Neither is in doubt.
    assert_eq!(after(&[ack.clone(), down()], LATE), Ok(()));
    caught(after(&[ack.clone(), down(), told(of(1))], 10), "has failed so");
    // Its card hears no answers any more, although its word that the link is down is still under way.
    let ends = Seen::LinkEnds {
        node: NODE,
        peer: PEER,
    };
    for late in [ack, refused(1)] {
        assert_eq!(after(&[ends.clone(), late, down(), told(of(1))], LATE), Ok(()));
    }
}

#[test]
fn of_a_lost_link_each_port_hears_in_each_epoch() {
    let of = |op, epoch| ErrorRecord {
        op: OpId(op),
        status: Status::LinkLost,
        node: PEER,
        epoch: Epoch(epoch),
        ..ErrorRecord::default()
    };
    let in_epoch = |op: u32, epoch: u16| {
        // Words 14 of a message and 11 of a descriptor have it above.
        let mut message = message(Kind::Write, op);
        message[58..60].copy_from_slice(&epoch.to_le_bytes());
        let mut posted = writes(op);
        if let Seen::Posted { words, .. } = &mut posted {
            words[11] |= u32::from(epoch) << 16;
        }
        [posted, sent(message)]
    };
    let sent = [(1, 0), (2, 0), (3, 1), (4, 1)].map(|(op, epoch)| in_epoch(op, epoch));
    let with = |more: &[Seen]| judge(&[sent.as_flattened(), more].concat(), LATE);
    let (one, three) = (told(of(1, 0)), told(of(3, 1)));
    assert_eq!(with(&[down(), one.clone(), three.clone()]), Ok(()));
    caught(with(&[down(), one.clone()]), "has not been told for");
    caught(with(&[down(), one, three, told(of(4, 1))]), "has failed so");
}

#[test]
fn a_command_that_is_passed_by_is_told_of_or_held_back() {
    let leaves = sent(message(Kind::Write, 3));
    let ordered = |op| asks(op, Opcode::Write, CommandFlags::INLINE | CommandFlags::ORDERED);
    let failed = told(record(1, Status::Unmapped));
    let with =
        |first: Seen, more: &[Seen]| judge(&[&[first, writes(3), leaves.clone()], more].concat(), LATE);
    caught(with(writes(1), &[]), "operation 0x1");
    // Its record is under way from the card when the later one leaves.
    assert_eq!(with(writes(1), std::slice::from_ref(&failed)), Ok(()));
    caught(with(ordered(1), &[]), "operation 0x1");
    let two = |second: Seen| {
        let facts = [writes(1), second, writes(3), failed.clone(), leaves.clone()];
        judge(&facts, LATE)
    };
    assert_eq!(two(ordered(2)), Ok(()));
    // What would be held back fails by itself before that.
    let facts = [
        writes(1),
        ordered(2),
        writes(3),
        failed.clone(),
        leaves.clone(),
        told(record(2, Status::NoMemory)),
    ];
    assert_eq!(judge(&facts, LATE), Ok(()));
    caught(two(writes(2)), "operation 0x2");
}

#[test]
fn a_reply_says_what_its_answer_says_once_and_in_its_slot() {
    let flags = CommandFlags::empty();
    let flush = [asks(1, Opcode::FlushRemote, flags), sent(message(Kind::Flush, 1))];
    let mut answer = says(Kind::FlushReply, 1, Status::Revoked);
    answer.raw.operand = 9;
    let answer = comes(answer, b"");
    let with = |more: &[Seen], at| judge(&[&flush[..], more].concat(), at);
    let good = replied(7, 1, Status::Revoked, 9);
    assert_eq!(with(&[answer.clone(), good.clone()], LATE), Ok(()));
    caught(with(std::slice::from_ref(&answer), LATE), "has not been told for");
    caught(with(std::slice::from_ref(&good), 10), "and it has left");
    caught(
        with(&[answer.clone(), good.clone(), good.clone()], 10),
        "and it has left",
    );
    for (bad, words) in [
        (replied(6, 1, Status::Revoked, 9), "another slot"),
        (replied(7, 1, Status::Ok, 9), "its answer has status"),
        (replied(7, 1, Status::Revoked, 8), "its answer has (9"),
    ] {
        caught(with(&[answer.clone(), bad], 10), words);
    }
    assert_eq!(with(&[down(), replied(7, 1, Status::LinkLost, 0)], 10), Ok(()));
    caught(with(&[down(), replied(7, 1, Status::Ok, 0)], 10), "has status 14");
}

/// The frame of an atomic does not say which of equal ones it is.
#[test]
fn of_equal_atomics_each_is_told_of_its_own_answer() {
    let asked = |op| asks(op, Opcode::FetchAdd, CommandFlags::empty());
    let leaves = |seq: u32| {
        let mut request = Header::new(Kind::AtomicRequest, NODE, PEER);
        (request.source_port, request.destination_port) = (PORT, THERE);
        (request.source_incarnation, request.destination_incarnation) = (Incarnation(7), Incarnation(8));
        (request.seq, request.raw.status) = (Seq(seq), Opcode::FetchAdd.code());
        request.address = VirtAddr(0x1000);
        sent(request.encode().to_vec())
    };
    let answer = |seq| comes(says(Kind::AtomicReply, seq, Status::Revoked), b"");
    let ended = |op, status| replied(7, op, status, 0);
    let (lost, one, two) = (
        ended(1, Status::LinkLost),
        ended(2, Status::Revoked),
        ended(3, Status::Revoked),
    );
    let three = [asked(1), asked(2), asked(3)];
    let with = |more: &[Seen], at| judge(&[&three[..], more].concat(), at);
    // The first fails where it is; that is told before the others leave, between them, or after.
    let rest = [answer(5), one.clone(), answer(6), two.clone()];
    let early = [lost.clone(), leaves(5), leaves(6)];
    assert_eq!(with(&[&early[..], &rest].concat(), LATE), Ok(()));
    let between = [leaves(5), lost.clone(), leaves(6)];
    assert_eq!(with(&[&between[..], &rest].concat(), LATE), Ok(()));
    let late = [leaves(5), leaves(6), lost.clone()];
    assert_eq!(with(&[&late[..], &rest].concat(), LATE), Ok(()));
    // An answer is told once, and an operation that has left is not told of without one.
    caught(
        with(&[&late[..], &rest, std::slice::from_ref(&two)].concat(), 10),
        "and it has left",
    );
    caught(with(&[&late[..], &[two]].concat(), 10), "and it has left");
    caught(
        with(&[&late[..], &[answer(5), answer(6), one]].concat(), LATE),
        "has not been told",
    );
}

#[test]
fn a_read_ends_well_when_its_data_lie_where_they_belong() {
    let read = [
        asks(1, Opcode::Read, CommandFlags::empty()),
        sent(message(Kind::ReadRequest, 1)),
        comes(says(Kind::ReadReply, 1, Status::Ok), b"data"),
    ];
    let stored = |offset, bytes: &[u8]| Seen::DmaMoved {
        node: NODE,
        dma: 1,
        way: Way::ToPage,
        ppn: Ppn(100),
        place: Place {
            offset,
            len: 4,
            ..place(10)
        },
        bytes: bytes.into(),
        stored: Some(Stored::Answer),
        parted: false,
    };
    let with = |more: &[Seen]| judge(&[&read[..], more].concat(), 10);
    let good = replied(7, 1, Status::Ok, 0);
    assert_eq!(with(&[stored(0, b"data"), good.clone()]), Ok(()));
    assert_eq!(with(&[replied(7, 1, Status::BusError, 0)]), Ok(()));
    for bad in [None, Some(stored(4, b"data")), Some(stored(0, b"dada"))] {
        let facts = [bad.as_slice(), std::slice::from_ref(&good)].concat();
        caught(with(&facts), "have not been stored");
    }
    // Of two equal ones in one place, the data of the second are stored first: those of the other found no page.
    let other = [
        asks(2, Opcode::Read, CommandFlags::empty()),
        sent(message(Kind::ReadRequest, 2)),
        comes(says(Kind::ReadReply, 2, Status::Ok), b"data"),
    ];
    let both = |more: &[Seen]| with(&[&other[..], more].concat());
    let (once, second) = (stored(0, b"data"), replied(7, 2, Status::Ok, 0));
    let ends = [once.clone(), second.clone(), once.clone(), good.clone()];
    assert_eq!(both(&ends), Ok(()));
    caught(both(&[once, second, good]), "have not been stored");
}

#[test]
fn counts_do_not_run_ahead() {
    let counted = |which, count| Seen::Counted {
        node: NODE,
        port: PORT,
        which,
        count,
    };
    for (which, most) in [(Counts::Taken, 2), (Counts::Writes, 2), (Counts::Reads, 0)] {
        assert_eq!(after(&[counted(which, most)], 10), Ok(()));
        caught(after(&[counted(which, most + 1)], 10), "are over");
    }
}
