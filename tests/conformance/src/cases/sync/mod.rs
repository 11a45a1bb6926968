//! Locks, semaphores, wait queues and monitors (thesis 8).

mod counts;
mod deaths;
mod locks;
mod outsiders;
mod queues;

pub(super) use counts::{lock_messages, queue_messages, semaphore_messages};
pub(super) use deaths::{dead_holder, dead_in_queue, dead_waiter};
pub(super) use locks::{contended_lock, lock_tries};
pub(super) use outsiders::outsiders;
pub(super) use queues::{bounded_buffer, semaphore_tokens, wait_queue_order};

use crate::cluster::Running;
use crate::env::{Env, pass, take_signal};
use crate::outcome::Outcome;
use crate::side::{share, worse};
use netvm::sync::{Guard, Lock, Semaphore, WaitQueue};
use netvm::{Access, Port};
use std::time::Duration;

/// Who may take part: everybody.
fn all() -> Access {
    Access::everyone()
}

/// Takes part in the lock that a node's first port is home to.
fn lock(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<Lock> {
    Lock::join(port, env.id(node), env.port_id(0), name, env.patience)
}

/// Takes part in the semaphore that a node's first port is home to.
fn semaphore(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<Semaphore> {
    Semaphore::join(port, env.id(node), env.port_id(0), name, env.patience)
}

/// Takes part in the wait queue that a node's first port is home to.
fn queue(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<WaitQueue> {
    WaitQueue::join(port, env.id(node), env.port_id(0), name, env.patience)
}

/// Runs a process on node 1 that is home to some objects, until the body is done. The body opens its ports itself: where
/// node 0 is another machine it cannot, and that process is to run all the same.
fn at_home<H>(
    env: &Env,
    home: impl FnOnce(&Port) -> netvm::Result<H> + Send + 'static,
    body: impl FnOnce() -> Outcome,
) -> Outcome {
    let home = env.spawn(1, "home", move |env| {
        let port = env.open(1, 0)?;
        let _objects = home(&port)?;
        let _done = share(&port, "done", 4096)?;
        take_signal(env, &port, 1)
    });
    let outcome = body();
    let port = env.open(0, 7)?;
    let outcome = worse(outcome, tell(env, &port, 1, 0, "done"));
    worse(outcome, home.join())
}

/// Signals who exports this name, and waits until that has arrived.
fn tell(env: &Env, port: &Port, node: usize, exporter: u16, name: &str) -> Outcome {
    let remote = env.import(port, node, exporter, name)?;
    remote.notify(1)?;
    Ok(port.flush_remote(env.id(node))?)
}

/// Waits until somebody has asked for the lock.
fn until_asked(env: &Env, port: &Port, guard: &Guard<'_>) -> Outcome {
    let deadline = env.deadline(port);
    while !guard.is_asked_for()? {
        pass(port, Duration::from_micros(20))?;
        deadline.check()?;
    }
    Ok(())
}

/// Runs a process on each node (on node 0: on its second port), each with a port of its own; ends when all
/// have.
fn everywhere(
    env: &Env,
    nodes: usize,
    body: impl Fn(&Env, Port, usize) -> Outcome + Clone + Send + 'static,
) -> Outcome {
    ended(begin(env, nodes, body))
}

/// Starts them: before anything of node 0's own, which may be another machine.
fn begin(
    env: &Env,
    nodes: usize,
    body: impl Fn(&Env, Port, usize) -> Outcome + Clone + Send + 'static,
) -> Vec<Box<dyn Running>> {
    let start = |node| {
        let body = body.clone();
        env.spawn(node, "member", move |env| {
            let port = env.open(node, if node == 0 { 1 } else { 0 })?;
            body(env, port, node)
        })
    };
    (0..nodes).map(start).collect()
}

/// How all of them ended.
fn ended(processes: Vec<Box<dyn Running>>) -> Outcome {
    let ends = processes.into_iter().map(|process| process.join());
    ends.fold(Ok(()), worse)
}
