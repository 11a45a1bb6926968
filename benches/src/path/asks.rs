//! Round trips part by part: what each step of a read, an atomic and a flush costs each card. The simulator's cost
//! model charges its cards by these rows.

use super::cases::Step;
use super::pair::{End, Pair};
use crate::callgrind::Profile;
use anyhow::{Result, ensure};
use netvm_abi::atomic::{Operand, QueueBlock};
use netvm_abi::descriptor::Opcode;
use netvm_abi::{Nanos, StagingId};
use netvm_nic::platform::{DmaId, Platform as _};
use netvm_nic::{Frame, Timers};
use std::hint::black_box;

const ROUNDS: u32 = 512;

// Functions that do the same would be merged into one: so each does something of its own, two instructions long.

#[inline(never)]
fn probe_asked(end: &mut End, now: Nanos) {
    black_box(1u8);
    end.nic.handle_doorbells(&mut end.board, now, 16);
}

#[inline(never)]
fn probe_request(end: &mut End, now: Nanos, frame: &Frame) {
    black_box(2u8);
    end.nic.handle_frame(&mut end.board, now, frame);
}

/// The first DMA of a request has ended.
#[inline(never)]
fn probe_fetched(end: &mut End, now: Nanos, id: DmaId) {
    black_box(3u8);
    end.nic.handle_dma_done(&mut end.board, now, id, true);
}

/// The second.
#[inline(never)]
fn probe_stored(end: &mut End, now: Nanos, id: DmaId) {
    black_box(4u8);
    end.nic.handle_dma_done(&mut end.board, now, id, true);
}

#[inline(never)]
fn probe_reply(end: &mut End, now: Nanos, frame: &Frame) {
    black_box(5u8);
    end.nic.handle_frame(&mut end.board, now, frame);
}

#[inline(never)]
fn probe_placed(end: &mut End, now: Nanos, id: DmaId) {
    black_box(6u8);
    end.nic.handle_dma_done(&mut end.board, now, id, true);
}

/// A staging buffer has left.
#[inline(never)]
fn probe_sent(end: &mut End, now: Nanos, staging: StagingId) {
    end.nic.handle_sent(&mut end.board, now, staging);
}

/// A frame that says how far the other side has got.
#[inline(never)]
fn probe_ack(end: &mut End, now: Nanos, frame: &Frame) {
    black_box(7u8);
    end.nic.handle_frame(&mut end.board, now, frame);
}

/// A look at everything, in vain.
#[inline(never)]
fn probe_idle(end: &mut End, now: Nanos) {
    end.nic.handle_host_events(&mut end.board, now, 16);
    end.nic.handle_doorbells(&mut end.board, now, 16);
    end.nic.handle_timers(&mut end.board, now);
}

/// What an operand is, so that the operation has something to do.
fn operand(opcode: Opcode) -> Operand {
    let block = |count, pending| QueueBlock {
        head: 8,
        tail: 9,
        count,
        pending,
        ..QueueBlock::default()
    };
    match opcode {
        Opcode::Enqueue | Opcode::Dequeue | Opcode::SemV => block(2, 0).encode(),
        Opcode::NewHead => block(2, 1).encode(),
        Opcode::SemP => QueueBlock::default().encode(),
        // Different from what is stored: a compare-and-swap compares with 0.
        Opcode::FetchAdd => [41, 0, 0, 0],
        _ => Operand::default(),
    }
}

/// Asks again and again, each step by a probe. Inlined into the case, so that callgrind tells the cases apart.
#[inline(always)]
fn ask(opcode: Opcode) -> Result<()> {
    let mut pair = Pair::linked()?;
    let atomic = opcode.is_atomic();
    for _ in 0..ROUNDS {
        pair.source.ask(opcode)?;
        let now = pair.now;
        probe_asked(black_box(&mut pair.source), now);
        let frame = pair.source.frame()?;
        probe_request(black_box(&mut pair.destination), now, black_box(&frame));
        if opcode != Opcode::FlushRemote {
            let id = pair.destination.dma()?;
            if atomic {
                pair.destination.board.set_operand(id.slot, &operand(opcode));
            }
            probe_fetched(black_box(&mut pair.destination), now, id);
        }
        if atomic {
            let id = pair.destination.dma()?;
            probe_stored(black_box(&mut pair.destination), now, id);
        }
        let frame = pair.destination.frame()?;
        if let Some(staging) = pair.destination.board.sent.pop() {
            probe_sent(black_box(&mut pair.destination), now, staging);
        }
        probe_reply(black_box(&mut pair.source), now, black_box(&frame));
        if opcode == Opcode::Read {
            let id = pair.source.dma()?;
            probe_placed(black_box(&mut pair.source), now, id);
        }
        pair.settle()?;
    }
    let counters = pair.destination.nic.counters();
    ensure!(
        counters.reads_served + counters.atomics_served + counters.flushes_served == u64::from(ROUNDS),
        "not everything was answered"
    );
    Ok(())
}

/// A request that finds another one at work on its page.
#[inline(never)]
fn probe_queued(end: &mut End, now: Nanos, frame: &Frame) {
    black_box(8u8);
    end.nic.handle_frame(&mut end.board, now, frame);
}

/// Its turn has come.
#[inline(never)]
fn probe_resumed(end: &mut End, now: Nanos) {
    black_box(9u8);
    end.nic.handle_doorbells(&mut end.board, now, 16);
}

/// Two atomics on one page: the second waits for the first.
#[inline(never)]
fn case_queued() -> Result<()> {
    let mut pair = Pair::linked()?;
    for _ in 0..ROUNDS {
        pair.source.ask(Opcode::FetchAdd)?;
        pair.source.ask(Opcode::FetchAdd)?;
        let now = pair.now;
        pair.source.nic.handle_doorbells(&mut pair.source.board, now, 16);
        let frames = [pair.source.frame()?, pair.source.frame()?];
        let end = &mut pair.destination;
        end.nic.handle_frame(&mut end.board, now, &frames[0]);
        probe_queued(black_box(end), now, black_box(&frames[1]));
        for _ in 0..2 {
            let id = end.dma()?;
            end.board.set_operand(id.slot, &operand(Opcode::FetchAdd));
            end.nic.handle_dma_done(&mut end.board, now, id, true);
        }
        probe_resumed(black_box(end), now);
        ensure!(end.board.dmas.len() == 1, "its turn has not come");
        pair.settle()?;
    }
    Ok(())
}

/// Writes, and carries what is left over by hand: acknowledgements.
#[inline(never)]
pub(super) fn case_acks() -> Result<()> {
    let mut pair = Pair::linked()?;
    let mut acks = 0;
    for _ in 0..ROUNDS {
        pair.source.post(8, 0)?;
        let now = pair.now;
        pair.source.nic.handle_doorbells(&mut pair.source.board, now, 16);
        let frame = pair.source.frame()?;
        pair.destination
            .nic
            .handle_frame(&mut pair.destination.board, now, &frame);
        let id = pair.destination.dma()?;
        pair.destination
            .nic
            .handle_dma_done(&mut pair.destination.board, now, id, true);
        while let Ok(frame) = pair.destination.frame() {
            probe_ack(black_box(&mut pair.source), now, black_box(&frame));
            acks += 1;
        }
        probe_idle(black_box(&mut pair.destination), now);
        probe_idle(black_box(&mut pair.source), now);
    }
    ensure!(acks > 4, "nothing was acknowledged");
    Ok(())
}

/// A frame that says that one message more is here.
#[inline(never)]
fn probe_ack_one(end: &mut End, now: Nanos, frame: &Frame) {
    black_box(10u8);
    end.nic.handle_frame(&mut end.board, now, frame);
}

/// Writes, each of which is acknowledged before the next one.
#[inline(never)]
pub(super) fn case_acks_of_one() -> Result<()> {
    let mut pair = Pair::linked()?;
    for _ in 0..ROUNDS {
        pair.source.post(8, 0)?;
        let now = pair.now;
        pair.source.nic.handle_doorbells(&mut pair.source.board, now, 16);
        let (frame, end) = (pair.source.frame()?, &mut pair.destination);
        end.nic.handle_frame(&mut end.board, now, &frame);
        let id = end.dma()?;
        end.nic.handle_dma_done(&mut end.board, now, id, true);
        // It is delayed, so that it may speak of more.
        pair.now = now.after(Timers::default().ack_delay);
        end.nic.handle_timers(&mut end.board, pair.now);
        let frame = pair.destination.frame()?;
        probe_ack_one(black_box(&mut pair.source), pair.now, black_box(&frame));
    }
    Ok(())
}

macro_rules! cases {
    ($($name:ident = $opcode:ident,)*) => {
        $(#[inline(never)]
        fn $name() -> Result<()> {
            ask(Opcode::$opcode)
        })*

        /// Runs every case, for callgrind to watch.
        ///
        /// # Errors
        /// A case could not be set up.
        pub fn run() -> Result<()> {
            $($name()?;)*
            case_queued()?;
            case_acks()?;
            case_acks_of_one()
        }
    };
}

cases! {
    case_parts_of_read = Read,
    case_parts_of_flush = FlushRemote,
    case_parts_of_fetch_add = FetchAdd,
    case_parts_of_compare_swap = CompareSwap,
    case_parts_of_swap = Swap,
    case_parts_of_enqueue = Enqueue,
    case_parts_of_dequeue = Dequeue,
    case_parts_of_new_head = NewHead,
    case_parts_of_sem_p = SemP,
    case_parts_of_sem_v = SemV,
}

/// The rows: name, what it is, case, probe.
const ROWS: [(&str, &str, &str, &str); 26] = [
    (
        "idle",
        "NIC: a look at everything, in vain",
        "case_acks",
        "probe_idle",
    ),
    (
        "ack",
        "NIC: an acknowledgement of 32 messages",
        "case_acks",
        "probe_ack",
    ),
    (
        "ack_one",
        "NIC: an acknowledgement of one message",
        "case_acks_of_one",
        "probe_ack_one",
    ),
    (
        "sent",
        "NIC: a staging buffer is free again",
        "case_parts_of_read",
        "probe_sent",
    ),
    (
        "command_read",
        "NIC: descriptor to request, a read",
        "case_parts_of_read",
        "probe_asked",
    ),
    (
        "command_flush",
        "NIC: descriptor to request, a flush",
        "case_parts_of_flush",
        "probe_asked",
    ),
    (
        "command_atomic",
        "NIC: descriptor to request, an atomic",
        "case_parts_of_fetch_add",
        "probe_asked",
    ),
    (
        "request_read",
        "NIC: request to DMA, a read",
        "case_parts_of_read",
        "probe_request",
    ),
    (
        "fetched_read",
        "NIC: DMA done to answer, a read",
        "case_parts_of_read",
        "probe_fetched",
    ),
    (
        "request_flush",
        "NIC: request to answer, a flush",
        "case_parts_of_flush",
        "probe_request",
    ),
    (
        "request_atomic",
        "NIC: request to operand's DMA, an atomic",
        "case_parts_of_fetch_add",
        "probe_request",
    ),
    (
        "queued_atomic",
        "NIC: request to its place behind another, an atomic",
        "case_queued",
        "probe_queued",
    ),
    (
        "resumed_atomic",
        "NIC: an atomic's turn to its operand's DMA",
        "case_queued",
        "probe_resumed",
    ),
    (
        "stored_atomic",
        "NIC: operand stored to answer, an atomic",
        "case_parts_of_fetch_add",
        "probe_stored",
    ),
    (
        "fetched_fetch_add",
        "NIC: operand fetched to stored, fetch-and-add",
        "case_parts_of_fetch_add",
        "probe_fetched",
    ),
    (
        "fetched_compare_swap",
        "NIC: operand fetched to stored, compare-and-swap",
        "case_parts_of_compare_swap",
        "probe_fetched",
    ),
    (
        "fetched_swap",
        "NIC: operand fetched to stored, swap",
        "case_parts_of_swap",
        "probe_fetched",
    ),
    (
        "fetched_enqueue",
        "NIC: operand fetched to stored, enqueue",
        "case_parts_of_enqueue",
        "probe_fetched",
    ),
    (
        "fetched_dequeue",
        "NIC: operand fetched to stored, dequeue",
        "case_parts_of_dequeue",
        "probe_fetched",
    ),
    (
        "fetched_new_head",
        "NIC: operand fetched to stored, newhead",
        "case_parts_of_new_head",
        "probe_fetched",
    ),
    (
        "fetched_sem_p",
        "NIC: operand fetched to stored, semP",
        "case_parts_of_sem_p",
        "probe_fetched",
    ),
    (
        "fetched_sem_v",
        "NIC: operand fetched to stored, semV",
        "case_parts_of_sem_v",
        "probe_fetched",
    ),
    (
        "reply_read",
        "NIC: answer to DMA, a read",
        "case_parts_of_read",
        "probe_reply",
    ),
    (
        "placed_read",
        "NIC: DMA done to the caller, a read",
        "case_parts_of_read",
        "probe_placed",
    ),
    (
        "reply_flush",
        "NIC: answer to the caller, a flush",
        "case_parts_of_flush",
        "probe_reply",
    ),
    (
        "reply_atomic",
        "NIC: answer to the caller, an atomic",
        "case_parts_of_fetch_add",
        "probe_reply",
    ),
];

/// What some of them may cost at most.
const BUDGETS: [(&str, f64); 1] = [("idle", 121.0)];

/// What every part costs.
///
/// # Errors
/// Callgrind did not see one.
pub fn steps(profile: &Profile) -> Result<Vec<Step>> {
    ROWS.iter()
        .map(|&(name, text, case, probe)| {
            Ok(Step {
                name,
                text,
                instructions: profile.between(case, probe)?.each(),
                budget: BUDGETS
                    .iter()
                    .find(|&&(row, _)| row == name)
                    .map(|&(_, budget)| budget),
            })
        })
        .collect()
}
