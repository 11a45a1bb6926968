//! Counts words on several nodes: `cargo run --example word_count`.
//!
//! Each word has an owner, by its hash. A node that reads a word calls its owner, which counts it: no lock, and no memory that
//! two nodes change. The calls are packed, so a page of them is one write. At the end each node asks the others for the
//! words that they have seen most often.

use netvm::{Node, Port, PortConfig, Timeout};
use netvm_calls::{Address, Calls, CallsConfig, Function, Registry, Result, Synchronizer, signature};
use netvm_emulator::Emulator;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const NODES: u16 = 3;
const PORT: u16 = 7;
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(20));

/// Counts a word at its owner.
const COUNT: Function<String> = Function::new("words.count");
/// The words that a node has seen most often, one a line.
const TOP: Function<u64, String> = Function::new("words.top");
/// A node has counted all, and waits for no result any more.
const DONE: Function<()> = Function::new("words.done");

/// What one node reads.
const TEXTS: [&str; NODES as usize] = [
    "the card locks a page only for the microseconds of one transfer and the host empties the buffer with one copy",
    "the page that is not in memory goes to the buffer and the sender hears nothing of the page",
    "what the wire loses the card sends again and the page arrives once",
];

/// One node: counts what it owns, and calls the owners of what it reads.
fn run(node: &Node, text: &str) -> Result<String> {
    let counts = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let done = Arc::new(Mutex::new(0));
    let mut functions = Registry::new();
    let counted = Arc::clone(&counts);
    functions.add(&COUNT, move |_, word| {
        *counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(word)
            .or_default() += 1;
    })?;
    let counted = Arc::clone(&counts);
    functions.add(&TOP, move |_, most| {
        let counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words: Vec<_> = counts
            .iter()
            .map(|(word, count)| (*count, word.as_str()))
            .collect();
        words.sort_unstable_by(|one, other| other.cmp(one));
        let lines = words
            .iter()
            .take(most as usize)
            .map(|(count, word)| format!("{count} {word}\n"));
        lines.collect()
    })?;
    let finished = Arc::clone(&done);
    functions.add(&DONE, move |_, ()| {
        *finished.lock().unwrap_or_else(PoisonError::into_inner) += 1
    })?;

    let port = Port::open(node, PortConfig::number(PORT))?;
    let mut calls = Calls::open(port, "words", functions, CallsConfig::default())?;
    // A node calls itself as it calls others.
    let owners: Vec<_> = (0..NODES)
        .map(|owner| calls.connect(Address::new(owner, PORT)))
        .collect::<Result<_>>()?;
    let counted = Synchronizer::new();
    for word in text.split_whitespace() {
        let owner = signature(word) % u64::from(NODES);
        calls
            .to(owners[owner as usize])
            .consumed(&counted)
            .call(&COUNT, &word.to_owned())?;
    }
    calls.wait_for(&counted, PATIENCE)?;

    // All have counted when each has said so; then the owners' words are final.
    let wait_for_all = |calls: &mut Calls, rounds| {
        let all = u64::from(NODES) * rounds;
        calls.run_until(PATIENCE, || {
            *done.lock().unwrap_or_else(PoisonError::into_inner) == all
        })
    };
    let told = Synchronizer::new();
    for &owner in &owners {
        calls.to(owner).consumed(&told).call(&DONE, &())?;
    }
    wait_for_all(&mut calls, 1)?;
    let mut answer = String::new();
    for &owner in &owners {
        answer += &calls.ask(owner, &TOP, &2, PATIENCE)?;
    }
    // The others may still ask this one.
    for &owner in &owners {
        calls.to(owner).consumed(&told).call(&DONE, &())?;
    }
    wait_for_all(&mut calls, 2)?;
    calls.wait_for(&told, PATIENCE)?;
    Ok(answer)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(NODES)?;
    let answers: Vec<String> = std::thread::scope(|scope| {
        let nodes: Vec<_> = TEXTS
            .iter()
            .enumerate()
            .map(|(number, text)| {
                let node = network.node(number);
                scope.spawn(move || run(&node, text))
            })
            .collect();
        let ends = nodes
            .into_iter()
            .map(|node| node.join().map_err(|_| "a node panicked"));
        ends.map(|end| Ok(end??))
            .collect::<std::result::Result<_, Box<dyn std::error::Error>>>()
    })?;
    print!("{}", answers[0]);
    // Each node has asked the same owners.
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let most = "11 the\n";
    assert!(
        answers[0].contains(most),
        "the word that is there most often is counted"
    );
    println!("all nodes agree");
    Ok(())
}
