//! Two images on two machines: node 0 writes to node 1, which answers, over a real network device. Then both have nothing
//! to do for a while, and one write more must wake them. At last frames of all kinds of nonsense come in, and the link
//! must outlast them.

use super::end::End;
use crate::arena::Arena;
use crate::wire::home::Home;
use crate::wire::virtio::{Network, Trouble};
use crate::{board, clock, log, mmu, pci};
use netvm_abi::{Nanos, NodeId, PAGE_SIZE};
use netvm_fw_common::host::{Complaint, PAGES, page};
use netvm_fw_common::memory;

/// Pages of either host: what is written from; what is written to, mapped by the first bounce; a word.
const LOCAL: u64 = 8;
const BULK: u64 = 0;
const WORD: u64 = 1;
const NOTIFICATION: u32 = 5;
/// More than a window, so that credits come back.
const ROUNDS: u32 = 200;
/// Writes to itself: more than it has buffers for.
const OWN_ROUNDS: u32 = 200;
/// So long for anything.
const PATIENCE: Nanos = Nanos::from_millis(10_000);
/// So long with nothing to do.
const IDLE: Nanos = Nanos::from_millis(4000);
/// Frames of a storm that are waited for: fewer than come.
const STORM: u64 = 1000;
/// Before the end: acknowledgements go out.
const FAREWELL: Nanos = Nanos::from_millis(200);
/// Bytes that may be taken beyond what is counted: places of pieces are rounded up.
const ROUNDING: u64 = 64 * 1024;

/// Runs the test as the node that the second boot word says.
// Not inlined: each of these has a card on its stack, and only one of them runs.
#[inline(never)]
pub(crate) fn run(arena: &mut Arena, map: &mut mmu::Map) -> Result<(), Complaint> {
    let node = NodeId(board::node());
    let other = NodeId(1 - node.0.min(1));
    let before = arena.used();
    let network =
        Network::start(arena, map, &mut pci::Bus::new(), node).map_err(|trouble| match trouble {
            Trouble::NoDevice => "there is no network device",
            Trouble::NoPlace => "the network device's registers found no place",
            Trouble::Device => "the network device cannot be used",
        })?;
    let wire = Home::new(arena, node, network);
    let mut end = End::new(arena, node, wire)?;
    account(arena.used() - before, &end)?;
    end.host.grant(other);
    end.host.map(page(LOCAL)).ok_or("no place for a page")?;
    await_that(&mut end, "the other node does not answer", |end| {
        end.host.is_linked(other)
    })?;
    log::info!("LINKED to node {other}");

    let began = clock::now();
    for round in 0..ROUNDS {
        exchange(&mut end, other, round)?;
    }
    let each = (clock::now().0 - began.0) / u64::from(ROUNDS);
    log::info!(
        "{ROUNDS} exchanges of a page and a word, there and back: {} us each",
        each / 1000
    );

    own_node(&mut end, node)?;
    // As before: the other is let in.
    end.host.grant(other);

    log::info!("IDLE BEGINS");
    let (from, slept) = (clock::now(), end.card.slept);
    end.until(from.after(IDLE), |_| false)?;
    let took = clock::now().0 - from.0;
    let awake = took.saturating_sub(end.card.slept.0 - slept.0);
    log::info!("IDLE ENDS: awake {} us of {} us", awake / 1000, took / 1000);
    if awake * 20 > took {
        return Err("awake for more than 5 % of the time with nothing to do");
    }

    // The other node may still be idle, but not for long.
    exchange(&mut end, other, ROUNDS)?;
    if !end.is_sound()
        || end.card.around.wire.outside.refused() != 0
        || end.card.around.wire.outside.lost() != 0
    {
        return Err("a counter that should be zero is not");
    }
    if end.card.nic.counters().bounced_not_found != 2 {
        return Err("not just the first write to each page bounced");
    }
    storm(&mut end)?;
    exchange(&mut end, other, ROUNDS + 1)?;
    end.until(clock::now().after(FAREWELL), |_| false)?;
    end.report();
    if end.card.nic.counters().links_lost != 0 || end.card.around.wire.outside.lost() != 0 {
        return Err("the link did not outlast the storm");
    }
    Ok(())
}

/// What a node writes to itself never sees the network, and arrives all the same.
fn own_node(end: &mut End<Home<Network>>, node: NodeId) -> Result<(), Complaint> {
    end.host.grant(node);
    await_that(end, "the node's link to itself does not come up", |end| {
        end.host.is_linked(node)
    })?;
    for round in 0..OWN_ROUNDS {
        end.host
            .post_word(node, page(LOCAL), word(round, node), NOTIFICATION + 1)?;
        await_that(end, "a write to its own node did not arrive", |end| {
            end.host.signals(NOTIFICATION + 1) == round + 1 && end.host.all_done()
        })?;
        if end.host.word(LOCAL) != Some(word(round, node)) {
            return Err("a word that was written at home holds another value");
        }
    }
    log::info!("AT HOME: {OWN_ROUNDS} writes of node {node} to itself");
    Ok(())
}

/// Frames from outside: the program that watches this test sends them now. They cost only what it takes to refuse them.
fn storm(end: &mut End<Home<Network>>) -> Result<(), Complaint> {
    let landed = end.card.nic.counters().messages_landed;
    let limit = clock::now().after(PATIENCE);
    let from = arrived(end);
    log::info!("STORM WANTED");
    if !end.until(limit, |end| arrived(end) >= from + STORM)? {
        return Err("no storm came");
    }
    let counters = end.card.nic.counters();
    log::info!(
        "STORM OVER: {} frames refused by the wire, {} by the core",
        end.card.around.wire.outside.refused(),
        counters.malformed + counters.stale_incarnation + counters.stale_greetings,
    );
    // The other node may be through it already, and its first write may have landed.
    if counters.messages_landed - landed > 2 {
        return Err("a forged message landed");
    }
    Ok(())
}

/// Frames that came in, whatever they were.
fn arrived(end: &End<Home<Network>>) -> u64 {
    end.card.nic.counters().frames + u64::from(end.card.around.wire.outside.refused())
}

/// Waits.
fn await_that(
    end: &mut End<Home<Network>>,
    complaint: Complaint,
    done: impl Fn(&End<Home<Network>>) -> bool,
) -> Result<(), Complaint> {
    let limit = clock::now().after(PATIENCE);
    end.until(limit, done)?.then_some(()).ok_or(complaint)
}

/// Node 0 writes and waits for the answer, node 1 waits and answers.
fn exchange(end: &mut End<Home<Network>>, other: NodeId, round: u32) -> Result<(), Complaint> {
    let first = other == NodeId(1);
    if first {
        write(end, other, round)?;
    }
    await_that(end, "no notification", |end| {
        end.host.signals(NOTIFICATION) > round
    })?;
    if end.host.signals(NOTIFICATION) != round + 1 {
        return Err("more notifications than writes");
    }
    if !end.host.holds(BULK, salt(round, other)) {
        return Err("the page holds other bytes");
    }
    if end.host.word(WORD) != Some(word(round, other)) {
        return Err("the word holds another value");
    }
    if !first {
        write(end, other, round)?;
    }
    await_that(end, "a write did not complete", |end| end.host.all_done())
}

/// A page, and behind it a word with a notification.
fn write(end: &mut End<Home<Network>>, other: NodeId, round: u32) -> Result<(), Complaint> {
    let own = NodeId(1 - other.0);
    end.host.fill(LOCAL, salt(round, own));
    end.host.post_page(other, page(BULK), page(LOCAL), PAGE_SIZE)?;
    end.host
        .post_word(other, page(WORD), word(round, own), NOTIFICATION)
}

const fn salt(round: u32, from: NodeId) -> u8 {
    (round as u8).wrapping_mul(2).wrapping_add(from.0 as u8)
}

const fn word(round: u32, from: NodeId) -> u64 {
    0x0123_4567_89AB_CDEF ^ ((round as u64) << 8) ^ from.0 as u64
}

/// Compares the memory that was taken with what [`memory`] says.
fn account(took: usize, end: &End<Home<Network>>) -> Result<(), Complaint> {
    let geometry = end.card.nic.config().geometry;
    for part in memory::parts(&geometry) {
        let owner = if part.on_host { "host" } else { "card" };
        log::info!("memory of a {owner}: {}, {} bytes", part.name, part.bytes);
    }
    let (card, host) = memory::totals(&geometry);
    let counted = card + host + PAGES * u64::from(PAGE_SIZE);
    log::info!("a card of {card} bytes beside a host of {host} and {PAGES} pages; {took} bytes taken");
    if (counted..counted + ROUNDING).contains(&(took as u64)) {
        Ok(())
    } else {
        Err("the card did not take as much memory as it should")
    }
}
