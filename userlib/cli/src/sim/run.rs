//! Running seeds: one, or many at once.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::watchdog::Watchdog;
use crate::args::Sim;
use netvm_world::points::{self, Case, Point, Recorded};
use netvm_world::trace::TraceSink;
use netvm_world::{Config, Failure, Report, run_seed};

/// What a seed came to, and how long that took.
pub(crate) struct Run {
    /// The report, or what was broken.
    pub(crate) outcome: Result<Report, Box<Failure>>,
    /// Time of one core.
    pub(crate) time: Duration,
}

/// Runs one seed.
///
/// # Errors
/// What was broken. A panic anywhere in the world is a failure like another.
pub(crate) fn one(seed: u64, config: &Config, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
    caught(
        || run_seed(seed, config, sink),
        || failure(seed, config, String::new()),
    )
}

/// A run of a seed that failed and could not say more.
pub(crate) fn failure(seed: u64, config: &Config, what: String) -> Failure {
    Failure {
        seed,
        nodes: config.nodes,
        point: None,
        promise: None,
        what,
        virtual_nanos: 0,
        last_events: Vec::new(),
        counters: BTreeMap::new(),
        replay: config.replay(seed),
    }
}

/// Plays a crash point.
///
/// # Errors
/// As [`one`].
pub(crate) fn point(point: &Point, sink: &mut dyn TraceSink) -> Result<Report, Box<Failure>> {
    caught(|| points::play(point, sink), || point.failure(String::new()))
}

/// Plays a body without faults and keeps its points.
///
/// # Errors
/// As [`one`].
pub(crate) fn recording(case: &'static Case, sink: &mut dyn TraceSink) -> Result<Recorded, Box<Failure>> {
    caught(|| points::record(case, sink), || points::unrecorded(case, ""))
}

/// What a run comes to; a panic is `failed`, with its text.
fn caught<T>(
    run: impl FnOnce() -> Result<T, Box<Failure>>,
    failed: impl FnOnce() -> Failure,
) -> Result<T, Box<Failure>> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let what = format!("panic: {}", text.unwrap_or_else(|| "(no text)".to_owned()));
        Err(Box::new(Failure { what, ..failed() }))
    })
}

/// What follows when a seed fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AfterFailure {
    /// No further seed is begun.
    Stop,
    /// The other seeds run, too.
    KeepGoing,
}

impl AfterFailure {
    /// What the command line asks for.
    pub(crate) const fn of(options: &Sim) -> Self {
        if options.keep_going {
            Self::KeepGoing
        } else {
            Self::Stop
        }
    }
}

/// How runs are made.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    /// How many at once.
    pub(crate) jobs: usize,
    pub(crate) after_failure: AfterFailure,
    /// Looks after them.
    pub(crate) watchdog: &'a Watchdog,
}

/// Runs `count` worlds until `may_begin` says no, and hands over each result with its number as it comes.
/// Numbers are begun in order: when this returns, all before some number have run, and none after it.
pub(crate) fn all(
    count: u64,
    way: Way<'_>,
    may_begin: impl Fn() -> bool + Sync,
    world: impl Fn(u64, &mut dyn TraceSink) -> Result<Report, Box<Failure>> + Sync,
    each: &mut dyn FnMut(u64, Run),
) {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..way.jobs {
            let (next, failed, send) = (&next, &failed, send.clone());
            let (may_begin, world) = (&may_begin, &world);
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) && may_begin() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let started = Instant::now();
                    let outcome = way.watchdog.run(at, |pulse| world(at, pulse));
                    if outcome.is_err() && way.after_failure == AfterFailure::Stop {
                        failed.store(true, Ordering::Relaxed);
                    }
                    let run = Run {
                        outcome,
                        time: started.elapsed(),
                    };
                    // The receiver is there until every sender has gone.
                    let _ = send.send((at, run));
                }
            });
        }
        drop(send);
        for (at, run) in receive {
            each(at, run);
        }
    });
}
