//! Acceptance 3: each deliberately broken build is caught, by the checker of the promise it breaks.
//!
//! Compiled to something only with `RUSTFLAGS="--cfg netvm_mutant"`, in a target directory of its
//! own: `cargo xtask test` runs it so.
#![cfg(netvm_mutant)]

use netvm_abi::mutant::{self, Mutant};
use netvm_world::check::Promise;
use netvm_world::{Config, NoTrace, run_seed};

/// Seeds that a mutant may survive.
const SEEDS: u64 = 40;

/// Mutants are selected for the whole process, so all of them are one test.
#[test]
fn every_mutant_is_caught_by_its_checker() {
    let cases = [
        (Mutant::UnmapDoesNotWait, Promise::P1),
        (Mutant::BounceRecordDropped, Promise::P2),
        (Mutant::LostDirtyBit, Promise::P3),
        (Mutant::WriteThroughReadOnly, Promise::P3),
        (Mutant::NotificationEarly, Promise::P4),
        (Mutant::CapabilityCheckSkipped, Promise::P5),
        (Mutant::DeadPageStaysMapped, Promise::P6),
    ];
    let mut survivors = Vec::new();
    for (broken, promise) in cases {
        mutant::select(Some(broken));
        let config = Config {
            messages: 5_000,
            ..Config::default()
        };
        let mut others = Vec::new();
        let caught = (1..=SEEDS).find_map(|seed| {
            let failure = run_seed(seed, &config, &mut NoTrace).err()?;
            if failure.promise == Some(promise) {
                return Some((seed, failure.what));
            }
            others.push(format!("seed {seed}: {:?} {}", failure.promise, failure.what));
            None
        });
        match caught {
            Some((seed, what)) => println!("{broken:?}: caught by {promise} with seed {seed}: {what}"),
            None => survivors.push(format!("{broken:?} was not caught by {promise}; {others:#?}")),
        }
    }
    mutant::select(None);
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
