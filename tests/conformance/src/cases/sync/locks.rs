//! One holds the lock, and sees what the one before wrote, wherever.

use super::{Witness, all, at_home, begin, ended_by, lock, taken_over, tell};
use crate::env::Env;
use crate::outcome::{Outcome, Trouble, due, fails, right};
use crate::side::{share, worse};
use netvm::sync::Lock;
use netvm::{Error, Port, RemoteSegment};
use std::time::Duration;

/// Bytes of what is counted up: from one page's end into the next, so that it arrives in pieces.
const WIDTH: usize = 64;
const AT: u64 = 4096 - 24;

fn read(remote: &RemoteSegment) -> netvm::Result<[u8; WIDTH]> {
    let mut bytes = [0; WIDTH];
    remote.read(AT, &mut bytes).call()?;
    Ok(bytes)
}

pub(in super::super) fn contended_lock(env: &Env) -> Outcome {
    let nodes = env.nodes.len().min(4);
    let rounds = env.scaled(6);
    // A third node's memory, which is beside no lock.
    let there = env.spawn(nodes - 1, "there", move |env| {
        let port = env.open(nodes - 1, 2)?;
        let _there = share(&port, "there", 3 * 4096)?;
        crate::env::take_signal(env, &port, 1)
    });
    let witness = Witness::default();
    let members = begin(env, nodes, move |env, port, node| {
        let mut lock = lock(env, &port, 0, "lock")?;
        let here = env.import(&port, 0, 0, "here")?;
        let there = env.import(&port, nodes - 1, 2, "there")?;
        let mut taken = false;
        for round in 0..rounds {
            let guard = lock.acquire()?;
            let entered = witness.enter(node, guard.owner_died())?;
            let (one, other) = (read(&here)?, read(&there)?);
            // What a dead holder has left half done, this one puts right.
            taken |= guard.owner_died();
            if !guard.owner_died() {
                due!(one == other, "node {node} sees {one:?} here and {other:?} there");
                due!(one == [one[0]; WIDTH], "a write under the lock is torn: {one:?}");
            }
            let next = [one[0].wrapping_add(1); WIDTH];
            here.write(AT, &next).post()?;
            there.write(AT, &next).post()?;
            if round % 3 == 1 {
                env.pressure(0);
            }
            drop(entered);
            guard.release()?;
        }
        // The member whose write was lost has to be told: then it is no wonder that it is missing.
        port.flush_remote(here.node())?;
        port.flush_remote(there.node())?;
        taken_over(env, taken)
    });
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let here = share(&port, "here", 3 * 4096)?;
    let count = (nodes as u32 * rounds) as u8;
    let (outcome, _home) = ended_by(env, &port, home, members);
    let told = tell(env, &port, nodes - 1, 2, "there");
    let outcome = worse(worse(outcome, told), there.join());
    outcome?;
    let mut last = [0; WIDTH];
    here.read_into(AT, &mut last)?;
    due!(last == [count; WIDTH], "counted to {last:?} instead of {count}");
    Ok(())
}

/// A participant that tries right after it has handed the lock to another begins a turn that hands it to none, while the
/// lock is still on its way.
pub(in super::super) fn lock_tried_and_waited_for(env: &Env) -> Outcome {
    let rounds = env.scaled(8);
    let witness = Witness::default();
    let members = begin(env, 2, move |env, port, node| {
        let mut lock = lock(env, &port, 0, "lock")?;
        let mut taken = false;
        for round in 0..rounds {
            let guard = if round % 2 == 0 {
                lock.acquire()?
            } else {
                lock.try_acquire_for(env.patience)?
            };
            let entered = witness.enter(node, guard.owner_died())?;
            taken |= guard.owner_died();
            drop(entered);
            guard.release()?;
        }
        taken_over(env, taken)
    });
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let (outcome, _home) = ended_by(env, &port, home, members);
    outcome
}

pub(in super::super) fn lock_tries(env: &Env) -> Outcome {
    let home = |port: &Port| Ok((Lock::create(port, "lock", all())?, share(port, "other", 4096)?));
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?];
        let mut mine = lock(env, &ports[0], 1, "lock")?;
        let mut theirs = lock(env, &ports[1], 1, "lock")?;
        let guard = mine.acquire()?;
        right!(theirs.try_acquire()?.is_none(), "two hold the lock");
        fails(
            theirs
                .try_acquire_for(Duration::from_micros(300))
                .map(|guard| guard.owner_died()),
            "a lock that is held",
            |error| *error == Error::TimedOut,
        )?;
        guard.release()?;
        for _ in 0..env.scaled(3) {
            let Some(guard) = theirs.try_acquire()? else {
                return Err(Trouble::Wrong("the lock is free, and a try fails".to_owned()));
            };
            right!(mine.try_acquire()?.is_none(), "two hold the lock");
            guard.release()?;
            mine.try_acquire_for(env.patience)?.release()?;
        }
        // Something else under that name.
        fails(lock(env, &ports[0], 1, "other"), "no lock at all", |error| {
            matches!(error, Error::Import { .. })
        })
    })
}
