//! Order: what has landed when a notification arrives (thesis 6.2).

use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, right};
use crate::pattern;
use crate::side::{share, worse};
use rand::Rng;
use std::time::Duration;

const DONE: u32 = 800;

pub(super) fn scattered_then_notify(env: &Env) -> Outcome {
    const SIZE: u64 = 32 * 4096;
    const SLOT: u64 = 1024;
    let rounds = env.scaled(6);
    env.pair(
        move |side| {
            let memory = side.share("field", SIZE)?;
            let back = side.import_peer("back")?;
            for round in 0..u64::from(rounds) {
                side.take_signal(5)?;
                let mut random = side.env.random(100 + round);
                for index in 0..40u64 {
                    let slot = (index * 13 % 128) * SLOT;
                    let (at, len) = (random.random_range(0..512), random.random_range(1..512));
                    pattern::check(
                        &memory,
                        slot + at,
                        round * 100 + index,
                        0,
                        len,
                        "scattered write before its notification",
                    )?;
                }
                back.notify(1)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("back", 4096)?;
            let field = side.import_peer("field")?;
            let source = side.alloc(40 * 512)?;
            for round in 0..u64::from(rounds) {
                let mut random = side.env.random(100 + round);
                for index in 0..40u64 {
                    let slot = (index * 13 % 128) * SLOT;
                    let (at, len) = (random.random_range(0..512), random.random_range(1..512));
                    pattern::store(&source, index * 512, round * 100 + index, 0, len)?;
                    let from = source.slice(index * 512..index * 512 + len)?;
                    field.write(slot + at, from).post()?;
                }
                field.notify(5)?;
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn pipeline(env: &Env) -> Outcome {
    const BLOCK: u64 = 2 * 4096 + 256;
    const SLOTS: u64 = 4;
    let blocks = u64::from(env.scaled(30));
    env.pair(
        move |side| {
            let memory = side.share("ring", BLOCK * SLOTS)?;
            let producer = side.import_peer("producer")?;
            for block in 0..blocks {
                side.take_signal(2)?;
                let at = block % SLOTS * BLOCK;
                pattern::check(&memory, at, block, 0, BLOCK, "block of a pipeline")?;
                producer.notify(3)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("producer", 4096)?;
            let ring = side.import_peer("ring")?;
            let source = side.alloc(BLOCK * SLOTS)?;
            for block in 0..blocks {
                if block >= SLOTS {
                    side.take_signal(3)?;
                }
                // A block taken there has left here long ago: its source may change.
                let at = block % SLOTS * BLOCK;
                pattern::store(&source, at, block, 0, BLOCK)?;
                ring.write(at, source.slice(at..at + BLOCK)?).notify(2).post()?;
            }
            for _ in 0..SLOTS.min(blocks) {
                side.take_signal(3)?;
            }
            let left = side.notification(3)?.pending();
            right!(left == 0, "{left} more blocks taken than sent");
            side.flush_peer()
        },
    )
}

pub(super) fn one_shot_order(env: &Env) -> Outcome {
    const WINDOW: u32 = 64;
    let count = env.scaled(150);
    env.pair(
        move |side| {
            let memory = side.share_with_letters("letters", 4096)?;
            let sender = side.import_peer("sender")?;
            let queue = side.notifications();
            let last = memory.word32(0)?;
            for expected in 0..count {
                let id = queue.wait(side.env.patience)?;
                right!(
                    id.0 == 1024 + expected,
                    "one-shot {id} came, {} was due",
                    1024 + expected
                );
                let seen = last.load()?;
                right!(
                    expected % 3 != 0 || seen >= expected,
                    "the data of letter {expected} came after its notification: {seen}"
                );
                if expected % WINDOW == WINDOW - 1 {
                    sender.notify(1)?;
                }
            }
            right!(queue.pop().is_none(), "more one-shots than were sent");
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("sender", 4096)?;
            let letters = side.import_peer("letters")?;
            let mut thanks = count / WINDOW;
            for number in 0..count {
                if number >= 2 * WINDOW && number % WINDOW == 0 {
                    side.take_signal(1)?;
                    thanks -= 1;
                }
                if number % 3 == 0 {
                    // Ordered, so that an earlier value never lands on a later one.
                    letters
                        .write(0, &number.to_le_bytes())
                        .ordered()
                        .notify(1024 + number)
                        .post()?;
                } else {
                    letters.notify(1024 + number)?;
                }
            }
            // Take the rest too: a signal to a port that has gone would be a failure over there.
            for _ in 0..thanks {
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn ordered_flag(env: &Env) -> Outcome {
    const LEN: u64 = 3 * 4096;
    let rounds = u64::from(env.scaled(10));
    env.pair(
        move |side| {
            let memory = side.share("guarded", 5 * 4096)?;
            let back = side.import_peer("back")?;
            let flag = memory.word64(4 * 4096)?;
            for round in 1..=rounds {
                // Nothing but the flag tells.
                side.until(Duration::from_micros(5), || Ok(flag.load()? == round))?;
                pattern::check(&memory, 3, round, 0, LEN, "data before an ordered flag")?;
                back.notify(1)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("back", 4096)?;
            let guarded = side.import_peer("guarded")?;
            let source = side.alloc(LEN)?;
            for round in 1..=rounds {
                pattern::store(&source, 0, round, 0, LEN)?;
                guarded.write(3, &source).post()?;
                guarded.write(4 * 4096, &round.to_le_bytes()).ordered().post()?;
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn flush_remote(env: &Env) -> Outcome {
    const LEN: u64 = 5 * 4096;
    let rounds = u64::from(env.scaled(6));
    let target = env.spawn(1, "target", move |env| {
        let port = env.open(1, 0)?;
        let _target = share(&port, "target", LEN)?;
        take_signal(env, &port, DONE)
    });
    let reader = env.spawn(2, "reader", move |env| {
        let port = env.open(2, 0)?;
        let _reader = share(&port, "reader", 4096)?;
        let written = env.import(&port, 1, 0, "target")?;
        let writer = env.import(&port, 0, 0, "writer")?;
        let mut bytes = vec![0; LEN as usize];
        for round in 0..rounds {
            take_signal(env, &port, 1)?;
            written.read(0, &mut bytes).call()?;
            let expected = pattern::bytes(round, 0, bytes.len());
            pattern::same(&bytes, &expected, 0, "read by a third node after a remote flush")?;
            writer.notify(1)?;
        }
        Ok(port.flush_remote(env.id(0))?)
    });
    let writer = || -> Outcome {
        let port = env.open(0, 0)?;
        let _writer = share(&port, "writer", 4096)?;
        let target = env.import(&port, 1, 0, "target")?;
        let reader = env.import(&port, 2, 0, "reader")?;
        for round in 0..rounds {
            target.write(0, &pattern::bytes(round, 0, LEN as usize)).post()?;
            port.flush_remote(env.id(1))?;
            reader.notify(1)?;
            take_signal(env, &port, 1)?;
        }
        target.notify(DONE)?;
        port.flush_remote(env.id(1))?;
        right!(
            port.stats().remote_flushes > rounds,
            "remote flushes were not counted"
        );
        Ok(())
    };
    let mine = writer();
    worse(worse(mine, target.join()), reader.join())
}

/// What the other side has received lands: each third time a remote flush says so, and at the end a signal.
pub(super) fn flush_received(env: &Env) -> Outcome {
    const LEN: u64 = 4096 + 512;
    let rounds = u64::from(env.scaled(12));
    env.pair(
        move |side| {
            let memory = side.share("copies", LEN * rounds)?;
            side.take_signal(DONE)?;
            for round in 0..rounds {
                pattern::check(&memory, round * LEN, round, 0, LEN, "written and received")?;
            }
            Ok(())
        },
        move |side| {
            let copies = side.import_peer("copies")?;
            for round in 0..rounds {
                let bytes = pattern::bytes(round, 0, LEN as usize);
                copies.write(round * LEN, &bytes).post()?;
                side.flush_received(side.peer())?;
                if round % 3 == 0 {
                    side.flush_peer()?;
                    let mut back = vec![0; LEN as usize];
                    copies.read(round * LEN, &mut back).call()?;
                    pattern::same(&back, &bytes, 0, "received, then landed")?;
                }
            }
            let waited = side.stats().received_flushes;
            right!(waited == rounds, "{waited} waits were counted, of {rounds}");
            copies.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn fenced_reuse(env: &Env) -> Outcome {
    const LEN: u64 = 4096 + 512;
    let rounds = u64::from(env.scaled(16));
    env.pair(
        move |side| {
            let memory = side.share("copies", LEN * rounds)?;
            side.take_signal(DONE)?;
            for round in 0..rounds {
                pattern::check(&memory, round * LEN, round, 0, LEN, "source reused after a fence")?;
            }
            Ok(())
        },
        move |side| {
            let copies = side.import_peer("copies")?;
            let source = side.alloc(LEN)?;
            for round in 0..rounds {
                pattern::store(&source, 0, round, 0, LEN)?;
                let write = copies.write(round * LEN, &source);
                if round % 2 == 0 {
                    write.fenced().post()?;
                } else {
                    write.post()?;
                    side.flush_writes()?;
                }
            }
            copies.write(0, &[]).notify(DONE).fenced().post()?;
            side.flush_peer()
        },
    )
}

/// An import that ends takes nothing with it that was written through it before.
pub(super) fn import_ends(env: &Env) -> Outcome {
    const PAGES: u64 = 8;
    env.pair(
        |side| {
            let memory = side.share("short", PAGES * 4096)?;
            side.take_signal(1)?;
            for page in 0..PAGES {
                let word = memory.word64(page * 4096)?.load()?;
                right!(
                    word == page + 1,
                    "page {page} says {word} after its import has ended"
                );
            }
            Ok(())
        },
        |side| {
            let bell = side.import_peer("short")?;
            let short = side.import_peer("short")?;
            for page in 0..PAGES {
                short.write(page * 4096, &(page + 1).to_le_bytes()).post()?;
            }
            drop(short);
            bell.notify(1)?;
            side.flush_peer()
        },
    )
}
