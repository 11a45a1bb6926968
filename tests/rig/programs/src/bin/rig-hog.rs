//! Takes its processor from everything else, again and again: nothing of the kernel's that has an ordinary priority runs
//! there meanwhile.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use netvm_rig::meeting::{self, Trouble};

/// Ends with 0 when it has had the processor `times` times.
#[derive(Parser)]
#[command(name = "rig-hog", about = "Has a processor for itself, again and again")]
struct Arguments {
    /// How often to take the processor.
    times: u32,
    /// How long each time, in milliseconds: longer than a driver's deadlines.
    #[arg(long, default_value_t = 1500)]
    hold: u64,
    /// How long between, in milliseconds.
    #[arg(long, default_value_t = 300)]
    rest: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    meeting::end("rig-hog", hog(&arguments))
}

fn hog(arguments: &Arguments) -> Result<String, Trouble> {
    let mut priority = std::mem::MaybeUninit::<libc::sched_param>::zeroed();
    // SAFETY: all zeros are a `sched_param`; its priority is one of SCHED_FIFO's. It is read by the call only.
    let code = unsafe {
        (*priority.as_mut_ptr()).sched_priority = 50;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, priority.as_ptr())
    };
    if code != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let mut held = Duration::ZERO;
    for _ in 0..arguments.times {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(arguments.hold) {
            std::hint::spin_loop();
        }
        held += began.elapsed();
        std::thread::sleep(Duration::from_millis(arguments.rest));
    }
    Ok(format!("had its processor for {} ms", held.as_millis()))
}
