//! What the library does with the words of the notification queue.

use netvm::{Error, NotificationId, PortConfig, Timeout};
use netvm_abi::bar::port::{ACKNOWLEDGED, NOTIFICATION_READ, WAKE_ON_QUEUE};
use netvm_abi::notification::interrupt_bit;
use netvm_abi::port_area::NOTIFICATION_WRITE;
use netvm_kit::port::Card;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SOON: Timeout = Timeout::After(Duration::from_secs(10));

fn enabled(card: &Card, id: u32) -> bool {
    let (word, bit) = interrupt_bit(NotificationId(id)).unwrap();
    card.block.get(word) & bit != 0
}

#[test]
fn counts_and_acknowledgements() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(33).unwrap();
    assert_eq!(bell.pending(), 0);
    assert_eq!(bell.wait(Timeout::Now), Err(Error::TimedOut));
    assert_eq!(bell.spin(Timeout::Now), Err(Error::TimedOut));
    card.signal(33, true);
    card.signal(33, false);
    assert_eq!((bell.wait(Timeout::Now), bell.spin(Timeout::Now)), (Ok(2), Ok(2)));
    bell.ack().unwrap();
    assert_eq!(card.block.get(ACKNOWLEDGED.plus(33)), 1);
    assert_eq!(card.block.get(NOTIFICATION_READ), 1, "its entry was taken");
    bell.ack().unwrap();
    assert_eq!(
        bell.ack(),
        Err(Error::NothingPending {
            id: NotificationId(33)
        })
    );
    assert_eq!(port.stats().acknowledged, 2);
}

#[test]
fn counts_wrap() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    card.area.set(NOTIFICATION_WRITE, 0);
    let queue = port.notifications();
    for round in 0..3000u32 {
        card.signal(2000 + round, true);
        assert_eq!(queue.pop(), Some(NotificationId(2000 + round)));
    }
}

#[test]
fn the_queue_names_a_number_again_while_it_has_signals() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let (bell, queue) = (port.notification(5).unwrap(), port.notifications());
    card.signal(5, true);
    card.signal(5, false);
    card.signal(1024, true);
    assert_eq!(queue.pop(), Some(NotificationId(5)));
    bell.ack().unwrap();
    assert_eq!(queue.pop(), Some(NotificationId(1024)));
    assert_eq!(
        queue.pop(),
        Some(NotificationId(5)),
        "coalesced signals have no entry"
    );
    bell.ack().unwrap();
    assert_eq!(queue.pop(), None);
    // Acknowledged elsewhere: the entry is stale.
    card.signal(5, true);
    bell.ack().unwrap();
    assert_eq!(queue.pop(), None);
}

#[test]
fn a_waiter_enables_its_interrupt_and_is_woken() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(2));
    let bell = port.notification(40).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| bell.wait(SOON));
        // Not before it blocks: one that sees the signal on its last look has no need to.
        while !enabled(&card, 40) || port.stats().blocked < 1 {
            std::thread::yield_now();
        }
        card.signal(40, true);
        card.interrupt();
        assert_eq!(waiter.join().unwrap(), Ok(1));
    });
    assert!(!enabled(&card, 40), "no waiter is left");
    let queue = port.notifications();
    bell.ack().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| queue.wait(SOON));
        while card.block.get(WAKE_ON_QUEUE) == 0 || port.stats().blocked < 2 {
            std::thread::yield_now();
        }
        card.signal(1500, true);
        card.interrupt();
        assert_eq!(waiter.join().unwrap(), Ok(NotificationId(1500)));
    });
    assert_eq!(card.block.get(WAKE_ON_QUEUE), 0);
    assert!(port.stats().blocked >= 2);
}

#[test]
fn a_handler_runs_once_per_signal_also_for_those_before_it() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(7).unwrap();
    for _ in 0..3 {
        card.signal(7, true);
    }
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    bell.arm(move |id| {
        assert_eq!(id, NotificationId(7));
        counted.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    assert!(enabled(&card, 7));
    for signal in 4..=50 {
        card.signal(7, signal % 3 == 0);
        card.interrupt();
    }
    // The last one may have found its entry untaken: what was coalesced is seen at the acknowledgement.
    card.signal(7, true);
    card.interrupt();
    let begin = std::time::Instant::now();
    while bell.pending() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "a signal was lost");
        std::thread::yield_now();
    }
    assert!(bell.disarm());
    assert!(!enabled(&card, 7));
    assert_eq!(calls.load(Ordering::Acquire), 51);
    assert_eq!(port.stats().handler_calls, 51);
    // From now on it is pending as if there had never been a handler.
    card.signal(7, true);
    assert_eq!(port.notifications().pop(), Some(NotificationId(7)));
}

#[test]
fn a_handler_that_panics_is_disarmed_and_counted() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(7).unwrap();
    std::panic::set_hook(Box::new(|_| {}));
    bell.arm(|_| panic!("a test")).unwrap();
    card.signal(7, true);
    card.interrupt();
    let begin = std::time::Instant::now();
    while port.stats().handler_panics == 0 || bell.pending() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
    while bell.disarm() {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    card.signal(7, true);
    assert_eq!(bell.pending(), 1);
}

#[test]
fn futures_end_when_their_signal_comes_and_when_the_port_closes() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let (bell, queue) = (port.notification(9).unwrap(), port.notifications());
    std::thread::scope(|scope| {
        let ready = scope.spawn(|| port.block_on(bell.ready()));
        let next = scope.spawn(|| port.block_on(queue.next()));
        while !enabled(&card, 9) || card.block.get(WAKE_ON_QUEUE) == 0 {
            std::thread::yield_now();
        }
        card.signal(9, false);
        card.signal(3000, true);
        card.interrupt();
        assert_eq!(ready.join().unwrap(), Ok(1));
        assert_eq!(next.join().unwrap(), Ok(NotificationId(3000)));
    });
    assert!(!enabled(&card, 9));
    bell.ack().unwrap();
    let other = Card::new();
    let (second, ..) = other.open(PortConfig::default());
    let future = bell.ready();
    let closing = scope_close(port, &card);
    assert_eq!(second.block_on(future).map(drop), Err(Error::PortClosed));
    closing.join().unwrap();
}

#[test]
fn a_future_whose_signal_never_comes_ends_at_its_deadline() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(9).unwrap();
    let short = Duration::from_millis(5);
    assert_eq!(
        port.block_on_for(bell.ready(), short).map(drop),
        Err(Error::TimedOut)
    );
    assert!(!enabled(&card, 9), "a dropped future wants no interrupts");
    assert_eq!(
        port.block_on_for(bell.ready(), Timeout::Now).map(drop),
        Err(Error::TimedOut)
    );
    // What is there is found without waiting, and in time.
    card.signal(9, false);
    assert_eq!(port.block_on_for(bell.ready(), Timeout::Now), Ok(Ok(1)));
    assert_eq!(port.block_on_for(bell.ready(), Timeout::Never), Ok(Ok(1)));
    bell.ack().unwrap();
    std::thread::scope(|scope| {
        let ready = scope.spawn(|| port.block_on_for(bell.ready(), Duration::from_secs(30)));
        while !enabled(&card, 9) {
            std::thread::yield_now();
        }
        card.signal(9, false);
        card.interrupt();
        assert_eq!(ready.join().unwrap(), Ok(Ok(1)));
    });
}

fn scope_close(port: netvm::Port, card: &Arc<Card>) -> std::thread::JoinHandle<()> {
    let card = Arc::clone(card);
    std::thread::spawn(move || {
        while !enabled(&card, 9) {
            std::thread::yield_now();
        }
        drop(port);
    })
}

#[test]
fn unpopped_one_shots_stay_in_the_card() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().one_shot_backlog(4));
    let queue = port.notifications();
    let bell = port.notification(3).unwrap();
    for number in 0..10 {
        card.signal(1024 + number, true);
    }
    card.signal(3, true);
    // Taken: the four that fit. The event count behind them is seen all the same.
    bell.ack().unwrap();
    assert_eq!(card.block.get(NOTIFICATION_READ), 4);
    for number in 0..10 {
        assert_eq!(queue.pop(), Some(NotificationId(1024 + number)));
    }
    assert_eq!(queue.pop(), None);
    assert_eq!(card.block.get(NOTIFICATION_READ), 11);
}
