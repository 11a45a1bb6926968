//! The home of a lock goes while its members hold the lock or wait for it.

use super::{all, ended, lock, tell};
use crate::cases::GONE;
use crate::env::{Env, pass, take_signal, take_signals};
use crate::outcome::{Outcome, fails, right};
use crate::side::{share, worse};
use netvm::sync::Lock;
use std::time::Duration;

const WAITERS: u32 = 3;

/// All waiters hear of it, however many stand in line, and although the holder lives and holds on.
pub(in super::super) fn lost_home(env: &Env) -> Outcome {
    let holder = env.spawn(1, "holder", |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let guard = lock.acquire()?;
        let _held = share(&port, "held", 4096)?;
        tell(env, &port, 0, 0, "told")?;
        let told = take_signal(env, &port, 1);
        // Whether it can be given back does not matter: its home has gone.
        let _ = guard.release();
        told
    });
    let wait = |node, exporter| {
        env.spawn(node, "waits", move |env| {
            let port = env.open(node, exporter)?;
            let mut lock = lock(env, &port, 0, "lock")?;
            // The holder exports this once it holds the lock.
            env.import(&port, 1, 0, "held")?;
            tell(env, &port, 0, 0, "told")?;
            fails(
                lock.acquire().map(|guard| guard.owner_died()),
                "a lock whose home has gone",
                |error| error.status().is_some_and(|status| GONE.contains(&status)),
            )
        })
    };
    let waiters = vec![wait(2, 0), wait(1, 1), wait(2, 1)];
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let told = share(&port, "told", 4096)?;
    let come = take_signals(env, &port, 1, 1 + WAITERS);
    // The last one is about to ask.
    pass(&port, Duration::from_millis(5))?;
    drop(home);
    let deadline = env.deadline(&port);
    while !waiters.iter().all(|waiter| waiter.is_over()) && !deadline.passed() {
        pass(&port, Duration::from_micros(200))?;
    }
    let over = waiters.iter().filter(|waiter| waiter.is_over()).count();
    let let_go = tell(env, &port, 1, 0, "held");
    let outcome = worse(worse(come, let_go), worse(ended(waiters), holder.join()));
    drop(told);
    outcome?;
    right!(
        over == WAITERS as usize,
        "{over} of {WAITERS} waiters have ended although the lock's home has gone"
    );
    Ok(())
}
