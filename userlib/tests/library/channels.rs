//! What the ends of a channel wait for.

use netvm::{ChannelConfig, Error, NodeId, PortConfig, PortId, Receiver, Sender, Status, Timeout};
use netvm_abi::descriptor::{Command, Opcode};
use netvm_kit::port::Card;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Words of a queue: its sender's name, and the first entry; and how many words lie between entries of 64 bytes.
const OWNER: usize = 8;
const FIRST_ENTRY: usize = 512;
const ENTRY: usize = 16;
/// Where a queue says who sends, in bytes, and where a sender counts the entries that it has back.
const OWNER_AT: u64 = 64;
const FREED_AT: u64 = 0;
/// Longer than a first look at the other side takes to be due, and not so long.
const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(5);

fn config() -> ChannelConfig {
    ChannelConfig::default().message_bytes(64).capacity(4).refill(1)
}

/// A queue, whose sender is a port of node 1.
fn open(card: &Card, port: &netvm::Port) -> (Receiver, Arc<Vec<AtomicU64>>) {
    let receiver = Receiver::open(port, "queue", config()).unwrap();
    let words = card.memories.lock().unwrap().last().unwrap().clone();
    words[OWNER].store(1 << 48 | 2 << 32 | 1 << 10 | 5, Ordering::Release);
    (receiver, words)
}

/// A message of 8 bytes comes.
fn arrive(card: &Card, receiver: &Receiver, words: &[AtomicU64], number: usize) {
    let at = FIRST_ENTRY + ENTRY * (number % 4);
    words[at].store((number as u64 + 1) << 32 | 8, Ordering::Release);
    card.signal(receiver.notification().id().0, true);
}

fn take(receiver: &mut Receiver) {
    assert_eq!(receiver.try_recv().unwrap().map(|message| message.len()), Some(8));
}

/// How many entries were given back, by what is posted.
fn freed(card: &Card, start: u64) -> Option<u64> {
    let of = |(command, bytes): &(Command, Vec<u8>)| {
        let frees = command.opcode.is_write() && command.remote.0 == start + FREED_AT;
        let count = bytes.as_slice().try_into().map(u64::from_le_bytes);
        count.ok().filter(|_| frees)
    };
    card.carry_out(Status::Ok).iter().filter_map(of).next_back()
}

/// The card carries everything out but reads of this place of node 1: those end after long, so that a call that waits
/// for them fails its test instead of hanging.
fn hold_up(card: &Card, at: u64, answered: &Arc<AtomicBool>) {
    let answered = Arc::clone(answered);
    let (mut held, mut relaxed) = (Vec::new(), 0);
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            if command.opcode == Opcode::Read && command.node == NodeId(1) && command.remote.0 == at {
                held.push(command);
            } else {
                card.end(&command, Status::Ok);
            }
        }
        relaxed += 1;
        if relaxed > 1000 {
            for read in held.drain(..) {
                answered.store(true, Ordering::Release);
                card.answer(&read, Status::Ok, 0);
            }
        }
    });
}

#[test]
fn a_receive_waits_for_no_import() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let start = card.grant.lock().unwrap().as_ref().unwrap().start.0;
    let (mut receiver, words) = open(&card, &port);
    let (answers, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (go, waited) = (Arc::clone(&answers), Arc::clone(&late));
    *card.on_import.lock().unwrap() = Some(Box::new(move |_| {
        let began = Instant::now();
        while !go.load(Ordering::Acquire) {
            if began.elapsed() > LONG {
                waited.store(true, Ordering::Release);
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }));
    for number in 0..2 {
        arrive(&card, &receiver, &words, number);
        take(&mut receiver);
    }
    assert!(receiver.try_recv().unwrap().is_none());
    assert_eq!(receiver.recv(SHORT).map(drop), Err(Error::TimedOut));
    assert!(!late.load(Ordering::Acquire), "it waited for the import");
    answers.store(true, Ordering::Release);
    // The program may make no call before the next message comes, and that needs an entry.
    let began = Instant::now();
    while freed(&card, start) != Some(2) {
        assert!(began.elapsed() < LONG, "the sender was not told of its entries");
        std::thread::yield_now();
    }
}

#[test]
fn a_receive_waits_for_no_look_at_the_sender() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(0));
    let start = card.grant.lock().unwrap().as_ref().unwrap().start.0;
    let (mut receiver, words) = open(&card, &port);
    arrive(&card, &receiver, &words, 0);
    take(&mut receiver);
    let began = Instant::now();
    while freed(&card, start) != Some(1) {
        assert!(began.elapsed() < LONG, "the sender was not told of its entry");
        assert!(receiver.try_recv().unwrap().is_none());
    }
    let answered = Arc::default();
    hold_up(&card, start + FREED_AT, &answered);
    let looks = receiver.stats().looks;
    while receiver.stats().looks == looks {
        assert!(began.elapsed() < LONG, "it does not look");
        assert_eq!(receiver.recv(SHORT).map(drop), Err(Error::TimedOut));
    }
    assert!(!answered.load(Ordering::Acquire), "it waited for the look");
    // A message that comes meanwhile is received.
    arrive(&card, &receiver, &words, 1);
    take(&mut receiver);
    assert!(!answered.load(Ordering::Acquire), "it waited for the look");
    card.leave_alone();
}

#[test]
fn a_send_waits_for_no_look_at_the_receiver() {
    const MAGIC: u64 = u64::from_le_bytes(*b"NetVMch2");
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default().spins(0));
    let start = card.grant.lock().unwrap().as_ref().unwrap().start.0;
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            if command.opcode == Opcode::Read {
                // One message fits; number 5 tells of it.
                card.bring(&command, &[MAGIC, 64, 1, 5]);
            }
            card.end(&command, Status::Ok);
        }
    });
    let mut sender = Sender::join(&port, NodeId(1), PortId(2), "queue", Timeout::Now).unwrap();
    let answered = Arc::default();
    hold_up(&card, start + OWNER_AT, &answered);
    sender.send(&[1; 8], Timeout::Now).unwrap();
    assert_eq!(sender.send(&[2; 8], SHORT), Err(Error::TimedOut));
    assert_eq!(sender.stats().looks, 1);
    assert_eq!(sender.send(&[2; 8], Timeout::Now), Err(Error::TimedOut));
    assert!(!answered.load(Ordering::Acquire), "it waited for the look");
    card.leave_alone();
}
