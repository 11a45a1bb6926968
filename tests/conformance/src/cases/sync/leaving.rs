//! Participants that go, and what they leave behind.

use super::{all, ended_by, lock, semaphore};
use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, fails, right};
use crate::side::Side;
use netvm::sync::{Lock, Semaphore};
use netvm::{Access, Error, OpId, RemoteSegment};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Waits on a port of its own until it was handed a token. One that it finds in the count is no hand-over.
fn waiter(env: &Env) -> Outcome {
    let port = env.open(1, 1)?;
    let mut semaphore = semaphore(env, &port, 1, "semaphore")?;
    while semaphore.wait()? != 0 {}
    Ok(())
}

/// A program's write has failed, and something of the library's was dropped since: the program is to hear of it, once.
fn is_told(side: &Side, op: OpId, dropped: &str) -> Outcome {
    match side.flush_remote(side.peer()) {
        Err(Error::Failed(failure)) if failure.op == op => {}
        other => {
            return Err(Trouble::Unexpected(format!(
                "operation {op} failed, and then {dropped} was dropped: a flush tells {other:?}"
            )));
        }
    }
    side.flush_peer()
}

/// A write that is refused.
fn lose(gone: &RemoteSegment) -> netvm::Result<OpId> {
    gone.write(0, &[1; 8]).post()
}

pub(in super::super) fn failures_outlive_participants(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let semaphore = Semaphore::create(&side, "semaphore", 0, all())?;
            let _away = side.share("stays", 4096)?;
            let goes = side.share("goes", 4096)?;
            let waits = side.env.spawn_thread(1, "waits", waiter);
            side.take_signal(1)?;
            drop(goes);
            let peer = side.import_peer("peer")?;
            peer.notify(1)?;
            side.flush_peer()?;
            // The token may be lost with the message that hands it over.
            let (ended, _semaphore) = ended_by(&side.env, &side, semaphore, vec![waits]);
            ended?;
            side.take_signal(2)
        },
        |side| {
            let _export = side.share("peer", 4096)?;
            let _lock = Lock::create(&side, "lock", all())?;
            let (goes, stays) = (side.import_peer("goes")?, side.import_peer("stays")?);
            let mine = semaphore(&side.env, &side, 1, "semaphore")?;
            // A message of its own goes to the waiter, so its end waits for what went to that node. Until the waiter
            // stands in the queue, the count has the token, and either of the two may take it out again.
            let deadline = side.env.deadline(&side);
            while mine.signal()? != 0 {
                mine.try_wait()?;
                pass(&side, Duration::from_micros(50))?;
                deadline.check()?;
            }
            stays.notify(1)?;
            side.take_signal(1)?;
            side.flush_peer()?;

            let op = lose(&goes)?;
            drop(mine);
            is_told(&side, op, "a semaphore")?;

            // The lock lies here: what was written there meanwhile is waited for.
            let mut lock = lock(&side.env, &side, 0, "lock")?;
            let guard = lock.acquire()?;
            let op = lose(&goes)?;
            drop(guard);
            is_told(&side, op, "a guard")?;

            // A release tells of it, and the lock is free.
            let guard = lock.acquire()?;
            let op = lose(&goes)?;
            match guard.release() {
                Err(Error::Failed(failure)) if failure.op == op => {}
                other => {
                    return Err(Trouble::Unexpected(format!(
                        "a write under the lock failed, its release says {other:?}"
                    )));
                }
            }
            side.flush_peer()?;
            lock.acquire()?.release()?;
            stays.notify(2)?;
            side.flush_peer()
        },
    )
}

/// One tries for the lock and fails, forgets its guard, leaves: the participants that stay get the lock.
pub(in super::super) fn forgotten_guard(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let _lock = Lock::create(&side, "lock", all())?;
            let _export = side.share("home", 4096)?;
            side.take_signal(1)
        },
        |side| {
            let home = side.import_peer("home")?;
            let mut first = lock(&side.env, &side, 1, "lock")?;
            let guard = first.acquire()?;
            std::mem::forget(guard);
            drop(first);
            // As after a death: the next is told that what the lock protects may be half changed.
            let mut second = lock(&side.env, &side, 1, "lock")?;
            let began = side.now();
            let guard = second.acquire()?;
            let died = guard.owner_died();
            guard.release()?;
            let took = Duration::from_nanos(side.now().0 - began.0);
            if !died {
                return Err(Trouble::Unexpected(format!(
                    "a lock whose guard was forgotten was had after {took:?}, as if it had been released"
                )));
            }
            home.notify(1)?;
            side.flush_peer()
        },
    )
}

/// A panic under the lock: the next holder is told, and the one after it is not.
pub(in super::super) fn panic_in_lock(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let _lock = Lock::create(&side, "lock", all())?;
            let _export = side.share("home", 4096)?;
            side.take_signal(1)
        },
        |side| {
            let home = side.import_peer("home")?;
            let mut first = lock(&side.env, &side, 1, "lock")?;
            let mut second = lock(&side.env, &side, 1, "lock")?;
            let panicked = catch_unwind(AssertUnwindSafe(|| -> netvm::Result<()> {
                let _guard = first.acquire()?;
                // Without the hook, whose text would look like trouble.
                resume_unwind(Box::new(Died));
            }));
            match panicked {
                Ok(ended) => ended?,
                Err(what) if what.is::<Died>() => {}
                Err(what) => resume_unwind(what),
            }
            for expected in [true, false] {
                let guard = second.acquire()?;
                let died = guard.owner_died();
                guard.release()?;
                if died != expected {
                    return Err(Trouble::Unexpected(format!(
                        "after a panic under the lock: a holder is told {died}, not {expected}"
                    )));
                }
            }
            first.acquire()?.release()?;
            home.notify(1)?;
            side.flush_peer()
        },
    )
}

/// What the panic carries.
struct Died;

/// Programs and the library do not get each other's notification numbers.
pub(in super::super) fn own_numbers(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let _semaphore = Semaphore::create(&side, "semaphore", 1, all())?;
            let _export = side.share("home", 4096)?;
            side.take_signal(1)
        },
        |side| {
            let home = side.import_peer("home")?;
            let memory = side.alloc(4096)?;
            let wide = || Access::everyone().notify(1..=1023);
            let gives_away = side.export("wide", &memory, .., wide())?;
            fails(
                semaphore(&side.env, &side, 1, "semaphore"),
                "taking part in a semaphore whose signals peers may give",
                |error| matches!(error, Error::Refused { .. }),
            )?;
            gives_away.unexport()?;
            drop(gives_away);
            let mut mine = semaphore(&side.env, &side, 1, "semaphore")?;
            // Of 56 numbers it has one.
            let (mut own, mut free) = (0, 0);
            for id in 897..=959 {
                match side.notification(id) {
                    Err(Error::NotificationTaken { .. }) => own += 1,
                    other => free += other.map(|_| 1)?,
                }
            }
            right!(
                (own, free) == (1, 62),
                "the library has {own} numbers, the program {free}"
            );
            fails(
                side.export("wide", &memory, .., wide()),
                "letting peers signal a semaphore's number",
                |error| matches!(error, Error::NotificationTaken { .. }),
            )?;
            mine.wait()?;
            mine.signal()?;
            drop(mine);
            drop(side.export("wide", &memory, .., wide())?);
            home.notify(1)?;
            side.flush_peer()
        },
    )
}
