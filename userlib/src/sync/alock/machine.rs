//! The algorithm, as [step machines](Machine). The library's handles run them, and so do the models (`tests/models`).
//!
//! Two queues, one of each [`Class`], in the manner of MCS: a process that comes swaps itself into its class's tail,
//! links itself to its predecessor, and waits in its own descriptor until it is passed the lock. The one at the head of
//! a queue is its class's *leader*, and the two leaders play Peterson's game: the tails are the flags that say "my
//! class wants the lock", and the *victim* is the class that said so last. A local process changes only the local tail,
//! a remote one only the remote tail, so it does no harm that the two kinds of read-modify-write are not atomic with
//! one another. The victim is written without regard to what was there.
//!
//! A pass carries a *budget*: how many more of the class may follow without asking the other class. A process that is
//! passed 0 plays Peterson's game again, with the lock's class in hand, before it goes on.

use crate::sync::protocol::Machine;

/// How a process reaches the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// By its processor's loads, stores and atomics.
    Local,
    /// Through a NIC.
    Remote,
}

impl Class {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }

    /// What stands for it in the lock's victim word.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::Local => 1,
            Self::Remote => 2,
        }
    }
}

/// A tail or a link that names no descriptor.
pub const NOBODY: u64 = 0;
/// A budget that has not come yet.
pub const WAITING: u64 = u64::MAX;

/// What a machine wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want<R> {
    /// This.
    Step(Step),
    /// Nothing: it has ended.
    Ended(R),
}

/// A step: an access to words of the lock or of a descriptor. Each is answered by a word; where nothing is said of it, any.
///
/// Each is complete, and visible to all members, before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Make the own descriptor say [`WAITING`] and [`NOBODY`].
    Reset,
    /// Exchange the own class's tail for this; answered by what it was.
    SwapTail(u64),
    /// If the own class's tail is `expected`, make it [`NOBODY`]; answered by what it was.
    ClearTail {
        /// What it should be.
        expected: u64,
    },
    /// Store `own` as the successor in the descriptor `predecessor`.
    Link {
        /// The number of the predecessor's descriptor.
        predecessor: u64,
        /// The successor.
        own: u64,
    },
    /// Load the own descriptor's budget.
    OwnBudget,
    /// Load the own descriptor's successor.
    OwnNext,
    /// Store the own class as the victim, whatever was there.
    Yield(Class),
    /// Load the other class's tail.
    OtherTail,
    /// Load the victim.
    Victim,
    /// Store this budget in the descriptor `successor`.
    Pass {
        /// The number of the successor's descriptor.
        successor: u64,
        /// How many more may follow.
        budget: u64,
    },
}

/// What an acquisition is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Acquiring {
    Begins,
    Swaps,
    Links { predecessor: u64 },
    Waits,
    Yields,
    LooksAtTail,
    LooksAtVictim,
    Holds { budget: u64 },
}

/// Taking the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    class: Class,
    own: u64,
    limit: u64,
    at: Acquiring,
}

impl Acquire {
    /// By the holder of descriptor `own`, which is not [`NOBODY`]. `limit` is the budget of the class: how
    /// many of it may follow one another while the other class waits; at least 1.
    #[must_use]
    pub const fn new(class: Class, own: u64, limit: u64) -> Self {
        Self {
            class,
            own,
            limit: if limit == 0 { 1 } else { limit },
            at: Acquiring::Begins,
        }
    }

    const fn holds(&self) -> Acquiring {
        Acquiring::Holds { budget: self.limit }
    }

    /// How it reaches the lock.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Whether it is its class's leader, and has yielded to the other class.
    #[must_use]
    pub const fn leads(&self) -> bool {
        matches!(self.at, Acquiring::LooksAtTail | Acquiring::LooksAtVictim)
    }
}

impl Machine for Acquire {
    /// Ends with the machine that gives the lock back.
    type Want = Want<Release>;
    type Answer = u64;

    fn want(&self) -> Want<Release> {
        Want::Step(match self.at {
            Acquiring::Begins => Step::Reset,
            Acquiring::Swaps => Step::SwapTail(self.own),
            Acquiring::Links { predecessor } => Step::Link {
                predecessor,
                own: self.own,
            },
            Acquiring::Waits => Step::OwnBudget,
            Acquiring::Yields => Step::Yield(self.class),
            Acquiring::LooksAtTail => Step::OtherTail,
            Acquiring::LooksAtVictim => Step::Victim,
            Acquiring::Holds { budget } => {
                return Want::Ended(Release {
                    own: self.own,
                    budget,
                    at: Releasing::Clears,
                });
            }
        })
    }

    fn answer(&mut self, answer: u64) {
        self.at = match self.at {
            Acquiring::Begins => Acquiring::Swaps,
            // The first of its class is its leader, which has to ask the other class. So has a process that is passed
            // nothing.
            Acquiring::Swaps if answer == NOBODY => Acquiring::Yields,
            Acquiring::Swaps => Acquiring::Links { predecessor: answer },
            Acquiring::Links { .. } => Acquiring::Waits,
            Acquiring::Waits => match answer {
                WAITING => Acquiring::Waits,
                0 => Acquiring::Yields,
                budget => Acquiring::Holds { budget },
            },
            Acquiring::Yields => Acquiring::LooksAtTail,
            // Either is enough: the other class does not want it, or it has come later.
            Acquiring::LooksAtTail if answer == NOBODY => self.holds(),
            Acquiring::LooksAtTail => Acquiring::LooksAtVictim,
            Acquiring::LooksAtVictim if answer != self.class.code() => self.holds(),
            Acquiring::LooksAtVictim => Acquiring::LooksAtTail,
            Acquiring::Holds { budget } => Acquiring::Holds { budget },
        };
    }
}

/// What a release is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Releasing {
    Clears,
    Waits,
    Passes { successor: u64 },
    Over,
}

/// Giving the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    own: u64,
    budget: u64,
    at: Releasing,
}

impl Machine for Release {
    type Want = Want<()>;
    type Answer = u64;

    fn want(&self) -> Want<()> {
        Want::Step(match self.at {
            Releasing::Clears => Step::ClearTail { expected: self.own },
            Releasing::Waits => Step::OwnNext,
            Releasing::Passes { successor } => Step::Pass {
                successor,
                budget: self.budget.saturating_sub(1),
            },
            Releasing::Over => return Want::Ended(()),
        })
    }

    fn answer(&mut self, answer: u64) {
        self.at = match self.at {
            // An empty queue is also the flag that the class wants no lock.
            Releasing::Clears if answer == self.own => Releasing::Over,
            // Another member has swapped itself in behind, and is about to link itself.
            Releasing::Clears => Releasing::Waits,
            Releasing::Waits if answer == NOBODY => Releasing::Waits,
            Releasing::Waits => Releasing::Passes { successor: answer },
            Releasing::Passes { .. } | Releasing::Over => Releasing::Over,
        };
    }
}
