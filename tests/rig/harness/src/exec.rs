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
pub enum Ended {
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
pub fn run(
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
    writeln!(file, "$ {}", shown(command))?;
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

/// The command as a person would type it.
fn shown(command: &Command) -> String {
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let set = set.map(|(name, value)| format!("{}={value:?} ", name.to_string_lossy()));
    let mut text: String = set.collect();
    text.push_str(&command.get_program().to_string_lossy());
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
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

/// Moves the output in one file to the end of another.
pub fn append(log: &Path, part: &Path) -> Result<()> {
    let mut from = File::open(part).with_context(|| format!("reading {}", part.display()))?;
    let mut to = File::options()
        .create(true)
        .append(true)
        .open(log)
        .context("cannot write the stage's log")?;
    std::io::copy(&mut from, &mut to).context("cannot write the stage's log")?;
    std::fs::remove_file(part).with_context(|| format!("removing {}", part.display()))
}

/// The last `max` bytes of a file, as text.
pub fn tail(path: &Path, max: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if file.seek(SeekFrom::Start(length.saturating_sub(max))).is_ok() {
            let _ = file.read_to_end(&mut bytes);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What of a failed command's output tells why: the commands, what its tests said that failed, and the
/// last lines. Without such tests, its errors and more of the last lines.
pub fn why(output: &str) -> Vec<&str> {
    const TESTS: usize = 120;
    const LAST: usize = 20;
    const OTHERWISE: usize = 80;
    let lines: Vec<&str> = output.lines().collect();
    let mut said = failures(output, |line| line.starts_with("$ "));
    let last = if said.contains(&FAILURES) {
        if said.len() > TESTS {
            said.truncate(TESTS);
            said.push("(more of it in the whole output)");
        }
        said.push("");
        LAST
    } else {
        let before = lines.len().saturating_sub(OTHERWISE);
        said = errors(lines[..before].iter().copied());
        OTHERWISE
    };
    said.extend(&lines[lines.len().saturating_sub(last)..]);
    said
}

/// The first errors in a failed command's output, each with the lines that say more of it.
pub fn causes(output: &str) -> Vec<&str> {
    let failures = failures(output, |_| false);
    if failures.is_empty() {
        errors(output.lines())
    } else {
        errors(failures.into_iter())
    }
}

/// How libtest begins with what failed tests said, and once more with their names.
const FAILURES: &str = "failures:";

/// What libtest says of tests that failed, and the other lines that are wanted.
fn failures(output: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut telling = false;
    let told = output.lines().filter(|line| {
        telling = (telling || *line == FAILURES) && !line.starts_with("test result: ");
        telling || wanted(line)
    });
    told.collect()
}

/// Panics, and what compilers, sanitizers and fuzzers call errors.
fn errors<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const WITH_EACH: usize = 4;
    const ALL: usize = 12;
    let is_error =
        |line: &str| line.contains("panicked at ") || line.contains("ERROR: ") || line.starts_with("error");
    let says_no_more = |line: &str| {
        let line = line.trim();
        line.is_empty() || line.starts_with("stack backtrace:") || line.starts_with("note: ")
    };
    let mut left = 0;
    let told = lines.filter(|line| {
        left = match () {
            () if is_error(line) => WITH_EACH,
            () if says_no_more(line) => 0,
            () => left.saturating_sub(1),
        };
        left > 0
    });
    told.take(ALL).collect()
}

fn last_line(path: &Path) -> String {
    let text = tail(path, 400);
    let line = text
        .rsplit(['\n', '\r'])
        .map(str::trim)
        .find(|line| !line.is_empty());
    line.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_is_told_though_others_ran_after_it() {
        let mut log =
            String::from("$ cargo test\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n");
        log.push_str(
            "---- b stdout ----\npanicked at 7\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed\n",
        );
        log.push_str(&"test other ... ok\n".repeat(500));
        log.push_str("error: 1 target failed");
        let told = why(&log);
        assert_eq!(told.first(), Some(&"$ cargo test"));
        assert!(
            told.contains(&"panicked at 7") && told.contains(&"    b"),
            "{told:?}"
        );
        assert_eq!(told.last(), Some(&"error: 1 target failed"));
        assert!(told.len() < 40, "{told:?}");
        assert_eq!(causes(&log), ["panicked at 7"]);
        assert_eq!(why(&"no such crate\n".repeat(500)).len(), 80);
    }

    #[test]
    fn an_error_is_told_though_much_was_said_after_it() {
        let mut log =
            String::from("$ fuzz\n#1 NEW\nthread '<unnamed>' panicked at frame.rs:7:\nnot posted\n");
        log.push_str("note: a backtrace\n==7== ERROR: libFuzzer: deadly signal\n\n");
        log.push_str(&"#2 NEW\n".repeat(500));
        let cause = [
            "thread '<unnamed>' panicked at frame.rs:7:",
            "not posted",
            "==7== ERROR: libFuzzer: deadly signal",
        ];
        assert_eq!(causes(&log), cause);
        assert_eq!(why(&log)[..3], cause);
        assert_eq!(causes(&"error: no such crate\n".repeat(500)).len(), 12);
    }

    fn shell(script: &str, limit: Duration, interrupted: bool) -> (Ended, String) {
        // Named by script and thread, so that tests running at once do not share a log.
        let name = format!(
            "netvm-xtask-{}-{:?}.log",
            std::process::id(),
            std::thread::current().id()
        );
        let log = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&log);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = run(
            &mut command,
            &log,
            limit,
            &AtomicBool::new(interrupted),
            &mut |_| {},
        )
        .unwrap();
        let text = tail(&log, 1000);
        let _ = std::fs::remove_file(&log);
        (ended, text)
    }

    #[test]
    fn output_of_both_kinds_is_kept() {
        let (ended, text) = shell("echo one; echo two >&2", Duration::from_secs(20), false);
        assert_eq!(ended, Ended::Well);
        assert!(text.contains("\none\n") && text.contains("two\n"), "{text}");
    }

    #[test]
    fn failure_is_seen() {
        assert_eq!(shell("exit 3", Duration::from_secs(20), false).0, Ended::Badly);
    }

    #[test]
    fn a_command_that_hangs_ends_with_its_children() {
        let started = Instant::now();
        let (ended, text) = shell(
            "sleep 100 & echo child $!; wait",
            Duration::from_millis(300),
            false,
        );
        assert_eq!(ended, Ended::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
        let child: i32 = text
            .split("\nchild ")
            .nth(1)
            .and_then(|rest| rest.trim().parse().ok())
            .unwrap();
        // A busy machine takes a moment to end it, and the new parent to look.
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let gone = |state: String| state.is_empty() || state.contains(") Z");
        while !gone(state()) {
            assert!(started.elapsed() < Duration::from_secs(60), "{}", state());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn ctrl_c_ends_it() {
        assert_eq!(
            shell("sleep 100", Duration::from_secs(60), true).0,
            Ended::Interrupted
        );
    }
}
