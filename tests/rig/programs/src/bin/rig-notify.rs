//! Notifications by spinning, by sleeping and by a handler. Run it on both hosts at the same time; node 1 is notified.
//!
//! In each round node 0 writes two words of each of several pages, then notifies: one that is this round's alone, and one
//! that counts up. A receiver that is notified for the n-th time must find the words of round n, whatever order the
//! network chose, and no count below n (a round begins when the one before has landed); and a sleeping receiver must
//! not use the processor.
//!
//! At last the two answer each other: every round writes the same words again, without a flush, and begins when the one
//! before was answered. Each word must be that of its round, exactly.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use netvm::{NodeId, Region, device};
use netvm_rig::meeting::{self, PATIENCE, Side, Trouble};

/// Ends with 0 if all is well, 1 if something is wrong, 2 for arguments that make no sense. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-notify", about = "Notifications by spin, by wait and by handler")]
struct Arguments {
    /// The card's device.
    #[arg(long, default_value = device::FIRST)]
    device: PathBuf,
    /// Notifications of each kind.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    rounds: u64,
    /// Rounds that are answered.
    #[arg(long, default_value_t = 300)]
    answers: u64,
    /// Milliseconds between two notifications.
    #[arg(long, default_value_t = 50)]
    pace: u64,
}

const PORT: u16 = 10;
const PAGE: u64 = 4096;
/// Pages that a round writes to.
const PAGES: u64 = 5;
/// The most rounds: their words of all ways share a page.
const MOST: u64 = 160;
/// Notification by which node 0 is told to begin a way, and hears that it has ended.
const READY: u32 = 90;
const DONE: u32 = 91;
/// Notifications of a round, and of its answer.
const ROUND: u32 = 4;
const ANSWER: u32 = 5;

/// How node 1 takes notifications; its number is that of the notification.
const WAYS: [(u32, &str); 3] = [(1, "spin"), (2, "wait"), (3, "handler")];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = meeting::node(&arguments.device).and_then(|node| {
        let side = Side::meet(&node, PORT, PAGES * PAGE)?;
        if node.id() == NodeId(1) {
            let line = take(&side, arguments.rounds)?;
            answer(&side, arguments.answers)?;
            Ok(line)
        } else {
            let line = send(&side, arguments.rounds, Duration::from_millis(arguments.pace))?;
            ask(&side, arguments.answers)?;
            Ok(line)
        }
    });
    meeting::end("rig-notify", ended)
}

fn send(side: &Side, rounds: u64, pace: Duration) -> Result<String, Trouble> {
    for (id, _) in WAYS {
        side.hear(READY)?;
        for round in 1..=rounds {
            let value = round.to_le_bytes();
            for page in 0..PAGES {
                side.remote.write(count(id, page), &value).post()?;
                let write = side.remote.write(place(id, round, page), &value);
                if page + 1 == PAGES {
                    write.notify(id).post()?;
                } else {
                    write.post()?;
                }
            }
            side.port.flush_remote(side.peer)?;
            std::thread::sleep(pace);
        }
        side.hear(DONE)?;
    }
    Ok(format!(r#"{{"node":0,"rounds":{rounds}}}"#))
}

fn take(side: &Side, rounds: u64) -> Result<String, Trouble> {
    let mut busy = Vec::new();
    for (id, name) in WAYS {
        side.tell(READY)?;
        let (began, used) = (Instant::now(), cpu());
        match name {
            "handler" => handled(side, id, rounds)?,
            _ => {
                let notification = side.port.notification(id)?;
                for round in 1..=rounds {
                    if name == "spin" {
                        notification.spin(PATIENCE)?;
                    } else {
                        notification.wait(PATIENCE)?;
                    }
                    notification.ack()?;
                    look(&side.memory, id, round)?;
                }
            }
        }
        let share = (cpu() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        busy.push(format!(r#""{name}":{:.1}"#, share * 100.0));
        side.tell(DONE)?;
    }
    // Per cent of a processor that this thread took.
    Ok(format!(
        r#"{{"node":1,"rounds":{rounds},"busy":{{{}}}}}"#,
        busy.join(",")
    ))
}

/// A handler looks at each signal; this thread sleeps meanwhile.
fn handled(side: &Side, id: u32, rounds: u64) -> Result<(), Trouble> {
    let seen = Arc::new(AtomicU64::new(0));
    let early = Arc::new(AtomicU64::new(0));
    let memory = side.memory.clone();
    let notification = side.port.notification(id)?;
    let (count, bad) = (Arc::clone(&seen), Arc::clone(&early));
    notification.arm(move |_| {
        let round = count.fetch_add(1, Ordering::AcqRel) + 1;
        let late = look(&memory, id, round).is_err();
        bad.fetch_add(u64::from(late), Ordering::AcqRel);
    })?;
    let limit = Instant::now() + PATIENCE;
    while seen.load(Ordering::Acquire) < rounds {
        if Instant::now() > limit {
            return Err(format!(
                "only {} of {rounds} signals were handled",
                seen.load(Ordering::Acquire)
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    notification.disarm();
    match (seen.load(Ordering::Acquire), early.load(Ordering::Acquire)) {
        (count, 0) if count == rounds => Ok(()),
        (count, early) => {
            Err(format!("{count} signals for {rounds}, {early} of them before their data").into())
        }
    }
}

/// Writes the words of a round, and notifies of it.
fn say(side: &Side, round: u64, id: u32) -> Result<(), Trouble> {
    let value = round.to_le_bytes();
    for page in 0..PAGES {
        let write = side.remote.write(page * PAGE, &value);
        if page + 1 == PAGES {
            write.notify(id).post()?;
        } else {
            write.post()?;
        }
    }
    Ok(())
}

/// Waits for a round of the other side: all of its words are there, and none of an earlier round.
fn listen(side: &Side, round: u64, id: u32) -> Result<(), Trouble> {
    let notification = side.port.notification(id)?;
    notification.wait(PATIENCE)?;
    notification.ack()?;
    for page in 0..PAGES {
        let found = side.memory.word64(page * PAGE)?.load()?;
        if found != round {
            return Err(format!("notified of round {round}, but page {page} has {found}").into());
        }
    }
    Ok(())
}

fn ask(side: &Side, rounds: u64) -> Result<(), Trouble> {
    (1..=rounds).try_for_each(|round| {
        say(side, round, ROUND)?;
        listen(side, round, ANSWER)
    })
}

fn answer(side: &Side, rounds: u64) -> Result<(), Trouble> {
    (1..=rounds).try_for_each(|round| {
        listen(side, round, ROUND)?;
        say(side, round, ANSWER)
    })
}

/// Where a round's word stands.
fn place(id: u32, round: u64, page: u64) -> u64 {
    page * PAGE + 8 * (u64::from(id - 1) * MOST + round - 1)
}

/// Where a way's rounds are counted.
fn count(id: u32, page: u64) -> u64 {
    page * PAGE + 8 * (u64::from(id - 1) + 3 * MOST)
}

/// All words of a round must be there.
fn look(memory: &Region, id: u32, round: u64) -> Result<(), Trouble> {
    for page in 0..PAGES {
        let found = memory.word64(place(id, round, page))?.load()?;
        let counted = memory.word64(count(id, page))?.load()?;
        if found != round || counted < round {
            return Err(format!(
                "notified {round} times, but page {page} has {found} for that round, and counts {counted}"
            )
            .into());
        }
    }
    Ok(())
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
