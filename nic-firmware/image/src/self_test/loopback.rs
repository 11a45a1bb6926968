//! Writes from card to card inside of one image: small, whole pages, to a page that is not there, with a notification.

use super::end::End;
use super::pair::Pair;
use crate::arena::Arena;
use crate::log;
use crate::wire::loopback::Loopback;
use netvm_abi::{NodeId, PAGE_SIZE};
use netvm_fw_common::host::{Complaint, page};

/// Pages of either host: what is written from, and what is written to.
const LOCAL: u64 = 8;
const MAPPED: u64 = 0;
const WORD: u64 = 1;
const AWAY: u64 = 2;
/// A notification.
const NOTIFICATION: u32 = 5;
/// Rounds in each direction: more than a window, so that credits come back.
const ROUNDS: u32 = 200;

/// Runs the test.
// Not inlined: each of these has a card on its stack, and only one of them runs.
#[inline(never)]
pub(crate) fn run(arena: &mut Arena) -> Result<(), Complaint> {
    let mut pair = Pair::linked(arena)?;
    log::info!("two linked cards; {} bytes of the arena used", arena.used());
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
        end.report();
        if !end.is_sound() || end.card.around.wire.lost() != 0 {
            return Err("a counter that should be zero is not");
        }
    }
    Ok(())
}

fn one_way(
    pair: &mut Pair,
    ends: impl Fn(&mut Pair) -> (&mut End<Loopback>, &mut End<Loopback>),
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
