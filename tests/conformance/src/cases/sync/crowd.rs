//! Waiters of a lock while much else happens: members that come and go, and failures that are no death.
//!
//! Where several machines run a body these do not run: they start processes in turn.

use super::deaths::{killed, stay};
use super::{Witness, all, ended_by, lock, taken_over, tell};
use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::side::{share, worse};
use netvm::sync::Lock;
use netvm::{Error, Port};
use std::time::Duration;

const READY: u32 = 1;

/// Posted by a waiter until it has the lock: looks at others, and at the lock.
const LOOKS: u64 = 400;

/// Each node of the body is a machine of its own.
fn apart(env: &Env) -> Outcome {
    let [one, two, three] = [0, 1, 2].map(|node| env.id(node));
    if one == two || two == three || one == three {
        return Err(Trouble::Skipped("it needs a machine for each of its nodes"));
    }
    Ok(())
}

/// Joins the lock, asks for it, tries, or does neither, and leaves.
fn visit(env: &Env, port: &Port, witness: &Witness, node: usize, round: usize) -> Outcome {
    let mut lock = lock(env, port, 0, "lock")?;
    let guard = match round % 3 {
        0 => Some(lock.acquire()?),
        1 => lock.try_acquire()?,
        _ => None,
    };
    if let Some(guard) = guard {
        drop(witness.enter(3 + node, guard.owner_died())?);
        guard.release()?;
    }
    Ok(())
}

/// One dies that holds the lock and one that waits for it, while others join, try, ask, and leave all the time.
pub(in super::super) fn deaths_in_a_crowd(env: &Env) -> Outcome {
    apart(env)?;
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let told = share(&port, "told", 4096)?;
    let witness = Witness::default();
    let holds = env.spawn(1, "holds", |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let _guard = lock.acquire()?;
        stay(env, &port)
    });
    take_signal(env, &port, READY)?;
    // Two waiters, and between them one that dies.
    let mut queue = Vec::new();
    for (node, number) in [(2, 0), (1, 1), (2, 1)] {
        let witness = witness.clone();
        queue.push(env.spawn(node, "waits", move |env| {
            let port = env.open(node, number)?;
            let mut lock = lock(env, &port, 0, "lock")?;
            tell(env, &port, 0, 0, "told")?;
            let looks = || port.stats().reads + port.stats().atomics;
            let before = looks();
            let guard = lock.acquire()?;
            let (looks, died) = (looks() - before, guard.owner_died());
            drop(witness.enter(node, died)?);
            right!(looks <= LOOKS || env.may_fail, "it looked {looks} times");
            Ok(guard.release()?)
        }));
        take_signal(env, &port, READY)?;
        pass(&port, Duration::from_millis(1))?;
    }
    let crowd = (0..3usize).map(|node| {
        let witness = witness.clone();
        env.spawn(node, "comes and goes", move |env| {
            let port = env.open(node, 3)?;
            let told = env.import(&port, 0, 0, "told")?;
            let mut over = [0; 4];
            for round in node.. {
                visit(env, &port, &witness, node, round)?;
                told.read(0, &mut over).call()?;
                if over != [0; 4] {
                    break;
                }
            }
            Ok(())
        })
    });
    let crowd: Vec<_> = crowd.collect();
    pass(&port, Duration::from_millis(1))?;
    holds.kill();
    let dies = queue.remove(1);
    dies.kill();
    // While they still come and go.
    let (outcome, home) = ended_by(env, &port, home, queue);
    told.word32(0)?.store(1)?;
    let (left, _home) = ended_by(env, &port, home, crowd);
    let killed = worse(killed(holds.join()), killed(dies.join()));
    worse(worse(outcome, left), killed)
}

/// Other failures of a waiting port are no death: not even a failure on the holder's node, which each look at the
/// holder is told of.
pub(in super::super) fn no_death(env: &Env) -> Outcome {
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let _told = share(&port, "told", 4096)?;
    let mut mine = lock(env, &port, 0, "lock")?;
    let holds = env.spawn(1, "holds", |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let gone = share(&port, "gone", 4096)?;
        let _told = share(&port, "told", 4096)?;
        let guard = lock.acquire()?;
        tell(env, &port, 0, 0, "told")?;
        take_signal(env, &port, READY)?;
        drop(gone);
        tell(env, &port, 0, 0, "told")?;
        // Long enough for some looks.
        pass(&port, Duration::from_millis(100))?;
        let died = guard.owner_died();
        guard.release()?;
        taken_over(env, died)
    });
    take_signal(env, &port, READY)?;
    let gone = env.import(&port, 1, 0, "gone")?;
    tell(env, &port, 1, 0, "told")?;
    take_signal(env, &port, READY)?;
    let waits = env.spawn_thread(0, "waits", move |env| {
        let guard = mine.acquire()?;
        let died = guard.owner_died();
        guard.release()?;
        taken_over(env, died)
    });
    while !waits.is_over() {
        // Told here, or to the other thread where it looks.
        let _ = gone.write(0, &[1; 8]).post();
        pass(&port, Duration::from_micros(10))?;
    }
    let (outcome, _home) = ended_by(env, &port, home, vec![holds]);
    match worse(waits.join(), outcome) {
        // Whatever it is told of is of the writes that failed.
        Err(Trouble::Failed(Error::Failed(_) | Error::FailuresLost { .. } | Error::StreamFailed { .. })) => {
            Ok(())
        }
        outcome => outcome,
    }
}
