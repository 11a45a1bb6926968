//! What each operation costs in messages, and what the same costs the traditional way: under a lock, in
//! three phases (thesis 8).

use super::{all, at_home, lock, queue, semaphore, until_asked};
use crate::env::Env;
use crate::outcome::{Outcome, right};
use crate::side::share;
use netvm::sync::{Lock, Semaphore, WaitQueue};
use netvm::{Error, Nanos, Port, PortStats};

/// A shorter wait makes no look; each look after this is a round trip.
const FIRST_LOOK: Nanos = Nanos::from_millis(5);

/// Round trips and one-way messages that a port has begun.
fn cost(stats: PortStats) -> (u64, u64) {
    let trips = stats.atomics + stats.read_messages + stats.remote_flushes;
    (trips, stats.write_messages)
}

/// Checks what an operation costs.
fn costs<T>(
    port: &Port,
    what: &str,
    (trips, messages): (u64, u64),
    operation: impl FnOnce() -> netvm::Result<T>,
) -> Outcome<T> {
    let (before, began) = (cost(port.stats()), port.now());
    let result = operation()?;
    let after = cost(port.stats());
    let cost = (after.0 - before.0, after.1 - before.1);
    let long = port.now().0 - began.0 >= FIRST_LOOK.0;
    if long && cost.0 < trips {
        // It has waited as long as it may for a message that a fault has cost: a thread of the library goes on.
        return Err(Error::TimedOut.into());
    }
    right!(
        cost == (trips, messages) || (long && cost.0 > trips && cost.1 == messages),
        "{what}: {} round trips and {} one-way messages instead of {trips} and {messages}",
        cost.0,
        cost.1
    );
    Ok(result)
}

pub(in super::super) fn lock_messages(env: &Env) -> Outcome {
    let home = |port: &Port| Ok((Lock::create(port, "lock", all())?, share(port, "here", 4096)?));
    at_home(env, home, || {
        let (one, two) = (env.open(0, 0)?, env.open(0, 1)?);
        let there = share(&two, "there", 4096)?;
        let mut first = lock(env, &one, 1, "lock")?;
        let near = env.import(&one, 1, 0, "here")?;
        let far = env.import(&one, 0, 1, "there")?;

        // Alone.
        let guard = costs(&one, "acquire", (1, 0), || first.acquire())?;
        costs(&one, "release", (1, 0), || guard.release())?;
        // Data beside the lock travels for nothing; a node written to elsewhere costs a flush.
        let guard = first.acquire()?;
        near.write(0, &[1; 100]).post()?;
        costs(&one, "release, data beside the lock", (1, 0), || guard.release())?;
        let mut landed = [0; 100];
        near.read(0, &mut landed).call()?;
        right!(landed == [1; 100], "it has not landed");
        let guard = first.acquire()?;
        far.write(0, &[2; 100]).post()?;
        costs(&one, "release, data elsewhere", (2, 0), || guard.release())?;
        there.read_into(0, &mut landed)?;
        right!(landed == [2; 100], "it has not landed");

        // Contended. The first time around, both make contact.
        for round in 0..2 {
            let guard = first.acquire()?;
            let mut other = lock(env, &two, 1, "lock")?;
            let waiter = env.spawn_thread(0, "waits", move |_| {
                let guard = other.acquire()?;
                Ok(guard.release()?)
            });
            until_asked(env, &one, &guard)?;
            if round == 0 {
                guard.release()?;
            } else {
                costs(&one, "release to a waiter", (0, 1), || guard.release())?;
            }
            waiter.join()?;
        }
        // The waiter pays one round trip and one message; the previous holder pays one message.
        let before = cost(two.stats());
        let guard = first.acquire()?;
        let mut other = lock(env, &two, 1, "lock")?;
        let joined = cost(two.stats());
        let began = two.now();
        // It leaves after its costs have been read.
        let (keep, _kept) = std::sync::mpsc::channel();
        let waiter = env.spawn_thread(0, "waits", move |_| {
            let guard = other.acquire()?;
            std::mem::forget(guard);
            // If the body has ended with an error, the participant leaves here.
            let _ = keep.send(other);
            Ok(())
        });
        until_asked(env, &one, &guard)?;
        guard.release()?;
        waiter.join()?;
        let after = cost(two.stats());
        right!(before.0 < joined.0, "joining costs something");
        let contended = (after.0 - joined.0, after.1 - joined.1);
        let long = two.now().0 - began.0 >= FIRST_LOOK.0;
        right!(
            contended == (1, 1) || (long && contended.0 > 1 && contended.1 == 1),
            "acquire behind another: {contended:?} round trips and messages"
        );
        Ok(())
    })
}

pub(in super::super) fn semaphore_messages(env: &Env) -> Outcome {
    let home = |port: &Port| {
        Ok((
            Semaphore::create(port, "semaphore", 2, all())?,
            Lock::create(port, "lock", all())?,
            share(port, "value", 4096)?,
        ))
    };
    at_home(env, home, || {
        let port = env.open(0, 0)?;
        let mut semaphore = semaphore(env, &port, 1, "semaphore")?;
        costs(&port, "Swait", (1, 0), || semaphore.wait())?;
        costs(&port, "Ssignal", (1, 0), || semaphore.signal())?;
        costs(&port, "Swait, only tried", (1, 0), || semaphore.try_wait())?;

        // The traditional way: a lock, the count read and written, the lock.
        let mut lock = lock(env, &port, 1, "lock")?;
        let value = env.import(&port, 1, 0, "value")?;
        costs(&port, "Ssignal in three phases", (3, 1), || {
            let guard = lock.acquire()?;
            let mut bytes = [0; 8];
            value.read(0, &mut bytes).call()?;
            let more = u64::from_le_bytes(bytes) + 1;
            value.write(0, &more.to_le_bytes()).post()?;
            guard.release()
        })
    })
}

pub(in super::super) fn queue_messages(env: &Env) -> Outcome {
    let home = |port: &Port| WaitQueue::create(port, "queue", all());
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?, env.open(0, 2)?];
        let [three, one, two] = &ports;
        let mine = queue(env, three, 1, "queue")?;
        let mut first = queue(env, one, 1, "queue")?;
        let mut second = queue(env, two, 1, "queue")?;
        // The first time around, each participant makes contact with each other one.
        let mut waits = first.insert()?;
        let mut appended = second.insert()?;
        mine.signal()?;
        waits.wait(env.patience)?;
        mine.signal()?;
        appended.wait(env.patience)?;
        drop((waits, appended));

        let mut waits = costs(one, "insertQ", (1, 0), || first.insert())?;
        let mut appended = costs(two, "insertQ behind another", (1, 1), || second.insert())?;
        costs(three, "removeQ", (1, 1), || mine.signal())?;
        costs(one, "waitQ with a successor", (1, 0), || waits.wait(env.patience))?;
        costs(three, "removeQ", (1, 1), || mine.signal())?;
        costs(two, "waitQ", (0, 0), || appended.wait(env.patience))?;
        costs(three, "removeQ of an empty queue", (1, 0), || mine.signal())?;
        Ok(())
    })
}
