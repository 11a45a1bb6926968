//! What a lost peer takes with it: its own messages and answers, and no other node's.

use crate::paging::{PAGE_17, world};
use netvm_abi::bounce::BounceUse;
use netvm_abi::event::NicEvent;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::*;
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_kit::host::*;

/// The node that stays.
const OTHER: NodeId = NodeId(2);

#[test]
fn answers_of_other_nodes_outlive_a_lost_peer() {
    let mut w = world();
    w.stand.link_up(OTHER);
    let mut answer = |node: NodeId, slot: u16| {
        let mut header = Header::new(Kind::ReadReply, node, NODE);
        header.destination_port = w.port.port;
        header.address = VirtAddr(20 * PAGE + u64::from(slot) * 8);
        header.len = 8;
        w.stand.bounce(BounceUse::Reply(ReadSlot(slot)), &header)
    };
    let lost = answer(PEER, 3);
    let kept = answer(OTHER, 4);
    w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    w.stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    w.stand.poll();
    assert_eq!(
        w.ended(),
        [(lost.bounce, lost.generation, Status::LinkLost)],
        "its window is void as a whole, and its answer ends"
    );
    assert_eq!(w.page_in(), kept, "the other node's answer waits for its page");
    job(w.stand.paged(kept, Ok(5)));
    assert_eq!(
        w.stand.copied(kept, CopyEnd::Done),
        WorkStep::Ended { status: Status::Ok }
    );
    assert_eq!(w.ended(), [(kept.bounce, kept.generation, Status::Ok)]);
    assert_eq!(w.stand.next(w.port), None, "the lost peer's write is not copied");
}
