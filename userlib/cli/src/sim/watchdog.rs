//! A watchdog for runs that hang: a program of the world that blocks its thread, or a step that never ends.
//!
//! Each run counts the steps of its world. A run hangs when its count stands still for long; how long it has taken says
//! nothing, for on a loaded machine a run is slow, but it moves. A thread that hangs cannot be joined, so the program ends.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use netvm_world::trace::TraceSink;
use netvm_world::{Failure, evidence};

use crate::output;

/// How often the watchdog looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most that may pass between two looks for all it counts: while the machine stood still, so did its runs.
const LATE: Duration = Duration::from_secs(2);

/// How long a world may stand at one step. A loaded machine gives each thread its turn many times in it.
const STILL: Duration = Duration::from_secs(60);

/// As much more for each node: a world is made in one step, and so are its tables.
const STILL_PER_NODE: Duration = Duration::from_millis(250);

/// How long the second run of what hangs may stand still, which writes the trace.
const STILL_AGAIN: Duration = Duration::from_secs(15);

/// Counts the steps of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl TraceSink for Pulse {
    fn wants_lines(&self) -> bool {
        false
    }

    fn line(&mut self, _line: &str) {}

    fn step(&mut self) {
        self.beat();
    }
}

/// A sink whose run is counted.
struct Counted<'a>(&'a mut dyn TraceSink, &'a Pulse);

impl TraceSink for Counted<'_> {
    fn wants_lines(&self) -> bool {
        self.0.wants_lines()
    }

    fn line(&mut self, line: &str) {
        self.0.line(line);
    }

    fn step(&mut self) {
        self.1.beat();
    }
}

/// How long a count has stood still.
#[derive(Debug, Default)]
struct Stand {
    steps: u64,
    still: Duration,
}

impl Stand {
    /// Some time after the last look, the count is this. Gives how long it has stood.
    fn look(&mut self, steps: u64, passed: Duration) -> Duration {
        if steps == self.steps {
            self.still += passed;
        } else {
            *self = Self {
                steps,
                still: Duration::ZERO,
            };
        }
        self.still
    }
}

/// A run that is under way.
struct Watched {
    number: u64,
    pulse: Pulse,
    stand: Stand,
    /// Since it began.
    age: Duration,
    /// What the kernel shows of its thread.
    thread: Option<PathBuf>,
}

/// A run that hangs.
#[derive(Debug)]
pub(super) struct Hung {
    /// Its number.
    pub(super) number: u64,
    steps: u64,
    still: Duration,
    age: Duration,
    thread: String,
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hangs: {} s after its beginning its world stands at step {}, for {} s now; its thread {}",
            self.age.as_secs(),
            output::grouped(self.steps),
            self.still.as_secs(),
            self.thread
        )
    }
}

/// Knows which runs are under way.
pub(super) struct Watchdog {
    limit: Duration,
    runs: Mutex<Vec<Watched>>,
}

impl Watchdog {
    /// Of worlds with so many nodes.
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            limit: STILL + STILL_PER_NODE * nodes.into(),
            runs: Mutex::default(),
        }
    }

    fn runs(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a run on this thread, and watches it.
    pub(super) fn run<T>(&self, number: u64, run: impl FnOnce(&mut Pulse) -> T) -> T {
        let mut pulse = Pulse::default();
        self.runs().push(Watched {
            number,
            pulse: pulse.clone(),
            stand: Stand::default(),
            age: Duration::ZERO,
            thread: std::fs::read_link("/proc/thread-self").ok(),
        });
        let outcome = run(&mut pulse);
        self.runs().retain(|run| run.number != number);
        outcome
    }

    /// Looks at all runs, some time after the last look. Gives one that hangs.
    fn look(&self, passed: Duration) -> Option<Hung> {
        let passed = passed.min(LATE);
        self.runs().iter_mut().find_map(|run| {
            run.age += passed;
            let steps = run.pulse.steps();
            let still = run.stand.look(steps, passed);
            (still >= self.limit).then(|| Hung {
                number: run.number,
                steps,
                still,
                age: run.age,
                thread: state(run.thread.as_deref()),
            })
        })
    }

    /// Does `work`, and watches the runs that it makes. `bark` hears of one that hangs; it is meant not to return.
    pub(super) fn watch<T>(&self, bark: impl Fn(&Hung) + Sync, work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut last = Instant::now();
                while !over.load(Ordering::Acquire) {
                    thread::park_timeout(LOOK_EVERY);
                    let passed = last.elapsed();
                    last = Instant::now();
                    if let Some(hung) = self.look(passed) {
                        bark(&hung);
                    }
                }
            });
            let _end = End(&over, watch.thread().clone());
            work()
        })
    }
}

/// Ends the watch, also when the work has panicked.
struct End<'a>(&'a AtomicBool, Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// What the kernel says of a thread.
fn state(thread: Option<&Path>) -> String {
    let of = |name: &str| {
        let file = Path::new("/proc").join(thread?).join(name);
        std::fs::read_to_string(file).ok()
    };
    let status = of("status").unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    let place = of("wchan").filter(|place| place.len() > 1);
    match (state, place) {
        (None, _) => "is unknown".to_owned(),
        (Some(state), None) => format!("is in state {}", state.trim()),
        (Some(state), Some(place)) => format!("is in state {} in {place}", state.trim()),
    }
}

/// Says which run hangs and how it is played again, and leaves its trace in `folder`: `again` plays it up to where it hangs.
/// Then the program ends.
pub(super) fn give_up(failure: &Failure, folder: &Path, again: impl FnOnce(&mut dyn TraceSink) + Send) -> ! {
    output::tell(&failure.to_string());
    let pulse = Pulse::default();
    thread::scope(|scope| {
        let second = scope
            .spawn(|| evidence::leave_hanging(folder, failure, |sink| again(&mut Counted(sink, &pulse))));
        let mut stand = Stand::default();
        while !second.is_finished() && stand.look(pulse.steps(), LOOK_EVERY) < STILL_AGAIN {
            thread::sleep(LOOK_EVERY);
        }
        let told = match second.is_finished().then(|| second.join()) {
            Some(Ok(Err(error))) => {
                format!("the trace could not be written to {}: {error}", folder.display())
            }
            _ => format!("trace: {}", evidence::path(folder, failure).display()),
        };
        output::tell(&told);
        // The threads that hang cannot be waited for.
        std::process::exit(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run;
    use netvm_world::Config;
    use std::sync::mpsc;

    const SECOND: Duration = Duration::from_secs(1);

    /// A second passes this often. Gives the run that hangs, and after how many seconds.
    fn pass(watchdog: &Watchdog, seconds: u32) -> Option<(u32, Hung)> {
        (1..=seconds).find_map(|second| Some((second, watchdog.look(SECOND)?)))
    }

    /// Has a world stand in the middle of a step until it is told to go on.
    struct Stuck<'a> {
        pulse: &'a mut Pulse,
        steps_left: u32,
        stands: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl TraceSink for Stuck<'_> {
        fn wants_lines(&self) -> bool {
            false
        }

        fn line(&mut self, _line: &str) {}

        fn step(&mut self) {
            self.pulse.step();
            self.steps_left = self.steps_left.saturating_sub(1);
            if self.steps_left == 1 {
                self.stands.send(()).expect("the test listens");
                self.go_on.recv().expect("the test ends it");
            }
        }
    }

    #[test]
    fn a_world_that_stands_still_is_named_and_one_that_moves_is_not() {
        let watchdog = Watchdog::new(4);
        let config = Config {
            messages: 100,
            ..Config::default()
        };
        let (stands, stood) = mpsc::channel();
        let (go, go_on) = mpsc::channel();
        thread::scope(|scope| {
            let (watchdog, config) = (&watchdog, &config);
            let world = scope.spawn(move || {
                watchdog.run(7, |pulse| {
                    let mut sink = Stuck {
                        pulse,
                        steps_left: 1_000,
                        stands,
                        go_on,
                    };
                    run::one(3, config, &mut sink).map(|report| report.events)
                })
            });
            // It is made, and runs, however long that takes.
            stood.recv().expect("the world stands");
            watchdog.run(8, |moving| {
                let steady = (0..59).find_map(|_| {
                    moving.step();
                    watchdog.look(SECOND)
                });
                assert!(steady.is_none(), "{steady:?}");
                let (second, hung) = pass(watchdog, 4).expect("it hangs");
                assert_eq!((second, hung.number), (3, 7));
                let said = hung.to_string();
                assert!(
                    said.contains("step 999, for 61 s") && said.contains("its thread is in state"),
                    "{said}"
                );
            });
            go.send(()).expect("the world waits");
            assert!(world.join().expect("no panic").is_ok());
        });
        assert!(pass(&watchdog, 1_000).is_none(), "no run is left");
    }

    #[test]
    fn a_run_that_takes_long_does_not_hang_and_large_worlds_may_stand_longer() {
        for (nodes, limit) in [(2, 61), (512, 188)] {
            let watchdog = Watchdog::new(nodes);
            watchdog.run(1, |pulse| {
                for _ in 0..500 {
                    pulse.step();
                    let hung = pass(&watchdog, limit / 2);
                    assert!(hung.is_none(), "{hung:?}");
                }
                pulse.step();
                let (second, _) = pass(&watchdog, 1_000).expect("it hangs");
                assert_eq!(second, limit + 1, "the first look sees the step");
            });
        }
    }

    #[test]
    fn a_machine_that_stood_still_has_no_run_that_hangs() {
        let watchdog = Watchdog::new(3);
        watchdog.run(1, |_| {
            assert!(watchdog.look(Duration::from_secs(3_600)).is_none())
        });
    }

    #[test]
    fn the_watch_ends_with_the_work() {
        let watchdog = Watchdog::new(3);
        let bark = |hung: &Hung| panic!("{hung}");
        assert_eq!(watchdog.watch(bark, || watchdog.run(1, |_| 5)), 5);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            watchdog.watch(bark, || panic!("the work"));
        }));
        assert!(panics.is_err());
    }
}
