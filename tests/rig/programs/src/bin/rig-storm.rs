//! Page events under fire: run it on two hosts at the same time, with the same arguments.
//!
//! Node 1 exports a range and does to it everything that takes pages away; node 0 writes and reads there all the while, in
//! several streams. Each word that is written says which address it is for, so a word that lands anywhere else is seen: in
//! the range itself, in pages that were moved away (`mremap`), and in the fresh pages of another process, which were never
//! exported.

use std::io::Read as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use netvm::{Access, Error, Failure, Node, NodeId, Port, PortConfig, Status, device};
use netvm_rig::meeting;
use netvm_rig::storm::{Arena, Canary, Event, Mix, PAGE, tag, wrong_words};
use serde_json::json;

/// Where node 1 is found.
const PORT: u16 = 40;
const NAME: &str = "storm";
const DONE: u32 = 1;
/// Longest transfer in bytes, and how many are made from different memory.
const LONGEST: u64 = 3 * PAGE as u64;
const BUFFERS: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(120);
/// Pages that are taken away one by one after each event.
const QUICK: u32 = 8;
/// How long a canary is left alone.
const WATCH: Duration = Duration::from_millis(5);

/// Ends with 0 if every word was where it belonged, 1 if not. Prints one line of JSON.
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
    /// Streams of writes and reads, each with a port of its own.
    #[arg(long, default_value_t = 6)]
    streams: u64,
    /// How long pages are left in peace between two events, in microseconds at most.
    #[arg(long, default_value_t = 200)]
    peace: u64,
    /// Decides what happens when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Be the process that was never exported, until the input ends.
    #[arg(long, hide = true)]
    canary: bool,
}

type Trouble = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.canary {
        sing()
    } else {
        device::open(device::FIRST)
            .map_err(|refusal| format!("{}: {refusal:?}; is netvm.ko loaded?", device::FIRST).into())
            .and_then(|node| {
                let side = if node.id() == NodeId(1) { target } else { fire };
                side(&node, &arguments)
            })
    };
    meeting::end("rig-storm", done)
}

/// The process whose pages no other may write: returns how many words were overwritten.
fn sing() -> Result<String, Trouble> {
    let canary = Canary::new()?;
    let stop = AtomicBool::new(false);
    let (mut strays, mut pages) = (0, 0);
    std::thread::scope(|scope| -> Result<(), Trouble> {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            strays += canary.watch(WATCH)?;
            pages += canary.pages();
        }
        Ok(())
    })?;
    Ok(json!({"strays": strays, "pages": pages}).to_string())
}

/// Starts it.
fn canary() -> Result<Child, Trouble> {
    let program = std::env::current_exe()?;
    let pipes = (Stdio::piped(), Stdio::piped());
    Ok(Command::new(program)
        .arg("--canary")
        .stdin(pipes.0)
        .stdout(pipes.1)
        .spawn()?)
}

/// Takes pages away.
fn target(node: &Node, arguments: &Arguments) -> Result<String, Trouble> {
    let canary = canary()?;
    let port = Port::open(node, PortConfig::number(PORT))?;
    let arena = Arena::new(arguments.pages)?;
    // SAFETY: the arena is reached by atomics only, and lives longer than the region. What its pages are mapped to changes,
    // which is what is tried.
    let memory = unsafe { port.adopt(arena.start(), arena.bytes() as u64) }?;
    let range = port.export(NAME, &memory, .., Access::everyone().notify(DONE..=DONE))?;
    let done = port.notification(DONE)?;
    let mut mix = Mix::new(arguments.seed);
    let mut counts = [0_u64; Event::ALL.len()];
    let mut wrong = 0;
    let limit = Instant::now() + Duration::from_secs(arguments.seconds) + PATIENCE;
    while done.pending() == 0 {
        if Instant::now() > limit {
            return Err("node 0 does not say that it has done".into());
        }
        let event = mix.event();
        let (first, pages) = mix.pages(arguments.pages);
        wrong += event
            .happen(&arena, first, pages)
            .map_err(|error| format!("{event:?}: {error}"))?;
        counts[event as usize] += 1;
        // Between those that take long, the quickest of all, page by page: to meet the card on its way to a page takes many
        // of them.
        for _ in 0..QUICK {
            std::thread::sleep(Duration::from_micros(mix.below(arguments.peace + 1)));
            let (first, _) = mix.pages(arguments.pages);
            wrong += Event::Drop
                .happen(&arena, first, 1)
                .map_err(|error| format!("a page: {error}"))?;
            counts[Event::Drop as usize] += 1;
        }
        let (first, _) = mix.pages(arguments.pages);
        wrong += arena.wrong_in(first);
    }
    wrong += (0..arguments.pages).map(|page| arena.wrong_in(page)).sum::<u64>();
    drop(range);
    drop(memory);
    // Its input ends with this.
    let song = canary.wait_with_output()?;
    let song: serde_json::Value = serde_json::from_slice(&song.stdout)?;
    let strays = &song["strays"];
    if wrong > 0 || strays != 0 {
        return Err(
            format!("{wrong} words in the wrong place, {strays} in memory that was never exported").into(),
        );
    }
    if let Some(event) = Event::ALL.iter().find(|&&event| counts[event as usize] == 0) {
        return Err(format!("{event:?} never happened").into());
    }
    let events = Event::ALL
        .iter()
        .map(|&event| (format!("{event:?}"), counts[event as usize]))
        .collect::<std::collections::BTreeMap<_, _>>();
    Ok(json!({"node": 1, "events": events, "canary_pages": song["pages"]}).to_string())
}

/// What may happen to an operation on memory that comes and goes.
fn is_expected(failure: &Failure) -> bool {
    matches!(
        failure.status,
        Status::Unmapped | Status::ReadOnly | Status::NoMemory | Status::BusError
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

/// What a stream, or all of them, did.
#[derive(Default)]
struct Fired {
    writes: u64,
    reads: u64,
    failed: u64,
    wrong: u64,
}

/// Writes and reads.
fn fire(node: &Node, arguments: &Arguments) -> Result<String, Trouble> {
    let all = std::thread::scope(|scope| -> Result<Fired, Trouble> {
        let streams: Vec<_> = (0..arguments.streams)
            .map(|number| scope.spawn(move || stream(node, arguments, number)))
            .collect();
        let mut all = Fired::default();
        for stream in streams {
            let one = stream
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.writes += one.writes;
            all.reads += one.reads;
            all.failed += one.failed;
            all.wrong += one.wrong;
        }
        Ok(all)
    })?;
    let port = Port::open(node, PortConfig::default())?;
    let range = port.import(NodeId(1), PORT.into(), NAME, PATIENCE)?;
    range.write(0, &[0_u8; 0]).notify(DONE).post()?;
    port.flush_remote(NodeId(1))?;
    if all.wrong > 0 {
        return Err(format!("{} words were read that belong elsewhere", all.wrong).into());
    }
    Ok(json!({"node": 0, "writes": all.writes, "reads": all.reads, "refused": all.failed}).to_string())
}

/// What a stream writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Any number of words anywhere. It also reads, and stops for each answer.
    Anything,
    /// Single words, and now and then a whole page: the card locks pages as often as it can, so it is met on the way to one
    /// (thesis figure 13, third outcome), and has some in its hands for long.
    Words,
}

/// One stream. The first has anything, the others only write, as fast as they may.
fn stream(node: &Node, arguments: &Arguments, number: u64) -> Result<Fired, Trouble> {
    let port = Port::open(node, PortConfig::default())?;
    let there = NodeId(1);
    let range = port.import(there, PORT.into(), NAME, PATIENCE)?;
    let what = if number == 0 { What::Anything } else { What::Words };
    let memory = port.alloc(BUFFERS * LONGEST)?;
    let mut mix = Mix::new(arguments.seed ^ 0xF1E ^ number << 32);
    let mut fired = Fired::default();
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut bytes = vec![0; LONGEST as usize];
    while Instant::now() < end {
        for buffer in 0..BUFFERS {
            let place = buffer * LONGEST;
            let (at, len) = somewhere(&mut mix, range.len(), what);
            let address = range.address().0 + at;
            let slice = memory.slice(place..place + len)?;
            let bytes = &mut bytes[..len as usize];
            if what != What::Anything || mix.below(4) > 0 {
                for (index, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
                    word.copy_from_slice(&tag(address + index * 8, fired.writes).to_le_bytes());
                }
                memory.write_from(place, bytes)?;
                let written = range.write(at, &slice).post();
                surfaced(written.map(drop), &mut fired.failed)?;
                fired.writes += 1;
            } else {
                let asked = range.read(at, &slice).post();
                // Refused for the failure of an earlier operation, it was not even asked for.
                let mut whole = asked.is_ok();
                surfaced(asked.map(drop), &mut fired.failed)?;
                let flushed = port.flush_reads();
                whole &= flushed.is_ok();
                surfaced(flushed, &mut fired.failed)?;
                memory.read_into(place, bytes)?;
                if whole {
                    fired.wrong += wrong_words(bytes, address);
                }
                fired.reads += 1;
            }
        }
        surfaced(port.flush_remote(there), &mut fired.failed)?;
    }
    // The first tells of what is left to be told.
    surfaced(port.flush_remote(there), &mut fired.failed)?;
    port.flush_remote(there)?;
    Ok(fired)
}

/// Where to write or read, and how much.
fn somewhere(mix: &mut Mix, size: u64, what: What) -> (u64, u64) {
    const PAGE: u64 = netvm_rig::storm::PAGE as u64;
    let part = mix.part(size / PAGE) * PAGE;
    match what {
        What::Anything => {
            let words = 1 + mix.below(LONGEST / 8);
            (mix.below(part / 8 - words) * 8, words * 8)
        }
        What::Words if mix.below(16) == 0 => (mix.below(part / PAGE) * PAGE, PAGE),
        What::Words => (mix.below(part / 8) * 8, 8),
    }
}
