//! `cargo xtask test`: runs the stages one after another and adds them up.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::FalseyValueParser;

use crate::stages::{LONG, STAGES, Stage};
use netvm_harness::cargo;
use netvm_harness::exec::{self, Ended};
use netvm_harness::report::{Finished, Progress, Summary, Verdict};

/// How many minutes a whole run may take, unless told otherwise. CI stops at 90, and installs packages before it.
const LIMIT: u64 = 83;

/// What a run takes at most on two usual cores where nothing has been built, in minutes. The rest is for slow machines.
#[cfg(test)]
const USUAL: u64 = 75;

/// What `--long` adds to the stage `unit`.
const LONGER: Duration = Duration::from_secs(20 * 60);

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only these stages (may be given several times, or names with commas between).
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<String>,
    /// List the stages and stop.
    #[arg(long)]
    list: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Seconds that each fuzz target runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 36)]
    fuzz_seconds: u64,
    /// Fresh simulator seeds beside the fixed ones; other ones for every tree that is committed.
    #[arg(long, value_name = "COUNT", default_value_t = 120)]
    seeds: u32,
    /// No stage starts or goes on after this many minutes, or so long that later ones lack the time that they usually take.
    #[arg(long, value_name = "MINUTES", default_value_t = LIMIT)]
    limit: u64,
    /// Whole versions of tests that are short otherwise: 1,000 killed processes, minutes of hostile ones. Twenty minutes more than
    /// --limit. Stages that run only so, or by name, come last.
    #[arg(long)]
    long: bool,
    /// A stage that cannot run here fails the run.
    #[arg(long, env = "CI", value_parser = FalseyValueParser::new())]
    no_skips: bool,
}

/// How a stage that did not fail ended, with one line for a person.
pub(crate) enum Outcome {
    /// All of it ran.
    Passed(String),
    /// It cannot run here.
    Skipped(String),
}

/// What a running stage may use.
pub(crate) struct Context<'a> {
    /// What the person asked for.
    pub(crate) fuzz_seconds: u64,
    /// Fresh simulator seeds to run.
    pub(crate) seeds: u32,
    /// Whether tests have their whole versions.
    pub(crate) long: bool,
    log: PathBuf,
    deadline: Instant,
    interrupted: &'a AtomicBool,
    progress: Progress,
}

impl Context<'_> {
    /// Runs cargo in the workspace's root; an error unless it succeeds.
    pub(crate) fn cargo(&mut self, args: &[&str]) -> Result<()> {
        self.exec(&mut cargo::cargo(args))
    }

    /// Runs any command, its output going to the stage's log; an error unless it succeeds.
    pub(crate) fn exec(&mut self, command: &mut Command) -> Result<()> {
        let limit = self.left();
        let progress = &mut self.progress;
        let ended = exec::run(command, &self.log, limit, self.interrupted, &mut |line| {
            progress.tick(line)
        })?;
        judge_end(command, ended)
    }

    /// Runs commands side by side, one for each processor: for those that compute and look at no clock. All run, however the others
    /// end; the stage's log has the output of each in one piece. How each has ended, in their order.
    pub(crate) fn exec_side_by_side(&mut self, commands: Vec<Command>) -> Vec<Result<()>> {
        let (log, limit, interrupted) = (&self.log, self.left(), self.interrupted);
        let progress = Mutex::new(&mut self.progress);
        let mut ends: Vec<Result<()>> = commands.iter().map(|_| bail_out_of_time()).collect();
        let queue = Mutex::new(commands.into_iter().zip(&mut ends).enumerate());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((at, (mut command, end))) = next() {
                let own = log.with_extension(format!("{at}.log"));
                let _ = std::fs::remove_file(&own);
                let mut tick = |line: &str| {
                    progress.lock().unwrap_or_else(PoisonError::into_inner).tick(line);
                };
                *end = exec::run(&mut command, &own, limit, interrupted, &mut tick)
                    .and_then(|ended| judge_end(&command, ended));
                // In one piece: the others write there, too.
                let _turn = progress.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = exec::append(log, &own)
                    && end.is_ok()
                {
                    *end = Err(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
                scope.spawn(work);
            }
        });
        ends
    }

    /// How long the stage may still take.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether no command is to be started any more.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero() || self.interrupted.load(Ordering::Relaxed)
    }

    /// The stage's log file.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Adds the test programs' closing lines in the log up. An error if no test ran: a stage that tests nothing
    /// must not look green.
    pub(crate) fn tests(&self) -> Result<Outcome> {
        let tests = count_tests(&std::fs::read_to_string(&self.log).unwrap_or_default());
        if tests == 0 {
            bail!("no test ran");
        }
        Ok(Outcome::Passed(format!("{tests} tests")))
    }
}

fn judge_end(command: &Command, ended: Ended) -> Result<()> {
    match ended {
        Ended::Well => Ok(()),
        Ended::Badly => bail!("{} failed", describe(command)),
        Ended::TimedOut => bail!("{} did not end within the stage's time", describe(command)),
        Ended::Interrupted => bail!("interrupted"),
    }
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .take(4)
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// The number of tests that passed, from lines like `test result: ok. 12 passed; 0 failed; ...`.
fn count_tests(log: &str) -> u64 {
    log.lines()
        .filter_map(|line| line.trim().strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Runs the stages that were asked for. `Ok(true)`: none failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.list {
        for stage in STAGES.iter().chain(&LONG) {
            println!("{:<12} {}", stage.name, stage.about);
        }
        return Ok(true);
    }
    let chosen = choose(&options.only, options.long)?;
    let logs = cargo::target().join("xtask");
    std::fs::create_dir_all(&logs)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }

    let started = Instant::now();
    let mut ends = ends(&chosen, Duration::from_secs(options.limit * 60));
    if options.long {
        lengthen(&chosen, &mut ends);
    }
    let mut finished: Vec<Finished> = Vec::new();
    for (at, (stage, end)) in chosen.iter().zip(ends).enumerate() {
        let log = logs.join(format!("{}.log", stage.name));
        let _ = std::fs::remove_file(&log);
        let context = Context {
            fuzz_seconds: options.fuzz_seconds,
            seeds: options.seeds,
            long: options.long,
            log,
            deadline: started + end,
            interrupted: &interrupted,
            progress: Progress::start(at + 1, chosen.len(), stage.name, stage.about),
        };
        finished.push(run_one(stage, context, &finished, options.no_skips));
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    Summary::new(&finished, started.elapsed()).say(options.json)
}

/// When each stage has to have ended, from the beginning of the run: so that those after it have what they usually take. What
/// is left of the whole beyond that is for the first that needs it: on a slow machine all take longer, and a stage that hangs
/// takes no more than this from the others.
fn ends(chosen: &[&Stage], whole: Duration) -> Vec<Duration> {
    let usual: u64 = chosen.iter().map(|stage| stage.minutes).sum();
    let minute = Duration::from_secs(60).min(whole / usual.max(1) as u32);
    let mut after = usual as u32;
    chosen
        .iter()
        .map(|stage| {
            after -= stage.minutes as u32;
            whole - minute * after
        })
        .collect()
}

/// Gives the stage that has the whole versions the time for them.
fn lengthen(chosen: &[&Stage], ends: &mut [Duration]) {
    let long = chosen.iter().position(|stage| stage.name == "unit");
    for end in ends.iter_mut().skip(long.unwrap_or(usize::MAX)) {
        *end += LONGER;
    }
}

/// The stages that were asked for by name; else all, and the long ones with `long` only.
fn choose(only: &[String], long: bool) -> Result<Vec<&'static Stage>> {
    let all = || STAGES.iter().chain(&LONG);
    if let Some(unknown) = only
        .iter()
        .find(|name| !all().any(|stage| stage.name == name.as_str()))
    {
        let names: Vec<&str> = all().map(|stage| stage.name).collect();
        let what = format!("there is no stage `{unknown}`; there are: {}", names.join(", "));
        return Err(netvm_harness::Usage(what).into());
    }
    if only.is_empty() {
        let long = LONG.iter().filter(|_| long);
        return Ok(STAGES.iter().chain(long).collect());
    }
    Ok(all()
        .filter(|stage| only.iter().any(|name| name == stage.name))
        .collect())
}

fn run_one(stage: &Stage, mut context: Context<'_>, before: &[Finished], no_skips: bool) -> Finished {
    let blocked = before
        .iter()
        .find(|finished| finished.verdict == Verdict::Failed && stage.needs.contains(&finished.stage));
    let result = match blocked {
        Some(other) => Ok(Outcome::Skipped(format!(
            "not run because `{}` failed",
            other.stage
        ))),
        None if context.deadline <= Instant::now() => bail_out_of_time(),
        None => (stage.run)(&mut context),
    };
    let (verdict, detail) = judge(result, no_skips);
    let seconds = context.progress.elapsed().as_secs_f64();
    let failed = verdict == Verdict::Failed;
    let output = if failed {
        exec::tail(&context.log, 4 << 20)
    } else {
        String::new()
    };
    let finished = Finished {
        stage: stage.name,
        verdict,
        detail,
        seconds,
        causes: exec::causes(&output).into_iter().map(str::to_owned).collect(),
    };
    context.progress.finish(&finished);
    if failed {
        for line in exec::why(&output) {
            eprintln!("    | {line}");
        }
        eprintln!("    the whole output: {}", context.log.display());
        eprintln!("    this stage alone: cargo xtask test --only {}", stage.name);
    }
    finished
}

/// What becomes of a stage that ended so, with one line for a person.
fn judge(result: Result<Outcome>, no_skips: bool) -> (Verdict, String) {
    match result {
        Ok(Outcome::Passed(detail)) => (Verdict::Passed, detail),
        Ok(Outcome::Skipped(reason)) if no_skips => (
            Verdict::Failed,
            format!("skipped, which --no-skips (CI=true) forbids: {reason}"),
        ),
        Ok(Outcome::Skipped(reason)) => (Verdict::Skipped, reason),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    }
}

fn bail_out_of_time<T>() -> Result<T> {
    bail!("not started: its time is spent (--limit)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_over_all_programs() {
        let log = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                   x\ntest result: ok. 40 passed; 0 failed; finished in 1s\ntest result: FAILED. 7 passed; 1 failed\n";
        assert_eq!(count_tests(log), 42);
    }

    #[test]
    fn a_slow_stage_leaves_the_others_what_they_usually_take() {
        let all: Vec<&Stage> = STAGES.iter().collect();
        let usual: u64 = all.iter().map(|stage| stage.minutes).sum();
        assert!(usual <= USUAL, "the stages' minutes add up to {usual}");
        let whole = Duration::from_secs(LIMIT * 60);
        let ends = ends(&all, whole);
        assert_eq!(ends.last(), Some(&whole));
        let spare = whole - Duration::from_secs(usual * 60);
        assert_eq!(ends[0], spare + Duration::from_secs(all[0].minutes * 60));
        for (before, (stage, end)) in ends.iter().zip(all.iter().zip(&ends).skip(1)) {
            assert_eq!((*end - *before).as_secs(), stage.minutes * 60, "{}", stage.name);
        }
    }

    #[test]
    fn too_little_time_is_shared() {
        let all: Vec<&Stage> = STAGES.iter().collect();
        let whole = Duration::from_secs(600);
        let ends = ends(&all, whole);
        assert_eq!(ends.last(), Some(&whole));
        assert!(ends[0] > Duration::ZERO && ends.is_sorted());
    }

    #[test]
    fn whole_versions_take_no_time_from_other_stages() {
        let all: Vec<&Stage> = STAGES.iter().collect();
        let ends = ends(&all, Duration::from_secs(LIMIT * 60));
        let mut long = ends.clone();
        lengthen(&all, &mut long);
        assert_eq!(long[0], ends[0], "`unit` is not the first");
        assert_eq!(long.last().copied(), ends.last().map(|end| *end + LONGER));
    }

    #[test]
    fn a_skipped_stage_fails_where_none_may_be_skipped() {
        let skipped = || Ok(Outcome::Skipped("no card".to_owned()));
        assert_eq!(judge(skipped(), false), (Verdict::Skipped, "no card".to_owned()));
        let (verdict, detail) = judge(skipped(), true);
        assert!(
            verdict == Verdict::Failed && detail.ends_with("no card"),
            "{detail}"
        );
        assert_eq!(judge(Ok(Outcome::Passed(String::new())), true).0, Verdict::Passed);
    }

    #[test]
    fn an_unknown_stage_is_named() {
        let error = choose(&["nonsense".to_owned()], false)
            .err()
            .expect("no such stage");
        assert!(error.is::<netvm_harness::Usage>(), "{error:?}");
        let error = error.to_string();
        assert!(
            error.contains("nonsense") && error.contains("clippy") && error.contains("dist"),
            "{error}"
        );
        let chosen = |only: &[String], long| choose(only, long).map(|stages| stages.len()).ok();
        assert_eq!(chosen(&["clippy".to_owned()], false), Some(1));
        assert_eq!(chosen(&[], false), Some(STAGES.len()));
    }

    #[test]
    fn a_long_stage_runs_when_it_is_asked_for() {
        let chosen = |only: &[String], long| choose(only, long).map(|stages| stages.len()).ok();
        assert_eq!(chosen(&[], true), Some(STAGES.len() + LONG.len()));
        assert_eq!(chosen(&["dist".to_owned()], false), Some(1));
        assert_eq!(chosen(&["clippy".to_owned()], true), Some(1));
    }

    #[test]
    fn a_stage_waits_only_for_stages_before_it() {
        for (at, stage) in STAGES.iter().enumerate() {
            for need in stage.needs {
                assert!(
                    STAGES[..at].iter().any(|other| other.name == *need),
                    "{} needs {need}",
                    stage.name
                );
            }
        }
    }
}
