//! How a body ends.

use netvm::{Error, Status};
use std::fmt;

/// What a body, and each of its processes, returns.
pub type Outcome<T = ()> = Result<T, Trouble>;

/// Why a body did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A call failed that should not have. With faults injected (death, no memory, IO errors) that may
    /// be right; without, it never is.
    Failed(Error),
    /// A call succeeded, or failed in another way than it should have. May be right with faults.
    Unexpected(String),
    /// Data, order or number of notifications is wrong. Never right.
    Wrong(String),
    /// Something is not what it would be if all processes had done their part. Right only where one has not: a process
    /// that was killed or had a failure, which says more (`side::worse`).
    Spoiled(String),
    /// The process was killed, by the body or by a fault.
    Killed,
    /// This back end cannot do what the body needs.
    Skipped(&'static str),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "a call failed: {error} ({error:?})"),
            Self::Unexpected(text) => write!(f, "a call ended in another way than it should: {text}"),
            Self::Wrong(text) => write!(f, "WRONG: {text}"),
            Self::Spoiled(text) => write!(f, "WRONG, though no process has failed: {text}"),
            Self::Killed => write!(f, "killed"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

impl std::error::Error for Trouble {}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<netvm_calls::Error> for Trouble {
    fn from(error: netvm_calls::Error) -> Self {
        use netvm_calls::{End, Ended, Error as Calls};
        match error {
            Calls::Library(error) => Self::Failed(error),
            Calls::TimedOut => Self::Failed(Error::TimedOut),
            Calls::Ended(End::Gone(status)) | Calls::Failed(Ended::Link(End::Gone(status))) => {
                Self::Failed(Error::ChannelBroken { status })
            }
            error => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<netvm_lease::Error> for Trouble {
    fn from(error: netvm_lease::Error) -> Self {
        match error {
            netvm_lease::Error::Library(error) => Self::Failed(error),
            netvm_lease::Error::NoAnswer => Self::Failed(Error::TimedOut),
            error => Self::Unexpected(error.to_string()),
        }
    }
}

/// The library's error in one of `std::io`.
pub(crate) fn of_stream(error: std::io::Error) -> Trouble {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => Trouble::Failed(*error),
        None => Trouble::Unexpected(format!("{error}")),
    }
}

/// The call must fail, and for one of these reasons.
pub(crate) fn refused<T: fmt::Debug>(result: netvm::Result<T>, reasons: &[Status]) -> Outcome {
    match result {
        Err(error) if error.status().is_some_and(|status| reasons.contains(&status)) => Ok(()),
        Err(error) => Err(Trouble::Failed(error)),
        Ok(value) => Err(Trouble::Unexpected(format!(
            "it succeeded with {value:?}, but should have been refused with one of {reasons:?}"
        ))),
    }
}

/// The call must fail with exactly this kind of error.
pub(crate) fn fails<T: fmt::Debug>(
    result: netvm::Result<T>,
    what: &str,
    fits: impl FnOnce(&Error) -> bool,
) -> Outcome {
    match result {
        Err(error) if fits(&error) => Ok(()),
        Err(error) => Err(Trouble::Unexpected(format!("{what}: got {error:?}"))),
        Ok(value) => Err(Trouble::Unexpected(format!(
            "{what}: it succeeded with {value:?}"
        ))),
    }
}

/// Ends the body with [`Trouble::Wrong`] unless the condition holds.
macro_rules! right {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Trouble::Wrong(format!($($text)+)));
        }
    };
}
pub(crate) use right;

/// Ends the body with [`Trouble::Spoiled`] unless the condition holds.
macro_rules! due {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Trouble::Spoiled(format!($($text)+)));
        }
    };
}
pub(crate) use due;

/// Ends the body unless the condition holds. Where anything may fail that is a fair end: what was asked of a peer fails with its
/// link, though no process of the body has failed.
macro_rules! holds {
    ($env:expr, $condition:expr, $($text:tt)+) => {
        if !$condition {
            let text = format!($($text)+);
            return Err(if $env.may_fail {
                $crate::Trouble::Unexpected(text)
            } else {
                $crate::Trouble::Spoiled(text)
            });
        }
    };
}
pub(crate) use holds;
