//! Pages that never come, and pages that the card cannot reach.

use crate::paging::{PAGE_17, World, world};
use netvm_abi::event::SourceAnswer;
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
