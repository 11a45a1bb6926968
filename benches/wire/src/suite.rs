//! Everything that is measured, in one go.

use super::Trouble;
use super::completion::{self, CASES, Completion};
use super::goodput::{self, Stream};
use super::incast::{self, Incast};
use super::verdict::{self, Goal};
use netvm_world::stand::side_by_side;
use netvm_world::timing::CostModel;
use serde::Serialize;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Round trips that the links are made for, in nanoseconds.
    pub round_trips: &'static [u64],
    /// Bytes of a write.
    pub bytes: &'static [u64],
    /// Messages of a window, and staging buffers.
    pub windows: &'static [(u16, u16)],
    /// Frames that are lost, of a million; and writes of a world whose window is the usual one, and worlds.
    pub losses: &'static [(u32, u32, u32)],
    /// Worlds of each lost frame.
    pub worlds: u32,
    /// Nodes that stream to one, the round trip, and bytes that the switch keeps.
    pub incasts: &'static [(u16, u64, u64)],
    /// How long an incast is measured, in nanoseconds.
    pub incast_span: u64,
}

impl Sizes {
    /// Seconds.
    pub const QUICK: Self = Self {
        round_trips: &[10_000, 100_000],
        bytes: &[64, 4096],
        windows: &[(64, 64), (1024, 1024)],
        losses: &[(10_000, 4_000, 3), (300_000, 2_000, 1)],
        worlds: 4,
        incasts: &[(32, 10_000, 256 << 10)],
        incast_span: 15_000_000,
    };

    /// What the evaluation shows.
    pub const WHOLE: Self = Self {
        round_trips: &[10_000, 100_000],
        bytes: &[64, 4096],
        windows: &[(64, 64), (1024, 1024)],
        losses: &[
            (1_000, 20_000, 3),
            (10_000, 20_000, 3),
            (50_000, 20_000, 3),
            (300_000, 20_000, 3),
        ],
        worlds: 16,
        incasts: &[
            (8, 10_000, 256 << 10),
            (32, 10_000, 256 << 10),
            (32, 10_000, 1 << 20),
            (32, 100_000, 256 << 10),
        ],
        incast_span: 20_000_000,
    };
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Streams, those that lose nothing first.
    pub streams: Vec<Stream>,
    /// One lost frame.
    pub completions: Vec<Completion>,
    /// Many to one.
    pub incasts: Vec<Incast>,
    /// What was wanted, and whether it is so.
    pub goals: Vec<Goal>,
}

/// Bytes in a microsecond of a link where many write to one: 25 Gbit/s. The cards and their buses carry more, so the queue is in
/// the network.
const INCAST_LINK: u64 = 3_125;

/// How many times as many writes a world has whose window is wide, so that what it holds at the end is a small part.
fn longer(window: u16) -> u32 {
    u32::from(window / 64).clamp(1, 4)
}

/// Measures; `tell` hears what it is at. Worlds run side by side, on as many threads as asked for; that changes no
/// number.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(
    model: &CostModel,
    sizes: &Sizes,
    threads: usize,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Measured, Trouble> {
    let pairs = sizes
        .round_trips
        .iter()
        .flat_map(|&trip| sizes.bytes.iter().map(move |&bytes| (trip, bytes)));
    let kinds = sizes
        .windows
        .iter()
        .flat_map(|&window| pairs.clone().map(move |pair| (window, pair)));
    tell("streams that lose nothing ...");
    let mut settings = Vec::new();
    for ((window, staging), (round_trip, bytes)) in kinds {
        settings.push(goodput::Setting {
            round_trip,
            bytes,
            window,
            staging,
            loss: 0,
            writes: longer(window) * sizes.losses.iter().map(|loss| loss.1).max().unwrap_or(1_000),
            worlds: 1,
        });
    }
    let lossless = side_by_side(&settings, threads, |&setting| {
        goodput::measure(model, setting, None)
    })?;
    tell("streams that lose frames ...");
    let mut lossy = Vec::new();
    for whole in &lossless {
        lossy.extend(sizes.losses.iter().map(|&(loss, writes, worlds)| {
            let setting = goodput::Setting {
                loss,
                writes: longer(whole.setting.window) * writes,
                worlds,
                ..whole.setting
            };
            (setting, whole.megabytes)
        }));
    }
    let lossy = side_by_side(&lossy, threads, |&(setting, megabytes)| {
        goodput::measure(model, setting, Some(megabytes))
    })?;
    tell("one lost frame ...");
    let mut settings = Vec::new();
    for &round_trip in sizes.round_trips {
        settings.extend(CASES.map(|case| completion::Setting {
            round_trip,
            case,
            worlds: sizes.worlds,
        }));
    }
    let completions = side_by_side(&settings, threads, |&setting| completion::measure(model, setting))?;
    tell("many to one ...");
    let settings: Vec<_> = sizes
        .incasts
        .iter()
        .map(|&(senders, round_trip, switch)| incast::Setting {
            senders,
            round_trip,
            bytes: 4096,
            link: INCAST_LINK,
            switch,
            span: sizes.incast_span,
        })
        .collect();
    let incasts = side_by_side(&settings, threads, |&setting| incast::measure(model, setting))?;
    let streams = [lossless, lossy].concat();
    let goals = verdict::goals(&streams, &completions, &incasts);
    Ok(Measured {
        streams,
        completions,
        incasts,
        goals,
    })
}

impl Measured {
    /// The goals that must be reached and are not.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        let missed = self.goals.iter().filter(|goal| goal.must && !goal.reached);
        missed.map(|goal| goal.told()).collect()
    }
}
