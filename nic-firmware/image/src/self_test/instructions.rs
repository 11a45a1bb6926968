//! Counts the instructions of a write, step by step: the same steps as `cargo xtask bench path` counts on x86-64.
//!
//! Each number is a sum over many writes, so that acknowledgements and shadow counters are in it with their share.
//! `cargo xtask firmware --icount` reads the lines that this writes.

use super::end::End as AnyEnd;
use super::pair::Pair;
use crate::arena::Arena;
use crate::count::Counter;
use crate::log;
use crate::wire::loopback::Loopback;
use core::hint::black_box;
use core::sync::atomic::AtomicU32;
use netvm_abi::page_lock::{self, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageTable, ROW_WORDS};
use netvm_abi::wire::{Header, Kind, OwnHeader};
use netvm_abi::{Nanos, NodeId, PAGE_SIZE, Ppn, SegmentId, StagingId, Vpn};
use netvm_fw_common::host::{Complaint, PORT, page};
use netvm_nic::Frame;
use netvm_nic::platform::{DmaId, Payload, Platform};
use netvm_platform::Device;

type End = AnyEnd<Loopback>;

const ROUNDS: u32 = 512;
/// Commands that are posted before the loop runs, in the counts of whole commands.
const BATCH: u32 = 16;
/// The pages that are written to and from.
const REMOTE: u64 = 0;
const LOCAL: u64 = 8;
const OTHER: NodeId = NodeId(1);

/// What is written.
#[derive(Clone, Copy)]
struct Case {
    bulk: bool,
    notification: u32,
    mapped: bool,
}

const SMALL: Case = Case {
    bulk: false,
    notification: 0,
    mapped: true,
};
const BULK: Case = Case { bulk: true, ..SMALL };
const NOTIFIED: Case = Case {
    notification: 5,
    ..SMALL
};
const MISSED: Case = Case {
    mapped: false,
    ..SMALL
};

/// Instructions of the steps of one case.
#[derive(Default)]
struct Steps {
    command: u32,
    fetched: u32,
    frame: u32,
    landed: u32,
}

/// Counts everything.
// Not inlined: each of these has a card on its stack, and only one of them runs.
#[inline(never)]
pub(crate) fn run(arena: &mut Arena) -> Result<(), Complaint> {
    let counter =
        Counter::start().ok_or("the processor does not count instructions: start QEMU with -icount")?;
    if let Err((counted, expected)) = counter.calibrate() {
        log::error!("a loop of {expected} instructions counted as {counted}");
        return Err("the counter does not count instructions");
    }
    log::info!("CALIBRATED: loops of 2, 2000 and 200000 instructions differ by just that");
    locks(&counter, arena)?;
    let mut pair = Pair::linked(arena)?;
    pair.source.host.map(page(LOCAL)).ok_or("no place for a page")?;
    pair.destination.host.maps = false;
    let missed = steps(&counter, &mut pair, MISSED)?;
    pair.destination
        .host
        .map(page(REMOTE))
        .ok_or("no place for a page")?;
    let small = steps(&counter, &mut pair, SMALL)?;
    let notified = steps(&counter, &mut pair, NOTIFIED)?;
    let bulk = steps(&counter, &mut pair, BULK)?;
    say("command_8", small.command, ROUNDS);
    say("command_4096", bulk.command, ROUNDS);
    say("fetched_4096", bulk.fetched, ROUNDS);
    say("frame_8", small.frame, ROUNDS);
    say("frame_4096", bulk.frame, ROUNDS);
    say("frame_miss", missed.frame, ROUNDS);
    say("landed", small.landed, ROUNDS);
    say(
        "notification",
        notified.landed.saturating_sub(small.landed),
        ROUNDS,
    );
    say("landed_miss", missed.landed, ROUNDS);
    surroundings(&counter, &mut pair);
    for (name, case) in [("whole_8", SMALL), ("whole_4096", BULK)] {
        say(name, whole(&counter, &mut pair, case)?, ROUNDS);
    }
    let (_, idle) = counter.of(|| pair.source.card.pass());
    say("idle_pass", idle, 1);
    Ok(())
}

fn say(name: &str, instructions: u32, rounds: u32) {
    log::info!("COUNT {name} {instructions} {rounds}");
}

fn post(end: &mut End, case: Case) -> Result<(), Complaint> {
    if case.bulk {
        end.host.post_page(OTHER, page(REMOTE), page(LOCAL), PAGE_SIZE)
    } else {
        end.host.post_word(OTHER, page(REMOTE), 7, case.notification)
    }
}

#[inline(never)]
fn command(end: &mut End, now: Nanos) {
    end.card.nic.handle_doorbells(&mut end.card.around, now, 16);
}

#[inline(never)]
fn done(end: &mut End, now: Nanos, id: DmaId) {
    end.card.nic.handle_dma_done(&mut end.card.around, now, id, true);
}

#[inline(never)]
fn frame(end: &mut End, now: Nanos, frame: &Frame) {
    end.card.nic.handle_frame(&mut end.card.around, now, frame);
}

/// The steps of a write, each by itself.
fn steps(counter: &Counter, pair: &mut Pair, case: Case) -> Result<Steps, Complaint> {
    let mut sum = Steps::default();
    let before = pair.destination.card.nic.counters().zero_copy;
    for _ in 0..ROUNDS {
        post(&mut pair.source, case)?;
        let now = crate::clock::now();
        sum.command += counter.of(|| command(black_box(&mut pair.source), now)).1;
        if case.bulk {
            let end = pair.source.card.around.poll_dma().ok_or("no DMA was started")?;
            sum.fetched += counter.of(|| done(black_box(&mut pair.source), now, end.id)).1;
        }
        let arrived = pair
            .destination
            .card
            .around
            .poll_frame()
            .ok_or("no message arrived")?;
        sum.frame += counter
            .of(|| frame(black_box(&mut pair.destination), now, black_box(&arrived)))
            .1;
        let end = pair
            .destination
            .card
            .around
            .poll_dma()
            .ok_or("no DMA was started")?;
        sum.landed += counter
            .of(|| done(black_box(&mut pair.destination), now, end.id))
            .1;
        pair.settle()?;
    }
    let direct = pair.destination.card.nic.counters().zero_copy - before;
    if direct != if case.mapped { u64::from(ROUNDS) } else { 0 } {
        return Err("not the path that was meant");
    }
    Ok(sum)
}

/// Whole writes through the loops of both cards, from the doorbell to the landed bytes.
fn whole(counter: &Counter, pair: &mut Pair, case: Case) -> Result<u32, Complaint> {
    let mut sum = 0;
    for _ in 0..ROUNDS / BATCH {
        for _ in 0..BATCH {
            post(&mut pair.source, case)?;
        }
        let wanted = pair.destination.card.nic.counters().messages_landed + u64::from(BATCH);
        while pair.destination.card.nic.counters().messages_landed < wanted {
            sum += counter.of(|| black_box(&mut pair.source).card.pass()).1;
            sum += counter.of(|| black_box(&mut pair.destination).card.pass()).1;
        }
        pair.settle()?;
    }
    Ok(sum)
}

/// What this image's own part of the steps is: a message handed to the loopback, the clock.
fn surroundings(counter: &Counter, pair: &mut Pair) {
    let around = &mut pair.source.card.around;
    let mut header = Header::new(Kind::Probe, NodeId(0), OTHER);
    for (name, payload, len) in [
        ("send_8", Payload::Inline(&[1, 2]), 8),
        ("send_4096", Payload::Staging(StagingId(0)), PAGE_SIZE as u16),
    ] {
        header.len = len;
        let message = OwnHeader::new(&header);
        let ((), sent) = counter.of(|| black_box(&mut *around).transmit(black_box(&message), payload));
        // The staging buffer is the core's, and free.
        let _ = around.poll_sent();
        say(name, sent, 1);
    }
    let (_, clock) = counter.of(|| black_box(black_box(&mut *around).now()));
    say("clock", clock, 1);
}

#[inline(never)]
fn visit(table: &PageTable, words: &[AtomicU32], pages: &[Vpn]) -> u64 {
    let mut sum = 0;
    for &vpn in pages {
        if let Ok(held) = page_lock::lock_page(words, table, vpn, true) {
            sum ^= held.ppn.0;
            page_lock::unlock_page(words, table, held.slot, Used::Written);
        }
    }
    sum
}

/// Look-up, lock and dirty unlock: in the first place looked at, in the last, of a page that is not there.
fn locks(counter: &Counter, arena: &mut Arena) -> Result<(), Complaint> {
    const ROWS: u32 = 16;
    const PAGES: usize = 64;
    let words: &[AtomicU32] = arena.slice((ROWS * ROW_WORDS) as usize, 64, |_| AtomicU32::new(0));
    let table = PageTable::new(netvm_abi::WordIndex(0), ROWS, HashKey([0x243F_6A88_85A3_08D3, 7]));
    let any = |number: u64| Vpn::new(PORT, 0x7F00_1234 + number);
    let rows = table.rows_of(any(0));
    if rows[0] == rows[1] {
        return Err("the page's two rows are one");
    }
    // Pages of the same two rows, found by trying; the fifth has no place left.
    let mut same = (0..1_000_000).map(any).filter(|&vpn| table.rows_of(vpn) == rows);
    for slot in table.places(any(0)) {
        let entry = PageEntry {
            vpn: same.next().ok_or("no page of the same rows")?,
            ppn: Ppn(u64::from(slot.0)),
            segment: SegmentId(5),
            writable: true,
        };
        page_lock::publish(words, &table, slot, &entry);
        let name = match slot {
            slot if slot == table.places(any(0))[0] => "lock_hit",
            slot if slot == table.places(any(0))[3] => "lock_second_row",
            _ => continue,
        };
        let pages = [entry.vpn; PAGES];
        let (_, counted) = counter.of(|| black_box(visit(black_box(&table), black_box(words), &pages)));
        say(name, counted, PAGES as u32);
    }
    let pages = [same.next().ok_or("no page of the same rows")?; PAGES];
    let (_, counted) = counter.of(|| black_box(visit(black_box(&table), black_box(words), &pages)));
    say("lock_miss", counted, PAGES as u32);
    Ok(())
}
