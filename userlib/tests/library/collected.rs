//! Completion queues, and imports under way.

use netvm::{CompletionQueue, Error, Modes, PortConfig, Refusal, SharedSender, Status, Timeout};
use netvm_abi::bar::port::{READ_FENCE, WRITE_FENCE};
use netvm_kit::port::Card;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn operations_are_collected_as_they_end() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(8192).unwrap();
    let mut queue = CompletionQueue::new(&port);
    assert_eq!(
        queue.next_for(Timeout::Never).unwrap(),
        None,
        "there is nothing to wait for"
    );
    let write = remote.write(0, b"data").begin().unwrap();
    let read = remote.read(0, &region).begin().unwrap();
    let atomic = remote.word64(0).unwrap().add(1).try_post().unwrap();
    let flush = port.begin_flush_remote(1.into()).unwrap();
    let ops = [write.op(), read.op(), atomic.op(), flush.op()];
    queue.add(write, "write").unwrap();
    queue.add(read, "read").unwrap();
    queue.add(atomic, "atomic").unwrap();
    queue.add(flush, "flush").unwrap();
    assert_eq!(queue.len(), 4);
    assert!(queue.pop().is_none());
    assert_eq!(queue.next_for(Timeout::Now), Err(Error::TimedOut));

    let commands = card.take();
    assert_eq!(commands.len(), 5, "the read is two messages");
    // Out of order, and one of them fails.
    card.answer(&commands[4].0, Status::Ok, 0);
    let first = queue.next_for(LONG).unwrap().unwrap();
    assert_eq!(
        (first.op, first.context, first.result),
        (ops[3], "flush", Ok(None))
    );
    card.answer(&commands[3].0, Status::Ok, 41);
    card.end(&commands[1].0, Status::Ok);
    let second = queue.next_for(LONG).unwrap().unwrap();
    assert_eq!((second.op, second.context), (ops[2], "atomic"));
    assert_eq!(second.result.unwrap().unwrap().value, 41);
    assert!(queue.pop().is_none(), "half of the read is not all of it");
    card.end(&commands[2].0, Status::Revoked);
    card.end(&commands[0].0, Status::Ok);
    let rest = [queue.pop().unwrap(), queue.pop().unwrap()];
    assert_eq!(
        rest.map(|ended| ended.context),
        ["write", "read"],
        "as they were added"
    );
    assert_eq!(rest[0].result, Ok(None));
    let Err(Error::Failed(failure)) = rest[1].result else {
        panic!("{:?}", rest[1]);
    };
    assert_eq!((failure.op, failure.status), (ops[1], Status::Revoked));
    assert!(queue.is_empty());
    assert_eq!(queue.pop(), None);
}

#[test]
fn a_queue_is_awaited_for_whatever_ends_first() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let mut events = port.events().unwrap();
    events.turn().unwrap();
    let mut queue = CompletionQueue::new(&port);
    for context in [1, 2] {
        queue
            .add(remote.write(0, b"data").begin().unwrap(), context)
            .unwrap();
    }
    queue
        .add(port.begin_flush_received(1.into()).unwrap(), 3)
        .unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut poll = || Pin::new(&mut queue.next()).poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    assert_eq!((card.block.get(WRITE_FENCE), card.block.get(READ_FENCE)), (1, 1));
    let commands = card.take();
    let mut seen = Vec::new();
    for end in [2, 0, 1] {
        let before = count.0.load(Ordering::Relaxed);
        card.end(&commands[end].0, Status::Ok);
        card.interrupt();
        events.turn().unwrap();
        assert!(count.0.load(Ordering::Relaxed) > before, "the end of {end} wakes");
        let Poll::Ready(Some(ended)) = poll() else {
            panic!("{end} has ended");
        };
        seen.push(ended.context);
        if end != 1 {
            assert!(poll().is_pending());
        }
    }
    assert_eq!(seen, [3, 1, 2]);
    assert_eq!(poll(), Poll::Ready(None));
}

#[test]
fn the_end_of_a_port_ends_what_its_queue_holds() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let other = Card::new();
    let (_elsewhere, foreign, _) = other.open(PortConfig::default());
    let mut queue = CompletionQueue::new(&port);
    let write = foreign.write(0, b"data").begin().unwrap();
    assert_eq!(queue.add(write, ()), Err(Error::ForeignOperation));
    queue.add(remote.write(0, b"data").begin().unwrap(), ()).unwrap();
    queue
        .add(remote.word64(0).unwrap().add(1).try_post().unwrap(), ())
        .unwrap();
    assert!(queue.pop().is_none());
    drop(port);
    for _ in 0..2 {
        assert_eq!(
            queue.next_for(LONG).unwrap().unwrap().result,
            Err(Error::PortClosed)
        );
    }
    assert_eq!(queue.next_for(LONG).unwrap(), None);
    // Imports of the other card end with a flush.
    other.relax_with(|card| {
        card.carry_out(Status::Ok);
    });
}

/// An import that waits until the test lets it go on.
fn held_up(card: &Card) -> (std::sync::mpsc::Sender<()>, Arc<AtomicU32>) {
    let (go, wait) = channel::<()>();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    *card.on_import.lock().unwrap() = Some(Box::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let _ = wait.recv_timeout(LONG);
    }));
    (go, asked)
}

#[test]
fn an_import_is_under_way_beside_the_program() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let (go, _) = held_up(&card);
    let begin = || {
        port.begin_import(1.into(), 2.into(), "name", Modes::READ, LONG)
            .unwrap()
    };
    let mut import = begin();
    assert!(!import.is_done() && import.end().is_none());
    assert_eq!(import.wait_for(Timeout::Now).map(drop), Err(Error::TimedOut));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(
        Pin::new(&mut import)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    go.send(()).unwrap();
    let segment = import.wait_for(LONG).unwrap();
    assert_eq!(segment.name(), "name");
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(
        import.wait_for(LONG).map(drop),
        Err(Error::Released),
        "it was taken"
    );
    go.send(()).unwrap();
    assert_eq!(port.block_on(begin()).unwrap().node(), 1.into());
    // Bad names are told at once, and a refusal by the end.
    let bad = port.begin_import(1.into(), 2.into(), "", Modes::READ, LONG);
    assert!(matches!(bad, Err(Error::Name { .. })));
    *card.grant.lock().unwrap() = Err(Refusal::Status(Status::NotAllowed));
    go.send(()).unwrap();
    let refused = begin().wait().map(drop).unwrap_err();
    assert_eq!(refused.status(), Some(Status::NotAllowed));
}

#[test]
fn a_shared_queue_is_joined_beside_the_program() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let begin = |name| SharedSender::begin_join(&port, 1.into(), 2.into(), name, LONG);
    assert!(matches!(begin(""), Err(Error::Name { .. })));
    // What is there is memory, and no queue.
    let joined = begin("name").unwrap().wait().map(drop);
    assert!(matches!(joined, Err(Error::NotAChannel { .. })), "{joined:?}");
}

#[test]
fn a_sleep_ends_in_time_and_with_its_port() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let before = port.now();
    let span = Duration::from_millis(5);
    port.block_on(port.sleep(span)).unwrap();
    assert!(port.now().0 - before.0 >= 5_000_000);
    // It is the dispatcher that wakes: the caller polls no more by itself.
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut sleep = port.sleep(span);
    assert!(
        Pin::new(&mut sleep)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while woken.0.load(Ordering::Relaxed) == 0 {
        assert!(std::time::Instant::now() < limit, "it was never woken");
        std::thread::yield_now();
    }
    let mut late = port.sleep(Duration::from_secs(3600));
    drop(port);
    let ended = Pin::new(&mut late).poll(&mut Context::from_waker(&waker));
    assert_eq!(ended, std::task::Poll::Ready(Err(Error::PortClosed)));
}

#[test]
fn an_import_that_is_given_up_asks_no_more() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    *card.grant.lock().unwrap() = Err(Refusal::Status(Status::NoSuchExport));
    let (go, asked) = held_up(&card);
    let import = port
        .begin_import(1.into(), 2.into(), "name", Modes::READ, Timeout::Never)
        .unwrap();
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    while asked.load(Ordering::Relaxed) < 3 {
        std::thread::yield_now();
    }
    drop(import);
    go.send(()).unwrap();
    // The hook is let go of before this one is asked for.
    let again = port
        .begin_import(1.into(), 2.into(), "name", Modes::READ, Timeout::Now)
        .unwrap();
    go.send(()).unwrap();
    assert!(again.wait().is_err());
    assert_eq!(
        asked.load(Ordering::Relaxed),
        4,
        "three requests of the one, one of the other"
    );
}
