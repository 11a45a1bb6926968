//! Waiting for events and tokens: none lost, none invented, and in order.

use super::{all, at_home, begin, ended, everywhere, queue, semaphore};
use crate::env::{Env, pass, take_signals};
use crate::outcome::{Outcome, fails, right};
use crate::side::{share, worse};
use netvm::sync::{Condition, Monitor, Semaphore, WaitQueue, Woken};
use netvm::{Error, Port, Timeout};
use std::time::Duration;

pub(in super::super) fn semaphore_tokens(env: &Env) -> Outcome {
    let nodes = env.nodes.len().min(4);
    let rounds = env.scaled(8);
    let port = env.open(0, 0)?;
    let _full = Semaphore::create(&port, "full", 0, all())?;
    let _free = Semaphore::create(&port, "free", 3, all())?;
    // With an odd number of nodes the even ones' last tokens are for one more process.
    let left = (nodes % 2) as u32 * rounds;
    let more = env.spawn(0, "more", move |env| {
        let port = env.open(0, 2)?;
        let mut full = semaphore(env, &port, 0, "full")?;
        let free = semaphore(env, &port, 0, "free")?;
        for _ in 0..left {
            full.wait()?;
            free.signal()?;
        }
        Ok(())
    });
    let outcome = everywhere(env, nodes, move |env, port, node| {
        let mut full = semaphore(env, &port, 0, "full")?;
        let mut free = semaphore(env, &port, 0, "free")?;
        for round in 0..rounds {
            // As many give as take: the first half of the nodes, and the others.
            if node % 2 == 0 {
                free.wait()?;
                full.signal()?;
            } else {
                full.wait()?;
                free.signal()?;
            }
            if round % 4 == 1 {
                env.pressure(0);
            }
        }
        Ok(())
    });
    worse(outcome, more.join())?;
    let full = semaphore(env, &port, 0, "full")?;
    let free = semaphore(env, &port, 0, "free")?;
    right!(full.try_wait()? == 0, "a token out of nothing");
    right!(free.try_wait()? == 3, "tokens are missing, or too many");
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
        right!(!mine.signal()?, "nobody waits");
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
            // The first has not said yet who comes next: this one is pending.
            right!(mine.signal()?, "one waits");
            right!(!mine.signal()?, "both are spoken for");
            right!(one.wait(env.patience)? == Woken::Signal, "a signal");
            right!(two.wait(env.patience)? == Woken::Signal, "a signal");
        }
        // Who leaves early lets the others out.
        let one = first.insert()?;
        let mut two = second.insert()?;
        drop(one);
        right!(
            two.wait(env.patience)? == Woken::Reset,
            "the queue was left early"
        );
        right!(!mine.signal()?, "nobody waits");
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
    // Words: how many are in, how many were taken out, their sum; then the slots.
    let members = begin(env, nodes, move |env, port, node| {
        let home = (env.id(0), env.port_id(0), env.patience);
        let mut monitor = Monitor::join(&port, home.0, home.1, "monitor", home.2)?;
        let mut not_full = Condition::join(&port, home.0, home.1, "not full", home.2)?;
        let mut not_empty = Condition::join(&port, home.0, home.1, "not empty", home.2)?;
        let buffer = env.import(&port, 0, 0, "buffer")?;
        let load = |at: u64| {
            let mut bytes = [0; 8];
            buffer.read(8 * at, &mut bytes).post()?;
            netvm::Result::Ok(u64::from_le_bytes(bytes))
        };
        let store = |at: u64, value: u64| buffer.write(8 * at, &value.to_le_bytes()).post();
        let puts = if node == 0 { rounds * (nodes as u32 - 1) } else { 0 };
        for number in 1..=puts {
            let mut inside = monitor.enter()?;
            while load(0)? - load(1)? == ROOM {
                inside.wait(&mut not_full)?;
            }
            let at = load(0)?;
            store(8 + at % ROOM, number.into())?;
            store(0, at + 1)?;
            not_empty.signal()?;
            inside.leave()?;
        }
        let takes = if node == 0 { 0 } else { rounds };
        for _ in 0..takes {
            let mut inside = monitor.enter()?;
            while load(0)? == load(1)? {
                inside.wait(&mut not_empty)?;
            }
            let at = load(1)?;
            let number = load(8 + at % ROOM)?;
            right!(number == at + 1, "item {} is {number}", at + 1);
            store(1, at + 1)?;
            store(2, load(2)? + number)?;
            not_full.signal()?;
            inside.leave()?;
            pass(&port, Duration::from_micros(5))?;
        }
        buffer.notify(DONE)?;
        Ok(port.flush_remote(env.id(0))?)
    });
    let port = env.open(0, 0)?;
    let _monitor = Monitor::create(&port, "monitor", all())?;
    let _not_full = Condition::create(&port, "not full", all())?;
    let _not_empty = Condition::create(&port, "not empty", all())?;
    let memory = share(&port, "buffer", 4096)?;
    let told = take_signals(env, &port, DONE, nodes as u32);
    worse(told, ended(members))?;
    let count = u64::from(rounds) * (nodes as u64 - 1);
    let mut sum = [0; 8];
    memory.read_into(16, &mut sum)?;
    let sum = u64::from_le_bytes(sum);
    right!(sum == count * (count + 1) / 2, "{count} items add up to {sum}");
    Ok(())
}
