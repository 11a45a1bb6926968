//! One port streams writes to one node, as fast as they go, while frames of both directions are lost at random.

use super::{Trouble, with_round_trip};
use netvm::{Access, Result};
use netvm_abi::Nanos;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The round trip that the links are made for, in nanoseconds.
    pub round_trip: u64,
    /// Bytes of a write.
    pub bytes: u64,
    /// Messages that may be on their way from one node to another; a port has half of them.
    pub window: u16,
    /// Staging buffers of a card.
    pub staging: u16,
    /// Frames that are lost, of a million.
    pub loss: u32,
    /// Writes of a world.
    pub writes: u32,
    /// Worlds, each with a seed of its own.
    pub worlds: u32,
}

/// What cards have counted in all worlds of a stream.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counted {
    /// Requests that left.
    pub messages: u64,
    /// Messages and answers that left again.
    pub again: u64,
    /// Of these, those that had not been lost.
    pub in_vain: u64,
    /// Times that nothing came back, and a message left again to ask.
    pub tail_probes: u64,
    /// Times that nothing moved between two looks at the peer, which come each probe interval (100 ms).
    pub stalls: u64,
    /// Acknowledgements.
    pub acks: u64,
    /// Writes that waited for a credit.
    pub credit_stalls: u64,
    /// Writes that waited for a staging buffer.
    pub staging_stalls: u64,
    /// Links that were given up.
    pub links_lost: u64,
}

const NAMES: [&str; 9] = [
    "messages_sent",
    "retransmitted",
    "duplicates",
    "tail_probes",
    "probes_sent",
    "acks_sent",
    "credit_stalls",
    "staging_stalls",
    "links_lost",
];

/// What a stream came to.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// Which stream.
    pub setting: Setting,
    /// Megabytes in a second that arrive.
    pub megabytes: f64,
    /// The same, as a share of what arrives when nothing is lost.
    pub share: f64,
    /// What left again, as a share of the messages.
    pub again_share: f64,
    /// What the cards have counted.
    pub counted: Counted,
}

impl Stream {
    /// The share of its frames that is lost.
    #[must_use]
    pub fn loss(&self) -> f64 {
        f64::from(self.setting.loss) / 1e6
    }
}

const PORT: u16 = 1;
/// Pages on either side.
const PAGES: u64 = 16;
const PAGE: u64 = 4096;
/// What fits a descriptor travels in it.
const INLINE: u64 = 64;

#[derive(Default)]
struct Shared {
    bytes: u64,
    writes: u32,
    ready: Gate,
    over: Gate,
    took: Cell<u64>,
    counted: RefCell<Vec<u64>>,
}

/// Measures a stream. Its share is of `lossless` megabytes in a second; without, it is such a stream itself.
///
/// # Errors
/// [`Trouble`] when an operation failed: so it does when a link is lost.
pub fn measure(
    model: &CostModel,
    setting: Setting,
    lossless: Option<f64>,
) -> std::result::Result<Stream, Trouble> {
    let (mut nanos, mut sums) = (0, [0; NAMES.len()]);
    for seed in 0..setting.worlds {
        let (took, counted) = world(model, setting, u64::from(seed) + 1)?;
        nanos += took;
        for (sum, one) in sums.iter_mut().zip(counted) {
            *sum += one;
        }
    }
    let [
        messages,
        again,
        in_vain,
        tail_probes,
        stalls,
        acks,
        credit_stalls,
        staging_stalls,
        links_lost,
    ] = sums;
    let bytes = setting.bytes * u64::from(setting.writes) * u64::from(setting.worlds);
    let megabytes = bytes as f64 * 1e3 / nanos.max(1) as f64;
    Ok(Stream {
        setting,
        megabytes,
        share: megabytes / lossless.unwrap_or(megabytes),
        again_share: again as f64 / messages.max(1) as f64,
        counted: Counted {
            messages,
            again,
            in_vain,
            tail_probes,
            stalls,
            acks,
            credit_stalls,
            staging_stalls,
            links_lost,
        },
    })
}

/// How long the writes of one world take, and what is counted meanwhile.
fn world(model: &CostModel, setting: Setting, seed: u64) -> std::result::Result<(u64, Vec<u64>), Trouble> {
    let model = with_round_trip(model, Nanos(setting.round_trip));
    let shared = Rc::new(Shared {
        bytes: setting.bytes,
        writes: setting.writes,
        ..Shared::default()
    });
    let mut stand = Stand::new(&model, 2);
    stand.with_shipped_timers();
    stand.with_window(setting.window, setting.staging);
    if setting.loss > 0 {
        stand.lose_at_random(setting.loss, seed);
    }
    let at = shared.clone();
    stand.process(0, "is written to", move |actor| is_written_to(actor, &at));
    let at = shared.clone();
    stand.process(1, "streams", move |actor| streams(actor, &at));
    stand.run(4)?;
    Ok((shared.took.get(), shared.counted.take()))
}

fn is_written_to(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let pages = port.alloc(PAGES * PAGE)?;
    pages.write_from(0, &vec![0; (PAGES * PAGE) as usize])?;
    let _pages = port.export("pages", &pages, .., Access::everyone())?;
    shared.ready.pass(actor, 2);
    shared.over.pass(actor, 2);
    Ok(())
}

fn streams(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let source = port.alloc(PAGES * PAGE)?;
    source.write_from(0, &vec![7; (PAGES * PAGE) as usize])?;
    let small = vec![7; shared.bytes.min(INLINE) as usize];
    shared.ready.pass(actor, 2);
    let pages = port.import(0.into(), PORT.into(), "pages", SOON)?;
    let write = |at: u64| {
        let offset = at % PAGES * PAGE;
        if shared.bytes <= INLINE {
            pages.write(offset, &small[..]).post()
        } else {
            pages
                .write(offset, &source.slice(offset..offset + shared.bytes)?)
                .post()
        }
    };
    // All pages are there after the first round.
    for at in 0..2 * PAGES {
        write(at)?;
    }
    port.flush_remote(0.into())?;
    let (began, before) = (actor.now(), actor.counted(&NAMES));
    for at in 0..shared.writes {
        write(at.into())?;
    }
    port.flush_remote(0.into())?;
    shared.took.set(actor.now().0 - began.0);
    let after = actor.counted(&NAMES);
    *shared.counted.borrow_mut() = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    shared.over.pass(actor, 2);
    Ok(())
}
