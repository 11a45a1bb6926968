//! Deadlines count time in which host and card ran, and nothing else.

use crate::life::{busy, step};
use netvm_abi::Nanos;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_host::Progress;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::ports::OpenPort;
use netvm_host::unmap::{UnmapKind, UnmapStep};
use netvm_kit::host::*;

/// Longer than any deadline.
const LONG: Nanos = Nanos::from_millis(60_000);

/// A port that closes, has exports, and whose card does not answer.
fn closing() -> (Stand, netvm_host::ports::PortClose) {
    let (mut stand, port, _) = busy();
    stand.obliging = false;
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    for _ in 0..50 {
        let _ = step(&mut stand, &mut close);
    }
    (stand, close)
}

/// The NIC answers all that it was asked, in its own time.
fn answers(stand: &mut Stand) {
    for event in stand.heard() {
        match event {
            HostEvent::Barrier { token } => stand.say(NicEvent::BarrierDone { token }),
            HostEvent::PortClose { port, generation } => stand.say(NicEvent::PortClosed { port, generation }),
            _ => {}
        }
    }
}

#[test]
pub(crate) fn an_answer_in_the_ring_is_in_time_however_late_the_host_looks() {
    let (mut stand, mut close) = closing();
    answers(&mut stand);
    stand.now = stand.now.after(LONG);
    stand.beat();
    assert!(
        !stand
            .poll()
            .iter()
            .any(|notice| matches!(notice, Notice::CardDead(_)))
    );
    let mut steps = 0;
    while step(&mut stand, &mut close) != Progress::Done {
        answers(&mut stand);
        stand.now = stand.now.after(LONG);
        stand.beat();
        stand.poll();
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(stand.host.card(), CardState::Alive);
}

/// The thread that closes the port gets its turns, the thread that polls does not.
#[test]
pub(crate) fn a_close_that_steps_alone_declares_no_card_dead() {
    let mut stand = Stand::new();
    let port = stand.open();
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    for _ in 0..1000 {
        assert_eq!(step(&mut stand, &mut close), Progress::Wait);
        stand.now = stand.now.after(Nanos::from_millis(1));
        stand.beat();
    }
    assert_eq!(stand.host.card(), CardState::Alive);
    stand.poll();
    assert_eq!(step(&mut stand, &mut close), Progress::Done);
}

#[test]
pub(crate) fn time_in_which_the_host_does_not_look_counts_for_little() {
    let (mut stand, _close) = closing();
    for _ in 0..3 {
        stand.now = stand.now.after(LONG);
        stand.beat();
        assert_eq!(stand.poll(), []);
    }
    assert_eq!(stand.host.card(), CardState::Alive);
    // With the host's eyes on it, it has the rest of its deadline.
    assert_eq!(stand.card_runs(5), []);
    assert_eq!(
        stand.card_runs(3),
        [Notice::CardDead(CardFailure::AnswerDeadline)]
    );
}

/// Each port that closes has a deadline of its own, and an answer to one is no answer to another.
#[test]
pub(crate) fn the_port_that_waits_for_the_longest_is_judged_first() {
    let dies = |notices: Vec<Notice>| notices.contains(&Notice::CardDead(CardFailure::AnswerDeadline));
    for first_is_answered in [true, false] {
        let mut stand = Stand::new();
        stand.obliging = false;
        let ports = [stand.open(), stand.open()];
        for port in ports {
            let close = stand.host.port_close_begin(&mut stand.platform, port);
            let mut close = close.expect("open");
            assert_eq!(step(&mut stand, &mut close), Progress::Wait);
            if port == ports[0] {
                assert!(!dies(stand.card_runs(5)));
            }
        }
        if first_is_answered {
            let OpenPort { port, generation } = ports[0];
            stand.say(NicEvent::PortClosed { port, generation });
        }
        assert_eq!(dies(stand.card_runs(5)), !first_is_answered);
        assert!(!first_is_answered || dies(stand.card_runs(5)));
    }
}

/// Also a machine that stands still with its card.
#[test]
pub(crate) fn a_pause_of_both_counts_for_little() {
    let mut stand = Stand::new();
    let port = stand.open();
    let vpn = page_of(port, 1);
    stand.register(port, 0, 8);
    stand.map(vpn, 7, true).expect("maps");
    let held = stand.lock(vpn, true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
    for _ in 0..3 {
        stand.now = stand.now.after(LONG);
        assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
        assert_eq!(stand.poll(), []);
    }
    assert_eq!(stand.host.card(), CardState::Alive);
    stand.unlock(held, netvm_abi::page_lock::Used::Written);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
}

/// A card that does not get on is judged by its heartbeat, not by what it owes.
#[test]
pub(crate) fn a_card_that_stands_still_has_the_deadline_of_its_heartbeat() {
    let (mut stand, _close) = closing();
    assert_eq!(stand.card_stands_still(900), []);
    let notices = stand.card_stands_still(600);
    assert_eq!(notices, [Notice::CardDead(CardFailure::Heartbeat)]);
    // So has one that keeps a page, though no thread polls.
    let mut stand = Stand::new();
    let port = stand.open();
    let vpn = page_of(port, 1);
    stand.register(port, 0, 8);
    stand.map(vpn, 7, true).expect("maps");
    let _held = stand.lock(vpn, true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    for _ in 0..900 {
        assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
        stand.now = stand.now.after(Nanos::from_millis(1));
    }
    stand.now = stand.now.after(Nanos::from_millis(100));
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::CardDead);
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::Heartbeat));
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::CardDead);
}

/// A platform without a deadline for the heartbeat still does not wait for ever.
#[test]
pub(crate) fn without_a_deadline_for_the_heartbeat_an_answer_has_its_own() {
    let config = HostConfig {
        heartbeat_deadline: Nanos::MAX,
        ..config()
    };
    let mut stand = Stand::with(&config, &geometry());
    let port = stand.open();
    stand.platform.shared.store_release(status_page::SLEEPING, 1);
    // It may sleep as long as it likes.
    for _ in 0..100 {
        stand.now = stand.now.after(LONG);
        assert_eq!(stand.poll(), []);
    }
    stand.obliging = false;
    let calls = stand.platform.wakes;
    let mut close = stand
        .host
        .port_close_begin(&mut stand.platform, port)
        .expect("open");
    assert_eq!(stand.platform.wakes, calls + 1);
    stand.platform.shared.store_release(status_page::SLEEPING, 0);
    // It wakes up, and has not beaten yet.
    assert_eq!(step(&mut stand, &mut close), Progress::Wait);
    assert_eq!(stand.poll(), []);
    assert_eq!(stand.card_stands_still(8), []);
    let notices = stand.card_stands_still(10);
    assert_eq!(notices, [Notice::CardDead(CardFailure::Heartbeat)]);
}
