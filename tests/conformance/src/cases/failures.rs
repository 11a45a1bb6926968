//! What fails says so, once, and harms no other port (promises P2, P5, P6).

use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, refused, right};
use crate::pattern;
use crate::side::{bequeath, inherited, open_to_all, share, worse};
use netvm::{Error, Port, RemoteSegment, Status, Timeout};
use std::time::Duration;

const DONE: u32 = 800;

/// How a capability that has ended is refused.
pub(super) const ENDED: &[Status] = &[Status::CapabilityRefused, Status::Revoked];
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
        move |side| {
            let _export = side.share("stays", 4096)?;
            let memory = side.alloc(4 * 4096)?;
            let goes = side.export("goes", &memory, .., open_to_all())?;
            let peer = side.import_peer("peer")?;
            side.take_signal(1)?;
            goes.unexport()?;
            right!(goes.unexport() == Err(Error::Released), "unexported twice");
            peer.notify(1)?;
            side.take_signal(DONE)?;
            pattern::check(&memory, 0, 1, 0, 4 * 4096, "memory after its export ended")
        },
        move |side| {
            let memory = side.share("peer", 4 * 4096)?;
            let stays = side.import_peer("stays")?;
            let goes = side.import_peer("goes")?;
            goes.write(0, &pattern::bytes(1, 0, 4 * 4096)).post()?;
            stays.notify(1)?;
            side.take_signal(1)?;

            // A write: said at the remote flush, by number. Of two pages: also in the smallest
            // fragments they are fewer than the error ring has records, so none of them is lost.
            let op = goes.write(0, &[0xEE; 2 * 4096]).post()?;
            match side.flush_remote(side.peer()) {
                Err(Error::Failed(failure)) if ENDED.contains(&failure.status) => {
                    right!(failure.op == op, "operation {op} failed, {} is named", failure.op);
                    right!(failure.node == side.peer(), "node {} is named", failure.node);
                }
                other => {
                    return Err(Trouble::Unexpected(format!(
                        "flush of a revoked write: {other:?}"
                    )));
                }
            }
            // Said once.
            side.flush_peer()?;
            side.flush()?;
            // A read: said by its own fence.
            refused(goes.read(0, &mut [0; 100]).call(), ENDED)?;
            let slice = memory.slice(0..5000)?;
            refused(goes.read(3, slice).fenced().post(), ENDED)?;
            // Unfenced, at the next call to that node that looks.
            goes.read(0, memory.slice(0..8)?).post()?;
            refused(side.flush_reads(), ENDED)?;
            right!(
                side.stats().failures >= 4,
                "failures were not counted: {:?}",
                side.stats()
            );
            // Import again: it is not there.
            refused(
                side.import(side.peer(), side.peer_port(0), "goes", Timeout::Now),
                &[Status::NoSuchExport],
            )?;
            stays.write(0, &[1; 10]).notify(DONE).post()?;
            side.flush_peer()
        },
    )
}

/// Hears of every failure that is left, until a remote flush succeeds.
pub(super) fn settle(env: &Env, port: &Port, remote: &RemoteSegment) -> Outcome {
    let deadline = env.deadline(port);
    while let Err(error) = port.flush_remote(remote.node()) {
        if deadline.passed() || !matches!(error, Error::Failed(_) | Error::FailuresLost { .. }) {
            return Err(error.into());
        }
        pass(port, Duration::from_micros(50))?;
    }
    Ok(())
}

/// Writes until the first failure, which must be for one of these reasons.
pub(super) fn write_until_refused(
    env: &Env,
    port: &Port,
    remote: &RemoteSegment,
    reasons: &[Status],
) -> Outcome {
    let source = port.alloc(3 * 4096)?;
    let deadline = env.deadline(port);
    let mut value = 1u8;
    loop {
        source.write_from(0, &[value; 3 * 4096])?;
        let sent = remote.write(7, source.slice(0..2 * 4096 + 100)?).fenced().post();
        match sent.and_then(|_| port.flush_remote(remote.node())) {
            Ok(()) => {}
            Err(Error::Failed(failure)) => {
                settle(env, port, remote)?;
                if reasons.contains(&failure.status) {
                    return Ok(());
                }
                return Err(Trouble::Unexpected(format!("refused with {:?}", failure.status)));
            }
            Err(error) => return Err(error.into()),
        }
        value = value.wrapping_add(1).max(1);
        deadline.check()?;
    }
}

pub(super) fn unexported_in_traffic(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _export = side.share("stays", 4096)?;
            let memory = side.alloc(3 * 4096)?;
            let goes = side.export("goes", &memory, .., open_to_all())?;
            // Wait for traffic, then cut it off in the middle.
            let first = memory.word32(8)?;
            side.until(Duration::from_micros(10), || Ok(first.load()? != 0))?;
            goes.unexport()?;
            let mut before = vec![0; 3 * 4096];
            memory.read_into(0, &mut before)?;
            side.take_signal(DONE)?;
            pattern::check_bytes(&memory, 0, &before, "memory after unexport had returned")
        },
        move |side| {
            let stays = side.import_peer("stays")?;
            let goes = side.import_peer("goes")?;
            write_until_refused(&side.env, &side, &goes, ENDED)?;
            stays.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn suppressed_notification(env: &Env) -> Outcome {
    let rounds = env.scaled(4);
    env.pair(
        move |side| {
            let memory = side.share("good", 2 * 4096)?;
            let bad_memory = side.alloc(4096)?;
            let bad = side.export("bad", &bad_memory, .., open_to_all())?;
            let peer = side.import_peer("peer")?;
            side.take_signal(1)?;
            bad.unexport()?;
            peer.notify(1)?;
            for round in 0..u64::from(rounds) {
                // Exactly the one that was sent after the failure had been reported.
                side.take_signal(5)?;
                pattern::check(&memory, 0, round, 0, 5000, "repeated write")?;
                peer.notify(1)?;
                side.take_signal(2)?;
                let more = side.notification(5)?.pending();
                right!(more == 0, "{more} notifications passed a failed write");
                // Only now may the next one come.
                peer.notify(1)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("peer", 4096)?;
            let good = side.import_peer("good")?;
            let bad = side.import_peer("bad")?;
            good.notify(1)?;
            side.take_signal(1)?;
            for round in 0..u64::from(rounds) {
                // The failing write and what relies on it, close together. The second call may
                // already hear of the first.
                let first = bad.write(0, &[1; 200]).post()?;
                let sent = good
                    .write(0, &pattern::bytes(round + 1000, 0, 5000))
                    .notify(5)
                    .post();
                let failed = sent.and_then(|_| side.flush_remote(side.peer()));
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
                side.take_signal(1)?;
                good.notify(2)?;
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn closed_exporter(env: &Env) -> Outcome {
    env.both(
        move |env| {
            let keeper = env.open(1, 1)?;
            let _keeper = share(&keeper, "keeper", 4096)?;
            let first = env.open(1, 0)?;
            let target = share(&first, "target", 3 * 4096)?;
            take_signal(env, &first, 1)?;
            drop((first, target));
            // A new port with the same number and an export of the same name: nothing that was
            // meant for the old one may hit it.
            let second = env.open(1, 0)?;
            let target = share(&second, "target", 3 * 4096)?;
            take_signal(env, &keeper, DONE)?;
            pattern::check_bytes(&target, 0, &[0; 3 * 4096], "the port after a closed one")
        },
        move |env| {
            let port = env.open(0, 0)?;
            let keeper = env.import(&port, 1, 1, "keeper")?;
            let target = env.import(&port, 1, 0, "target")?;
            target.write(0, &[1; 5000]).notify(1).post()?;
            write_until_refused(env, &port, &target, GONE)?;
            // For as long as the old import is used.
            refused(target.read(0, &mut [0; 64]).call(), GONE)?;
            keeper.notify(DONE)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn dead_exporter(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let side = env.side(1, 0)?;
        let memory = side.share("target", 3 * 4096)?;
        let killer = side.import_peer("killer")?;
        killer.notify(1)?;
        // Busy in every way when it dies.
        let source = side.alloc(4 * 4096)?;
        loop {
            killer.write(0, source.slice(5..3 * 4096 + 5)?).post()?;
            memory.write_from(100, &[1; 500])?;
            pass(&side, Duration::from_micros(20))?;
        }
    });
    // Its port number is free for the next process.
    let heir = env.spawn(1, "heir", move |env| {
        let port = inherited(env)?;
        let memory = share(&port, "heir", 4096)?;
        take_signal(env, &port, 1)?;
        pattern::check_bytes(&memory, 0, &[9], "written to an heir")?;
        pattern::check_bytes(&memory, 1, &[0; 4095], "an heir's own memory")
    });
    let survivor = || -> Outcome {
        let side = env.side(0, 1)?;
        let _export = side.share("killer", 4 * 4096)?;
        let target = side.import_peer("target")?;
        side.take_signal(1)?;
        for _ in 0..5 {
            target.write(0, &[2; 3 * 4096]).post()?;
        }
        victim.kill();
        write_until_refused(env, &side, &target, GONE)?;
        // More of those writes may be told to have failed, to their own port.
        let port = env.open(0, 1)?;
        bequeath(env, &port)?;
        let heir = env.import(&port, 1, 0, "heir")?;
        heir.write(0, &[9]).notify(1).post()?;
        Ok(port.flush_remote(env.id(1))?)
    };
    let mine = survivor();
    let mine = worse(mine, heir.join());
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    }
}

pub(super) fn restarted_node(env: &Env) -> Outcome {
    let first = env.spawn(1, "first life", move |env| {
        let side = env.side(1, 0)?;
        let _export = side.share("target", 3 * 4096)?;
        side.take_signal(DONE)
    });
    let survivor = || -> Outcome {
        let side = env.side(0, 1)?;
        let target = side.import_peer("target")?;
        target.write(0, &[1; 9000]).post()?;
        side.flush_peer()?;
        env.restart(1);
        write_until_refused(env, &side, &target, GONE)?;
        env.both(
            |env| {
                let side = env.side(1, 0)?;
                let memory = side.share("target", 3 * 4096)?;
                side.take_signal(1)?;
                pattern::check(&memory, 0, 5, 0, 3 * 4096, "write to a restarted node")
            },
            |env| {
                let target = side.import_peer("target")?;
                let bytes = pattern::bytes(5, 0, 3 * 4096);
                let deadline = env.deadline(&side);
                // The link may still be coming up, and failures of the life before may be told late. The other side goes
                // when it is notified, so that comes when all has landed.
                loop {
                    let sent = target.write(0, &bytes).post();
                    match sent.and_then(|_| side.flush_remote(side.peer())) {
                        Ok(()) => break,
                        Err(Error::Failed(_)) if !deadline.passed() => {
                            pass(&side, Duration::from_millis(1))?;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                target.notify(1)?;
                side.flush_peer()
            },
        )
    };
    let mine = survivor();
    match first.join() {
        Ok(()) | Err(Trouble::Killed) => mine,
        // Its port was ended under it.
        Err(Trouble::Failed(Error::PortEnded { .. })) => mine,
        other => worse(mine, other),
    }
}
