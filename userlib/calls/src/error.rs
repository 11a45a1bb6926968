//! What can go wrong.

use netvm::{Label, NodeId, PortId, Status};
use std::fmt;

/// Result of the calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What a function of this crate can fail with. Nothing was sent then, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library refused something.
    #[error(transparent)]
    Library(#[from] netvm::Error),

    /// Two functions of a registry have one name, or names of one hash.
    #[error("{name} is registered already, or has the hash of a name that is: give it another")]
    Registered {
        /// The second.
        name: &'static str,
    },

    /// A registry has no room for more functions.
    #[error("a registry has at most {limit} functions")]
    TooManyFunctions {
        /// The most.
        limit: usize,
    },

    /// The other side has no function of this name.
    #[error("port {port} of node {node} has no function {name}: register it there before it opens")]
    Unknown {
        /// Its name.
        name: &'static str,
        /// The other side's node.
        node: NodeId,
        /// The other side's port.
        port: PortId,
    },

    /// The other side has a function of this name that takes or returns something else: it is another version of the
    /// program.
    #[error(
        "{name} of port {port} of node {node} has another argument or result: the two programs are of different versions"
    )]
    Signature {
        /// Its name.
        name: &'static str,
        /// The other side's node.
        node: NodeId,
        /// The other side's port.
        port: PortId,
    },

    /// The argument, with its buffer, does not fit a chunk of the receiver.
    #[error(
        "a call of {len} bytes does not fit: {limit} are the most; write the buffer first, or let the other side read it"
    )]
    TooLong {
        /// Its bytes.
        len: u64,
        /// The most.
        limit: u64,
    },

    /// There is no room: the receiver is behind, and the call is not to wait (or enough of them wait already).
    #[error(
        "the receiver is behind, and there is no more room: wait, or take larger limits in `CallsConfig`"
    )]
    Full,

    /// The other side has gone, or was never there as this peer.
    #[error("the link has ended: {0}")]
    Ended(End),

    /// It was not done in time. Where something was sent, it still is under way.
    #[error("timed out")]
    TimedOut,

    /// What is there is no endpoint for calls of this version.
    #[error("port {port} of node {node} takes no calls under this name: {why}")]
    NotCalls {
        /// Its node.
        node: NodeId,
        /// Its port.
        port: PortId,
        /// What is wrong.
        why: &'static str,
    },

    /// As many links as an endpoint can have.
    #[error("an endpoint has at most {limit} links: open another port")]
    TooManyLinks {
        /// The most.
        limit: u32,
    },

    /// A configuration that cannot be.
    #[error("{0}")]
    Configuration(&'static str),

    /// A called function must not wait: only calls that are queued can be made from it.
    #[error("a called function cannot do this, because it would wait: let the program do it")]
    InFunction,

    /// The group is not joined here, or its members are others.
    #[error("this endpoint has no such group, or is no member of it")]
    NoGroup,

    /// The call was made, and has failed.
    #[error("{0}")]
    Failed(Ended),
}

/// Why a link has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The other side has left, after all that it had sent.
    Left,
    /// The other side cannot be reached: it has died, or the network is gone.
    Gone(Status),
    /// A batch may be lost: calls under way may have run or not.
    Lost,
    /// What is there is no endpoint for calls of this version.
    Foreign(&'static str),
    /// The other side does not keep to the protocol.
    Malformed,
    /// This side has closed it.
    Closed,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => write!(f, "the other side has left"),
            Self::Gone(status) => write!(
                f,
                "the other side cannot be reached ({})",
                netvm::explain(*status)
            ),
            Self::Lost => write!(f, "a batch of calls may be lost"),
            Self::Foreign(why) => write!(f, "the other side takes no calls of this version: {why}"),
            Self::Malformed => write!(f, "the other side does not keep to the protocol"),
            Self::Closed => write!(f, "it was closed here"),
        }
    }
}

/// How a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The function panicked, with this text. It may have done a part of its work.
    Panicked(String),
    /// There is no such function: an honest program of this version finds that out before it calls.
    NoFunction,
    /// The bytes are no value of the argument's type: it did not run.
    BadArgument,
    /// The buffer cannot be had, for this reason: it did not run.
    NoBuffer(Label),
    /// The function ran, and its result does not fit a chunk of the caller.
    ResultTooLong,
    /// The other side is no member of the group: it did not run there.
    NoGroup,
    /// A broadcast did not run at so many members, at least.
    Missed(u64),
    /// The answer makes no sense.
    Malformed,
    /// The link ended first: it may have run or not.
    Link(End),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(text) => write!(f, "the function panicked: {text}"),
            Self::NoFunction => write!(f, "there is no such function"),
            Self::BadArgument => write!(f, "the bytes are no value of the argument's type"),
            Self::NoBuffer(why) => write!(f, "the buffer cannot be had: {why}"),
            Self::ResultTooLong => write!(f, "the result does not fit a chunk of the caller"),
            Self::NoGroup => write!(f, "the other side is no member of the group"),
            Self::Missed(1) => write!(f, "it did not run at one member of the group"),
            Self::Missed(members) => write!(f, "it did not run at {members} members of the group"),
            Self::Malformed => write!(f, "the answer makes no sense"),
            Self::Link(end) => write!(f, "the link ended first, and it may have run or not: {end}"),
        }
    }
}
