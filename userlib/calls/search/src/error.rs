//! What can go wrong.

use netvm_calls::{Address, End, Ended};

/// Result of the calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a search has ended, or cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The remote calls refused something.
    #[error(transparent)]
    Calls(#[from] netvm_calls::Error),

    /// A member has gone: its part of the tree is lost, and the search with it.
    #[error("member {rank} of the search (port {} of node {}) has gone: {why}", .address.port, .address.node)]
    Lost {
        /// Which member.
        rank: usize,
        /// Where it was.
        address: Address,
        /// Why its link has ended.
        why: End,
    },

    /// A member has not come in time.
    #[error("member {rank} of the search (port {} of node {}) has not come in time: is it started, with the same list of members?", .address.port, .address.node)]
    Missing {
        /// Which member.
        rank: usize,
        /// Where it should be.
        address: Address,
    },

    /// A member has sent what no member of this search sends.
    #[error("member {rank} of the search has sent {what}: it is of another search, or of another version")]
    Malformed {
        /// Which member.
        rank: usize,
        /// What it was.
        what: &'static str,
    },

    /// A call to another member has failed.
    #[error("{function} has failed at another member of the search: {why}")]
    CallFailed {
        /// The function.
        function: &'static str,
        /// How.
        why: Ended,
    },

    /// A configuration that cannot be.
    #[error("{0}")]
    Configuration(&'static str),

    /// There is no game: none has begun.
    #[error("no game has begun")]
    NoGame,

    /// This move cannot be made now.
    #[error("this move cannot be made now")]
    IllegalMove,

    /// A tree counts no more visits.
    #[error("a tree has at most {limit} visits, with so many simulations at a leaf")]
    TooManyVisits {
        /// The most.
        limit: u32,
    },

    /// Visits were lost or doubled: a defect of this crate.
    #[error("visits are not conserved: {begun} have begun, {returned} are back, the root counts {root}")]
    NotConserved {
        /// Visits that have begun.
        begun: u64,
        /// Visits that are back.
        returned: u64,
        /// What the root, or the whole tree, counts.
        root: u64,
    },
}
