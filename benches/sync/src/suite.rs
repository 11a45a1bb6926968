//! Everything that is measured, in one go.

use super::crowd::{self, Crowd};
use super::hot::{self, Hot};
use super::locality::{self, KINDS, Point, Setting};
use super::operations::{self, Operation};
use super::pressure::{self, Pressure};
use super::stream::{self, Stream};
use super::{Trouble, verdict};
use netvm_abi::Nanos;
use netvm_world::stand::side_by_side;
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Worlds of a full shared queue.
const WORLDS: u32 = 4;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Clients on one lock, and the nodes that they are on.
    pub crowd: (usize, u16),
    /// How long these are watched.
    pub watched: Nanos,
    /// Numbers of clients of hot words, and numbers of words.
    pub hot: &'static [(u32, u32)],
    /// Senders of a full shared queue, what it has room for, and what its receiver does with a message, in ns.
    pub pressure: &'static [(u32, u32, u64)],
    /// Message sizes in bytes.
    pub streams: &'static [u64],
    /// Nodes, locks, and locality in percent: all of each with all of the others, for every kind of lock.
    pub nodes: &'static [u16],
    /// See there.
    pub locks: &'static [u32],
    /// See there.
    pub locality: &'static [u32],
}

impl Sizes {
    /// A second or two.
    pub const QUICK: Self = Self {
        crowd: (48, 8),
        watched: Nanos::from_millis(8),
        hot: &[(1, 1), (8, 1)],
        pressure: &[(8, 4, 20_000)],
        streams: &[8, 4096],
        nodes: &[4],
        locks: &[8],
        locality: &[0, 100],
    };

    /// Half a minute.
    pub const USUAL: Self = Self {
        crowd: (240, 20),
        watched: Nanos::from_millis(30),
        hot: &[
            (1, 1),
            (2, 1),
            (4, 1),
            (8, 1),
            (16, 1),
            (32, 1),
            (64, 1),
            (64, 16),
        ],
        pressure: &[
            (8, 4, 5_000),
            (8, 4, 50_000),
            (8, 4, 500_000),
            (16, 4, 2_000),
            (32, 4, 5_000),
            (32, 64, 20_000),
            (64, 4, 20_000),
            (64, 16, 100_000),
        ],
        streams: &[8, 64, 256, 1024, 4088, 16384],
        nodes: &[10],
        locks: &[1, 20, 1000],
        locality: &[0, 50, 90, 100],
    };

    /// Minutes: what the evaluation's plots show.
    pub const WHOLE: Self = Self {
        nodes: &[4, 10, 20],
        locks: &[1, 20, 100, 1000],
        locality: &[0, 25, 50, 75, 90, 100],
        ..Self::USUAL
    };

    fn settings(&self) -> Vec<Setting> {
        let mut all = Vec::new();
        for &nodes in self.nodes {
            for &locks in self.locks {
                for &local_percent in self.locality {
                    all.extend(KINDS.map(|kind| Setting {
                        kind,
                        nodes,
                        locks,
                        local_percent,
                    }));
                }
            }
        }
        all
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Each operation alone.
    pub operations: Vec<Operation>,
    /// Many clients on one lock.
    pub crowd: Crowd,
    /// Hot words.
    pub hot: Vec<Hot>,
    /// Full shared queues.
    pub pressure: Vec<Pressure>,
    /// Channels and plain writes.
    pub streams: Vec<Stream>,
    /// Kinds of locks.
    pub locality: Vec<Point>,
}

/// Measures; `tell` hears what it is at. Worlds that have nothing to do with each other run side by side, on as many
/// threads as asked for; that changes no number.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(
    model: &CostModel,
    sizes: &Sizes,
    threads: usize,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Measured, Trouble> {
    tell("operations ...");
    let operations = operations::measure(model)?;
    let (clients, nodes) = sizes.crowd;
    tell(&format!("{clients} clients on one lock ..."));
    let crowd = crowd::measure(model, clients, nodes, sizes.watched)?;
    tell("hot words ...");
    let hot = side_by_side(sizes.hot, threads, |&(clients, words)| {
        hot::measure(model, clients, words, Nanos::from_micros(500))
    })?;
    tell("shared queues ...");
    let pressure = side_by_side(sizes.pressure, threads, |&(senders, capacity, service_nanos)| {
        let setting = pressure::Setting {
            senders,
            capacity,
            service_nanos,
        };
        pressure::measure(model, setting, WORLDS)
    })?;
    tell("channels ...");
    let streams = side_by_side(sizes.streams, threads, |&bytes| {
        stream::measure(model, bytes, 256)
    })?;
    let settings = sizes.settings();
    let done = AtomicUsize::new(0);
    let locality = side_by_side(&settings, threads, |&setting| {
        let at = done.fetch_add(1, Ordering::Relaxed);
        if at.is_multiple_of(12) {
            tell(&format!("kinds of locks: {at} of {} worlds ...", settings.len()));
        }
        locality::measure(model, setting, Nanos::from_millis(1))
    })?;
    Ok(Measured {
        operations,
        crowd,
        hot,
        pressure,
        streams,
        locality,
    })
}

impl Measured {
    /// What does not hold that has to.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = verdict::of_operations(&self.operations);
        wrong.extend(verdict::of_crowd(&self.crowd));
        wrong.extend(verdict::of_pressure(&self.pressure));
        wrong.extend(verdict::of_locality(&self.locality));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_once() {
        assert_eq!(Sizes::QUICK.settings().len(), 6);
        assert_eq!(Sizes::WHOLE.settings().len(), 3 * 4 * 6 * 3);
    }
}
