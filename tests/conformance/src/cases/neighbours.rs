//! Several channels and threads on one port, each with troubles of its own: what happens to one leaves the others
//! alone.

use super::GONE;
use crate::env::{Env, pass, take_signals};
use crate::outcome::{Outcome, Trouble, fails, refused, right};
use crate::side::{Side, worse};
use netvm::{ChannelConfig, Error, OpId, Receiver, RemoteSegment, Sender};
use netvm::{SharedConfig, SharedReceiver, SharedSender};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Notifications of the bodies' own: the library's are high.
const GO: u32 = 1;

/// A sender is lost in a panic before its receiver has met it. The next one of the same port, to the same port, has
/// nothing to do with the first channel.
pub(super) fn channel_orphan(env: &Env) -> Outcome {
    const CAPACITY: u32 = 8;
    let total = 3 * CAPACITY;
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let config = || {
                ChannelConfig::default()
                    .message_bytes(64)
                    .capacity(CAPACITY)
                    .refill(1)
            };
            let mut first = Receiver::open(&side, "first", config())?;
            let mut second = Receiver::open(&side, "second", config())?;
            side.take_signal(GO)?;
            let expect = |receiver: &mut Receiver, number: u32, what: &str| -> Outcome {
                let found = receiver.recv(side.env.patience)?.array(0)?;
                right!(
                    found == number.to_le_bytes(),
                    "message {number} of the {what} channel is {found:?}"
                );
                Ok(())
            };
            for number in 0..CAPACITY / 2 {
                expect(&mut first, number, "first")?;
            }
            refused(first.recv(side.env.patience).map(drop), GONE)?;
            side.import_peer("peer")?.notify(GO)?;
            side.take_signal(GO)?;
            for number in 0..total {
                expect(&mut second, number, "second")?;
            }
            fails(
                second.recv(side.env.patience),
                "after the last message",
                |error| *error == Error::ChannelClosed,
            )?;
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let bells = side.import_peer("bells")?;
            let join = |name| Sender::join(&side, side.peer(), side.peer_port(0), name, side.env.patience);
            let mut first = join("first")?;
            for number in 0..CAPACITY / 2 {
                first.send(&number.to_le_bytes(), side.env.patience)?;
            }
            first.flush()?;
            let orphaned = catch_unwind(AssertUnwindSafe(move || {
                let _held = first;
                // As a panic, without its message.
                resume_unwind(Box::new(()))
            }));
            let Err(_) = orphaned;
            let mut second = join("second")?;
            for number in 0..CAPACITY {
                second.send(&number.to_le_bytes(), side.env.patience)?;
            }
            bells.notify(GO)?;
            side.take_signal(GO)?;
            // The first receiver has given back entries, and the second none.
            fails(
                second.send(&CAPACITY.to_le_bytes(), Duration::from_millis(1)),
                "a message more than there is room for",
                |error| *error == Error::TimedOut,
            )?;
            bells.notify(GO)?;
            for number in CAPACITY..total {
                second.send(&number.to_le_bytes(), side.env.patience)?;
            }
            Ok(second.close()?)
        },
    )
}

/// A failure of something else takes no bytes of a channel that is read as a stream.
pub(super) fn channel_bytes_beside_failures(env: &Env) -> Outcome {
    const LEN: usize = 4;
    let messages = env.scaled(12) as usize;
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let config = ChannelConfig::default().message_bytes(8).capacity(64).refill(1);
            let mut reader = Receiver::open(&side, "bytes", config)?.into_reader(side.env.patience);
            let gone = side.import_peer("gone")?;
            let peer = side.import_peer("peer")?;
            peer.notify(GO)?;
            side.take_signal(GO)?;
            let mut found = Vec::new();
            for number in 0.. {
                if number % 3 == 1 && number < messages {
                    match gone.write(0, &[1; 8]).post() {
                        Ok(_) | Err(Error::Failed(_) | Error::FailuresLost { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                    // It has failed by then, as a rule.
                    pass(&side, Duration::from_millis(1))?;
                }
                if number == messages {
                    // Until here the sender has said no farewell, after which no entry is given back.
                    // A failure that is not known yet would suppress it.
                    while let Err(error) = peer.write(0, &[]).notify(GO).regardless().post() {
                        let told = matches!(error, Error::Failed(_) | Error::FailuresLost { .. });
                        fails(Err::<(), _>(error), "a bell", |_| told)?;
                    }
                }
                let mut some = [0; LEN];
                match reader.read(&mut some) {
                    Ok(0) => break,
                    Ok(count) => found.extend_from_slice(&some[..count]),
                    Err(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
                        Some(Error::Failed(_) | Error::FailuresLost { .. }) => {}
                        Some(error) => return Err((*error).into()),
                        None => return Err(Trouble::Unexpected(format!("{error}"))),
                    },
                }
            }
            let sent: Vec<_> = (0..messages).flat_map(|number| [number as u8; LEN]).collect();
            right!(found == sent, "bytes {found:?} came, {sent:?} were sent");
            Ok(())
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let bells = side.import_peer("bells")?;
            let gone = side.share("gone", 4096)?;
            let mut sender = Sender::join(&side, side.peer(), side.peer_port(0), "bytes", side.env.patience)?;
            side.take_signal(GO)?;
            drop(gone);
            for number in 0..messages {
                sender.send(&[number as u8; LEN], side.env.patience)?;
            }
            bells.notify(GO)?;
            side.take_signal(GO)?;
            Ok(sender.close()?)
        },
    )
}

/// A program's write fails, and then an end of a channel to the same node goes: the program is told of its failure, once.
pub(super) fn channel_ends_keep_failures(env: &Env) -> Outcome {
    let config = || ChannelConfig::default().message_bytes(64).refill(1);
    env.pair(
        move |side| {
            let patience = side.env.patience;
            let (goes, _bells) = (side.share("goes", 4096)?, side.share("bells", 4096)?);
            let mut idle = Receiver::open(&side, "idle", config())?;
            let mut busy = Receiver::open(&side, "busy", config())?;
            side.take_signal(GO)?;
            drop(goes);
            let peer = side.import_peer("peer")?;
            peer.notify(GO)?;
            side.flush_peer()?;
            fails(idle.recv(patience), "a channel that was closed", |error| {
                *error == Error::ChannelClosed
            })?;
            drop(busy.recv(patience)?);
            // The message came before the failure. Its sender cannot know that.
            fails(busy.recv(patience), "a channel that was dropped", |error| {
                matches!(error, Error::ChannelClosed | Error::MessagesLost)
            })?;
            let mut sender = Sender::join(&side, side.peer(), side.peer_port(0), "back", patience)?;
            let deadline = side.env.deadline(&side);
            loop {
                match sender.send(&[1], patience) {
                    Ok(()) => deadline.check()?,
                    Err(Error::ChannelClosed) => return Ok(()),
                    Err(error) => return refused::<()>(Err(error), GONE),
                }
            }
        },
        move |side| {
            let patience = side.env.patience;
            let _peer = side.share("peer", 4096)?;
            let gone = side.import_peer("goes")?;
            let join = |name| Sender::join(&side, side.peer(), side.peer_port(0), name, patience);
            let (idle, mut busy) = (join("idle")?, join("busy")?);
            busy.send(&[1], patience)?;
            side.import_peer("bells")?.notify(GO)?;
            side.take_signal(GO)?;
            let op = lose(&side, &gone)?;
            drop(idle);
            is_told(&side, op, "a sender with nothing under way")?;
            let op = lose(&side, &gone)?;
            drop(busy);
            is_told(&side, op, "a sender")?;
            let mut back = Receiver::open(&side, "back", config())?;
            for _ in 0..3 {
                drop(back.recv(patience)?);
            }
            let op = lose(&side, &gone)?;
            drop(back);
            is_told(&side, op, "a receiver")
        },
    )
}

/// A write that is refused, and known to be, as a rule.
fn lose(side: &Side, gone: &RemoteSegment) -> netvm::Result<OpId> {
    let op = gone.write(0, &[1; 8]).post()?;
    pass(side, Duration::from_millis(2))?;
    Ok(op)
}

fn is_told(side: &Side, op: OpId, end: &str) -> Outcome {
    let what = format!("operation {op} failed, and {end} was dropped: a flush");
    fails(
        side.flush_remote(side.peer()),
        &what,
        |error| matches!(error, Error::Failed(failure) if failure.op == op),
    )?;
    side.flush_peer()
}

/// A shared queue that could not be opened leaves the port able to open one.
pub(super) fn shared_open_again(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _taken = side.share("taken", 4096)?;
            fails(
                SharedReceiver::open(&side, "taken", SharedConfig::default()),
                "a queue under a name that is taken",
                |error| matches!(error, Error::Export { .. }),
            )?;
            let mut receiver = SharedReceiver::open(&side, "queue", SharedConfig::default())?;
            let message = receiver.recv(side.env.patience)?;
            right!(message.to_vec()? == b"first", "another message than the first");
            Ok(())
        },
        move |side| {
            let queue =
                SharedSender::join(&side, side.peer(), side.peer_port(0), "queue", side.env.patience)?;
            Ok(queue.send(b"first", side.env.patience)?)
        },
    )
}

/// Threads that share one sender of a shared queue which is always full: each message has its place once, in its
/// thread's order, and no thread hears of another's refusals.
pub(super) fn shared_threads(env: &Env) -> Outcome {
    const THREADS: u32 = 4;
    let messages = env.scaled(40);
    env.pair(
        move |side| {
            let config = SharedConfig::default().message_bytes(8).capacity(4);
            let mut receiver = SharedReceiver::open(&side, "queue", config)?;
            let mut next = [0; THREADS as usize];
            for _ in 0..THREADS * messages {
                let message = receiver.recv(side.env.patience)?;
                let [thread, number] = [0, 4].map(|at| message.array(at).map(u32::from_le_bytes));
                let (thread, number) = (thread? as usize, number?);
                right!(
                    next.get(thread) == Some(&number),
                    "message {number} of thread {thread}, {:?} were due",
                    next
                );
                next[thread] += 1;
            }
            right!(receiver.try_recv()?.is_none(), "a message came twice");
            side.import_peer("peer")?.notify(GO)?;
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let queue =
                SharedSender::join(&side, side.peer(), side.peer_port(0), "queue", side.env.patience)?;
            let queue = Arc::new(queue);
            let running: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let queue = Arc::clone(&queue);
                    side.env.spawn_thread(0, "thread", move |env| {
                        for number in 0..messages {
                            let mut text = [0; 8];
                            text[..4].copy_from_slice(&thread.to_le_bytes());
                            text[4..].copy_from_slice(&number.to_le_bytes());
                            queue.send(&text, env.patience)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let mut ended = Ok(());
            for thread in running {
                ended = worse(ended, thread.join());
            }
            ended?;
            side.take_signal(GO)
        },
    )
}

/// One thread appends to a small shared queue whose receiver is slow, another one signals and sends through a channel,
/// all through one port to one node: what is refused of the one holds nothing back of the other.
pub(super) fn shared_beside(env: &Env) -> Outcome {
    /// Signals with each message of the channel.
    const BELLS: u32 = 4;
    let (appends, words) = (env.scaled(30), env.scaled(100));
    env.pair(
        move |side| {
            let _bells = side.share("bells", 4096)?;
            let config = SharedConfig::default().message_bytes(8).capacity(2);
            let mut queue = SharedReceiver::open(&side, "queue", config)?;
            let mut channel = Receiver::open(&side, "words", ChannelConfig::default().capacity(4))?;
            let slow = side.env.spawn_thread(1, "receiver", move |env| {
                let port = env.open(1, 1)?;
                for number in 0..appends {
                    pass(&port, Duration::from_micros(100))?;
                    let message = queue.recv(env.patience)?;
                    let came = u32::from_le_bytes(message.array(0)?);
                    right!(came == number, "append {came} has come, {number} was due");
                }
                right!(queue.try_recv()?.is_none(), "an append came twice");
                Ok(())
            });
            let mut receive = || -> Outcome {
                for number in 0..words {
                    let message = channel.recv(side.env.patience)?;
                    let came = u32::from_le_bytes(message.array(0)?);
                    right!(came == number, "message {came} has come, {number} was due");
                    drop(message);
                    pass(&side, Duration::from_micros(20))?;
                }
                take_signals(&side.env, &side, GO, words * BELLS)
            };
            let received = receive();
            worse(received, slow.join())?;
            let bells = side.notification(GO)?.pending();
            right!(bells == 0, "{bells} signals too many");
            side.import_peer("peer")?.notify(GO)?;
            side.flush_peer()
        },
        move |side| {
            let _peer = side.share("peer", 4096)?;
            let bells = side.import_peer("bells")?;
            let queue =
                SharedSender::join(&side, side.peer(), side.peer_port(0), "queue", side.env.patience)?;
            let mut channel =
                Sender::join(&side, side.peer(), side.peer_port(0), "words", side.env.patience)?;
            let append = side.env.spawn_thread(0, "appends", move |env| {
                for number in 0..appends {
                    queue.send(&number.to_le_bytes(), env.patience)?;
                }
                Ok(())
            });
            let mut send = || -> Outcome {
                for number in 0..words {
                    for _ in 0..BELLS {
                        bells.notify(GO)?;
                    }
                    channel.send(&number.to_le_bytes(), side.env.patience)?;
                }
                side.flush_peer()
            };
            let sent = send();
            worse(sent, append.join())?;
            side.take_signal(GO)
        },
    )
}
