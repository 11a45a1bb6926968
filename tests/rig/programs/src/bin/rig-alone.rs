//! A process that uses more memory than its control group may keep, without a card: what the kernel makes of it by itself.
//!
//! With `--unwatched` Linux 6.12 sometimes kills it although swap is free; [`netvm_rig::memory::watched`] says why.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use netvm_rig::memory;

/// Ends with 0 unless the kernel kills it. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-alone", about = "More memory than fits, without a card")]
struct Arguments {
    /// How much is used, in MiB.
    #[arg(long, default_value_t = 13)]
    mib: usize,
    /// How long, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Leave it to the kernel when it adds up what it knows of the group.
    #[arg(long)]
    unwatched: bool,
    /// The control group that this program runs in.
    #[arg(long, default_value = "/sys/fs/cgroup")]
    cgroup: PathBuf,
}

/// Words of a page.
const PAGE: usize = 512;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let used = || use_up(arguments.mib << 20, Duration::from_secs(arguments.seconds));
    let passes = if arguments.unwatched {
        Ok(used())
    } else {
        memory::watched(&arguments.cgroup, used)
    };
    match passes {
        Ok(passes) => {
            println!(r#"{{"passes":{passes}}}"#);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rig-alone: {}: {error}", arguments.cgroup.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes each page, then reads all, again and again, while a thread touches pages at random. How often all was read.
fn use_up(bytes: usize, long: Duration) -> u64 {
    let memory: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let end = Instant::now() + long;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_usize;
            while !stop.load(Ordering::Acquire) {
                for _ in 0..8 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if let Some(word) = memory.get((random >> 16) % memory.len()) {
                        word.fetch_or(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut passes = 0;
        while Instant::now() < end {
            memory
                .iter()
                .step_by(PAGE)
                .for_each(|word| word.store(passes, Ordering::Relaxed));
            let sum = memory
                .iter()
                .fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
            std::hint::black_box(sum);
            passes += 1;
        }
        stop.store(true, Ordering::Release);
        passes
    })
}
