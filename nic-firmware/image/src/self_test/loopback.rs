//! Writes from card to card inside of one image: small, whole pages, to a page that is not there, with a notification.

use super::host::{Complaint, PAGES, page};
use super::pair::{End, Pair};
use crate::arena::Arena;
use crate::{log, memory};
use netvm_abi::{NodeId, PAGE_SIZE};

/// Pages of either host: what is written from, and what is written to.
const LOCAL: u64 = 8;
const MAPPED: u64 = 0;
const WORD: u64 = 1;
const AWAY: u64 = 2;
/// A notification.
const NOTIFICATION: u32 = 5;
/// So often in each direction: more than a window, so that credits come back.
const ROUNDS: u32 = 200;

/// Bytes that may be taken beyond what is counted.
const ROUNDING: u64 = 128 * 1024;

/// Runs the test.
pub(crate) fn run(arena: &mut Arena) -> Result<(), Complaint> {
    let before = arena.used();
    let mut pair = Pair::linked(arena)?;
    let geometry = pair.source.card.nic.config().geometry;
    let (card, host) = memory::totals(&geometry);
    for part in memory::parts(&geometry) {
        let owner = if part.on_host { "host" } else { "card" };
        log::info!("memory of a {owner}: {}, {} bytes", part.name, part.bytes);
    }
    let took = (arena.used() - before) as u64;
    log::info!(
        "two linked cards of {card} bytes each, beside hosts of {host} and {PAGES} pages; {took} bytes taken"
    );
    // What is not in the count: places of pieces are rounded up, and the hub has lists.
    let counted = 2 * (card + host + PAGES * u64::from(PAGE_SIZE));
    if !(counted..counted + ROUNDING).contains(&took) {
        return Err("the cards did not take as much memory as they should");
    }
    one_way(
        &mut pair,
        |pair| (&mut pair.source, &mut pair.destination),
        NodeId(1),
    )?;
    one_way(
        &mut pair,
        |pair| (&mut pair.destination, &mut pair.source),
        NodeId(0),
    )?;
    for end in [&pair.source, &pair.destination] {
        let counters = end.card.nic.counters();
        let sound = counters.malformed == 0
            && counters.messages_failed == 0
            && counters.dropped == 0
            && counters.dma_failed == 0
            && counters.events_lost == 0
            && end.card.around.wire.lost() == 0
            && end.card.around.overflowed == 0;
        if !sound {
            return Err("a counter that should be zero is not");
        }
        log::info!(
            "node {}: {} messages sent, {} landed, {} zero-copy, {} bounced, {} notifications, {} interrupts",
            end.card.nic.config().node,
            counters.messages_sent,
            counters.messages_landed,
            counters.zero_copy,
            counters.bounced_not_found,
            counters.notifications_delivered,
            end.card.around.interrupts,
        );
    }
    Ok(())
}

fn one_way(
    pair: &mut Pair,
    ends: impl Fn(&mut Pair) -> (&mut End, &mut End),
    to: NodeId,
) -> Result<(), Complaint> {
    let (from, into) = ends(pair);
    from.host.map(page(LOCAL)).ok_or("no place for a page")?;
    into.host.map(page(MAPPED)).ok_or("no place for a page")?;
    into.host.map(page(WORD)).ok_or("no place for a page")?;

    for round in 0..ROUNDS {
        let salt = (round as u8).wrapping_add(to.0 as u8);
        let (from, into) = ends(pair);
        from.host.fill(LOCAL, salt);
        let bounced = into.card.nic.counters().bounced_not_found;
        // A page away in the first round is found in all later ones.
        for remote in [MAPPED, AWAY] {
            from.host.post_page(to, page(remote), page(LOCAL), PAGE_SIZE)?;
        }
        let value = 0x0123_4567_89AB_CDEF ^ u64::from(round);
        from.host.post_word(to, page(WORD), value, NOTIFICATION)?;
        pair.settle()?;
        let (from, into) = ends(pair);
        if !into.host.holds(MAPPED, salt) {
            return Err("a page that was mapped holds other bytes");
        }
        if !into.host.holds(AWAY, salt) {
            return Err("a page that was bounced holds other bytes");
        }
        if into.host.word(WORD) != Some(value) {
            return Err("a word holds another value");
        }
        if into.host.signals(NOTIFICATION) != round + 1 {
            return Err("not one notification for each write that had one");
        }
        if !from.host.all_done() {
            return Err("a write did not complete");
        }
        let expected = u64::from(round == 0);
        if into.card.nic.counters().bounced_not_found - bounced != expected {
            return Err("not just the first write to a page that was away bounced");
        }
    }
    let (_, into) = ends(pair);
    if into.host.bounces != 1 {
        return Err("the host did not copy just one message");
    }
    Ok(())
}
