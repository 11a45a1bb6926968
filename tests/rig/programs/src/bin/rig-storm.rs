//! Page events under fire: run it on two hosts at the same time, with the same arguments.
//!
//! Node 1 exports a range and does to it everything that takes pages away; node 0 writes and reads there all the while. Each
//! word that is written says which address it is for, so a word that lands anywhere else is seen: in the range itself, in
//! pages that were moved away (`mremap`), and in fresh pages that were never exported.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use netvm::{Access, Error, Failure, Node, NodeId, Port, PortConfig, Status, device};
use netvm_rig::storm::{Arena, Canary, Event, Mix, PAGE, tag, wrong_words};

/// Where node 1 is found.
const PORT: u16 = 40;
const NAME: &str = "storm";
const DONE: u32 = 1;
/// Longest transfer in bytes, and how many are made from different memory.
const LONGEST: u64 = 5 * PAGE as u64;
const BUFFERS: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(120);

/// Ends with 0 if every word was where it belonged, 1 if not.
#[derive(Parser)]
#[command(
    name = "rig-storm",
    about = "Page events while remote writes and reads arrive"
)]
struct Arguments {
    /// How long, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Pages of the range.
    #[arg(long, default_value_t = 512)]
    pages: usize,
    /// Decides what happens when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = device::open(device::FIRST)
        .map_err(|refusal| format!("{}: {refusal:?}; is netvm.ko loaded?", device::FIRST))
        .and_then(|node| {
            let side = if node.id() == NodeId(1) { target } else { fire };
            side(&node, &arguments).map_err(|error| error.to_string())
        });
    match done {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(trouble) => {
            eprintln!("rig-storm: {trouble}");
            ExitCode::FAILURE
        }
    }
}

type Side = Result<String, Box<dyn std::error::Error>>;

/// Takes pages away.
fn target(node: &Node, arguments: &Arguments) -> Side {
    let port = Port::open(node, PortConfig::number(PORT))?;
    let arena = Arena::new(arguments.pages)?;
    // SAFETY: the arena is reached by atomics only, and lives longer than the region. What its pages are mapped to changes,
    // which is what is tried.
    let memory = unsafe { port.adopt(arena.start(), arena.bytes() as u64) }?;
    let range = port.export(NAME, &memory, .., Access::everyone().notify(DONE..=DONE))?;
    let done = port.notification(DONE)?;
    let (stop, strays) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut mix = Mix::new(arguments.seed);
    let mut counts = [0_u64; Event::ALL.len()];
    let mut wrong = 0;
    let canary = Canary::new()?;
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let seen = canary.watch(Duration::from_micros(500)).unwrap_or_default();
                strays.fetch_add(seen, Ordering::Relaxed);
            }
        });
        let limit = Instant::now() + Duration::from_secs(arguments.seconds) + PATIENCE;
        let outcome = loop {
            if done.pending() > 0 {
                break Ok(());
            }
            if Instant::now() > limit {
                break Err("node 0 does not say that it has done".into());
            }
            let event = mix.event();
            let (first, pages) = mix.pages(arguments.pages);
            match event.happen(&arena, first, pages) {
                Ok(moved) => wrong += moved,
                Err(error) => break Err(format!("{event:?}: {error}").into()),
            }
            counts[event as usize] += 1;
            let (first, _) = mix.pages(arguments.pages);
            wrong += arena.wrong_in(first);
        };
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    wrong += (0..arguments.pages).map(|page| arena.wrong_in(page)).sum::<u64>();
    drop(range);
    drop(memory);
    let strays = strays.into_inner();
    let events: u64 = counts.iter().sum();
    if wrong + strays > 0 {
        return Err(
            format!("{wrong} words in the wrong place, {strays} in memory that was never exported").into(),
        );
    }
    if let Some(event) = Event::ALL.iter().find(|&&event| counts[event as usize] == 0) {
        return Err(format!("{event:?} never happened").into());
    }
    let by_kind: Vec<String> = Event::ALL
        .iter()
        .map(|&event| format!("{event:?} {}", counts[event as usize]))
        .collect();
    Ok(format!(
        "{events} page events ({}), no word in the wrong place",
        by_kind.join(", ")
    ))
}

/// What may happen to an operation on memory that comes and goes.
fn is_expected(failure: &Failure) -> bool {
    matches!(
        failure.status,
        Status::Unmapped | Status::ReadOnly | Status::NoMemory
    )
}

/// Takes the failures that were to be expected.
fn surfaced(result: netvm::Result<()>, failed: &mut u64) -> netvm::Result<()> {
    match result {
        Err(Error::Failed(failure)) if is_expected(&failure) => {
            *failed += 1;
            Ok(())
        }
        // More than the card could tell of, one by one: a storm is that dense on a fast machine.
        Err(Error::FailuresLost { count }) => {
            *failed += u64::from(count);
            Ok(())
        }
        other => other,
    }
}

/// Writes and reads.
fn fire(node: &Node, arguments: &Arguments) -> Side {
    let port = Port::open(node, PortConfig::default())?;
    let there = NodeId(1);
    let range = port.import(there, PORT.into(), NAME, PATIENCE)?;
    let memory = port.alloc(BUFFERS * LONGEST)?;
    let mut mix = Mix::new(arguments.seed ^ 0xF1E);
    let (mut writes, mut reads, mut failed, mut wrong) = (0_u64, 0_u64, 0_u64, 0_u64);
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut bytes = vec![0; LONGEST as usize];
    while Instant::now() < end {
        for buffer in 0..BUFFERS {
            let place = buffer * LONGEST;
            let words = 1 + mix.below(LONGEST / 8);
            let part = mix.part(range.len() / PAGE as u64) * PAGE as u64;
            let at = mix.below(part / 8 - words) * 8;
            let len = words * 8;
            let address = range.address().0 + at;
            if mix.below(4) > 0 {
                for (index, word) in bytes.chunks_exact_mut(8).take(words as usize).enumerate() {
                    word.copy_from_slice(&tag(address + index as u64 * 8, writes).to_le_bytes());
                }
                memory.write_from(place, &bytes[..len as usize])?;
                let written = range.write(at, &memory.slice(place..place + len)?).post();
                surfaced(written.map(drop), &mut failed)?;
                writes += 1;
            } else {
                let read = range.read(at, &memory.slice(place..place + len)?).post();
                // Refused for the failure of an earlier operation, it was not even asked for.
                let asked = read.is_ok();
                surfaced(read.map(drop), &mut failed)?;
                let flushed = port.flush_reads();
                let whole = asked && flushed.is_ok();
                surfaced(flushed, &mut failed)?;
                memory.read_into(place, &mut bytes[..len as usize])?;
                if whole {
                    wrong += wrong_words(&bytes[..len as usize], address);
                }
                reads += 1;
            }
        }
        surfaced(port.flush_remote(there), &mut failed)?;
    }
    // The first tells of what is left to be told.
    surfaced(port.flush_remote(there), &mut failed)?;
    range.write(0, &[0_u8; 0]).notify(DONE).post()?;
    port.flush_remote(there)?;
    if wrong > 0 {
        return Err(format!("{wrong} words were read that belong elsewhere").into());
    }
    Ok(format!(
        "{writes} writes, {reads} reads, {failed} of them refused; no word from elsewhere"
    ))
}
