//! What can go wrong.

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library refused something: a link is lost, an access was refused, a name is taken.
    #[error(transparent)]
    Library(#[from] netvm::Error),
    /// The manager has refused.
    #[error("the manager refuses: {0}")]
    Refused(Refusal),
    /// The manager has not answered in time. What was asked for may be granted all the same, and ends by itself then.
    #[error("the manager has not answered in time: is it serving?")]
    NoAnswer,
    /// A manager, or a part of its pool, cannot be made like this.
    #[error("there can be no such pool or part: {0}")]
    BadPool(&'static str),
    /// A name is not that of a table, or a queue.
    #[error("this name is of no such structure, or of one of another version")]
    NoStructure,
    /// A value, or an item, is too long for its structure.
    #[error("it is too long: {limit} bytes are the most here")]
    BadValue {
        /// The most, in bytes.
        limit: u64,
    },
}

impl Error {
    /// Why the manager has refused, if it has.
    #[must_use]
    pub const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused(why) => Some(*why),
            _ => None,
        }
    }
}

/// Why a manager refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum Refusal {
    /// Another has the part, or waits for it, and the wish does not go with that.
    #[error("the part is lent to another, or another waits for it: ask again later, or let the wish wait")]
    Conflict,
    /// No part has this key.
    #[error("no part has this key")]
    NoSuchKey,
    /// The pool has no room of that size now.
    #[error("the pool has no room of that size now: ask again later, or let the wish wait")]
    NoRoom,
    /// The pool can have no part of that size: no byte, or more than there are in one piece.
    #[error("the pool can have no part of that size: it is of no byte, or larger than the pool")]
    BadSize,
    /// There can be no such lease: a duration of zero, or one that is longer than the manager lends for.
    #[error(
        "there can be no such lease: it has to last for more than no time, and no longer than the manager lends"
    )]
    BadTime,
    /// The lease is over, was revoked, or is another client's.
    #[error("the client has no such lease any more")]
    NoSuchLease,
    /// The manager's card has no entry left.
    #[error("the table of capabilities at the manager's node is full: it needs a larger one")]
    TableFull,
    /// The manager's node cannot lend to this client.
    #[error("the manager's node cannot lend memory to this client's")]
    CannotLend,
    /// The manager made no sense of the request: it is of another version.
    #[error("the manager made no sense of the request: the two programs are of different versions")]
    Malformed,
}

impl Refusal {
    const ALL: [Self; 9] = [
        Self::Conflict,
        Self::NoSuchKey,
        Self::NoRoom,
        Self::BadSize,
        Self::BadTime,
        Self::NoSuchLease,
        Self::TableFull,
        Self::CannotLend,
        Self::Malformed,
    ];

    /// As it is sent.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_codes_of_their_own() {
        for (code, refusal) in (0..).zip(Refusal::ALL) {
            assert_eq!((refusal.code(), Refusal::of(code)), (code, Some(refusal)));
        }
        assert_eq!(Refusal::of(Refusal::ALL.len() as u8), None);
    }
}
