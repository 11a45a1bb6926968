//! How a command ends when it does not end well, and with which exit status.

use std::fmt;

/// Why a command stopped.
#[derive(Debug)]
pub enum Failure {
    /// It ran and what it showed was wrong: exit status 1.
    Wrong(String),
    /// What was asked for makes no sense: exit status 2.
    Usage(String),
    /// This machine cannot run it: exit status 3.
    Unavailable {
        /// What is missing.
        what: String,
        /// The command or setting that changes that.
        fix: String,
    },
}

/// What `--help` says about exit statuses.
pub const EXIT_STATUSES: &str = "Exit status:
  0  everything held
  1  something was wrong: a check failed, or the run did
  2  the command line or an input file makes no sense
  3  this machine cannot run it; the message names the setting to change
  128 and the number of a signal: that signal ended it before it was done";

impl Failure {
    /// The exit status, as `--help` documents it.
    pub fn status(&self) -> u8 {
        match self {
            Self::Wrong(_) => 1,
            Self::Usage(_) => 2,
            Self::Unavailable { .. } => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(what) | Self::Usage(what) => write!(f, "error: {what}"),
            Self::Unavailable { what, fix } => write!(f, "error: {what}\n  to change that: {fix}"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_as_documented() {
        let all = [
            Failure::Wrong(String::new()),
            Failure::Usage(String::new()),
            Failure::Unavailable {
                what: String::new(),
                fix: String::new(),
            },
        ];
        for (at, failure) in all.iter().enumerate() {
            let status = at + 1;
            assert_eq!(usize::from(failure.status()), status);
            assert!(EXIT_STATUSES.contains(&format!("\n  {status}  ")));
        }
    }
}
