//! One life after another, each with a port of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netvm::Refusal;
use netvm::{Error, Node, Region, device};
use serde::Serialize;

use crate::Common;

/// Between two lives.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a life ended.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The card's device cannot be opened.
    Card(Refusal),
    /// A call failed.
    Failed(Error),
    /// Bytes are not what was written, which no fault excuses.
    Bytes(String),
    /// The file of a pause cannot be made.
    Pause(PathBuf, io::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card(refusal) => write!(f, "the card: {refusal}"),
            Self::Failed(error) => error.fmt(f),
            Self::Bytes(what) => f.write_str(what),
            Self::Pause(file, error) => write!(f, "{}: {error}", file.display()),
        }
    }
}

impl Trouble {
    /// A short name, the same for all of a kind.
    fn kind(&self) -> String {
        let status = match self {
            Self::Card(Refusal::Status(status)) => Some(*status),
            Self::Failed(error) => error.status(),
            _ => None,
        };
        match status {
            Some(status) => format!("{status:?}"),
            None => self.to_string(),
        }
    }
}

/// What has happened, over all lives.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) rounds: u64,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) lives: u64,
    /// Rounds since the last failure.
    pub(crate) rounds_since: u64,
    /// The longest time that a life took from its last end of a round to its failure, in milliseconds: how late a
    /// failure is told.
    pub(crate) latest_failure_ms: u64,
    /// How often what failed.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Of the last round's bytes.
    pub(crate) digest: String,
    /// Spent in writing, until all of it had landed, and in reading.
    pub(crate) write_ms: u64,
    pub(crate) read_ms: u64,
    #[serde(skip)]
    round_ended: Option<Instant>,
}

impl Report {
    /// A round is over.
    pub(crate) fn round(&mut self, digest: String) {
        self.rounds += 1;
        self.rounds_since += 1;
        self.digest = digest;
        self.round_ended = Some(Instant::now());
    }

    fn failed(&mut self, trouble: &Trouble) {
        *self.failures.entry(trouble.kind()).or_default() += 1;
        self.rounds_since = 0;
        if let Some(ended) = self.round_ended.take() {
            self.latest_failure_ms = self.latest_failure_ms.max(millis(ended.elapsed()));
        }
    }
}

/// Lives until a life ends well, or fails and may not.
pub(crate) fn live(
    common: &Common,
    report: &mut Report,
    mut life: impl FnMut(&Node, &End, &mut Report) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let end = End {
        at: common
            .seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        rounds: common.rounds,
        file: common.until.clone(),
    };
    loop {
        report.lives += 1;
        let lived = device::open(&common.device)
            .map_err(Trouble::Card)
            .and_then(|node| life(&node, &end, report));
        match lived {
            Ok(()) => return Ok(()),
            Err(trouble) => {
                report.failed(&trouble);
                if !common.stubborn || matches!(trouble, Trouble::Bytes(_)) {
                    return Err(trouble);
                }
                if end.is_over(report) {
                    return Ok(());
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// When to stop.
pub(crate) struct End {
    at: Option<Instant>,
    rounds: Option<u64>,
    file: Option<PathBuf>,
}

impl End {
    pub(crate) fn is_over(&self, report: &Report) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
            || self.rounds.is_some_and(|rounds| report.rounds >= rounds)
            || self.file.as_ref().is_some_and(|file| file.exists())
    }
}

/// The digest of `len` bytes of a region.
pub(crate) fn digest(region: &Region, offset: u64, len: u64) -> Result<String, Trouble> {
    hash(offset, len, |at, part| region.read_into(at, part))
}

/// The digest of `len` bytes from `offset` on, which `each` puts into a buffer, part by part.
pub(crate) fn hash(
    offset: u64,
    len: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> netvm::Result<()>,
) -> Result<String, Trouble> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < len {
        let count = (len - at).min(buffer.len() as u64);
        let part = buffer.get_mut(..count as usize).unwrap_or_default();
        each(offset + at, part)?;
        hasher.update(part);
        at += count;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
