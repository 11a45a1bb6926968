//! The code paths whose instructions are counted. Each `probe_` is one step of a write, each `case_` calls it many
//! times with the right things around it.
//!
//! The numbers are averages over whole windows: acknowledgements, shadow counters every 32 completions and the like
//! are in them with their share.

use super::asks;
use super::miss;
use super::pair::{End, Pair, REMOTE};
use crate::callgrind::Profile;
use crate::layout::cost;
use anyhow::{Context as _, Result, ensure};
use netvm::{PortConfig, RegionSlice, RemoteSegment, Status};
use netvm_abi::Nanos;
use netvm_abi::descriptor::Opcode;
use netvm_kit::port::Card;
use netvm_nic::Frame;
use netvm_nic::platform::DmaId;
use serde::Serialize;
use std::hint::black_box;

const ROUNDS: u32 = 512;
/// A page.
const BULK: u32 = 4096;
/// A word.
const SMALL: u32 = 8;

/// What a step costs.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// A short name for tables that other programs read.
    pub name: &'static str,
    /// What it is.
    pub text: &'static str,
    /// Instructions.
    pub instructions: f64,
    /// The most that they may be, where there is a budget.
    pub budget: Option<f64>,
}

impl Step {
    /// Whether it keeps its budget. Half an instruction is the average's rounding.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.budget.is_none_or(|budget| self.instructions < budget + 0.5)
    }
}

#[inline(never)]
fn probe_post_bytes(remote: &RemoteSegment, bytes: &[u8; 8]) -> bool {
    remote.write(64, bytes).post().is_ok()
}

#[inline(never)]
fn probe_post_slice(remote: &RemoteSegment, slice: &RegionSlice) -> bool {
    remote.write(0, slice).post().is_ok()
}

#[inline(never)]
fn probe_command(end: &mut End, now: Nanos) {
    end.nic.handle_doorbells(&mut end.board, now, 16);
}

#[inline(never)]
fn probe_done(end: &mut End, now: Nanos, id: DmaId) {
    end.nic.handle_dma_done(&mut end.board, now, id, true);
}

#[inline(never)]
fn probe_frame(end: &mut End, now: Nanos, frame: &Frame) {
    end.nic.handle_frame(&mut end.board, now, frame);
}

#[inline(never)]
fn case_post_small() -> Result<()> {
    let card = Card::new();
    let (_port, remote, _) = card.open(PortConfig::default());
    for _ in 0..ROUNDS {
        ensure!(
            probe_post_bytes(black_box(&remote), black_box(&[7; 8])),
            "refused"
        );
        card.carry_out(Status::Ok);
    }
    Ok(())
}

#[inline(never)]
fn case_post_bulk() -> Result<()> {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let slice = port.alloc(u64::from(BULK))?.whole();
    for _ in 0..ROUNDS {
        ensure!(probe_post_slice(black_box(&remote), black_box(&slice)), "refused");
        card.carry_out(Status::Ok);
    }
    Ok(())
}

#[inline(never)]
fn case_small() -> Result<()> {
    carry(SMALL, 0, true)
}

#[inline(never)]
fn case_bulk() -> Result<()> {
    carry(BULK, 0, true)
}

#[inline(never)]
fn case_notified() -> Result<()> {
    carry(SMALL, 5, true)
}

#[inline(never)]
fn case_bounced() -> Result<()> {
    carry(SMALL, 0, false)
}

/// Writes again and again, each step by a probe. Inlined into the case, so that callgrind tells the cases apart.
#[inline(always)]
fn carry(len: u32, notification: u32, mapped: bool) -> Result<()> {
    let mut pair = Pair::linked()?;
    if !mapped {
        let slot = pair.destination.map(REMOTE);
        pair.destination.unmap(slot);
    }
    for _ in 0..ROUNDS {
        pair.source.post(len, notification)?;
        let now = pair.now;
        probe_command(black_box(&mut pair.source), now);
        if len > SMALL {
            let id = pair.source.dma()?;
            probe_done(black_box(&mut pair.source), now, id);
        }
        let frame = pair.source.frame()?;
        probe_frame(black_box(&mut pair.destination), now, black_box(&frame));
        // The end of a DMA is one function for both sides: one side a case.
        if len <= SMALL {
            let id = pair.destination.dma()?;
            probe_done(black_box(&mut pair.destination), now, id);
        }
        pair.settle()?;
    }
    let counters = pair.destination.nic.counters();
    let direct = if mapped { u64::from(ROUNDS) } else { 0 };
    ensure!(counters.zero_copy == direct, "not the path that was meant");
    Ok(())
}

/// A request, from its frame to its answer.
#[inline(never)]
fn probe_serve(end: &mut End, now: Nanos, frame: &Frame) {
    end.nic.handle_frame(&mut end.board, now, frame);
    while let Some((id, _)) = end.board.dmas.pop() {
        end.nic.handle_dma_done(&mut end.board, now, id, true);
    }
}

#[inline(never)]
fn case_read() -> Result<()> {
    ask(Opcode::Read)
}

#[inline(never)]
fn case_fetch_add() -> Result<()> {
    ask(Opcode::FetchAdd)
}

#[inline(never)]
fn case_enqueue() -> Result<()> {
    ask(Opcode::Enqueue)
}

#[inline(never)]
fn case_sem_v() -> Result<()> {
    ask(Opcode::SemV)
}

/// Asks again and again; what answering costs is counted.
#[inline(always)]
fn ask(opcode: Opcode) -> Result<()> {
    let mut pair = Pair::linked()?;
    for _ in 0..ROUNDS {
        pair.source.ask(opcode)?;
        let now = pair.now;
        pair.source.nic.handle_doorbells(&mut pair.source.board, now, 16);
        let frame = pair.source.frame()?;
        probe_serve(black_box(&mut pair.destination), now, black_box(&frame));
        pair.settle()?;
    }
    let counters = pair.destination.nic.counters();
    ensure!(
        counters.reads_served + counters.atomics_served == u64::from(ROUNDS),
        "not everything was answered"
    );
    Ok(())
}

/// A 4 KiB write through both cards, to its end: what is counted here and timed in
/// [`super::ratios`] says how long an instruction takes.
///
/// # Errors
/// It did not go through.
#[inline(never)]
pub fn probe_whole(pair: &mut Pair) -> Result<()> {
    pair.source.post(BULK, 0)?;
    let now = pair.now;
    pair.source.nic.handle_doorbells(&mut pair.source.board, now, 16);
    let id = pair.source.dma()?;
    pair.source
        .nic
        .handle_dma_done(&mut pair.source.board, now, id, true);
    let frame = pair.source.frame()?;
    pair.destination
        .nic
        .handle_frame(&mut pair.destination.board, now, &frame);
    let id = pair.destination.dma()?;
    pair.destination
        .nic
        .handle_dma_done(&mut pair.destination.board, now, id, true);
    pair.settle()
}

#[inline(never)]
fn case_whole() -> Result<()> {
    let mut pair = Pair::linked()?;
    for _ in 0..ROUNDS {
        probe_whole(black_box(&mut pair))?;
    }
    Ok(())
}

/// What a bulk write is reckoned to cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reckoned {
    /// Instructions of a page, posting and all steps of both cards together.
    pub page: f64,
    /// Instructions of one [`probe_whole`].
    pub whole: f64,
}

/// Counts what a bulk write is reckoned by.
///
/// # Errors
/// Callgrind did not see it.
pub fn reckon(profile: &Profile, steps: &[Step]) -> Result<Reckoned> {
    const OF_A_PAGE: [&str; 5] = [
        "post_4096",
        "command_4096",
        "fetched_4096",
        "frame_4096",
        "landed",
    ];
    let of_a_page = steps.iter().filter(|step| OF_A_PAGE.contains(&step.name));
    Ok(Reckoned {
        page: of_a_page.map(|step| step.instructions).sum(),
        whole: profile.between("case_whole", "probe_whole")?.each(),
    })
}

/// A case and its name.
type Case = (&'static str, fn() -> Result<()>);

const CASES: &[Case] = &[
    ("case_post_small", case_post_small),
    ("case_post_bulk", case_post_bulk),
    ("case_small", case_small),
    ("case_bulk", case_bulk),
    ("case_notified", case_notified),
    ("case_bounced", case_bounced),
    ("case_whole", case_whole),
    ("case_read", case_read),
    ("case_fetch_add", case_fetch_add),
    ("case_enqueue", case_enqueue),
    ("case_sem_v", case_sem_v),
    ("case_miss", miss::case_miss),
];

/// Runs the case of this name, or every case, for callgrind to watch.
///
/// # Errors
/// A case could not be set up, or there is none of this name.
pub fn run(only: Option<&str>) -> Result<()> {
    if let Some(only) = only {
        let acks: Case = ("case_acks", asks::case_acks);
        let case = CASES.iter().chain([&acks]).find(|(name, _)| *name == only);
        let (_, case) = case.with_context(|| format!("there is no case {only}"))?;
        return case();
    }
    for (_, case) in CASES {
        case()?;
    }
    asks::run()?;
    cost::run_cases()
}

/// A step that is to cost less than it does.
struct Goal {
    step: &'static str,
    instructions: f64,
    case: &'static str,
    probe: &'static str,
    /// What it spends the difference on, where it is above.
    why: &'static str,
}

const GOALS: &[Goal] = &[
    Goal {
        step: "command_8",
        instructions: 420.0,
        case: "case_small",
        probe: "probe_command",
        why: "A message that the wire may lose is kept until it has been received: a place among the copies, the time at which \
              it left and an alarm cost 68 of it (links/copies.rs, links/resend.rs, links/timers.rs).",
    },
    Goal {
        step: "fetched_4096",
        instructions: 250.0,
        case: "case_bulk",
        probe: "probe_done",
        why: "One call ends the DMA, unlocks the page, finds the message at the head of its port's pipeline, takes a credit and \
              a number, and sends. Each of these parts owns its state, so each looks its entry up: 36 instructions check \
              indices. To hand the frame to the \
              platform, which stores its header, is 27 of them.",
    },
    Goal {
        step: "frame_8",
        instructions: 260.0,
        case: "case_small",
        probe: "probe_frame",
        why: "The checks are the step: the header's words (magic, kind, length, incarnations), the window, and the capability \
              (port, holder, modes, range, secret) before the page is looked up and locked. 20 loads of the BAR and 16 \
              stores of the header, which the slot keeps for the message's end, come with them.",
    },
    Goal {
        step: "landed",
        instructions: 200.0,
        case: "case_small",
        probe: "probe_done",
        why: "",
    },
    Goal {
        step: "idle",
        instructions: 60.0,
        case: "case_acks",
        probe: "probe_idle",
        why: "One port is open. Its look costs 30, half of them loads from the BAR; the state of the turns is loaded and stored \
              for another 35, and three calls save and restore registers for 18. One word that names the ports with news \
              would save the look, but ports of different processes would all write it (promise P5).",
    },
    Goal {
        step: "serve_read",
        instructions: 750.0,
        case: "case_read",
        probe: "probe_serve",
        why: "It is two steps in one: a request that is authorised as a write is, and an answer that leaves as a message does. \
             The three things that it gives the platform (a DMA, a header, a buffer) cost 78 in the benchmark's own queues.",
    },
    Goal {
        step: "serve_fetch_add",
        instructions: 1200.0,
        case: "case_fetch_add",
        probe: "probe_serve",
        why: "",
    },
];

/// A step above its goal, and the source files that its instructions come from.
#[derive(Clone, Debug, Serialize)]
pub struct Above {
    /// The step's text.
    pub text: &'static str,
    /// Instructions that it is to cost.
    pub wanted: f64,
    /// Instructions that it costs.
    pub instructions: f64,
    /// Instructions of it by source file, most first.
    pub files: Vec<(String, f64)>,
    /// What it spends the difference on.
    pub why: &'static str,
}

/// Finds out what the steps above their goals spend their instructions on.
///
/// # Errors
/// A run under callgrind failed.
pub fn above(steps: &[Step]) -> Result<Vec<Above>> {
    let mut all = Vec::new();
    for goal in GOALS {
        let Some(step) = steps.iter().find(|step| step.name == goal.step) else {
            continue;
        };
        if step.instructions <= goal.instructions {
            continue;
        }
        let files = crate::callgrind::files_within(goal.case, goal.probe)?;
        // A case may take the step several times in a round.
        let all_of_it: u64 = files.iter().map(|&(_, cost)| cost).sum();
        let each =
            |(file, cost): (String, u64)| (file, cost as f64 * step.instructions / all_of_it.max(1) as f64);
        all.push(Above {
            text: step.text,
            wanted: goal.instructions,
            instructions: step.instructions,
            files: files.into_iter().map(each).collect(),
            why: goal.why,
        });
    }
    Ok(all)
}

/// What every step costs.
///
/// # Errors
/// Callgrind did not see one.
pub fn steps(profile: &Profile) -> Result<Vec<Step>> {
    let count = |case: &str, probe: &str| -> Result<f64> { Ok(profile.between(case, probe)?.each()) };
    let locks = cost::all(profile)?;
    let lock = |case| -> Result<f64> {
        let shipped = locks
            .iter()
            .find(|cost| cost.layout == "two rows" && cost.case == case);
        Ok(shipped
            .context("the shipped layout was not measured")?
            .instructions)
    };
    let notified = count("case_notified", "probe_done")? - count("case_small", "probe_done")?;
    let standard = count("case_fetch_add", "probe_serve")?;
    let step = |name, text, instructions, budget| Step {
        name,
        text,
        instructions,
        budget,
    };
    let mut steps = vec![
        step(
            "post_8",
            "userlib: post an 8 B write",
            count("case_post_small", "probe_post_bytes")?,
            Some(120.0),
        ),
        step(
            "post_4096",
            "userlib: post a 4 KiB write from a region",
            count("case_post_bulk", "probe_post_slice")?,
            Some(120.0),
        ),
        step(
            "command_8",
            "NIC: descriptor to frame, 8 B",
            count("case_small", "probe_command")?,
            Some(500.0),
        ),
        step(
            "command_4096",
            "NIC: descriptor to source DMA, 4 KiB",
            count("case_bulk", "probe_command")?,
            Some(765.0),
        ),
        step(
            "fetched_4096",
            "NIC: source DMA done to frame, 4 KiB",
            count("case_bulk", "probe_done")?,
            Some(456.0),
        ),
        step(
            "frame_8",
            "NIC: frame to DMA, 8 B",
            count("case_small", "probe_frame")?,
            Some(385.0),
        ),
        step(
            "frame_4096",
            "NIC: frame to DMA, 4 KiB",
            count("case_bulk", "probe_frame")?,
            Some(385.0),
        ),
        step(
            "frame_miss",
            "NIC: frame to bounce DMA, page not there",
            count("case_bounced", "probe_frame")?,
            Some(398.0),
        ),
        step(
            "landed",
            "NIC: DMA done to landed, with its share of acknowledgements",
            count("case_small", "probe_done")?,
            Some(178.0),
        ),
        step("notification", "NIC: deliver a notification", notified, None),
        step(
            "landed_miss",
            "NIC: bounce DMA done to the host's event",
            count("case_bounced", "probe_done")?,
            None,
        ),
        step(
            "serve_read",
            "NIC: request to answer, a read of 4 B",
            count("case_read", "probe_serve")?,
            Some(1000.0),
        ),
        step(
            "serve_fetch_add",
            "NIC: request to answer, fetch-and-add",
            standard,
            Some(1374.0),
        ),
        // An extended operation may cost a fifth more than a standard one.
        step(
            "serve_enqueue",
            "NIC: request to answer, enqueue",
            count("case_enqueue", "probe_serve")?,
            Some(standard * 1.2),
        ),
        step(
            "serve_sem_v",
            "NIC: request to answer, semaphore V",
            count("case_sem_v", "probe_serve")?,
            Some(standard * 1.2),
        ),
        step(
            "lock_hit",
            "page: look-up, lock, dirty unlock",
            lock(cost::Case::First)?,
            Some(60.0),
        ),
        step(
            "lock_second_row",
            "page: the same in the last place looked at",
            lock(cost::Case::Last)?,
            None,
        ),
        step(
            "lock_miss",
            "page: look-up of a page that is not there",
            lock(cost::Case::Miss)?,
            Some(60.0),
        ),
    ];
    steps.extend(asks::steps(profile)?);
    steps.extend(miss::steps(profile)?);
    Ok(steps)
}
