//! The shared receive queue: many senders, one queue; each message once, in its sender's order and with its
//! sender's name; full, paged out, left by processes that die.

use super::GONE;
use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, fails, refused, right};
use crate::pattern;
use crate::side::{bequeath, inherited, share, worse};
use netvm::{Error, Port, SharedConfig, SharedReceiver, SharedSender, Status, Timeout};
use std::collections::BTreeMap;
use std::time::Duration;

/// Notifications of the bodies' own: the library's are high.
const GO: u32 = 1;

fn join(env: &Env, port: &Port, node: usize, at: u16, name: &str) -> netvm::Result<SharedSender> {
    SharedSender::join(port, env.id(node), env.port_id(node, at), name, env.patience)
}

/// Identifies a message: the sender's own port, which the card's word must confirm, and the message's number.
fn key(sender: u16, number: u32) -> u64 {
    u64::from(sender) << 32 | u64::from(number)
}

/// Lengths around the inline limit and up to an entry.
const fn length(number: u32) -> usize {
    const LENGTHS: [usize; 8] = [1, 8, 127, 128, 129, 500, 64, 512];
    LENGTHS[number as usize % LENGTHS.len()]
}

/// Takes a message, which must be the next of the sender that the card names.
fn expect(receiver: &mut SharedReceiver, env: &Env, next: &mut BTreeMap<(u16, u16), (u16, u32)>) -> Outcome {
    let message = receiver.recv(env.patience)?;
    let (node, port) = message.sender();
    let Some((sender, number)) = next.get_mut(&(node.0, port.0)) else {
        return Err(Trouble::Wrong(format!("a message of port {port} of node {node}")));
    };
    let len = length(*number);
    right!(
        message.len() == len,
        "message {number} of sender {sender} has {} bytes, {len} were sent",
        message.len()
    );
    let sent = pattern::bytes(key(*sender, *number), 0, len);
    let mut copy = vec![0; len];
    right!(message.copy_to(&mut copy)? == len, "its copy has another length");
    pattern::same(&copy, &sent, 0, "a message of many senders")?;
    *number += 1;
    Ok(())
}

/// Several senders on every node, through a queue that is always full; `cold`: its pages are thrown out all the
/// time.
fn many(env: &Env, capacity: u32, messages: u32, cold: bool) -> Outcome {
    /// Senders on each node, the receiver's included.
    const EACH: u16 = 2;
    let nodes = env.nodes.len().min(4) as u16;
    let senders = nodes * EACH;
    let at = move |sender: u16| (usize::from(sender % nodes), 1 + sender / nodes);
    // Before anything of node 0's own, which may be another machine.
    let running: Vec<_> = (0..senders)
        .map(|sender| {
            env.spawn(at(sender).0, "sender", move |env| {
                let port = env.open(at(sender).0, at(sender).1)?;
                let to = join(env, &port, 0, 0, "shared")?;
                for number in 0..messages {
                    let text = pattern::bytes(key(sender, number), 0, length(number));
                    to.send(&text, env.patience)?;
                }
                Ok(())
            })
        })
        .collect();
    // They stay until all have ended.
    let (mut port, mut receiver) = (None, None);
    let mut receive = || -> Outcome {
        let port = port.insert(env.open(0, 0)?);
        let config = SharedConfig::default().capacity(capacity);
        let receiver = receiver.insert(SharedReceiver::open(port, "shared", config)?);
        let mut next = (0..senders)
            .map(|sender| {
                (
                    (env.id(at(sender).0).0, env.port_id(at(sender).0, at(sender).1).0),
                    (sender, 0),
                )
            })
            .collect();
        for count in 0..messages * u32::from(senders) {
            if cold && count % 3 == 0 {
                env.pressure(0);
            }
            expect(receiver, env, &mut next)?;
        }
        right!(receiver.try_recv()?.is_none(), "a message that was never sent");
        right!(
            receiver.skipped() == 0,
            "{} places were skipped",
            receiver.skipped()
        );
        Ok(())
    };
    let mine = receive();
    running
        .into_iter()
        .fold(mine, |outcome, running| worse(outcome, running.join()))
}

pub(super) fn shared_many_senders(env: &Env) -> Outcome {
    many(env, 4, env.scaled(20), false)
}

pub(super) fn shared_evicted(env: &Env) -> Outcome {
    many(env, 16, env.scaled(12), true)
}

pub(super) fn shared_full(env: &Env) -> Outcome {
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let bells = share(&port, "bells", 4096)?;
            let config = SharedConfig::default().message_bytes(100).capacity(2);
            let mut receiver = SharedReceiver::open(&port, "full", config)?;
            right!(receiver.message_bytes() == 128, "an entry is no power of two");
            right!(receiver.try_recv()?.is_none(), "a message that was never sent");
            take_signal(env, &port, GO)?;
            let peer = env.import(&port, 0, 0, "sender")?;
            // The first is borrowed, which gives nothing back: only its end does.
            let message = receiver.recv(env.patience)?;
            right!(message.array::<1>(0)? == [1], "another message than the first");
            right!(message.array::<2>(7).is_err(), "read past the end of a message");
            peer.notify(GO)?;
            take_signal(env, &port, GO)?;
            right!(message.to_vec()? == [1; 8], "a borrowed message has changed");
            drop(message);
            for number in 2..=4_u8 {
                let message = receiver.recv(env.patience)?;
                right!(message.array::<1>(0)? == [number], "message {number} is another");
                right!(
                    message.sender() == (env.id(0), env.port_id(0, 0)),
                    "message {number} has another sender"
                );
            }
            right!(receiver.try_recv()?.is_none(), "a refused message came, too");
            peer.notify(GO)?;
            port.flush_remote(env.id(0))?;
            drop(bells);
            Ok(())
        },
        move |env| {
            let port = env.open(0, 0)?;
            let _bells = share(&port, "sender", 4096)?;
            let bells = env.import(&port, 1, 0, "bells")?;
            let sender = join(env, &port, 1, 0, "full")?;
            let refused = |sender: &SharedSender| {
                fails(sender.try_send(&[9; 8]), "one message too many", |error| {
                    *error == Error::QueueFull
                })
            };
            sender.try_send(&[1; 8])?;
            sender.try_send(&[2; 8])?;
            refused(&sender)?;
            fails(
                sender.send(&[9; 8], Duration::from_micros(500)),
                "a wait for room that does not come",
                |error| *error == Error::QueueFull,
            )?;
            bells.notify(GO)?;
            take_signal(env, &port, GO)?;
            refused(&sender)?;
            bells.notify(GO)?;
            sender.send(&[3; 8], env.patience)?;
            sender.send(&[4; 8], env.patience)?;
            take_signal(env, &port, GO)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

/// What is posted without waiting, and refused, holds back all that follows: what came is a prefix.
pub(super) fn shared_posted(env: &Env) -> Outcome {
    const CAPACITY: u8 = 4;
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let bells = share(&port, "bells", 4096)?;
            let config = SharedConfig::default().capacity(CAPACITY.into());
            let mut receiver = SharedReceiver::open(&port, "blind", config)?;
            take_signal(env, &port, GO)?;
            for number in 0..20_u8 {
                let message = receiver.recv(env.patience)?;
                right!(message.array::<1>(0)? == [number], "message {number} is another");
            }
            right!(receiver.try_recv()?.is_none(), "more than was sent");
            drop(bells);
            Ok(())
        },
        move |env| {
            let port = env.open(0, 0)?;
            let bells = env.import(&port, 1, 0, "bells")?;
            let sender = join(env, &port, 1, 0, "blind")?;
            let mut numbers = BTreeMap::new();
            let mut next = 0;
            let deadline = env.deadline(&port);
            let mut rung = false;
            loop {
                deadline.check()?;
                while next < 20 {
                    match sender.post(&[next; 8]) {
                        Ok(op) => drop(numbers.insert(op, next)),
                        Err(error) => {
                            next = again(&numbers, error)?;
                            break;
                        }
                    }
                    next += 1;
                }
                match port.flush_remote(env.id(1)) {
                    Ok(()) if next == 20 => return Ok(()),
                    Ok(()) => {}
                    Err(error) => next = again(&numbers, error)?,
                }
                if !rung {
                    right!(next == CAPACITY, "{next} messages have found room for {CAPACITY}");
                    bells.notify(GO)?;
                    rung = true;
                }
                pass(&port, Duration::from_micros(100))?;
            }
        },
    )
}

/// Which message to go on with after this error.
fn again(numbers: &BTreeMap<netvm::OpId, u8>, error: Error) -> Outcome<u8> {
    match error {
        Error::Failed(failure) if failure.status == Status::NoPlace => {
            numbers.get(&failure.op).copied().ok_or_else(|| {
                Trouble::Wrong(format!(
                    "operation {} is refused, which is no message",
                    failure.op
                ))
            })
        }
        error => Err(error.into()),
    }
}

pub(super) fn shared_refusals(env: &Env) -> Outcome {
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let bells = share(&port, "bells", 4096)?;
            let config = || SharedConfig::default().from_port(env.id(0), env.port_id(0, 0));
            fails(
                SharedReceiver::open(&port, "queue", config().message_bytes(4097)),
                "entries of more than a page",
                |error| matches!(error, Error::MessageTooLong { .. }),
            )?;
            for capacity in [0, 1025] {
                fails(
                    SharedReceiver::open(&port, "queue", config().capacity(capacity)),
                    "a queue of no size that can be",
                    |error| matches!(error, Error::Refused { .. }),
                )?;
            }
            let receiver = SharedReceiver::open(&port, "queue", config().notification(900))?;
            right!(
                receiver.notification().id().0 == 900,
                "another notification than asked for"
            );
            fails(
                SharedReceiver::open(&port, "second", config()),
                "a second queue of one port",
                |error| matches!(error, Error::Refused { .. }),
            )?;
            take_signal(env, &port, GO)?;
            let untouched = receiver.memory().len();
            let mut bytes = vec![1; untouched as usize];
            receiver.memory().read_into(0, &mut bytes)?;
            right!(
                bytes.iter().all(|&byte| byte == 0),
                "a refused port wrote into the queue"
            );
            right!(
                receiver.notification().pending() == 0,
                "a refused port signalled for the queue"
            );
            // It goes; its sender is told.
            drop(receiver);
            let peer = env.import(&port, 0, 0, "sender")?;
            peer.notify(GO)?;
            port.flush_remote(env.id(0))?;
            take_signal(env, &port, GO)?;
            drop(bells);
            Ok(())
        },
        move |env| {
            let port = env.open(0, 0)?;
            let other = env.open(0, 1)?;
            let _bells = share(&port, "sender", 4096)?;
            let bells = env.import(&port, 1, 0, "bells")?;
            let sender = join(env, &port, 1, 0, "queue")?;
            fails(join(env, &port, 1, 0, "bells"), "something else", |error| {
                matches!(error, Error::NotAChannel { .. })
            })?;
            refused(join(env, &other, 1, 0, "queue"), &[Status::NotAllowed])?;
            fails(sender.try_send(&[]), "a message of nothing", |error| {
                matches!(error, Error::Empty { .. })
            })?;
            fails(
                sender.send(&[0; 513], Timeout::Now),
                "a message too long",
                |error| matches!(error, Error::MessageTooLong { len: 513, limit: 512 }),
            )?;
            // A port that may append may do nothing else.
            let raw = env.import(&port, 1, 0, "queue")?;
            right!(
                raw.modes() == netvm::Modes::APPEND,
                "more rights than to append: {:?}",
                raw.modes()
            );
            for result in [
                raw.write(0, &[1; 8]).post().map(drop),
                raw.read(0, &mut [0; 8]).call().map(drop),
            ] {
                fails(result, "a plain write or read", |error| {
                    matches!(error, Error::ModeRefused { .. })
                })?;
            }
            fails(raw.notify(40), "a signal of one's own", |error| {
                matches!(error, Error::ModeRefused { .. })
            })?;
            bells.notify(GO)?;
            take_signal(env, &port, GO)?;
            refused(sender.send(b"too late", env.patience), GONE)?;
            let bells = env.import(&port, 1, 0, "bells")?;
            bells.notify(GO)?;
            Ok(port.flush_remote(env.id(1))?)
        },
    )
}

pub(super) fn shared_sender_dies(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let port = env.open(1, 0)?;
        let sender = join(env, &port, 0, 0, "shared")?;
        for number in 0.. {
            let text = pattern::bytes(key(0, number), 0, length(number));
            sender.send(&text, env.patience)?;
        }
        Ok(())
    });
    let steady = env.spawn(2, "survivor", move |env| {
        let port = env.open(2, 0)?;
        let sender = join(env, &port, 0, 0, "shared")?;
        for number in 0..60 {
            let text = pattern::bytes(key(1, number), 0, length(number));
            sender.send(&text, env.patience)?;
        }
        Ok(())
    });
    let (mut port, mut receiver) = (None, None);
    let mut receive = || -> Outcome {
        let port = port.insert(env.open(0, 0)?);
        let receiver = receiver.insert(SharedReceiver::open(
            port,
            "shared",
            SharedConfig::default().capacity(4),
        )?);
        let of = |sender: u16| {
            let node = 1 + usize::from(sender);
            (env.id(node).0, env.port_id(node, 0).0)
        };
        let mut next = [0, 1].map(|sender| (of(sender), (sender, 0))).into();
        let mut killed = false;
        loop {
            expect(receiver, env, &mut next)?;
            let number = |sender: u16| next.get(&of(sender)).map_or(0, |&(_, number)| number);
            if !killed && number(0) >= 10 {
                victim.kill();
                killed = true;
            }
            // Whatever the dead one left, the other one's messages come.
            if killed && number(1) == 60 {
                return Ok(());
            }
        }
    };
    let mine = receive();
    let mine = worse(mine, steady.join());
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    }
}

pub(super) fn shared_receiver_dies(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let port = env.open(1, 0)?;
        let config = SharedConfig::default().capacity(4).notification(50);
        let mut receiver = SharedReceiver::open(&port, "doomed", config)?;
        for _ in 0..10 {
            receiver.recv(env.patience)?;
        }
        // It holds one, and never comes back.
        let _held = receiver.recv(env.patience)?;
        // Or not for ever, should the process that was to kill it have died itself.
        pass(&port, env.patience * 2)?;
        Err(Trouble::Unexpected("it was to be killed".into()))
    });
    // A new life of the port: its queue begins anew, whatever the last one left.
    let heir = env.spawn(1, "heir", move |env| {
        let port = inherited(env)?;
        let config = SharedConfig::default().capacity(4).notification(50);
        let mut receiver = SharedReceiver::open(&port, "doomed", config)?;
        for number in 0..10_u8 {
            let message = receiver.recv(env.patience)?;
            right!(
                message.array::<1>(0)? == [number],
                "message {number} to the heir is another"
            );
        }
        right!(receiver.skipped() == 0, "the heir skips places of the dead");
        Ok(())
    });
    let survivor = || -> Outcome {
        let port = env.open(0, 0)?;
        let sender = join(env, &port, 1, 0, "doomed")?;
        let deadline = env.deadline(&port);
        loop {
            match sender.send(&[1; 200], Duration::from_millis(2)) {
                Ok(()) => deadline.check()?,
                Err(Error::QueueFull) => break,
                Err(error) => return Err(error.into()),
            }
        }
        victim.kill();
        loop {
            match sender.send(&[2; 200], Duration::from_millis(2)) {
                Err(Error::QueueFull) => deadline.check()?,
                end => return refused(end, GONE),
            }
        }
    };
    let mine = survivor();
    let mine = match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    };
    let again = || -> Outcome {
        let port = env.open(0, 1)?;
        bequeath(env, &port)?;
        let sender = join(env, &port, 1, 0, "doomed")?;
        for number in 0..10_u8 {
            sender.send(&[number; 16], env.patience)?;
        }
        Ok(())
    };
    let mine = mine.and_then(|()| again());
    worse(mine, heir.join())
}
