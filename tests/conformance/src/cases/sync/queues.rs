//! Waiting for events and tokens: none lost, none invented, and in order.

use super::{Witness, all, at_home, begin, ended_by, queue, semaphore, taken_over};
use crate::env::{Env, pass, take_signals};
use crate::outcome::{Outcome, Trouble, due, fails, right};
use crate::side::{share, worse};
use netvm::sync::{Condition, Inside, Monitor, Semaphore, WaitQueue, Woken};
use netvm::{Error, Port, Timeout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What the semaphore of free slots begins with.
const FREE: u32 = 3;

/// A semaphore's tokens, counted beside all that could fail, by processes that share a machine's memory.
#[derive(Clone, Default)]
struct Tokens {
    /// Counted before it is tried: one that failed may have been given.
    given: Arc<AtomicU32>,
    /// Counted when it is sure.
    taken: Arc<AtomicU32>,
}

impl Tokens {
    fn give(&self, semaphore: &Semaphore) -> netvm::Result<()> {
        self.given.fetch_add(1, Ordering::Relaxed);
        semaphore.signal().map(drop)
    }

    fn take(&self, semaphore: &mut Semaphore) -> netvm::Result<()> {
        semaphore.wait()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes all that are left; tells how many those were.
    fn drain(&self, semaphore: &mut Semaphore) -> netvm::Result<u32> {
        let mut count = 0;
        while semaphore.try_wait()? > 0 {
            self.taken.fetch_add(1, Ordering::Relaxed);
            count += 1;
        }
        Ok(count)
    }

    /// None was taken that was not given. Where nothing may fail the ends are exact, and say as much.
    fn judge(&self, env: &Env, first: u32) -> Outcome {
        // In this order: none that is taken meanwhile counts without the one that was given for it.
        let taken = self.taken.load(Ordering::Relaxed);
        let given = self.given.load(Ordering::Relaxed);
        right!(
            !env.may_fail || taken <= first + given,
            "{taken} tokens were taken, of {first} + {given}"
        );
        Ok(())
    }
}

pub(in super::super) fn semaphore_tokens(env: &Env) -> Outcome {
    let nodes = env.nodes.len().min(4);
    let rounds = env.scaled(8);
    let (full_tokens, free_tokens) = (Tokens::default(), Tokens::default());
    // With an odd number of nodes the even ones' last tokens are for one more process.
    let left = (nodes % 2) as u32 * rounds;
    let tokens = (full_tokens.clone(), free_tokens.clone());
    let more = env.spawn(0, "more", move |env| {
        let port = env.open(0, 2)?;
        let mut full = semaphore(env, &port, 0, "full")?;
        let free = semaphore(env, &port, 0, "free")?;
        for _ in 0..left {
            tokens.0.take(&mut full)?;
            tokens.1.give(&free)?;
        }
        Ok(port.flush_remote(env.id(0))?)
    });
    let tokens = (full_tokens.clone(), free_tokens.clone());
    let mut members = begin(env, nodes, move |env, port, node| {
        let mut full = semaphore(env, &port, 0, "full")?;
        let mut free = semaphore(env, &port, 0, "free")?;
        for round in 0..rounds {
            // As many give as take: the first half of the nodes, and the others.
            if node % 2 == 0 {
                tokens.1.take(&mut free)?;
                tokens.0.give(&full)?;
            } else {
                tokens.0.take(&mut full)?;
                tokens.1.give(&free)?;
            }
            if round % 4 == 1 {
                env.pressure(0);
            }
        }
        Ok(())
    });
    members.push(more);
    let port = env.open(0, 0)?;
    let homes = (
        Semaphore::create(&port, "full", 0, all())?,
        Semaphore::create(&port, "free", FREE, all())?,
    );
    let (outcome, homes) = ended_by(env, &port, homes, members);
    full_tokens.judge(env, 0)?;
    free_tokens.judge(env, FREE)?;
    let _homes = match homes {
        Some(homes) => homes,
        None => return outcome,
    };
    // However the members have ended, there are no more tokens than were given.
    let mut full = semaphore(env, &port, 0, "full")?;
    let mut free = semaphore(env, &port, 0, "free")?;
    let lasted = (full_tokens.drain(&mut full)?, free_tokens.drain(&mut free)?);
    full_tokens.judge(env, 0)?;
    free_tokens.judge(env, FREE)?;
    outcome?;
    if lasted != (0, FREE) && env.may_fail {
        // A queue was reset because a process was out of reach, and a token came to one that had left.
        return Err(Trouble::Unexpected(format!(
            "tokens are missing: {lasted:?} are left"
        )));
    }
    right!(
        lasted == (0, FREE),
        "tokens are missing, or too many: {lasted:?} are left"
    );
    fails(
        full.try_wait_for(Duration::from_micros(200)),
        "no token",
        |error| *error == Error::TimedOut,
    )
}

pub(in super::super) fn wait_queue_order(env: &Env) -> Outcome {
    let home = |port: &Port| WaitQueue::create(port, "queue", all());
    at_home(env, home, || {
        let ports = [env.open(0, 0)?, env.open(0, 1)?, env.open(0, 2)?];
        let mine = queue(env, &ports[0], 1, "queue")?;
        let mut first = queue(env, &ports[1], 1, "queue")?;
        let mut second = queue(env, &ports[2], 1, "queue")?;
        right!(!mine.signal()?, "no process waits");
        for _ in 0..env.scaled(4) {
            let mut one = first.insert()?;
            let mut two = second.insert()?;
            fails(one.wait(Timeout::Now), "no signal", |error| {
                *error == Error::TimedOut
            })?;
            right!(mine.signal()?, "two wait");
            fails(
                two.wait(Duration::from_micros(100)),
                "a signal for another",
                |error| *error == Error::TimedOut,
            )?;
            // The first has not named its successor yet: this one is pending.
            right!(mine.signal()?, "one waits");
            right!(!mine.signal()?, "both are spoken for");
            for waiting in [&mut one, &mut two] {
                match waiting.wait(env.patience)? {
                    Woken::Signal => {}
                    // A grant that was lost: then all are let out, in time.
                    Woken::Reset if env.may_fail => {
                        return Err(Trouble::Unexpected("the queue was reset".to_owned()));
                    }
                    Woken::Reset => return Err(Trouble::Wrong("no process has died".to_owned())),
                }
            }
        }
        // A process that leaves early lets the others out.
        let one = first.insert()?;
        let mut two = second.insert()?;
        drop(one);
        right!(
            two.wait(env.patience)? == Woken::Reset,
            "the queue was left early"
        );
        right!(!mine.signal()?, "no process waits");
        Ok(())
    })
}

/// Slots of the buffer.
const ROOM: u64 = 2;
/// Each member says so at its end: it may be on another machine.
const DONE: u32 = 1;

pub(in super::super) fn bounded_buffer(env: &Env) -> Outcome {
    let nodes = env.nodes.len().min(3);
    let rounds = env.scaled(5);
    let witness = Witness::default();
    // Words: how many are in, how many were taken out, their sum; then the slots.
    let members = begin(env, nodes, move |env, port, node| {
        let home = (env.id(0), env.port_id(0, 0), env.patience);
        let mut monitor = Monitor::join(&port, home.0, home.1, "monitor", home.2)?;
        let mut not_full = Condition::join(&port, home.0, home.1, "not full", home.2)?;
        let mut not_empty = Condition::join(&port, home.0, home.1, "not empty", home.2)?;
        let buffer = env.import(&port, 0, 0, "buffer")?;
        let load = |at: u64| {
            let mut bytes = [0; 8];
            buffer.read(8 * at, &mut bytes).call()?;
            netvm::Result::Ok(u64::from_le_bytes(bytes))
        };
        let store = |at: u64, value: u64| buffer.write(8 * at, &value.to_le_bytes()).post();
        let mut taken = false;
        // Inside, once this holds.
        let mut enter =
            |inside: &mut Inside<'_>, condition: &mut Condition, holds: &dyn Fn() -> netvm::Result<bool>| {
                loop {
                    taken |= inside.owner_died();
                    let entered = witness.enter(node, inside.owner_died())?;
                    if holds()? {
                        return Ok(entered);
                    }
                    drop(entered);
                    inside.wait(condition)?;
                }
            };
        let puts = if node == 0 { rounds * (nodes as u32 - 1) } else { 0 };
        for number in 1..=puts {
            let mut inside = monitor.enter()?;
            let entered: Outcome<_> = enter(&mut inside, &mut not_full, &|| {
                Ok(load(0)?.wrapping_sub(load(1)?) != ROOM)
            });
            let entered = entered?;
            let at = load(0)?;
            store(8 + at % ROOM, number.into())?;
            store(0, at + 1)?;
            not_empty.signal()?;
            drop(entered);
            inside.leave()?;
        }
        let takes = if node == 0 { 0 } else { rounds };
        for _ in 0..takes {
            let mut inside = monitor.enter()?;
            let entered = enter(&mut inside, &mut not_empty, &|| Ok(load(0)? != load(1)?))?;
            let at = load(1)?;
            let number = load(8 + at % ROOM)?;
            due!(number == at + 1, "item {} is {number}", at + 1);
            store(1, at + 1)?;
            store(2, load(2)? + number)?;
            not_full.signal()?;
            drop(entered);
            inside.leave()?;
            pass(&port, Duration::from_micros(5))?;
        }
        buffer.notify(DONE)?;
        port.flush_remote(env.id(0))?;
        taken_over(env, taken)
    });
    let port = env.open(0, 0)?;
    let homes = (
        Monitor::create(&port, "monitor", all())?,
        Condition::create(&port, "not full", all())?,
        Condition::create(&port, "not empty", all())?,
    );
    let memory = share(&port, "buffer", 4096)?;
    let told = take_signals(env, &port, DONE, nodes as u32);
    let (outcome, _homes) = ended_by(env, &port, homes, members);
    worse(told, outcome)?;
    let count = u64::from(rounds) * (nodes as u64 - 1);
    let mut sum = [0; 8];
    memory.read_into(16, &mut sum)?;
    let sum = u64::from_le_bytes(sum);
    due!(sum == count * (count + 1) / 2, "{count} items add up to {sum}");
    Ok(())
}
