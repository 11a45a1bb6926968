//! Atomics: no increment lost, from any node and wherever its page is.

use crate::env::Env;
use crate::outcome::{Outcome, fails, right};
use crate::side::{share, worse};
use netvm::abi::atomic::{Atomic, EMPTY, NOBODY, QueueBlock};
use netvm::abi::descriptor::Opcode;
use netvm::{Access, Error, Modes, Status};

const DONE: u32 = 800;

/// A 64-bit operation.
const fn wide(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: true,
        operand,
        compare,
    }
}

/// An operation on a queue block.
const fn extended(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: false,
        operand,
        compare,
    }
}

pub(super) fn atomic_words(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let memory = side.share("words", 3 * 4096)?;
            let word = memory.word64(4096)?;
            word.store(5)?;
            let go = side.import_peer("go")?;
            go.notify(1)?;
            side.take_signal(DONE)?;
            // What the card has written is there for the processor, and nothing beside it.
            let seen = [word.load()?, memory.word64(4104)?.load()?];
            right!(seen == [u64::MAX, 0], "the words are {seen:x?}");
            let narrow = [memory.word32(8188)?.load()?, memory.word32(8184)?.load()?];
            right!(narrow == [1, 0], "the narrow words are {narrow:x?}");
            Ok(())
        },
        |side| {
            let _go = side.share("go", 4096)?;
            let memory = side.import_peer("words")?;
            side.take_signal(1)?;
            let word = memory.word64(4096)?;
            let old = [
                word.fetch_add(2)?,
                word.fetch_sub(7)?,
                word.swap(9)?,
                word.compare_swap(8, 1)?,
                word.compare_swap(9, u64::MAX)?,
            ];
            right!(old == [5, 7, 0, 9, 9], "old values {old:?}");
            let narrow = memory.word32(8188)?;
            let set = [narrow.test_and_set()?, narrow.test_and_set()?];
            right!(set == [false, true], "test and set: {set:?}");
            let wraps = [narrow.fetch_sub(2)?, narrow.fetch_add(2)?];
            right!(wraps == [1, u32::MAX], "wrapping: {wraps:?}");
            // The same operations as ones that are posted, or called behind what was written before.
            let exchanged = [
                narrow.exchange(7).ordered().call()?,
                narrow.exchange_if(8, 5).call()?,
                narrow.exchange_if(7, 2).ordered().call()?,
                narrow.sub(1).call()?,
            ];
            right!(exchanged == [1, 7, 7, 2], "old narrow values {exchanged:?}");
            // Without order, the second might be carried out first.
            let pending = [
                word.exchange(3).post()?,
                word.exchange_if(3, u64::MAX).ordered().post()?,
            ];
            for (pending, old) in pending.into_iter().zip([u64::MAX, 3]) {
                let value = pending.wait()?.value;
                right!(
                    value == old,
                    "a posted exchange is answered by {value}, not by {old}"
                );
            }
            memory.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn atomic_refusals(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let memory = side.alloc(4096)?;
            let all = Access::everyone().notify(1..=895);
            let segment = side.export("all", &memory, .., all)?;
            let _plain = side.export(
                "no atomics",
                &memory,
                ..,
                Access::everyone().modes(Modes::READ | Modes::WRITE),
            )?;
            side.take_signal(1)?;
            segment.unexport()?;
            let gone = side.import_peer("gone")?;
            gone.notify(1)?;
            let _lasts = side.share("lasts", 4096)?;
            side.take_signal(DONE)
        },
        |side| {
            let _gone = side.share("gone", 4096)?;
            let all = side.import_peer("all")?;
            let plain = side.import_peer("no atomics")?;
            let swap = wide(Opcode::Swap, 1, 0);
            let misaligned = all.atomic(4, swap).call();
            right!(
                matches!(misaligned, Err(Error::Misaligned { .. })),
                "{misaligned:?}"
            );
            let misaligned = all.atomic(16, extended(Opcode::SemV, 0, 0)).call();
            right!(
                matches!(misaligned, Err(Error::Misaligned { .. })),
                "{misaligned:?}"
            );
            let outside = all.atomic(4096, swap).call();
            right!(matches!(outside, Err(Error::OutOfRange { .. })), "{outside:?}");
            let refused = plain.word64(0).map(drop);
            right!(matches!(refused, Err(Error::ModeRefused { .. })), "{refused:?}");
            all.notify(1)?;
            side.take_signal(1)?;
            // The failure of an atomic without a waiter is reported later, that of a waiting caller at once.
            let word = all.atomic(8, swap);
            let failed = word.call();
            right!(failed.is_err(), "an atomic on what was revoked: {failed:?}");
            fails(failed, "an atomic on what was revoked", |error| {
                *error == Error::Released || error.status() == Some(Status::CapabilityRefused)
            })?;
            let lasts = side.import_peer("lasts")?;
            lasts.notify(DONE)?;
            side.flush_peer()
        },
    )
}

/// All nodes count on one word, some operations at a time; each value is seen once.
pub(super) fn atomic_counter(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(30));
    let counters = env.nodes.len() as u64;
    let home = move |env: &Env| -> Outcome {
        let port = env.open(1, 0)?;
        let memory = share(&port, "counter", 4 * 4096)?;
        let word = memory.word64(2 * 4096)?;
        let deadline = env.deadline(&port);
        // Thrown out again and again while others count on it.
        while word.load()? < counters * rounds {
            env.pressure(1);
            crate::env::pass(&port, std::time::Duration::from_micros(200))?;
            deadline.check()?;
        }
        let sum = word.load()?;
        right!(sum == counters * rounds, "counted {sum} of {}", counters * rounds);
        crate::env::take_signals(env, &port, DONE, counters as u32)
    };
    let count = move |env: &Env, node: usize| -> Outcome {
        let port = env.open(node, 1)?;
        let memory = env.import(&port, 1, 0, "counter")?;
        let mut last = None;
        let mut left = rounds;
        while left > 0 {
            let batch = left.min(5);
            let mut pending = Vec::new();
            for _ in 0..batch {
                pending.push(memory.atomic(2 * 4096, wide(Opcode::FetchAdd, 1, 0)).post()?);
            }
            let mut seen = Vec::new();
            for one in pending {
                seen.push(one.wait()?.value);
            }
            seen.sort_unstable();
            right!(
                seen.is_sorted_by(|a, b| a < b) && last.is_none_or(|last| last < seen[0]),
                "values seen twice, or going back: {seen:?} after {last:?}"
            );
            last = seen.last().copied();
            left -= batch;
        }
        memory.notify(DONE)?;
        Ok(port.flush_remote(memory.node())?)
    };
    let server = env.spawn(1, "home", home);
    let mut others = Vec::new();
    for node in 1..env.nodes.len() {
        others.push(env.spawn(node, "counter", move |env| count(env, node)));
    }
    let mut end = count(env, 0);
    for other in others {
        end = worse(end, other.join());
    }
    worse(end, server.join())
}

/// The extended operations on one block, which moves out of memory between them.
pub(super) fn queue_block(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let memory = side.share("block", 2 * 4096)?;
            side.take_signal(1)?;
            side.env.pressure(1);
            let mut bytes = [0; 32];
            memory.read_into(4096 + 64, &mut bytes)?;
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
            let block = QueueBlock::decode(&words);
            let expected = QueueBlock {
                tail: 12,
                value: 1,
                ..QueueBlock::default()
            };
            right!(block == expected, "{block:?}");
            Ok(())
        },
        |side| {
            let memory = side.import_peer("block")?;
            let run = |opcode, operand| {
                side.env.pressure(1);
                memory.atomic(4096 + 64, extended(opcode, operand, 0)).call()
            };
            // Two wait, three signal: the third finds all waiters spoken for.
            right!(
                run(Opcode::SemP, 11)?.value == EMPTY,
                "an empty queue has no last"
            );
            right!(run(Opcode::SemP, 12)?.value == 11, "the one that came before");
            let first = run(Opcode::SemV, 0)?;
            right!((first.value, first.second as u32) == (11, 1), "{first:?}");
            let second = run(Opcode::SemV, 0)?;
            right!((second.value, second.second as u32) == (EMPTY, 1), "{second:?}");
            let third = run(Opcode::SemV, 0)?;
            right!(
                (third.value, third.second) == (EMPTY, u64::from(NOBODY) | 1 << 32),
                "{third:?}"
            );
            let head = run(Opcode::NewHead, 12)?;
            right!((head.value, head.second as u32) == (1, 0), "{head:?}");
            memory.notify(1)?;
            side.flush_peer()
        },
    )
}

/// An ordered operation finds what was written before it.
pub(super) fn ordered_atomic(env: &Env) -> Outcome {
    const SIZE: u64 = 6 * 4096;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |side| {
            let memory = side.share("ordered", SIZE + 4096)?;
            let flag = memory.word64(SIZE)?;
            let deadline = side.env.deadline(&side);
            for round in 1..=rounds {
                while flag.load()? < round {
                    crate::env::pass(&side, std::time::Duration::from_micros(20))?;
                    deadline.check()?;
                }
                for at in (0..SIZE).step_by(4096) {
                    let seen = memory.word64(at)?.load()?;
                    right!(seen >= round, "the flag says {round}, the data {seen}");
                }
                side.env.pressure(1);
            }
            side.take_signal(DONE)
        },
        move |side| {
            let memory = side.import_peer("ordered")?;
            for round in 1..=rounds {
                for at in (0..SIZE).step_by(4096) {
                    memory.write(at, &round.to_le_bytes()).post()?;
                }
                let old = memory
                    .atomic(SIZE, wide(Opcode::FetchAdd, 1, 0))
                    .ordered()
                    .call()?;
                right!(
                    old.value == round - 1,
                    "flag was {} before round {round}",
                    old.value
                );
            }
            memory.notify(DONE)?;
            side.flush_peer()
        },
    )
}
