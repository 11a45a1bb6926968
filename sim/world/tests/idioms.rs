//! Builds that are broken on purpose in reads, paging, locks, channels and shared queues: a body of the suite, or a checker
//! beside it, finds each.
//!
//! Compiled to something only with `--cfg netvm_mutant`, as `tests/mutants.rs`. More of them, which no body
//! finds, are found by tests of the cores and the library (`broken_builds_are_found` there), and by
//! `sim/emulator/tests/crossed`.
#![cfg(netvm_mutant)]

use netvm_abi::mutant::{self, Mutant};
use netvm_conformance::ALL;
use netvm_world::check::Promise;
use netvm_world::{Config, FaultLevel, NoTrace, run_conformance};

/// Seeds that a mutant may survive.
const SEEDS: u64 = 100;

/// What finds it, and what that says.
struct Found {
    mutant: Mutant,
    body: &'static str,
    /// The checker, or none: the body itself.
    by: Option<Promise>,
    says: &'static str,
}

const fn found(mutant: Mutant, body: &'static str, by: Option<Promise>, says: &'static str) -> Found {
    Found {
        mutant,
        body,
        by,
        says,
    }
}

const ALL_FOUND: &[Found] = &[
    found(
        Mutant::ReplyStaysInBounce,
        "bulk_read",
        Some(Promise::P2),
        "its data have not been stored",
    ),
    found(
        Mutant::RaceUnseen,
        "bulk_write",
        Some(Promise::P1),
        "which is not mapped",
    ),
    found(
        Mutant::MapsForWriting,
        "channel_sizes",
        Some(Promise::P3),
        "maps read-only",
    ),
    found(
        Mutant::HostForgetsDirty,
        "read_and_write_back",
        Some(Promise::P3),
        "dropped as clean",
    ),
    found(
        Mutant::SuccessorForgotten,
        "contended_lock",
        None,
        "no process has died",
    ),
    found(
        Mutant::BorrowedIsFree,
        "channel_borrow",
        None,
        "more than there is room for",
    ),
    found(
        Mutant::OneTooMany,
        "channel_borrow",
        None,
        "more than there is room for",
    ),
    found(
        Mutant::CreditsKept,
        "channel_bytes",
        None,
        "longer than the time allowed",
    ),
    found(Mutant::HeadSignals, "channel_sizes", None, "message: byte"),
    found(
        Mutant::BorrowedPlaceIsFree,
        "shared_full",
        None,
        "one message too many",
    ),
];

/// Plays a body until something objects in that way. Gives the seed, or what was said instead.
fn hunt(what: &Found) -> Result<u64, String> {
    let case = ALL.iter().find(|case| case.name == what.body).expect("a body");
    let config = Config {
        faults: FaultLevel::Benign,
        ..Config::default()
    };
    let mut others = String::new();
    for seed in 1..=SEEDS {
        if let Err(failure) = run_conformance(case, seed, &config, &mut NoTrace) {
            if failure.promise == what.by && failure.what.contains(what.says) {
                return Ok(seed);
            }
            others += &format!("seed {seed}: {:?} {}\n", failure.promise, failure.what);
        }
    }
    Err(others)
}

/// Mutants are selected for the whole process, so all of them are one test.
#[test]
fn every_mutant_is_found() {
    let mut survivors = Vec::new();
    for what in ALL_FOUND {
        mutant::select(Some(what.mutant));
        match hunt(what) {
            Ok(seed) => println!("{:?}: found by {} with seed {seed}", what.mutant, what.body),
            Err(others) => survivors.push(format!("{:?}: {others}", what.mutant)),
        }
    }
    mutant::select(None);
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
