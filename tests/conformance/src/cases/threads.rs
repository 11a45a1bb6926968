//! One port, several threads.

use crate::env::Env;
use crate::outcome::{Outcome, Trouble, right};
use crate::pattern;
use crate::side::worse;
use std::sync::Arc;

const DONE: u32 = 800;

pub(super) fn one_port(env: &Env) -> Outcome {
    const THREADS: u64 = 3;
    const SHARE: u64 = 6 * 4096;
    let rounds = u64::from(env.scaled(8));
    env.pair(
        move |side| {
            let size = SHARE * THREADS;
            let memory = side.share("shared", size)?;
            side.take_signal(DONE)?;
            for thread in 0..THREADS {
                let key = thread * 1000 + rounds - 1;
                pattern::check(&memory, thread * SHARE, key, 0, SHARE, "one of several threads")?;
                let signals = side.notification(thread as u32 + 1)?.pending();
                right!(
                    u64::from(signals) == rounds,
                    "{signals} signals of a thread that sent {rounds}"
                );
            }
            Ok(())
        },
        move |side| {
            let (env, side) = (side.env.clone(), Arc::new(side));
            let shared = side.import_peer("shared")?;
            let mut running = Vec::new();
            for thread in 0..THREADS {
                let (side, shared) = (Arc::clone(&side), shared.clone());
                running.push(env.spawn_thread(0, "thread", move |_| {
                    let source = side.alloc(SHARE)?;
                    let mut back = vec![0; SHARE as usize];
                    let base = thread * SHARE;
                    for round in 0..rounds {
                        let key = thread * 1000 + round;
                        let failures = side.stats().failures;
                        pattern::store(&source, 0, key, 0, SHARE)?;
                        let write = shared.write(base, &source).notify(thread as u32 + 1);
                        // Each kind of fence, against the others' traffic.
                        match (thread + round) % 3 {
                            0 => write.fenced().post().map(drop)?,
                            1 => write.post().and_then(|_| side.flush_writes())?,
                            _ => write.post().and_then(|_| side.flush())?,
                        }
                        // The source may change now.
                        pattern::store(&source, 0, key + 500, 0, SHARE)?;
                        side.flush_peer()?;
                        shared.read(base, &mut back).call()?;
                        // The threads share a stream: the thread that asks first is told of a failure.
                        if side.stats().failures != failures {
                            return Err(Trouble::Unexpected("another thread was told of a failure".into()));
                        }
                        pattern::same(
                            &back,
                            &pattern::bytes(key, 0, back.len()),
                            base,
                            "own write read back",
                        )?;
                        let slice = source.slice(17..5017)?;
                        shared.read(base + 100, slice).fenced().post()?;
                        pattern::check(&source, 17, key, 100, 5000, "fenced read among other threads'")?;
                    }
                    Ok(())
                }));
            }
            let mut mine = Ok(());
            for thread in running {
                mine = worse(mine, thread.join());
            }
            mine?;
            shared.notify(DONE)?;
            side.flush_peer()
        },
    )
}
