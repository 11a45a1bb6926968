//! Atomics whose operand is not mapped: mapped and tried again, or carried out by the host, once.

use crate::paging::{PAGE_17, World, world};
use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::control::Modes;
use netvm_abi::descriptor::Opcode;
use netvm_abi::event::{AtomicAnswer, HostEvent};
use netvm_abi::value::{ValueCode, ValueOp, ValueType};
use netvm_abi::wire::{Body, Header, Kind, MessageFlags, ReadTicket};
use netvm_abi::*;
use netvm_host::events::Notice;
use netvm_host::paging::WorkStep;
use netvm_host::platform::{Access, CopyEnd, Direction};
use netvm_kit::host::*;

impl World {
    fn atomic_answers(&mut self) -> Vec<AtomicAnswer> {
        let heard = self.stand.heard();
        heard
            .iter()
            .filter_map(|event| match *event {
                HostEvent::AtomicAnswer { answer, .. } => Some(answer),
                _ => None,
            })
            .collect()
    }
}

/// A fetch-and-add of `operand` to the eight bytes at this address.
fn add(w: &World, operand: u64, address: u64) -> Header {
    let mut header = Header {
        flags: MessageFlags::WIDE,
        ..write(w.port, &w.grant, address, 0)
    };
    header.set_body(request(Opcode::FetchAdd, operand));
    header
}

fn request(opcode: Opcode, operand: u64) -> Body {
    Body::AtomicRequest {
        ticket: ReadTicket::default(),
        opcode: Some(opcode),
        operand,
        compare: 0,
    }
}

#[test]
pub(crate) fn a_missed_operand_is_mapped_for_writing_and_tried_again() {
    let mut w = world();
    let header = add(&w, 2, PAGE_17 + 8);
    let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 0);
    assert_eq!(w.stand.poll(), [Notice::Work(w.port.port)]);
    let vpn = page_of(w.port, 17);
    assert_eq!(
        w.stand.next(w.port),
        Some(WorkStep::PageIn {
            id,
            vpn,
            access: Access::Write
        })
    );
    assert_eq!(w.stand.paged(id, Ok(5)), WorkStep::Ended { status: Status::Ok });
    assert_eq!(w.atomic_answers(), [AtomicAnswer::Retry]);
    assert!(w.stand.lock(vpn, true).is_ok());
    assert_eq!(w.stand.count("atomics_mapped"), 1);
}

#[test]
pub(crate) fn the_third_try_of_an_atomic_is_done_by_the_host() {
    let mut w = world();
    for (operation, stores) in [(2, true), (0, false)] {
        let header = add(&w, operation, PAGE_17 + 8);
        let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 3);
        w.stand.poll();
        w.page_in();
        let (_, out) = job(w.stand.paged(id, Ok(5)));
        assert_eq!(
            (out.direction, out.len, out.bounce),
            (Direction::OutOfPage, ByteLen(8), id.bounce)
        );
        w.stand.platform.bounce.insert(id.bounce, vec![u32::MAX, 1]);
        let step = w.stand.copied(id, CopyEnd::Done);
        if stores {
            let (_, back) = job(step);
            assert_eq!((back.direction, back.len), (Direction::IntoPage, ByteLen(8)));
            assert_eq!(w.stand.platform.bounce[&id.bounce][..2], [1, 2], "carried over");
            // Evicted before it is stored: paged in, and stored then.
            assert!(matches!(
                w.stand.copied(id, CopyEnd::Evicted),
                WorkStep::PageIn { .. }
            ));
            let (_, again) = job(w.stand.paged(id, Ok(6)));
            assert_eq!(again.direction, Direction::IntoPage);
            let _ = w.stand.copied(id, CopyEnd::Done);
        }
        let result = AtomicResult {
            value: 0x1_FFFF_FFFF,
            second: 0,
        };
        assert_eq!(w.atomic_answers(), [AtomicAnswer::Done(result)]);
    }
    assert_eq!(w.stand.count("atomics_done"), 2);
}

#[test]
pub(crate) fn an_operand_of_few_bytes_is_changed_alone() {
    let mut w = world();
    let sum = ValueCode::new(ValueOp::Sum, ValueType::U16).unwrap();
    let mut header = add(&w, 0, PAGE_17 + 6);
    header.set_body(request(sum.opcode(), 0x1_0003));
    let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 3);
    w.stand.poll();
    w.page_in();
    let (_, out) = job(w.stand.paged(id, Ok(5)));
    assert_eq!((out.direction, out.len), (Direction::OutOfPage, ByteLen(2)));
    // Behind the two bytes stands what an earlier use of the bounce page has left.
    w.stand.platform.bounce.insert(id.bounce, vec![0xABCD_FFFE, 7]);
    let (_, back) = job(w.stand.copied(id, CopyEnd::Done));
    assert_eq!((back.direction, back.len), (Direction::IntoPage, ByteLen(2)));
    assert_eq!(w.stand.platform.bounce[&id.bounce][0], 1, "wrapped");
    let _ = w.stand.copied(id, CopyEnd::Done);
    let result = AtomicResult {
        value: 0xFFFE,
        second: 0,
    };
    assert_eq!(w.atomic_answers(), [AtomicAnswer::Done(result)]);
}

#[test]
pub(crate) fn a_platform_that_can_carries_it_out_in_place() {
    let mut w = world();
    w.stand.platform.in_place = true;
    let result = AtomicResult { value: 41, second: 0 };
    let product = Atomic::on_value(ValueOp::Product, ValueType::F64, 7, 0).unwrap();
    // At the third try, and at once where the card cannot reach the page.
    for (attempt, reachable) in [(3, true), (0, false)] {
        let mut header = add(&w, 0, PAGE_17 + 8);
        header.set_body(request(product.opcode, product.operand));
        let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, attempt);
        w.stand.poll();
        w.page_in();
        let there = if reachable {
            w.stand.paged(id, Ok(5))
        } else {
            w.stand.paged_out_of_reach(id)
        };
        let (_, apply) = job(there);
        assert_eq!(
            (apply.direction, apply.len),
            (Direction::Apply(product), ByteLen(8))
        );
        // Evicted before: nothing has happened.
        assert!(matches!(
            w.stand.copied(id, CopyEnd::Evicted),
            WorkStep::PageIn { .. }
        ));
        let there = if reachable {
            w.stand.paged(id, Ok(6))
        } else {
            w.stand.paged_out_of_reach(id)
        };
        let (_, again) = job(there);
        assert_eq!(again.direction, apply.direction);
        assert_eq!(
            w.stand.copied(id, CopyEnd::Applied(result)),
            WorkStep::Ended { status: Status::Ok }
        );
        assert_eq!(w.atomic_answers(), [AtomicAnswer::Done(result)]);
    }
    assert_eq!(w.stand.count("atomics_done"), 2);
    // A queue block is more than a processor changes at once.
    let mut header = add(&w, 0, PAGE_17 + 32);
    header.set_body(request(Opcode::SemV, 0));
    let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 3);
    w.stand.poll();
    w.page_in();
    let (_, out) = job(w.stand.paged(id, Ok(5)));
    assert_eq!((out.direction, out.len), (Direction::OutOfPage, ByteLen(32)));
}

#[test]
pub(crate) fn an_atomic_that_may_not_be_is_refused() {
    let mut w = world();
    let good = add(&w, 2, PAGE_17 + 8);
    let mut no_atomic = good;
    no_atomic.set_body(request(Opcode::Write, 2));
    for (status, header) in [
        (Status::Malformed, no_atomic),
        (
            Status::Malformed,
            Header {
                address: VirtAddr(PAGE_17 + 4),
                ..good
            },
        ),
        (Status::Malformed, Header { len: 8, ..good }),
        (
            Status::Malformed,
            Header {
                kind: Kind::Write,
                ..good
            },
        ),
        (Status::CapabilityRefused, Header { secret: 1, ..good }),
        (
            Status::NoSuchPort,
            Header {
                destination_port: PortId(6),
                ..good
            },
        ),
    ] {
        let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 0);
        w.stand.poll();
        assert_eq!(w.stand.next(w.port), None, "{header:?}");
        assert_eq!(w.ended(), [(id.bounce, id.generation, status)], "{header:?}");
    }
    w.grant = w
        .stand
        .granted(PEER, PortId(2), w.port, "data", Modes::WRITE, 2)
        .expect("granted");
    w.stand.heard();
    let header = add(&w, 2, PAGE_17);
    let id = w.stand.atomic_miss(Stand::window(PEER, 0), &header, 0);
    w.stand.poll();
    assert_eq!(w.stand.next(w.port), None);
    assert_eq!(w.ended(), [(id.bounce, id.generation, Status::ModeRefused)]);
}
