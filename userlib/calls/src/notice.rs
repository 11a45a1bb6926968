//! How a caller hears what became of its calls.

use crate::argument::Argument;
use crate::error::{Ended, Error, Result};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts calls until all that it was given to have got as far as asked: sent, or consumed. Cheap to clone; all clones are
/// one counter.
///
/// A call that fails counts down, too, and is counted as failed.
#[derive(Clone, Default)]
pub struct Synchronizer {
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    open: AtomicU64,
    failed: AtomicU64,
}

impl Synchronizer {
    /// One that waits for nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls that it still waits for.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::Acquire)
    }

    /// Calls that have failed. Their reasons are told by [`Calls::take_failure`](crate::Calls::take_failure).
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Acquire)
    }

    /// Whether it waits for nothing.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.open() == 0
    }

    pub(crate) fn add(&self) {
        self.counts.open.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those that were added was none.
    pub(crate) fn take_back(&self) {
        self.counts.open.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn end(&self, well: bool) {
        if !well {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.counts.open.fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for Synchronizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Synchronizer({} open, {} failed)", self.open(), self.failed())
    }
}

/// What has come of a call that returns something.
#[derive(Default)]
enum Answer {
    #[default]
    None,
    Here(Vec<u8>),
    Failed(Ended),
    Taken,
}

/// Where an answer is put.
#[derive(Clone, Default)]
pub(crate) struct Cell(Arc<Mutex<Answer>>);

impl Cell {
    /// The lock is held for a move of a few words only, so it is never poisoned.
    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    pub(crate) fn answer(&self, bytes: &[u8]) {
        self.set(Answer::Here(bytes.to_vec()));
    }

    pub(crate) fn fail(&self, why: Ended) {
        self.set(Answer::Failed(why));
    }
}

/// The result of a call that was made, once it is here: from [`To::call_return`](crate::To::call_return). Dropped, the
/// result is thrown away when it comes.
#[must_use = "the result is taken out of this"]
pub struct Reply<R> {
    pub(crate) cell: Cell,
    result: PhantomData<fn() -> R>,
}

impl<R: Argument> Reply<R> {
    pub(crate) fn new() -> Self {
        Self {
            cell: Cell::default(),
            result: PhantomData,
        }
    }

    /// Whether it is here, or has failed. It comes in calls of [`Calls`](crate::Calls) alone.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let answer = self.cell.0.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(*answer, Answer::None)
    }

    /// Takes it, if it is here.
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::TimedOut`] if it is not here yet.
    pub fn take(&mut self) -> Result<R> {
        let answer = {
            let mut answer = self.cell.0.lock().unwrap_or_else(PoisonError::into_inner);
            match *answer {
                Answer::None => Answer::None,
                _ => std::mem::replace(&mut *answer, Answer::Taken),
            }
        };
        match answer {
            Answer::None => Err(Error::TimedOut),
            Answer::Here(bytes) => R::take(&bytes).ok_or(Error::Failed(Ended::Malformed)),
            Answer::Failed(why) => Err(Error::Failed(why)),
            Answer::Taken => Err(Error::Failed(Ended::Malformed)),
        }
    }
}

impl<R: Argument> fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(ready: {})", self.is_ready())
    }
}

/// What a call's end is told to.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// An answer is wanted.
    Reply(Cell),
    /// A counter of consumed calls.
    Consumed(Synchronizer),
    /// A broadcast that was passed on, by its place in the list of those.
    Passed(u64),
}

impl Waiter {
    /// The bits of its call's kind.
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::Reply(_) | Self::Passed(_) => crate::record::kind::RETURNS,
            Self::Consumed(_) => crate::record::kind::COUNTED,
        }
    }
}
