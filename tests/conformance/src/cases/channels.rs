//! Channels (thesis chapter 7): messages come whole, in order and once; a borrow keeps its bytes; an end that waits for
//! a peer that has gone is told.

use super::GONE;
use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble, due, fails, of_stream, refused, right};
use crate::pattern;
use crate::side::{share, worse};
use netvm::{ChannelConfig, Error, Port, Receiver, ReceiverSet, Sender, Status, Timeout};
use rand::Rng;
use std::io::{BufWriter, Read, Write};
use std::time::Duration;

/// Notifications of the bodies' own: the library's are high.
const GO: u32 = 1;
const SEEN: u32 = 2;

fn join(env: &Env, port: &Port, node: usize, at: u16, name: &str) -> netvm::Result<Sender> {
    Sender::join(port, env.id(node), env.port_id(node, at), name, env.patience)
}

/// The next message must be this one.
fn expect(receiver: &mut Receiver, patience: Duration, key: u64, len: usize, what: &str) -> Outcome {
    let message = receiver.recv(patience)?;
    right!(
        message.len() == len,
        "{what} {key} has {} bytes, {len} were sent",
        message.len()
    );
    let sent = pattern::bytes(key, 0, len);
    pattern::same(&message.to_vec()?, &sent, 0, what)?;
    // The same into memory of the program's own, which may be larger.
    let mut copy = vec![0xEE; len + 3];
    right!(
        message.copy_to(&mut copy)? == len,
        "{what} {key} has another length"
    );
    pattern::same(&copy[..len], &sent, 0, what)?;
    right!(copy[len..] == [0xEE; 3], "{what} {key} is copied past its end");
    Ok(())
}

/// Sizes around everything that could matter: the inline limit, an entry's head, pages.
const SIZES: [usize; 14] = [
    0, 1, 7, 8, 100, 119, 120, 121, 128, 4087, 4088, 4089, 8192, 12_000,
];

pub(super) fn channel_sizes(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(3));
    env.pair(
        move |side| {
            let config = ChannelConfig::default().message_bytes(12_000).capacity(4);
            let mut receiver = Receiver::open(&side, "sizes", config)?;
            right!(receiver.try_recv()?.is_none(), "a message that was never sent");
            let mut copied = vec![0; 12_000];
            for number in 0..rounds * SIZES.len() as u64 {
                let len = SIZES[number as usize % SIZES.len()];
                if number % 3 == 0 {
                    let found = receiver.recv_into(&mut copied, side.env.patience)?;
                    right!(
                        found == len,
                        "message {number} has {found} bytes, {len} were sent"
                    );
                    pattern::same(
                        &copied[..found],
                        &pattern::bytes(number, 0, len),
                        0,
                        "a copied message",
                    )?;
                } else {
                    expect(&mut receiver, side.env.patience, number, len, "message")?;
                }
            }
            fails(
                receiver.recv(side.env.patience),
                "after the last message",
                |error| *error == Error::ChannelClosed,
            )
        },
        move |side| {
            let mut sender = join(&side.env, &side, 1, 0, "sizes")?;
            let source = side.alloc(12_000)?;
            fails(
                sender.send(&[0; 12_001], Timeout::Now),
                "a message that is too long",
                |error| {
                    matches!(
                        error,
                        Error::MessageTooLong {
                            len: 12_001,
                            limit: 12_000
                        }
                    )
                },
            )?;
            for number in 0..rounds * SIZES.len() as u64 {
                let len = SIZES[number as usize % SIZES.len()];
                if number % 2 == 0 {
                    sender.send(&pattern::bytes(number, 0, len), side.env.patience)?;
                } else {
                    pattern::store(&source, 0, number, 0, len as u64)?;
                    sender.send(source.slice(..len as u64)?, side.env.patience)?;
                    side.flush_writes()?;
                }
            }
            Ok(sender.close()?)
        },
    )
}

pub(super) fn channel_borrow(env: &Env) -> Outcome {
    const LEN: usize = 5000;
    const CAPACITY: u32 = 3;
    let rounds = u64::from(env.scaled(4));
    env.pair(
        move |side| {
            let config = ChannelConfig::default()
                .message_bytes(LEN as u64)
                .capacity(CAPACITY)
                .refill(1);
            let mut receiver = Receiver::open(&side, "borrowed", config)?;
            let _bells = side.share("bells", 4096)?;
            let peer = side.import_peer("sender")?;
            let mut next = 0;
            for _ in 0..rounds {
                let message = receiver.recv(side.env.patience)?;
                // The sender fills the queue, and fails to fill more, while this one is held.
                peer.notify(GO)?;
                side.take_signal(SEEN)?;
                pattern::same(
                    &message.to_vec()?,
                    &pattern::bytes(next, 0, LEN),
                    0,
                    "a held message",
                )?;
                let half: [u8; 4] = message.array(LEN as u64 - 4)?;
                pattern::same(&half, &pattern::bytes(next, LEN as u64 - 4, 4), 0, "its end")?;
                right!(
                    message.array::<4>(LEN as u64 - 3).is_err(),
                    "read past the end of a message"
                );
                drop(message);
                next += 1;
                for _ in 1..CAPACITY {
                    expect(
                        &mut receiver,
                        side.env.patience,
                        next,
                        LEN,
                        "message behind a held one",
                    )?;
                    next += 1;
                }
                right!(
                    receiver.try_recv()?.is_none(),
                    "a message that was refused has come"
                );
                peer.notify(GO)?;
            }
            let stats = receiver.stats();
            right!(
                stats.messages == next && stats.waits > 0,
                "{next} messages were received: {stats:?}"
            );
            if stats.replenishments == 0 {
                return Err(Trouble::Unexpected(format!("no replenishment: {stats:?}")));
            }
            side.flush_peer()
        },
        move |side| {
            let _bells = side.share("sender", 4096)?;
            let mut sender = join(&side.env, &side, 1, 0, "borrowed")?;
            let (queue, bells) = (side.import_peer("borrowed")?, side.import_peer("bells")?);
            let mut next = 0;
            for _ in 0..rounds {
                for full in 0..CAPACITY {
                    sender.send(&pattern::bytes(next, 0, LEN), side.env.patience)?;
                    next += 1;
                    if full == 0 {
                        side.take_signal(GO)?;
                    }
                }
                fails(
                    sender.send(&pattern::bytes(next, 0, LEN), Duration::from_millis(1)),
                    "a message more than there is room for",
                    |error| *error == Error::TimedOut,
                )?;
                right!(
                    sender.outstanding() == u64::from(CAPACITY),
                    "{} messages are out, {CAPACITY} have room",
                    sender.outstanding()
                );
                // The queue admits its own notification alone.
                right!(queue.notify(SEEN).is_err(), "a queue admits any notification");
                bells.notify(SEEN)?;
                side.take_signal(GO)?;
            }
            let stats = sender.stats();
            right!(
                stats.messages == next && stats.waits >= rounds,
                "{next} messages were sent: {stats:?}"
            );
            side.flush_peer()
        },
    )
}

pub(super) fn channel_many_to_one(env: &Env) -> Outcome {
    /// Senders on each node, this one included.
    const EACH: u16 = 2;
    let nodes = env.nodes.len().min(4) as u16;
    let messages = env.scaled(40);
    let senders = nodes * EACH;
    let name = |sender: u16| format!("from {sender}");
    // Before anything of node 0's own, which may be another machine.
    let running: Vec<_> = (0..senders)
        .map(|sender| {
            env.spawn(usize::from(sender % nodes), "sender", move |env| {
                let port = env.open(usize::from(sender % nodes), 1 + sender / nodes)?;
                let mut to = join(env, &port, 0, 0, &name(sender))?;
                for number in 0..messages {
                    let key = u64::from(sender) << 32 | u64::from(number);
                    to.send(&pattern::bytes(key, 0, (number % 60) as usize), env.patience)?;
                }
                Ok(to.close()?)
            })
        })
        .collect();
    // It stays until all have ended.
    let mut port = None;
    let mut receive = || -> Outcome {
        let port = port.insert(env.open(0, 0)?);
        let mut set = ReceiverSet::new(port);
        for sender in 0..senders {
            let config = ChannelConfig::default()
                .message_bytes(64)
                .capacity(8)
                .from_node(env.id(usize::from(sender % nodes)));
            set.add(Receiver::open(port, &name(sender), config)?)?;
        }
        let mut counts = vec![0; usize::from(senders)];
        while !set.is_empty() {
            let sender = set.wait(env.patience)?;
            let Some(receiver) = set.get_mut(sender) else {
                return Err(Trouble::Wrong(format!(
                    "channel {sender} is named, and is not there"
                )));
            };
            let message = match receiver.recv(Timeout::Now).and_then(|message| message.to_vec()) {
                Ok(message) => message,
                Err(Error::ChannelClosed) => {
                    drop(set.remove(sender));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let number: u32 = counts[sender];
            let key = (sender as u64) << 32 | u64::from(number);
            right!(
                message.len() == (number % 60) as usize,
                "message {number} of sender {sender} has {} bytes",
                message.len()
            );
            pattern::same(&message, &pattern::bytes(key, 0, message.len()), 0, "one of many")?;
            counts[sender] += 1;
        }
        // Less than all: the sender has left early.
        right!(
            counts.iter().all(|&count| count <= messages),
            "messages {counts:?}, {messages} of each were to be sent"
        );
        due!(
            counts.iter().all(|&count| count == messages),
            "messages {counts:?}, {messages} of each were sent"
        );
        right!(port.notifications().pop().is_none(), "a number of no channel");
        Ok(())
    };
    let mine = receive();
    running
        .into_iter()
        .fold(mine, |outcome, running| worse(outcome, running.join()))
}

pub(super) fn channel_bytes(env: &Env) -> Outcome {
    let len = 20_000 * env.scale as usize;
    env.pair(
        move |side| {
            let config = ChannelConfig::default().message_bytes(1500).capacity(6).refill(2);
            let mut reader = Receiver::open(&side, "bytes", config)?.into_reader(side.env.patience);
            let mut random = side.env.random(1);
            let mut found = Vec::new();
            let mut some = [0; 4000];
            loop {
                let most = random.random_range(1..some.len());
                match reader.read(&mut some[..most]).map_err(of_stream)? {
                    0 => break,
                    count => found.extend_from_slice(&some[..count]),
                }
            }
            right!(found.len() <= len, "{} bytes came, {len} were sent", found.len());
            pattern::same(&found, &pattern::bytes(5, 0, found.len()), 0, "a stream of bytes")?;
            // A sender that gives up has sent the beginning.
            due!(found.len() == len, "{} bytes came, {len} were sent", found.len());
            Ok(())
        },
        move |side| {
            let writer = join(&side.env, &side, 1, 0, "bytes")?.into_writer(side.env.patience);
            let mut writer = BufWriter::with_capacity(1500, writer);
            let mut random = side.env.random(2);
            let all = pattern::bytes(5, 0, len);
            let mut rest = &all[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(random.random_range(1..=rest.len().min(3000)));
                writer.write_all(now).map_err(of_stream)?;
                rest = later;
            }
            writer.flush().map_err(of_stream)?;
            match writer.into_inner() {
                Ok(writer) => Ok(writer.close()?),
                Err(error) => Err(of_stream(error.into_error())),
            }
        },
    )
}

pub(super) fn channel_evicted(env: &Env) -> Outcome {
    const LEN: usize = 9000;
    let messages = u64::from(env.scaled(12));
    env.pair(
        move |side| {
            let config = ChannelConfig::default()
                .message_bytes(LEN as u64)
                .capacity(3)
                .refill(1);
            let mut receiver = Receiver::open(&side, "cold", config)?;
            for number in 0..messages {
                side.env.pressure(1);
                expect(
                    &mut receiver,
                    side.env.patience,
                    number,
                    LEN,
                    "message to evicted pages",
                )?;
            }
            fails(
                receiver.recv(side.env.patience),
                "after the last message",
                |error| *error == Error::ChannelClosed,
            )
        },
        move |side| {
            let mut sender = join(&side.env, &side, 1, 0, "cold")?;
            for number in 0..messages {
                if number % 2 == 0 {
                    side.env.pressure(0);
                }
                sender.send(&pattern::bytes(number, 0, LEN), side.env.patience)?;
            }
            Ok(sender.close()?)
        },
    )
}

pub(super) fn channel_refusals(env: &Env) -> Outcome {
    env.both(
        move |env| {
            let port = env.open(1, 0)?;
            let bells = share(&port, "bells", 4096)?;
            let mut receiver = Receiver::open(&port, "queue", ChannelConfig::default().notification(900))?;
            right!(
                receiver.notification().id().0 == 900,
                "another notification than asked for"
            );
            refused(
                Receiver::open(&port, "other", ChannelConfig::default().notification(900)),
                &[Status::NotAllowed],
            )?;
            let other = ChannelConfig::default().from_port(env.id(1), env.port_id(1, 7));
            let private = Receiver::open(&port, "private", other)?;
            take_signal(env, &port, GO)?;
            expect(&mut receiver, env.patience, 1, 10, "message of the first sender")?;
            // It goes, with messages in it.
            drop(receiver);
            let peer = env.import(&port, 0, 0, "sender")?;
            peer.notify(GO)?;
            take_signal(env, &port, GO)?;
            drop((private, bells));
            Ok(port.flush_remote(env.id(0))?)
        },
        move |env| {
            let port = env.open(0, 0)?;
            let _bells = share(&port, "sender", 4096)?;
            let bells = env.import(&port, 1, 0, "bells")?;
            let mut sender = join(env, &port, 1, 0, "queue")?;
            fails(join(env, &port, 1, 0, "queue"), "a second sender", |error| {
                *error == Error::ChannelTaken
            })?;
            fails(
                join(env, &port, 1, 0, "bells"),
                "a name of something else",
                |error| matches!(error, Error::NotAChannel { .. }),
            )?;
            refused(join(env, &port, 1, 0, "private"), &[Status::NotAllowed])?;
            sender.send(&pattern::bytes(1, 0, 10), env.patience)?;
            sender.send(&pattern::bytes(2, 0, 10), env.patience)?;
            bells.notify(GO)?;
            take_signal(env, &port, GO)?;
            // The receiver has left: heard of by and by, and from then on always.
            let end = send_until_it_ends(env, &port, &mut sender)?;
            fails(sender.send(b"more", Timeout::Never), "after the end", |error| {
                *error == end
            })?;
            fails(sender.close(), "the close of what has ended", |error| {
                *error == end
            })?;
            heard(env, &port)?;
            // More may come, where the wire repeats frames: the failures were more than the ring holds.
            while let Err(error) = bells.notify(GO) {
                let told = matches!(error, Error::Failed(_) | Error::FailuresLost { .. });
                fails(Err::<(), _>(error), "a bell", |_| told)?;
            }
            heard(env, &port)
        },
    )
}

/// Hears of all failures that are left.
fn heard(env: &Env, port: &Port) -> Outcome {
    let deadline = env.deadline(port);
    while let Err(error) = port.flush_remote(env.id(1)) {
        if deadline.passed() || !matches!(error, Error::Failed(_) | Error::FailuresLost { .. }) {
            return Err(error.into());
        }
        pass(port, Duration::from_micros(50))?;
    }
    Ok(())
}

/// Sends until the channel ends, as it does when the other end has gone.
fn send_until_it_ends(env: &Env, port: &Port, sender: &mut Sender) -> Outcome<Error> {
    let deadline = env.deadline(port);
    loop {
        match sender.send(&[7; 300], env.patience) {
            Ok(()) => {}
            Err(error @ Error::ChannelClosed) => return Ok(error),
            Err(error @ Error::ChannelBroken { status }) if GONE.contains(&status) => return Ok(error),
            Err(error) => return Err(error.into()),
        }
        deadline.check()?;
    }
}

pub(super) fn channel_foreign_failure(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let memory = side.alloc(4096)?;
            let gone = side.export("gone", &memory, .., crate::side::open_to_all())?;
            let mut receiver = Receiver::open(&side, "queue", ChannelConfig::default().message_bytes(64))?;
            side.take_signal(GO)?;
            drop(gone);
            let peer = side.import_peer("sender")?;
            peer.notify(GO)?;
            // What arrived is right, and in the end it is said that there may have been more.
            let mut count = 0;
            loop {
                match receiver.recv(side.env.patience) {
                    Ok(message) => {
                        right!(
                            message.array(0)? == u64::to_le_bytes(count),
                            "message {count} is another"
                        );
                        count += 1;
                    }
                    Err(Error::MessagesLost) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        },
        move |side| {
            let _bells = side.share("sender", 4096)?;
            let (bells, gone) = (side.import_peer("bells")?, side.import_peer("gone")?);
            let mut sender = join(&side.env, &side, 1, 0, "queue")?;
            bells.notify(GO)?;
            side.take_signal(GO)?;
            gone.write(0, &[1; 100]).post()?;
            let deadline = side.env.deadline(&side);
            for number in 0u64.. {
                match sender.send(&number.to_le_bytes(), side.env.patience) {
                    Ok(()) => deadline.check()?,
                    // Nothing had been sent yet.
                    Err(Error::Failed(_)) if number == 0 => {
                        sender.send(&number.to_le_bytes(), side.env.patience)?;
                        gone.write(0, &[1; 100]).post()?;
                    }
                    Err(Error::MessagesLost) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            drop(sender);
            heard(&side.env, &side)
        },
    )
}

pub(super) fn channel_sender_dies(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let port = env.open(1, 0)?;
        let mut sender = join(env, &port, 0, 0, "doomed")?;
        for number in 0u64.. {
            sender.send(&pattern::bytes(number, 0, 3000), env.patience)?;
            if number % 8 == 7 {
                pass(&port, Duration::from_micros(50))?;
            }
        }
        Ok(())
    });
    let survivor = || -> Outcome {
        let port = env.open(0, 0)?;
        let mut receiver = Receiver::open(&port, "doomed", ChannelConfig::default().capacity(16))?;
        let mut number = 0;
        while number < 40 {
            expect(&mut receiver, env.patience, number, 3000, "message of a victim")?;
            number += 1;
        }
        victim.kill();
        loop {
            match receiver.recv(env.patience) {
                Ok(message) => {
                    let found = message.to_vec()?;
                    pattern::same(
                        &found,
                        &pattern::bytes(number, 0, 3000),
                        0,
                        "message of a dead sender",
                    )?;
                    number += 1;
                }
                Err(Error::ChannelBroken { status }) if GONE.contains(&status) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    };
    let mine = survivor();
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    }
}

pub(super) fn channel_receiver_dies(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let port = env.open(1, 0)?;
        let mut receiver = Receiver::open(&port, "doomed", ChannelConfig::default().capacity(8))?;
        for number in 0..20 {
            expect(&mut receiver, env.patience, number, 500, "message to a victim")?;
        }
        // It holds one, and never comes back.
        let _held = receiver.recv(env.patience)?;
        // Or not for ever, should the process that was to kill it have died itself.
        pass(&port, env.patience * 2)?;
        Err(Trouble::Unexpected("it was to be killed".into()))
    });
    let survivor = || -> Outcome {
        let port = env.open(0, 0)?;
        let mut sender = join(env, &port, 1, 0, "doomed")?;
        for number in 0..20 {
            sender.send(&pattern::bytes(number, 0, 500), env.patience)?;
        }
        // Until the queue is full: then only a look can find out.
        let deadline = env.deadline(&port);
        loop {
            match sender.send(&[1; 500], Duration::from_millis(1)) {
                Ok(()) => deadline.check()?,
                Err(Error::TimedOut) if sender.outstanding() == 8 => break,
                Err(error) => return Err(error.into()),
            }
        }
        // Nothing is under way that could fail. (But the victim may have freed places, which is heard of later.)
        port.flush_remote(env.id(1))?;
        let sent = sender.stats().messages;
        victim.kill();
        send_until_it_ends(env, &port, &mut sender)?;
        match sender.stats().looks {
            0 if sender.stats().messages == sent => {
                Err(Trouble::Unexpected("a full queue's end, without a look".into()))
            }
            _ => Ok(()),
        }
    };
    let mine = survivor();
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => worse(mine, other),
    }
}
