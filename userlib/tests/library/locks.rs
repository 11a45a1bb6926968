//! What a lock's home makes of members that come and go.

use netvm::Refusal;
use netvm::sync::alock::{AsymmetricGuard, AsymmetricLock};
use netvm::{Access, Error, NodeId, PortConfig, PortId, Status, Timeout};
use netvm_abi::descriptor::Opcode;
use netvm_kit::port::Card;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Words of an asymmetric lock: the last remote member in line, and the member by whose death the lock was lost.
const REMOTE_TAIL: usize = 0;
const LOST: usize = 6;
/// Bytes that such a lock exports, and where its budgets lie.
const EXPORTED: u64 = 192;
const BUDGETS: u64 = 8;

/// A remote member, as it names itself there.
const fn member(node: u16, port: u16) -> u64 {
    node as u64 | (port as u64) << 16
}

/// A member finds the lock lost with another one, says so there, and leaves, while its home asks whether it lives.
#[test]
fn leaving_a_lost_lock_is_not_blamed() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let lock = AsymmetricLock::create(&port, "lock", Access::everyone()).unwrap();
    let words = card.memories.lock().unwrap().last().unwrap().clone();
    words[REMOTE_TAIL].store(member(2, 4), Ordering::Release);
    *card.grant.lock().unwrap() = Err(Refusal::Status(Status::NoSuchExport));
    let leaves = words.clone();
    *card.on_import.lock().unwrap() = Some(Box::new(move |_| {
        leaves[LOST].store(member(1, 5), Ordering::Release);
    }));
    let reason = Error::LockLost {
        node: NodeId(1),
        port: PortId(5),
    };
    let mut handle = lock.handle().unwrap();
    assert_eq!(handle.acquire().and_then(AsymmetricGuard::release), Err(reason));
    assert_eq!(words[LOST].load(Ordering::Acquire), member(1, 5));
    // Later calls get the same error.
    let later = lock
        .handle()
        .unwrap()
        .acquire()
        .and_then(AsymmetricGuard::release);
    assert_eq!(later, Err(reason));
}

/// A holder is asked for its lock from when the next one has linked itself.
#[test]
fn a_guard_knows_its_successor() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let lock = AsymmetricLock::create(&port, "lock", Access::everyone()).unwrap();
    let mut mine = lock.handle().unwrap();
    let guard = mine.acquire().unwrap();
    assert_eq!(guard.is_asked_for(), Ok(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock.handle()
                .unwrap()
                .acquire()
                .and_then(AsymmetricGuard::release)
        });
        while guard.is_asked_for() == Ok(false) {
            std::thread::yield_now();
        }
        assert_eq!(guard.is_asked_for(), Ok(true));
        guard.release().unwrap();
    });
}

/// A leader looks at the lock, and a read of the program's to a node that does not answer holds it up no more than
/// anything else.
#[test]
fn a_leader_waits_for_no_read_of_the_programs() {
    let card = Card::new();
    let (port, _, two) = card.open(PortConfig::default());
    let start = {
        let mut grant = card.grant.lock().unwrap();
        let grant = grant.as_mut().unwrap();
        grant.len = EXPORTED;
        grant.start.0
    };
    let answered = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&answered);
    let (mut other, mut relaxed) = (None, 0);
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            if command.node == NodeId(2) {
                other = Some(command);
                continue;
            }
            if command.opcode == Opcode::Read {
                let describes = command.remote.0 == start + BUDGETS;
                card.bring(&command, &[if describes { 1 | 1 << 32 } else { 0 }]);
            }
            let found = if command.opcode == Opcode::CompareSwap {
                command.compare
            } else {
                0
            };
            card.answer(&command, Status::Ok, found);
        }
        // It ends in the end, so that a leader that waits for it fails this test instead of hanging.
        relaxed += 1;
        if relaxed == 1000
            && let Some(other) = other.take()
        {
            late.store(true, Ordering::Release);
            card.answer(&other, Status::Ok, 0);
        }
    });
    let region = port.alloc(4096).unwrap();
    let mut handle = AsymmetricLock::join(&port, NodeId(1), PortId(2), "lock", Timeout::Now).unwrap();
    two.read(0, region.slice(..8).unwrap()).post().unwrap();
    let guard = handle.acquire().unwrap();
    assert!(!answered.load(Ordering::Acquire), "it waited for the read");
    guard.release().unwrap();
    card.leave_alone();
}

/// The names that two handles of a port give themselves, one after the other: the first one cannot give the lock back, and
/// the lock hears that it is lost with it only if its home answers.
fn names(hears: bool) -> (u64, u64) {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let start = {
        let mut grant = card.grant.lock().unwrap();
        let grant = grant.as_mut().unwrap();
        grant.len = EXPORTED;
        grant.start.0
    };
    let names = Arc::new(Mutex::new(Vec::new()));
    let swapped = Arc::clone(&names);
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            let at = command.remote.0 - start;
            if command.opcode == Opcode::Read {
                let words = [if at == BUDGETS { 1 | 1 << 32 } else { 0 }];
                card.bring(&command, &words);
            }
            let is_tail = at == 8 * REMOTE_TAIL as u64;
            if command.opcode == Opcode::Swap && is_tail {
                swapped.lock().unwrap().push(command.operand);
            }
            let status = if command.opcode == Opcode::CompareSwap && (is_tail || !hears) {
                Status::BusError
            } else {
                Status::Ok
            };
            if command.opcode.is_write() {
                card.end(&command, Status::Ok);
            } else {
                card.answer(&command, status, 0);
            }
        }
    });
    let join = || AsymmetricLock::join(&port, NodeId(1), PortId(2), "lock", Timeout::Now).unwrap();
    for _ in 0..2 {
        let ended = join().acquire().and_then(AsymmetricGuard::release);
        assert!(ended.is_err(), "it was given back");
    }
    card.leave_alone();
    let names = names.lock().unwrap();
    (names[0], names[1])
}

/// A member that has left without the lock's knowledge is still waited for, by its name.
#[test]
fn a_name_that_others_may_wait_for_does_not_come_again() {
    let (first, second) = names(true);
    assert_eq!(first, second, "all know that the lock is lost");
    let (first, second) = names(false);
    assert_ne!(first, second);
}
