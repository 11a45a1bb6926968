//! Handlers on what the library receives with: a message does not hide because its signal was acknowledged, and a
//! handler is called often enough whether it takes everything, one message a call, or nothing.

use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, right};
use crate::pattern;
use crate::side::Side;
use netvm::{
    ChannelConfig, Error, Notification, Receiver, ReceiverSet, Sender, SharedConfig, SharedReceiver,
    SharedSender, Timeout,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Notifications of the bodies' own: the library's are high.
const GO: u32 = 1;
const BELL: u32 = 2;
/// Between two looks at what handlers have done.
const SOON: Duration = Duration::from_micros(50);
/// Messages that wait when the handler is armed.
const FIRST: u32 = 8;

/// What a handler does when it is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Everything,
    One,
    /// It wakes another thread, which takes everything.
    Nothing,
}

/// What has come so far.
#[derive(Default)]
struct Log {
    /// The next message's number.
    next: u32,
    closed: bool,
    trouble: Option<Trouble>,
}

impl Log {
    /// Notes the result of a receive: a message's number. Whether there may be more.
    fn note(&mut self, found: netvm::Result<Option<u32>>) -> bool {
        match found {
            Ok(Some(number)) if number == self.next => self.next += 1,
            Ok(Some(number)) => {
                self.trouble = Some(Trouble::Wrong(format!("message {number}, {} was due", self.next)));
            }
            Ok(None) => return false,
            Err(Error::ChannelClosed) => self.closed = true,
            Err(error) => self.trouble = Some(error.into()),
        }
        self.trouble.is_none() && !self.closed
    }
}

/// A receive that does not wait.
trait Take: Send + 'static {
    /// Takes the number in the next message, if there is one.
    fn take(&mut self) -> netvm::Result<Option<u32>>;
}

impl Take for Receiver {
    fn take(&mut self) -> netvm::Result<Option<u32>> {
        let message = self.try_recv()?;
        let number = message.map(|message| message.array(0)).transpose()?;
        Ok(number.map(u32::from_le_bytes))
    }
}

impl Take for SharedReceiver {
    fn take(&mut self) -> netvm::Result<Option<u32>> {
        let message = self.try_recv()?;
        let number = message.map(|message| message.array(0)).transpose()?;
        Ok(number.map(u32::from_le_bytes))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives by a handler until `over`.
fn receive(
    side: &Side,
    takes: Takes,
    bell: &Notification,
    mut receiver: impl Take,
    over: impl Fn(&Log) -> bool,
) -> Outcome {
    let _bells = side.share("bells", 4096)?;
    // What waits when the handler is armed.
    side.take_signal(GO)?;
    let log = Arc::new(Mutex::new(Log::default()));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let mut rest = None;
    if takes == Takes::Nothing {
        bell.arm(move |_| {
            counted.fetch_add(1, Ordering::AcqRel);
        })?;
        rest = Some(receiver);
    } else {
        let noted = Arc::clone(&log);
        bell.arm(move |_| {
            counted.fetch_add(1, Ordering::AcqRel);
            let once = takes == Takes::One;
            while {
                let found = receiver.take();
                locked(&noted).note(found) && !once
            } {}
        })?;
    }
    side.import_peer("peer")?.notify(GO)?;
    let ended = || {
        let log = locked(&log);
        log.trouble.is_some() || over(&log)
    };
    let mut seen = 0;
    while !ended() {
        let waited = side.until(SOON, || Ok(calls.load(Ordering::Acquire) != seen || ended()));
        if let Err(error) = waited {
            let next = locked(&log).next;
            // A sender that has died, or may have, brings nothing more.
            if side.env.may_fail || error != Error::TimedOut {
                return Err(error.into());
            }
            return Err(Trouble::Wrong(format!(
                "the handler was not called for message {next}"
            )));
        }
        seen = calls.load(Ordering::Acquire);
        if let Some(receiver) = &mut rest {
            while {
                let found = receiver.take();
                locked(&log).note(found)
            } {}
        }
    }
    bell.disarm();
    let trouble = locked(&log).trouble.take();
    trouble.map_or(Ok(()), Err)?;
    side.flush_peer()
}

/// Sends numbers, some before the handler is armed and the others in bursts.
fn send(side: &Side, mut post: impl FnMut(u32) -> netvm::Result<()>) -> Outcome {
    let total = FIRST + side.env.scaled(24);
    for number in 0..total {
        if number == FIRST {
            side.flush_peer()?;
            side.import_peer("bells")?.notify(GO)?;
            side.take_signal(GO)?;
        }
        post(number)?;
        if number % 5 == 0 {
            // Let it catch up now and then, and race it otherwise.
            pass(side, Duration::from_micros(200))?;
        }
    }
    Ok(())
}

fn channel(env: &Env, takes: Takes) -> Outcome {
    env.pair(
        move |side| {
            let config = ChannelConfig::default().message_bytes(64).capacity(16);
            let receiver = Receiver::open(&side, "handled", config)?;
            let bell = receiver.notification().clone();
            let total = FIRST + side.env.scaled(24);
            receive(&side, takes, &bell, receiver, |log| {
                log.closed && log.next == total
            })
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let mut sender = Sender::join(
                &side,
                side.peer(),
                side.peer_port(0),
                "handled",
                side.env.patience,
            )?;
            send(&side, |number| {
                sender.send(&number.to_le_bytes(), side.env.patience)
            })?;
            Ok(sender.close()?)
        },
    )
}

pub(super) fn channel_handler_all(env: &Env) -> Outcome {
    channel(env, Takes::Everything)
}

pub(super) fn channel_handler_one(env: &Env) -> Outcome {
    channel(env, Takes::One)
}

pub(super) fn channel_handler_none(env: &Env) -> Outcome {
    channel(env, Takes::Nothing)
}

fn shared(env: &Env, takes: Takes) -> Outcome {
    env.pair(
        move |side| {
            let config = SharedConfig::default().message_bytes(64).capacity(16);
            let receiver = SharedReceiver::open(&side, "handled", config)?;
            let bell = receiver.notification().clone();
            let total = FIRST + side.env.scaled(24);
            receive(&side, takes, &bell, receiver, |log| log.next == total)
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let sender = SharedSender::join(
                &side,
                side.peer(),
                side.peer_port(0),
                "handled",
                side.env.patience,
            )?;
            send(&side, |number| {
                sender.send(&number.to_le_bytes(), side.env.patience)
            })
        },
    )
}

pub(super) fn shared_handler_all(env: &Env) -> Outcome {
    shared(env, Takes::Everything)
}

pub(super) fn shared_handler_one(env: &Env) -> Outcome {
    shared(env, Takes::One)
}

pub(super) fn shared_handler_none(env: &Env) -> Outcome {
    shared(env, Takes::Nothing)
}

/// Two channels in a set, each with a handler.
fn set(env: &Env, takes: Takes) -> Outcome {
    env.pair(
        move |side| {
            let mut set = ReceiverSet::new(&side);
            let mut bells = Vec::new();
            for name in ["left", "right"] {
                let config = ChannelConfig::default().message_bytes(64).capacity(16);
                let receiver = Receiver::open(&side, name, config)?;
                bells.push(receiver.notification().clone());
                set.add(receiver)?;
            }
            let _bells = side.share("bells", 4096)?;
            side.take_signal(GO)?;
            let numbers: Vec<_> = bells.iter().map(Notification::id).collect();
            let total = FIRST + side.env.scaled(24);
            let logs = Arc::new(Mutex::new([Log::default(), Log::default()]));
            let set = Arc::new(Mutex::new(set));
            let calls = Arc::new(AtomicU32::new(0));
            // The log is held for a note only: a receive may park, and another thread looks at the log.
            let take_all = |set: &mut ReceiverSet, logs: &Mutex<[Log; 2]>| -> netvm::Result<()> {
                loop {
                    let index = match set.wait(Timeout::Now) {
                        Ok(index) => index,
                        Err(Error::TimedOut) => return Ok(()),
                        Err(error) => return Err(error),
                    };
                    let Some(receiver) = set.get_mut(index) else {
                        continue;
                    };
                    let found = receiver.take();
                    locked(logs)[index].note(found);
                    let over = {
                        let log = &locked(logs)[index];
                        log.closed || log.trouble.is_some()
                    };
                    if over {
                        drop(set.remove(index));
                    }
                }
            };
            for bell in &bells {
                let (set, logs, counted) = (Arc::clone(&set), Arc::clone(&logs), Arc::clone(&calls));
                let numbers = numbers.clone();
                bell.arm(move |id| {
                    counted.fetch_add(1, Ordering::AcqRel);
                    if takes == Takes::Nothing {
                        return;
                    }
                    // Handlers of a port take turns, so this waits for none.
                    let mut set = locked(&set);
                    if takes == Takes::Everything {
                        if let Err(error) = take_all(&mut set, &logs) {
                            locked(&logs)[0].trouble = Some(error.into());
                        }
                    } else if let Some(index) = numbers.iter().position(|&number| number == id)
                        && let Some(receiver) = set.get_mut(index)
                    {
                        let found = receiver.take();
                        locked(&logs)[index].note(found);
                    }
                })?;
            }
            side.import_peer("peer")?.notify(GO)?;
            let ended = || {
                let logs = locked(&logs);
                logs.iter().any(|log| log.trouble.is_some())
                    || logs.iter().all(|log| log.closed && log.next == total)
            };
            let mut seen = 0;
            while !ended() {
                let waited = side.until(SOON, || Ok(calls.load(Ordering::Acquire) != seen || ended()));
                if let Err(error) = waited {
                    if side.env.may_fail || error != Error::TimedOut {
                        return Err(error.into());
                    }
                    let logs = locked(&logs);
                    return Err(Trouble::Wrong(format!(
                        "no handler was called for messages {} and {}",
                        logs[0].next, logs[1].next
                    )));
                }
                seen = calls.load(Ordering::Acquire);
                if takes == Takes::Nothing {
                    take_all(&mut locked(&set), &logs)?;
                }
            }
            for bell in &bells {
                bell.disarm();
            }
            let trouble = locked(&logs).iter_mut().find_map(|log| log.trouble.take());
            trouble.map_or(Ok(()), Err)?;
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let at = side.peer_port(0);
            let mut left = Sender::join(&side, side.peer(), at, "left", side.env.patience)?;
            let mut right = Sender::join(&side, side.peer(), at, "right", side.env.patience)?;
            send(&side, |number| {
                left.send(&number.to_le_bytes(), side.env.patience)?;
                right.send(&number.to_le_bytes(), side.env.patience)
            })?;
            left.close()?;
            Ok(right.close()?)
        },
    )
}

pub(super) fn set_handler_all(env: &Env) -> Outcome {
    set(env, Takes::Everything)
}

pub(super) fn set_handler_one(env: &Env) -> Outcome {
    set(env, Takes::One)
}

pub(super) fn set_handler_none(env: &Env) -> Outcome {
    set(env, Takes::Nothing)
}

/// A handler that acknowledges signals itself: each is handled once, by a call or by the handler's own word.
pub(super) fn handler_acknowledges(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let signals = FIRST + side.env.scaled(24);
            for takes in [Takes::Everything, Takes::One, Takes::Nothing] {
                side.take_signal(GO)?;
                let bell = side.notification(BELL)?;
                let (calls, handled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
                let (counted, noted, own) = (Arc::clone(&calls), Arc::clone(&handled), bell.clone());
                bell.arm(move |_| {
                    counted.fetch_add(1, Ordering::AcqRel);
                    let acknowledged = match takes {
                        Takes::Everything => std::iter::from_fn(|| own.ack().ok()).count(),
                        Takes::One => own.ack().iter().count(),
                        Takes::Nothing => 1,
                    };
                    noted.fetch_add(acknowledged as u32, Ordering::AcqRel);
                })?;
                side.import_peer("peer")?.notify(GO)?;
                let over = || Ok(handled.load(Ordering::Acquire) >= signals && bell.pending() == 0);
                let waited = side.until(SOON, over);
                let (calls, handled) = (calls.load(Ordering::Acquire), handled.load(Ordering::Acquire));
                match waited {
                    Err(Error::TimedOut) if !side.env.may_fail => {}
                    other => other?,
                }
                right!(
                    handled == signals,
                    "{handled} of {signals} signals were handled, in {calls} calls"
                );
                right!(
                    takes == Takes::Everything || calls == signals,
                    "{calls} calls for {signals} signals"
                );
                bell.disarm();
                side.import_peer("peer")?.notify(GO)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let bells = side.import_peer("bells")?;
            for _ in 0..3 {
                for _ in 0..FIRST {
                    bells.notify(BELL)?;
                }
                bells.notify(GO)?;
                side.take_signal(GO)?;
                for _ in 0..side.env.scaled(24) {
                    bells.notify(BELL)?;
                }
                side.take_signal(GO)?;
            }
            side.flush_peer()
        },
    )
}

/// Two sets and a reader of the queue, on one port: none takes what is another's.
pub(super) fn sets_apart(env: &Env) -> Outcome {
    let messages = env.scaled(20);
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let mut sets = Vec::new();
            for name in ["left", "right"] {
                let config = ChannelConfig::default().message_bytes(64).capacity(8);
                let mut set = ReceiverSet::new(&side);
                set.add(Receiver::open(&side, name, config)?)?;
                sets.push(set);
            }
            let foreign = side.env.open(1, 1)?;
            let stranger = Receiver::open(&foreign, "foreign", ChannelConfig::default())?;
            right!(
                matches!(sets[0].add(stranger), Err(Error::Refused { .. })),
                "a set took a receiver of another port"
            );
            let queue = side.notifications();
            for number in 0..messages {
                // A bell for the program, then a message in each set: each waits while the other things are there.
                let id = loop {
                    let id = queue.wait(side.env.patience)?;
                    if side.notification(id)?.ack().is_ok() {
                        break id;
                    }
                };
                right!(id.0 == BELL, "number {id} came out of the queue");
                for set in sets.iter_mut().rev() {
                    let index = set.wait(side.env.patience)?;
                    let Some(receiver) = set.get_mut(index) else {
                        return Err(Trouble::Wrong("a set names what it has not".into()));
                    };
                    let message = receiver.recv(Timeout::Now)?.to_vec()?;
                    pattern::same(
                        &message,
                        &pattern::bytes(number.into(), 0, 40),
                        0,
                        "a message of two sets",
                    )?;
                }
                side.import_peer("peer")?.notify(GO)?;
            }
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let bells = side.import_peer("bells")?;
            let at = side.peer_port(0);
            let mut left = Sender::join(&side, side.peer(), at, "left", side.env.patience)?;
            let mut right = Sender::join(&side, side.peer(), at, "right", side.env.patience)?;
            for number in 0..messages {
                let text = pattern::bytes(number.into(), 0, 40);
                left.send(&text, side.env.patience)?;
                right.send(&text, side.env.patience)?;
                bells.notify(BELL)?;
                side.take_signal(GO)?;
            }
            side.flush_peer()
        },
    )
}
