//! Operations on another node's memory, one at a time and many at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm::{NodeId, Port, Region, RemoteSegment, Result};
use serde::{Deserialize, Serialize};

use super::places::Places;
use crate::args::MAX_TRANSFER;
use crate::processes::SIGNAL;

/// Single operations of which the time is taken, at most.
pub(super) const SINGLES: usize = 100_000;
/// Bytes that are copied to be sent, at most; more are taken from where they are.
const SHORT: u32 = 128;
/// Bytes from which on the clock is looked at after each one.
const LARGE: u32 = 1 << 16;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::processes) enum Kind {
    /// A write of so many bytes.
    Write(u32),
    /// A read of so many bytes.
    Read(u32),
    /// An addition to a word.
    Atomic,
    /// A signal.
    Notify,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Read(_) => "read",
            Self::Atomic => "atomic",
            Self::Notify => "notify",
        }
    }

    /// Bytes that it moves; 0 where it has none.
    pub(in crate::processes) const fn size(self) -> u32 {
        match self {
            Self::Write(size) | Self::Read(size) => size,
            Self::Atomic => 8,
            Self::Notify => 0,
        }
    }
}

/// The way from a port to another node's memory: to a part of it, of [`PART`](crate::processes::PART) bytes, or to random pages.
pub(in crate::processes) struct Lane<'a> {
    port: &'a Port,
    peer: NodeId,
    remote: RemoteSegment,
    /// Where that part begins.
    part: u64,
    /// Where operations take place instead.
    places: Option<Places>,
    /// Ends what is under way early.
    stop: Option<&'a AtomicBool>,
    /// Memory of the port's own, as senders of large data have it: it is not copied to be sent.
    source: Region,
    /// Where reads bring what they fetch, all of them to the same place.
    target: Region,
}

impl<'a> Lane<'a> {
    /// To a part of `remote`.
    ///
    /// # Errors
    /// There is no memory to send from.
    pub(in crate::processes) fn new(port: &'a Port, remote: RemoteSegment, part: u64) -> Result<Self> {
        let source = port.alloc(u64::from(MAX_TRANSFER))?;
        source.write_from(0, &vec![0xA5; MAX_TRANSFER as usize])?;
        Ok(Self {
            port,
            peer: remote.node(),
            remote,
            part,
            places: None,
            stop: None,
            source,
            target: port.alloc(u64::from(MAX_TRANSFER))?,
        })
    }

    /// The same, which ends early when this is set.
    pub(in crate::processes) fn until(self, stop: &'a AtomicBool) -> Self {
        Self {
            stop: Some(stop),
            ..self
        }
    }

    /// From now on operations take place there, and not in the part.
    pub(super) fn scatter(&mut self, places: Places) {
        self.places = Some(places);
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// How long single ones take, each until it is known to have landed.
    ///
    /// # Errors
    /// One has failed.
    pub(in crate::processes) fn singles(&mut self, kind: Kind, time: Duration) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < time && times.len() < SINGLES && !self.is_stopped() {
            let one = Instant::now();
            self.single(kind)?;
            times.push(one.elapsed());
        }
        Ok(times)
    }

    /// How many end in this time, with `depth` on their way, and how long that took.
    ///
    /// # Errors
    /// One has failed.
    pub(in crate::processes) fn rate(
        &mut self,
        kind: Kind,
        depth: u32,
        time: Duration,
    ) -> Result<(u64, Duration)> {
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < time && !self.is_stopped() {
            for _ in 0..depth {
                self.post(kind)?;
                count += 1;
                // Many large ones take longer than the time that is given.
                if kind.size() >= LARGE && (begin.elapsed() >= time || self.is_stopped()) {
                    break;
                }
            }
            // Atomics have waited for their answers, one after the other.
            match kind {
                Kind::Read(_) => self.port.flush_reads()?,
                Kind::Write(_) | Kind::Atomic | Kind::Notify => self.port.flush_remote(self.peer)?,
            }
        }
        Ok((count, begin.elapsed()))
    }

    /// One, until it is known to have landed.
    ///
    /// # Errors
    /// It has failed.
    pub(in crate::processes) fn single(&mut self, kind: Kind) -> Result<()> {
        self.post(kind)?;
        match kind {
            Kind::Write(_) | Kind::Notify => self.port.flush_remote(self.peer),
            Kind::Read(_) => self.port.flush_reads(),
            Kind::Atomic => Ok(()),
        }
    }

    fn post(&mut self, kind: Kind) -> Result<()> {
        // A word has a page of its own.
        let beside = match kind {
            Kind::Atomic => u64::from(MAX_TRANSFER),
            _ => 0,
        };
        let at = self.places.as_mut().map(Places::next);
        let (remote, at) = (&self.remote, at.unwrap_or(self.part + beside));
        match kind {
            Kind::Write(size) if size <= SHORT => {
                let bytes = [0; SHORT as usize];
                let bytes = bytes.get(..size as usize).unwrap_or_default();
                remote.write(at, bytes).post().map(drop)
            }
            Kind::Write(size) => {
                let source = self.source.slice(0..u64::from(size))?;
                remote.write(at, source).post().map(drop)
            }
            Kind::Read(size) => {
                let into = self.target.slice(0..u64::from(size))?;
                remote.read(at, into).post().map(drop)
            }
            Kind::Atomic => {
                let word = remote.word64(at)?;
                word.fetch_add(1).map(drop)
            }
            Kind::Notify => remote.notify(SIGNAL).map(drop),
        }
    }
}
