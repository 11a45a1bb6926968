//! Threads of the driver run the card in passing.

mod support;

use netvm::{Access, PortId};
use support::adopt::{PAGE, PATIENCE, Pair};

/// A worker that has brought a page runs the card for that alone. If it passed for a thread that goes on running it, the next message
/// would wait until the helper looks in, and so would each.
#[test]
fn a_worker_that_brings_pages_leaves_what_comes_to_the_helper() {
    const ROUNDS: u64 = 500;
    /// Pages between two that are missed: no stream, of which pages would be given ahead.
    const APART: u64 = 1000;
    let pair = Pair::new();
    let region = pair.target.alloc(ROUNDS * APART * PAGE as u64).unwrap();
    let _export = pair
        .target
        .export("fresh", &region, .., Access::everyone())
        .unwrap();
    let remote = pair
        .sender
        .import(pair.target_id, PortId(7), "fresh", PATIENCE)
        .unwrap();
    let stats = || pair.nodes[0].stats();
    let before = stats();
    for round in 0..ROUNDS {
        let at = round * APART * PAGE as u64;
        pair.write(&remote, at, &round.to_le_bytes()).unwrap();
    }
    let after = stats();
    let missed = after.counters.bounced_not_found - before.counters.bounced_not_found;
    assert!(missed >= ROUNDS, "{missed} of {ROUNDS} pages were missed");
    // To ask for the counts is a visit, after which the helper looks in.
    let looks = after.looks - before.looks;
    assert!(looks < ROUNDS / 10, "the helper looked in {looks} times");
}
