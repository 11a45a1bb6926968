//! Data arrives: every byte, at its place, once.

use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, right};
use crate::pattern;
use crate::side::{Side, share, worse};
use netvm::Error;
use rand::Rng;

/// The receiver may go.
const DONE: u32 = 800;

pub(super) fn ping_pong(env: &Env) -> Outcome {
    fn player(side: &Side, serves: bool) -> Outcome {
        let memory = side.share("ball", 4096)?;
        let court = side.import_peer("ball")?;
        let word = memory.word64(64)?;
        for round in 1..=u64::from(side.env.scaled(40)) {
            let hit = || court.write(64, &round.to_le_bytes()).notify(1).post();
            if serves {
                hit()?;
            }
            side.take_signal(1)?;
            let seen = word.load()?;
            right!(
                seen == round,
                "{} was notified of round {round} and sees {seen}",
                if serves { "the server" } else { "the returner" }
            );
            if !serves {
                hit()?;
            }
        }
        // The last ball must have left before this port closes.
        side.flush_peer()
    }
    env.pair(|side| player(&side, false), |side| player(&side, true))
}

/// A place in a region of `size` bytes: often small, often at page boundaries.
fn place(random: &mut impl Rng, size: u64) -> (u64, u64) {
    let len = match random.random_range(0..6) {
        0 => random.random_range(1..=8),
        1 => random.random_range(1..=200),
        2 => 4096,
        3 => random.random_range(1..=3 * 4096),
        4 => random.random_range(1..=5000),
        _ => 1 << random.random_range(0..13),
    }
    .min(size);
    let offset = match random.random_range(0..3) {
        0 => random.random_range(0..=size - len),
        1 => random.random_range(0..=(size - len) / 4096) * 4096,
        _ => random.random_range(0..=(size - len) / 8) * 8,
    };
    (offset, len)
}

pub(super) fn bulk_write(env: &Env) -> Outcome {
    const SIZE: u64 = 24 * 4096;
    let writes = env.scaled(60);
    env.pair(
        move |side| {
            let memory = side.share("store", SIZE)?;
            side.take_signal(DONE)?;
            // Both sides know the writes; the last to a place counts, because the sender flushes
            // between overlapping ones.
            let mut model = vec![0; SIZE as usize];
            let mut random = side.env.random(1);
            for index in 0..writes {
                let (offset, len) = place(&mut random, SIZE);
                let (_, _) = (random.random_range(0..3u8), random.random_range(0..4096u64));
                pattern::fill(
                    u64::from(index),
                    offset,
                    &mut model[offset as usize..][..len as usize],
                );
            }
            pattern::check_bytes(&memory, 0, &model, "bulk write")
        },
        move |side| {
            let store = side.import_peer("store")?;
            let source = side.alloc(8 * 4096)?;
            let mut random = side.env.random(1);
            let mut dirty: Vec<(u64, u64)> = Vec::new();
            for index in 0..writes {
                let (offset, len) = place(&mut random, SIZE);
                let (how, shift) = (random.random_range(0..3u8), random.random_range(0..4096u64));
                let more = index % 3 != 0;
                // Data of different writes may land in any order.
                if dirty.iter().any(|&(at, n)| offset < at + n && at < offset + len) {
                    side.flush_peer()?;
                    dirty.clear();
                }
                dirty.push((offset, len));
                if how == 0 {
                    let bytes = pattern::bytes(u64::from(index), offset, len as usize);
                    let write = store.write(offset, &bytes);
                    if more { write.more() } else { write }.post()?;
                } else {
                    side.flush_writes()?;
                    pattern::store(&source, shift, u64::from(index), offset, len)?;
                    let slice = source.slice(shift..shift + len)?;
                    let write = store.write(offset, slice);
                    let write = if more { write.more() } else { write };
                    if how == 1 {
                        write.fenced().post()?
                    } else {
                        write.post()?
                    };
                }
            }
            store.notify(DONE)?;
            side.flush_peer()?;
            let stats = side.stats();
            right!(
                stats.writes > u64::from(writes) && stats.write_messages >= stats.writes,
                "counters do not add up: {stats:?}"
            );
            Ok(())
        },
    )
}

pub(super) fn bulk_read(env: &Env) -> Outcome {
    const SIZE: u64 = 16 * 4096;
    env.pair(
        move |side| {
            let memory = side.share("library", SIZE)?;
            pattern::store(&memory, 0, 7, 0, SIZE)?;
            let reader = side.import_peer("reader")?;
            reader.notify(1)?;
            side.flush_peer()?;
            side.take_signal(DONE)
        },
        move |side| {
            let memory = side.share("reader", 16 * 4096)?;
            let library = side.import_peer("library")?;
            side.take_signal(1)?;
            let mut random = side.env.random(2);
            for round in 0..env.scaled(12) {
                // Several reads under way at once, into places of their own.
                let mut reads = Vec::new();
                for slot in 0..4u64 {
                    let (offset, len) = place(&mut random, SIZE);
                    let to = slot * 4 * 4096 + random.random_range(0..4096u64);
                    library.read(offset, memory.slice(to..to + len)?).post()?;
                    reads.push((offset, len, to));
                }
                side.flush_reads()?;
                for (offset, len, to) in reads {
                    pattern::check(&memory, to, 7, offset, len, "read into a region")?;
                }
                let (offset, len) = place(&mut random, SIZE);
                let mut bytes = vec![0; len as usize];
                library.read(offset, &mut bytes).call()?;
                pattern::same(
                    &bytes,
                    &pattern::bytes(7, offset, bytes.len()),
                    offset,
                    "read into bytes",
                )?;
                if round == 0 {
                    let mut all = vec![0; SIZE as usize];
                    library.read(0, &mut all).call()?;
                    pattern::same(&all, &pattern::bytes(7, 0, all.len()), 0, "read of all")?;
                }
            }
            library.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn whole_words(env: &Env) -> Outcome {
    let rounds = env.scaled(60);
    env.pair(
        move |side| {
            let memory = side.share("words", 2 * 4096)?;
            let wide = memory.word64(4088)?;
            let narrow = memory.word32(4096 + 12)?;
            let done = side.notification(DONE)?;
            let deadline = side.env.deadline(&side);
            loop {
                let value = wide.load()?;
                right!(value == 0 || value == u64::MAX, "a torn 64-bit word: {value:#x}");
                let value = narrow.load()?;
                right!(value == 0 || value == u32::MAX, "a torn 32-bit word: {value:#x}");
                match done.wait(std::time::Duration::from_micros(5)) {
                    Ok(_) => return Ok(done.ack()?),
                    Err(Error::TimedOut) => deadline.check()?,
                    Err(error) => return Err(error.into()),
                }
            }
        },
        move |side| {
            let words = side.import_peer("words")?;
            let source = side.alloc(2 * 4096)?;
            for round in 0..rounds {
                let byte = if round % 2 == 0 { 0xFF } else { 0 };
                // From bytes, and from an unaligned place that crosses a page.
                words.write(4088, &[byte; 8]).post()?;
                source.write_from(4093, &[byte; 4])?;
                words
                    .write(4096 + 12, source.slice(4093..4097)?)
                    .fenced()
                    .post()?;
            }
            words.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn read_and_write_back(env: &Env) -> Outcome {
    const SIZE: u64 = 3 * 4096;
    let rounds = env.scaled(12);
    env.pair(
        move |side| {
            let memory = side.share("ledger", SIZE)?;
            side.take_signal(DONE)?;
            let mut bytes = vec![0; SIZE as usize];
            memory.read_into(0, &mut bytes)?;
            let expected = rounds as u8;
            let wrong = bytes.iter().position(|&byte| byte != expected);
            right!(wrong.is_none(), "byte {wrong:?} was not raised {rounds} times");
            Ok(())
        },
        move |side| {
            let ledger = side.import_peer("ledger")?;
            let mut bytes = vec![0; SIZE as usize];
            for _ in 0..rounds {
                ledger.read(0, &mut bytes).call()?;
                for byte in &mut bytes {
                    *byte = byte.wrapping_add(1);
                }
                ledger.write(0, &bytes).post()?;
                // The read of the next round must see it.
                side.flush_peer()?;
            }
            ledger.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn many_to_one(env: &Env) -> Outcome {
    const SHARE: u64 = 2 * 4096;
    let senders = env.nodes.len() - 1;
    let rounds = env.scaled(15);
    let mut running = Vec::new();
    for sender in 1..=senders {
        running.push(env.spawn(sender, "sender", move |env| {
            let port = env.open(sender, 0)?;
            let _spoke = share(&port, "spoke", 4096)?;
            let hub = env.import(&port, 0, 0, "hub")?;
            let base = (sender as u64 - 1) * SHARE;
            for round in 0..u64::from(rounds) {
                let key = sender as u64 * 1000 + round;
                let bytes = pattern::bytes(key, 0, SHARE as usize - 100);
                hub.write(base + 50, &bytes).notify(sender as u32).post()?;
                // The hub has checked it.
                take_signal(env, &port, 1)?;
            }
            Ok(port.flush_remote(env.id(0))?)
        }));
    }
    let port = env.open(0, 0)?;
    let memory = share(&port, "hub", SHARE * senders as u64)?;
    let mut mine = Ok(());
    let spokes: netvm::Result<Vec<_>> = (1..=senders).map(|s| env.import(&port, s, 0, "spoke")).collect();
    match spokes {
        Err(error) => mine = Err(error.into()),
        Ok(spokes) => {
            let hub = || -> Outcome {
                for round in 0..u64::from(rounds) {
                    for (index, spoke) in spokes.iter().enumerate() {
                        let sender = index as u64 + 1;
                        take_signal(env, &port, sender as u32)?;
                        let key = sender * 1000 + round;
                        let at = index as u64 * SHARE + 50;
                        pattern::check(&memory, at, key, 0, SHARE - 100, "many to one")?;
                        spoke.notify(1)?;
                    }
                }
                for sender in 1..=senders {
                    let left = port.notification(sender as u32)?.pending();
                    right!(left == 0, "{left} more signals of sender {sender} than it sent");
                    port.flush_remote(env.id(sender))?;
                }
                Ok(())
            };
            mine = worse(mine, hub());
        }
    }
    for sender in running {
        mine = worse(mine, sender.join());
    }
    mine
}
