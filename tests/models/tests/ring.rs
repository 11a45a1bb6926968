//! The chunk protocol of remote calls: every batch comes out whole, once and in order, and a ring that is full comes free.

use netvm_calls::ring::Shape;
use netvm_models::ring::{Flaw, RingModel};
use netvm_models::{Verdict, explore};

const fn shape(chunks: u32) -> Shape {
    Shape {
        chunk_bytes: 64,
        chunks,
    }
}

/// Batches that fill a chunk, or share one: 16, 32 and 56 bytes with their heads.
const LENGTHS: [u64; 9] = [8, 40, 24, 8, 40, 40, 8, 8, 24];

fn run(name: &str, chunks: u32, lengths: &[u64], batches: usize, flaw: Flaw) -> Verdict {
    let batches = lengths.iter().copied().cycle().take(batches).collect();
    let shape = shape(chunks);
    explore(name, RingModel { shape, batches, flaw })
}

fn holds(name: &str, chunks: u32, batches: usize) {
    let verdict = run(name, chunks, &LENGTHS, batches, Flaw::None);
    assert_eq!(verdict.wrong, None);
    assert!(verdict.ends > 0, "it comes to an end");
}

#[test]
fn a_ring_of_two_chunks() {
    holds("calls, 2 chunks, 9 batches", 2, 9);
}

#[test]
fn a_ring_of_three_chunks() {
    holds("calls, 3 chunks, 8 batches", 3, 8);
}

#[test]
fn a_ring_that_grows_to_its_end() {
    holds("calls, 4 chunks, 6 batches", 4, 6);
}

/// Without what it relies on, the model finds what goes wrong.
#[test]
fn flaws_are_found() {
    // One batch in a chunk, and a longer one where a jump was: so a chunk that is filled too early loses its jump.
    let lengths = [40, 24, 40, 40];
    assert_eq!(run("calls, 1 in a chunk", 3, &lengths, 7, Flaw::None).wrong, None);
    for flaw in [Flaw::EarlySignal, Flaw::EarlyCredit, Flaw::NoCredit] {
        let verdict = run(&format!("calls, {flaw:?}"), 3, &lengths, 7, flaw);
        assert!(verdict.wrong.is_some(), "{flaw:?} is not found");
    }
}
