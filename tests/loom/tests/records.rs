//! Records that are rewritten while the other side may look: capability entries and reply slots.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::capability::{CAPABILITY_WORDS, Capability};
use netvm_abi::control::Modes;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::port_area::{REPLY_WORDS, Reply, reply_at};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::{NodeId, NotificationId, OpId, PortId, SegmentId, Status, Token, VirtAddr, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

const ENTRY: WordIndex = WordIndex(0);
const TO_NIC: RingPlace = RingPlace {
    entries: WordIndex(CAPABILITY_WORDS as u32 + 2),
    count: 1,
    tail: WordIndex(CAPABILITY_WORDS as u32),
    head: WordIndex(0),
};
const TO_HOST: RingPlace = RingPlace {
    entries: WordIndex(2),
    count: 1,
    tail: WordIndex(1),
    head: WordIndex(CAPABILITY_WORDS as u32 + 1),
};

/// A capability whose segment and secret say the same.
fn capability(owner: u32) -> Capability {
    Capability {
        port: PortId(1),
        modes: Modes::WRITE,
        segment: SegmentId(owner),
        holder: NodeId(0),
        holder_port: PortId(0),
        start: VirtAddr(0),
        end: VirtAddr(4096),
        secret: u64::from(owner),
        notify_first: NotificationId(0),
        notify_last: NotificationId(0),
        ..Capability::NOTHING
    }
}

/// The host revokes a capability and gives its slot to another owner; the NIC looks it up again and again. With the
/// barrier event between the two the NIC sees one owner, the other, or none; without it, a mixture.
fn revocation(barrier: bool, seen: [Seen; 3]) -> impl Fn() + Send + Sync + 'static {
    move || {
        // Segment (word 2) and secret (word 8) stand for the entry; the rest is the same for both owners.
        let bar = Arc::new(Words::watching(Flaw::None, 64, [0, 2, 8, TO_NIC.tail.0]));
        let shared = Arc::new(Words::watching(Flaw::None, 64, [TO_HOST.tail.0]));
        capability(1).publish(&*bar, ENTRY);
        let nic = {
            let (bar, shared, seen) = (bar.clone(), shared.clone(), seen.clone());
            thread::spawn(move || {
                let mut events = RingReader::new(TO_NIC);
                let mut answers = RingWriter::new(TO_HOST);
                for _ in 0..2 {
                    match Capability::load(&*bar, ENTRY) {
                        Some(entry) => {
                            assert_eq!(u64::from(entry.segment.0), entry.secret, "two owners mixed");
                            seen[entry.segment.index()].mark();
                        }
                        None => seen[0].mark(),
                    }
                    // The look-up above was a step of its own: nothing of it is under way any more.
                    if let Some(words) = events.pop(&*bar, &*shared)
                        && let Some(HostEvent::Barrier { token }) = HostEvent::decode(&words)
                    {
                        assert!(answers.push(&*shared, &*bar, &NicEvent::BarrierDone { token }.encode()));
                    }
                }
                if let Some(words) = events.pop(&*bar, &*shared)
                    && let Some(HostEvent::Barrier { token }) = HostEvent::decode(&words)
                {
                    assert!(answers.push(&*shared, &*bar, &NicEvent::BarrierDone { token }.encode()));
                }
            })
        };
        let mut events = RingWriter::new(TO_NIC);
        let mut answers = RingReader::new(TO_HOST);
        Capability::retract(&*bar, ENTRY);
        let token = Token(7);
        assert!(events.push(&*bar, &*shared, &HostEvent::Barrier { token }.encode()));
        let mut answer = answers.pop(&*shared, &*bar);
        // Once the NIC has gone it answers nothing, and reads nothing either.
        for _ in 0..2 {
            if answer.is_none() {
                thread::yield_now();
                answer = answers.pop(&*shared, &*bar);
            }
        }
        if answer.is_some() || !barrier {
            capability(2).publish(&*bar, ENTRY);
        }
        nic.join().unwrap();
    }
}

#[test]
fn a_capability_slot_has_one_owner_at_a_time() {
    let seen = [Seen::new(), Seen::new(), Seen::new()];
    explore("revocation", Some(5), revocation(true, seen.clone()));
    for (seen, what) in seen.iter().zip(["none", "the old one", "the new one"]) {
        assert!(seen.count() > 0, "{what} was never seen");
    }
    must_fail(
        "revocation without the barrier event",
        Some(5),
        revocation(false, [Seen::new(), Seen::new(), Seen::new()]),
    );
}

/// The library polls a reply slot for its operation while the NIC fills it.
fn reply(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let area = Arc::new(Words::watching(
            flaw,
            1024,
            reply_at(3).0..reply_at(3).0 + REPLY_WORDS as u32,
        ));
        let old = Reply {
            op: OpId(8),
            status: Status::Unmapped,
            value: 0x1111_1111_1111_1111,
            second: 0x3333_3333_3333_3333,
        };
        old.store(&*area, 3);
        let new = Reply {
            op: OpId(9),
            status: Status::Ok,
            value: 0x2222_2222_2222_2222,
            second: 0x4444_4444_4444_4444,
        };
        let nic = {
            let area = area.clone();
            thread::spawn(move || new.store(&*area, 3))
        };
        match Reply::load(&*area, 3, OpId(9)) {
            Some(loaded) => {
                assert_eq!(loaded, new, "parts of an older reply");
                seen[1].mark();
            }
            None => seen[0].mark(),
        }
        nic.join().unwrap();
    }
}

#[test]
fn a_reply_is_whole_when_its_number_is_there() {
    let seen = [Seen::new(), Seen::new()];
    explore("reply", None, reply(Flaw::None, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0));
    must_fail(
        "reply, no order",
        None,
        reply(Flaw::NoOrder, [Seen::new(), Seen::new()]),
    );
}
