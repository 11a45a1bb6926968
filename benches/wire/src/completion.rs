//! One operation with one lost frame: how long it takes, in round trips of its world. In the middle of a stream other
//! writes follow; at the tail nothing does.

use super::{Trouble, with_round_trip};
use netvm::{Access, Result};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::{Nanos, NotificationId, PortId};
use netvm_world::Script;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Case {
    /// A write, while another port of the node goes on writing.
    Middle,
    /// The last write, with nothing after it.
    TailWrite,
    /// The flush after the last write.
    TailFlush,
    /// Its answer.
    TailAnswer,
}

/// All cases.
pub const CASES: [Case; 4] = [Case::Middle, Case::TailWrite, Case::TailFlush, Case::TailAnswer];

impl Case {
    /// As a table names it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Middle => "write in a stream, to `flush_remote` answered",
            Self::TailWrite => "last write, to the receiver's notification",
            Self::TailFlush => "flush after the last write, to its answer",
            Self::TailAnswer => "answer of that flush, to when it comes",
        }
    }

    /// The frame that is lost. Some of the measuring port's come before it, while the round trip is measured.
    fn script(self) -> Script {
        let frames: fn(&Header) -> bool = match self {
            Self::Middle | Self::TailWrite => {
                |header| header.kind == Kind::Write && header.notification == NotificationId(SIGNAL)
            }
            Self::TailFlush => |header| header.kind == Kind::Flush && header.source_port == PortId(PORT),
            Self::TailAnswer => |header| header.kind == Kind::FlushReply,
        };
        let nth = match self {
            Self::Middle | Self::TailWrite => 0,
            // The flush after the pages have come, and those that measure the round trip.
            Self::TailFlush | Self::TailAnswer => 1 + ALONE,
        };
        Script { frames, nth }
    }
}

/// One case, in worlds that differ in when the frame is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The round trip that the links are made for, in nanoseconds.
    pub round_trip: u64,
    /// What is lost.
    pub case: Case,
    /// How many worlds.
    pub worlds: u32,
}

/// What the operation took.
#[derive(Clone, Debug, Serialize)]
pub struct Completion {
    /// Which operation.
    pub setting: Setting,
    /// A flush alone, on a wire that is idle: the round trip, in nanoseconds.
    pub round_trip_nanos: u64,
    /// The operation where nothing is lost, in round trips.
    pub lossless: f64,
    /// With the loss: the median of the worlds.
    pub median: f64,
    /// The worst of them.
    pub worst: f64,
    /// Links that were given up.
    pub links_lost: u64,
    /// What left again: one for each world, if nothing leaves in vain.
    pub again: u64,
}

const PORT: u16 = 1;
const OTHER: u16 = 2;
const SIGNAL: u32 = 5;
const BYTES: usize = 64;
/// Flushes that measure the round trip.
const ALONE: u32 = 9;
/// Writes before the last one.
const BURST: u64 = 8;
/// Writes of the stream in one round trip.
const IN_ROUND_TRIP: u64 = 10;

#[derive(Default)]
struct Shared {
    round_trip: u64,
    stream: bool,
    /// How much later than the others' this world's frame is lost, in nanoseconds.
    later: u64,
    notified: bool,
    ready: Gate,
    over: Gate,
    measured: Cell<bool>,
    alone: Cell<u64>,
    posted: Cell<Nanos>,
    took: Cell<u64>,
    counted: Cell<(u64, u64)>,
}

/// Measures a case.
///
/// # Errors
/// [`Trouble`] when an operation failed: so it does when a link is lost.
pub fn measure(model: &CostModel, setting: Setting) -> std::result::Result<Completion, Trouble> {
    let reference = world(model, setting, 0, false)?;
    let alone = reference.alone.get();
    let trips = |nanos: u64| nanos as f64 / alone.max(1) as f64;
    let (mut all, mut lost, mut again) = (Vec::new(), 0, 0);
    for at in 0..setting.worlds {
        let later = u64::from(at) * setting.round_trip / u64::from(setting.worlds);
        let one = world(model, setting, later, true)?;
        all.push(one.took.get());
        lost += one.counted.get().0;
        again += one.counted.get().1;
    }
    all.sort_unstable();
    Ok(Completion {
        setting,
        round_trip_nanos: alone,
        lossless: trips(reference.took.get()),
        median: trips(all.get(all.len() / 2).copied().unwrap_or_default()),
        worst: trips(all.last().copied().unwrap_or_default()),
        links_lost: lost,
        again,
    })
}

fn world(
    model: &CostModel,
    setting: Setting,
    later: u64,
    loses: bool,
) -> std::result::Result<Rc<Shared>, Trouble> {
    let model = with_round_trip(model, Nanos(setting.round_trip));
    let shared = Rc::new(Shared {
        round_trip: setting.round_trip,
        stream: setting.case == Case::Middle,
        later,
        notified: setting.case == Case::TailWrite,
        ..Shared::default()
    });
    let mut stand = Stand::new(&model, 2);
    stand.with_shipped_timers();
    if loses {
        stand.lose_once(setting.case.script());
    }
    let processes = if shared.stream { 3 } else { 2 };
    let at = shared.clone();
    stand.process(0, "is written to", move |actor| {
        is_written_to(actor, &at, processes)
    });
    let at = shared.clone();
    stand.process(1, "measures", move |actor| measures(actor, &at, processes));
    if shared.stream {
        let at = shared.clone();
        stand.process(1, "streams", move |actor| streams(actor, &at, processes));
    }
    stand.run(4)?;
    Ok(shared)
}

fn is_written_to(actor: &Actor, shared: &Shared, processes: usize) -> Result<()> {
    let port = actor.open(PORT)?;
    let page = port.alloc(4096)?;
    page.write_from(0, &[0; 4096])?;
    let _page = port.export("page", &page, .., Access::everyone().notify(SIGNAL..=SIGNAL))?;
    shared.ready.pass(actor, processes);
    let signal = port.notification(SIGNAL)?;
    signal.spin(SOON)?;
    if shared.notified {
        shared.took.set(actor.now().0 - shared.posted.get().0);
        shared.measured.set(true);
    }
    signal.ack()?;
    shared.over.pass(actor, processes);
    Ok(())
}

/// The port whose operation is measured.
fn measures(actor: &Actor, shared: &Shared, processes: usize) -> Result<()> {
    const NAMES: [&str; 2] = ["links_lost", "retransmitted"];
    let port = actor.open(PORT)?;
    shared.ready.pass(actor, processes);
    let page = port.import(0.into(), PORT.into(), "page", SOON)?;
    let write = |at: u64| page.write(at % 32 * BYTES as u64, &[7; BYTES][..]);
    write(0).post()?;
    port.flush_remote(0.into())?;
    let mut alone = Vec::new();
    for _ in 0..ALONE {
        // Acknowledgements of the one before are over.
        actor.rest(Nanos(500_000 + 2 * shared.round_trip));
        let began = actor.now();
        port.flush_remote(0.into())?;
        alone.push(actor.now().0 - began.0);
    }
    alone.sort_unstable();
    shared
        .alone
        .set(alone.get(alone.len() / 2).copied().unwrap_or_default());
    // The stream is in its middle, or the link is idle.
    actor.rest(Nanos(500_000 + 10 * shared.round_trip + shared.later));
    let before = actor.counted(&NAMES);
    if !shared.stream {
        for at in 0..BURST {
            write(at).post()?;
        }
    }
    shared.posted.set(actor.now());
    write(40).notify(SIGNAL).post()?;
    if shared.notified {
        actor.until(|| shared.measured.get());
    } else {
        port.flush_remote(0.into())?;
        shared.took.set(actor.now().0 - shared.posted.get().0);
    }
    shared.measured.set(true);
    // What comes again in vain comes by then.
    actor.rest(Nanos(500_000 + 4 * shared.round_trip));
    let after = actor.counted(&NAMES);
    if let ([lost, again], [lost_before, again_before]) = (&after[..], &before[..]) {
        shared.counted.set((lost - lost_before, again - again_before));
    }
    shared.over.pass(actor, processes);
    Ok(())
}

/// A port that goes on writing.
fn streams(actor: &Actor, shared: &Shared, processes: usize) -> Result<()> {
    let port = actor.open(OTHER)?;
    shared.ready.pass(actor, processes);
    let page = port.import(0.into(), PORT.into(), "page", SOON)?;
    while shared.alone.get() == 0 {
        actor.rest(Nanos(10_000));
    }
    while !shared.measured.get() {
        page.write(2048, &[8; BYTES][..]).post()?;
        actor.rest(Nanos(shared.round_trip / IN_ROUND_TRIP));
    }
    port.flush_remote(0.into())?;
    shared.over.pass(actor, processes);
    Ok(())
}
