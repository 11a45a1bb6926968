//! Hostile processes beside an honest one. Run it on both hosts at the same time.
//!
//! On either host an honest process ([`honest`]) writes to the other host's and reads back, round after round: first beside
//! as many processes that only spin as there are hostile ones later, then beside these. On node 0 they scribble
//! ([`scribble`]) and export memory whose faults are never answered ([`trap`]); on node 1 one writes and reads there.
//!
//! The honest must lose nothing, and wait at most T. T is what the driver states (`kernel-driver/core/src/paging.rs`): the
//! slots of all senders, each as long as it takes to bring a page in and copy to it, measured beside processes that spin.

mod device;
mod honest;
mod scribble;
mod trap;

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use netvm::{NodeId, device as card};
use netvm_rig::meeting::{self, Trouble};

/// Ends with 0 if the honest lost nothing and the hostile got errors. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-hostile", about = "An honest process beside hostile ones")]
struct Arguments {
    /// Be only this one.
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// How long the hostile processes go on, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// However long the honest waits.
    #[arg(long)]
    untimed: bool,
    /// Decides what they do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a process beside the honest one does.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Uses the processor.
    Spin,
    /// Writes random bytes, and calls with random arguments.
    Scribble,
    /// Exports memory whose faults are never answered, and sends out of it.
    Trap,
    /// Writes to such memory of the other host, and reads it.
    Bait,
}

/// Hostile processes on node 0 at a time, and on node 1.
const CROWD: [&[Role]; 2] = [&[Role::Scribble, Role::Scribble, Role::Trap], &[Role::Bait]];
/// Lifetime of each; then another one comes.
const LIFE: Duration = Duration::from_secs(3);
/// A process that does not end by itself this long after that is killed: one that lets a call take its argument from
/// memory that is never brought in hangs there, which harms only itself.
const LATE: Duration = Duration::from_secs(3);
/// To be killed takes less.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.role.is_some() {
        // Processors are not what this is about.
        // SAFETY: no pointers; a process may always be nicer.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    }
    let ended = match arguments.role {
        None => both(&arguments),
        Some(Role::Spin) => {
            let end = Instant::now() + LIFE;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            Ok("0 0".to_owned())
        }
        Some(Role::Scribble) => scribble::live(Instant::now() + LIFE, arguments.seed),
        Some(Role::Trap) => trap::live(Instant::now() + LIFE),
        Some(Role::Bait) => trap::bait(Instant::now() + LIFE),
    };
    meeting::end("rig-hostile", ended)
}

/// What the processes beside the honest one did.
#[derive(Default)]
struct Tally {
    lives: u64,
    /// Of these, ended by a signal.
    killed: u64,
    /// Ended with a complaint.
    complaints: u64,
    /// Calls and operations, and how many were refused.
    tried: u64,
    refused: u64,
}

fn both(arguments: &Arguments) -> Result<String, Trouble> {
    let node = meeting::node(Path::new(card::FIRST))?;
    let crowd = CROWD[usize::from(node.id() == NodeId(1))];
    let honest = honest::Honest::meet(&node)?;
    let calm = Duration::from_secs(arguments.seconds / 6 + 2);
    let spinners = vec![Role::Spin; crowd.len()];
    let (calm, _) = beside(&spinners, arguments.seed, || honest.rounds(Instant::now() + calm))?;
    honest.agree()?;
    let time = Duration::from_secs(arguments.seconds);
    let (seen, tally) = beside(crowd, arguments.seed, || honest.rounds(Instant::now() + time))?;
    honest.agree()?;
    if tally.refused == 0 {
        return Err("nothing that the hostile did was refused".into());
    }
    if tally.complaints > 0 {
        return Err(format!(
            "{} of {} hostile could not even begin",
            tally.complaints, tally.lives
        )
        .into());
    }
    let limit = honest::SLOTS * calm.miss;
    if seen.worst > limit && !arguments.untimed {
        return Err(format!(
            "a round took {:?}, and T is {limit:?}; {} of {} were slow, {:?} was the longest before",
            seen.worst, seen.slow, seen.rounds, calm.worst
        )
        .into());
    }
    Ok(format!(
        r#"{{"node":{},"rounds":{},"worst_ms":{},"slow":{},"calm_rounds":{},"calm_worst_ms":{},"t_ms":{},"lives":{},"killed":{},"tried":{},"refused":{}}}"#,
        node.id().0,
        seen.rounds,
        seen.worst.as_millis(),
        seen.slow,
        calm.rounds,
        calm.worst.as_millis(),
        limit.as_millis(),
        tally.lives,
        tally.killed,
        tally.tried,
        tally.refused
    ))
}

/// Does something while others live, one after the other in each of their places.
fn beside<T: Send>(
    crowd: &[Role],
    seed: u64,
    work: impl FnOnce() -> Result<T, Trouble>,
) -> Result<(T, Tally), Trouble> {
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let places: Vec<_> = (0..)
            .zip(crowd)
            .map(|(place, role)| {
                let over = &over;
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let seed = seed * 1000 + place * 100 + tally.lives;
                        one(*role, seed, &mut tally)?;
                    }
                    Ok::<_, Trouble>(tally)
                })
            })
            .collect();
        let done = work();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut all = Tally::default();
        for place in places {
            let tally = place
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.lives += tally.lives;
            all.killed += tally.killed;
            all.complaints += tally.complaints;
            all.tried += tally.tried;
            all.refused += tally.refused;
        }
        Ok((done?, all))
    })
}

/// One life.
fn one(role: Role, seed: u64, tally: &mut Tally) -> Result<(), Trouble> {
    let name = role.to_possible_value().map(|value| value.get_name().to_owned());
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--role", &name.unwrap_or_default(), "--seed", &seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let status = ended(&mut child, Instant::now() + LIFE + LATE)?;
    tally.lives += 1;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut said)?;
    }
    match status.code() {
        // Two numbers.
        Some(0) => {
            let mut counts = said
                .split_whitespace()
                .filter_map(|word| word.parse::<u64>().ok());
            tally.tried += counts.next().unwrap_or_default();
            tally.refused += counts.next().unwrap_or_default();
        }
        Some(_) => tally.complaints += 1,
        None => tally.killed += 1,
    }
    Ok(())
}

/// How it ended. A process that does not end is killed, which must work.
fn ended(child: &mut Child, limit: Instant) -> Result<std::process::ExitStatus, Trouble> {
    while Instant::now() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    let limit = Instant::now() + PATIENCE;
    while Instant::now() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("a hostile process cannot be killed".into())
}
