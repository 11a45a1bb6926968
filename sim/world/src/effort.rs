//! What a core does in one step, counted where it reaches out: words of the two spaces, its tables, calls of its platform.
//! The checker of P7 holds each step against a bound.

use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;

/// Words that count as one access when they are stored or loaded as a slice: such a slice has a length that the ABI gives.
const SLICE: usize = 16;

/// Counts what one core does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Rc<Cell<u32>>);

impl Meter {
    /// The core reaches out.
    #[inline]
    pub(crate) fn count(&self) {
        self.0.set(self.0.get().wrapping_add(1));
    }

    /// It does so with a slice of so many words.
    pub(crate) fn count_slice(&self, words: usize) {
        self.0.set(self.0.get().wrapping_add(1 + (words / SLICE) as u32));
    }

    /// What has been counted; counts from 0 again.
    pub(crate) fn take(&self) -> u32 {
        self.0.replace(0)
    }
}

/// A step of a core: what a platform does between two looks at what else there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CoreStep {
    /// The NIC core takes a frame.
    Frame,
    /// It takes the end of a DMA.
    DmaEnd,
    /// It takes a staging buffer back, and does the rest of a pass if that is the last of many.
    Sent,
    /// It does the rest of a pass: events of the host, doorbells, timers.
    Rest,
    /// It looks at some ports once more before it sleeps.
    SecondLook,
    /// The host core takes an event of the NIC, or does what is due.
    Poll,
    /// It says when it wants to be called.
    Deadline,
    /// It is called for anything else.
    Call,
}

impl CoreStep {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::Frame,
        Self::DmaEnd,
        Self::Sent,
        Self::Rest,
        Self::SecondLook,
        Self::Poll,
        Self::Deadline,
        Self::Call,
    ];
}

/// The longest step of each kind.
#[derive(Debug, Default)]
pub(crate) struct Longest([Cell<u32>; CoreStep::ALL.len()]);

impl Longest {
    /// A step has taken this much. Whether none of its kind has taken more.
    pub(crate) fn ended(&self, step: CoreStep, work: u32) -> bool {
        let longest = &self.0[step as usize];
        let more = work > longest.get();
        if more {
            longest.set(work);
        }
        more
    }

    /// Forgets what was.
    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|longest| longest.set(0));
    }

    /// The longest of each kind.
    pub(crate) fn all(&self) -> impl Iterator<Item = (CoreStep, u32)> {
        CoreStep::ALL.into_iter().zip(self.0.iter().map(Cell::get))
    }
}
