//! Errors, as sockets have them.

use crate::wire::Reason;
use std::fmt;
use std::io::{self, ErrorKind};

/// Whether this error of a stream says that the other end's network has ended in an orderly way ([`Net::leave`](crate::Net::leave), or
/// its last handle was dropped) with the stream open. All that was written to the stream there has come before this.
#[must_use]
pub fn has_left(error: &io::Error) -> bool {
    reason(error) == Some(Reason::Left)
}

/// Why the connection is over, if this says so.
pub(crate) fn reason(error: &io::Error) -> Option<Reason> {
    let cause = error.get_ref()?.downcast_ref::<Cause>()?;
    cause.reason
}

/// What an [`io::Error`] of this crate carries: a sentence, why the connection is over if that is what it says, and the library's error if
/// there is one.
#[derive(Debug)]
struct Cause {
    text: &'static str,
    reason: Option<Reason>,
    library: Option<netvm::Error>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.library {
            Some(error) => write!(f, "{}: {error}", self.text),
            None => f.write_str(self.text),
        }
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.library.as_ref().map(|error| error as _)
    }
}

fn cause(
    kind: ErrorKind,
    text: &'static str,
    reason: Option<Reason>,
    library: Option<netvm::Error>,
) -> io::Error {
    let cause = Cause {
        text,
        reason,
        library,
    };
    io::Error::new(kind, cause)
}

pub(crate) fn error(kind: ErrorKind, text: &'static str) -> io::Error {
    cause(kind, text, None, None)
}

/// The library's error, and what it ended.
pub(crate) fn library(text: &'static str, error: netvm::Error) -> io::Error {
    cause(io::Error::from(error).kind(), text, None, Some(error))
}

pub(crate) fn would_block() -> io::Error {
    error(
        ErrorKind::WouldBlock,
        "it would have to wait, and the stream does not block",
    )
}

pub(crate) fn timed_out() -> io::Error {
    error(ErrorKind::TimedOut, "the time-out of the stream has passed")
}

pub(crate) fn shut() -> io::Error {
    error(ErrorKind::BrokenPipe, "this end has said that it sends no more")
}

impl Reason {
    /// As an error.
    pub(crate) fn error(self) -> io::Error {
        let (kind, text) = match self {
            Self::NoListener => (
                ErrorKind::ConnectionRefused,
                "no listener has this number there: start it first, or see which number it has",
            ),
            Self::Backlog => (
                ErrorKind::ConnectionRefused,
                "the listener has its backlog full of connections that were not accepted: try again, or `listen` with a longer one",
            ),
            Self::Reset => (
                ErrorKind::ConnectionReset,
                "the other end has closed the connection with bytes unread",
            ),
            Self::PeerLost => (
                ErrorKind::ConnectionReset,
                "the process at the other end has ended, or the way to it is lost",
            ),
            Self::Left => (
                ErrorKind::ConnectionReset,
                "the process at the other end has ended its network, with the connection open",
            ),
            Self::Closed => (
                ErrorKind::NotConnected,
                "the port of this network is closed, or its card has ended",
            ),
            Self::NoPeer => (
                ErrorKind::ConnectionRefused,
                "no process has a network open at this port of this node",
            ),
            Self::NotOurs => (
                ErrorKind::ConnectionRefused,
                "what answers there is no network of this version",
            ),
            Self::Full => (
                ErrorKind::ConnectionRefused,
                "the network there has as many peers as it takes: open it with more `peers`",
            ),
            Self::NotAdmitted => (
                ErrorKind::PermissionDenied,
                "the network there does not admit this node: see `NetConfig::from_node`",
            ),
            Self::Unreachable => (
                ErrorKind::HostUnreachable,
                "the node cannot be reached: no process has that number, or there is no way to it",
            ),
            Self::TimedOut => (ErrorKind::TimedOut, "the other end has not answered in time"),
        };
        cause(kind, text, Some(self), None)
    }
}
