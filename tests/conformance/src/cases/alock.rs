//! The asymmetric lock: by processor on its own node, through the NIC from elsewhere.

use crate::env::{Env, pass, take_signal, take_signals};
use crate::outcome::{Outcome, Trouble, right};
use crate::side::{share, worse};
use netvm::sync::alock::{AsymmetricConfig, AsymmetricGuard, AsymmetricHandle, AsymmetricLock};
use netvm::{Access, Error, Port, PortStats, RemoteSegment, Word64};
use rand::Rng as _;
use std::sync::Arc;
use std::time::Duration;

const LOCK: &str = "asymmetric lock";
const DATA: &str = "what it guards";
const READY: u32 = 51;
const OVER: u32 = 52;
const ASKED: u32 = 53;

/// What the port has had its NIC do.
const fn commands(stats: &PortStats) -> u64 {
    stats.writes + stats.reads + stats.remote_flushes + stats.atomics
}

/// Holds a lock for a moment, so that others come meanwhile.
fn linger(port: &Port, random: &mut impl rand::RngCore) -> netvm::Result<()> {
    match random.random_range(0..4) {
        0 => pass(port, Duration::from_nanos(random.random_range(1..5_000))),
        _ => Ok(()),
    }
}

/// Counts in memory that it reaches with its processor; no atomics: without the lock counts are lost.
fn count_here(
    port: &Port,
    lock: &mut AsymmetricHandle,
    word: &Word64,
    rounds: u32,
    random: &mut impl rand::RngCore,
) -> Outcome {
    for _ in 0..rounds {
        let guard = lock.acquire()?;
        let count = word.load()?;
        linger(port, random)?;
        word.store(count + 1)?;
        guard.release()?;
        linger(port, random)?;
    }
    Ok(())
}

/// Counts in memory that it reaches through its NIC.
fn count_there(
    port: &Port,
    lock: &mut AsymmetricHandle,
    data: &RemoteSegment,
    rounds: u32,
    random: &mut impl rand::RngCore,
    mut tell: impl FnMut(&mut AsymmetricGuard<'_>),
) -> Outcome {
    for _ in 0..rounds {
        let mut guard = lock.acquire()?;
        tell(&mut guard);
        let mut bytes = [0; 8];
        data.read(0, &mut bytes).call()?;
        linger(port, random)?;
        let count = u64::from_le_bytes(bytes) + 1;
        // Not waited for: the release is ordered behind it.
        data.write(0, &count.to_le_bytes()).post()?;
        guard.release()?;
        linger(port, random)?;
    }
    Ok(())
}

/// Joins the lock of port 0 of node 0.
fn join(env: &Env, port: &Port) -> netvm::Result<AsymmetricHandle> {
    AsymmetricLock::join(port, env.id(0), env.port_id(0, 0), LOCK, env.patience)
}

/// Threads of the calling process, on node 0, that each count so often.
fn threads(
    env: &Env,
    home: &Arc<Port>,
    lock: &AsymmetricLock,
    word: &Word64,
    count: u64,
    rounds: u32,
) -> Outcome {
    let mut running = Vec::new();
    for thread in 0..count {
        let (home, lock, word) = (Arc::clone(home), lock.clone(), word.clone());
        running.push(env.spawn_thread(0, "local", move |env| {
            let mut handle = lock.handle()?;
            count_here(&home, &mut handle, &word, rounds, &mut env.random(thread))
        }));
    }
    let mut ended = Ok(());
    for thread in running {
        ended = worse(ended, thread.join());
    }
    ended
}

pub(super) fn alock_local(env: &Env) -> Outcome {
    const THREADS: u64 = 4;
    let rounds = env.scaled(50);
    let home = Arc::new(env.open(0, 0)?);
    let memory = home.alloc(4096)?;
    let word = memory.word64(0)?;
    let lock = AsymmetricLock::create(&home, LOCK, Access::everyone())?;
    let before = commands(&home.stats());
    threads(env, &home, &lock, &word, THREADS, rounds)?;
    let count = word.load()?;
    right!(
        count == THREADS * u64::from(rounds),
        "{count} counted, of {THREADS} x {rounds}"
    );
    let posted = commands(&home.stats()) - before;
    right!(posted == 0, "local members had the NIC do {posted} commands");
    Ok(())
}

/// Members of all kinds on one counter beside the lock.
fn mixed(env: &Env, config: AsymmetricConfig, local: u64, remote: &[usize], pressure: bool) -> Outcome {
    let rounds = env.scaled(20);
    let mut running = Vec::new();
    for (at, &node) in remote.iter().enumerate() {
        let index = at as u16 + 1;
        running.push(env.spawn(node, "remote", move |env| {
            let port = env.open(node, index)?;
            let data = env.import(&port, 0, 0, DATA)?;
            let mut lock = join(env, &port)?;
            let mut random = env.random(100 + u64::from(index));
            for _ in 0..rounds {
                count_there(&port, &mut lock, &data, 1, &mut random, |_| {})?;
                if pressure {
                    env.pressure(node);
                    env.pressure(0);
                }
                data.notify(OVER)?;
            }
            Ok(port.flush_remote(env.id(0))?)
        }));
    }
    let home = Arc::new(env.open(0, 0)?);
    let data = share(&home, DATA, 4096)?;
    let word = data.word64(0)?;
    let lock = AsymmetricLock::create(&home, LOCK, config)?;
    let before = commands(&home.stats());
    let mut ended = threads(env, &home, &lock, &word, local, rounds);
    // One for each round: the patience is for one round, however many there are and however slow a machine is.
    let signals = remote.len() as u32 * rounds;
    ended = ended.and_then(|()| take_signals(env, &home, OVER, signals));
    for member in running {
        ended = worse(ended, member.join());
    }
    ended?;
    let (count, members) = (word.load()?, local + remote.len() as u64);
    right!(
        count == members * u64::from(rounds),
        "{count} counted, of {members} x {rounds}"
    );
    let posted = commands(&home.stats()) - before;
    right!(posted == 0, "local members had the NIC do {posted} commands");
    Ok(())
}

/// What a remote member without competition has its NIC do.
pub(super) fn alock_alone(env: &Env) -> Outcome {
    let member = env.spawn(1, "remote", |env| {
        let port = env.open(1, 0)?;
        let data = env.import(&port, 0, 0, DATA)?;
        let mut lock = join(env, &port)?;
        for _ in 0..3 {
            let before = port.stats();
            let guard = lock.acquire()?;
            let held = port.stats();
            // The swap, and after it the victim and a look: two round trips, because the second two go together.
            let (atomics, reads) = (held.atomics - before.atomics, held.reads - before.reads);
            right!(
                (atomics, reads) == (2, 1),
                "to take it: {atomics} atomics, {reads} reads"
            );
            guard.release()?;
            let atomics = port.stats().atomics - held.atomics;
            right!(atomics == 1, "to give it back: {atomics} atomics");
            let posted = commands(&port.stats()) - commands(&before);
            right!(posted == 4, "{posted} commands in all");
        }
        data.notify(OVER)?;
        Ok(port.flush_remote(env.id(0))?)
    });
    let home = env.open(0, 0)?;
    let _data = share(&home, DATA, 4096)?;
    let _lock = AsymmetricLock::create(&home, LOCK, Access::everyone())?;
    worse(take_signal(env, &home, OVER), member.join())
}

pub(super) fn alock_remote(env: &Env) -> Outcome {
    // One of them is on the lock's own node, and goes through the NIC all the same.
    mixed(env, Access::everyone().into(), 0, &[1, 1, 0], false)
}

pub(super) fn alock_mixed(env: &Env) -> Outcome {
    mixed(
        env,
        AsymmetricConfig::new(Access::everyone()).budgets(2, 3),
        2,
        &[1, 0, 1],
        false,
    )
}

pub(super) fn alock_strict(env: &Env) -> Outcome {
    mixed(
        env,
        AsymmetricConfig::new(Access::everyone()).budgets(1, 1),
        2,
        &[1, 1],
        false,
    )
}

pub(super) fn alock_evicted(env: &Env) -> Outcome {
    mixed(
        env,
        AsymmetricConfig::new(Access::everyone()).budgets(2, 2),
        2,
        &[1, 1],
        true,
    )
}

pub(super) fn alock_elsewhere(env: &Env) -> Outcome {
    let rounds = env.scaled(10);
    // What it guards lies on the last node, which has no part in the lock.
    let holder = env.spawn(2, "holder", move |env| {
        let port = env.open(2, 0)?;
        let data = share(&port, DATA, 4096)?;
        for _ in 0..2 {
            let over = port.notification(OVER)?;
            over.wait(env.patience)?;
            over.ack()?;
        }
        let count = data.word64(0)?.load()?;
        right!(count == 2 * u64::from(rounds), "{count} counted, of 2 x {rounds}");
        Ok(())
    });
    let count = move |env: &Env, port: &Port, mut lock: AsymmetricHandle, stream| {
        let data = env.import(port, 2, 0, DATA)?;
        let there = env.id(2);
        count_there(port, &mut lock, &data, rounds, &mut env.random(stream), |guard| {
            guard.covers(there)
        })?;
        data.notify(OVER)?;
        Ok(port.flush_remote(there)?)
    };
    let remote = env.spawn(1, "remote", move |env| {
        let port = env.open(1, 0)?;
        let lock = join(env, &port)?;
        count(env, &port, lock, 1)
    });
    let home = env.open(0, 0)?;
    let lock = AsymmetricLock::create(&home, LOCK, Access::everyone())?;
    let ended = lock.handle().map_err(Trouble::from);
    let ended = ended.and_then(|lock| count(env, &home, lock, 2));
    worse(worse(ended, remote.join()), holder.join())
}

pub(super) fn alock_greedy(env: &Env) -> Outcome {
    let rounds = env.scaled(5);
    let remote = env.spawn(1, "remote", move |env| {
        let port = env.open(1, 0)?;
        let data = env.import(&port, 0, 0, DATA)?;
        let mut lock = join(env, &port)?;
        count_there(&port, &mut lock, &data, rounds, &mut env.random(9), |_| {})?;
        data.write(8, &1u64.to_le_bytes()).post()?;
        Ok(port.flush_remote(env.id(0))?)
    });
    let home = Arc::new(env.open(0, 0)?);
    let data = share(&home, DATA, 4096)?;
    let lock = AsymmetricLock::create(
        &home,
        LOCK,
        AsymmetricConfig::new(Access::everyone()).budgets(2, 1),
    )?;
    // Two that want it all the time, until the remote one has had it so often: without budgets, never.
    let mut greedy = Vec::new();
    for thread in 0..2 {
        let (home, lock, word, over) = (Arc::clone(&home), lock.clone(), data.word64(0)?, data.word64(8)?);
        greedy.push(env.spawn_thread(0, "greedy", move |env| {
            let (mut lock, mut random) = (lock.handle()?, env.random(thread));
            let deadline = env.deadline(&home);
            let mut mine = 0;
            while over.load()? == 0 {
                deadline.check()?;
                count_here(&home, &mut lock, &word, 1, &mut random)?;
                mine += 1;
            }
            // Its own share goes out of the count again, under the lock.
            let guard = lock.acquire()?;
            word.store(word.load()?.wrapping_sub(mine))?;
            Ok(guard.release()?)
        }));
    }
    let mut ended = Ok(());
    for member in greedy {
        ended = worse(ended, member.join());
    }
    worse(ended, remote.join())?;
    let count = data.word64(0)?.load()?;
    right!(count == u64::from(rounds), "{count} counted, of {rounds}");
    Ok(())
}

/// The call ends because a member has died, on this node.
fn is_lost(env: &Env, result: netvm::Result<()>, node: usize) -> Outcome {
    match result {
        Err(Error::LockLost { node: died, .. }) if died == env.id(node) => Ok(()),
        Err(error) => Err(Trouble::Failed(error)),
        Ok(()) => Err(Trouble::Unexpected("a lock whose holder is dead was had".into())),
    }
}

pub(super) fn alock_dead_holder(env: &Env) -> Outcome {
    let victim = env.spawn(1, "dies", move |env| {
        let port = env.open(1, 0)?;
        let data = env.import(&port, 0, 0, DATA)?;
        let mut lock = join(env, &port)?;
        let _guard = lock.acquire()?;
        data.notify(READY)?;
        port.notification(OVER)?.wait(env.patience)?;
        Err(Trouble::Unexpected("it was to be killed".into()))
    });
    // One that waits behind it, and one of the other class.
    let waiter = env.spawn(2, "waits", move |env| {
        let port = env.open(2, 0)?;
        let data = env.import(&port, 0, 0, DATA)?;
        let mut lock = join(env, &port)?;
        let _turn = share(&port, "turn", 4096)?;
        take_signal(env, &port, READY)?;
        data.notify(READY)?;
        is_lost(env, lock.acquire().and_then(AsymmetricGuard::release), 1)?;
        // And stays lost.
        is_lost(env, lock.acquire().and_then(AsymmetricGuard::release), 1)
    });
    let home = Arc::new(env.open(0, 0)?);
    let data = share(&home, DATA, 4096)?;
    let lock = AsymmetricLock::create(&home, LOCK, Access::everyone())?;
    take_signal(env, &home, READY)?;
    env.import(&home, 2, 0, "turn")?.notify(READY)?;
    take_signal(env, &home, READY)?;
    let mine = {
        let lock = lock.clone();
        env.spawn_thread(0, "local", move |env| {
            is_lost(
                env,
                lock.handle()?.acquire().and_then(AsymmetricGuard::release),
                1,
            )
        })
    };
    pass(&home, Duration::from_millis(1))?;
    victim.kill();
    let died = match victim.join() {
        Err(Trouble::Killed) => Ok(()),
        ended => worse(ended, Err(Trouble::Unexpected("it was not killed".into()))),
    };
    let ended = worse(worse(died, waiter.join()), mine.join());
    drop(data);
    ended
}

pub(super) fn alock_dead_waiter(env: &Env) -> Outcome {
    let holder = env.spawn(1, "holds", move |env| {
        let port = env.open(1, 0)?;
        let _mine = share(&port, DATA, 4096)?;
        let data = env.import(&port, 0, 0, DATA)?;
        let mut lock = join(env, &port)?;
        let guard = lock.acquire()?;
        data.notify(READY)?;
        // Told when the victim stands behind it: one that dies earlier takes no lock with it.
        let deadline = env.deadline(&port);
        while !guard.is_asked_for()? {
            pass(&port, Duration::from_micros(20))?;
            deadline.check()?;
        }
        data.notify(ASKED)?;
        take_signal(env, &port, OVER)?;
        // The member that it would pass the lock to is dead.
        is_lost(env, guard.release(), 2)
    });
    let victim = env.spawn(2, "dies", move |env| {
        let port = env.open(2, 0)?;
        let mut lock = join(env, &port)?;
        let _turn = share(&port, "turn", 4096)?;
        take_signal(env, &port, READY)?;
        let _guard = lock.acquire()?;
        Err(Trouble::Unexpected("it had the lock that another holds".into()))
    });
    let home = env.open(0, 0)?;
    let _data = share(&home, DATA, 4096)?;
    let lock = AsymmetricLock::create(&home, LOCK, Access::everyone())?;
    take_signal(env, &home, READY)?;
    env.import(&home, 2, 0, "turn")?.notify(READY)?;
    take_signal(env, &home, ASKED)?;
    let to_holder = env.import(&home, 1, 0, DATA)?;
    victim.kill();
    let died = match victim.join() {
        Err(Trouble::Killed) => Ok(()),
        ended => worse(ended, Err(Trouble::Unexpected("it was not killed".into()))),
    };
    to_holder.notify(OVER)?;
    let ended = worse(died, holder.join());
    let mut handle = lock.handle()?;
    worse(
        ended,
        is_lost(env, handle.acquire().and_then(AsymmetricGuard::release), 2),
    )
}

pub(super) fn alock_dead_home(env: &Env) -> Outcome {
    let home = env.spawn(1, "home", move |env| {
        let port = env.open(1, 0)?;
        let lock = AsymmetricLock::create(&port, LOCK, Access::everyone())?;
        let mut handle = lock.handle()?;
        let _guard = handle.acquire()?;
        let data = env.import(&port, 0, 0, DATA)?;
        data.notify(READY)?;
        port.notification(OVER)?.wait(env.patience)?;
        Err(Trouble::Unexpected("it was to be killed".into()))
    });
    let port = env.open(0, 0)?;
    let _data = share(&port, DATA, 4096)?;
    port.notification(READY)?.wait(env.patience)?;
    let mut lock = AsymmetricLock::join(&port, env.id(1), env.port_id(1, 0), LOCK, env.patience)?;
    let waiter = env.spawn_thread(0, "waits", move |_| {
        match lock.acquire().and_then(AsymmetricGuard::release) {
            Err(Error::TimedOut) => Err(Trouble::Failed(Error::TimedOut)),
            Err(_) => Ok(()),
            Ok(()) => Err(Trouble::Unexpected("a lock whose home is dead was had".into())),
        }
    });
    pass(&port, Duration::from_millis(5))?;
    home.kill();
    let died = match home.join() {
        Err(Trouble::Killed) => Ok(()),
        ended => worse(ended, Err(Trouble::Unexpected("it was not killed".into()))),
    };
    worse(died, waiter.join())
}
