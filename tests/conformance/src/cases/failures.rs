//! What fails says so, once, and harms nobody else (promises P2, P5, P6).

use crate::env::{Env, Side, open_to_all, pass, take_signal};
use crate::outcome::{Outcome, Trouble, refused, right};
use crate::pattern;
use netvm::{Error, Port, RemoteSegment, Status, Timeout};
use std::time::Duration;

const DONE: u32 = 900;

/// How a capability that has ended is refused.
const ENDED: &[Status] = &[Status::CapabilityRefused, Status::Revoked];
/// How a port that is not there (any more) refuses.
const GONE: &[Status] = &[
    Status::CapabilityRefused,
    Status::Revoked,
    Status::NoSuchPort,
    Status::LinkLost,
    Status::StaleIncarnation,
    Status::Unmapped,
];

pub(super) fn revoked(env: &Env) -> Outcome {
    env.pair(
        move |env| {
            let Side {
                port,
                segment: _segment,
                ..
            } = env.side(1, 0, "stays", 4096)?;
            let memory = port.alloc(4 * 4096)?;
            let goes = port.export("goes", &memory, .., open_to_all())?;
            let peer = env.import(&port, 0, 0, "peer")?;
            take_signal(env, &port, 1)?;
            goes.unexport()?;
            right!(goes.unexport() == Err(Error::Released), "unexported twice");
            peer.notify(1)?;
            take_signal(env, &port, DONE)?;
            pattern::check(&memory, 0, 1, 0, 4 * 4096, "memory after its export ended")
        },
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(0, 0, "peer", 4 * 4096)?;
            let stays = env.import(&port, 1, 0, "stays")?;
            let goes = env.import(&port, 1, 0, "goes")?;
            goes.write(0, &pattern::bytes(1, 0, 4 * 4096)).post()?;
            stays.notify(1)?;
            take_signal(env, &port, 1)?;

            // A write: said at the remote flush, by number. Of two pages: also in the smallest
            // fragments they are fewer than the error ring has records, so none of them is lost.
            let op = goes.write(0, &[0xEE; 2 * 4096]).post()?;
            match port.flush_remote(env.id(1)) {
                Err(Error::Failed(failure)) if ENDED.contains(&failure.status) => {
                    right!(failure.op == op, "operation {op} failed, {} is named", failure.op);
                    right!(failure.node == env.id(1), "node {} is named", failure.node);
                }
                other => {
                    return Err(Trouble::Unexpected(format!(
                        "flush of a revoked write: {other:?}"
                    )));
                }
            }
            // Said once.
            port.flush_remote(env.id(1))?;
            port.flush()?;
            // A read: said by its own fence.
            refused(goes.read(0, &mut [0; 100]).post(), ENDED)?;
            let slice = memory.slice(0..5000)?;
            refused(goes.read(3, slice).fenced().post(), ENDED)?;
            // Unfenced, at the next call to that node that looks.
            goes.read(0, memory.slice(0..8)?).post()?;
            refused(port.flush_reads(), ENDED)?;
            right!(
                port.stats().failures >= 4,
                "failures were not counted: {:?}",
                port.stats()
            );
            // Import again: it is not there.
            refused(
                port.import(env.id(1), env.port_id(0), "goes", Timeout::Now),
                &[Status::NoSuchExport],
            )?;
            stays.write(0, &[1; 10]).notify(DONE).post()?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

/// Hears of every failure that is left, until a remote flush succeeds.
fn settle(env: &Env, port: &Port, remote: &RemoteSegment) -> Outcome {
    let begin = port.now();
    while let Err(error) = port.flush_remote(remote.node()) {
        let late = port.now().0.saturating_sub(begin.0) > env.patience.as_nanos() as u64;
        if late || !matches!(error, Error::Failed(_) | Error::FailuresLost { .. }) {
            return Err(error.into());
        }
        pass(port, Duration::from_micros(50))?;
    }
    Ok(())
}

/// Writes until the first failure, then says how it failed.
fn write_until_refused(env: &Env, port: &Port, remote: &RemoteSegment) -> Outcome<Status> {
    let source = port.alloc(3 * 4096)?;
    let begin = port.now();
    let mut value = 1u8;
    loop {
        source.write_from(0, &[value; 3 * 4096])?;
        let sent = remote.write(7, source.slice(0..2 * 4096 + 100)?).fenced().post();
        match sent.and_then(|_| port.flush_remote(remote.node())) {
            Ok(()) => {}
            Err(Error::Failed(failure)) => {
                settle(env, port, remote)?;
                return Ok(failure.status);
            }
            Err(error) => return Err(error.into()),
        }
        value = value.wrapping_add(1).max(1);
        if port.now().0.saturating_sub(begin.0) > env.patience.as_nanos() as u64 {
            return Err(Error::TimedOut.into());
        }
    }
}

pub(super) fn unexported_in_traffic(env: &Env) -> Outcome {
    env.pair(
        move |env| {
            let Side {
                port,
                segment: _segment,
                ..
            } = env.side(1, 0, "stays", 4096)?;
            let memory = port.alloc(3 * 4096)?;
            let goes = port.export("goes", &memory, .., open_to_all())?;
            // Wait for traffic, then cut it off in the middle.
            let first = memory.word32(8)?;
            let begin = port.now();
            while first.load()? == 0 {
                pass(&port, Duration::from_micros(10))?;
                if port.now().0.saturating_sub(begin.0) > env.patience.as_nanos() as u64 {
                    return Err(Error::TimedOut.into());
                }
            }
            goes.unexport()?;
            let mut before = vec![0; 3 * 4096];
            memory.read_into(0, &mut before)?;
            take_signal(env, &port, DONE)?;
            pattern::check_bytes(&memory, 0, &before, "memory after unexport had returned")
        },
        move |env| {
            let port = env.open(0, 0)?;
            let stays = env.import(&port, 1, 0, "stays")?;
            let goes = env.import(&port, 1, 0, "goes")?;
            let status = write_until_refused(env, &port, &goes)?;
            if !ENDED.contains(&status) {
                return Err(Trouble::Unexpected(format!("refused with {status:?}")));
            }
            stays.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn suppressed_notification(env: &Env) -> Outcome {
    let rounds = env.scaled(4);
    env.pair(
        move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "good", 2 * 4096)?;
            let bad_memory = port.alloc(4096)?;
            let bad = port.export("bad", &bad_memory, .., open_to_all())?;
            let peer = env.import(&port, 0, 0, "peer")?;
            take_signal(env, &port, 1)?;
            bad.unexport()?;
            peer.notify(1)?;
            for round in 0..u64::from(rounds) {
                // Exactly the one that was sent after the failure had been reported.
                take_signal(env, &port, 5)?;
                pattern::check(&memory, 0, round, 0, 5000, "repeated write")?;
                peer.notify(1)?;
                take_signal(env, &port, 2)?;
                let more = port.notification(5)?.pending();
                right!(more == 0, "{more} notifications passed a failed write");
                // Only now may the next one come.
                peer.notify(1)?;
            }
            Ok(port.flush_remote(env.id(0))?)
        },
        move |env| {
            let Side {
                port,
                segment: _segment,
                ..
            } = env.side(0, 0, "peer", 4096)?;
            let good = env.import(&port, 1, 0, "good")?;
            let bad = env.import(&port, 1, 0, "bad")?;
            good.notify(1)?;
            take_signal(env, &port, 1)?;
            for round in 0..u64::from(rounds) {
                // The failing write and what relies on it, close together. The second call may
                // already hear of the first.
                let first = bad.write(0, &[1; 200]).post()?;
                let sent = good
                    .write(0, &pattern::bytes(round + 1000, 0, 5000))
                    .notify(5)
                    .post();
                let failed = sent.and_then(|_| port.flush_remote(env.id(1)));
                match failed {
                    Err(Error::Failed(failure)) if ENDED.contains(&failure.status) => {
                        right!(
                            failure.op == first,
                            "operation {first} failed, {} is named",
                            failure.op
                        );
                    }
                    other => {
                        return Err(Trouble::Unexpected(format!("flush after a failure: {other:?}")));
                    }
                }
                good.write(0, &pattern::bytes(round, 0, 5000)).notify(5).post()?;
                take_signal(env, &port, 1)?;
                good.notify(2)?;
                take_signal(env, &port, 1)?;
            }
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn closed_exporter(env: &Env) -> Outcome {
    env.pair(
        move |env| {
            let keeper = env.side(1, 1, "keeper", 4096)?;
            let first = env.side(1, 0, "target", 3 * 4096)?;
            take_signal(env, &first.port, 1)?;
            drop(first);
            // A new port with the same number and an export of the same name: nothing that was
            // meant for the old one may hit it.
            let Side {
                port: _port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "target", 3 * 4096)?;
            take_signal(env, &keeper.port, DONE)?;
            let mut bytes = vec![1; 3 * 4096];
            memory.read_into(0, &mut bytes)?;
            right!(
                bytes.iter().all(|&byte| byte == 0),
                "a write to a closed port hit the one after it"
            );
            Ok(())
        },
        move |env| {
            let port = env.open(0, 0)?;
            let keeper = env.import(&port, 1, 1, "keeper")?;
            let target = env.import(&port, 1, 0, "target")?;
            target.write(0, &[1; 5000]).notify(1).post()?;
            let status = write_until_refused(env, &port, &target)?;
            if !GONE.contains(&status) {
                return Err(Trouble::Unexpected(format!("refused with {status:?}")));
            }
            // For as long as the old import is used.
            refused(target.read(0, &mut [0; 64]).post(), GONE)?;
            keeper.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn dead_exporter(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let Side {
            port,
            memory,
            segment: _segment,
        } = env.side(1, 0, "target", 3 * 4096)?;
        let killer = env.import(&port, 0, 0, "killer")?;
        killer.notify(1)?;
        // Busy in every way when it dies.
        let source = port.alloc(4 * 4096)?;
        loop {
            killer.write(0, source.slice(5..3 * 4096 + 5)?).post()?;
            memory.write_from(100, &[1; 500])?;
            pass(&port, Duration::from_micros(20))?;
        }
    });
    let survivor = || -> Outcome {
        let Side {
            port,
            segment: _segment,
            ..
        } = env.side(0, 0, "killer", 4 * 4096)?;
        let target = env.import(&port, 1, 0, "target")?;
        take_signal(env, &port, 1)?;
        for _ in 0..5 {
            target.write(0, &[2; 3 * 4096]).post()?;
        }
        victim.kill();
        let status = write_until_refused(env, &port, &target)?;
        if !GONE.contains(&status) {
            return Err(Trouble::Unexpected(format!("refused with {status:?}")));
        }
        // Its port number is free for the next process.
        env.pair(
            move |env| {
                let Side {
                    port,
                    memory,
                    segment: _segment,
                } = env.side(1, 0, "heir", 4096)?;
                take_signal(env, &port, 1)?;
                let mut bytes = [0; 4096];
                memory.read_into(0, &mut bytes)?;
                right!(
                    bytes[0] == 9 && bytes[1..].iter().all(|&b| b == 0),
                    "an heir's memory is not its own"
                );
                Ok(())
            },
            |env| {
                let heir = env.import(&port, 1, 0, "heir")?;
                heir.write(0, &[9]).notify(1).post()?;
                Ok(port.flush_remote(env.id(1))?)
            },
        )
    };
    let mine = survivor();
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => crate::env::worse(mine, other),
    }
}

pub(super) fn restarted_node(env: &Env) -> Outcome {
    let first = env.spawn(1, "first life", move |env| {
        let Side {
            port,
            segment: _segment,
            ..
        } = env.side(1, 0, "target", 3 * 4096)?;
        take_signal(env, &port, DONE)
    });
    let survivor = || -> Outcome {
        let port = env.open(0, 0)?;
        let target = env.import(&port, 1, 0, "target")?;
        target.write(0, &[1; 9000]).post()?;
        port.flush_remote(env.id(1))?;
        env.restart(1);
        let status = write_until_refused(env, &port, &target)?;
        if !GONE.contains(&status) {
            return Err(Trouble::Unexpected(format!("refused with {status:?}")));
        }
        let second = env.spawn(1, "second life", move |env| {
            let Side {
                port,
                memory,
                segment: _segment,
            } = env.side(1, 0, "target", 3 * 4096)?;
            take_signal(env, &port, 1)?;
            pattern::check(&memory, 0, 5, 0, 3 * 4096, "write to a restarted node")
        });
        let mine = || -> Outcome {
            let target = env.import(&port, 1, 0, "target")?;
            let bytes = pattern::bytes(5, 0, 3 * 4096);
            let begin = port.now();
            // The link may still be coming up.
            loop {
                let sent = target.write(0, &bytes).notify(1).post();
                match sent.and_then(|_| port.flush_remote(env.id(1))) {
                    Ok(()) => return Ok(()),
                    Err(Error::Failed(_)) if port.now().0 - begin.0 < env.patience.as_nanos() as u64 => {
                        pass(&port, Duration::from_millis(1))?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let mine = mine();
        crate::env::worse(mine, second.join())
    };
    let mine = survivor();
    match first.join() {
        Ok(()) | Err(Trouble::Killed) => mine,
        // Its port was ended under it.
        Err(Trouble::Failed(Error::PortEnded { .. })) => mine,
        other => crate::env::worse(mine, other),
    }
}
