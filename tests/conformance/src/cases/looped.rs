//! A program with an event loop of its own: it sleeps on descriptors, and in no call.

use crate::env::Env;
use crate::outcome::{Outcome, Trouble, right};
use crate::pattern;
use crate::side::Side;
use netvm::{Error, Events, NotificationId, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: u64 = 4096;
/// Pages that a round fills: more messages than a command queue holds.
const PAGES: u64 = 100;
/// Tells the receiver that a round's pages are there.
const ROUND: NotificationId = NotificationId(1);
/// The same, for a handler.
const HANDLED: NotificationId = NotificationId(2);
/// Tells the sender that the receiver has seen them.
const SEEN: NotificationId = NotificationId(3);

/// A port in a loop.
struct Loop<'a> {
    side: &'a Side,
    events: Events,
}

impl<'a> Loop<'a> {
    fn new(side: &'a Side) -> Outcome<Self> {
        let events = side.events()?;
        Ok(Self { side, events })
    }

    /// Sleeps on the descriptor until `look` has found something, and looks only when that was readable.
    fn until<T>(&mut self, mut look: impl FnMut() -> Result<Option<T>>) -> Outcome<T> {
        loop {
            self.events.turn()?;
            self.events.arm()?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            self.sleep(&mut look)?;
        }
    }

    /// Sleeps until the descriptor is readable. What has come without that is a wake-up that was lost.
    fn sleep<T>(&self, look: &mut impl FnMut() -> Result<Option<T>>) -> Outcome {
        let limit = Timespec::try_from(self.side.env.patience).unwrap_or_default();
        let mut polled = [PollFd::new(&self.events, PollFlags::IN)];
        loop {
            match poll(&mut polled, Some(&limit)) {
                Err(Errno::INTR) => {}
                Ok(0) => {
                    right!(
                        look()?.is_none(),
                        "what the loop waits for is there, and its descriptor did not tell"
                    );
                    return Err(Error::TimedOut.into());
                }
                Ok(_) => return Ok(()),
                Err(errno) => return Err(Trouble::Unexpected(format!("poll: {errno}"))),
            }
        }
    }

    /// Posts with `post`, as often as there is no room, and sleeps meanwhile.
    fn posted<T>(&mut self, mut post: impl FnMut() -> Result<T>) -> Outcome<T> {
        self.until(|| match post() {
            Err(Error::NoRoom { .. }) => Ok(None),
            other => other.map(Some),
        })
    }
}

fn send(side: &Side, rounds: u64) -> Outcome {
    let mut at = Loop::new(side)?;
    let remote = side.import_peer("pages")?;
    let _shared = side.share("answers", PAGE)?;
    let local = side.alloc(PAGES * PAGE)?;
    let seen = side.notification(SEEN)?;
    for seed in 0..rounds {
        local.write_from(0, &pattern::bytes(seed, 0, (PAGES * PAGE) as usize))?;
        let mut writes = Vec::new();
        for page in 0..PAGES {
            let slice = local.slice(page * PAGE..(page + 1) * PAGE)?;
            writes.push(at.posted(|| remote.write(page * PAGE, slice.clone()).begin())?);
        }
        for id in [ROUND, HANDLED] {
            at.posted(|| remote.write(0, &[]).notify(id).try_post())?;
        }
        // The source may change when its writes have ended.
        for write in &mut writes {
            at.until(|| write.end().transpose())?;
        }
        let mut landed = at.posted(|| side.begin_flush_remote(side.peer()))?;
        at.until(|| landed.end().transpose())?;
        at.until(|| Ok((seen.pending() > 0).then_some(())))?;
        seen.ack()?;
    }
    Ok(())
}

fn receive(side: &Side, rounds: u64) -> Outcome {
    let mut at = Loop::new(side)?;
    let shared = side.share("pages", PAGES * PAGE)?;
    let remote = side.import_peer("answers")?;
    let handled = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&handled);
    side.notification(HANDLED)?.arm(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })?;
    let (round, queue) = (side.notification(ROUND)?, side.notifications());
    for seed in 0..rounds {
        let popped = at.until(|| Ok(queue.pop()))?;
        right!(
            popped == ROUND,
            "notification {popped} has no handler, and was not sent"
        );
        round.ack()?;
        let mut here = vec![0; (PAGES * PAGE) as usize];
        shared.read_into(0, &mut here)?;
        right!(
            here == pattern::bytes(seed, 0, here.len()),
            "round {seed}: the pages are not those that were sent"
        );
        let calls = seed as u32 + 1;
        at.until(|| Ok((handled.load(Ordering::Relaxed) >= calls).then_some(())))?;
        right!(
            handled.load(Ordering::Relaxed) == calls,
            "a handler ran twice for one signal"
        );
        at.posted(|| remote.write(0, &[]).notify(SEEN).try_post())?;
    }
    // What ends with the port would take the last of it along.
    let mut landed = at.posted(|| side.begin_flush_remote(side.peer()))?;
    at.until(|| landed.end().transpose())
}

pub(super) fn slept(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(6));
    env.pair(
        move |side| receive(&side, rounds),
        move |side| send(&side, rounds),
    )
}
