//! Locks, tokens and monitors that are awaited; and what becomes of them when the future is dropped, before its end or after it.

use super::{Witness, all, at_home, begin, ended_by, lock, queue, semaphore, taken_over, until_asked};
use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble};
use crate::side::share;
use netvm::sync::alock::{AsymmetricHandle, AsymmetricLock};
use netvm::sync::{Condition, Lock, Monitor, Semaphore, WaitQueue, Woken};
use netvm::{PendingCall, Port};
use std::time::Duration;

/// Ends the body unless the condition holds. Where anything may fail, a participant that was out of reach has passed for a dead one.
macro_rules! due_here {
    ($env:expr, $condition:expr, $($text:tt)+) => {
        if !$condition {
            let text = format!($($text)+);
            return Err(if $env.may_fail { Trouble::Unexpected(text) } else { Trouble::Wrong(text) });
        }
    };
}

/// Waits until a call has ended that no caller has taken yet.
fn until_done<T: Send>(env: &Env, port: &Port, call: &PendingCall<T>) -> Outcome {
    let deadline = env.deadline(port);
    while !call.is_done() {
        pass(port, Duration::from_micros(20))?;
        deadline.check()?;
    }
    Ok(())
}

/// A lock that is not given to the future of a participant that waits is handed on all the same.
pub(in super::super) fn lock_begun(env: &Env) -> Outcome {
    let home = |port: &Port| Lock::create(port, "lock", all());
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?];
        let mut mine = lock(env, &ports[0], 1, "lock")?;
        let mut theirs = lock(env, &ports[1], 1, "lock")?;
        for round in 0..env.scaled(6) {
            let guard = mine.acquire()?;
            due_here!(env, !guard.owner_died(), "round {round}: no participant has died");
            let pending = theirs.begin_acquire();
            until_asked(env, &ports[0], &guard)?;
            due_here!(env, !pending.is_done(), "round {round}: two hold the lock");
            theirs = match round % 3 {
                0 => {
                    guard.release()?;
                    let owned = ports[1].block_on_for(pending, env.patience)??;
                    due_here!(env, mine.try_acquire()?.is_none(), "two hold the lock");
                    due_here!(env, !owned.owner_died(), "no participant has died");
                    due_here!(env, !owned.is_asked_for()?, "no participant waits");
                    let (theirs, released) = owned.release();
                    released?;
                    theirs
                }
                1 => {
                    drop(pending);
                    guard.release()?;
                    lock(env, &ports[1], 1, "lock")?
                }
                _ => {
                    guard.release()?;
                    until_done(env, &ports[1], &pending)?;
                    due_here!(env, mine.try_acquire()?.is_none(), "two hold the lock");
                    drop(pending);
                    lock(env, &ports[1], 1, "lock")?
                }
            };
        }
        let guard = mine.acquire()?;
        due_here!(env, !guard.owner_died(), "no participant has died");
        guard.release()?;
        // A guard that is dropped lets go, too.
        drop(ports[1].block_on_for(theirs.begin_acquire(), env.patience)??);
        Ok(mine.try_acquire_for(env.patience)?.release()?)
    })
}

/// As many as want to, one at a time.
pub(in super::super) fn lock_begun_by_many(env: &Env) -> Outcome {
    let nodes = env.nodes.len().min(4);
    let rounds = env.scaled(6);
    let witness = Witness::default();
    let members = begin(env, nodes, move |env, port, node| {
        let mut lock = lock(env, &port, 0, "lock")?;
        let mut taken = false;
        for _ in 0..rounds {
            let guard = port.block_on(lock.begin_acquire())?;
            let entered = witness.enter(node, guard.owner_died())?;
            taken |= guard.owner_died();
            pass(&port, Duration::from_micros(5))?;
            drop(entered);
            let (again, released) = guard.release();
            released?;
            lock = again;
        }
        taken_over(env, taken)
    });
    let port = env.open(0, 0)?;
    let home = Lock::create(&port, "lock", all())?;
    let (outcome, _home) = ended_by(env, &port, home, members);
    outcome
}

/// A token that no future is left for goes to the next that waits.
pub(in super::super) fn semaphore_begun(env: &Env) -> Outcome {
    let home = |port: &Port| Semaphore::create(port, "tokens", 0, all());
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?, env.open(0, 2)?];
        let given = semaphore(env, &ports[2], 1, "tokens")?;
        let mut first = semaphore(env, &ports[0], 1, "tokens")?;
        let mut second = semaphore(env, &ports[1], 1, "tokens")?;
        for round in 0..env.scaled(6) {
            let pending = first.begin_wait();
            first = match round % 3 {
                0 => {
                    given.signal()?;
                    let (first, _) = ports[0].block_on_for(pending, env.patience)??;
                    given.signal()?;
                    first
                }
                1 => {
                    drop(pending);
                    given.signal()?;
                    semaphore(env, &ports[0], 1, "tokens")?
                }
                _ => {
                    given.signal()?;
                    until_done(env, &ports[0], &pending)?;
                    drop(pending);
                    semaphore(env, &ports[0], 1, "tokens")?
                }
            };
            // There is one in any case.
            (second, _) = ports[1].block_on_for(second.begin_wait(), env.patience)??;
        }
        Ok(())
    })
}

/// Signals until it is enough. One signal may come to a waiter that was dropped before, and from there to none, because the one that it
/// is for does not stand in the queue yet.
fn signal_until(env: &Env, port: &Port, queue: &WaitQueue, mut enough: impl FnMut() -> bool) -> Outcome {
    let deadline = env.deadline(port);
    while !enough() {
        queue.signal()?;
        pass(port, Duration::from_micros(20))?;
        deadline.check()?;
    }
    Ok(())
}

/// A queue is awaited, by futures of which some are dropped.
pub(in super::super) fn queue_begun(env: &Env) -> Outcome {
    let home = |port: &Port| WaitQueue::create(port, "queue", all());
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?];
        let signals = queue(env, &ports[1], 1, "queue")?;
        let mut waits = queue(env, &ports[0], 1, "queue")?;
        for round in 0..env.scaled(6) {
            let pending = waits.begin_wait();
            waits = match round % 3 {
                0 => {
                    signal_until(env, &ports[1], &signals, || pending.is_done())?;
                    let (waits, woken) = ports[0].block_on_for(pending, env.patience)??;
                    due_here!(env, woken == Woken::Signal, "round {round}: a queue was reset");
                    waits
                }
                1 => {
                    // Its signal finds no other that waits.
                    drop(pending);
                    let mut looks = 0..50;
                    signal_until(env, &ports[1], &signals, || looks.next().is_none())?;
                    queue(env, &ports[0], 1, "queue")?
                }
                _ => {
                    signal_until(env, &ports[1], &signals, || pending.is_done())?;
                    drop(pending);
                    queue(env, &ports[0], 1, "queue")?
                }
            };
        }
        Ok(())
    })
}

/// A signal to a waiter whose future was dropped reaches the next one that waits.
pub(in super::super) fn monitor_begun(env: &Env) -> Outcome {
    let home = |port: &Port| {
        let monitor = Monitor::create(port, "monitor", all())?;
        Ok((monitor, Condition::create(port, "condition", all())?))
    };
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?, env.open(0, 2)?];
        let join = |port: &Port| {
            let (node, exporter) = (env.id(1), env.port_id(1, 0));
            let monitor = Monitor::join(port, node, exporter, "monitor", env.patience)?;
            let condition = Condition::join(port, node, exporter, "condition", env.patience)?;
            Ok::<_, netvm::Error>((monitor, condition))
        };
        let (mut signals, condition) = join(&ports[2])?;
        for round in 0..env.scaled(4) {
            // Each is in the queue when the next is inside.
            let (gone, its) = join(&ports[0])?;
            let inside = ports[0].block_on_for(gone.begin_enter(), env.patience)??;
            let first = inside.begin_wait(its);
            let (waits, its) = join(&ports[1])?;
            let inside = ports[1].block_on_for(waits.begin_enter(), env.patience)??;
            due_here!(env, !inside.owner_died(), "no process has died");
            let second = inside.begin_wait(its);
            let inside = signals.enter()?;
            let drops_late = round % 2 == 0;
            let kept = if drops_late {
                Some(first)
            } else {
                drop(first);
                None
            };
            due_here!(env, condition.signal()?, "two wait, and the signal finds none");
            inside.leave()?;
            if let Some(first) = kept {
                until_done(env, &ports[0], &first)?;
                due_here!(env, !second.is_done(), "one signal lets two in");
                drop(first);
            }
            let (inside, _, woken) = ports[1].block_on_for(second, env.patience)??;
            due_here!(
                env,
                woken == Woken::Signal,
                "a queue from which none has gone was reset"
            );
            let (_monitor, left) = inside.leave();
            left?;
        }
        Ok(())
    })
}

/// Takes the lock by a future, of which some are dropped.
fn take(env: &Env, port: &Port, join: impl Fn() -> netvm::Result<AsymmetricHandle>) -> Outcome {
    let mut other = join()?;
    for round in 0..env.scaled(6) {
        let pending = join()?.begin_acquire();
        if round % 2 == 0 {
            let mut guard = port.block_on_for(pending, env.patience)??;
            let others = [env.id(0), env.id(1)].into_iter();
            for node in others.filter(|node| *node != port.node().id()) {
                guard.covers(node);
            }
            // Whether one of the same class waits is not known here.
            let _ = guard.is_asked_for()?;
            let (_handle, released) = guard.release();
            released?;
        } else if round % 4 == 1 {
            drop(pending);
        } else {
            until_done(env, port, &pending)?;
            drop(pending);
        }
        let guard = other.acquire()?;
        guard.release()?;
    }
    Ok(())
}

pub(in super::super) fn alock_begun(env: &Env) -> Outcome {
    let home = env.spawn(1, "home", move |env| {
        let port = env.open(1, 0)?;
        let lock = AsymmetricLock::create(&port, "alock", all())?;
        take(env, &port, || lock.handle())?;
        let _done = share(&port, "done", 4096)?;
        crate::env::take_signal(env, &port, 1)
    });
    let mine = || -> Outcome {
        let port = env.open(0, 0)?;
        let (node, exporter) = (env.id(1), env.port_id(1, 0));
        take(env, &port, || {
            AsymmetricLock::join(&port, node, exporter, "alock", env.patience)
        })
    };
    let outcome = mine();
    let port = env.open(0, 7)?;
    let told = super::tell(env, &port, 1, 0, "done");
    crate::side::worse(crate::side::worse(outcome, told), home.join())
}
