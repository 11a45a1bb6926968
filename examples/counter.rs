//! A counter that several nodes count on: `cargo run --example counter`.
//!
//! It is a word in node 0's memory. A node that counts asks node 0's card to add to it: one round trip, no processor of
//! node 0 takes part, and nothing is lost however many do it at once.

use netvm::{Access, Node, Port, PortConfig, Result, Timeout};
use netvm_emulator::Emulator;
use std::collections::BTreeSet;
use std::time::Duration;

const NODES: u16 = 3;
const EACH: u64 = 500;
/// Longest wait for anything.
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));

/// Draws numbers, as at a counter with a ticket machine. Returns those it got.
fn draw(node: &Node) -> Result<Vec<u64>> {
    let port = Port::open(node, PortConfig::default())?;
    let memory = port.import(0.into(), 7.into(), "tickets", PATIENCE)?;
    let counter = memory.word64(0)?;
    // What was there before is the caller's ticket: no other caller gets the same.
    (0..EACH).map(|_| counter.fetch_add(1)).collect()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(NODES)?;
    let home = Port::open(&network.node(0), PortConfig::number(7))?;
    let memory = home.alloc(4096)?;
    let _tickets = home.export("tickets", &memory, ..8, Access::everyone())?;

    // Node 0 counts like all others: through its card, which is what makes it atomic with the others. An increment by
    // its own processor would not be.
    let nodes = (0..usize::from(NODES)).map(|node| network.node(node));
    let drawing: Vec<_> = nodes
        .map(|node| std::thread::spawn(move || draw(&node)))
        .collect();
    let mut tickets = BTreeSet::new();
    for drawing in drawing {
        tickets.extend(drawing.join().map_err(|_| "a counting thread panicked")??);
    }

    // A plain look is enough to read it.
    let count = memory.word64(0)?.load()?;
    println!(
        "{NODES} nodes drew {count} tickets, {} of them different",
        tickets.len()
    );
    assert_eq!(count, u64::from(NODES) * EACH);
    assert_eq!(tickets.len() as u64, count);
    Ok(())
}
