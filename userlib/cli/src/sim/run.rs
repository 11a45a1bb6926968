//! Running seeds: one, or many at once.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netvm_world::trace::{NoTrace, TraceSink};
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
    catch_unwind(AssertUnwindSafe(|| run_seed(seed, config, sink))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Box::new(Failure {
            seed,
            nodes: config.nodes,
            point: None,
            promise: None,
            what: format!("panic: {}", text.unwrap_or_else(|| "(no text)".to_owned())),
            virtual_nanos: 0,
            last_events: Vec::new(),
            counters: BTreeMap::new(),
            replay: config.replay(seed),
        }))
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

/// Runs `count` seeds from `first` on (all of which exist), `jobs` at once, and hands over each result as it comes.
pub(crate) fn all(
    first: u64,
    count: u32,
    config: &Config,
    jobs: usize,
    after_failure: AfterFailure,
    each: &mut dyn FnMut(Run),
) {
    let next = AtomicU32::new(0);
    let failed = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (next, failed, send) = (&next, &failed, send.clone());
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let started = Instant::now();
                    let outcome = one(first + u64::from(at), config, &mut NoTrace);
                    if outcome.is_err() && after_failure == AfterFailure::Stop {
                        failed.store(true, Ordering::Relaxed);
                    }
                    // The receiver is there until every sender has gone.
                    let _ = send.send(Run {
                        outcome,
                        time: started.elapsed(),
                    });
                }
            });
        }
        drop(send);
        for run in receive {
            each(run);
        }
    });
}
