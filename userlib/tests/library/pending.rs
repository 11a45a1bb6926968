//! Calls that never wait, and values of operations under way.

use netvm::{Error, Failure, Nanos, PortConfig, Status, Timeout};
use netvm_abi::bar::port::{DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::descriptor::Opcode;
use netvm_abi::port_area::{READS_DONE, TAKEN, WRITES_DONE};
use netvm_kit::port::Card;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Long enough for any machine: a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(60);

/// Says when it is woken.
struct Woken(std::sync::mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// A waker, and where it says that it was called.
fn waker() -> (Waker, Receiver<()>) {
    let (to, from) = channel();
    (Waker::from(Arc::new(Woken(to))), from)
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Failed(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn a_full_queue_is_an_answer_and_room_is_told() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    for number in 0..64u32 {
        remote.write(0, &number.to_le_bytes()).try_post().unwrap();
    }
    let full = remote.write(0, b"more").try_post().unwrap_err();
    let Error::NoRoom { lacks } = full else {
        panic!("{full}");
    };
    assert_eq!(remote.word64(0).unwrap().add(1).try_post().unwrap_err(), full);
    assert_eq!(port.begin_flush_remote(1.into()).unwrap_err(), full);
    assert_eq!(card.block.get(DOORBELL), 64, "nothing was posted");
    assert!(full.to_string().contains("command queue"), "{full}");
    assert_eq!(port.stats().queue_full, 3);

    let mut room = port.room(lacks);
    let (waker, woken) = waker();
    assert!(poll(&mut room, &waker).is_pending());
    assert_eq!(card.block.get(TAKEN_FENCE), 1);
    card.take();
    card.interrupt();
    woken.recv_timeout(LONG).unwrap();
    assert_eq!(poll(&mut room, &waker), Poll::Ready(Ok(())));
    remote.write(0, b"more").try_post().unwrap();
}

#[test]
fn a_call_that_does_not_wait_posts_all_or_nothing() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(70 * 4096).unwrap();
    // 64 messages fill the queue; one more is refused, whatever is free.
    let longest = 64 * 4096;
    let long = remote.write(0, region.slice(0..longest + 1).unwrap());
    let refused = Error::MessageTooLong {
        len: longest + 1,
        limit: longest,
    };
    assert_eq!(long.try_post(), Err(refused));
    let long = remote.read(0, region.slice(0..longest + 1).unwrap());
    assert_eq!(long.try_post(), Err(refused));
    remote.write(0, b"one").try_post().unwrap();
    for posted in [
        remote.write(0, region.slice(0..longest).unwrap()).try_post(),
        remote.read(0, region.slice(0..longest).unwrap()).try_post(),
    ] {
        assert!(matches!(posted, Err(Error::NoRoom { .. })), "{posted:?}");
    }
    assert_eq!(card.block.get(DOORBELL), 1);
    assert_eq!(card.carry_out(Status::Ok).len(), 1);
    remote
        .write(0, region.slice(0..longest).unwrap())
        .try_post()
        .unwrap();
    assert_eq!(card.carry_out(Status::Ok).len(), 64);
    // Answers have places of their own.
    let reads = remote
        .read(0, region.slice(0..60 * 4096).unwrap())
        .begin()
        .unwrap();
    let under_way = card.take();
    let more = remote.read(0, region.slice(0..5 * 4096).unwrap()).try_post();
    let Err(Error::NoRoom { lacks }) = more else {
        panic!("{more:?}");
    };
    let (waker, _woken) = waker();
    assert!(poll(&mut port.room(lacks), &waker).is_pending());
    assert_eq!(card.block.get(READ_FENCE), 1, "one answer has to come");
    card.end(&under_way[7].0, Status::Ok);
    assert!(poll(&mut port.room(lacks), &waker).is_ready());
    remote
        .read(0, region.slice(0..5 * 4096).unwrap())
        .try_post()
        .unwrap();
    drop(reads);
}

#[test]
fn bytes_that_find_no_staging_wait_for_the_write_that_has_it() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default().staging_bytes(16 << 10));
    let bytes = vec![7; 4096];
    assert!(matches!(
        remote.write(0, &vec![7; 8192]).try_post(),
        Err(Error::MessageTooLong {
            len: 8192,
            limit: 4096
        })
    ));
    let mut posted = 0;
    let lacks = loop {
        match remote.write(0, &bytes).begin() {
            Ok(_) => posted += 1,
            Err(Error::NoRoom { lacks }) => break lacks,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(posted, 4);
    let mut room = port.room(lacks);
    let (waker, woken) = waker();
    assert!(poll(&mut room, &waker).is_pending());
    card.carry_out(Status::Ok);
    card.interrupt();
    woken.recv_timeout(LONG).unwrap();
    assert!(poll(&mut room, &waker).is_ready());
    remote.write(0, &bytes).try_post().unwrap();
}

#[test]
fn a_write_under_way_is_looked_at_waited_for_and_awaited() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(8192).unwrap();
    let mut write = remote.write(0, &region).begin().unwrap();
    let (mut other, mut third) = (
        remote.write(0, b"other").begin().unwrap(),
        remote.write(0, b"third").begin().unwrap(),
    );
    // The card does nothing by itself, however long it is waited for.
    card.relax_with(|_| ());
    assert!(!write.is_done());
    assert_eq!(write.wait_for(Timeout::Now), Err(Error::TimedOut));
    assert_eq!(write.wait_for(Duration::from_millis(1)), Err(Error::TimedOut));
    assert_eq!(card.block.get(WRITE_FENCE), 2, "two messages, and exactly these");
    let commands = card.take();
    card.end(&commands[0].0, Status::Ok);
    assert!(!write.is_done());
    // Each future is woken for its own count, though there is one fence word.
    let ((first, told), (second, told_second)) = (waker(), waker());
    assert!(poll(&mut third, &second).is_pending());
    assert!(poll(&mut other, &first).is_pending());
    card.end(&commands[1].0, Status::Ok);
    card.end(&commands[2].0, Status::Ok);
    card.interrupt();
    told.recv_timeout(LONG).unwrap();
    assert_eq!(poll(&mut other, &first), Poll::Ready(Ok(())));
    assert!(told_second.try_recv().is_err(), "not yet");
    let end = Instant::now() + LONG;
    while card.block.get(WRITE_FENCE) != 4 {
        assert!(Instant::now() < end, "the later one is not asked for");
        std::thread::yield_now();
    }
    card.end(&commands[3].0, Status::Ok);
    card.interrupt();
    told_second.recv_timeout(LONG).unwrap();
    assert_eq!(poll(&mut third, &second), Poll::Ready(Ok(())));
    assert!(write.is_done() && third.is_done());
    assert_eq!((write.end(), write.wait()), (Some(Ok(())), Ok(())));
    // Of nothing the end is there at once.
    assert!(remote.write(0, &[]).begin().unwrap().is_done());
    // The imports end with a flush.
    card.relax_with(|card| {
        card.carry_out(Status::Ok);
    });
}

#[test]
fn a_read_under_way_ends_when_all_its_messages_have() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(3 * 4096).unwrap();
    let read = remote.read(0, &region).begin().unwrap();
    let commands = card.take();
    assert_eq!(commands.len(), 3);
    let beside = Arc::clone(&card);
    let card_thread = std::thread::spawn(move || {
        for (command, _) in commands.iter().rev() {
            beside.bring(command, &[command.op.0.into()]);
            beside.end(command, Status::Ok);
            beside.interrupt();
        }
    });
    port.block_on(read).unwrap();
    card_thread.join().unwrap();
    let mut first = [0; 8];
    region.read_into(0, &mut first).unwrap();
    assert_ne!(first, [0; 8]);
    assert_eq!(card.freed.load(Ordering::Relaxed), 0);
}

#[test]
fn what_fails_is_told_by_its_own_value_or_by_the_next_call() {
    let card = Card::new();
    let (port, remote, two) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    let mut write = remote.write(0, &region).begin().unwrap();
    let read = remote.read(0, &region).begin().unwrap();
    let atomic = remote.word64(0).unwrap().add(1).try_post().unwrap();
    let commands = card.take();
    card.fail(&commands[0].0, Status::LocalAddress);
    for (command, _) in &commands {
        card.end(command, Status::Revoked);
    }
    // Others hear nothing of it meanwhile.
    remote.write(0, b"beside").try_post().unwrap();
    assert_eq!(
        failed(write.wait_for(LONG).unwrap_err()).status,
        Status::LocalAddress
    );
    assert_eq!(
        failed(write.wait().unwrap_err()).status,
        Status::LocalAddress,
        "the same again"
    );
    assert_eq!(failed(port.block_on(read).unwrap_err()).status, Status::Revoked);
    assert_eq!(failed(port.block_on(atomic).unwrap_err()).status, Status::Revoked);
    remote.write(0, b"beside").try_post().unwrap();
    assert_eq!(port.stats().failures, 3);

    // One that is dropped leaves its failure to the next call to that node.
    let write = remote.write(0, &region).begin().unwrap();
    let op = write.op();
    drop(write);
    let commands = card.carry_out(Status::Ok);
    card.fail(&commands[commands.len() - 1].0, Status::Unmapped);
    two.write(0, b"another node").try_post().unwrap();
    let told = failed(remote.write(0, b"next").try_post().unwrap_err());
    assert_eq!((told.op, told.status), (op, Status::Unmapped));
    remote.write(0, b"next").try_post().unwrap();
}

#[test]
fn a_flush_can_be_begun_and_given_up() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    card.take_clock();
    remote.write(0, b"data").post().unwrap();
    let mut flush = port.begin_flush_remote(1.into()).unwrap();
    let received = port.begin_flush_received(1.into()).unwrap();
    let commands = card.take();
    let kinds = [&commands[1], &commands[2]].map(|command| command.0.opcode);
    assert_eq!(kinds, [Opcode::FlushRemote, Opcode::FlushReceived]);
    assert!(!flush.is_done());
    card.end(&commands[0].0, Status::Ok);
    card.end(&commands[2].0, Status::Ok);
    assert_eq!(received.wait(), Ok(()));
    // The answer names the write that has failed, whose record comes with it.
    card.fail(&commands[0].0, Status::Unmapped);
    card.answer(&commands[1].0, Status::Unmapped, commands[0].0.op.0.into());
    let told = failed(flush.wait_for(Timeout::Now).unwrap_err());
    assert_eq!(
        (told.op, told.status, told.others),
        (commands[0].0.op, Status::Unmapped, 0)
    );

    // A deadline, with room and without; what comes after it is no news.
    let ticks = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ticks);
    card.relax_with(move |card| {
        count.fetch_add(1, Ordering::Relaxed);
        card.pass(Nanos::from_millis(1));
    });
    let soon = Duration::from_millis(20);
    assert_eq!(port.flush_remote_for(1.into(), soon), Err(Error::TimedOut));
    for (command, _) in card.take() {
        card.end(&command, Status::Ok);
    }
    for _ in 0..64 {
        remote.write(0, b"full").try_post().unwrap();
    }
    assert_eq!(port.flush_received_for(1.into(), soon), Err(Error::TimedOut));
    assert!((40..50).contains(&ticks.load(Ordering::Relaxed)));
    let before = card.area.get(READS_DONE);
    card.carry_out(Status::Ok);
    assert_eq!(card.area.get(READS_DONE), before, "no flush was posted");
    assert_eq!(card.area.get(TAKEN), card.block.get(DOORBELL));
    // The imports end with a flush.
    card.relax_with(|card| {
        card.carry_out(Status::Ok);
    });
}

#[test]
fn a_port_that_closes_ends_what_is_under_way() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    let mut write = remote.write(0, &region).begin().unwrap();
    let mut flush = port.begin_flush_remote(1.into()).unwrap();
    let mut atomic = remote.word64(0).unwrap().add(1).try_post().unwrap();
    let (waker, woken) = waker();
    assert!(poll(&mut write, &waker).is_pending());
    let done = card.area.get(WRITES_DONE);
    drop(port);
    woken.recv_timeout(LONG).unwrap();
    assert_eq!(poll(&mut write, &waker), Poll::Ready(Err(Error::PortClosed)));
    assert_eq!(poll(&mut flush, &waker), Poll::Ready(Err(Error::PortClosed)));
    assert_eq!(poll(&mut atomic, &waker), Poll::Ready(Err(Error::PortClosed)));
    assert_eq!(remote.write(0, b"late").try_post(), Err(Error::PortClosed));
    assert_eq!(card.area.get(WRITES_DONE), done);
}
