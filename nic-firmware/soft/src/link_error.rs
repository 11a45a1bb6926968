//! Why two nodes have no link.

use netvm_abi::{ABI_VERSION, NodeId};
use rustix::io::Errno;

/// Why there is no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No node listens there.
    #[error("no node of this user has that name")]
    NoSuchNode,
    /// The name is too long, empty, holds a zero, or would be read as a number or an address.
    #[error("a node's name has 1 to 64 bytes, none of them zero; it does not begin with '#', nor hold '://'")]
    BadName,
    /// Another node listens there.
    #[error("another node of this user has that name or number")]
    Taken,
    /// Every number has an owner.
    #[error("every node number is taken")]
    NoNumber,
    /// The peer runs as another user.
    #[error("the other process belongs to user {0}, which is not allowed")]
    OtherUser(u32),
    /// The peer speaks another version.
    #[error("the other process speaks version {0} of NetVM's ABI, this one {ABI_VERSION}")]
    Version(u16),
    /// The peer says no.
    #[error("the other process refuses: {0}")]
    Refused(&'static str),
    /// What came is no introduction.
    #[error("the other process does not speak as a NetVM node does")]
    Malformed,
    /// The node's number belongs to another node at the other side.
    #[error(
        "this node's number belongs to another node at the other side, where {free} is free: start this node with that number"
    )]
    NumberTaken {
        /// A number that is free there.
        free: NodeId,
    },
    /// The node's number is too high for the other side.
    #[error("node numbers at the other side are below {nodes}: start this node with such a number")]
    NumberTooHigh {
        /// Its number of nodes.
        nodes: u16,
    },
    /// The other side has a cluster key, this node has none.
    #[error(
        "the other node takes nothing but what its cluster key has sealed: start this node with the same key"
    )]
    WantsKey,
    /// This node has a cluster key, the other side has none.
    #[error(
        "the other node has no cluster key, so this one does not speak to it: start that node with this node's key, or this one without a key"
    )]
    NoKey,
    /// Each side has a cluster key, and they differ.
    #[error("the other node has another cluster key: start both nodes with the same key")]
    OtherKey,
    /// The shortest datagrams that messages are tried with do not fit the path.
    #[error("the path does not take datagrams of {0} bytes: start the node with a smaller payload")]
    TooLong(usize),
    /// The node has no socket for that.
    #[error("this node has no UDP: start it with an address for UDP")]
    NoUdp,
    /// No answer in time.
    #[error("the other process does not answer")]
    TimedOut,
    /// The kernel refused.
    #[error("{}: {}{}", .0, .1, advice(*.1))]
    System(&'static str, Errno),
}

/// What to do where the kernel refuses what a node needs, to stand behind its refusal; nothing where there is nothing to say.
#[must_use]
pub fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => ". This process has as many descriptors as it may: raise the limit (`ulimit -n`)",
        Errno::NFILE => ". The machine has as many files open as it may: raise `fs.file-max`",
        Errno::NOMEM => {
            ". A limit of memory or of address space is reached: raise it (`ulimit -v`, or the container's)"
        }
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            ". A sandbox, such as a seccomp filter or a container's profile, forbids it: let it allow this"
        }
        _ => "",
    }
}
