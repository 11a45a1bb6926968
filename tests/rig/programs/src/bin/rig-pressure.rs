//! Exported memory under memory pressure. Run it on both hosts at the same time with the same arguments; node 1 exports.
//!
//! `stream`: node 1 exports more than its control group may keep in memory, and a thread of it dirties pages at random, while
//! node 0 writes everything and reads it back, several times over. At the end the idle exporter is pressed out.
//!
//! `keep`: node 1 exports two ranges. Node 0 reads one of them again and again, the other is never used. Node 1 is
//! pressed step by step, and says how much of each is left.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use netvm::{NodeId, device};
use netvm_rig::meeting::{self, Side, Trouble};
use netvm_rig::memory;

/// Ends with 0 if all is well, 1 if something is wrong, 2 for arguments that make no sense. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-pressure", about = "Exported memory under memory pressure")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The card's device.
    #[arg(long, global = true, default_value = device::FIRST)]
    device: PathBuf,
    /// The control group that this program runs in.
    #[arg(long, global = true, default_value = "/sys/fs/cgroup")]
    cgroup: PathBuf,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// More memory than fits, written and read from remote.
    Stream {
        /// How much is exported, in MiB.
        #[arg(long, default_value_t = 24)]
        mib: u64,
        /// How often all of it is written and read.
        #[arg(long, default_value_t = 2)]
        rounds: u64,
    },
    /// What a card uses stays longer than what is not used.
    Keep {
        /// How large each range is, in MiB.
        #[arg(long, default_value_t = 8)]
        mib: u64,
    },
}

const PORT: u16 = 9;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Notifications: a round was written and read; the exporter has looked; it has been pressed for the last time.
const ROUND: u32 = 1;
const LOOKED: u32 = 2;
const ENOUGH: u32 = 3;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = meeting::node(&arguments.device).and_then(|node| {
        let exports = node.id() == NodeId(1);
        match arguments.what {
            What::Stream { mib, rounds } => {
                let side = Side::meet(&node, PORT, mib * MIB)?;
                if exports {
                    memory::watched(&arguments.cgroup, || bear(&side, rounds, &arguments.cgroup))?
                } else {
                    stream(&side, rounds)
                }
            }
            What::Keep { mib } => {
                let side = Side::meet(&node, PORT, 2 * mib * MIB)?;
                if exports {
                    press(&side, &arguments.cgroup)
                } else {
                    read_on(&side)
                }
            }
        }
    });
    meeting::end("rig-pressure", ended)
}

/// Node 0: everything there, and back.
fn stream(side: &Side, rounds: u64) -> Result<String, Trouble> {
    let source = side.port.alloc(MIB)?;
    let mut bytes = vec![0; MIB as usize];
    let began = Instant::now();
    let size = side.memory.len();
    for round in 0..rounds {
        for offset in (0..size).step_by(MIB as usize) {
            meeting::fill(round, offset, &mut bytes);
            source.write_from(0, &bytes)?;
            side.remote.write(offset, source.whole()).fenced().post()?;
        }
        side.port.flush_remote(side.peer)?;
        for offset in (0..size).step_by(MIB as usize) {
            side.remote.read(offset, source.whole()).fenced().post()?;
            source.read_into(0, &mut bytes)?;
            meeting::check(round, offset, &bytes, "read back")?;
        }
        side.tell(ROUND)?;
        side.hear(LOOKED)?;
    }
    let rate = (2 * rounds * size / MIB) as f64 / began.elapsed().as_secs_f64();
    side.hear(ENOUGH)?;
    Ok(format!(
        r#"{{"node":0,"rounds":{rounds},"mib_per_s":{rate:.1},"pinned":{}}}"#,
        memory::pinned()?
    ))
}

/// Node 1: its memory is written while a thread of its own dirties it.
fn bear(side: &Side, rounds: u64, group: &Path) -> Result<String, Trouble> {
    let memory = &side.memory;
    let size = memory.len();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let toucher = scope.spawn(|| dirty(side, &stop));
        let looked = look(side, rounds);
        stop.store(true, Ordering::Release);
        let dirtied = toucher
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        looked?;
        let pinned = memory::pinned()?;
        // It is not used any more: all of it may go.
        let (mut left, mut presses) = (size, 0);
        while presses < 200 && left * 20 >= size {
            memory::reclaim(group, size)?;
            left = memory::resident(memory.address().0, size)?;
            presses += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        side.tell(ENOUGH)?;
        Ok(format!(
            r#"{{"node":1,"rounds":{rounds},"dirtied":{dirtied},"pinned":{pinned},"exported":{size},"left":{left},"presses":{presses}}}"#
        ))
    })
}

fn look(side: &Side, rounds: u64) -> Result<(), Trouble> {
    let mut bytes = vec![0; MIB as usize];
    for round in 0..rounds {
        side.hear(ROUND)?;
        for offset in (0..side.memory.len()).step_by(MIB as usize) {
            side.memory.read_into(offset, &mut bytes)?;
            meeting::check(round, offset, &bytes, "here")?;
        }
        side.tell(LOOKED)?;
    }
    Ok(())
}

/// Makes pages dirty without changing what is in them; says how often.
fn dirty(side: &Side, stop: &AtomicBool) -> netvm::Result<u64> {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut count = 0;
    while !stop.load(Ordering::Acquire) {
        for _ in 0..8 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let word = side.memory.word64(random % (side.memory.len() / 8) * 8)?;
            let value = word.load()?;
            // The card may just have stored something else: then that stays.
            word.compare_swap(value, value)?;
            count += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(count)
}

/// Node 0: reads the first half of what the other has exported, until told that it is enough.
fn read_on(side: &Side) -> Result<String, Trouble> {
    let landing = side.port.alloc(64 * PAGE)?;
    let half = side.memory.len() / 2;
    let enough = side.port.notification(ENOUGH)?;
    let mut passes = 0_u64;
    while enough.pending() == 0 {
        for offset in (0..half).step_by(64 * PAGE as usize) {
            side.remote.read(offset, landing.whole()).fenced().post()?;
        }
        passes += 1;
        if passes == 2 {
            // All of it has been used.
            side.tell(ROUND)?;
        }
    }
    // The other stays until nothing is on its way to it.
    side.tell(ROUND)?;
    Ok(format!(r#"{{"node":0,"passes":{passes}}}"#))
}

/// Node 1: touches both halves, waits until the first is in use, and is pressed until a part of all is gone.
fn press(side: &Side, group: &Path) -> Result<String, Trouble> {
    let memory = &side.memory;
    let (start, half) = (memory.address().0, memory.len() / 2);
    for page in 0..memory.len() / PAGE {
        memory.write_from(page * PAGE, &[1; 64])?;
    }
    side.hear(ROUND)?;
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        memory::reclaim(group, half / u64::from(STEPS))?;
        std::thread::sleep(STEP);
        steps.push(format!(
            "[{},{}]",
            memory::resident(start, half)? * 100 / half,
            memory::resident(start + half, half)? * 100 / half
        ));
    }
    side.tell(ENOUGH)?;
    side.hear(ROUND)?;
    // In per cent of each range: used by the card, not used.
    Ok(format!(r#"{{"node":1,"left":[{}]}}"#, steps.join(",")))
}

/// How often it is pressed, for a half of its memory in all, and how long the card then has to use it.
const STEPS: u32 = 12;
const STEP: Duration = Duration::from_millis(400);
