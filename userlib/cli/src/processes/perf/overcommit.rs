//! Operations at random pages of a file mapping that is larger than the server's memory.

use netvm::RemoteSegment;
use serde::Serialize;

use super::Task;
use super::places::Places;
use crate::args::Perf;
use crate::failure::Failure;
use crate::output::grouped;
use crate::processes::overcommit::{OVERCOMMIT, size};
use crate::processes::session::{Answer, Order, Session, nonsense};
use crate::processes::{Client, PATIENCE, wrong};

/// The server's mapping, and how much of it each measurement may touch.
pub(super) struct Overcommit {
    pub(super) remote: RemoteSegment,
    /// Bytes of memory that the server may use.
    memory: u64,
    touch: u64,
    /// Bytes for each task.
    share: u64,
}

/// What became of it at the server.
#[derive(Serialize)]
pub(super) struct Outcome {
    bytes: u64,
    /// Bytes of memory that the server may use.
    memory_bytes: u64,
    /// What the measurements may touch at most.
    touch_bytes: u64,
    /// At the end.
    resident_bytes: u64,
    /// What its file took at the end.
    file_bytes: u64,
    /// Of the whole server, during the measurements.
    minor_faults: u64,
    major_faults: u64,
    /// `VmLck` and `VmPin` of the server together.
    pinned_bytes: u64,
}

impl Overcommit {
    /// Has the server make one.
    ///
    /// # Errors
    /// The share of a task is smaller than one operation; the server offers none, or has no room.
    pub(super) fn open(
        client: &Client,
        session: &mut Session,
        options: &Perf,
        tasks: &[Task],
    ) -> Result<Self, Failure> {
        let touch = options.touch << 20;
        session.order(Order::Overcommit { touch })?;
        let memory = match session.answer(PATIENCE)? {
            Answer::Overcommit { memory } => memory,
            Answer::NoOvercommit => {
                return Err(Failure::Unavailable {
                    what: format!("{} offers no memory for --overcommit", options.name),
                    fix: "start it as `netvm serve NAME --overcommit 1.5x`, or with another size".into(),
                });
            }
            _ => return Err(nonsense()),
        };
        let remote = client
            .port
            .import(client.peer, session.port, OVERCOMMIT, PATIENCE)
            .map_err(wrong)?;
        Ok(Self {
            remote,
            memory,
            touch,
            share: share(touch, tasks),
        })
    }

    /// Where a task's operations take place: those of each task elsewhere.
    pub(super) fn places(&self, task: Task, number: usize) -> Places {
        Places::new(number as u64, bytes(task), self.remote.len(), self.share)
    }

    /// What has become of it.
    ///
    /// # Errors
    /// The server does not say.
    pub(super) fn outcome(&self, session: &mut Session) -> Result<Outcome, Failure> {
        session.order(Order::Held)?;
        let Answer::Held(held) = session.answer(PATIENCE)? else {
            return Err(nonsense());
        };
        Ok(Outcome {
            bytes: self.remote.len(),
            memory_bytes: self.memory,
            touch_bytes: self.touch,
            resident_bytes: held.resident,
            file_bytes: held.disk,
            minor_faults: held.minor_faults,
            major_faults: held.major_faults,
            pinned_bytes: held.pinned,
        })
    }
}

/// Refuses what makes no sense together.
///
/// # Errors
/// [`Failure::Usage`].
pub(super) fn check(options: &Perf, tasks: &[Task]) -> Result<(), Failure> {
    let share = share(options.touch << 20, tasks);
    let least = tasks.iter().map(|task| Places::span(bytes(*task))).max();
    let least = least.unwrap_or(0);
    if share >= least {
        return Ok(());
    }
    let whole = least.saturating_mul(tasks.len() as u64).div_ceil(1 << 20);
    Err(Failure::Usage(format!(
        "--touch {} is too little for {} measurements: give --touch {whole}, or smaller --sizes",
        options.touch,
        tasks.len()
    )))
}

/// Bytes that each task may touch.
fn share(touch: u64, tasks: &[Task]) -> u64 {
    touch / tasks.len().max(1) as u64
}

fn bytes(task: Task) -> u32 {
    match task {
        Task::Memory(kind) => kind.size(),
        Task::Channel(size) => size,
    }
}

impl Outcome {
    /// For a person.
    pub(super) fn text(&self) -> String {
        format!(
            "overcommit: random pages of {}, {:.2} x the {} that the server may use; up to {} of them touched\n\
             at the end: {} resident, the file took {}; {} page faults of the server, {} of which found no page in the file's cache; {} locked or pinned\n",
            size(self.bytes),
            self.bytes as f64 / self.memory_bytes.max(1) as f64,
            size(self.memory_bytes),
            size(self.touch_bytes),
            size(self.resident_bytes),
            size(self.file_bytes),
            grouped(self.minor_faults.saturating_add(self.major_faults)),
            grouped(self.major_faults),
            size(self.pinned_bytes)
        )
    }

    /// Whether the server had to lock nothing.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: it had.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.pinned_bytes == 0 {
            return Ok(());
        }
        Err(Failure::Wrong(format!(
            "the server has {} locked or pinned, and NetVM needs none",
            size(self.pinned_bytes)
        )))
    }
}
