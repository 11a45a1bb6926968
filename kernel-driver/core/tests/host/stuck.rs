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
    w.rig.poll();
    assert_eq!(w.page_in(), stuck);
    let mut close = w
        .rig
        .host
        .port_close_begin(&mut w.rig.platform, w.port)
        .expect("open");
    let step = |w: &mut World, close: &mut _| {
        w.rig.poll();
        let now = w.rig.now;
        w.rig
            .host
            .port_close_step(&mut w.rig.platform, close, now, 99, &mut |_| {})
    };
    for _ in 0..20 {
        assert_ne!(
            step(&mut w, &mut close),
            Progress::Done,
            "a worker has a page-in in hand"
        );
    }
    w.rig
        .host
        .work_abandon(&mut w.rig.platform, w.port.port, w.rig.now);
    let mut steps = 0;
    while step(&mut w, &mut close) != Progress::Done {
        steps += 1;
        assert!(steps < 20);
    }
    let ended: Vec<Status> = w.ended().into_iter().map(|(_, _, status)| status).collect();
    assert_eq!(ended, [Status::NoSuchPort; 2], "each slot ends once");
    // Its number is another's at once.
    let again = w.rig.open();
    assert_eq!(again.port, w.port.port);
}

/// What is being copied must come back: the bounce page is in use.
#[test]
pub(crate) fn a_copy_is_waited_for_and_its_next_page_in_is_not() {
    let mut w = world();
    let id = w.bounce(0, PAGE_17, 100);
    w.rig.poll();
    w.page_in();
    let (_, _) = job(w.rig.paged(id, Ok(5)));
    let mut close = w
        .rig
        .host
        .port_close_begin(&mut w.rig.platform, w.port)
        .expect("open");
    for _ in 0..20 {
        w.rig
            .host
            .work_abandon(&mut w.rig.platform, w.port.port, w.rig.now);
        w.rig.poll();
        let now = w.rig.now;
        let step = w
            .rig
            .host
            .port_close_step(&mut w.rig.platform, &mut close, now, 99, &mut |_| {});
        assert_ne!(step, Progress::Done);
    }
    let evicted = w.rig.copied(id, CopyEnd::Evicted);
    assert!(matches!(evicted, WorkStep::PageIn { .. }), "{evicted:?}");
    w.rig
        .host
        .work_abandon(&mut w.rig.platform, w.port.port, w.rig.now);
    for _ in 0..20 {
        w.rig.poll();
        let now = w.rig.now;
        let step = w
            .rig
            .host
            .port_close_step(&mut w.rig.platform, &mut close, now, 99, &mut |_| {});
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
        w.rig.poll();
        assert_eq!(w.page_in(), id);
        let (copied, _) = job(w.rig.paged_out_of_reach(id));
        assert_eq!(copied, id);
        let end = w.rig.copied(id, CopyEnd::Done);
        assert_eq!(end, WorkStep::Ended { status: Status::Ok });
        assert_eq!(w.ended(), [(id.bounce, id.generation, Status::Ok)]);
    }
    assert!(w.rig.host.mapping(page_of(w.port, 17)).is_none());
    // A source is copied at its first miss: the NIC would miss it for ever.
    let id = w.rig.source_miss(0, page_of(w.port, 17), 100, 0);
    w.rig.poll();
    w.page_in();
    let (_, _) = job(w.rig.paged_out_of_reach(id));
    let end = w.rig.copied(id, CopyEnd::Done);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.answers(), [SourceAnswer::Copied]);
    assert_eq!(w.rig.count("pages_unreachable"), 4);
    // A page that was in reach when it was copied, and is not when it is looked at again, has landed, too.
    let id = w.bounce(0, PAGE_17, 100);
    w.rig.poll();
    w.page_in();
    let (_, _) = job(w.rig.paged(id, Ok(9)));
    let _ = w
        .rig
        .unmap(page_of(w.port, 17), 1, netvm_host::unmap::UnmapKind::Remove);
    let again = w.rig.copied(id, CopyEnd::Done);
    assert!(matches!(again, WorkStep::PageIn { .. }), "{again:?}");
    let end = w.rig.paged_out_of_reach(id);
    assert_eq!(end, WorkStep::Ended { status: Status::Ok });
}
