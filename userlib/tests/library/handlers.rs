//! Handlers and futures side by side: wake-ups, turns, and what a program's own code does to the dispatcher.

use netvm::{Error, NotificationId, Port, PortConfig, Timeout};
use netvm_abi::bar::port::WAKE_ON_QUEUE;
use netvm_kit::port::Card;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Shorter than the test card's longest block, after which a lost wake-up no longer shows.
const SOON: Duration = Duration::from_secs(5);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SOON, "{what}");
        std::thread::yield_now();
    }
}

/// Arms a handler that counts its calls.
fn count(port: &Port, id: u32) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let bell = port.notification(id).unwrap();
    bell.arm(move |_| {
        counted.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    calls
}

/// Arms a handler that runs until it may go on. Returns once it runs.
fn occupy(card: &Card, port: &Port, id: u32) -> Arc<AtomicBool> {
    let (runs, goes_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begun, gate) = (Arc::clone(&runs), Arc::clone(&goes_on));
    let bell = port.notification(id).unwrap();
    bell.arm(move |_| {
        begun.store(true, Ordering::Release);
        while !gate.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    })
    .unwrap();
    card.signal(id, true);
    card.interrupt();
    until("the handler never ran", || runs.load(Ordering::Acquire));
    goes_on
}

/// Runs a wait of the queue beside `then`, which begins when it blocks. Tells what came out, if it came soon.
fn wait_beside(card: &Card, port: &Port, then: impl FnOnce()) -> Option<NotificationId> {
    std::thread::scope(|scope| {
        let before = port.stats().blocked;
        let queue = port.notifications();
        let waiter = scope.spawn(move || {
            let begin = Instant::now();
            let id = queue.wait(Timeout::Never).unwrap();
            (begin.elapsed() < SOON).then_some(id)
        });
        until("the waiter does not block", || {
            card.block.get(WAKE_ON_QUEUE) == 1 && port.stats().blocked > before
        });
        // It has counted itself a moment before it blocks.
        std::thread::sleep(Duration::from_millis(20));
        then();
        waiter.join().unwrap()
    })
}

#[test]
fn disarming_wakes_a_waiter_of_the_queue() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(2));
    let goes_on = occupy(&card, &port, 6);
    let calls = count(&port, 7);
    // The busy dispatcher has it, and no interrupt comes any more.
    card.signal(7, true);
    assert_eq!(port.notifications().pop(), None);
    let bell = port.notification(7).unwrap();
    let woken = wait_beside(&card, &port, || assert!(bell.disarm()));
    assert_eq!(woken, Some(NotificationId(7)), "the waiter was not woken");
    goes_on.store(true, Ordering::Release);
    assert_eq!(calls.load(Ordering::Acquire), 0);
}

#[test]
fn a_handler_that_panics_leaves_its_signals_to_waiters() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(2));
    let gate = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&gate);
    let bell = port.notification(7).unwrap();
    bell.arm(move |_| {
        while !opened.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::panic::resume_unwind(Box::new("a test"));
    })
    .unwrap();
    card.signal(7, true);
    card.signal(7, false);
    card.interrupt();
    let woken = wait_beside(&card, &port, || gate.store(true, Ordering::Release));
    assert_eq!(woken, Some(NotificationId(7)), "the waiter was not woken");
    assert_eq!((bell.pending(), port.stats().handler_panics), (1, 1));
}

#[test]
fn a_wait_ends_before_the_port_has_closed() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(2));
    let ended = Arc::new(AtomicBool::new(false));
    let (seen, queue) = (Arc::clone(&ended), port.notifications());
    // As a port closes whose pages come slowly.
    *card.on_close.lock().unwrap() = Some(Box::new(move |_| {
        until("the waiter is not woken", || seen.load(Ordering::Acquire));
    }));
    let before = port.stats().blocked;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let outcome = queue.wait(Timeout::Never);
            ended.store(true, Ordering::Release);
            outcome
        });
        until("the waiter does not block", || port.stats().blocked > before);
        drop(port);
        assert_eq!(waiter.join().unwrap(), Err(Error::PortClosed));
    });
}

#[test]
fn a_handler_waits_for_a_future() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let port = Arc::new(port);
    let (weak, found) = (Arc::downgrade(&port), Arc::new(AtomicU32::new(0)));
    let (shared, seen) = (Weak::clone(&weak), Arc::clone(&found));
    let bell = port.notification(9).unwrap();
    port.notification(8)
        .unwrap()
        .arm(move |_| {
            if let Some(port) = shared.upgrade() {
                let pending = port.block_on(bell.ready()).unwrap_or(0);
                seen.store(pending + 1, Ordering::Release);
            }
        })
        .unwrap();
    card.signal(8, true);
    card.interrupt();
    let begin = Instant::now();
    until("the handler never ran", || port.stats().handler_calls == 1);
    std::thread::sleep(Duration::from_millis(20));
    card.signal(9, true);
    card.interrupt();
    while found.load(Ordering::Acquire) == 0 {
        assert!(begin.elapsed() < SOON, "the handler waits for its own dispatcher");
        std::thread::yield_now();
    }
    assert_eq!(found.load(Ordering::Acquire), 2);
}

#[test]
fn handlers_take_turns() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let goes_on = occupy(&card, &port, 6);
    let calls = Arc::new(Mutex::new(Vec::new()));
    for id in [7, 8, 9] {
        let calls = Arc::clone(&calls);
        let bell = port.notification(id).unwrap();
        bell.arm(move |id| calls.lock().unwrap().push(id.0)).unwrap();
        for signal in 0..4 {
            card.signal(id, signal == 0);
        }
    }
    goes_on.store(true, Ordering::Release);
    until("a signal was lost", || calls.lock().unwrap().len() == 12);
    let calls = calls.lock().unwrap();
    for round in calls.chunks(3) {
        assert_eq!(round, [7, 8, 9], "{calls:?}");
    }
}

#[test]
fn a_busy_handler_starves_neither_handlers_nor_futures() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let (again, stop) = (Arc::downgrade(&card), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    // Each call brings the next signal: it never has nothing to do.
    port.notification(6)
        .unwrap()
        .arm(move |_| {
            if let (Some(card), false) = (again.upgrade(), stopped.load(Ordering::Acquire)) {
                card.signal(6, false);
            }
        })
        .unwrap();
    let calls = count(&port, 7);
    card.signal(6, true);
    card.signal(6, false);
    card.interrupt();
    until("the busy handler never ran", || port.stats().handler_calls > 100);
    card.signal(7, true);
    card.interrupt();
    let begin = Instant::now();
    while calls.load(Ordering::Acquire) == 0 && begin.elapsed() < SOON {
        std::thread::yield_now();
    }
    let bell = port.notification(9).unwrap();
    let shared = Arc::clone(&card);
    let signals = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        shared.signal(9, true);
        shared.interrupt();
    });
    let woken = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut ready = pin!(bell.ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let begin = Instant::now();
    while !woken.0.load(Ordering::Acquire) && begin.elapsed() < SOON {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Release);
    signals.join().unwrap();
    assert_eq!(calls.load(Ordering::Acquire), 1, "another handler starves");
    assert!(woken.0.load(Ordering::Acquire), "a future starves");
    assert_eq!(ready.poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(1)));
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Panics where it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("a test"));
        }
    }
}

/// The dispatcher still calls handlers.
fn dispatches(card: &Card, port: &Port) {
    let calls = count(port, 10);
    card.signal(10, true);
    card.interrupt();
    until("the dispatcher has died", || calls.load(Ordering::Acquire) == 1);
}

#[test]
fn what_a_handler_holds_may_panic_when_it_is_dropped() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(7).unwrap();
    let bomb = Bomb;
    // Its panic is a value that panics when it is dropped, and so is what it holds.
    bell.arm(move |_| {
        let _held = &bomb;
        std::panic::resume_unwind(Box::new(Bomb));
    })
    .unwrap();
    card.signal(7, true);
    card.interrupt();
    until("the handler never ran", || port.stats().handler_panics > 0);
    dispatches(&card, &port);

    // One that replaces itself is dropped when its call is over.
    let (again, bomb) = (bell.clone(), Bomb);
    bell.arm(move |_| {
        let _held = &bomb;
        again.disarm();
    })
    .unwrap();
    card.signal(7, true);
    card.interrupt();
    until("the handler never ran", || bell.pending() == 0);
    dispatches(&card, &port);
    assert_eq!(port.stats().handler_panics, 4, "each panic counts");

    // One that is armed when the port closes.
    let bomb = Bomb;
    bell.arm(move |_| {
        let _held = &bomb;
    })
    .unwrap();
    let late = port.notification(11).unwrap();
    let woken = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut ready = pin!(late.ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(port);
    until("a future does not learn of the end", || {
        woken.0.load(Ordering::Acquire)
    });
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a test"));
    }
}

#[test]
fn a_waker_may_panic() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let bell = port.notification(7).unwrap();
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut ready = pin!(bell.ready());
    assert!(ready.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let woken = Arc::new(Flag::default());
    let other = Waker::from(Arc::clone(&woken));
    let mut second = pin!(bell.ready());
    assert!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&other))
            .is_pending()
    );
    card.signal(7, true);
    card.interrupt();
    until("the other future does not learn of it", || {
        woken.0.load(Ordering::Acquire)
    });
    dispatches(&card, &port);
}

#[test]
fn a_number_comes_out_once_while_one_shots_fill_the_backlog() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().one_shot_backlog(4));
    let queue = port.notifications();
    let bell = port.notification(3).unwrap();
    for number in 0..20 {
        card.signal(1024 + number, true);
    }
    card.signal(3, true);
    card.signal(3, false);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.extend(queue.pop());
    }
    let bells = seen.iter().filter(|id| id.0 == 3).count();
    assert_eq!(bells, 1, "{seen:?}: it was not acknowledged");
    // After an acknowledgement that leaves one it comes again.
    bell.ack().unwrap();
    for _ in 0..5 {
        seen.extend(queue.pop());
    }
    let bells = seen.iter().filter(|id| id.0 == 3).count();
    assert_eq!(bells, 2, "{seen:?}");
    // One more while it is out: seen at the acknowledgement.
    card.signal(3, false);
    bell.ack().unwrap();
    while let Some(id) = queue.pop() {
        seen.push(id);
    }
    let bells = seen.iter().filter(|id| id.0 == 3).count();
    assert_eq!((bells, seen.len()), (3, 23), "{seen:?}");
}

/// The dispatcher sleeps while a thread takes signals that it has no part in, however many come at once.
#[test]
fn signals_that_no_handler_waits_for_wake_no_dispatcher() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let calls = count(&port, 34);
    card.signal(34, true);
    card.interrupt();
    until("the dispatcher runs", || calls.load(Ordering::Acquire) > 0);
    let bell = port.notification(33).unwrap();
    for _ in 0..3 {
        card.signal(33, true);
    }
    let before = card.interrupts();
    for _ in 0..3 {
        bell.ack().unwrap();
    }
    assert_eq!(card.interrupts(), before);
    // For one that it has a part in it is woken.
    let taken = count(&port, 33);
    for _ in 0..3 {
        card.signal(33, true);
    }
    card.interrupt();
    until("it is handled", || taken.load(Ordering::Acquire) > 0);
}
