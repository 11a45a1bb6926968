//! The server's part in the measurement of a channel: it takes messages, and sends those back that ask for it.

use netvm::{ChannelConfig, Error, Receiver, Sender};

use super::server::{LOOK, Served};
use super::{Answer, MESSAGES, RETURNS, Way};
use crate::processes::PATIENCE;

/// Runs until the client leaves the channel.
///
/// # Errors
/// The client, or the link to it, has gone: so has the session.
pub(super) fn run(served: &mut Served<'_>, size: u32, capacity: u32) -> Result<(), Error> {
    let (node, port) = served.peer;
    let config = ChannelConfig::default()
        .message_bytes(size.into())
        .capacity(capacity)
        .from_port(node, port);
    let messages = Receiver::open(served.port, MESSAGES, config);
    let returns = Sender::join(served.port, node, port, RETURNS, PATIENCE);
    let (mut messages, mut returns) = match (messages, returns) {
        (Ok(messages), Ok(returns)) => (messages, returns),
        (Err(error), _) | (_, Err(error)) => return served.refuse(error.to_string()),
    };
    served.say(&Answer::Open)?;
    let mut taken = 0;
    let mut back = vec![0; size as usize];
    while !served.is_over() {
        let message = match messages.recv(LOOK) {
            Ok(message) => message,
            Err(Error::TimedOut) => continue,
            Err(Error::ChannelClosed) => break,
            Err(error) => return Err(error),
        };
        let way = if message.is_empty() {
            None
        } else {
            let [first] = message.array(0)?;
            Way::of(first)
        };
        match way {
            Some(Way::Take) => taken += 1,
            Some(Way::Return) => {
                // The channel takes no longer ones.
                let len = message.copy_to(&mut back)?;
                drop(message);
                returns.send(back.get(..len).unwrap_or_default(), PATIENCE)?;
                taken += 1;
            }
            Some(Way::Count) => {
                drop(message);
                served.say(&Answer::Taken { messages: taken })?;
            }
            None => {
                drop(message);
                return served.refuse("a message of the channel makes no sense");
            }
        }
    }
    drop((messages, returns));
    served.say(&Answer::Closed)
}
