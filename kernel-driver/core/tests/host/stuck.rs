//! Pages that never come, and pages that the card cannot reach.

use crate::paging::{PAGE_17, World, world};
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_kit::host::*;

/// A file's server is silent: the port ends all the same, its senders hear of it, and its number is free.
#[test]
pub(crate) fn a_port_ends_although_a_page_never_comes() {
    let mut w = world();
    let stuck = w.bounce(0, PAGE_17, 100);
    w.bounce(1, PAGE_17 + 200, 100);
    w.stand.poll();
    assert_eq!(w.page_in(), stuck);
    let mut close = w
        .stand
        .host
        .port_close_begin(&mut w.stand.platform, w.port)
        .expect("open");
    let step = |w: &mut World, close: &mut _| {
        w.stand.poll();
        let now = w.stand.now;
        w.stand
            .host
            .port_close_step(&mut w.stand.platform, close, now, 99, &mut |_| {})
    };
    for _ in 0..20 {
        assert_ne!(
            step(&mut w, &mut close),
            Progress::Done,
            "a worker has a page-in in hand"
        );
    }
    w.stand
        .host
        .work_abandon(&mut w.stand.platform, w.port.port, w.stand.now);
    let mut steps = 0;
    while step(&mut w, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 20);
    }
    let ended: Vec<Status> = w.ended().into_iter().map(|(_, _, status)| status).collect();
    assert_eq!(ended, [Status::NoSuchPort; 2], "each slot ends once");
    // Its number is another's at once.
    let again = w.stand.open();
    assert_eq!(again.port, w.port.port);
}

/// A port's end answers the sources that its card misses, and counts them as sources: nothing of them was bounced.
#[test]
pub(crate) fn a_source_that_waits_when_its_port_ends_is_no_bounced_message() {
    let mut w = world();
    w.stand.source_miss(0, page_of(w.port, 17), 100, 0);
    w.stand.poll();
    let mut close = w
        .stand
        .host
        .port_close_begin(&mut w.stand.platform, w.port)
        .expect("open");
    let ends = (0..20).any(|_| {
        w.stand.poll();
        let now = w.stand.now;
        let step = w
            .stand
            .host
            .port_close_step(&mut w.stand.platform, &mut close, now, 99, &mut |_| {});
        step == Progress::Done
    });
    assert!(ends);
    assert_eq!(w.answers(), [SourceAnswer::Failed(Status::NoSuchPort)]);
    assert_eq!(
        (w.stand.count("source_failed"), w.stand.count("bounce_refused")),
        (1, 0)
    );
}

/// What is being copied must come back: the bounce page is in use.
#[test]
pub(crate) fn a_copy_is_waited_for_and_its_next_page_in_is_not() {
    let mut w = world();
    let id = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    w.page_in();
    let (_, _) = job(w.stand.paged(id, Ok(5)));
    let mut close = w
        .stand
        .host
        .port_close_begin(&mut w.stand.platform, w.port)
        .expect("open");
    for _ in 0..20 {
        w.stand
            .host
            .work_abandon(&mut w.stand.platform, w.port.port, w.stand.now);
        w.stand.poll();
        let now = w.stand.now;
        let step = w
            .stand
            .host
            .port_close_step(&mut w.stand.platform, &mut close, now, 99, &mut |_| {});
        assert_ne!(step, Progress::Done);
    }
    let evicted = w.stand.copied(id, CopyEnd::Evicted);
    assert!(matches!(evicted, WorkStep::PageIn { .. }), "{evicted:?}");
    w.stand
        .host
        .work_abandon(&mut w.stand.platform, w.port.port, w.stand.now);
    for _ in 0..20 {
        w.stand.poll();
        let now = w.stand.now;
        let step = w
            .stand
            .host
            .port_close_step(&mut w.stand.platform, &mut close, now, 99, &mut |_| {});
        if step == Progress::Done {
            assert_eq!(w.ended().len(), 1, "its slot ends once");
            return;
        }
    }
    panic!("the port does not close");
}

/// The one copy needs no bus address: a message to a page that cannot be mapped lands, and each later one bounces.
#[test]
pub(crate) fn a_page_out_of_the_cards_reach_is_copied_and_not_mapped() {
    let mut w = world();
    for slot in 0..3 {
        let id = w.bounce(slot, PAGE_17, 100);
        w.stand.poll();
        assert_eq!(w.page_in(), id);
        let (copied, _) = job(w.stand.paged_out_of_reach(id));
        assert_eq!(copied, id);
        let end = w.stand.copied(id, CopyEnd::Done);
        assert_eq!(end, WorkStep::Ended { status: Status::Ok });
        assert_eq!(w.ended(), [(id.bounce, id.generation, Status::Ok)]);
    }
    assert!(w.stand.host.mapping(page_of(w.port, 17)).is_none());
    // A source is copied at its first miss: the NIC would miss it for ever.
    let id = w.stand.source_miss(0, page_of(w.port, 17), 100, 0);
    w.stand.poll();
    w.page_in();
    let (_, _) = job(w.stand.paged_out_of_reach(id));
    let end = w.stand.copied(id, CopyEnd::Done);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.answers(), [SourceAnswer::Copied]);
    assert_eq!(w.stand.count("pages_unreachable"), 4);
    // A page that was in reach when it was copied, and is not when it is looked at again, has landed, too.
    let id = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    w.page_in();
    let (_, _) = job(w.stand.paged(id, Ok(9)));
    let _ = w
        .stand
        .unmap(page_of(w.port, 17), 1, netvm_host::unmap::UnmapKind::Remove);
    let again = w.stand.copied(id, CopyEnd::Done);
    assert!(matches!(again, WorkStep::PageIn { .. }), "{again:?}");
    let end = w.stand.paged_out_of_reach(id);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
}

/// The default of [`netvm_host::attach::HostConfig::page_deadline`], and a look more: the first one may come right after the
/// worker has moved.
const DEADLINE: Nanos = Nanos(30_000_000_000 / 8 * 9);

impl World {
    /// Time goes by in which the card works and the driver looks as often as it must.
    fn wait(&mut self, span: Nanos) {
        let end = self.stand.now.after(span);
        while self.stand.now < end {
            let next = self.stand.host.next_deadline().min(end);
            self.stand.now = next.max(self.stand.now.after(Nanos(1)));
            self.stand.beat();
            self.stand.poll();
        }
    }

    fn statuses(&mut self) -> Vec<Status> {
        self.ended().into_iter().map(|(_, _, status)| status).collect()
    }
}

/// The slots of a port end although one page never comes, and what comes back late changes nothing.
#[test]
pub(crate) fn a_page_that_does_not_come_in_time_fails_its_message() {
    let mut w = world();
    let stuck = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    assert_eq!(w.page_in(), stuck);
    w.wait(Nanos(DEADLINE.0 / 2));
    let behind = w.bounce(1, PAGE_17 + PAGE, 100);
    w.stand.source_miss(0, page_of(w.port, 17), 100, 0);
    w.stand.poll();
    w.wait(Nanos(DEADLINE.0 / 2 - 1));
    assert!(w.ended().is_empty(), "not before its time");
    w.wait(Nanos(1));
    assert_eq!(w.ended(), [(stuck.bounce, stuck.generation, Status::TimedOut)]);
    w.wait(Nanos(DEADLINE.0 - 1));
    assert!(w.ended().is_empty());
    w.wait(Nanos(1));
    let heard = w.stand.heard();
    let behind = HostEvent::BounceEnded {
        bounce: behind.bounce,
        generation: behind.generation,
        status: Status::TimedOut,
    };
    assert!(heard.contains(&behind), "{heard:?}");
    let failed = |event: &HostEvent| {
        let answer = SourceAnswer::Failed(Status::TimedOut);
        matches!(event, HostEvent::SourceAnswer { answer: said, .. } if *said == answer)
    };
    assert!(heard.iter().any(failed), "{heard:?}");
    assert_eq!(
        (w.stand.count("pages_overdue"), w.stand.count("bounce_failed")),
        (3, 2)
    );

    // The slot is another message's when the worker comes back.
    let next = w.bounce(0, PAGE_17, 50);
    w.stand.poll();
    let stale = WorkStep::Ended {
        status: Status::StaleIncarnation,
    };
    assert_eq!(w.stand.paged(stuck, Ok(5)), stale);
    assert!(w.stand.host.mapping(page_of(w.port, 17)).is_none());
    assert_eq!(w.page_in(), next);
    let (_, _) = job(w.stand.paged(next, Ok(5)));
    let end = w.stand.copied(next, CopyEnd::Done);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.statuses(), [Status::Ok]);
}

/// Slow is not stuck: however long a piece of work lies in its queue, the worker gets to it.
#[test]
pub(crate) fn a_worker_that_moves_is_waited_for() {
    let mut w = world();
    let sent: Vec<_> = (0..8).map(|slot| w.bounce(slot, PAGE_17 + 100, 10)).collect();
    w.stand.poll();
    for id in sent {
        assert_eq!(w.page_in(), id);
        w.wait(Nanos(DEADLINE.0 / 9 * 8 - 1));
        let (_, _) = job(w.stand.paged(id, Ok(5)));
        let end = w.stand.copied(id, CopyEnd::Done);
        assert_eq!(end, WorkStep::Ended { status: Status::Ok });
    }
    assert_eq!(w.statuses(), [Status::Ok; 8]);
    assert_eq!(w.stand.count("pages_overdue"), 0);
}

/// A process that was stopped finds everything late: its worker gets its time once both run again.
#[test]
pub(crate) fn a_driver_that_stood_still_gives_its_worker_time() {
    let mut w = world();
    w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    w.page_in();
    w.stand.now = w.stand.now.after(Nanos(DEADLINE.0 * 10));
    w.stand.poll();
    w.wait(Nanos(DEADLINE.0 / 9 * 8 - 1));
    assert!(w.ended().is_empty());
    w.wait(Nanos(1));
    assert_eq!(w.statuses(), [Status::TimedOut]);
}

/// Its bounce page is in use. What lies behind it ends all the same.
#[test]
pub(crate) fn a_copy_is_not_ended_by_any_deadline() {
    let mut w = world();
    let id = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    w.page_in();
    let (_, _) = job(w.stand.paged(id, Ok(5)));
    w.bounce(1, PAGE_17, 100);
    w.stand.poll();
    w.wait(Nanos(DEADLINE.0 * 2));
    assert_eq!(w.statuses(), [Status::TimedOut]);
    let end = w.stand.copied(id, CopyEnd::Done);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.statuses(), [Status::Ok]);
}

/// What is copied has landed. Its page may be asked for once more, only to be mapped.
#[test]
pub(crate) fn a_message_that_is_copied_does_not_fail_for_want_of_its_page() {
    let mut w = world();
    let id = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    w.page_in();
    let (_, _) = job(w.stand.paged(id, Ok(5)));
    let _ = w
        .stand
        .unmap(page_of(w.port, 17), 1, netvm_host::unmap::UnmapKind::Remove);
    let again = w.stand.copied(id, CopyEnd::Done);
    assert!(matches!(again, WorkStep::PageIn { .. }), "{again:?}");
    w.wait(DEADLINE);
    assert_eq!(w.statuses(), [Status::Ok]);
    assert_eq!(w.stand.count("bounce_failed"), 0);
}

/// A link that is lost comes again at once, although a message of its last life waits for a page.
#[test]
pub(crate) fn a_link_is_released_although_a_page_never_comes() {
    let mut w = world();
    let stuck = w.bounce(0, PAGE_17, 100);
    w.stand.poll();
    assert_eq!(w.page_in(), stuck);
    w.stand.say(NicEvent::PeerLost {
        peer: PEER,
        incarnation: LINK,
    });
    w.stand.poll();
    assert_eq!(w.stand.count("peers_released"), 1);
    assert_eq!(w.stand.count("bounce_dropped"), 1);
    let stale = WorkStep::Ended {
        status: Status::StaleIncarnation,
    };
    assert_eq!(w.stand.paged(stuck, Ok(5)), stale);
    assert!(w.statuses().is_empty(), "the card has forgotten it");
}
