//! What a lock's participant says of itself in its own memory when something goes wrong, and which numbers it takes.

use netvm::sync::Lock;
use netvm::{Access, Error, NodeId, NotificationId, Port, PortConfig, PortId, Status, Timeout};
use netvm_abi::descriptor::{CommandFlags, Opcode};
use netvm_kit::port::Card;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Where the home of a lock says what it is, and that it is a lock.
const KIND: u64 = 40;
const LOCK: u64 = u64::from_le_bytes(*b"NetVMs\x01\x01");
/// Where a participant says how it stands, in words of its port's page of seats: the first seat is number 1.
const PLACE: usize = 64 / 8 + 1;
const ASKING: u64 = 1;
const HOLDING: u64 = 4;
const OVER: u64 = 5;

/// The card answers as the home of a free lock would; `status` for what asks for the lock itself.
fn be_home(card: &Card, start: u64, status: Status) {
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            let offset = command.remote.0.wrapping_sub(start);
            match command.opcode {
                Opcode::Read => {
                    let first = if offset == KIND { LOCK } else { 0 };
                    card.bring(&command, &[first]);
                    card.answer(&command, Status::Ok, 0);
                }
                Opcode::CompareSwap if offset == 0 => card.answer(&command, status, command.compare),
                Opcode::CompareSwap => card.answer(&command, Status::Ok, command.compare),
                _ => card.answer(&command, Status::Ok, 0),
            }
        }
    });
}

/// Takes part in a lock, and tells where the words of its seats are.
fn join(card: &Arc<Card>, status: Status) -> (Port, Lock, Arc<Vec<AtomicU64>>) {
    let (port, ..) = card.open(PortConfig::default());
    let (lock, seats) = join_at(card, &port, status);
    (port, lock, seats)
}

fn join_at(card: &Arc<Card>, port: &Port, status: Status) -> (Lock, Arc<Vec<AtomicU64>>) {
    let start = {
        let mut grant = card.grant.lock().unwrap();
        let grant = grant.as_mut().unwrap();
        grant.len = 4096;
        grant.start.0
    };
    be_home(card, start, status);
    let before = card.memories.lock().unwrap().len();
    let lock = Lock::join(port, NodeId(1), PortId(2), "lock", Timeout::Now).unwrap();
    let memories = card.memories.lock().unwrap();
    // The page of seats is the one that says which life of the port it is of.
    let seats = memories[before..]
        .iter()
        .find(|words| words.len() == 512 && words[0].load(Ordering::Acquire) == 1 << 32);
    let seats = Arc::clone(seats.unwrap());
    drop(memories);
    (lock, seats)
}

fn place(seats: &[AtomicU64]) -> u64 {
    seats[PLACE].load(Ordering::Acquire) & 0xFF
}

/// A member that still asks is one that may have the lock without knowing: every participant that recovers it would
/// wait for it.
#[test]
fn a_failed_try_leaves_no_asking_member() {
    let card = Card::new();
    let (_port, mut lock, seats) = join(&card, Status::NoMemory);
    assert_eq!(place(&seats), OVER);
    assert!(matches!(lock.try_acquire(), Err(Error::Failed(_))));
    assert_ne!(place(&seats), ASKING, "it still asks");
    let tried = lock.try_acquire_for(Timeout::Now).map(drop);
    assert!(matches!(tried, Err(Error::Failed(_))), "{tried:?}");
    assert_eq!(place(&seats), OVER);
    card.leave_alone();
}

/// The guard of a member that has left holds nothing.
#[test]
fn a_lock_that_is_dropped_with_a_forgotten_guard_is_not_held() {
    let card = Card::new();
    let (_port, mut lock, seats) = join(&card, Status::Ok);
    let guard = lock.try_acquire().unwrap().unwrap();
    assert_eq!(place(&seats), HOLDING);
    std::mem::forget(guard);
    drop(lock);
    assert_eq!(place(&seats), OVER);
    card.leave_alone();
}

/// The next holder reads what this one has written to the home: a release comes after that, and goes out whatever became
/// of it.
#[test]
fn a_release_comes_after_what_was_written_under_the_lock() {
    let card = Card::new();
    let (_port, mut lock, _) = join(&card, Status::Ok);
    let guard = lock.try_acquire().unwrap().unwrap();
    let released = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&released);
    card.relax_with(move |card| {
        for (command, _) in card.take() {
            if command.opcode == Opcode::CompareSwap {
                seen.lock().unwrap().push(command.flags);
            }
            card.answer(&command, Status::Ok, command.compare);
        }
    });
    guard.release().unwrap();
    let after = CommandFlags::ORDERED | CommandFlags::REGARDLESS;
    let flags = released.lock().unwrap().clone();
    assert!(
        flags.len() == 1 && flags[0].contains(after),
        "released with {flags:?}"
    );
    card.leave_alone();
}

#[cfg(netvm_mutant)]
#[test]
fn broken_builds_are_found() {
    use netvm_abi::mutant::{Mutant, select};
    select(Some(Mutant::ReleaseOvertakes));
    let end = std::panic::catch_unwind(a_release_comes_after_what_was_written_under_the_lock);
    select(None);
    assert!(end.is_err(), "a release overtakes, and no test fails");
}

/// What the program's own operations have failed with is for its own calls.
#[test]
fn joining_tells_of_no_failure_of_others() {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    let lost = one.write(0, &[1; 8]).post().unwrap();
    for (command, _) in card.carry_out(Status::Ok) {
        card.fail(&command, Status::Revoked);
    }
    let (lock, _) = join_at(&card, &port, Status::Ok);
    let told = one.write(0, &[2; 8]).post();
    assert!(
        matches!(told, Err(Error::Failed(failure)) if failure.op == lost),
        "{told:?}"
    );
    drop(lock);
    card.leave_alone();
}

/// The program and the library do not get each other's notification numbers.
#[test]
fn numbers_belong_to_the_program_or_the_library() {
    let card = Card::new();
    let (port, lock, _) = join(&card, Status::Ok);
    let taken = |id| Error::NotificationTaken {
        id: NotificationId(id),
    };
    // The lock's participant has the first number of its kind.
    assert_eq!(port.notification(897).map(drop), Err(taken(897)));
    let memory = port.alloc(4096).unwrap();
    let export = |ids: std::ops::RangeInclusive<u32>| {
        let access = Access::everyone().notify(ids);
        port.export("name", &memory, .., access).map(drop)
    };
    assert_eq!(export(1..=1023), Err(taken(897)));
    assert_eq!(export(897..=1_000_000), Err(taken(897)));
    assert_eq!((export(1..=896), export(898..=1_000_000)), (Ok(()), Ok(())));

    // Made before the next one takes its number: it does no harm.
    let early = port.notification(898).unwrap();
    let second = Lock::join(&port, NodeId(1), PortId(2), "lock", Timeout::Now).unwrap();
    card.signal(898, true);
    assert_eq!(early.arm(|_| {}), Err(taken(898)));
    assert_eq!(early.ack(), Err(taken(898)));

    // What the program has, the library does not take.
    port.notification(899).unwrap().arm(|_| {}).unwrap();
    let _third = Lock::join(&port, NodeId(1), PortId(2), "lock", Timeout::Now).unwrap();
    assert_eq!(port.notification(900).map(drop), Err(taken(900)));
    let _given = port
        .export("given", &memory, .., Access::everyone().notify(901..=1000))
        .unwrap();
    let fourth = Lock::join(&port, NodeId(1), PortId(2), "lock", Timeout::Now);
    assert!(matches!(fourth, Err(Error::Refused { .. })), "{fourth:?}");

    // A program may take the numbers that the library gives back.
    drop((lock, second));
    assert!(port.notification(897).is_ok());
    assert_eq!(early.pending(), 0);
    assert!(early.arm(|_| {}).is_ok());
    card.leave_alone();
}
