//! Many nodes write to one, whose way from the switch is as fast as that of each of them. What the switch has no room for is
//! lost; nothing else is.

use super::{Trouble, with_round_trip};
use netvm::{Access, Result};
use netvm_abi::Nanos;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One incast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Nodes that stream.
    pub senders: u16,
    /// The round trip that the links are made for, in nanoseconds.
    pub round_trip: u64,
    /// Bytes of a write.
    pub bytes: u64,
    /// Bytes in a microsecond that a link carries.
    pub link: u64,
    /// Bytes that the switch keeps for a node.
    pub switch: u64,
    /// How long is measured, in nanoseconds.
    pub span: u64,
}

/// What an incast came to.
#[derive(Clone, Debug, Serialize)]
pub struct Incast {
    /// Which.
    pub setting: Setting,
    /// Megabytes in a second that arrive.
    pub megabytes: f64,
    /// The same, as a share of what the link carries.
    pub share: f64,
    /// Jain's index of the senders' shares: 1 where they are equal.
    pub jain: f64,
    /// Nanoseconds that a small write of another node takes, with its `flush_remote`, while all others stream: half of the
    /// writes take less.
    pub small_median: u64,
    /// The same of 99 in 100.
    pub small_slow: u64,
    /// What it takes when no other node streams.
    pub small_alone: u64,
    /// What left again, as a share of the messages.
    pub again_share: f64,
    /// Links that were given up.
    pub links_lost: u64,
}

const PORT: u16 = 1;
/// Pages that each node writes to.
const PAGES: u64 = 4;
const PAGE: u64 = 4096;
/// Small writes while no other node streams.
const ALONE: u32 = 50;
/// How long all stream before it is measured.
const BEFORE: Nanos = Nanos::from_millis(10);
const NAMES: [&str; 3] = ["messages_sent", "retransmitted", "links_lost"];

#[derive(Default)]
struct Shared {
    ready: Gate,
    alone: Gate,
    over: Gate,
    /// From when to when it is measured.
    span: Cell<(Nanos, Nanos)>,
    writes: RefCell<Vec<u64>>,
    small: RefCell<Vec<u64>>,
    small_alone: RefCell<Vec<u64>>,
    counted: RefCell<Vec<u64>>,
}

/// Measures one.
///
/// # Errors
/// [`Trouble`] when an operation failed: so it does when a link is lost.
pub fn measure(model: &CostModel, setting: Setting) -> std::result::Result<Incast, Trouble> {
    let model = CostModel {
        link_bytes_per_micro: setting.link,
        ..with_round_trip(model, Nanos(setting.round_trip))
    };
    let shared = Rc::new(Shared::default());
    // The target, the senders, and the node of the small writes.
    let nodes = setting.senders + 2;
    let mut stand = Stand::new(&model, nodes);
    stand.with_shipped_timers();
    stand.with_switch(setting.switch);
    let at = shared.clone();
    stand.process(0, "is written to", move |actor| is_written_to(actor, nodes, &at));
    for node in 1..=setting.senders {
        let at = shared.clone();
        stand.process(node, "streams", move |actor| streams(actor, setting, &at));
    }
    let at = shared.clone();
    stand.process(nodes - 1, "writes little", move |actor| {
        writes_little(actor, setting, &at)
    });
    stand.run(nodes * 2)?;

    let writes = shared.writes.take();
    let bytes = writes.iter().sum::<u64>() * setting.bytes;
    let (from, to) = shared.span.get();
    let megabytes = bytes as f64 * 1e3 / (to.0 - from.0).max(1) as f64;
    let (mut small, mut alone) = (shared.small.take(), shared.small_alone.take());
    small.sort_unstable();
    alone.sort_unstable();
    let counted = shared.counted.take();
    Ok(Incast {
        setting,
        megabytes,
        share: megabytes / setting.link as f64,
        jain: jain(&writes),
        small_median: part(&small, 50),
        small_slow: part(&small, 99),
        small_alone: part(&alone, 50),
        again_share: counted[1] as f64 / counted[0].max(1) as f64,
        links_lost: counted[2],
    })
}

impl Incast {
    /// What 99 in 100 small writes do not exceed, in times of what one takes alone.
    #[must_use]
    pub fn slowness(&self) -> f64 {
        self.small_slow as f64 / self.small_alone.max(1) as f64
    }
}

/// Jain's index of fairness.
fn jain(shares: &[u64]) -> f64 {
    let sum = shares.iter().sum::<u64>() as f64;
    let squares = shares.iter().map(|&share| (share as f64).powi(2)).sum::<f64>();
    sum * sum / (shares.len() as f64 * squares).max(1.0)
}

/// The value that so many in a hundred do not exceed.
fn part(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0)
}

fn is_written_to(actor: &Actor, nodes: u16, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let bytes = u64::from(nodes) * PAGES * PAGE;
    let pages = port.alloc(bytes)?;
    pages.write_from(0, &vec![0; bytes as usize])?;
    let _pages = port.export("pages", &pages, .., Access::everyone())?;
    shared.ready.pass(actor, nodes.into());
    shared.over.pass(actor, nodes.into());
    Ok(())
}

/// Where the pages of a node begin.
fn own_pages(actor: &Actor) -> u64 {
    u64::from(actor.id.0) * PAGES * PAGE
}

fn streams(actor: &Actor, setting: Setting, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let source = port.alloc(PAGES * PAGE)?;
    source.write_from(0, &vec![7; (PAGES * PAGE) as usize])?;
    shared.ready.pass(actor, usize::from(setting.senders) + 2);
    let pages = port.import(0.into(), PORT.into(), "pages", SOON)?;
    shared.alone.pass(actor, usize::from(setting.senders) + 1);
    let (mut writes, mut offset, own) = (0, 0, own_pages(actor));
    loop {
        let (from, to) = shared.span.get();
        let now = actor.now();
        if now >= to {
            break;
        }
        pages
            .write(own + offset, &source.slice(offset..offset + setting.bytes)?)
            .post()?;
        offset = (offset + PAGE) % (PAGES * PAGE);
        writes += u64::from(now >= from);
    }
    shared.writes.borrow_mut().push(writes);
    shared.over.pass(actor, usize::from(setting.senders) + 2);
    Ok(())
}

fn writes_little(actor: &Actor, setting: Setting, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    shared.ready.pass(actor, usize::from(setting.senders) + 2);
    let pages = port.import(0.into(), PORT.into(), "pages", SOON)?;
    let own = own_pages(actor);
    let took = || {
        let began = actor.now();
        pages.write(own, &7u64.to_le_bytes()[..]).post()?;
        port.flush_remote(0.into())?;
        Result::Ok(actor.now().0 - began.0)
    };
    for _ in 0..ALONE {
        let took = took()?;
        shared.small_alone.borrow_mut().push(took);
    }
    let from = actor.now().after(BEFORE);
    shared.span.set((from, from.after(Nanos(setting.span))));
    shared.alone.pass(actor, usize::from(setting.senders) + 1);
    actor.until(|| actor.now() >= from);
    let before = actor.counted(&NAMES);
    while actor.now() < shared.span.get().1 {
        let took = took()?;
        shared.small.borrow_mut().push(took);
    }
    let after = actor.counted(&NAMES);
    *shared.counted.borrow_mut() = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    shared.over.pass(actor, usize::from(setting.senders) + 2);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_of_many_is_not() {
        assert!((jain(&[5; 32]) - 1.0).abs() < 1e-9);
        let mut one = [0; 32];
        one[3] = 7;
        assert!((jain(&one) - 1.0 / 32.0).abs() < 1e-9);
    }

    #[test]
    fn a_part_of_few_is_the_slowest() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!([part(&sorted, 50), part(&sorted, 99)], [100, 198]);
        assert_eq!([part(&[9], 99), part(&[], 99)], [9, 0]);
    }
}
