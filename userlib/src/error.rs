//! What can go wrong, and what a person can do about it.

use crate::backend::Refusal;
use crate::label::Label;
use crate::room::Lack;
use netvm_abi::control::Modes;
use netvm_abi::{NodeId, NotificationId, OpId, PortId, Status, VirtAddr};
use std::fmt;

/// Result of the library's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that a call can fail with. It owns nothing: see [`Label`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation posted earlier (or this one, if it is fenced) has failed. Unless it is this
    /// call's own operation, the call has done nothing and can be repeated.
    #[error("{0}")]
    Failed(Failure),

    /// More operations failed than the card could report one by one. What they were is not known:
    /// everything since the last successful flush is in doubt.
    #[error(
        "{count} more operations of this port failed, but the error ring was full: flush more often, and repeat what was not flushed"
    )]
    FailuresLost {
        /// How many.
        count: u32,
    },

    /// While this operation was being posted, another thread was told that an earlier one to the same
    /// node had failed. This operation is incomplete and its notification was not sent.
    #[error(
        "an earlier operation to node {node} failed while this one was being posted, and another thread was told; repeat this one"
    )]
    StreamFailed {
        /// The node.
        node: NodeId,
    },

    /// The range does not lie inside of the region, the export or the import.
    #[error("{len} bytes from offset {offset} do not fit: there are {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        size: u64,
    },

    /// A length of zero where there must be something.
    #[error("{what} of zero bytes is not possible")]
    Empty {
        /// What was asked for.
        what: &'static str,
    },

    /// The import does not allow this kind of access.
    #[error(
        "the import allows {granted:?}, this needs {needed:?}: ask the exporter for more in its `Access`"
    )]
    ModeRefused {
        /// What the operation needs.
        needed: Modes,
        /// What the exporter granted.
        granted: Modes,
    },

    /// The import does not allow this notification number.
    #[error(
        "notification {id} is outside of {first}..={last}, which the exporter allows: widen `Access::notify` there"
    )]
    NotificationRefused {
        /// The number.
        id: NotificationId,
        /// Lowest that is allowed.
        first: NotificationId,
        /// Highest that is allowed.
        last: NotificationId,
    },

    /// Not a number of this kind of notification.
    #[error(
        "{id} is no event-count notification: those are 1 to 1023; one-shot ones (from 1024) come through `Port::notifications`"
    )]
    NotificationNumber {
        /// The number.
        id: NotificationId,
    },

    /// A number that a lock, queue, semaphore or channel of the port has for itself.
    #[error(
        "notification {id} belongs to a lock, queue, semaphore or channel of this port: use one up to 895 (and for exports, only such, or those from 1024), or the object's own `notification()`"
    )]
    NotificationTaken {
        /// The number.
        id: NotificationId,
    },

    /// There is no signal to acknowledge.
    #[error("notification {id} has no pending signal to acknowledge")]
    NothingPending {
        /// The number.
        id: NotificationId,
    },

    /// The region belongs to another port: only a port's own memory can be a local address.
    #[error("the region belongs to another port; allocate it from the port that transfers it")]
    ForeignRegion,

    /// The operation belongs to another port than the completion queue.
    #[error("the operation is another port's: make a completion queue for each port")]
    ForeignOperation,

    /// A piece of a vector goes to another node than its first piece, or by an import of another port than the vector's.
    #[error(
        "piece {piece} of the vector goes to another node than the first, or by another port's import: make a vector for each"
    )]
    ForeignPiece {
        /// Which, from 0 on.
        piece: u32,
    },

    /// A word that is not aligned to its size.
    #[error("offset {offset} is not a multiple of {width} bytes")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// Size of the word in bytes.
        width: u64,
    },

    /// A name that is empty, longer than 64 bytes or holds a zero byte.
    #[error("{name:?} cannot name an export: 1 to 64 bytes, none of them zero")]
    Name {
        /// The name.
        name: Label,
    },

    /// The node table has no such node.
    #[error("there is no node {node}: the network has nodes 0 to {last}")]
    NoSuchNode {
        /// The node asked for.
        node: NodeId,
        /// The last there is.
        last: u16,
    },

    /// An access list with too many lines.
    #[error(
        "the access list has {lines} lines, and {limit} are possible: allow whole nodes with `Access::and_node`, or every port with `Access::everyone`"
    )]
    AccessTooLong {
        /// How many it has.
        lines: usize,
        /// How many there can be.
        limit: usize,
    },

    /// The export was not made.
    #[error("cannot export {name:?}: {reason}")]
    Export {
        /// The name.
        name: Label,
        /// Why.
        reason: Refusal,
    },

    /// The import was not made.
    #[error("cannot import {name:?} from port {port} of node {node}: {reason}")]
    Import {
        /// The exporting node.
        node: NodeId,
        /// The exporting port.
        port: PortId,
        /// The name.
        name: Label,
        /// Why; after a wait, why the last attempt failed.
        reason: Refusal,
    },

    /// A page of a region could not be had.
    #[error("cannot access the page at offset {offset}: {}", explain(*status))]
    Memory {
        /// Where.
        offset: u64,
        /// Why.
        status: Status,
    },

    /// The back end refused a control call.
    #[error("cannot {what}: {reason}")]
    Refused {
        /// What was attempted.
        what: &'static str,
        /// Why not.
        reason: Refusal,
    },

    /// The other end of the channel has left. At the receiver: everything that was sent has been received.
    #[error("the other end of the channel has left")]
    ChannelClosed,

    /// The other end of the channel has gone without a word, or what it writes makes no sense, or a message
    /// could not be written.
    #[error("the channel is broken: {}", explain(*status))]
    ChannelBroken {
        /// Why.
        status: Status,
    },

    /// Messages of the channel were or may be lost, because an operation of the sending port failed: one of them, or
    /// another to the same node, which suppresses the signals of what is under way.
    #[error(
        "messages of the channel may be lost, because an operation of the sending port to that node failed: give the channel a port of its own"
    )]
    MessagesLost,

    /// Another sender has joined the channel.
    #[error("the channel has a sender already; open one for each")]
    ChannelTaken,

    /// What is exported under the name cannot be joined by a sender.
    #[error("what is exported under that name cannot be joined: {why}")]
    NotAChannel {
        /// What is wrong with it.
        why: &'static str,
    },

    /// The shared queue has no room: its receiver has not given places back yet. The message may be sent again.
    #[error("the shared queue is full; try again, or wait with a longer time-out")]
    QueueFull,

    /// A call that does not wait found too little room, and has done nothing. [`Port::room`](crate::Port::room) tells when there
    /// is room.
    #[error("the port has no room now: it lacks {lacks}; try again later, or wait with `Port::room`")]
    NoRoom {
        /// What there is too little of.
        lacks: Lack,
    },

    /// The message does not fit.
    #[error("a message of {len} bytes does not fit into {limit}")]
    MessageTooLong {
        /// Its length in bytes.
        len: u64,
        /// What fits.
        limit: u64,
    },

    /// Nothing came in time.
    #[error("it took longer than the time allowed")]
    TimedOut,

    /// A member of a lock has died while it held the lock or waited for it, and took the lock with it.
    #[error(
        "the lock is lost: port {port} of node {node} has died or cannot be reached, and held it or waited for it; make the lock anew"
    )]
    LockLost {
        /// Its node.
        node: NodeId,
        /// Its port.
        port: PortId,
    },

    /// A lease that cannot be.
    #[error("there can be no such lease: {why}")]
    BadLease {
        /// Why.
        why: &'static str,
    },

    /// The program has let go of this import or export.
    #[error("this import or export has been released")]
    Released,

    /// The program has closed the port.
    #[error("the port is closed")]
    PortClosed,

    /// The driver has ended the port.
    #[error("the driver has ended the port: {}", explain(*status))]
    PortEnded {
        /// Why.
        status: Status,
    },
}

impl Error {
    /// The status code of a driver or NIC behind the error, if there is one.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Failed(failure) => Some(failure.status),
            Self::Export {
                reason: Refusal::Status(status),
                ..
            }
            | Self::Import {
                reason: Refusal::Status(status),
                ..
            }
            | Self::Refused {
                reason: Refusal::Status(status),
                ..
            }
            | Self::Memory { status, .. }
            | Self::ChannelBroken { status }
            | Self::PortEnded { status } => Some(*status),
            Self::QueueFull => Some(Status::NoPlace),
            _ => None,
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match error {
            Error::TimedOut => ErrorKind::TimedOut,
            Error::NoRoom { .. } => ErrorKind::WouldBlock,
            Error::ChannelClosed => ErrorKind::BrokenPipe,
            Error::ChannelBroken { .. } | Error::MessagesLost => ErrorKind::ConnectionReset,
            Error::PortClosed | Error::PortEnded { .. } => ErrorKind::NotConnected,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// An operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The operation, as [`post`](crate::Write::post) returned it.
    pub op: OpId,
    /// Why.
    pub status: Status,
    /// Where it was going.
    pub node: NodeId,
    /// The port there.
    pub port: PortId,
    /// The address there (or the refused local one) of the fragment that failed.
    pub address: VirtAddr,
    /// How many more operations to the same node are known to have failed.
    pub others: u32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "operation {} to port {} of node {} failed at address {:#x}: {}",
            self.op,
            self.port,
            self.node,
            self.address.get(),
            explain(self.status)
        )?;
        if self.others > 0 {
            write!(f, " (and {} more)", self.others)?;
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => f.write_str(explain(*status)),
            Self::Unsupported(text) => f.write_str(text),
            Self::System { what, errno: 0 } => f.write_str(what),
            Self::System { what, errno } => {
                write!(f, "{what}: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// A status in words that say what to do.
#[must_use]
pub const fn explain(status: Status) -> &'static str {
    match status {
        Status::Ok => "it succeeded",
        Status::Malformed => "the card could not make sense of it",
        Status::Unsupported => "this card's firmware does not offer it",
        Status::NoSuchNode => "no such node in the node table",
        Status::NoSuchPort => "the port there is not open, or has been closed",
        Status::CapabilityRefused => "the import is not valid any more; import again",
        Status::OutOfRange => "outside of what was exported or registered",
        Status::ModeRefused => "the export does not allow this kind of access",
        Status::Expired => "the lease is over; ask its owner for another",
        Status::Unmapped => "the memory is not mapped in its process any more",
        Status::ReadOnly => "the process may only read this page",
        Status::NoMemory => "the host has no memory to page it in",
        Status::BusError => "the page lies past the end of its file, or reading it failed",
        Status::QueueFull => "the receiver has not taken its one-shot notifications; wait for it",
        Status::LinkLost => "the link to the node was lost; whether it arrived is not known",
        Status::StaleIncarnation => "the node has restarted since; import again",
        Status::LocalAddress => "the local memory is not registered (any more)",
        Status::NoSuchExport => "nothing is exported there under that name",
        Status::NotAllowed => "not allowed: not on the export's allow-list, or the name or number is taken",
        Status::TableFull => "a table is full; close or release something",
        Status::TimedOut => "no answer in time, or a page of its memory did not come in time",
        Status::CardGone => "the card does not answer; reset it",
        Status::VersionMismatch => "the two sides speak different versions",
        Status::Revoked => "the exporter has revoked it",
        Status::HeldBack => "not carried out, because an earlier operation to that node has failed",
        Status::NoPlace => {
            "the shared queue is full; send it again, and all that was sent to a queue after it"
        }
    }
}
