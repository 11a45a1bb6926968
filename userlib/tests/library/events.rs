//! A port in an event loop of the program.

use netvm::{ChannelConfig, Error, Events, PortConfig, Receiver, ReceiverSet, Status, Timeout};
use netvm_abi::bar::port::{READ_FENCE, WAKE_ON_QUEUE, WRITE_FENCE};
use netvm_kit::port::Card;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// Counts how often it is woken, and notes by which thread.
#[derive(Default)]
struct Count(AtomicU32, parking_lot::Mutex<Option<ThreadId>>);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        *self.1.lock() = Some(std::thread::current().id());
    }
}

/// Whether the descriptor is readable, now or within a time.
fn is_readable(events: &Events, limit: Duration) -> bool {
    let mut polled = [PollFd::new(events, PollFlags::IN)];
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut polled, Some(&limit)).unwrap() == 1
}

fn now(events: &Events) -> bool {
    is_readable(events, Duration::ZERO)
}

/// Takes turns until something is so, and polls in between.
fn turn_until(events: &mut Events, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "the descriptor does not tell");
        is_readable(events, Duration::from_millis(10));
        events.turn().unwrap();
    }
}

#[test]
fn handlers_and_futures_run_in_turns_and_on_no_thread_of_the_library() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let mut events = port.events().unwrap();
    events.turn().unwrap();
    assert!(!now(&events));
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, me) = (Arc::clone(&calls), std::thread::current().id());
    let arrived = port.notification(7).unwrap();
    arrived
        .arm(move |_| {
            assert_eq!(std::thread::current().id(), me);
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    card.signal(7, true);
    card.interrupt();
    assert!(now(&events));
    assert_eq!(calls.load(Ordering::Relaxed), 0, "not before the turn");
    events.turn().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(port.stats().handler_panics, 0);

    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut write = remote.write(0, b"data").begin().unwrap();
    let polled = |write: &mut netvm::Pending| Pin::new(write).poll(&mut Context::from_waker(&waker));
    assert!(polled(&mut write).is_pending());
    assert_eq!(card.block.get(WRITE_FENCE), 1);
    card.carry_out(Status::Ok);
    card.interrupt();
    assert_eq!(count.0.load(Ordering::Relaxed), 0, "not before the turn");
    events.turn().unwrap();
    assert_eq!(*count.1.lock(), Some(me));
    assert_eq!(polled(&mut write), Poll::Ready(Ok(())));
    assert!(!now(&events), "nothing is left to do");
}

#[test]
fn armed_it_tells_of_the_next_end_of_an_operation() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let mut events = port.events().unwrap();
    events.turn().unwrap();
    events.arm().unwrap();
    assert_eq!(
        (card.block.get(WRITE_FENCE), card.block.get(READ_FENCE)),
        (0, 0),
        "nothing is under way"
    );
    let mut writes = [b"one", b"two"].map(|data| remote.write(0, data).begin().unwrap());
    let mut flush = port.begin_flush_remote(1.into()).unwrap();
    events.arm().unwrap();
    assert_eq!(
        (card.block.get(WRITE_FENCE), card.block.get(READ_FENCE)),
        (1, 1),
        "the next of each"
    );
    let commands = card.take();
    card.end(&commands[0].0, Status::Ok);
    events.arm().unwrap();
    assert_eq!(card.block.get(WRITE_FENCE), 2, "the next of those that are left");
    assert_eq!(writes.each_mut().map(|write| write.is_done()), [true, false]);
    card.end(&commands[1].0, Status::Ok);
    card.answer(&commands[2].0, Status::Ok, 0);
    assert_eq!((writes[1].end(), flush.end()), (Some(Ok(())), Some(Ok(()))));
    events.arm().unwrap();
    assert_eq!(card.block.get(READ_FENCE), 1, "nothing is under way any more");
}

#[test]
fn new_notifications_always_tell() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    assert_eq!(card.block.get(WAKE_ON_QUEUE), 0);
    let mut events = port.events().unwrap();
    assert_eq!(card.block.get(WAKE_ON_QUEUE), 1);
    events.turn().unwrap();
    card.signal(2000, true);
    card.interrupt();
    assert!(now(&events));
    events.turn().unwrap();
    assert_eq!(port.notifications().pop(), Some(2000.into()));
    drop(events);
    assert_eq!(card.block.get(WAKE_ON_QUEUE), 0);
}

#[test]
fn a_thread_of_the_library_hands_over_and_takes_back() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let last = Arc::new(parking_lot::Mutex::new(None));
    let calls = Arc::new(AtomicU32::new(0));
    let (by, counted) = (Arc::clone(&last), Arc::clone(&calls));
    let handler = move |_| {
        *by.lock() = Some(std::thread::current().id());
        counted.fetch_add(1, Ordering::Relaxed);
    };
    port.notification(7).unwrap().arm(handler).unwrap();
    let signal = || {
        card.signal(7, true);
        card.interrupt();
    };
    let me = std::thread::current().id();
    let wait = |count| {
        let end = Instant::now() + LONG;
        while calls.load(Ordering::Relaxed) != count {
            assert!(Instant::now() < end, "{} calls", calls.load(Ordering::Relaxed));
            std::thread::yield_now();
        }
    };
    for round in 0..20 {
        signal();
        wait(2 * round + 1);
        assert_ne!(*last.lock(), Some(me));
        let mut events = port.events().unwrap();
        signal();
        turn_until(&mut events, || calls.load(Ordering::Relaxed) == 2 * round + 2);
        drop(events);
    }
    // A thread that is in its last look may call once more. From then on only turns call.
    let mut events = port.events().unwrap();
    let end = Instant::now() + LONG;
    while *last.lock() != Some(me) {
        assert!(Instant::now() < end, "the thread goes on");
        let before = calls.load(Ordering::Relaxed);
        signal();
        turn_until(&mut events, || calls.load(Ordering::Relaxed) > before);
    }
}

#[test]
fn a_port_has_one_loop_and_its_end_is_told() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let mut events = port.events().unwrap();
    let twice = port.events().unwrap_err();
    assert!(matches!(twice, Error::Refused { .. }), "{twice}");
    assert!(twice.to_string().contains("one `Events` at a time"), "{twice}");
    drop(events);
    events = port.events().unwrap();
    events.turn().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let queue = port.notifications();
    let mut next = queue.next();
    assert!(
        Pin::new(&mut next)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    events.turn().unwrap();
    drop(port);
    assert!(now(&events), "the end of the port tells");
    assert_eq!(events.turn(), Err(Error::PortClosed));
    assert_eq!(events.arm(), Err(Error::PortClosed));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_busy_number_lets_other_descriptors_have_their_turn() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let mut events = port.events().unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, beside) = (Arc::clone(&calls), Arc::clone(&card));
    let handler = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        beside.signal(7, true);
    };
    port.notification(7).unwrap().arm(handler).unwrap();
    card.signal(7, true);
    card.interrupt();
    events.turn().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 64);
    assert!(now(&events), "there is more to do");
}

#[test]
fn a_future_that_looks_again_at_a_time_has_its_turn_then() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let mut receiver = Receiver::open(&port, "queue", ChannelConfig::default()).unwrap();
    // A port of node 1 has joined, and is not there.
    let words = card.memories.lock().unwrap().last().unwrap().clone();
    words[8].store(1 << 48 | 2 << 32 | 1 << 10 | 5, Ordering::Release);
    *card.grant.lock().unwrap() = Err(netvm::Refusal::Status(Status::NoSuchExport));
    let mut events = port.events().unwrap();
    events.turn().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut ready = receiver.ready();
    let began = Instant::now();
    // No event comes: only the time to look after the sender wakes the future, and what it finds.
    let ended = loop {
        let woken = count.0.load(Ordering::Relaxed);
        if let Poll::Ready(ended) = Pin::new(&mut ready).poll(&mut Context::from_waker(&waker)) {
            break ended;
        }
        turn_until(&mut events, || count.0.load(Ordering::Relaxed) > woken);
    };
    assert_eq!(ended, Ok(()));
    assert!(began.elapsed() >= Duration::from_millis(1), "it was not the time");
    let gone = Error::ChannelBroken {
        status: Status::NoSuchExport,
    };
    assert_eq!(receiver.try_recv().map(drop), Err(gone));
}

#[test]
fn a_signal_of_a_member_wakes_the_future_of_its_set() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let mut set = ReceiverSet::new(&port);
    for name in ["one", "two"] {
        let receiver = Receiver::open(&port, name, ChannelConfig::default()).unwrap();
        set.add(receiver).unwrap();
    }
    let second = set.get_mut(1).unwrap().notification().id();
    let mut events = port.events().unwrap();
    events.turn().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut ready = set.ready();
    let mut polled = || Pin::new(&mut ready).poll(&mut Context::from_waker(&waker));
    assert!(polled().is_pending());
    card.signal(second.get(), true);
    card.interrupt();
    events.turn().unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(polled(), Poll::Ready(Ok(1)));
    // Dropped, it takes nothing with it.
    assert_eq!(set.wait(Timeout::Now), Ok(1));
}

#[test]
fn a_program_that_polls_lets_the_card_work_and_acknowledges_many_signals_at_once() {
    let card = Card::new();
    let (port, _remote, _) = card.open(PortConfig::default());
    let arrived = port.notification(7).unwrap();
    for _ in 0..3 {
        card.signal(7, true);
    }
    assert_eq!(arrived.pending(), 3);
    assert_eq!(arrived.ack_up_to(2), Ok(2));
    assert_eq!((arrived.pending(), arrived.ack_up_to(u32::MAX)), (1, Ok(1)));
    assert_eq!((arrived.pending(), arrived.ack_up_to(1)), (0, Ok(0)));
    let before = card.doorbells.load(Ordering::Relaxed);
    port.progress();
    assert_eq!(
        card.doorbells.load(Ordering::Relaxed),
        before,
        "a card that is awake needs no call"
    );
    card.status.set(netvm_abi::shared_map::status_page::SLEEPING, 1);
    port.progress();
    assert_eq!(card.doorbells.load(Ordering::Relaxed), before + 1);
    card.status.set(netvm_abi::shared_map::status_page::SLEEPING, 0);
}
