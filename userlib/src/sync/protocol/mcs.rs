//! The lock: a chain of those who want it (MCS; thesis 8.2, table 17).
//!
//! The tail, at the lock's home, names who asked last. Who asks exchanges it for its own name, and so
//! learns whom it comes after, and tells that one. Who is done hands the lock to whom it was told of.
//! Uncontended: one round trip to get it and one to let go. Contended: one round trip and one message
//! to get it, one message to let go.

use super::seat::{Place, SeatId};
use super::{Answer, Centre, Machine, Want, word};
use netvm_abi::atomic::EMPTY;
use netvm_abi::descriptor::Opcode;

/// How a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The caller holds it. Broken: the chain has lost somebody, and not been whole since.
    Held {
        /// Whether the chain is broken.
        broken: bool,
    },
    /// Somebody else has it: only [`TryAcquire`] ends so.
    Taken,
}

/// Gets the lock, however long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    me: SeatId,
    at: AcquireAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AcquireAt {
    Begin,
    Swap,
    Behind(SeatId),
    Link(SeatId),
    Wait(SeatId),
    Hold(bool),
    Ended(bool),
}

impl Acquire {
    /// For this participant, in a turn that it has not had before.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            at: AcquireAt::Begin,
        }
    }

    /// Whom it waits for.
    #[must_use]
    pub const fn behind(&self) -> Option<SeatId> {
        match self.at {
            AcquireAt::Link(who) | AcquireAt::Wait(who) => Some(who),
            _ => None,
        }
    }
}

impl Machine for Acquire {
    type Outcome = Acquired;

    fn want(&self) -> Want<Acquired> {
        match self.at {
            AcquireAt::Begin => Want::Begin(Place::Asking),
            AcquireAt::Swap => Want::Atomic(Centre::Main, word(Opcode::Swap, self.me.0, 0)),
            AcquireAt::Behind(who) => Want::Stand(Place::Behind(who)),
            AcquireAt::Link(who) => Want::Link(who),
            AcquireAt::Wait(_) => Want::AwaitGrant { slot: 0 },
            AcquireAt::Hold(_) => Want::Stand(Place::Holding),
            AcquireAt::Ended(broken) => Want::Ended(Acquired::Held { broken }),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            AcquireAt::Begin => AcquireAt::Swap,
            AcquireAt::Swap => match answer.atomic().value {
                EMPTY => AcquireAt::Hold(false),
                before => AcquireAt::Behind(SeatId(before)),
            },
            AcquireAt::Behind(who) => AcquireAt::Link(who),
            AcquireAt::Link(who) => AcquireAt::Wait(who),
            AcquireAt::Wait(who) => {
                let from = SeatId(answer.word());
                // Anything else was meant for a turn that is over.
                if from.with_mark(false) == who {
                    AcquireAt::Hold(from.mark())
                } else {
                    AcquireAt::Wait(who)
                }
            }
            AcquireAt::Hold(broken) | AcquireAt::Ended(broken) => AcquireAt::Ended(broken),
        };
    }
}

/// Gets the lock if nobody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TryAcquire {
    me: SeatId,
    at: TryAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TryAt {
    Begin,
    Swap,
    Stand(Acquired),
    Ended(Acquired),
}

impl TryAcquire {
    /// For this participant, in a turn that it has not had before.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self { me, at: TryAt::Begin }
    }
}

impl Machine for TryAcquire {
    type Outcome = Acquired;

    fn want(&self) -> Want<Acquired> {
        match self.at {
            TryAt::Begin => Want::Begin(Place::Asking),
            TryAt::Swap => Want::Atomic(Centre::Main, word(Opcode::CompareSwap, self.me.0, EMPTY)),
            TryAt::Stand(Acquired::Held { .. }) => Want::Stand(Place::Holding),
            TryAt::Stand(Acquired::Taken) => Want::Stand(Place::Over(SeatId::NOBODY)),
            TryAt::Ended(how) => Want::Ended(how),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            TryAt::Begin => TryAt::Swap,
            TryAt::Swap if answer.atomic().value == EMPTY => TryAt::Stand(Acquired::Held { broken: false }),
            TryAt::Swap => TryAt::Stand(Acquired::Taken),
            TryAt::Stand(how) | TryAt::Ended(how) => TryAt::Ended(how),
        };
    }
}

/// Lets go of the lock. Ends with who has it now, if somebody had asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    me: SeatId,
    broken: bool,
    at: ReleaseAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReleaseAt {
    Look,
    Clear,
    Await,
    Over(SeatId),
    Grant(SeatId),
    Ended(SeatId),
}

impl Release {
    /// For a holder, in the turn in which it acquired the lock, whose chain is whole.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            broken: false,
            at: ReleaseAt::Look,
        }
    }
}

impl Machine for Release {
    type Outcome = SeatId;

    fn want(&self) -> Want<SeatId> {
        match self.at {
            ReleaseAt::Look => Want::LookNext,
            ReleaseAt::Clear => Want::Atomic(Centre::Main, word(Opcode::CompareSwap, EMPTY, self.me.0)),
            ReleaseAt::Await => Want::AwaitNext,
            ReleaseAt::Over(next) => Want::Stand(Place::Over(next)),
            ReleaseAt::Grant(to) => Want::Grant {
                to,
                slot: 0,
                word: self.me.with_mark(self.broken).0,
            },
            ReleaseAt::Ended(next) => Want::Ended(next),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            ReleaseAt::Look if answer.next().is_nobody() => ReleaseAt::Clear,
            ReleaseAt::Clear if answer.atomic().value == self.me.0 => ReleaseAt::Over(SeatId::NOBODY),
            // Somebody has asked meanwhile, and is about to say so.
            ReleaseAt::Clear => ReleaseAt::Await,
            ReleaseAt::Look | ReleaseAt::Await => ReleaseAt::Over(answer.next()),
            // Said before the grant goes out: who finds that this one's turn is over, and that the lock
            // was handed to somebody else or nobody, need not wait for it.
            ReleaseAt::Over(next) if next.is_nobody() => ReleaseAt::Ended(next),
            ReleaseAt::Over(next) => ReleaseAt::Grant(next),
            ReleaseAt::Grant(next) | ReleaseAt::Ended(next) => ReleaseAt::Ended(next),
        };
    }
}
