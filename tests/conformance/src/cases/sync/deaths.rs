//! Processes that die while they hold or wait: the others get on.
//!
//! All start at once, before the body has opened a port (it may be another machine's), and take their turns.

use super::{all, ended_by, lock, queue, semaphore, taken_over, tell, until_asked};
use crate::env::{Env, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::side::{share, worse};
use netvm::Port;
use netvm::sync::{Condition, Lock, Monitor, Semaphore, WaitQueue};

const READY: u32 = 1;

/// Tells the process that started this one, and stays as it is until it is killed.
pub(super) fn stay(env: &Env, port: &Port) -> Outcome {
    tell(env, port, 0, 0, "told")?;
    port.notification(2)?.wait(env.patience * 2)?;
    Err(Trouble::Wrong("it should have been killed".to_owned()))
}

pub(super) fn killed(outcome: Outcome) -> Outcome {
    match outcome {
        Err(Trouble::Killed) => Ok(()),
        other => other,
    }
}

/// Waits until the body's own process says that it is this one's turn.
fn my_turn(env: &Env, port: &Port) -> Outcome {
    let _turn = share(port, "turn", 4096)?;
    take_signal(env, port, READY)
}

/// Says so.
fn your_turn(env: &Env, port: &Port, node: usize) -> Outcome {
    tell(env, port, node, 0, "turn")
}

pub(in super::super) fn dead_holder(env: &Env) -> Outcome {
    let holder = env.spawn(1, "holder", move |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        my_turn(env, &port)?;
        let _guard = lock.acquire()?;
        stay(env, &port)
    });
    // One waits as it dies, one comes later.
    let waiter = env.spawn(2, "waiter", move |env| {
        let port = env.open(2, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        let told = env.import(&port, 0, 0, "told")?;
        my_turn(env, &port)?;
        tell(env, &port, 0, 0, "told")?;
        let guard = lock.acquire()?;
        told.write(0, &u32::from(guard.owner_died()).to_le_bytes())
            .post()?;
        Ok(guard.release()?)
    });
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let told = share(&port, "told", 4096)?;
    let mut mine = lock(env, &port, 0, "lock")?;
    drop(mine.acquire()?);
    your_turn(env, &port, 1)?;
    take_signal(env, &port, READY)?;
    your_turn(env, &port, 2)?;
    take_signal(env, &port, READY)?;
    holder.kill();
    let guard = mine.acquire()?;
    let mut known = guard.owner_died();
    drop(guard);
    let (outcome, _home) = ended_by(env, &port, home, vec![waiter]);
    worse(outcome, killed(holder.join()))?;
    known |= told.word32(0)?.load()? != 0;
    right!(known, "no waiter was told that the holder had died");
    // And it is a lock like any other again.
    let guard = mine.acquire()?;
    Ok(guard.release()?)
}

pub(in super::super) fn dead_waiter(env: &Env) -> Outcome {
    let dies = env.spawn(1, "dies", move |env| {
        let port = env.open(1, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        my_turn(env, &port)?;
        let guard = lock.acquire()?;
        // Out of its sight is as good as dead.
        taken_over(env, guard.owner_died())?;
        Err(Trouble::Wrong("it got a lock that another holds".to_owned()))
    });
    let waits = env.spawn(2, "waits", move |env| {
        let port = env.open(2, 0)?;
        let mut lock = lock(env, &port, 0, "lock")?;
        my_turn(env, &port)?;
        tell(env, &port, 0, 0, "told")?;
        let guard = lock.acquire()?;
        Ok(guard.release()?)
    });
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let _told = share(&port, "told", 4096)?;
    let mut mine = lock(env, &port, 0, "lock")?;
    let guard = mine.acquire()?;
    your_turn(env, &port, 1)?;
    until_asked(env, &port, &guard)?;
    your_turn(env, &port, 2)?;
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

/// Two processes that stand in a queue of node 0, in this order; the first one dies there.
fn dead_in_line<H>(
    env: &Env,
    home: impl FnOnce(&Port) -> netvm::Result<H>,
    line: impl Fn(&Env, &Port) -> Outcome + Clone + Send + 'static,
    afterwards: impl FnOnce(&Port) -> Outcome,
) -> Outcome {
    let stand = |node| {
        let line = line.clone();
        env.spawn(node, "stands", move |env| {
            let port = env.open(node, 0)?;
            my_turn(env, &port)?;
            line(env, &port)
        })
    };
    let (dies, waits) = (stand(1), stand(2));
    let port = env.open(0, 0)?;
    let home = home(&port)?;
    let _told = share(&port, "told", 4096)?;
    for node in [1, 2] {
        your_turn(env, &port, node)?;
        take_signal(env, &port, READY)?;
        // The message of a process that has just said so may still be on its way.
        crate::env::pass(&port, std::time::Duration::from_millis(2))?;
    }
    dies.kill();
    let mine = afterwards(&port);
    let (outcome, _home) = ended_by(env, &port, home, vec![waits]);
    worse(mine, worse(outcome, killed(dies.join())))
}

pub(in super::super) fn dead_in_queue(env: &Env) -> Outcome {
    let stand = |env: &Env, port: &Port| {
        let mut semaphore = semaphore(env, port, 0, "semaphore")?;
        tell(env, port, 0, 0, "told")?;
        semaphore.wait()?;
        Ok(())
    };
    let home = |port: &Port| Semaphore::create(port, "semaphore", 0, all());
    dead_in_line(env, home, stand, |port| {
        // One token goes to the dead one, if it comes before the other finds that out.
        let mine = semaphore(env, port, 0, "semaphore")?;
        mine.signal()?;
        mine.signal()?;
        Ok(())
    })
}

pub(in super::super) fn dead_in_wait_queue(env: &Env) -> Outcome {
    let stand = |env: &Env, port: &Port| {
        let mut queue = queue(env, port, 0, "queue")?;
        let mut place = queue.insert()?;
        tell(env, port, 0, 0, "told")?;
        // Woken, or let out because a process in front of it has died: never left there.
        place.wait(env.patience)?;
        Ok(())
    };
    let home = |port: &Port| WaitQueue::create(port, "queue", all());
    dead_in_line(env, home, stand, |port| {
        // For the process that stands first, which is dead.
        queue(env, port, 0, "queue")?.signal()?;
        Ok(())
    })
}

pub(in super::super) fn dead_in_monitor(env: &Env) -> Outcome {
    let member = |env: &Env, port: &Port| {
        let home = (env.id(0), env.port_id(0, 0), env.patience);
        let monitor = Monitor::join(port, home.0, home.1, "monitor", home.2)?;
        let changed = Condition::join(port, home.0, home.1, "changed", home.2)?;
        netvm::Result::Ok((monitor, changed))
    };
    // One dies as it waits for the condition, one inside.
    let waits = env.spawn(1, "dies waiting", move |env| {
        let port = env.open(1, 0)?;
        let (mut monitor, mut changed) = member(env, &port)?;
        my_turn(env, &port)?;
        let mut inside = monitor.enter()?;
        tell(env, &port, 0, 0, "told")?;
        loop {
            inside.wait(&mut changed)?;
        }
    });
    let inside = env.spawn(1, "dies inside", move |env| {
        let port = env.open(1, 1)?;
        let (mut monitor, _changed) = member(env, &port)?;
        let _turn = share(&port, "other turn", 4096)?;
        take_signal(env, &port, READY)?;
        let _inside = monitor.enter()?;
        stay(env, &port)
    });
    let survives = env.spawn(2, "survives", move |env| {
        let port = env.open(2, 0)?;
        let (mut monitor, mut changed) = member(env, &port)?;
        let state = env.import(&port, 0, 0, "told")?;
        my_turn(env, &port)?;
        let mut inside = monitor.enter()?;
        tell(env, &port, 0, 0, "told")?;
        let mut died = false;
        let mut word = [0; 4];
        while word == [0; 4] {
            inside.wait(&mut changed)?;
            died |= inside.owner_died();
            state.read(0, &mut word).call()?;
        }
        state.write(4, &u32::from(died).to_le_bytes()).post()?;
        Ok(inside.leave()?)
    });
    let port = env.open(0, 0)?;
    let homes = (
        Monitor::create(&port, "monitor", all())?,
        Condition::create(&port, "changed", all())?,
    );
    let state = share(&port, "told", 4096)?;
    let (mut monitor, changed) = member(env, &port)?;
    for node in [1, 2] {
        your_turn(env, &port, node)?;
        take_signal(env, &port, READY)?;
        // Once it is out again, it waits.
        monitor.enter()?.leave()?;
    }
    tell(env, &port, 1, 1, "other turn")?;
    take_signal(env, &port, READY)?;
    waits.kill();
    inside.kill();
    let entered = monitor.enter()?;
    let mut known = entered.owner_died();
    state.word32(0)?.store(1)?;
    // One signal, which is for the dead one.
    changed.signal()?;
    entered.leave()?;
    let (outcome, _homes) = ended_by(env, &port, homes, vec![survives]);
    let outcome = worse(outcome, killed(waits.join()));
    worse(outcome, killed(inside.join()))?;
    known |= state.word32(4)?.load()? != 0;
    right!(known, "no process was told of the death inside");
    monitor.enter()?.leave()?;
    Ok(())
}
