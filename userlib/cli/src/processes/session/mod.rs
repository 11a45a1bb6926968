//! Sessions: how `netvm perf` has a `netvm serve` take part in a measurement.
//!
//! A client asks for a session by one message to the server's shared queue ([`REQUESTS`]), in which the card says which port
//! of which node it is from. The server opens a port for the session, so that a client that fails or dies ends this session
//! and nothing else. Each side opens a channel: the client's carries [`Answer`]s, the server's [`Order`]s. All messages are
//! JSON, and hostile until checked. The server acts on memory of that one client only.

mod client;
mod echo;
mod server;

pub(super) use client::{Session, nonsense};
pub(super) use server::{Offer, Sessions};

use netvm::{Error, Message};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::{MAX_DEPTH, MAX_MILLIS, MAX_TOUCH_MIB, MAX_TRANSFER};
use crate::processes::overcommit::Held;
use crate::processes::perf::lane::Kind;
use crate::processes::spread::Spread;

/// Version of what sessions say.
const VERSION: u16 = 1;
/// The server's shared queue.
pub(super) const REQUESTS: &str = "netvm-requests";
/// Bytes of a request at most. Each path carries that in one message.
pub(super) const REQUEST_BYTES: u64 = 128;
/// The server's channel, on the port of the session.
const ORDERS: &str = "netvm-orders";
/// Bytes of an order or an answer at most.
const TEXT_BYTES: u64 = 1024;
/// Orders and answers that may be on their way.
const TEXTS: u32 = 4;

/// What a client asks the server's queue for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    version: u16,
    /// Part of the name of the client's channel, which no other session of its port has.
    serial: u64,
}

impl Request {
    /// The name of the client's channel.
    fn answers(&self) -> String {
        format!("netvm-answers-{:x}", self.serial)
    }
}

/// What a client wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Order {
    /// Take messages of a channel, and send some of them back: [`Way`].
    Channel {
        /// Bytes of a message.
        size: u32,
        /// Messages that may be under way.
        capacity: u32,
    },
    /// Bind to the client's memory of the name [`MIRROR`].
    Mirror,
    /// Do operations on it, each with its end known before the next.
    Singles(Work),
    /// Do operations on it, many at once.
    Rate(Work),
    /// Offer a file mapping that is larger than the memory.
    Overcommit {
        /// Bytes of it that the client touches at most.
        touch: u64,
    },
    /// Say what of that mapping is held.
    Held,
}

/// What is to be done to the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Work {
    /// The operation.
    pub(super) kind: Kind,
    /// Operations between two waits for all of them.
    pub(super) depth: u32,
    /// How long.
    pub(super) millis: u64,
}

impl Work {
    /// Whether it may be ordered: no more than the command line of a client may ask of itself.
    fn is_fair(self) -> bool {
        let size = match self.kind {
            Kind::Write(size) | Kind::Read(size) => (1..=MAX_TRANSFER).contains(&size),
            Kind::Atomic | Kind::Notify => true,
        };
        size && (1..=MAX_DEPTH).contains(&self.depth) && (1..=MAX_MILLIS).contains(&self.millis)
    }
}

/// What the server says to that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The session's port.
    Ready {
        /// Its number.
        port: u16,
    },
    /// It will not.
    Refused {
        /// Why, for a person.
        why: String,
    },
    /// What was to be opened is there.
    Open,
    /// Single operations have taken so long.
    Singles(Spread),
    /// So many operations have ended.
    Rate {
        /// How many.
        count: u64,
        /// In this time.
        nanos: u64,
    },
    /// So many messages of it have been taken.
    Taken {
        /// All but the one that asked.
        messages: u64,
    },
    /// The mapping is offered, as [`OVERCOMMIT`](crate::processes::overcommit::OVERCOMMIT) of the session's port.
    Overcommit {
        /// Bytes of memory that the server may use.
        memory: u64,
    },
    /// The server was started without one.
    NoOvercommit,
    /// What is held of it.
    Held(Held),
    /// The client has left the channel, and it is gone.
    Closed,
}

/// What becomes of a message of a measured channel: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is taken.
    Take = 0,
    /// It is sent back.
    Return = 1,
    /// It asks how many have been taken.
    Count = 2,
}

impl Way {
    fn of(byte: u8) -> Option<Self> {
        [Self::Take, Self::Return, Self::Count]
            .into_iter()
            .find(|way| *way as u8 == byte)
    }
}

/// Memory of the client, for the server to work on.
pub(super) const MIRROR: &str = "netvm-mirror";
/// The channel of a measurement at the server, and at the client the one by which messages come back.
pub(super) const MESSAGES: &str = "netvm-messages";
/// See [`MESSAGES`].
pub(super) const RETURNS: &str = "netvm-returns";
/// Bytes of a measured channel's messages together, at most.
const MOST_BYTES: u64 = 16 << 20;
/// Messages of a measured channel, at most.
const MOST_MESSAGES: u32 = 1024;

/// How many messages of this size may be under way in a measured channel, if `wanted` are wished for.
pub(super) fn capacity(size: u32, wanted: u32) -> u32 {
    let fit = MOST_BYTES / u64::from(size.max(1));
    wanted
        .clamp(2, MOST_MESSAGES)
        .min(u32::try_from(fit).unwrap_or(u32::MAX))
}

/// Whether a channel of that shape may be ordered.
const fn is_fair(size: u32, capacity: u32) -> bool {
    let bytes = size as u64 * capacity as u64;
    size > 0 && size <= MAX_TRANSFER && capacity > 0 && capacity <= MOST_MESSAGES && bytes <= MOST_BYTES
}

/// Whether a client may ask for so much of a mapping: as the command line bounds it.
const fn is_fair_touch(touch: u64) -> bool {
    touch > 0 && touch <= MAX_TOUCH_MIB << 20
}

/// A message as a value, if it is one.
fn read<T: DeserializeOwned>(message: Message<'_>) -> Result<Option<T>, Error> {
    Ok(serde_json::from_slice(&message.to_vec()?).ok())
}

/// A value as a message. All values are plain ones.
fn text<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_is_offered_is_one_that_is_taken() {
        for size in [1, 8, 128, 4096, 65_536, MAX_TRANSFER] {
            for wanted in [1, 2, 512, 1_000_000] {
                let capacity = capacity(size, wanted);
                assert!(is_fair(size, capacity), "{size} {capacity}");
                assert!(capacity >= 2, "{size}: the next is sent while one is taken");
            }
        }
        for (size, capacity) in [
            (0, 4),
            (8, 0),
            (MAX_TRANSFER + 1, 1),
            (MAX_TRANSFER, 17),
            (8, 1025),
        ] {
            assert!(!is_fair(size, capacity), "{size} {capacity}");
        }
    }

    #[test]
    fn work_is_bounded_as_on_the_command_line() {
        let fair = Work {
            kind: Kind::Write(MAX_TRANSFER),
            depth: MAX_DEPTH,
            millis: MAX_MILLIS,
        };
        assert!(fair.is_fair());
        for kind in [Kind::Write(0), Kind::Read(MAX_TRANSFER + 1)] {
            assert!(!Work { kind, ..fair }.is_fair(), "{kind:?}");
        }
        for depth in [0, MAX_DEPTH + 1] {
            assert!(!Work { depth, ..fair }.is_fair(), "{depth}");
        }
        for millis in [0, MAX_MILLIS + 1] {
            assert!(!Work { millis, ..fair }.is_fair(), "{millis}");
        }
    }

    #[test]
    fn the_largest_texts_fit_their_messages() {
        let request = Request {
            version: VERSION,
            serial: u64::MAX,
        };
        assert!(text(&request).len() as u64 <= REQUEST_BYTES);
        let order = Order::Channel {
            size: u32::MAX,
            capacity: u32::MAX,
        };
        assert!(text(&order).len() as u64 <= TEXT_BYTES);
        assert_eq!(serde_json::from_slice::<Order>(&text(&order)).unwrap(), order);
    }
}
