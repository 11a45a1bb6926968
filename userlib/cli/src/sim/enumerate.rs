//! `netvm sim --enumerate`: one fault at each access of each body.
//!
//! Points are played in an order that jumps through the list, so that a part of them is a part of each body and each fault.
//! A file keeps how far the runs have come. It is good for the program that wrote it: another build has other points.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netvm_world::evidence;
use netvm_world::points::{self, Case, Crash, Point, Recorded};
use netvm_world::trace::{NoTrace, TraceSink};
use serde::{Deserialize, Serialize};

use super::run::{self, AfterFailure, Run, Way};
use super::watchdog::{self, Hung, Watchdog};
use super::{bar, jobs, print_trace};
use crate::args::{Points, Sim};
use crate::failure::Failure;
use crate::output::{self, grouped};

/// How often the file is written.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// The points of a body, or how its run without faults has failed.
type Recording = Result<Recorded, Box<netvm_world::Failure>>;

/// How far runs with a file have come.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// What tells the program from other builds of it.
    build: String,
    /// The one body, if only one was asked for.
    body: Option<String>,
    /// The one fault, if only one was asked for.
    fault: Option<String>,
    /// How many points, in their order, were played.
    done: u64,
    /// Those that failed.
    failed: Vec<String>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Sum {
    ok: bool,
    /// Points in all.
    points: u64,
    /// Points that were played, earlier runs with the same file included.
    done: u64,
    /// Those that failed.
    failed: Vec<String>,
    /// The files that hold their traces.
    traces: Vec<PathBuf>,
    /// Time that passed for the person.
    seconds: f64,
}

/// Plays one point.
///
/// # Errors
/// [`Failure::Wrong`] when it fails.
pub(super) fn one(point: &Point, options: &Sim) -> Result<(), Failure> {
    let report = if options.trace {
        print_trace(|sink| run::point(point, sink))?
    } else {
        run::point(point, &mut NoTrace).map_err(|failure| Failure::Wrong(failure.to_string()))?
    };
    let events = report.events;
    if options.json {
        output::print_json(&serde_json::json!({"ok": true, "point": point.to_string(), "events": events}))
    } else {
        output::tell(&format!("{point}: ok, {events} events"));
        Ok(())
    }
}

/// Plays the points that were asked for. Runs that fail leave their traces in `folder`.
///
/// # Errors
/// [`Failure::Wrong`] when one failed, [`Failure::Usage`] for a body that does not exist or a file of another build.
pub(super) fn run(options: &Sim, folder: &Path) -> Result<(), Failure> {
    let started = Instant::now();
    let asked = &options.points;
    let mut state = State {
        build: build()?,
        body: asked.body.clone(),
        fault: asked.fault.map(|fault| fault.to_string()),
        done: 0,
        failed: Vec::new(),
    };
    // A file that is of no use shows before the long work.
    if let Some(file) = &asked.resume {
        state.load(file)?;
        let kept = state.keep(file);
        kept.map_err(|trouble| Failure::Usage(format!("cannot write {trouble}")))?;
    }
    let list = list(asked, jobs(options), folder)?;
    let points = list.len() as u64;
    state.done = state.done.min(points);
    if !options.json {
        output::print(&format!(
            "{} points, {} of them played before\n",
            grouped(points),
            grouped(state.done)
        ))?;
    }

    let before = state.done;
    let order = Order::new(points, asked.from.unwrap_or(0));
    let point = |at| &list[order.at(before + at) as usize];
    let begun = Instant::now();
    let deadline = asked
        .minutes
        .map(|minutes| begun + Duration::from_secs(minutes * 60));
    let may_begin = || deadline.is_none_or(|deadline| Instant::now() < deadline);
    let bar = bar(points, "points");
    bar.set_position(before);
    let (mut traces, mut trouble, mut kept) = (Vec::new(), None, Instant::now());
    // Runs end in another order than they begin.
    let mut early = BTreeSet::new();
    let left = points - before;
    let watchdog = Watchdog::new(points::NODES);
    let way = Way {
        jobs: jobs(options),
        after_failure: AfterFailure::of(options),
        watchdog: &watchdog,
    };
    let play = |at, sink: &mut dyn TraceSink| run::point(point(at), sink);
    let mut each = |at, run: Run| {
        bar.inc(1);
        early.insert(before + at);
        while early.remove(&state.done) {
            state.done += 1;
        }
        if let Err(failure) = &run.outcome {
            let point = point(at);
            state.failed.push(point.to_string());
            bar.suspend(|| output::tell(&failure.to_string()));
            match evidence::leave(folder, failure, |sink| drop(run::point(point, sink))) {
                Ok(path) => traces.push(path),
                Err(error) => trouble = Some(format!("{}: {error}", folder.display())),
            }
        }
        if let Some(file) = asked.resume.as_deref().filter(|_| kept.elapsed() > KEEP_EVERY) {
            kept = Instant::now();
            trouble = state.keep(file).err().or_else(|| trouble.take());
        }
    };
    let hangs = |hung: &Hung| {
        let failure = point(hung.number).failure(hung.to_string());
        bar.suspend(|| watchdog::give_up(&failure, folder, |sink| drop(play(hung.number, sink))));
    };
    watchdog.watch(hangs, || run::all(left, way, may_begin, play, &mut each));
    bar.finish_and_clear();
    if let Some(file) = &asked.resume {
        trouble = state.keep(file).err().or(trouble);
    }
    if let Some(trouble) = trouble {
        output::tell(&format!("cannot write {trouble}"));
    }
    let sum = Sum {
        ok: state.failed.is_empty(),
        points,
        done: state.done,
        failed: state.failed,
        traces,
        seconds: started.elapsed().as_secs_f64(),
    };
    if options.json {
        output::print_json(&sum)?;
    } else {
        output::print(&sum.table())?;
    }
    if sum.ok {
        return Ok(());
    }
    let mut what = format!("points that failed: {}", sum.failed.join(", "));
    for path in &sum.traces {
        what += &format!("\n  trace: {}", path.display());
    }
    Err(Failure::Wrong(what))
}

impl Sum {
    fn table(&self) -> String {
        format!(
            "{} of {} points played, {} failed, {:.0} s\n",
            grouped(self.done),
            grouped(self.points),
            self.failed.len(),
            self.seconds
        )
    }
}

/// All points that were asked for. Each body runs once without a fault.
fn list(asked: &Points, jobs: usize, folder: &Path) -> Result<Vec<Point>, Failure> {
    let body = asked.body.as_deref();
    let bodies: Vec<_> = points::bodies()
        .filter(|case| body.is_none_or(|name| case.name == name))
        .collect();
    if bodies.is_empty() {
        let names: Vec<_> = points::bodies().map(|case| case.name).collect();
        return Err(Failure::Usage(format!(
            "there is no body `{}` that has points; there are: {}",
            body.unwrap_or_default(),
            names.join(", ")
        )));
    }
    let all = recordings(&bodies, jobs, folder);
    let crashes = asked
        .fault
        .map_or_else(|| Crash::ALL.to_vec(), |fault| vec![fault]);
    let (mut list, mut seen) = (Vec::new(), BTreeSet::new());
    for (case, recorded) in bodies.into_iter().zip(all) {
        let recorded = recorded.map_err(|failure| Failure::Wrong(failure.to_string()))?;
        list.extend(recorded.points(case, &crashes, &mut seen));
    }
    Ok(list)
}

/// What each body has. One that hangs ends the program.
fn recordings(bodies: &[&'static Case], jobs: usize, folder: &Path) -> Vec<Recording> {
    let next = AtomicU64::new(0);
    let bar = bar(bodies.len() as u64, "bodies listed");
    let watchdog = Watchdog::new(points::NODES);
    let record = |at: u64, sink: &mut dyn TraceSink| run::recording(bodies[at as usize], sink);
    let hangs = |hung: &Hung| {
        let failure = points::unrecorded(bodies[hung.number as usize], &hung.to_string());
        bar.suspend(|| watchdog::give_up(&failure, folder, |sink| drop(record(hung.number, sink))));
    };
    let work = || {
        let mut mine = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= bodies.len() as u64 {
                return mine;
            }
            mine.push((at, watchdog.run(at, |pulse| record(at, pulse))));
            bar.inc(1);
        }
    };
    let mut all = Vec::new();
    watchdog.watch(hangs, || {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                all.extend(worker.join().unwrap_or_default());
            }
        });
    });
    bar.finish_and_clear();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, recorded)| recorded).collect()
}

/// An order of so many points: each comes once, and neighbours in it lie far apart in the list.
struct Order {
    points: u64,
    first: u64,
    step: u64,
}

impl Order {
    fn new(points: u64, first: u64) -> Self {
        // The golden ratio's share of the list, or the next number that reaches every place.
        let golden = (points as f64 * 0.618_033_988_75) as u64;
        let step = (golden.max(1)..).find(|&step| gcd(step, points) == 1);
        Self {
            points,
            first: first % points.max(1),
            step: step.unwrap_or(1),
        }
    }

    fn at(&self, number: u64) -> u64 {
        let jumped = u128::from(number) * u128::from(self.step) + u128::from(self.first);
        (jumped % u128::from(self.points.max(1))) as u64
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl State {
    /// Takes up what the file says, if there is one.
    fn load(&mut self, file: &Path) -> Result<(), Failure> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Failure::Usage(format!("cannot read {}: {error}", file.display()))),
        };
        let had: Self = serde_json::from_str(&text)
            .map_err(|error| Failure::Usage(format!("{} is no list of points: {error}", file.display())))?;
        let same = (&had.build, &had.body, &had.fault) == (&self.build, &self.body, &self.fault);
        if !same {
            return Err(Failure::Usage(format!(
                "{} is of another build of this program, or of another --body or --fault: delete it, or name another file",
                file.display()
            )));
        }
        *self = had;
        Ok(())
    }

    /// Writes the file. A run that is cut off leaves the one before.
    fn keep(&self, file: &Path) -> Result<(), String> {
        let say = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = serde_json::to_string(self).map_err(|error| say(&error))?;
        let new = file.with_extension("new");
        fs::write(&new, text + "\n")
            .and_then(|()| fs::rename(&new, file))
            .map_err(|error| say(&error))
    }
}

/// What tells this program from other builds of it.
fn build() -> Result<String, Failure> {
    let bytes = std::env::current_exe().and_then(fs::read);
    let bytes = bytes.map_err(|error| Failure::Unavailable {
        what: format!("the program cannot read its own file: {error}"),
        fix: "run it from a file that it may read".to_owned(),
    })?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_point_once() {
        for points in [1, 2, 7, 100, 1_536] {
            for first in [0, 3, u64::MAX] {
                let order = Order::new(points, first);
                let mut seen: Vec<u64> = (0..points).map(|number| order.at(number)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..points), "{points} from {first}");
            }
        }
    }

    #[test]
    fn a_file_of_another_build_is_refused() {
        let file = std::env::temp_dir().join(format!("netvm-points-{}.json", std::process::id()));
        let state = |build: &str| State {
            build: build.to_owned(),
            body: None,
            fault: None,
            done: 0,
            failed: Vec::new(),
        };
        let mut had = state("a");
        had.done = 4;
        had.keep(&file).expect("a file");
        let mut same = state("a");
        same.load(&file).expect("the same build");
        assert_eq!(same, had);
        let refused = state("b").load(&file).expect_err("another build");
        fs::write(&file, "{").expect("a file");
        let broken = state("a").load(&file).expect_err("no list");
        fs::remove_file(&file).expect("the file goes");
        assert_eq!((refused.status(), broken.status()), (2, 2));
        assert!(refused.to_string().contains("delete it"), "{refused}");
    }
}
