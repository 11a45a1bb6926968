//! Pages that a card wants to read from and that are missing: they come, or the operation is told why not.

use crate::paging::world;
use netvm_abi::bounce::BounceUse;
use netvm_abi::event::SourceAnswer;
use netvm_abi::*;
use netvm_host::events::Notice;
use netvm_host::paging::WorkStep;
use netvm_host::platform::{Access, CopyEnd, Direction};
use netvm_host::unmap::UnmapKind;
use netvm_kit::host::*;

#[test]
pub(crate) fn a_source_miss_is_mapped_and_tried_again() {
    let mut w = world();
    let vpn = page_of(w.port, 20);
    let id = w.stand.source_miss(2, vpn, 100, 0);
    assert_eq!(w.stand.poll(), [Notice::Work(w.port.port)]);
    assert_eq!(
        w.stand.next(w.port),
        Some(WorkStep::PageIn {
            id,
            vpn,
            access: Access::Read
        })
    );
    assert_eq!(w.stand.paged(id, Ok(5)), WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.answers(), [SourceAnswer::Retry]);
    assert!(w.stand.lock(vpn, false).is_ok());
    assert_eq!(w.stand.count("source_mapped"), 1);
}

#[test]
pub(crate) fn the_third_try_of_a_source_is_copied() {
    let mut w = world();
    let vpn = page_of(w.port, 20);
    let id = w.stand.source_miss(2, vpn, 100, 3);
    w.stand.poll();
    w.page_in();
    let step = w.stand.paged(id, Ok(5));
    let (_, job) = job(step);
    assert_eq!(job.direction, Direction::OutOfPage);
    assert_eq!(
        job.bounce,
        BounceUse::Source(StagingId(2)).id(w.stand.host.geometry())
    );
    w.stand.copied(id, CopyEnd::Done);
    assert_eq!(w.answers(), [SourceAnswer::Copied]);
    // Lost races come to the same.
    let id = w.stand.source_miss(2, vpn, 100, 0);
    w.stand.poll();
    w.page_in();
    for _ in 0..2 {
        let _ = w.stand.unmap(vpn, 1, UnmapKind::Remove);
        assert!(matches!(w.stand.paged(id, Ok(5)), WorkStep::PageIn { .. }));
    }
    let _ = w.stand.unmap(vpn, 1, UnmapKind::Remove);
    assert!(matches!(w.stand.paged(id, Ok(5)), WorkStep::Copy { .. }));
    w.stand.copied(id, CopyEnd::Done);
    assert_eq!(w.answers(), [SourceAnswer::Copied]);
    assert_eq!(w.stand.count("source_copied"), 2);
}

#[test]
pub(crate) fn a_source_that_cannot_be_had_fails() {
    let mut w = world();
    let port = w.port;
    for (vpn, len, status) in [
        (page_of(port, 99), 8, Status::Unmapped),
        (page_of(port, 20), 4097, Status::Malformed),
        (page_of(port, 20), u32::MAX, Status::Malformed),
        (Vpn::new(PortId(6), 20), 8, Status::NoSuchPort),
        (Vpn::new(PortId(900), 20), 8, Status::NoSuchPort),
    ] {
        w.stand.source_miss(1, vpn, len, 0);
        w.stand.poll();
        assert_eq!(w.stand.next(port), None);
        assert_eq!(w.answers(), [SourceAnswer::Failed(status)]);
    }
    let id = w.stand.source_miss(1, page_of(port, 20), 8, 0);
    w.stand.poll();
    w.page_in();
    let _ = w.stand.paged(id, Err(Status::BusError));
    assert_eq!(w.answers(), [SourceAnswer::Failed(Status::BusError)]);
    assert_eq!(w.stand.count("source_failed"), 6);
}
