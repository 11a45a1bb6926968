//! Signals that ask a command to end.
//!
//! A process that a signal ends says nothing to its peers: over UDP they wait until it has been silent for too long. So a command that is
//! a node exits instead. Then what it posted leaves, and its peers hear a farewell. The second signal ends it at once.
//!
//! A signal that is ignored when the command starts stays ignored: that is how `nohup`, and a shell's background, keep a process alive.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// How a command ends that was told to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// That is how it ends: exit status 0.
    Well,
    /// Before it was done: the exit status of a process that the signal ended, as a shell tells it.
    Early,
}

/// What becomes true with the first signal, for a command that looks now and then.
///
/// # Errors
/// The system takes no handler.
pub(crate) fn told() -> Result<Arc<AtomicBool>, Failure> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in heard() {
        // In this order: the first one finds it false.
        flag::register_conditional_default(signal, Arc::clone(&told))
            .and_then(|_| flag::register(signal, Arc::clone(&told)))
            .map_err(no_handler)?;
    }
    Ok(told)
}

/// Makes a signal an exit, from now on.
///
/// # Errors
/// The system takes no handler, or there is no thread for it.
pub(crate) fn exit(end: End) -> Result<(), Failure> {
    told()?;
    let mut signals = Signals::new(heard()).map_err(no_handler)?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(match end {
                End::Well => 0,
                End::Early => 128 + signal,
            });
        }
    };
    thread::Builder::new()
        .name("netvm-signals".into())
        .spawn(wait)
        .map(drop)
        .map_err(no_handler)
}

fn no_handler(error: io::Error) -> Failure {
    Failure::Wrong(format!("a handler for signals: {error}"))
}

/// Those that ask a command to end, but for ignored ones.
fn heard() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_in(&status);
    let all = [SIGHUP, SIGINT, SIGTERM];
    all.into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0)
        .collect()
}

/// The set of ignored signals, signal 1 in the lowest bit. None where `/proc` does not say.
fn ignored_in(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored_in("Name:\tnetvm\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_in(""), 0);
    }
}
