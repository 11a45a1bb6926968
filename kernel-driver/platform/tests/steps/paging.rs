//! The paging worker: page in, tell, copy, publish; what is done under the lock, and how it ends.

use crate::desk::{Desk, Did, world};
use crate::process::{Memory, Slow};
use netvm_abi::control::Grant;
use netvm_abi::event::HostEvent;
use netvm_abi::{Nanos, Status};
use netvm_host::paging::WorkId;
use netvm_host::platform::{Access, CopyEnd, Direction};
use netvm_host::ports::OpenPort;
use netvm_host_platform::paging::{Ended, Turn, Worker, serve_one};
use netvm_kit::host::{PAGE, PEER, Stand, page_of, write};
use std::cell::Cell;

/// A write to page 17 was bounced.
fn bounce(desk: &Desk, port: OpenPort, grant: &Grant) -> WorkId {
    let header = write(port, grant, 17 * PAGE + 100, 50);
    desk.with(|stand| {
        let sent = stand.bounce(Stand::window(PEER, 3), &header);
        stand.poll();
        sent
    })
}

fn answers(desk: &Desk) -> Vec<(WorkId, Status)> {
    let heard = desk.with(Stand::heard);
    heard
        .iter()
        .filter_map(|event| match *event {
            HostEvent::BounceEnded {
                bounce,
                generation,
                status,
            } => Some((WorkId { bounce, generation }, status)),
            _ => None,
        })
        .collect()
}

fn ended(port: OpenPort, status: Status) -> Option<Ended> {
    Some(Ended {
        vpn: Some(page_of(port, 17)),
        status,
    })
}

#[test]
fn a_bounced_write_is_paged_in_copied_and_published_in_two_critical_sections() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    assert_eq!(serve_one(&memory), None, "there is no work");
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let vpn = page_of(port, 17);
    assert_eq!(
        desk.did(),
        [
            Did::PageIn(vpn, Access::Write),
            Did::Offer,
            Did::Prepare,
            Did::Settle { keep: true },
            Did::Copy(Direction::IntoPage),
            Did::Prepare,
            Did::Settle { keep: false },
            Did::Let,
        ]
    );
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
    assert!(
        desk.with(|stand| stand.lock(vpn, true).is_ok()),
        "the next message finds the page"
    );
    assert_eq!(serve_one(&memory), None);
}

#[test]
fn a_lost_race_lets_the_page_go_before_it_is_brought_in_again() {
    let (desk, port, _) = world();
    let memory = Memory::new(&desk, port);
    memory.races.set(1);
    let vpn = page_of(port, 17);
    desk.with(|stand| {
        stand.source_miss(1, vpn, 64, 1);
        stand.poll();
    });
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let once = [
        Did::PageIn(vpn, Access::Read),
        Did::Offer,
        Did::Prepare,
        Did::Settle { keep: false },
        Did::Let,
    ];
    assert_eq!(desk.did(), [once, once].concat());
    assert_eq!(
        desk.with(|stand| stand.host.mapping(vpn)),
        memory.result.expect("a page")
    );
}

#[test]
fn a_page_that_is_evicted_before_its_copy_is_brought_in_again() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    memory.ends.borrow_mut().push(CopyEnd::Evicted);
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let did = desk.did();
    let count = |wanted: Did| did.iter().filter(|did| **did == wanted).count();
    assert_eq!(count(Did::PageIn(page_of(port, 17), Access::Write)), 2);
    assert_eq!((count(Did::Copy(Direction::IntoPage)), count(Did::Let)), (2, 2));
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
}

#[test]
fn a_page_that_will_not_come_ends_its_work_with_the_reason() {
    let (desk, port, grant) = world();
    let mut memory = Memory::new(&desk, port);
    memory.result = Err(Status::BusError);
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::BusError));
    assert_eq!(desk.did(), [Did::PageIn(page_of(port, 17), Access::Write)]);
    assert_eq!(answers(&desk), [(sent, Status::BusError)]);
}

#[test]
fn a_page_for_a_port_that_ends_is_neither_told_nor_published() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    let vpn = page_of(port, 17);
    memory.ends_at.set(Some(Did::PageIn(vpn, Access::Write)));
    bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), None);
    assert_eq!(desk.did(), [Did::PageIn(vpn, Access::Write), Did::Let]);
    assert_eq!(answers(&desk), [], "the end of the port answers");
    assert_eq!(desk.with(|stand| stand.host.mapping(vpn)), None);
}

#[test]
fn a_copy_is_told_while_the_port_ends() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    memory.ends_at.set(Some(Did::Copy(Direction::IntoPage)));
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
    bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), None, "nothing more is taken");
}

#[test]
fn a_worker_that_has_to_wait_goes_on_where_it_was() {
    let (desk, port, grant) = world();
    let slow = Slow {
        memory: Memory::new(&desk, port),
        tries: Cell::new(0),
    };
    let sent = bounce(&desk, port, &grant);
    let mut worker = Worker::new();
    let mut turns = Vec::new();
    while turns.last() != Some(&Turn::Idle) {
        turns.push(worker.turn(&slow));
    }
    assert_eq!(
        turns,
        [
            Turn::Wait(Nanos(1)),
            Turn::Wait(Nanos(2)),
            Turn::PagedIn,
            Turn::Told,
            Turn::Wait(Nanos(4)),
            Turn::Wait(Nanos(5)),
            Turn::Told,
            Turn::Ended(ended(port, Status::Ok).expect("ends")),
            Turn::Idle,
        ]
    );
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
}
