//! Processes that die while they hold or wait: the others get on.

use super::{all, ended_by, lock, semaphore, taken_over, tell, until_asked};
use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::side::{share, worse};
use netvm::sync::{Lock, Semaphore};
use netvm::{Port, Timeout};

const READY: u32 = 1;

/// Tells the process that started this one, and stays as it is until it is killed.
fn stay(env: &Env, port: &Port) -> Outcome {
    tell(env, port, 0, 0, "told")?;
    port.notification(2)?.wait(env.patience * 2)?;
    Err(Trouble::Wrong("it should have been killed".to_owned()))
}

fn killed(outcome: Outcome) -> Outcome {
    match outcome {
        Err(Trouble::Killed) => Ok(()),
        other => other,
    }
}

pub(in super::super) fn dead_holder(env: &Env) -> Outcome {
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let told = share(&port, "told", 4096)?;
    let mut mine = lock(env, &port, 0, "lock")?;
    drop(mine.acquire()?);
    let holder = env.spawn(1, "holder", move |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let _guard = lock.acquire()?;
        stay(env, &port)
    });
    take_signal(env, &port, READY)?;
    // One waits as it dies, one comes later.
    let waiter = env.spawn(2, "waiter", move |env| {
        let port = env.open(2, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let told = env.import(&port, 0, 0, "told")?;
        tell(env, &port, 0, 0, "told")?;
        let guard = lock.acquire()?;
        told.write(0, &u32::from(guard.owner_died()).to_le_bytes())
            .post()?;
        Ok(guard.release()?)
    });
    take_signal(env, &port, READY)?;
    holder.kill();
    let guard = mine.acquire()?;
    let mut known = guard.owner_died();
    drop(guard);
    let (outcome, _home) = ended_by(env, &port, home, vec![waiter]);
    worse(outcome, killed(holder.join()))?;
    known |= told.word32(0)?.load()? != 0;
    right!(known, "nobody was told that the holder had died");
    // And it is a lock like any other again.
    let guard = mine.acquire()?;
    Ok(guard.release()?)
}

pub(in super::super) fn dead_waiter(env: &Env) -> Outcome {
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let _told = share(&port, "told", 4096)?;
    let mut mine = lock(env, &port, 0, "lock")?;
    let guard = mine.acquire()?;
    let dies = env.spawn(1, "dies", move |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let guard = lock.acquire()?;
        // Out of its sight is as good as dead.
        taken_over(env, guard.owner_died())?;
        Err(Trouble::Wrong("it got a lock that another holds".to_owned()))
    });
    until_asked(env, &port, &guard)?;
    let waits = env.spawn(2, "waits", move |env| {
        let port = env.open(2, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        tell(env, &port, 0, 0, "told")?;
        let guard = lock.acquire()?;
        Ok(guard.release()?)
    });
    take_signal(env, &port, READY)?;
    dies.kill();
    // Handed to the dead one.
    let handed = guard.release();
    let (outcome, _home) = ended_by(env, &port, home, vec![waits]);
    let outcome = worse(outcome, killed(dies.join()));
    outcome?;
    right!(
        handed.is_ok() || matches!(handed, Err(netvm::Error::Failed(_))),
        "{handed:?}"
    );
    Ok(mine.acquire()?.release()?)
}

pub(in super::super) fn dead_in_queue(env: &Env) -> Outcome {
    let port = env.open(0, 0)?;
    let home = Semaphore::create(&port, "semaphore", 0, all())?;
    let _told = share(&port, "told", 4096)?;
    let mine = semaphore(env, &port, 0, "semaphore")?;
    let dies = env.spawn(1, "dies", move |env| {
        let port = env.open(1, 0)?;
        let mut semaphore = semaphore(env, &port, 0, "semaphore")?;
        tell(env, &port, 0, 0, "told")?;
        semaphore.wait()?;
        Ok(())
    });
    take_signal(env, &port, READY)?;
    crate::env::pass(&port, std::time::Duration::from_millis(2))?;
    let waits = env.spawn(2, "waits", move |env| {
        let port = env.open(2, 0)?;
        let mut semaphore = semaphore(env, &port, 0, "semaphore")?;
        tell(env, &port, 0, 0, "told")?;
        semaphore.wait()?;
        Ok(())
    });
    take_signal(env, &port, READY)?;
    dies.kill();
    // One token goes to the dead one, if it comes before the other finds that out.
    mine.signal()?;
    mine.signal()?;
    let (outcome, _home) = ended_by(env, &port, home, vec![waits]);
    let outcome = worse(outcome, killed(dies.join()));
    let _ = port.notification(3)?.wait(Timeout::Now);
    outcome
}
