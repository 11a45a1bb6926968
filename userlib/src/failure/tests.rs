//! How failures come back, by the tables alone.

use super::*;
use crate::appends::Fate;
use netvm_abi::port_area::AREA_WORDS;
use std::sync::atomic::AtomicU32;

fn failed(op: u32, node: u16, epoch: u16) -> Known {
    Known {
        failure: Failure {
            op: OpId(op),
            status: Status::Revoked,
            node: NodeId(node),
            port: PortId(1),
            address: VirtAddr(0),
            others: 0,
        },
        epoch: Epoch(epoch),
        write: true,
    }
}

fn lost(op: u32, node: u16, epoch: u16) -> Known {
    let mut known = failed(op, node, epoch);
    known.failure.status = Status::LinkLost;
    known
}

/// The first failure to node 1 that any thread may report: its operation, its status, and how many others there are.
fn told(failures: &mut Failures) -> Option<(u32, Status, u32)> {
    match failures.take(Some(NodeId(1))) {
        Err(Error::Failed(Failure {
            op, status, others, ..
        })) => Some((op.0, status, others)),
        Err(error) => panic!("{error}"),
        Ok(()) => None,
    }
}

#[test]
fn a_lost_link_is_news_though_its_first_message_was_told() {
    let mut failures = Failures::new(2, Generation(0));
    let refused = Known {
        write: false,
        ..failed(7, 1, 0)
    };
    failures.add(refused);
    assert_eq!(told(&mut failures), Some((7, Status::Revoked, 0)));
    failures.add(refused);
    assert_eq!(told(&mut failures), None);
    for expected in [Some((7, Status::LinkLost, 0)), None] {
        failures.add(lost(7, 1, 0));
        assert_eq!(told(&mut failures), expected);
    }
    // What was posted since was lost, too: of another epoch.
    failures.add(lost(9, 1, 1));
    assert_eq!(told(&mut failures), Some((9, Status::LinkLost, 0)));
    assert_eq!(failures.epoch(NodeId(1)), Epoch(2));
    // The answer to a read and the record of its link are two words of one loss. The record holds back what follows.
    let answer = Known {
        write: false,
        ..lost(10, 1, 2)
    };
    failures.add(answer);
    assert!(!failures.held_back(NodeId(1), Epoch(2), OpId(12)));
    failures.add(lost(10, 1, 2));
    assert!(failures.held_back(NodeId(1), Epoch(2), OpId(12)));
    assert_eq!(told(&mut failures), Some((10, Status::LinkLost, 0)));
    // A refusal and a loss come before the program asks.
    failures.add(failed(11, 1, 3));
    failures.add(lost(11, 1, 3));
    failures.add(failed(11, 1, 3));
    assert_eq!(told(&mut failures), Some((11, Status::Revoked, 1)));
    assert_eq!(told(&mut failures), None);
}

#[test]
fn a_lost_link_is_news_though_its_first_message_is_told_to_no_thread() {
    let (mut failures, node) = (Failures::new(2, Generation(0)), NodeId(1));
    failures.stream(node);
    failures.appends.begin(1);
    let refused = Known {
        failure: Failure {
            status: Status::NoPlace,
            ..failed(1, 1, 0).failure
        },
        ..failed(1, 1, 0)
    };
    failures.add(refused);
    assert_eq!(told(&mut failures), Some((1, Status::NoPlace, 0)));
    failures.wrote(node, 2);
    failures.add(lost(1, 1, 0));
    assert_eq!(told(&mut failures), Some((1, Status::LinkLost, 0)), "refused");

    // Before it is known that no thread comes for it, and after.
    for (op, early) in [(3, true), (6, false)] {
        for (op, written) in [(op, op), (op + 1, op + 2)] {
            failures.watch(OpId(op));
            failures.wrote(node, written.into());
            if early {
                failures.add(lost(op, 1, failures.epoch(node).0));
            }
            failures.disregard(OpId(op));
            failures.add(lost(op, 1, failures.epoch(node).0));
            let news = (written != op).then_some((op, Status::LinkLost, 0));
            assert_eq!(told(&mut failures), news, "disregarded");
        }
    }

    failures.watch(OpId(10));
    failures.wrote(node, 11);
    failures.add(lost(10, 1, 0));
    assert!(failures.unwatch_own(OpId(10)).is_err());
    assert_eq!(
        told(&mut failures),
        Some((10, Status::LinkLost, 0)),
        "the library's"
    );
    failures.add(lost(10, 1, 0));
    assert_eq!(told(&mut failures), None);
}

#[test]
fn a_failure_is_reported_once_and_raises_the_epoch_of_its_stream() {
    let mut failures = Failures::new(3, Generation(0));
    failures.add(failed(7, 1, 0));
    failures.add(failed(7, 1, 0));
    failures.add(failed(8, 1, 0));
    failures.add(failed(9, 2, 0));
    let Err(Error::Failed(first)) = failures.take(Some(NodeId(1))) else {
        panic!("nothing reported");
    };
    assert_eq!((first.op, first.others), (OpId(7), 1));
    assert_eq!(failures.epoch(NodeId(1)), Epoch(1));
    assert_eq!(failures.epoch(NodeId(2)), Epoch(0));
    // A later message of a reported call adds nothing.
    failures.add(failed(8, 1, 0));
    assert_eq!(failures.take(Some(NodeId(1))), Ok(()));
    assert!(failures.take(None).is_err());
    assert_eq!(failures.take(None), Ok(()));
    assert_eq!(failures.count, 3);
}

#[test]
fn a_late_failure_of_an_old_epoch_is_reported_but_holds_nothing_up() {
    let mut failures = Failures::new(2, Generation(0));
    failures.add(failed(1, 1, 0));
    assert!(failures.take(None).is_err());
    failures.add(failed(2, 1, 0));
    assert!(failures.take(None).is_err());
    assert_eq!(failures.epoch(NodeId(1)), Epoch(1));
}

#[test]
fn a_watched_call_reports_to_its_own_thread() {
    let mut failures = Failures::new(2, Generation(0));
    failures.watch(OpId(5));
    failures.add(failed(5, 1, 0));
    assert_eq!(failures.take(Some(NodeId(1))), Ok(()));
    assert!(failures.unwatch(OpId(5)).is_err());
    assert_eq!(failures.unwatch(OpId(5)), Ok(()));
}

#[test]
fn a_refused_append_is_reported_once_and_raises_no_epoch() {
    let mut failures = Failures::new(2, Generation(0));
    failures.appends.begin(5);
    let mut refused = failed(5, 1, 0);
    refused.failure.status = Status::NoPlace;
    failures.add(refused);
    // The answer to a flush says it again.
    failures.flushed(NodeId(1), Epoch(0), OpId(5));
    assert_eq!(
        failures.untold(NodeId(1)),
        (Vec::new(), false),
        "it suppresses nothing"
    );
    assert!(matches!(failures.take(None), Err(Error::Failed(f)) if f.op == OpId(5) && f.others == 0));
    failures.flushed(NodeId(1), Epoch(0), OpId(5));
    assert_eq!(failures.take(None), Ok(()));
    assert_eq!(failures.epoch(NodeId(1)), Epoch(0));
    // Its link fails before it is acknowledged. That holds back what is posted in this epoch, and is no news.
    failures.add(lost(5, 1, 0));
    assert_eq!(failures.take(None), Ok(()));
    assert_eq!(failures.epoch(NodeId(1)), Epoch(1));
}

#[test]
fn the_refusal_of_an_awaited_append_is_for_its_sender_alone() {
    let mut failures = Failures::new(2, Generation(0));
    for op in [5, 6] {
        failures.appends.begin(op.into());
        failures.watch_append(NodeId(1), OpId(op), Epoch(0));
    }
    failures.flushed(NodeId(1), Epoch(0), OpId(5));
    assert_eq!(failures.take(None), Ok(()));
    for op in [5, 6].map(OpId) {
        assert_eq!(failures.unwatch(op), Ok(()));
        assert_eq!(failures.appends.fate(op), Fate::NoPlace);
    }
    assert_eq!(failures.count, 0);
}

#[test]
fn what_follows_a_write_that_failed_at_this_side_was_held_back() {
    let (node, epoch) = (NodeId(1), Epoch(0));
    let mut failures = Failures::new(3, Generation(0));
    assert!(!failures.held_back(node, epoch, OpId(8)));
    failures.add(failed(7, 1, 0));
    for (told, what) in [(false, "known"), (true, "reported")] {
        assert!(failures.held_back(node, epoch, OpId(8)), "{what}");
        assert!(
            !failures.held_back(node, epoch, OpId(6)),
            "{what}: posted before it"
        );
        assert!(
            !failures.held_back(NodeId(2), epoch, OpId(8)),
            "{what}: another node"
        );
        assert!(
            !failures.held_back(node, Epoch(1), OpId(8)),
            "{what}: another epoch"
        );
        if !told {
            failures.take(None).unwrap_err();
        }
    }
    let mut failures = Failures::new(3, Generation(0));
    failures.add(Known {
        write: false,
        ..failed(7, 1, 0)
    });
    assert!(
        !failures.held_back(node, epoch, OpId(8)),
        "a read holds nothing back"
    );
}

#[test]
fn a_write_is_under_way_however_many_were_posted_before_it() {
    let node = NodeId(1);
    for before in [0, 1 << 31, (1 << 31) + 7, u64::from(u32::MAX), 1 << 32] {
        let mut failures = Failures::new(2, Generation(0));
        let stream = failures.stream(node);
        stream.wrote(1);
        stream.settled(1);
        assert!(!stream.is_busy(), "{before}");
        failures.wrote(node, before + 2);
        assert!(stream.is_busy(), "{before}");
        assert_eq!(failures.written_after(before + 1), [node]);
        assert_eq!(failures.written_after(before + 2), []);
        // A flush that ends behind a later one.
        stream.settled(before + 2);
        stream.settled(1);
        assert!(!stream.is_busy(), "{before}");
    }
}

#[test]
fn operations_are_in_order_where_their_numbers_wrap() {
    let numbers = [u32::MAX - 1, u32::MAX, INSTEAD_OF_0.0, 1, 2];
    let others = [INSTEAD_OF_0.0 - 1, INSTEAD_OF_0.0, INSTEAD_OF_0.0 + 1];
    for ops in [&numbers[..], &others] {
        for pair in ops.windows(2) {
            let (first, second) = (OpId(pair[0]), OpId(pair[1]));
            assert!(after(second, first) && !after(first, second), "{pair:?}");
            assert!(!after(first, first));
        }
    }
}

#[test]
fn more_than_can_be_kept_is_counted() {
    let mut failures = Failures::new(2, Generation(0));
    for op in 0..KEPT as u32 + 4 {
        failures.add(failed(op + 1, 1, 0));
    }
    assert!(matches!(failures.take(None), Err(Error::Failed(f)) if f.others as usize == KEPT - 1));
    assert_eq!(failures.take(None), Err(Error::FailuresLost { count: 4 }));
    assert_eq!(failures.take(None), Ok(()));
}

#[test]
fn a_port_is_quiet_while_nothing_is_to_be_reported() {
    let area: Vec<AtomicU32> = (0..AREA_WORDS).map(|_| AtomicU32::new(0)).collect();
    let area = &area[..];
    let mut failures = Failures::new(2, Generation(0));
    assert!(failures.quiet(area));

    // A failure that is still in the ring, then taken out, then reported.
    area.store_release(ERROR_WRITE, 1);
    assert!(!failures.quiet(area));
    failures.drain(&area, &area);
    assert!(!failures.quiet(area));
    assert!(failures.take(None).is_err());
    assert!(failures.quiet(area));

    // A failure that only its own waiter may report.
    failures.watch(OpId(5));
    failures.add(failed(5, 1, 0));
    assert!(!failures.quiet(area));
    assert!(failures.unwatch(OpId(5)).is_err());
    assert!(failures.quiet(area));

    // One that a flush reports.
    failures.add(failed(6, 1, 0));
    failures.report_flush(failed(6, 1, 0));
    assert!(failures.quiet(area));

    // One of which nothing is known.
    area.store_release(ERRORS_LOST, 1);
    failures.drain(&area, &area);
    assert!(!failures.quiet(area));
    assert_eq!(failures.take(None), Err(Error::FailuresLost { count: 1 }));
    assert!(failures.quiet(area));

    failures.close();
    assert!(!failures.quiet(area));
}

#[test]
fn a_stream_is_seen_by_its_posters() {
    let mut failures = Failures::new(2, Generation(3));
    let early = failures.stream(NodeId(1));
    assert_eq!(early.tag().epoch(), failures.epoch(NodeId(0)));
    let before = failures.epoch(NodeId(1));
    failures.add(failed(1, 1, before.0));
    assert!(failures.take(None).is_err());
    assert_eq!(early.tag().epoch(), Epoch(before.0.wrapping_add(1)));
    assert_eq!(early.tag(), failures.stream(NodeId(1)).tag());
    assert_eq!(failures.epoch(NodeId(0)), before);
}
