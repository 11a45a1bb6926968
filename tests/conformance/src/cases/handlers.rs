//! Handlers beside one another and beside waiting threads; ports whose number has another owner.

use crate::env::{Env, pass};
use crate::outcome::{Outcome, right};
use crate::side::{Side, share_with_letters};
use netvm::{Error, NotificationId, Port, PortConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_micros(50);

/// Half of a patience: a waiter that was not woken waits for all of it.
fn is_soon(side: &Side, began: netvm::Nanos) -> bool {
    u128::from(side.now().0 - began.0) < side.env.patience.as_nanos() / 2
}

/// The peer signals these, one after the other, each when it is told to; ends when it is told a last time.
fn ring(side: &Side, bells: &[u32]) -> Outcome {
    let _export = side.share("ringer", 4096)?;
    let there = side.import_peer("bells")?;
    for &bell in bells {
        side.take_signal(1)?;
        there.notify(bell)?;
        side.flush_peer()?;
    }
    side.take_signal(1)
}

pub(super) fn disarm_wakes(env: &Env) -> Outcome {
    env.pair(
        |side| ring(&side, &[6, 7, 8]),
        |side| {
            let side = Arc::new(side);
            let _export = side.share("bells", 4096)?;
            let ringer = side.import_peer("ringer")?;
            let gate = side.notification(8)?;
            let (runs, patience) = (Arc::new(AtomicBool::new(false)), side.env.patience);
            let begun = Arc::clone(&runs);
            // It keeps the dispatcher busy until the last bell.
            side.notification(6)?.arm(move |_| {
                begun.store(true, Ordering::Release);
                if gate.wait(patience).is_ok() {
                    let _ = gate.ack();
                }
            })?;
            let bell = side.notification(7)?;
            bell.arm(|_| {})?;
            ringer.notify(1)?;
            side.until(SOON, || Ok(runs.load(Ordering::Acquire)))?;
            let waiting = Arc::clone(&side);
            let waiter = side.env.spawn_thread(0, "waits", move |env| {
                let (queue, bell) = (waiting.notifications(), waiting.notification(7)?);
                let began = waiting.now();
                while queue.wait(env.patience)? != bell.id() {}
                right!(
                    env.may_fail || is_soon(&waiting, began),
                    "a waiter of the queue was not woken"
                );
                Ok(bell.ack()?)
            });
            ringer.notify(1)?;
            side.until(SOON, || Ok(bell.pending() == 1))?;
            // Let it block.
            pass(&side, Duration::from_millis(2))?;
            right!(bell.disarm(), "the handler had gone");
            let waited = waiter.join();
            ringer.notify(1)?;
            ringer.notify(1)?;
            side.flush_peer()?;
            side.until(SOON, || Ok(side.notification(6)?.pending() == 0))?;
            waited
        },
    )
}

pub(super) fn busy_handler(env: &Env) -> Outcome {
    /// Signals that are always pending.
    const MANY: u32 = 40;
    env.pair(
        |side| ring(&side, &[7, 9]),
        |side| {
            let side = Arc::new(side);
            let _export = side.share("bells", 4096)?;
            let ringer = side.import_peer("ringer")?;
            let mine = side.env.import(&side, 0, 0, "bells")?;
            for _ in 0..MANY {
                mine.notify(6)?;
            }
            side.flush_remote(side.env.id(0))?;
            let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
            let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&calls));
            // Each call brings the next signal, and ends when that is there: it never has nothing to do.
            let (again, port) = (mine.clone(), Arc::downgrade(&side));
            side.notification(6)?.arm(move |_| {
                counted.fetch_add(1, Ordering::AcqRel);
                if let (Some(side), false) = (port.upgrade(), stopped.load(Ordering::Acquire)) {
                    let _ = again.notify(6).and_then(|_| side.flush_remote(side.env.id(0)));
                }
            })?;
            let quick = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&quick);
            side.notification(7)?.arm(move |_| {
                counted.fetch_add(1, Ordering::AcqRel);
            })?;
            side.until(SOON, || Ok(calls.load(Ordering::Acquire) >= MANY))?;
            ringer.notify(1)?;
            let called = side.until(SOON, || Ok(quick.load(Ordering::Acquire) == 1));
            let bell = side.notification(9)?;
            ringer.notify(1)?;
            let pending = side.block_on_for(bell.ready(), side.env.patience);
            stop.store(true, Ordering::Release);
            if !side.env.may_fail {
                right!(called != Err(Error::TimedOut), "an idle handler starves");
                right!(pending != Err(Error::TimedOut), "a future starves");
            }
            called?;
            pending??;
            ringer.notify(1)?;
            side.flush_peer()?;
            // Its handler holds an import of this port: gone before that closes.
            side.until(SOON, || Ok(side.notification(6)?.pending() == 0))?;
            side.notification(6)?.disarm();
            Ok(())
        },
    )
}

/// Panics where it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("a test"));
        }
    }
}

pub(super) fn panicking_handlers(env: &Env) -> Outcome {
    env.pair(
        |side| ring(&side, &[6, 7, 8, 9]),
        |side| {
            let _export = side.share("bells", 4096)?;
            let ringer = side.import_peer("ringer")?;
            let (panics, bomb) = (side.notification(6)?, Bomb);
            panics.arm(move |_| {
                let _held = &bomb;
                // Without the hook, whose text would look like trouble.
                std::panic::resume_unwind(Box::new(Bomb));
            })?;
            let (leaves, bomb) = (side.notification(7)?, Bomb);
            let itself = leaves.clone();
            leaves.arm(move |_| {
                let _held = &bomb;
                itself.disarm();
            })?;
            let calls = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&calls);
            side.notification(8)?.arm(move |_| {
                counted.fetch_add(1, Ordering::AcqRel);
            })?;
            for _ in 0..3 {
                ringer.notify(1)?;
            }
            side.until(SOON, || Ok(calls.load(Ordering::Acquire) == 1))?;
            side.until(SOON, || Ok(panics.pending() + leaves.pending() == 0))?;
            right!(!panics.disarm(), "a handler that panicked is still armed");
            right!(!leaves.disarm(), "a handler that disarmed itself is still armed");
            // A handler may wait for a future of its port.
            let bell = side.notification(9)?;
            let backlog = side.block_on_for(
                async {
                    ringer.notify(1)?;
                    bell.ready().await
                },
                side.env.patience,
            )??;
            right!(backlog == 1, "{backlog} signals instead of one");
            ringer.notify(1)?;
            side.flush_peer()
        },
    )
}

pub(super) fn waiting_handler(env: &Env) -> Outcome {
    env.pair(
        |side| ring(&side, &[6, 7]),
        |side| {
            let side = Arc::new(side);
            let _export = side.share("bells", 4096)?;
            let ringer = side.import_peer("ringer")?;
            let (answer, patience) = (Arc::new(AtomicU32::new(0)), side.env.patience);
            let (found, port) = (Arc::clone(&answer), Arc::downgrade(&side));
            let bell = side.notification(7)?;
            side.notification(6)?.arm(move |_| {
                let Some(side) = port.upgrade() else { return };
                let ready = side.block_on_for(bell.ready(), patience);
                let pending = matches!(ready, Ok(Ok(1)));
                found.store(1 + u32::from(pending), Ordering::Release);
            })?;
            ringer.notify(1)?;
            side.until(SOON, || Ok(side.stats().handler_calls == 1))?;
            pass(&side, Duration::from_millis(2))?;
            ringer.notify(1)?;
            let began = side.now();
            let ended = side.until(SOON, || Ok(answer.load(Ordering::Acquire) > 0));
            if !side.env.may_fail {
                // At its deadline the future is looked at in any case.
                right!(
                    is_soon(&side, began),
                    "a handler waited until its deadline for its own dispatcher"
                );
                right!(
                    ended != Err(Error::TimedOut),
                    "a handler waits for its own dispatcher"
                );
            }
            ended?;
            right!(
                side.env.may_fail || answer.load(Ordering::Acquire) == 2,
                "a future in a handler failed"
            );
            ringer.notify(1)?;
            side.flush_peer()
        },
    )
}

/// Opens a port of the calling process by a number that it has just closed.
fn reopen(env: &Env, number: u16, idle: &Port) -> Outcome<Port> {
    let deadline = env.deadline(idle);
    loop {
        match env.open(0, number) {
            Err(Error::Refused { .. }) => deadline.check()?,
            other => return Ok(other?),
        }
        pass(idle, Duration::from_millis(1))?;
    }
}

pub(super) fn stale_handles(env: &Env) -> Outcome {
    let rounds = env.scaled(40);
    env.pair(
        move |side| {
            let _export = side.share("ringer", 4096)?;
            side.take_signal(1)?;
            let bells = side.env.import(&side, 0, 1, "bells")?;
            for number in 0..rounds {
                bells.notify(5)?;
                bells.notify(2000 + number)?;
            }
            side.flush_remote(side.env.id(0))?;
            bells.notify(6)?;
            side.flush_remote(side.env.id(0))?;
            side.take_signal(1)
        },
        move |side| {
            let ringer = side.import_peer("ringer")?;
            let old = side.env.open(0, 1)?;
            let (queue, bell) = (old.notifications(), old.notification(5)?);
            let export = share_with_letters(&old, "bells", 4096)?;
            let mut stale = bell.ready();
            let polled = {
                // It leaves its mark in the words of the port.
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                std::pin::Pin::new(&mut stale).poll(&mut context).is_pending()
            };
            right!(polled, "a signal that was never sent");
            drop(old);
            let port = reopen(&side.env, 1, &side)?;
            let _new = share_with_letters(&port, "bells", 4096)?;
            let last = port.notification(6)?;
            ringer.notify(1)?;
            // Stale handles take nothing of what comes to the next owner, while it comes and afterwards.
            let deadline = side.env.deadline(&side);
            for _ in 0..3000 {
                right!(
                    queue.pop().is_none(),
                    "a stale queue names its successor's numbers"
                );
                right!(
                    bell.pending() == 0,
                    "a stale handle counts its successor's signals"
                );
                right!(
                    bell.ack().is_err(),
                    "a stale handle acknowledges its successor's signals"
                );
                if last.pending() > 0 || deadline.passed() {
                    break;
                }
            }
            drop((stale, export));
            last.wait(side.env.patience)?;
            right!(
                bell.wait(SOON) == Err(Error::PortClosed),
                "a wait on a closed port says something else"
            );
            right!(
                queue.wait(SOON) == Err(Error::PortClosed),
                "a wait on a closed port says something else"
            );
            let (mine, own) = (port.notifications(), port.notification(5)?);
            let (mut count, mut one_shots) = (0, 0);
            while count + one_shots < 2 * rounds {
                let id = mine.wait(side.env.patience)?;
                if id.is_one_shot() {
                    right!(
                        id == NotificationId(2000 + one_shots),
                        "one-shot {id}, {} was due",
                        2000 + one_shots
                    );
                    one_shots += 1;
                } else if id == own.id() {
                    own.ack()?;
                    count += 1;
                }
            }
            right!(own.pending() == 0, "{} signals too many", own.pending());
            ringer.notify(1)?;
            side.flush_peer()
        },
    )
}

/// Bells of ports that take all there are: names of a port opened anew are the new port's.
pub(super) fn full_backlog(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let _export = side.share("ringer", 4096)?;
            side.take_signal(1)?;
            let bells = side.env.import(&side, 0, 1, "bells")?;
            for number in 0..20 {
                bells.notify(2000 + number)?;
            }
            bells.notify(3)?;
            bells.notify(6)?;
            side.flush_remote(side.env.id(0))?;
            side.take_signal(1)
        },
        |side| {
            let ringer = side.import_peer("ringer")?;
            let config = PortConfig::number(side.env.port_id(0, 1).0).one_shot_backlog(4);
            let port = Port::open(side.node(), config)?;
            let _export = share_with_letters(&port, "bells", 4096)?;
            ringer.notify(1)?;
            port.notification(6)?.wait(side.env.patience)?;
            port.notification(6)?.ack()?;
            let mut bells = 0;
            let queue = port.notifications();
            while let Some(id) = queue.pop() {
                bells += u32::from(id.0 == 3);
                right!(bells <= 1, "an unacknowledged number came out {bells} times");
            }
            right!(bells == 1, "a number with a signal never came out");
            ringer.notify(1)?;
            side.flush_peer()
        },
    )
}
