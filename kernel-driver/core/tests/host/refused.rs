//! Bounced messages that the host refuses: each ends its slot with the reason.

use crate::paging::{PAGE_17, World, world};
use netvm_abi::control::Modes;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::*;
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_kit::host::*;

#[test]
pub(crate) fn what_is_wrong_with_a_bounced_write_ends_its_slot() {
    let mut w = world();
    let port = w.port;
    let good = write(port, &w.grant, PAGE_17, 8);
    let cases: Vec<(Status, Header)> = vec![
        (
            Status::CapabilityRefused,
            Header {
                secret: good.secret ^ 1,
                ..good
            },
        ),
        (
            Status::CapabilityRefused,
            Header {
                capability: CapabilitySlot(7),
                ..good
            },
        ),
        (
            Status::CapabilityRefused,
            Header {
                capability: CapabilitySlot(u32::MAX),
                ..good
            },
        ),
        (
            Status::CapabilityRefused,
            Header {
                source_port: PortId(9),
                ..good
            },
        ),
        (
            Status::OutOfRange,
            Header {
                address: VirtAddr(15 * PAGE),
                ..good
            },
        ),
        (
            Status::OutOfRange,
            Header {
                address: VirtAddr(32 * PAGE),
                ..good
            },
        ),
        (
            Status::ModeRefused,
            Header {
                notification: NotificationId(101),
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                address: VirtAddr(PAGE_17 + 4095),
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                address: VirtAddr(u64::MAX - 7),
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                len: u16::MAX,
                ..good
            },
        ),
        (
            Status::NoSuchPort,
            Header {
                destination_port: PortId(5),
                ..good
            },
        ),
        (
            Status::NoSuchPort,
            Header {
                destination_port: PortId(u16::MAX),
                ..good
            },
        ),
        (
            Status::NoSuchPort,
            Header {
                destination_port: PortId(0),
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                source: NodeId(u16::MAX),
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                kind: Kind::Ack,
                ..good
            },
        ),
        (
            // One that the NIC bounced instead of missing it.
            Status::Unsupported,
            Header {
                kind: Kind::AtomicRequest,
                ..good
            },
        ),
        (
            Status::Malformed,
            Header {
                kind: Kind::ReadReply,
                ..good
            },
        ),
    ];
    for (status, header) in cases {
        let id = w.stand.bounce(Stand::window(PEER, 0), &header);
        w.stand.poll();
        assert_eq!(w.stand.next(port), None, "{header:?}");
        assert_eq!(w.ended(), [(id.bounce, id.generation, status)], "{header:?}");
    }
    assert!(w.stand.count("bounce_refused") > 0 && w.stand.count("bounce_bad") > 0);
}

/// A world whose peer may read, and no more.
fn readable() -> World {
    let mut w = world();
    w.grant = w
        .stand
        .granted(PEER, PortId(2), w.port, "data", Modes::READ, 2)
        .expect("granted");
    w.stand.heard();
    w
}

#[test]
pub(crate) fn a_capability_to_read_does_not_let_a_bounced_write_in() {
    let mut w = readable();
    let id = w.bounce(0, PAGE_17, 8);
    w.stand.poll();
    assert_eq!(w.stand.next(w.port), None);
    assert_eq!(w.ended(), [(id.bounce, id.generation, Status::ModeRefused)]);
}

/// The driver is held during a step, and a port may have windows full of work that is refused.
#[test]
pub(crate) fn a_step_refuses_one_piece_of_work() {
    let mut w = readable();
    for slot in 0..3 {
        w.bounce(slot, PAGE_17, 8);
    }
    w.stand.poll();
    for _ in 0..3 {
        let refused = WorkStep::Ended {
            status: Status::ModeRefused,
        };
        assert_eq!(w.stand.take(w.port), Some(refused));
        assert_eq!(w.ended().len(), 1);
    }
    assert_eq!(w.stand.take(w.port), None);
}

#[test]
pub(crate) fn a_revoked_capability_refuses_what_waits_and_waits_for_what_is_copied() {
    let mut w = world();
    w.bounce(0, PAGE_17, 8);
    w.bounce(1, PAGE_17 + 8, 8);
    w.bounce(2, PAGE_17 + 16, 8);
    w.stand.poll();
    let copying = w.page_in();
    let _ = w.stand.paged(copying, Ok(1));
    let paging = w.page_in();
    let export = ExportId(1 << 16);
    let mut unexport = w
        .stand
        .host
        .unexport_begin(w.port.port, export)
        .expect("exported");
    for _ in 0..5 {
        w.stand.poll();
        let step = w
            .stand
            .host
            .unexport_step(&mut w.stand.platform, &mut unexport, w.stand.now);
        assert_ne!(step, netvm_host::Progress::Done, "a copy is under way");
    }
    assert_eq!(
        w.stand.paged(paging, Ok(1)),
        WorkStep::Ended {
            status: Status::CapabilityRefused
        },
        "checked again after the page in"
    );
    assert_eq!(w.stand.next(w.port), None, "refused when its slot is emptied");
    let ended: Vec<_> = w.ended().iter().map(|end| end.2).collect();
    assert_eq!(ended, [Status::CapabilityRefused, Status::CapabilityRefused]);
    assert_eq!(
        w.stand.copied(copying, CopyEnd::Done),
        WorkStep::Ended { status: Status::Ok }
    );
    let step = w
        .stand
        .host
        .unexport_step(&mut w.stand.platform, &mut unexport, w.stand.now);
    assert_eq!(step, netvm_host::Progress::Done);
}
