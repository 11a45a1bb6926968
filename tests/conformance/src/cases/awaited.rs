//! Channels and shared queues whose ends are awaited: no call waits.

use super::GONE;
use crate::env::Env;
use crate::outcome::{Outcome, Trouble, holds, of_stream, right};
use crate::pattern;
use crate::side::Side;
use futures_util::{SinkExt, StreamExt};
use netvm::{
    ChannelConfig, Error, Receiver, ReceiverSet, Result, Sender, SharedConfig, SharedReceiver, SharedSender,
    Timeout,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Entries of the queue: fewer than a round sends.
const CAPACITY: u32 = 8;
const LEN: usize = 300;

/// Receives until the sender leaves. How many messages came, or which was not as it was sent.
async fn drain(receiver: &mut Receiver) -> Result<std::result::Result<u64, u64>> {
    let mut number = 0;
    loop {
        receiver.ready().await?;
        match receiver.try_recv() {
            Ok(Some(message)) if message.to_vec()? == pattern::bytes(number, 0, LEN) => number += 1,
            Ok(Some(_)) => return Ok(Err(number)),
            Ok(None) => {}
            Err(Error::ChannelClosed) => return Ok(Ok(number)),
            Err(error) => return Err(error),
        }
    }
}

/// A sender that fails leaves early: what it had sent comes, and its end.
fn all_came(env: &Env, came: u64, messages: u64) -> Outcome {
    right!(came <= messages, "{came} messages came, and {messages} were sent");
    holds!(
        env,
        came == messages,
        "{came} messages came, and {messages} were to be sent"
    );
    Ok(())
}

/// Sends so many.
async fn fill(sender: &mut Sender, messages: u64) -> Result<()> {
    for number in 0..messages {
        sender.ready().await?;
        sender.send(&pattern::bytes(number, 0, LEN), Timeout::Now)?;
    }
    Ok(())
}

fn config() -> ChannelConfig {
    ChannelConfig::default()
        .message_bytes(LEN as u64)
        .capacity(CAPACITY)
}

fn join(side: &Side) -> Result<Sender> {
    Sender::join(side, side.peer(), side.peer_port(0), "awaited", side.env.patience)
}

pub(super) fn channel_awaited(env: &Env) -> Outcome {
    let messages = 10 * u64::from(env.scaled(20));
    env.pair(
        move |side| {
            let mut receiver = Receiver::open(&side, "awaited", config())?;
            match side.block_on_for(drain(&mut receiver), side.env.patience)?? {
                Ok(came) => all_came(&side.env, came, messages)?,
                Err(number) => right!(false, "message {number} has other bytes"),
            }
            Ok(())
        },
        move |side| {
            let mut sender = join(&side)?;
            side.block_on_for(fill(&mut sender, messages), side.env.patience)??;
            Ok(sender.close()?)
        },
    )
}

/// What a future of a channel ended with whose other end has died.
fn ended_by_death<T: std::fmt::Debug>(ended: Result<T>) -> Outcome {
    match ended {
        Err(Error::ChannelBroken { status }) if GONE.contains(&status) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(value) => Err(Trouble::Unexpected(format!("it ended with {value:?}"))),
    }
}

pub(super) fn channel_awaited_death(env: &Env) -> Outcome {
    let victim = env.spawn(1, "victim", move |env| {
        let side = env.side(1, 0)?;
        let _receiver = Receiver::open(&side, "awaited", config())?;
        let mut sender = Sender::join(&side, side.peer(), side.peer_port(0), "back", env.patience)?;
        sender.send(&pattern::bytes(0, 0, LEN), env.patience)?;
        // It says no farewell, and takes no message.
        side.take_signal(1)
    });
    let survivor = || -> Outcome {
        let side = env.side(0, 1)?;
        let mut receiver = Receiver::open(&side, "back", config())?;
        side.block_on_for(receiver.ready(), env.patience)??;
        right!(
            receiver.try_recv()?.is_some(),
            "its future has ended, and there is no message"
        );
        let mut sender = join(&side)?;
        side.block_on_for(fill(&mut sender, CAPACITY.into()), env.patience)??;
        victim.kill();
        // Each would wait for ever, if it did not look after the other end.
        ended_by_death(side.block_on_for(fill(&mut sender, 1), env.patience)?)?;
        ended_by_death(side.block_on_for(drain(&mut receiver), env.patience)?)
    };
    let mine = survivor();
    match victim.join() {
        Err(Trouble::Killed) | Ok(()) => mine,
        other => crate::side::worse(mine, other),
    }
}

/// What a sink takes comes out of a stream; its flush and its end are awaited, too.
pub(super) fn channel_streamed(env: &Env) -> Outcome {
    let messages = 10 * u64::from(env.scaled(20));
    env.pair(
        move |side| {
            let mut came = Receiver::open(&side, "awaited", config())?.into_stream();
            let all = async {
                let mut number = 0;
                while let Some(message) = came.next().await {
                    if message? != pattern::bytes(number, 0, LEN) {
                        return Ok(Err(number));
                    }
                    number += 1;
                }
                Result::Ok(Ok(number))
            };
            match side.block_on_for(all, side.env.patience)?? {
                Ok(came) => all_came(&side.env, came, messages)?,
                Err(number) => right!(false, "message {number} has other bytes"),
            }
            let ended = side.block_on_for(came.next(), side.env.patience)?;
            right!(ended.is_none(), "after its end it gives {ended:?}");
            Ok(())
        },
        move |side| {
            let mut sink = join(&side)?.into_sink();
            let all = async {
                for number in 0..messages {
                    sink.feed(pattern::bytes(number, 0, LEN)).await?;
                    if number % 50 == 0 {
                        SinkExt::<Vec<u8>>::flush(&mut sink).await?;
                    }
                }
                SinkExt::<Vec<u8>>::close(&mut sink).await?;
                SinkExt::<Vec<u8>>::close(&mut sink).await
            };
            side.block_on_for(all, side.env.patience)??;
            let after = side.block_on_for(sink.send([1]), side.env.patience)?;
            right!(
                after == Err(Error::ChannelClosed),
                "after its end a sink says {after:?}"
            );
            Ok(())
        },
    )
}

/// Bytes go through a channel of messages, which are cut elsewhere.
pub(super) fn bytes_streamed(env: &Env) -> Outcome {
    let bytes = 700 * env.scaled(20) as usize + 13;
    env.pair(
        move |side| {
            let mut reader = Receiver::open(&side, "awaited", config())?.into_async_reader();
            let all = async {
                let (mut came, mut part) = (Vec::new(), [0; 170]);
                loop {
                    match reader.read(&mut part).await {
                        Ok(0) => return Ok(came),
                        Ok(count) => came.extend_from_slice(part.get(..count).unwrap_or_default()),
                        Err(error) => return Err(of_stream(error)),
                    }
                }
            };
            let came = side.block_on_for(all, side.env.patience)??;
            right!(
                came == pattern::bytes(7, 0, bytes),
                "{} bytes of {bytes} came, or others",
                came.len()
            );
            Ok(())
        },
        move |side| {
            let mut writer = join(&side)?.into_async_writer();
            let all = async {
                writer.write_all(&pattern::bytes(7, 0, bytes)).await?;
                writer.flush().await?;
                writer.shutdown().await
            };
            let ended = side.block_on_for(all, side.env.patience)?;
            ended.map_err(of_stream)?;
            let after = side.block_on_for(writer.write(&[1]), side.env.patience)?;
            let after = after.map_err(of_stream);
            right!(
                after == Err(Trouble::Failed(Error::ChannelClosed)),
                "after its end a writer says {after:?}"
            );
            Ok(())
        },
    )
}

pub(super) fn shared_awaited(env: &Env) -> Outcome {
    let messages = u64::from(env.scaled(40));
    env.pair(
        move |side| {
            let mut receiver = SharedReceiver::open(&side, "awaited", SharedConfig::default())?;
            let all = async {
                for number in 0..messages {
                    let message = loop {
                        receiver.ready().await?;
                        if let Some(message) = receiver.try_recv()? {
                            break message.to_vec()?;
                        }
                    };
                    if message != pattern::bytes(number, 0, 24) {
                        return Ok(Some(number));
                    }
                }
                Ok(None)
            };
            let other: Result<Option<u64>> = side.block_on_for(all, side.env.patience)?;
            let other = other?;
            right!(other.is_none(), "message {other:?} has other bytes");
            Ok(())
        },
        move |side| {
            let (node, port) = (side.peer(), side.peer_port(0));
            let sender = SharedSender::join(&side, node, port, "awaited", side.env.patience)?;
            for number in 0..messages {
                sender.send(&pattern::bytes(number, 0, 24), side.env.patience)?;
            }
            Ok(())
        },
    )
}

/// What comes out of a shared queue as a stream is what was sent, in order, with its sender.
pub(super) fn shared_streamed(env: &Env) -> Outcome {
    let messages = u64::from(env.scaled(40));
    env.pair(
        move |side| {
            let receiver = SharedReceiver::open(&side, "awaited", SharedConfig::default())?;
            let mut came = receiver.into_stream();
            let from = (side.peer(), side.peer_port(0));
            for number in 0..messages {
                let next = side.block_on_for(came.next(), side.env.patience)?;
                let Some(message) = next.transpose()? else {
                    return Err(Trouble::Wrong(format!("the stream ends after {number} messages")));
                };
                right!(
                    message == (from, pattern::bytes(number, 0, 24)),
                    "message {number} came as {message:?}"
                );
            }
            right!(came.into_inner().try_recv()?.is_none(), "there are more messages");
            Ok(())
        },
        move |side| {
            let (node, port) = (side.peer(), side.peer_port(0));
            let sender = SharedSender::join(&side, node, port, "awaited", side.env.patience)?;
            for number in 0..messages {
                sender.send(&pattern::bytes(number, 0, 24), side.env.patience)?;
            }
            Ok(())
        },
    )
}

/// Channels in a set.
const MEMBERS: usize = 3;

fn member(index: usize) -> String {
    format!("member {index}")
}

/// The receivers of a set are awaited together, some of them by a future that is dropped; and their ends, too.
pub(super) fn set_awaited(env: &Env) -> Outcome {
    let messages = u64::from(env.scaled(20));
    env.pair(
        move |side| {
            let mut set = ReceiverSet::new(&side);
            for index in 0..MEMBERS {
                set.add(Receiver::open(&side, &member(index), config())?)?;
            }
            let mut came = [0; MEMBERS];
            while !set.is_empty() {
                if came.iter().sum::<u64>().is_multiple_of(3) {
                    // Looked at once: what it has named is named again.
                    let once = async {
                        let mut ready = std::pin::pin!(set.ready());
                        std::future::poll_fn(|context| {
                            let _ = ready.as_mut().poll(context);
                            std::task::Poll::Ready(())
                        })
                        .await;
                    };
                    side.block_on(once);
                }
                let index = side.block_on_for(set.ready(), side.env.patience)??;
                let Some(receiver) = set.get_mut(index) else {
                    return Err(Trouble::Wrong(format!("receiver {index} is none of the set's")));
                };
                match receiver.recv(Timeout::Now).and_then(|message| message.to_vec()) {
                    Ok(message) => {
                        let number = came[index];
                        right!(
                            message == pattern::bytes(number, index as u64, LEN),
                            "message {number} of channel {index} has other bytes"
                        );
                        came[index] += 1;
                    }
                    Err(Error::ChannelClosed) => drop(set.remove(index)),
                    Err(error) => return Err(error.into()),
                }
            }
            came.into_iter()
                .try_for_each(|came| all_came(&side.env, came, messages))
        },
        move |side| {
            let join = |index| {
                let name = member(index);
                Sender::join(&side, side.peer(), side.peer_port(0), &name, side.env.patience)
            };
            let mut senders = Vec::new();
            for index in 0..MEMBERS {
                senders.push(join(index)?);
            }
            for number in 0..messages {
                for (index, sender) in senders.iter_mut().enumerate() {
                    sender.send(&pattern::bytes(number, index as u64, LEN), side.env.patience)?;
                }
            }
            for sender in senders {
                sender.close()?;
            }
            Ok(())
        },
    )
}
