//! What the person sees while `cargo xtask test` runs, and at its end.
//!
//! Progress goes to stderr and the result to stdout, so that `--json` prints exactly one object.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// How a stage ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All of it ran and was right.
    Passed,
    /// Something was wrong.
    Failed,
    /// It cannot run here; the detail says why.
    Skipped,
}

/// A finished stage.
#[derive(Clone, Debug, Serialize)]
pub struct Finished {
    /// The stage's name, as `--only` takes it.
    pub stage: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// One line for a person: what was counted, or what went wrong.
    pub detail: String,
    /// How long it took.
    pub seconds: f64,
    /// The first errors in its output, if it failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

/// The line about the stage that is running.
pub struct Progress {
    label: String,
    terminal: bool,
    started: Instant,
    spoke: Instant,
}

impl Progress {
    /// Announces a stage: number `at` of `of`.
    pub fn start(at: usize, of: usize, stage: &str, about: &str) -> Self {
        let progress = Self {
            label: format!("[{at:>2}/{of}] {stage:<12}"),
            terminal: std::io::stderr().is_terminal(),
            started: Instant::now(),
            spoke: Instant::now(),
        };
        if progress.terminal {
            progress.draw(about);
        } else {
            eprintln!("{} {about}", progress.label);
        }
        progress
    }

    /// How long the stage has run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows that it still runs: always on a terminal, once a minute in a log.
    pub fn tick(&mut self, line: &str) {
        if self.terminal {
            self.draw(line);
        } else if self.spoke.elapsed() > Duration::from_secs(60) {
            self.spoke = Instant::now();
            eprintln!(
                "{} {:>6}: {}",
                self.label,
                seconds(self.elapsed()),
                cut(line, 100)
            );
        }
    }

    /// Replaces the line by the stage's result.
    pub fn finish(self, finished: &Finished) {
        let verdict = match finished.verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!(
            "{clear}{} {verdict}, {}: {}",
            self.label,
            seconds(self.elapsed()),
            finished.detail
        );
    }

    fn draw(&self, line: &str) {
        let mut stderr = std::io::stderr().lock();
        // A progress line that cannot be written is no reason to stop testing.
        let _ = write!(
            stderr,
            "\r\x1b[K{} {:>6}  {}",
            self.label,
            seconds(self.elapsed()),
            cut(line, 70)
        );
        let _ = stderr.flush();
    }
}

fn cut(line: &str, max: usize) -> String {
    line.chars().filter(|c| !c.is_control()).take(max).collect()
}

fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 60 {
        format!("{}m{:02}s", whole / 60, whole % 60)
    } else {
        format!("{:.1}s", time.as_secs_f64())
    }
}

/// The whole run, as `--json` prints it.
#[derive(Serialize)]
pub struct Summary<'a> {
    ok: bool,
    passed: usize,
    failed: usize,
    skipped: usize,
    seconds: f64,
    stages: &'a [Finished],
}

impl<'a> Summary<'a> {
    /// Adds up `stages`.
    pub fn new(stages: &'a [Finished], time: Duration) -> Self {
        let count = |verdict| stages.iter().filter(|stage| stage.verdict == verdict).count();
        Self {
            ok: count(Verdict::Failed) == 0 && count(Verdict::Passed) > 0,
            passed: count(Verdict::Passed),
            failed: count(Verdict::Failed),
            skipped: count(Verdict::Skipped),
            seconds: time.as_secs_f64(),
            stages,
        }
    }

    /// Says it on stdout: as one JSON object, or as a table. `Ok(true)`: nothing failed, and something ran.
    pub fn say(&self, json: bool) -> Result<bool> {
        if json {
            println!("{}", serde_json::to_string(self)?);
        } else {
            self.print();
        }
        Ok(self.ok)
    }

    /// The table, and the closing line that counts stages.
    fn print(&self) {
        println!();
        println!("{:<12}  {:<7}  {:>7}  detail", "stage", "result", "time");
        for stage in self.stages {
            let verdict = match stage.verdict {
                Verdict::Passed => "ok",
                Verdict::Failed => "FAILED",
                Verdict::Skipped => "skipped",
            };
            let time = seconds(Duration::from_secs_f64(stage.seconds));
            println!("{:<12}  {verdict:<7}  {time:>7}  {}", stage.stage, stage.detail);
        }
        println!("total {}", seconds(Duration::from_secs_f64(self.seconds)));
        for stage in self.stages.iter().filter(|stage| !stage.causes.is_empty()) {
            println!();
            println!("{} says first:", stage.stage);
            for line in &stage.causes {
                println!("    | {line}");
            }
        }
        println!();
        if self.skipped == 0 {
            println!("{} passed, {} failed", self.passed, self.failed);
        } else {
            println!(
                "{} passed, {} failed, {} skipped",
                self.passed, self.failed, self.skipped
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(verdict: Verdict) -> Finished {
        Finished {
            stage: "s",
            verdict,
            detail: String::new(),
            seconds: 0.0,
            causes: Vec::new(),
        }
    }

    #[test]
    fn one_failure_or_nothing_run_is_not_ok() {
        let time = Duration::ZERO;
        assert!(Summary::new(&[finished(Verdict::Passed), finished(Verdict::Skipped)], time).ok);
        assert!(!Summary::new(&[finished(Verdict::Passed), finished(Verdict::Failed)], time).ok);
        assert!(!Summary::new(&[finished(Verdict::Skipped)], time).ok);
    }
}
