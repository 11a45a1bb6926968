//! Bounced messages: each is answered once, whatever happens meanwhile (promise P2).

use netvm_abi::bounce::BounceUse;
use netvm_abi::control::Modes;
use netvm_abi::event::{HostEvent, SourceAnswer};
use netvm_abi::page_lock::Used;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::*;
use netvm_host::events::Notice;
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{Access, CopyEnd, Direction};
use netvm_host::ports::OpenPort;
use netvm_host::tally::WorkTally;
use netvm_host::unmap::{UnmapKind, UnmapStep};
use netvm_kit::host::*;

pub(crate) struct World {
    pub(crate) stand: Stand,
    pub(crate) port: OpenPort,
    pub(crate) grant: control::Grant,
}

/// A port with pages 16..32 registered and exported for writing to anyone; a peer holds a grant.
pub(crate) fn world() -> World {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 16, 16);
    stand.export(port, "data", 16, 16, Modes::all());
    stand.link_up(PEER);
    let grant = stand
        .granted(PEER, PortId(2), port, "data", Modes::all() - Modes::READ, 1)
        .expect("granted");
    stand.heard();
    World { stand, port, grant }
}

impl World {
    pub(crate) fn bounce(&mut self, slot: u16, address: u64, len: u16) -> WorkId {
        let header = write(self.port, &self.grant, address, len);
        self.stand.bounce(Stand::window(PEER, slot), &header)
    }

    pub(crate) fn ended(&mut self) -> Vec<(BounceId, Generation, Status)> {
        let heard = self.stand.heard();
        heard
            .iter()
            .filter_map(|event| match *event {
                HostEvent::BounceEnded {
                    bounce,
                    generation,
                    status,
                } => Some((bounce, generation, status)),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn answers(&mut self) -> Vec<SourceAnswer> {
        let heard = self.stand.heard();
        heard
            .iter()
            .filter_map(|event| match *event {
                HostEvent::SourceAnswer { answer, .. } => Some(answer),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn page_in(&mut self) -> WorkId {
        match self.stand.next(self.port) {
            Some(WorkStep::PageIn { id, .. }) => id,
            other => panic!("no page in but {other:?}"),
        }
    }
}

pub(crate) const PAGE_17: u64 = 17 * PAGE;

#[test]
pub(crate) fn a_bounced_write_is_copied_once_mapped_and_ended() {
    let mut w = world();
    let sent = w.bounce(3, PAGE_17 + 100, 50);
    assert_eq!(w.stand.poll(), [Notice::Work(w.port.port)]);
    let vpn = page_of(w.port, 17);
    assert_eq!(
        w.stand.next(w.port),
        Some(WorkStep::PageIn {
            id: sent,
            vpn,
            access: Access::Write
        })
    );
    assert_eq!(w.stand.next(w.port), None);
    let step = w.stand.paged(sent, Ok(900));
    let (id, job) = job(step);
    assert_eq!(id, sent);
    assert_eq!((job.bounce, job.vpn), (sent.bounce, vpn));
    assert_eq!((job.offset, job.len), (PageOffset(100), ByteLen(50)));
    assert_eq!(job.direction, Direction::IntoPage);
    assert!(w.ended().is_empty(), "not before the copy");
    w.stand.now = Nanos(7000);
    assert_eq!(
        w.stand.copied(sent, CopyEnd::Done),
        WorkStep::Ended { status: Status::Ok }
    );
    assert_eq!(w.ended(), [(sent.bounce, sent.generation, Status::Ok)]);
    let page = w.stand.lock(vpn, true).expect("the next one hits");
    assert_eq!(page.ppn, Ppn(900));
    w.stand.unlock(page, Used::Written);
    // A result that comes twice changes nothing.
    w.stand.copied(sent, CopyEnd::Done);
    w.stand.paged(sent, Ok(1));
    assert!(w.ended().is_empty());
    assert_eq!(w.stand.count("bounce_bytes"), 50);
    assert_eq!(w.stand.host.slowest_answer(), Nanos(7000));
}

#[test]
fn a_port_a_segment_and_a_link_have_books_of_their_own() {
    let mut w = world();
    let (host, platform) = (&w.stand.host, &w.stand.platform);
    let (port, before, work) = host.port_tally(platform, PortId(0)).expect("one is open");
    assert_eq!((port, work), (w.port.port, WorkTally::default()));
    assert_eq!((before.segments, before.queued), (1, 0));
    let sent = w.bounce(3, PAGE_17 + 100, 50);
    let refused = w.bounce(4, 40 * PAGE, 8);
    w.stand.poll();
    let queued = |w: &World| {
        w.stand
            .host
            .port_tally(&w.stand.platform, port)
            .expect("open")
            .1
            .queued
    };
    assert_eq!(queued(&w), 2);
    w.stand.now = Nanos(7000);
    assert_eq!(w.page_in(), sent);
    w.stand.paged(sent, Ok(900));
    w.stand.copied(sent, CopyEnd::Done);
    assert_eq!(
        w.stand.next(w.port),
        None,
        "the other one leaves its segment: {refused:?}"
    );
    let expected = WorkTally {
        bounced: 1,
        bounced_bytes: 50,
        slowest_ns: 7000,
        ..WorkTally::default()
    };
    let both = WorkTally {
        failed: 1,
        ..expected
    };
    let (host, platform) = (&w.stand.host, &w.stand.platform);
    let (_, now, work) = host.port_tally(platform, PortId(0)).expect("open");
    assert_eq!((now.queued, now.in_hand, work), (0, 0, both));
    let (place, segment, work) = host.segment_tally(0).expect("registered");
    assert_eq!(
        (segment.start, segment.bytes, segment.exports),
        (16 * PAGE, 16 * PAGE, 1)
    );
    assert_eq!((segment.pages_mapped, segment.port), (1, u64::from(port.0)));
    assert_eq!(work, expected);
    assert_eq!(host.segment_tally(place + 1), None);
    let (peer, link, work) = host.peer_tally(platform, NodeId(0)).expect("up");
    assert_eq!((peer, link.grants, work), (PEER, 1, both));
    assert_eq!(link.incarnation, u64::from(LINK.0));
    assert_eq!(host.peer_tally(platform, NodeId(PEER.0 + 1)), None);
    assert_eq!(host.port_tally(platform, PortId(port.0 + 1)), None);
    // The next owner of the port begins with empty books.
    w.stand.close(w.port);
    assert_eq!(w.stand.host.port_tally(&w.stand.platform, PortId(0)), None);
    assert_eq!(w.stand.host.segment_tally(0), None);
    w.stand.open();
    let (_, _, work) = w
        .stand
        .host
        .port_tally(&w.stand.platform, PortId(0))
        .expect("open again");
    assert_eq!(work, WorkTally::default());
}

#[test]
pub(crate) fn a_page_that_cannot_be_had_ends_the_slot_with_its_status() {
    for status in [
        Status::Unmapped,
        Status::ReadOnly,
        Status::NoMemory,
        Status::BusError,
    ] {
        let mut w = world();
        w.bounce(0, PAGE_17, 8);
        w.stand.poll();
        let id = w.page_in();
        assert_eq!(w.stand.paged(id, Err(status)), WorkStep::Ended { status });
        assert_eq!(w.ended(), [(id.bounce, id.generation, status)]);
        assert_eq!(w.stand.count("bounce_failed"), 1);
        // And a failing copy.
        w.bounce(0, PAGE_17, 8);
        w.stand.poll();
        let id = w.page_in();
        let _ = w.stand.paged(id, Ok(1));
        assert_eq!(
            w.stand.copied(id, CopyEnd::Failed(status)),
            WorkStep::Ended { status }
        );
        assert_eq!(w.ended(), [(id.bounce, id.generation, status)]);
    }
}

#[test]
pub(crate) fn after_three_lost_races_the_message_is_copied_but_not_mapped() {
    let mut w = world();
    w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    let vpn = page_of(w.port, 17);
    let id = w.page_in();
    let _ = w.stand.paged(id, Ok(1));
    let mut copies = 1;
    for race in 1..=3 {
        assert_eq!(w.stand.unmap(vpn, 1, UnmapKind::Remove), UnmapStep::Done);
        let step = match race {
            1 => w.stand.copied(id, CopyEnd::Done),
            _ => w.stand.paged(id, Ok(1)),
        };
        match step {
            WorkStep::PageIn { .. } => assert!(race < 3),
            WorkStep::Ended { status } => assert_eq!((race, status), (3, Status::Ok)),
            WorkStep::Copy { .. } => copies += 1,
        }
    }
    assert_eq!(copies, 1, "copied once");
    assert_eq!(w.ended(), [(id.bounce, id.generation, Status::Ok)]);
    assert!(w.stand.host.mapping(vpn).is_none());
    assert_eq!(w.stand.count("bounce_unmapped"), 1);
    assert_eq!(w.stand.count("paging_retries"), 2);
    assert_eq!(w.stand.count("map_races"), 3);
}

#[test]
pub(crate) fn a_lost_race_is_run_again_and_won() {
    let mut w = world();
    w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    let vpn = page_of(w.port, 17);
    let id = w.page_in();
    let _ = w.stand.paged(id, Ok(1));
    let _ = w.stand.unmap(vpn, 1, UnmapKind::Remove);
    assert!(matches!(
        w.stand.copied(id, CopyEnd::Done),
        WorkStep::PageIn { .. }
    ));
    assert_eq!(w.stand.paged(id, Ok(2)), WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.stand.host.mapping(vpn).map(|page| page.ppn), Some(Ppn(2)));
}

#[test]
pub(crate) fn an_evicted_page_is_paged_in_again_before_the_copy() {
    let mut w = world();
    w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    let id = w.page_in();
    for _ in 0..31 {
        let _ = w.stand.paged(id, Ok(1));
        assert!(matches!(
            w.stand.copied(id, CopyEnd::Evicted),
            WorkStep::PageIn { .. }
        ));
    }
    let _ = w.stand.paged(id, Ok(1));
    assert_eq!(
        w.stand.copied(id, CopyEnd::Evicted),
        WorkStep::Ended {
            status: Status::NoMemory
        },
        "but not for ever"
    );
    assert_eq!(w.ended().len(), 1);
    assert_eq!(w.stand.count("copies_evicted"), 32);
}

#[test]
pub(crate) fn a_read_reply_lands_in_the_port_s_own_page_without_a_capability() {
    let mut w = world();
    let mut header = Header::new(Kind::ReadReply, PEER, NODE);
    header.destination_port = w.port.port;
    header.address = VirtAddr(20 * PAGE + 8);
    header.len = 16;
    let place = BounceUse::Reply(ReadSlot(3));
    let id = w.stand.bounce(place, &header);
    w.stand.poll();
    assert_eq!(w.page_in(), id);
    let step = w.stand.paged(id, Ok(5));
    assert_eq!(job(step).1.offset, PageOffset(8));
    w.stand.copied(id, CopyEnd::Done);
    assert_eq!(w.ended(), [(id.bounce, id.generation, Status::Ok)]);
    header.address = VirtAddr(40 * PAGE);
    w.stand.bounce(place, &header);
    w.stand.poll();
    assert_eq!(w.stand.next(w.port), None);
    assert_eq!(w.ended()[0].2, Status::LocalAddress);
    assert_eq!(w.stand.count("bounced_replies"), 2);
}

#[test]
pub(crate) fn events_that_make_no_sense_are_counted_and_harmless() {
    let mut w = world();
    let slots = w.stand.host.geometry().bounce_slots();
    let mut bad = w.stand.count("nic_events_bad");
    for words in [
        [1, slots, 1, 0, 0, 0, 0, 0],
        [1, slots - 1, 1, 0, 0, 0, 0, 0],
        [1, u32::MAX, 1, 0, 0, 0, 0, 0],
        [2, 0xFFFF, 1, 0, 0, 8, 0, 0],
        [3, 3, 1, 0, 0, 0, 0, 0],
        [4, 0xFFFF, 1, 0, 0, 0, 0, 0],
        [5, 77, 1, 0, 0, 0, 0, 0],
        [6, 1234, 0, 0, 0, 0, 0, 0],
        [7, 4, 1, 0, 0, 0, 0, 0],
        [8, 99, 0, 0, 0, 0, 0, 0],
        [99, 0, 0, 0, 0, 0, 0, 0],
        [u32::MAX; 8],
    ] {
        w.stand.say_words(words);
        assert_eq!(w.stand.poll(), []);
        bad += 1;
        assert_eq!(w.stand.count("nic_events_bad"), bad, "{words:x?}");
    }
    // The same bounce page twice while the first use is not over.
    w.bounce(0, PAGE_17, 8);
    w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    assert_eq!(w.stand.count("nic_events_bad"), bad + 1);
    assert!(w.stand.next(w.port).is_some() && w.stand.next(w.port).is_none());
}
