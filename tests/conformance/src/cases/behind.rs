//! What is posted behind an operation that fails at its source, before the program knows: what asks for order has no
//! effect, the rest has (promise P4; `docs/ABI.md`, chapter 10).
//!
//! Such a failure makes no message, so the receiver knows nothing of it. The sender drives its port by hand: the
//! library would not post from memory that it does not have.

use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::raw::{Raw, Target, with};
use crate::side::{share, worse};
use netvm::abi::atomic::QueueBlock;
use netvm::abi::descriptor::{CommandFlags, Opcode};
use netvm::abi::{ByteLen, ReplySlot};
use netvm::{Modes, OpId, Port, Region, SharedConfig, SharedReceiver, Status, VirtAddr};
use std::ops::Deref;

/// All rounds are over.
const DONE: u32 = 800;
/// Event counts: of a write with data, of one without, and of one that stands alone.
const DATA: u32 = 1;
const EMPTY: u32 = 2;
const ALONE: u32 = 3;

/// What a round leaves in the receiver's memory: some words in its own page.
const PLAIN: u64 = 0;
const NOTIFYING: u64 = 8;
const ORDERED: u64 = 16;
const REGARDLESS: u64 = 24;
const ORDERED_SUM: u64 = 32;
const FREE_SUM: u64 = 40;
const TOKENS: u64 = 64;
/// The same for what is posted again, when the program knows.
const AGAIN: u64 = 256;

const WRONG: u64 = 0xBAD0_BAD0;
const RIGHT: u64 = 0x600D_600D;

/// The ways for a source to fail.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// An address that no process has.
    NoAddress,
    /// One that is not registered.
    NotRegistered,
    /// One that was.
    Gone,
}

const SOURCES: [Source; 3] = [Source::NoAddress, Source::NotRegistered, Source::Gone];

pub(super) fn lost_source(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(2)) * SOURCES.len() as u64;
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let memory = share(&port, "memory", rounds * 4096)?;
            let mut queue = SharedReceiver::open(&port, "queue", SharedConfig::default())?;
            let told = take_signal(env, &port, DONE);
            // What must not have happened must not have happened, however the sender has ended. Where links are lost, the word
            // of a failed write may be lost with them: not all that was posted need be there.
            let whole = told.is_ok() && !env.may_fail;
            let found = check(&port, &memory, &mut queue, rounds, whole);
            worse(told, found)
        },
        move |env| {
            Raw::with(env, 0, 0, |raw| {
                let all = Modes::READ | Modes::WRITE | Modes::ATOMIC | Modes::NOTIFY;
                let memory = raw.import(env, 1, 0, "memory", all)?;
                let queue = raw.import(env, 1, 0, "queue", Modes::APPEND)?;
                for round in 0..rounds {
                    let source = SOURCES[(round % SOURCES.len() as u64) as usize];
                    one_round(raw, &memory, &queue, round * 4096, source)?;
                }
                let done = raw.command(&memory, Opcode::Write, 0);
                raw.post(&with(done, CommandFlags::empty(), DONE), 0)?;
                let flush = raw.command(&memory, Opcode::FlushRemote, 0);
                raw.post(&flush, 0)?;
                raw.settle()
            })
        },
    )
}

/// What one of these operations is to be answered with.
type Answers = Vec<(&'static str, OpId, Status)>;

fn one_round(raw: &mut Raw, memory: &Target, queue: &Target, page: u64, source: Source) -> Outcome {
    let own = raw.alloc(4096)?;
    let local = match source {
        Source::NoAddress => VirtAddr(1 << 60),
        Source::NotRegistered => VirtAddr(own.address().0 ^ (1 << 44)),
        Source::Gone => {
            let gone = raw.alloc(4096)?;
            gone.free();
            gone.address()
        }
    };
    let mut lost = raw.command(memory, Opcode::Write, page + 128);
    lost.len = ByteLen(100);
    lost.local = local;
    let lost = raw.post(&lost, 0)?;
    let mut answers = every_kind(raw, memory, queue, page, WRONG, own.address())?;
    raw.settle()?;
    let told = raw.failures();
    // Where anything may fail, something else may have failed before.
    match told.as_slice() {
        [one] if one.op == lost && one.status != Status::Ok => {}
        other => {
            return Err(Trouble::Unexpected(format!(
                "operation {lost} fails at its source ({source:?}), told was {other:?}"
            )));
        }
    }
    compare(raw, &answers)?;
    raw.raise_epoch();
    answers = every_kind(raw, memory, queue, page + AGAIN, RIGHT, own.address())?;
    raw.settle()?;
    for (_, _, expected) in &mut answers {
        *expected = Status::Ok;
    }
    compare(raw, &answers)?;
    own.free();
    match raw.failures().as_slice() {
        [] => Ok(()),
        told => Err(Trouble::Unexpected(format!(
            "operations of a new epoch have failed: {told:?}"
        ))),
    }
}

fn compare(raw: &Raw, answers: &Answers) -> Outcome {
    for &(what, op, expected) in answers {
        let reply = raw.reply(op)?;
        if reply.status != expected {
            return Err(Trouble::Unexpected(format!(
                "{what} ({op}) is answered with {:?}, not {expected:?}",
                reply.status
            )));
        }
    }
    Ok(())
}

/// Posts one operation of each kind.
fn every_kind(
    raw: &mut Raw,
    memory: &Target,
    queue: &Target,
    page: u64,
    value: u64,
    own: VirtAddr,
) -> Outcome<Answers> {
    let none = CommandFlags::empty();
    let ordered = CommandFlags::ORDERED;
    let plain = raw.inline(memory, page + PLAIN, 8);
    raw.post(&plain, value)?;
    let notifying = raw.inline(memory, page + NOTIFYING, 8);
    raw.post(&with(notifying, none, DATA), value)?;
    let empty = raw.command(memory, Opcode::Write, page);
    raw.post(&with(empty, none, EMPTY), 0)?;
    let flag = raw.inline(memory, page + ORDERED, 8);
    raw.post(&with(flag, ordered, 0), value)?;
    let mut append = raw.inline(queue, 0, 8);
    append.remote = VirtAddr(0);
    raw.post(&with(append, CommandFlags::APPEND, 0), value)?;
    let alone = raw.inline(memory, page + REGARDLESS, 8);
    raw.post(
        &with(alone, ordered.union(CommandFlags::REGARDLESS), ALONE),
        value,
    )?;

    let mut answers = Answers::new();
    let atomics = [
        (
            "an ordered sum",
            Opcode::FetchAdd,
            ORDERED_SUM,
            ordered,
            Status::HeldBack,
        ),
        (
            "an ordered token",
            Opcode::SemV,
            TOKENS,
            ordered,
            Status::HeldBack,
        ),
        ("a sum", Opcode::FetchAdd, FREE_SUM, none, Status::Ok),
    ];
    for (what, opcode, at, flags, expected) in atomics {
        let mut atomic = raw.command(memory, opcode, page + at);
        atomic.operand = if opcode == Opcode::FetchAdd { value } else { 0 };
        let op = raw.post(&with(atomic, flags.union(CommandFlags::WIDE), 0), 0)?;
        answers.push((what, op, expected));
    }
    let mut read = raw.command(memory, Opcode::Read, page + PLAIN);
    (read.len, read.local) = (ByteLen(8), own);
    answers.push(("a read", raw.post(&with(read, ordered, 0), 0)?, Status::Ok));
    let mut flush = raw.command(memory, Opcode::FlushRemote, 0);
    flush.remote = VirtAddr(0);
    debug_assert!(flush.reply != ReplySlot::NONE);
    answers.push(("a flush", raw.post(&flush, 0)?, Status::Ok));
    Ok(answers)
}

/// What the receiver finds. `whole`: everything was posted.
fn check(
    port: &Port,
    memory: &impl Deref<Target = Region>,
    queue: &mut SharedReceiver,
    rounds: u64,
    whole: bool,
) -> Outcome {
    for round in 0..rounds {
        for (again, value) in [(0, WRONG), (AGAIN, RIGHT)] {
            let word = |at: u64| memory.word64(round * 4096 + again + at)?.load();
            let (held, sent) = (again == 0, |found: u64| found == value || (!whole && found == 0));
            for (what, at, acts) in [
                ("a plain write", PLAIN, true),
                ("a notifying write's data", NOTIFYING, true),
                ("a write that stands alone", REGARDLESS, true),
                ("an atomic", FREE_SUM, true),
                ("an ordered write", ORDERED, !held),
                ("an ordered atomic", ORDERED_SUM, !held),
            ] {
                let found = word(at)?;
                let fits = if acts { sent(found) } else { found == 0 };
                right!(
                    fits,
                    "round {round}: {what} has left {found:#x}, posted was {value:#x}"
                );
            }
            let mut block = [0; 4];
            for (index, block) in block.iter_mut().enumerate() {
                *block = word(TOKENS + 8 * index as u64)?;
            }
            let tokens = QueueBlock::decode(&block).value;
            let fits = if held {
                tokens == 0
            } else {
                tokens == 1 || (!whole && tokens == 0)
            };
            right!(fits, "round {round}: an ordered token left {tokens}");
        }
    }
    for (what, id, most) in [
        ("data", DATA, rounds),
        ("nothing", EMPTY, rounds),
        ("what stands alone", ALONE, 2 * rounds),
    ] {
        let count = u64::from(port.notification(id)?.pending());
        let fits = if whole { count == most } else { count <= most };
        right!(fits, "{count} notifications of {what}, {most} were to come");
    }
    let mut count = 0;
    while let Some(message) = queue.try_recv()? {
        let value = u64::from_le_bytes(message.array(0)?);
        right!(value == RIGHT, "an append behind a lost write has got a place");
        count += 1;
    }
    let fits = if whole { count == rounds } else { count <= rounds };
    right!(fits, "{count} appends of {rounds}");
    Ok(())
}
