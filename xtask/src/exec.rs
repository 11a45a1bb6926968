//! Runs one command of a stage: output to a log file, a time limit, nothing left behind.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Exit status 0.
    Well,
    /// Another exit status, or a signal.
    Badly,
    /// Ended by us at its time limit.
    TimedOut,
    /// Ended by us because the person pressed Ctrl-C.
    Interrupted,
}

/// Runs `command` with its output appended to `log`, calling `tick` a few times a second with the last
/// line of the output.
pub(crate) fn run(
    command: &mut Command,
    log: &Path,
    limit: Duration,
    interrupted: &AtomicBool,
    tick: &mut dyn FnMut(&str),
) -> Result<Ended> {
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .context("cannot write the stage's log")?;
    writeln!(file, "$ {command:?}")?;
    // A group of its own, so that a test program that hangs ends together with the cargo that started it.
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let started = Instant::now();
    let mut looked = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() {
                Ended::Well
            } else {
                Ended::Badly
            });
        }
        if interrupted.load(Ordering::Relaxed) {
            end(&mut child);
            return Ok(Ended::Interrupted);
        }
        if started.elapsed() > limit {
            end(&mut child);
            return Ok(Ended::TimedOut);
        }
        if looked.elapsed() > Duration::from_millis(500) {
            looked = Instant::now();
            tick(&last_line(log));
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        // It may have ended by itself a moment ago; then there is no such group, which is as good.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// The last `max` bytes of a file, as text.
pub(crate) fn tail(path: &Path, max: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if file.seek(SeekFrom::Start(length.saturating_sub(max))).is_ok() {
            let _ = file.read_to_end(&mut bytes);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_line(path: &Path) -> String {
    let text = tail(path, 400);
    let line = text
        .rsplit(['\n', '\r'])
        .map(str::trim)
        .find(|line| !line.is_empty());
    line.unwrap_or_default().to_owned()
}
