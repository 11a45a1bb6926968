//! Locks, semaphores, wait queues and monitors (thesis 8).

mod begun;
mod counts;
mod crowd;
mod deaths;
mod homes;
mod leaving;
mod locks;
mod outsiders;
mod queues;

pub(super) use begun::{
    alock_begun, lock_begun, lock_begun_by_many, monitor_begun, queue_begun, semaphore_begun,
};
pub(super) use counts::{lock_messages, queue_messages, semaphore_messages};
pub(super) use crowd::{deaths_in_a_crowd, no_death};
pub(super) use deaths::{dead_holder, dead_in_monitor, dead_in_queue, dead_in_wait_queue, dead_waiter};
pub(super) use homes::lost_home;
pub(super) use leaving::{failures_outlive_participants, forgotten_guard, own_numbers, panic_in_lock};
pub(super) use locks::{contended_lock, lock_tried_and_waited_for, lock_tries};
pub(super) use outsiders::outsiders;
pub(super) use queues::{bounded_buffer, semaphore_tokens, wait_queue_order};

use crate::cluster::Running;
use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, right};
use crate::side::{share, worse};
use netvm::sync::{Guard, Lock, Semaphore, WaitQueue};
use netvm::{Access, Port};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The access list: every port.
fn all() -> Access {
    Access::everyone()
}

/// Takes part in the lock that a node's first port is home to.
fn lock(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<Lock> {
    Lock::join(port, env.id(node), env.port_id(node, 0), name, env.patience)
}

/// Takes part in the semaphore that a node's first port is home to.
fn semaphore(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<Semaphore> {
    Semaphore::join(port, env.id(node), env.port_id(node, 0), name, env.patience)
}

/// Takes part in the wait queue that a node's first port is home to.
fn queue(env: &Env, port: &Port, node: usize, name: &str) -> netvm::Result<WaitQueue> {
    WaitQueue::join(port, env.id(node), env.port_id(node, 0), name, env.patience)
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

/// Signals the port that exports this name, and waits until that has arrived.
fn tell(env: &Env, port: &Port, node: usize, exporter: u16, name: &str) -> Outcome {
    let remote = env.import(port, node, exporter, name)?;
    remote.notify(1)?;
    Ok(port.flush_remote(env.id(node))?)
}

/// Waits until a participant has asked for the lock.
fn until_asked(env: &Env, port: &Port, guard: &Guard<'_>) -> Outcome {
    let deadline = env.deadline(port);
    while !guard.is_asked_for()? {
        pass(port, Duration::from_micros(20))?;
        deadline.check()?;
    }
    Ok(())
}

/// Starts a process on each node (on node 0: on its second port), each with a port of its own: before anything of node 0's own, which may be another machine.
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

/// The same for processes that use the objects of these homes. Where anything may fail, a process may wait for what
/// never comes: a token that another has died with. Locks, queues and semaphores refuse time-outs; so after a patience
/// the homes go, and then no process may wait any longer. Gives the homes back if they have not gone.
fn ended_by<H>(env: &Env, port: &Port, homes: H, processes: Vec<Box<dyn Running>>) -> (Outcome, Option<H>) {
    let deadline = env.deadline(port);
    while env.may_fail && !processes.iter().all(|process| process.is_over()) {
        let passed = pass(port, Duration::from_micros(50)).and_then(|()| deadline.check());
        if let Err(error) = passed {
            drop(homes);
            return (worse(ended(processes), Err(error.into())), None);
        }
    }
    (ended(processes), Some(homes))
}

/// Records the process inside of a lock, beside all that could fail: for processes that share a machine's memory, as
/// they do on all back ends but the rig.
#[derive(Clone, Default)]
struct Witness(Arc<AtomicUsize>);

impl Witness {
    /// A process has the lock, and says so until the result is dropped. A process that was killed never says that it
    /// has let go; but then the next one must have been told of its death.
    fn enter(&self, who: usize, owner_died: bool) -> Outcome<Entered<'_>> {
        let before = self.0.swap(who + 1, Ordering::Relaxed);
        right!(
            before == 0 || owner_died,
            "{who} has the lock, and so has {}, of whose death no one was told",
            before - 1
        );
        Ok(Entered { witness: self, who })
    }
}

/// Inside of a lock.
struct Entered<'a> {
    witness: &'a Witness,
    who: usize,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Another process may have been given the lock in place of this one, which was out of reach, and lives.
        let _ = self
            .witness
            .0
            .compare_exchange(self.who + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A lock was taken from a holder that died or was out of reach: right only where anything may fail, and an end that is
/// not good.
fn taken_over(env: &Env, died: bool) -> Outcome {
    match (died, env.may_fail) {
        (false, _) => Ok(()),
        (true, true) => Err(Trouble::Unexpected("a holder has gone".to_owned())),
        (true, false) => Err(Trouble::Wrong("no process has died".to_owned())),
    }
}
