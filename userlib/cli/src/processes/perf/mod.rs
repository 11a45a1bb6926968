//! `netvm perf`: rates, and times of single operations.

mod both;
mod channel;
mod landed;
pub(super) mod lane;
mod line;
mod overcommit;
mod places;

use std::time::Duration;

use serde::Serialize;

use super::session::Session;
use super::spread::Spread;
use super::{Client, wrong};
use crate::args::{Operation, Perf};
use crate::failure::Failure;
use crate::output;
use both::Mirror;
use channel::Channel;
use landed::Watch;
use lane::{Kind, Lane};
use line::Line;
use overcommit::{Outcome, Overcommit};

#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    depth: u32,
    lines: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overcommit: Option<Outcome>,
}

/// What a line is of.
#[derive(Clone, Copy, Debug)]
enum Task {
    Memory(Kind),
    /// Messages of a channel, of so many bytes.
    Channel(u32),
}

/// Runs it.
///
/// # Errors
/// There is no such server, it is of another release, or the link ends.
pub fn run(options: &Perf) -> Result<(), Failure> {
    let tasks = tasks(options)?;
    if options.overcommit {
        overcommit::check(options, &tasks)?;
    }
    let client = Client::connect(&options.name, &options.options)?;
    let mut session = None;
    if options.both || options.overcommit || tasks.iter().any(|task| matches!(task, Task::Channel(_))) {
        // Before anything is measured: the server may not know them.
        session = Some(Session::begin(&client)?);
    }
    let mirror = match &mut session {
        Some(session) if options.both => Some(Mirror::open(&client, session)?),
        _ => None,
    };
    let overcommit = match &mut session {
        Some(session) if options.overcommit => Some(Overcommit::open(&client, session, options, &tasks)?),
        _ => None,
    };
    let lane = match &overcommit {
        Some(overcommit) => Lane::new(&client.port, overcommit.remote.clone(), 0),
        None => Lane::new(&client.port, client.remote.clone(), client.part),
    };
    let mut lane = lane.map_err(wrong)?;
    let (depth, time) = (options.depth, Duration::from_millis(options.time));
    let watch = Watch::new(&client, &options.name);
    let mut lines = Vec::new();
    for (number, task) in tasks.into_iter().enumerate() {
        if let Some(overcommit) = &overcommit {
            lane.scatter(overcommit.places(task, number));
        }
        lines.push(match (task, &mut session) {
            (Task::Memory(kind), session) => {
                lane.single(kind).map_err(wrong)?;
                let before = watch.look();
                let line = match (&mirror, session) {
                    (Some(mirror), Some(session)) => mirror.measure(session, &mut lane, kind, depth, time)?,
                    _ => memory(&mut lane, kind, depth, time).map_err(wrong)?,
                };
                line.landed(watch.since(&before, task))
            }
            (Task::Channel(size), Some(session)) => {
                let mut channel = Channel::open(&client, session, size, depth)?;
                channel.warm_up(time)?;
                let before = watch.look();
                let line = channel.measure(size, time)?;
                let landed = watch.since(&before, task);
                channel.close()?;
                line.landed(landed)
            }
            (Task::Channel(_), None) => continue,
        });
    }
    let overcommit = match (&overcommit, &mut session) {
        (Some(overcommit), Some(session)) => Some(overcommit.outcome(session)?),
        _ => None,
    };
    let report = Report {
        name: &options.name,
        depth: options.depth,
        lines,
        overcommit,
    };
    if options.json {
        output::print_json(&report)?;
    } else {
        let outcome = report.overcommit.as_ref().map(Outcome::text);
        output::print(&(line::table(&report.lines) + &outcome.unwrap_or_default()))?;
    }
    report.overcommit.as_ref().map_or(Ok(()), Outcome::check)
}

/// What is measured unless a command line says.
const ALL: [Operation; 5] = [
    Operation::Write,
    Operation::Read,
    Operation::Atomic,
    Operation::Notify,
    Operation::Channel,
];

/// What is asked for, in its order.
fn tasks(options: &Perf) -> Result<Vec<Task>, Failure> {
    let mut what = options.what.clone();
    if options.both && what.contains(&Operation::Channel) {
        return Err(Failure::Usage(
            "--both measures writes, reads, atomics and notifications: leave `channel` out of --what".into(),
        ));
    }
    let has_page = |what: &Operation| !matches!(what, Operation::Notify | Operation::Channel);
    if options.overcommit && !what.iter().all(has_page) {
        return Err(Failure::Usage(
            "--overcommit measures writes, reads and atomics: leave `notify` and `channel` out of --what"
                .into(),
        ));
    }
    if what.is_empty() {
        what.extend(ALL);
        what.retain(|what| !options.both || *what != Operation::Channel);
        what.retain(|what| !options.overcommit || has_page(what));
    }
    let sizes = || options.sizes.iter().copied();
    let of = |what: &Operation| -> Vec<Task> {
        match what {
            Operation::Write => sizes().map(|size| Task::Memory(Kind::Write(size))).collect(),
            Operation::Read => sizes().map(|size| Task::Memory(Kind::Read(size))).collect(),
            Operation::Channel => sizes().map(Task::Channel).collect(),
            Operation::Atomic => vec![Task::Memory(Kind::Atomic)],
            Operation::Notify => vec![Task::Memory(Kind::Notify)],
        }
    };
    Ok(what.iter().flat_map(of).collect())
}

fn memory(lane: &mut Lane<'_>, kind: Kind, depth: u32, time: Duration) -> netvm::Result<Line> {
    let times = lane.singles(kind, time)?;
    let rate = lane.rate(kind, depth, time)?;
    Ok(Line::new(kind.name(), kind.size(), rate, Spread::of(times)))
}
