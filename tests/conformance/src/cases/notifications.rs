//! Notifications (thesis 6.1): counts, queue, handlers, futures.

use crate::env::{Env, pass};
use crate::outcome::{Outcome, right};
use crate::pattern;
use netvm::{Error, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const DONE: u32 = 800;
/// How often a body looks at what no notification tells.
const SOON: Duration = Duration::from_micros(50);

pub(super) fn event_counts(env: &Env) -> Outcome {
    let each = env.scaled(50);
    env.pair(
        move |side| {
            let _export = side.share_with_letters("bells", 4096)?;
            // Only look when all are there: none may be lost while they are not taken.
            side.take_signal(DONE)?;
            for id in [1, 31, 32, 1022] {
                let bell = side.notification(id)?;
                let pending = bell.spin(side.env.patience)?;
                right!(pending == each, "{pending} signals of {id}, {each} were sent");
                for _ in 0..each {
                    bell.ack()?;
                }
                right!(
                    bell.ack() == Err(Error::NothingPending { id: id.into() }),
                    "acknowledged more signals of {id} than came"
                );
            }
            Ok(())
        },
        move |side| {
            let bells = side.import_peer("bells")?;
            for _ in 0..each {
                for id in [1, 31, 32, 1022] {
                    bells.notify(id)?;
                }
            }
            bells.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn queue(env: &Env) -> Outcome {
    let each = env.scaled(20);
    env.pair(
        move |side| {
            let _export = side.share_with_letters("bells", 4096)?;
            let queue = side.notifications();
            let mut counts = [0u32; 4];
            let mut one_shots = 0;
            while counts.iter().sum::<u32>() + one_shots < 4 * each {
                let id = queue.wait(side.env.patience)?;
                if id.is_one_shot() {
                    right!(
                        id.0 == 5000 + one_shots,
                        "one-shot {id}, {} was due",
                        5000 + one_shots
                    );
                    one_shots += 1;
                    continue;
                }
                right!((10..13).contains(&id.0), "number {id} was never signalled");
                let bell = side.notification(id)?;
                right!(bell.pending() > 0, "{id} came out of the queue without a signal");
                // One at a time: the queue must name it again while there are more.
                bell.ack()?;
                counts[id.index() - 10] += 1;
            }
            right!(
                counts[..3].iter().all(|&count| count == each) && one_shots == each,
                "signals {counts:?} and {one_shots} one-shots, {each} of each were sent"
            );
            right!(queue.pop().is_none(), "the queue names a number without a signal");
            Ok(())
        },
        move |side| {
            let bells = side.import_peer("bells")?;
            for number in 0..each {
                for id in 10..13 {
                    bells.notify(id)?;
                }
                bells.notify(5000 + number)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn handlers(env: &Env) -> Outcome {
    let signals = env.scaled(40);
    env.pair(
        move |side| {
            let memory = side.share("server", 4096)?;
            let client = side.import_peer("client")?;
            let calls = Arc::new(AtomicU32::new(0));
            let wrong = Arc::new(AtomicU32::new(0));
            let (counted, misled) = (Arc::clone(&calls), Arc::clone(&wrong));
            let request = memory.word32(0)?;
            // The handler answers with a write of its own.
            side.notification(4)?.arm(move |id| {
                let call = counted.fetch_add(1, Ordering::AcqRel) + 1;
                let late = request.load().is_ok_and(|seen| seen < call);
                let sent = client.write(0, &call.to_le_bytes()).ordered().notify(5).post();
                if id.0 != 4 || late || sent.is_err() {
                    misled.fetch_add(1, Ordering::AcqRel);
                }
            })?;
            side.take_signal(DONE)?;
            let (calls, wrong) = (calls.load(Ordering::Acquire), wrong.load(Ordering::Acquire));
            right!(
                calls == signals,
                "the handler ran {calls} times for {signals} signals"
            );
            right!(wrong == 0, "{wrong} calls saw old data or could not write");
            // The last signal is acknowledged when its call returns, a moment after its answer.
            let bell = side.notification(4)?;
            Ok(side.until(SOON, || Ok(bell.pending() == 0))?)
        },
        move |side| {
            let _export = side.share("client", 4096)?;
            let server = side.import_peer("server")?;
            for number in 1..=signals {
                server
                    .write(0, &number.to_le_bytes())
                    .ordered()
                    .notify(4)
                    .post()?;
                if number % 8 == 0 {
                    // Let it catch up now and then, and race it otherwise.
                    for _ in 0..8 {
                        side.take_signal(5)?;
                    }
                }
            }
            for _ in 0..signals % 8 {
                side.take_signal(5)?;
            }
            let more = side.notification(5)?.pending();
            right!(more == 0, "{more} more answers than requests");
            server.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn arm_and_disarm(env: &Env) -> Outcome {
    let each = env.scaled(6);
    env.pair(
        move |side| {
            let _export = side.share("door", 4096)?;
            let bell = side.notification(6)?;
            let calls = Arc::new(AtomicU32::new(0));
            for round in 1..=4u32 {
                // Pending before any waiter is armed.
                side.take_signal(DONE)?;
                right!(
                    bell.pending() == each,
                    "{} pending, {each} were sent",
                    bell.pending()
                );
                let counted = Arc::clone(&calls);
                bell.arm(move |_| {
                    counted.fetch_add(1, Ordering::AcqRel);
                })?;
                side.until(SOON, || {
                    Ok(calls.load(Ordering::Acquire) >= round * each && bell.pending() == 0)
                })?;
                right!(bell.disarm(), "the handler had gone");
                right!(!bell.disarm(), "disarmed twice");
                let seen = calls.load(Ordering::Acquire);
                right!(seen == round * each, "{seen} calls for {} signals", round * each);
                let peer = side.import_peer("ringer")?;
                peer.notify(1)?;
                side.flush_peer()?;
            }
            Ok(())
        },
        move |side| {
            let _export = side.share("ringer", 4096)?;
            let door = side.import_peer("door")?;
            for _ in 0..4 {
                for _ in 0..each {
                    door.notify(6)?;
                }
                door.notify(DONE)?;
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn futures(env: &Env) -> Outcome {
    let each = env.scaled(15);
    env.pair(
        move |side| {
            let _export = side.share_with_letters("async", 4096)?;
            let peer = side.import_peer("peer")?;
            let queue = side.notifications();
            let bell = side.notification(8)?;
            for number in 0..each {
                let round = async {
                    let pending = bell.ready().await?;
                    right!(pending > 0, "a future ended without a signal");
                    bell.ack()?;
                    peer.notify(1)?;
                    // What the event count left in the queue may come out before it.
                    let id = loop {
                        let id = queue.next().await?;
                        if id.is_one_shot() {
                            break id;
                        }
                    };
                    right!(id.0 == 2000 + number, "one-shot {id}, {} was due", 2000 + number);
                    peer.notify(1)?;
                    Ok(())
                };
                // The process that should signal may have died.
                side.block_on_for(round, side.env.patience)??;
            }
            side.flush_peer()
        },
        move |side| {
            let _export = side.share("peer", 4096)?;
            let other = side.import_peer("async")?;
            for number in 0..each {
                other.notify(8)?;
                side.take_signal(1)?;
                if number % 2 == 0 {
                    // Let the future go to sleep.
                    pass(&side, Duration::from_micros(300))?;
                }
                other.notify(2000 + number)?;
                side.take_signal(1)?;
            }
            side.flush_peer()
        },
    )
}

pub(super) fn zero_length(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let memory = side.share("empty", 4096)?;
            side.take_signal(1)?;
            side.take_signal(2)?;
            pattern::check_bytes(&memory, 0, &[0; 4096], "after writes of nothing")
        },
        move |side| {
            let empty = side.import_peer("empty")?;
            let source = side.alloc(4096)?;
            source.write_from(0, &[9; 4096])?;
            // Nothing at all, also at the very end; then with a notification.
            empty.write(4096, &[]).post()?;
            empty.write(0, source.slice(5..5)?).fenced().post()?;
            empty.read(0, &mut []).call()?;
            empty.write(4096, &[]).notify(1).post()?;
            empty.write(17, source.slice(5..5)?).notify(2).fenced().post()?;
            right!(
                empty.write(4097, &[]).notify(1).post().is_err(),
                "a write of nothing past the end was taken"
            );
            side.flush_peer()
        },
    )
}

pub(super) fn full_one_shot_queue(env: &Env) -> Outcome {
    /// More than card and library hold together.
    const MANY: u32 = 2300;
    env.pair(
        move |side| {
            let memory = side.share_with_letters("box", 4096)?;
            let sender = side.import_peer("sender")?;
            // No entry is taken until the sender has been refused.
            side.take_signal(1)?;
            let queue = side.notifications();
            let mut last = None;
            let mut count = 0;
            loop {
                let id = match queue.wait(Duration::from_millis(200)) {
                    Ok(id) if id.is_one_shot() => id,
                    Ok(_) => continue,
                    Err(Error::TimedOut) if memory.word32(0)?.load()? != 0 => break,
                    Err(Error::TimedOut) if count > 0 => {
                        sender.notify(1)?;
                        side.take_signal(2)?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                right!(last < Some(id), "one-shot {id} after {last:?}");
                last = Some(id);
                count += 1;
            }
            let accepted = memory.word32(4)?.load()?;
            right!(
                count == accepted,
                "{count} one-shots came out, {accepted} were accepted"
            );
            Ok(())
        },
        move |side| {
            let _export = side.share("sender", 4096)?;
            let letters = side.import_peer("box")?;
            let mut accepted = 0;
            let mut refused = false;
            for number in 0..MANY {
                // One round trip each: so it is known which were taken.
                let sent = letters.notify(1024 + number);
                match sent.and_then(|_| side.flush_remote(side.peer())) {
                    Ok(()) => accepted += 1,
                    Err(Error::Failed(failure)) if failure.status == Status::QueueFull => {
                        refused = true;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            right!(
                refused,
                "{MANY} one-shots were taken by a queue that is never emptied"
            );
            letters.notify(1)?;
            // The other side has emptied it: it takes more, in order.
            side.take_signal(1)?;
            for number in 0..20 {
                letters.notify(1024 + MANY + number)?;
                accepted += 1;
            }
            letters.write(4, &u32::to_le_bytes(accepted)).post()?;
            letters.write(0, &1u32.to_le_bytes()).ordered().notify(2).post()?;
            side.flush_peer()
        },
    )
}
